"""What the tests of commands share."""

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
