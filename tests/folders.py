"""Change model folders on purpose."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

PROOFS = ("digest", "files", "self_test")


def edit_config(
    folder: Path,
    change: Callable[[dict[str, Any]], object] = lambda config: None,
    without: tuple[str, ...] = PROOFS,
) -> None:
    """Change config.json, and remove what would notice: a model saved before there were digests."""
    path = folder / "config.json"
    config = json.loads(path.read_text(encoding="utf-8"))
    change(config)
    path.write_text(json.dumps({k: v for k, v in config.items() if k not in without}))
