"""Entities in CoNLL-U's MISC column, written as brackets: `Entity=(1-person-...`, `1)`.

`# global.Entity = GRP-etype-infstat-...` defines the order of the fields after a bracket; `etype`
is the label, and `GRP` (or `eid`) the name that closes an entity, so that entities may cross.
Without it, `(person-1` and `(1-person` are distinguished by the number. Parts of a discontinuous
entity are `(1[1/2]-person` and `(1[2/2]-person`. Labels may have escapes such as `%2D`, as in GUM.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from urllib.parse import unquote

from diffusionner.corpus import Discontinuous, Span
from diffusionner.errors import DataError
from diffusionner.formats.documents import Offsets
from diffusionner.formats.source import check_label

WRITTEN_FIELDS = "GRP-etype"

_MARK = re.compile(r"\(([^()]+)(\)?)|([^()]+)\)")
_PART = re.compile(r"(.+)\[(\d{1,4})/(\d{1,4})\]", re.ASCII)
_NUMBER = re.compile(r"e?\d+(\[\d+/\d+\])?", re.ASCII)
_ESCAPED = re.compile(r"[-%()|=\s]")


@dataclass
class _Mention:
    """An entity, or a part of a discontinuous one."""

    content: str  # of the opening bracket
    name: str
    label: str
    where: str
    start: int
    end: int = -1  # -1 while it is open

    def closed_by(self, text: str) -> bool:
        return text == self.name or f"{self.content}-".startswith(f"{text}-")


class EntityParser:
    """Parser for the entities of a sentence, fed row by row."""

    def __init__(self, fields: Sequence[str]) -> None:
        self.fields = fields  # from `# global.Entity`; empty without it
        self.mentions: list[_Mention] = []

    def add(self, text: str, start: int, end: int, where: str) -> None:
        """Add the Entity= of a row that covers the words from `start` to `end`."""
        marks = list(_MARK.finditer(text))
        if "".join(mark[0] for mark in marks) != text:
            raise DataError(
                f"{where}: 'Entity={text[:80]}' is not a list of brackets; write (1-person, 1) or "
                "(1-person)"
            )
        for content, single, closing in (mark.groups() for mark in marks):
            if content:
                name, label = self._name_and_label(content, where)
                mention = _Mention(content, name, label, where, start, end if single else -1)
                self.mentions.append(mention)
                continue
            opened = (m for m in reversed(self.mentions) if m.end < 0 and m.closed_by(closing))
            found = next(opened, None)
            if found is None:
                raise DataError(
                    f"{where}: '{closing[:80]})' closes an entity that was not opened in its "
                    "sentence; remove it, or join the sentences"
                )
            found.end = end

    def _name_and_label(self, content: str, where: str) -> tuple[str, str]:
        values = content.split("-")
        fields = self.fields or ["etype"]
        if not self.fields and len(values) > 1:
            fields = ["GRP", "etype"] if _NUMBER.fullmatch(values[0]) else ["etype", "GRP"]
        labels = [i for i, name in enumerate(fields) if name in ("etype", "entity")]
        names = [i for i, name in enumerate(fields) if name in ("GRP", "eid")] or labels
        needed = (*labels[:1], names[0]) if labels else ()
        if not needed or len(values) <= max(needed) or not all(values[i] for i in needed):
            raise DataError(
                f"{where}: '({content[:80]}' has no type or no name; the fields are "
                f"{'-'.join(fields)} (see '# global.Entity'), and etype is required"
            )
        try:
            label = unquote(values[labels[0]], errors="strict")
        except UnicodeDecodeError as error:
            raise DataError(
                f"{where}: '({content[:80]}' has escapes that are not UTF-8; correct them"
            ) from error
        return values[names[0]], check_label(label, where)

    def finish(self) -> list[tuple[Offsets, str]]:
        """Return the fragments of each entity, ordered by the start of the last one."""
        found: list[tuple[Offsets, str]] = []
        pending: dict[str, list[list[_Mention]]] = {}  # incomplete entities, by name
        for mention in self.mentions:
            if mention.end < 0:
                raise DataError(
                    f"{mention.where}: '({mention.content[:80]}' is not closed in its sentence; "
                    f"add {mention.name[:80]}) or join the sentences"
                )
            parts = [mention]
            if numbered := _PART.fullmatch(mention.name):
                name, index, count = numbered[1], int(numbered[2]), int(numbered[3])
                waiting = pending.setdefault(name, [])
                if index == 1:
                    waiting.append([])
                if not waiting or not _continues(mention, index, waiting[-1]):
                    raise DataError(
                        f"{mention.where}: '({mention.content[:80]}' does not continue the "
                        "previous part; give all parts in order, with one type"
                    )
                waiting[-1].append(mention)
                if index != count:
                    continue
                parts = waiting.pop()
            with_words = [(part.start, part.end) for part in parts if part.start < part.end]
            if with_words:
                found.append((with_words, mention.label))
        for first, *_ in (parts for waiting in pending.values() for parts in waiting):
            raise DataError(
                f"{first.where}: '({first.content[:80]}' lacks a part; give all in one sentence"
            )
        return found


def _continues(mention: _Mention, index: int, before: Sequence[_Mention]) -> bool:
    if index != len(before) + 1:
        return False
    return not before or (mention.start >= before[-1].end and mention.label == before[-1].label)


def encode_entities(entities: Iterable[Span | Discontinuous], words: int, count: int) -> list[str]:
    """Return the brackets of each word; entities are numbered from `count` + 1."""
    found: list[tuple[int, int, str, str]] = []
    for number, entity in enumerate(entities, count + 1):
        fragments = entity.fragments
        for index, (start, end) in enumerate(fragments, 1):
            name = f"{number}[{index}/{len(fragments)}]" if len(fragments) > 1 else f"{number}"
            found.append((start, end, name, _escape(entity.label)))
    opens, closes, singles = [""] * words, [""] * words, [""] * words
    for start, end, name, label in sorted(found, key=lambda f: (f[0], -f[1])):  # outer first
        if end - start == 1:
            singles[start] += f"({name}-{label})"
        else:
            opens[start] += f"({name}-{label}"
            closes[end - 1] = f"{name}){closes[end - 1]}"
    # CorefUD's order. Closing brackets precede opening ones, whose end would be ambiguous.
    return [c + o + s if o else s + c for o, c, s in zip(opens, closes, singles, strict=True)]


def _escape(label: str) -> str:
    return _ESCAPED.sub(lambda m: "".join(f"%{byte:02X}" for byte in m[0].encode()), label)
