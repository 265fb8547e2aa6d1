"""CoNLL-U with entities in the MISC column, as in GUM and CorefUD; see `conllu_entities`.

Words are the rows numbered 1, 2, 3 and so on. Rows of multiword tokens (`1-2`) are no words, nor
are empty nodes (`1.1`): an entity may begin or end at an empty node, but one that has no word at
all is left out. Every `# newdoc` begins a document; one without a name and of a single sentence
counts as none. Where every sentence of a document has a `# text` in which its words follow one
another, these give the document's text: a line break before a `# newpar`, nothing behind
`SpaceAfter=No`, else a space.

Written are words, entities, documents and, where there is a text, that of each sentence: so white
space between words is kept but for line breaks, and that between sentences only as above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, pairwise
from pathlib import Path
from typing import Any

from diffusionner.corpus import Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.base import Format, Holds, NoOptions, Sample, Source, missing_extra
from diffusionner.formats.conllu_entities import WRITTEN, Brackets, Parts, marks
from diffusionner.formats.texts import follows, word_parts

_TABS = 9
_AS_TEXT = ("form", "lemma", "upos", "xpos", "feats", "head", "deprel", "deps", "misc")
_ROW = re.compile(r"\d+([-.]\d+)?\t")


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(".conllu") for name in sample.names)
    row = next((line for line in sample.lines if not line.startswith("#")), "")
    return row.count("\t") == _TABS and _ROW.match(row) is not None


@dataclass
class _Block:
    """A sentence, before it is known whether its document has a text."""

    where: str
    text: str | None
    new_paragraph: bool
    words: list[str] = field(default_factory=list)
    entities: list[tuple[Parts, str]] = field(default_factory=list)
    space_after: bool = True
    offsets: list[tuple[int, int]] | None = None


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    for path in source.files("*.conllu"):
        yield from _read_file(source, path)


def _read_file(source: Source, path: Path) -> Iterator[Sentence]:
    doc: str | None = None  # "" for one without a name
    documents = 0
    fields: list[str] = []
    blocks: list[_Block] = []  # of the document
    for rows in _split(source.lines(path)):
        try:
            tokens, metadata = _parse(rows)
        except DataError as error:
            source.refuse(error)
            continue
        if "newdoc" in metadata or "newdoc id" in metadata:
            yield from _finish(blocks, doc, documents)
            blocks, doc = [], metadata.get("newdoc id") or ""
            documents += 1
        if "global.Entity" in metadata:
            fields = metadata["global.Entity"].split("-")
        try:
            if tokens:
                blocks.append(_block(tokens, metadata, fields))
        except DataError as error:
            source.refuse(error)
        if doc is None:
            yield from _finish(blocks, doc, documents)
            blocks = []
    yield from _finish(blocks, doc, documents)


def _split(lines: Iterable[tuple[str, str]]) -> Iterator[list[tuple[str, str]]]:
    """The lines of each sentence, its comments before it."""
    rows: list[tuple[str, str]] = []
    for where, line in chain(lines, [("", "")]):
        if line.strip():
            rows.append((where, line))
        elif rows:
            yield rows
            rows = []


def _parse(rows: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, Any]], dict[str, Any]]:
    """("file:line", token) for each row, and what the comments say."""
    try:
        import conllu
    except ImportError as error:
        raise missing_extra("conllu", "conllu", "conllu") from error
    places = []
    for where, line in rows:
        if line.startswith("#"):
            continue
        if line.count("\t") != _TABS:
            raise DataError(
                f"{where}: {line.count(chr(9)) + 1} columns; CoNLL-U has {_TABS + 1}, separated "
                "by tabs"
            )
        if "  " in line:  # which the library takes for a tab
            raise DataError(f"{where}: two spaces in a row; CoNLL-U has one at most, in a word")
        places.append(where)
    try:
        (parsed,) = conllu.parse(
            "\n".join(line for _, line in rows),
            field_parsers={name: lambda columns, i: columns[i] for name in _AS_TEXT},
        )
    except (conllu.exceptions.ParseException, ValueError) as error:
        raise DataError(f"{rows[0][0]}: not CoNLL-U ({error}); correct the sentence") from error
    if any(list(token) != ["id", *_AS_TEXT] for token in parsed):
        raise DataError(
            f"{rows[0][0]}: the last column is empty or '# global.columns' names others than "
            "CoNLL-U's; write _ where there is nothing, and the columns from ID to MISC"
        )
    return list(zip(places, parsed, strict=True)), parsed.metadata


def _block(
    tokens: Sequence[tuple[str, Any]], metadata: dict[str, Any], fields: Sequence[str]
) -> _Block:
    new_paragraph = "newpar" in metadata or "newpar id" in metadata
    block = _Block(tokens[0][0], metadata.get("text"), new_paragraph)
    brackets = Brackets(fields)
    covered = 0  # the last word of a multiword token, whose row tells what is behind it
    for where, token in tokens:
        number, word = token["id"], token["form"]
        misc = dict(part.partition("=")[::2] for part in token["misc"].split("|"))
        if isinstance(number, tuple) and number[1] == "-":
            if "Entity" in misc:
                raise DataError(f"{where}: an entity at a multiword token; put it at its words")
            block.space_after = misc.get("SpaceAfter") != "No"
            covered = number[2]
            continue
        start = len(block.words)
        if not isinstance(number, tuple):
            if number != start + 1 or not word:
                raise DataError(
                    f"{where}: expected word {start + 1} of the sentence, found {number} "
                    f"{word[:80]!r}; number the words from 1 and leave none out"
                )
            block.words.append(word)
            if number > covered:
                block.space_after = misc.get("SpaceAfter") != "No"
        if "Entity" in misc:
            brackets.follow(misc["Entity"], start, len(block.words), where)
    if not block.words:
        raise DataError(f"{block.where}: the sentence has no words; remove it")
    block.entities = brackets.entities()
    if block.text is not None:
        block.offsets = _align(block.text, block.words)
    return block


def _align(text: str, words: Iterable[str]) -> list[tuple[int, int]] | None:
    """Each word's characters if the text is just the words and white space, else None."""
    offsets = []
    end = 0
    for word in words:
        start = end
        while not text.startswith(word, start):
            if not text[start : start + 1].isspace():
                return None
            start += 1
        end = start + len(word)
        offsets.append((start, end))
    return None if text[end:].strip() else offsets


