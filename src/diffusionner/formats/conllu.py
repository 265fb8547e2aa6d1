"""CoNLL-U with entities in the MISC column, as in GUM and CorefUD; see `conllu_entities`.

Words are the rows numbered 1, 2, 3, ... Multiword tokens (`1-2`) and empty nodes (`1.1`) are not
words: an entity may begin or end at an empty node, but one without any word is dropped. Every
`# newdoc` begins a document; a single sentence after a `# newdoc` without a name has no document.
If every sentence of a document has a `# text` that consists of its words, these texts form the
document's text, separated by a line break before `# newpar`, nothing after `SpaceAfter=No`, else a
space.

Writes words, entities, documents and, if there is a text, the text of each sentence. White space
between words is kept except for line breaks, that between sentences only as described above.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain, groupby, pairwise
from pathlib import Path

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats.conllu_entities import WRITTEN_FIELDS, EntityParser, encode_entities
from diffusionner.formats.documents import Offsets, add_fragments, follows_in_text
from diffusionner.formats.format import Capabilities, Format, NoOptions
from diffusionner.formats.source import Sample, Source

_COLUMNS = tuple("ID FORM LEMMA UPOS XPOS FEATS HEAD DEPREL DEPS MISC".split())
_ID = re.compile(r"\d{1,9}([-.]\d{1,9})?", re.ASCII)


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return any(name.endswith(".conllu") for name in sample.names)
    row = next((line for line in sample.lines if not line.startswith("#")), "")
    columns = row.split("\t")
    return len(columns) == len(_COLUMNS) and _ID.fullmatch(columns[0]) is not None


@dataclass
class _Block:
    """A sentence, before the text of its document is known."""

    where: str
    text: str | None
    new_paragraph: bool
    words: list[str] = field(default_factory=list)
    entities: list[tuple[Offsets, str]] = field(default_factory=list)
    space_after: bool = True
    offsets: Offsets | None = None


def read(source: Source, options: NoOptions) -> Iterator[Sentence]:
    for path in source.files("*.conllu"):
        yield from _read_file(source, path)


def _read_file(source: Source, path: Path) -> Iterator[Sentence]:
    doc: str | None = None  # "" if it has no name
    documents = 0
    fields: list[str] = []
    blocks: list[_Block] = []  # of the current document
    for blank, rows in groupby(source.lines(path), lambda line: not line[1].strip()):
        if blank:
            continue
        try:
            tokens, metadata = _parse(list(rows))
            if "newdoc" in metadata or "newdoc id" in metadata:
                yield from _finish(blocks, doc, documents)
                blocks, doc = [], metadata.get("newdoc id") or ""
                documents += 1
            if "global.Entity" in metadata:
                fields = metadata["global.Entity"].split("-")
            if tokens:
                blocks.append(_block(tokens, metadata, fields))
        except DataError as error:
            source.report(error)
        if doc is None:
            yield from _finish(blocks, doc, documents)
            blocks = []
    yield from _finish(blocks, doc, documents)


def _parse(rows: Sequence[tuple[str, str]]) -> tuple[list[tuple[str, list[str]]], dict[str, str]]:
    """Return ("file:line", columns) for each row, and the metadata in the comments."""
    tokens, metadata = [], {}
    for where, line in rows:
        if line.startswith("#"):
            key, _, value = line[1:].partition("=")
            metadata[key.strip()] = value.strip()
            continue
        columns = line.split("\t")
        if len(columns) != len(_COLUMNS):
            raise DataError(
                f"{where}: {len(columns)} columns; CoNLL-U has {len(_COLUMNS)}, separated by tabs"
            )
        if not columns[-1] or not _ID.fullmatch(columns[0]):
            raise DataError(
                f"{where}: not CoNLL-U; the first column must be a number such as 1, 1-2 or 1.1, "
                "and the last _ if it is empty"
            )
        tokens.append((where, columns))
    if metadata.get("global.columns", " ".join(_COLUMNS)).upper().split() != list(_COLUMNS):
        raise DataError(
            f"{rows[0][0]}: '# global.columns' names other columns than {' '.join(_COLUMNS)}"
        )
    return tokens, metadata


def _block(
    tokens: Sequence[tuple[str, list[str]]], metadata: dict[str, str], fields: Sequence[str]
) -> _Block:
    new_paragraph = "newpar" in metadata or "newpar id" in metadata
    block = _Block(tokens[0][0], metadata.get("text"), new_paragraph)
    entities = EntityParser(fields)
    covered = 0  # last word of a multiword token, whose row has the SpaceAfter
    for where, columns in tokens:
        number, word = columns[:2]
        misc = dict(part.partition("=")[::2] for part in columns[-1].split("|"))
        if "-" in number:
            if "Entity" in misc:
                raise DataError(f"{where}: an entity at a multiword token; move it to its words")
            block.space_after = misc.get("SpaceAfter") != "No"
            covered = int(number.partition("-")[2])
            continue
        start = len(block.words)
        if "." not in number:
            if int(number) != start + 1 or not word:
                raise DataError(
                    f"{where}: expected word {start + 1} of the sentence, found {number} "
                    f"{word[:80]!r}; number the words from 1 and leave none out"
                )
            block.words.append(word)
            if int(number) > covered:
                block.space_after = misc.get("SpaceAfter") != "No"
        if "Entity" in misc:
            entities.add(misc["Entity"], start, len(block.words), where)
    if not block.words:
        raise DataError(f"{block.where}: the sentence has no words; remove it")
    block.entities = entities.finish()
    if block.text is not None:
        block.offsets = _align(block.text, block.words)
    return block


def _align(text: str, words: Iterable[str]) -> Offsets | None:
    """Return the characters of each word; None if the text is not just words and white space."""
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
    """Yield the sentences of a document; they have a text if all blocks have one."""
    if doc == "":
        doc = f"doc-{number}" if len(blocks) > 1 else None
    text = between = ""
    shifts: list[int] = []
    complete = all(block.offsets is not None for block in blocks)
    for block in blocks:
        text += "\n" if shifts and block.new_paragraph else between
        shifts.append(len(text))
        text += block.text or ""
        between = " " if block.space_after else ""
    for block, shift in zip(blocks, shifts, strict=True):
        sentence = Sentence(block.words, doc=doc, where=block.where)
        if complete:
            sentence.text = text
            sentence.offsets = [(start + shift, end + shift) for start, end in block.offsets or ()]
        for fragments, label in block.entities:
            add_fragments(sentence, fragments, label)
        yield sentence


def write(sentences: Iterable[Sentence], path: Path, options: NoOptions) -> None:
    named = False  # a document with a name was written
    count = 0  # entities in the document
    before: Sentence | None = None
    with path.open("w", encoding="utf-8", newline="\n") as file:
        for number, (sentence, after) in enumerate(pairwise(chain(sentences, [None])), 1):
            assert sentence is not None
            doc = sentence.doc
            # A sentence without a document must not join the previous document.
            if before is None or doc != before.doc or (doc is None and named):
                if named or doc is not None:
                    file.write("# newdoc\n" if doc is None else f"# newdoc id = {doc}\n")
                file.write(f"# global.Entity = {WRITTEN_FIELDS}\n")
                named = named or doc is not None
                count = 0
            file.write(f"# sent_id = {number}\n")
            text = _text(sentence)
            if text is not None:
                file.write("# newpar\n" if "\n" in _between(before, sentence) else "")
                file.write(f"# text = {text}\n")
            attached = _attached(sentence, after) if text is not None else set()
            entities = sentence.all_entities
            encoded = encode_entities(entities, len(sentence.words), count)
            for index, (word, entity) in enumerate(zip(sentence.words, encoded, strict=True)):
                misc = [f"Entity={entity}"] if entity else []
                misc += ["SpaceAfter=No"] if index in attached else []
                row = (str(index + 1), word, *"_______", "|".join(misc) or "_")
                file.write("\t".join(row) + "\n")
            file.write("\n")
            count += len(entities)
            before = sentence


def _text(sentence: Sentence) -> str | None:
    """Return the sentence's text on one line, if it is just words and white space."""
    if sentence.text is None or not sentence.offsets:
        return None
    text = sentence.text[sentence.offsets[0][0] : sentence.offsets[-1][1]]
    text = text.replace("\r", " ").replace("\n", " ").strip()
    return None if _align(text, sentence.words) is None else text


def _between(before: Sentence | None, sentence: Sentence) -> str:
    """Return the text between two sentences."""
    if before is None or sentence.text is None or not follows_in_text(sentence, before):
        return ""
    assert before.offsets and sentence.offsets
    return sentence.text[before.offsets[-1][1] : sentence.offsets[0][0]]


def _attached(sentence: Sentence, after: Sentence | None) -> set[int]:
    """Return the words that the next word follows without white space."""
    offsets = list(sentence.offsets or ())
    if after is not None and follows_in_text(after, sentence):
        offsets += (after.offsets or [])[:1]
    return {i for i, ((_, end), (start, _)) in enumerate(pairwise(offsets)) if end == start}


FORMAT = Format(
    name="conllu",
    summary="CoNLL-U with Entity= in MISC, as in GUM and CorefUD",
    recognises=recognises,
    read=read,
    write=write,
    capabilities=Capabilities(
        discontinuous=True,
        word=lambda word: bool(word.strip()) and "\t" not in word and "\n" not in word,
        doc=lambda doc: bool(doc) and doc == doc.strip() and "\n" not in doc,
    ),
    extensions=(".conllu",),
)
