"""Faults in how a mutated input was read."""

from __future__ import annotations

import re

# Words and labels unlike anything else in a file: whatever is lost can be told from the bytes.
TOKEN = re.compile(r"[wL]\d+q\d+z")


class FaultError(AssertionError):
    """Something was lost, or an error was unclear."""