def _finish(blocks: Sequence[_Block], doc: str | None, number: int) -> Iterator[Sentence]:
    """A document's sentences; they get a text if all of them have one."""
    if doc == "":
        doc = f"doc-{number}" if len(blocks) > 1 else None
    text = ""
    shifts: list[int] = []
    complete = all(block.offsets is not None for block in blocks)
    for before, block in pairwise(chain([None], blocks)):
        assert block is not None
        if before is not None:
            between = " " if before.space_after else ""
            text += "\n" if block.new_paragraph else between
        shifts.append(len(text))
        text += block.text or ""
    for block, shift in zip(blocks, shifts, strict=True):
        sentence = Sentence(block.words, doc=doc, where=block.where)
        if complete:
            sentence.text = text
            sentence.offsets = [(start + shift, end + shift) for start, end in block.offsets or ()]
        _, offsets = sentence.characters()
        for parts, label in block.entities:
            if len(parts) == 1:
                sentence.entities.append(Span(*parts[0], label))
                continue
            characters = tuple((offsets[start][0], offsets[end - 1][1]) for start, end in parts)
            sentence.irregular.append(Irregular(characters, label))
        yield sentence


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    named = False  # whether there was a document
    count = 0  # of the document's entities
    before: Sentence | None = None
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, (sentence, after) in enumerate(pairwise(chain(sentences, [None])), 1):
            assert sentence is not None
            doc = sentence.doc
            # A sentence of no document must not join the document before it.
            if before is None or doc != before.doc or (doc is None and named):
                file.write(_begin(doc, sentence.where) if named or doc is not None else "")
                file.write(f"# global.Entity = {WRITTEN}\n")
                named = named or doc is not None
                count = 0
            file.write(f"# sent_id = {number}\n")
            text = _text(sentence)
            if text is not None:
                file.write("# newpar\n" if "\n" in _between(before, sentence) else "")
                file.write(f"# text = {text}\n")
            attached = _attached(sentence, after) if text is not None else set()
            entities = _entities(sentence)
            columns = zip(sentence.words, marks(entities, len(sentence.words), count), strict=True)
            for index, (word, mark) in enumerate(columns):
                misc = [f"Entity={mark}"] if mark else []
                misc += ["SpaceAfter=No"] if index in attached else []
                row = (str(index + 1), word, *"_______", "|".join(misc) or "_")
                file.write("\t".join(row) + "\n")
            file.write("\n")
            count += len(entities)
            before = sentence


def _begin(doc: str | None, where: str) -> str:
    if doc is None:
        return "# newdoc\n"
    if doc != doc.strip() or not doc or "\n" in doc:
        raise DataError(
            f"{where or 'sentence'}: the document's name {doc!r} is empty, has a line break or a "
            "space at an end, which format conllu cannot hold; rename it"
        )
    return f"# newdoc id = {doc}\n"


def _entities(sentence: Sentence) -> list[tuple[Parts, str]]:
    entities: list[tuple[Parts, str]] = [
        ([(start, end)], label) for start, end, label in sentence.entities
    ]
    for irregular in sentence.irregular:
        parts = word_parts(sentence, irregular)
        assert parts is not None  # by `holds`
        entities.append((parts, irregular.label))
    return entities


def _text(sentence: Sentence) -> str | None:
    """The sentence's part of its text, in a line, if it is words and white space alone."""
    if sentence.text is None or not sentence.offsets:
        return None
    text = sentence.text[sentence.offsets[0][0] : sentence.offsets[-1][1]]
    text = text.replace("\r", " ").replace("\n", " ").strip()
    return None if _align(text, sentence.words) is None else text


def _between(before: Sentence | None, sentence: Sentence) -> str:
    """What is between two sentences of a text."""
    if before is None or sentence.text is None or not follows(sentence, before):
        return ""
    assert before.offsets and sentence.offsets
    return sentence.text[before.offsets[-1][1] : sentence.offsets[0][0]]


def _attached(sentence: Sentence, after: Sentence | None) -> set[int]:
    """The words with nothing between them and the next."""
    offsets = list(sentence.offsets or ())
    if after is not None and follows(after, sentence):
        offsets += (after.offsets or [])[:1]
    return {i for i, ((_, end), (start, _)) in enumerate(pairwise(offsets)) if end == start}


def _writable(word: str) -> bool:
    return bool(word.strip()) and not any(part in word for part in ("\t", "\n", "  "))


FORMAT = Format(
    name="conllu",
    summary="CoNLL-U with Entity= in MISC, as in GUM and CorefUD",
    recognises=recognises,
    read=read,
    write=write,
    holds=Holds(irregular="parts", word=_writable),
    extensions=(".conllu",),
)
