"""OntoNotes as in the CoNLL-2012 shared task: the named-entity column of `*_gold_conll` files.

`#begin document (bn/abc/00/abc_0001); part 000` begins a document and `#end document` ends it; a
blank line ends a sentence. Columns are separated by white space and count from 0: the word is
column 3, entities are brackets in column 10, as in `(PERSON*`, `*`, `*)` and `(GPE)`, and may be
nested, as in `(ORG(GPE*)`. Words are not unescaped (`/.`, `-LRB-`). A document is named by its name
and part, as in `bn/abc/00/abc_0001; part 000`. In a folder, files whose names end in `_gold_conll`
are read or, if there are none, those that end in `_conll`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.format import Capabilities, Format, NoOptions
from diffusionner.formats.source import Sample, Source

_BEGIN = re.compile(r"#begin document \((.*)\)(?:; part (\d{1,9})|;)?\s*")
_NAME = re.compile(r"(.*); part (\d{1,9})")
_WORD, _ENTITIES = 3, 10
_MARKS = re.compile(r"\(([^()*|\s]+)|\)|\*")
_LABEL = re.compile(r"[^()*|\s]+")
_SPACES = re.compile(r"[ \t]+")  # not \s: a word may contain a no-break space


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith("_conll") for name in sample.names)
    first = sample.lines[0] if sample.lines else ""
    columns = _SPACES.split(first.strip(" \t"))
    if first.startswith("#begin document"):
        return True
    if len(columns) < _ENTITIES + 2:
        return False
    # Rows outside of documents.
    numbered = columns[1].isdecimal() and columns[2].isdecimal()
    return numbered and _is_brackets(columns[_ENTITIES])


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    for path in source.files("*_gold_conll") or source.files("*_conll"):
        yield from _read_file(source, path)


def _read_file(source: Source, path: Path) -> Iterator[Sentence]:
    doc: str | None = None
    open_at = ""  # where the document that is not yet ended began
    where = f"{path}:1"
    rows: list[tuple[str, list[str]]] = []
    for where, line in source.lines(path):
        begins, ends = line.startswith("#begin document"), line.strip() == "#end document"
        if line.strip(" \t") and not (begins or ends):
            rows.append((where, _SPACES.split(line.strip(" \t"))))
            continue
        yield from _sentence(source, rows, doc)
        rows = []
        if begins and open_at:
            source.report(_not_ended(where, open_at))
        if begins or ends:
            open_at = where if begins else ""
            doc = _document(source, line, where) if begins else None
    yield from _sentence(source, rows, doc)
    if open_at:
        source.report(_not_ended(where, open_at))


def _document(source: Source, line: str, where: str) -> str | None:
    found = _BEGIN.fullmatch(line)
    if found is None:
        source.report(
            DataError(
                f"{where}: '{line[:80]}' does not name a document; write #begin document (name);"
            )
        )
        return None
    return f"{found[1]}; part {found[2]}" if found[2] else found[1]


def _sentence(
    source: Source, rows: Sequence[tuple[str, list[str]]], doc: str | None
) -> Iterator[Sentence]:
    if not rows:
        return
    try:
        for where, columns in rows:
            _check_row(columns, len(rows[0][1]), where)
        entities = _entities([(where, columns[_ENTITIES]) for where, columns in rows])
    except DataError as error:
        source.report(error)
        return
    yield Sentence([columns[_WORD] for _, columns in rows], entities, doc, rows[0][0])


def _check_row(columns: Sequence[str], width: int, where: str) -> None:
    if len(columns) <= _ENTITIES:
        raise DataError(
            f"{where}: {len(columns)} columns, but entities are column {_ENTITIES}, counted from "
            "0; check that the row is complete and the file in CoNLL-2012's format"
        )
    if len(columns) != width:
        raise DataError(
            f"{where}: {len(columns)} columns where the sentence's first row has {width}; check "
            "that the row is complete and that no word contains a space"
        )
    if columns[_WORD] == "[WORD]":
        raise DataError(
            f"{where}: the file has no words; add them with CoNLL-2012's skeleton2conll "
            "and your copy of OntoNotes"
        )


def _entities(column: Iterable[tuple[str, str]]) -> list[Span]:
    """Return the entities of a sentence, in the order in which they begin."""
    found: list[Span | None] = []
    opened: list[tuple[int, int, str, str]] = []  # index in `found`, first word, label, where
    for index, (where, text) in enumerate(column):
        if text == "*":
            continue
        if not _is_brackets(text):
            raise DataError(
                f"{where}: '{text[:80]}' in the named-entity column is not a bracket; "
                "write it as (PERSON*, *, *) or (GPE)"
            )
        for mark in _MARKS.finditer(text):
            if mark[1]:
                opened.append((len(found), index, mark[1], where))
                found.append(None)
            elif mark[0] == ")":
                if not opened:
                    raise DataError(f"{where}: a closing bracket without an opening one; remove it")
                place, start, label, _ = opened.pop()
                found[place] = Span(start, index + 1, label)
    if opened:
        _, _, label, where = opened[-1]
        raise DataError(f"{where}: '({label}' is not closed in its sentence; add its )")
    return [span for span in found if span is not None]


def _is_brackets(text: str) -> bool:
    return "".join(mark[0] for mark in _MARKS.finditer(text)) == text


def _not_ended(where: str, open_at: str) -> DataError:
    return DataError(
        f"{where}: the document that begins at {open_at} has no '#end document'; the file is "
        "truncated, or the line is missing"
    )


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    doc: str | None = None
    name, part = "-", ""
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for sentence in sentences:
            if sentence.doc != doc:
                file.write("" if doc is None else "#end document\n")
                doc = sentence.doc
                found = _NAME.fullmatch(doc or "-")
                name, part = found.groups() if found else (doc or "-", "")
                if "\n" in name or "\r" in name:
                    raise DataError(
                        f"{sentence.where or 'sentence'}: the document's name {doc!r} has a line "
                        "break, which format ontonotes cannot represent; rename it"
                    )
                begin = f"#begin document ({name});" + (f" part {part}" if part else "") + "\n"
                file.write("" if doc is None else begin)
            columns = zip(sentence.words, _brackets(sentence), strict=True)
            for index, (word, brackets) in enumerate(columns):
                place = (re.sub(r"\s", "_", name), int(part or 0), index)
                row = (*place, word, "-", "*", "-", "-", "-", "-", brackets, "-")
                file.write(" ".join(map(str, row)) + "\n")
            file.write("\n")
        file.write("" if doc is None else "#end document\n")


def _brackets(sentence: Sentence) -> list[str]:
    opens = [""] * len(sentence.words)
    closes = [""] * len(sentence.words)
    for start, end, label in sorted(sentence.entities, key=lambda e: (e.start, -e.end)):
        opens[start] += f"({label}"
        closes[end - 1] += ")"
    # A single-word entity has no star, as in (GPE).
    return [
        o + c if o and o.count("(") == len(c) else f"{o}*{c}"
        for o, c in zip(opens, closes, strict=True)
    ]


FORMAT = Format(
    name="ontonotes",
    summary="OntoNotes in CoNLL-2012's columns (*_gold_conll), named entities in brackets",
    recognises=recognises,
    read=read,
    write=write,
    capabilities=Capabilities(
        crossing=False,
        word=lambda word: re.fullmatch(r"[^ \t\n]+", word) is not None,
        label=lambda label: _LABEL.fullmatch(label) is not None,
    ),
    extensions=(".v4_gold_conll", ".gold_conll"),
)
