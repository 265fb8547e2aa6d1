"""Helpers for tests of commands."""

from __future__ import annotations

import json
from dataclasses import dataclass


@dataclass
class Result:
    status: int
    out: str
    err: str

    @property
    def records(self) -> list[dict]:
        return [json.loads(line) for line in self.out.splitlines()]


def assert_short(err: str) -> None:
    """Check that an error message is short and has no traceback."""
    assert "Traceback" not in err
    lines = [line for line in err.splitlines() if not line.startswith("epoch ")]
    assert lines[0].startswith("error: ")
    # PyYAML shows the place with a few lines of its own.
    assert len(lines) <= (6 if "not valid YAML" in err else 2)
