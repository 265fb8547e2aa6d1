"""Inputs of `annotate` and `predict`: lines of text or JSON, compressed or not."""

from __future__ import annotations

import gzip
import re
from pathlib import Path
from random import Random

from benchmarks.attack.damage import damage
from benchmarks.attack.faults import TOKEN, FaultError
from benchmarks.attack.spelling import spell_json
from diffusionner.annotation.sources import Sources
from diffusionner.errors import DataError

ODD = (
    "",
    "é",
    '"',
    "\\",
    "\u2028",
    "\u0085",
    "\x0b",
    "\x1c",
    "\0",
    "\ufeff",
    "\U0001f469",
    "{",
    "\t",
)
Content = tuple[str | list[str], str | None]


def _lines(chance: Random, in_json: bool) -> tuple[list[bytes], list[Content]]:
    lines, contents = [], []
    for number in range(chance.randint(2, 8)):
        words = [f"w{number}q{i}z{chance.choice(ODD)}" for i in range(chance.choice((1, 2, 5)))]
        content = words if in_json and chance.random() < 0.5 else " ".join(words)
        doc = f"d{number}" if in_json and chance.random() < 0.5 else None
        line = str(content)
        if in_json:
            fields = {"text" if isinstance(content, str) else "tokens": content}
            line = spell_json({**fields, **({"doc": doc} if doc else {})}, chance)
        lines.append(line.encode())
        contents.append((content, doc))
    return lines, contents


def _write(folder: Path, lines: list[bytes], in_json: bool, chance: Random) -> Path:
    end = chance.choice((b"\n", b"\n", b"\r\n"))
    content = end.join(lines) + chance.choice((b"", end, end + b" " + end))
    if chance.random() < 0.2:
        content = b"\xef\xbb\xbf" + content
    name = "input.jsonl" if in_json else "input.txt"
    if chance.random() < 0.2:
        name, content = name + ".gz", gzip.compress(content)
    path = folder / name
    path.write_bytes(content)
    return path


def _read(path: Path) -> tuple[list[Content], list[str]]:
    messages: list[str] = []
    records = list(Sources([path]).records(messages.append))
    for message in messages:
        if not re.match(rf"{re.escape(str(path))}:\d+: ", message) or len(message) > 1000:
            raise FaultError(f"an unclear error: {message[:300]!r}")
    return [(record.content, record.doc) for record in records], messages


def respelled(name: str, chance: Random, folder: Path) -> bool:
    """A legal file is read as it says."""
    in_json = chance.random() < 0.7
    lines, contents = _lines(chance, in_json)
    found, messages = _read(_write(folder, lines, in_json, chance))
    if messages or found != contents:
        raise FaultError(f"read {found!r:.300} for {contents!r:.300}; {messages[:1]}")
    return True


def damaged(name: str, chance: Random, folder: Path) -> bool:
    """One line is damaged: the others are as they were, and it is reported or read."""
    in_json = chance.random() < 0.7
    lines, contents = _lines(chance, in_json)
    touched = chance.randrange(len(lines))
    lines[touched] = changed = damage(lines[touched], chance)
    try:
        found, messages = _read(_write(folder, lines, in_json, chance))
    except DataError as error:
        raise FaultError(f"one bad line ends the reading: {error}") from error
    before, after = contents[:touched], contents[touched + 1 :]
    own = found[len(before) : len(found) - len(after)]
    if found[: len(before)] != before or found[len(found) - len(after) :] != after:
        raise FaultError(f"other lines changed: read {found!r:.300} for {contents!r:.300}")
    intact = set(TOKEN.findall(changed.decode(errors="replace")))
    if not messages and intact - set(TOKEN.findall(repr(own))):
        raise FaultError(f"silently lost from {changed!r:.300}: read {own!r:.300}")
    return not messages
