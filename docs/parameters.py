"""A griffe extension that shows `name: description` lines of docstrings as lists of parameters."""

from __future__ import annotations

import re
from typing import Any

import griffe


class ParameterLines(griffe.Extension):
    """Turn lines that describe parameters into an `Args:` section, which mkdocstrings renders."""

    def on_function(self, *, func: griffe.Function, **kwargs: Any) -> None:
        if func.docstring is not None:
            names = [parameter.name for parameter in func.parameters]
            func.docstring.value = with_section(func.docstring.value, names)


def with_section(text: str, names: list[str]) -> str:
    """Return the docstring with its parameter lines moved into an `Args:` section."""
    begins = re.compile(rf"(?:{'|'.join(map(re.escape, names))}): ") if names else None
    kept: list[str] = []
    described: list[str] = []
    inside = False
    for line in text.splitlines():
        if begins is not None and begins.match(line):
            inside = True
            described.append(f"    {line}")
        elif inside and line.strip():
            described.append(f"        {line}")
        else:
            inside = False
            kept.append(line)
    if not described:
        return text
    return "\n".join([*kept, "", "Args:", *described])
