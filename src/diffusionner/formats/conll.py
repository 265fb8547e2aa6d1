"""CoNLL columns: a word a line with its tags, a blank line after a sentence.

IOB1, IOB2 (BIO), BIOES, BILOU and BMES tags need no telling apart: one decoder is right for all
of them. Nested entities stand in several columns of tags, as in GermEval 2014 and LitBank: if all
columns behind the word hold tags, each is a layer; otherwise only the last is.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from bisect import bisect_left
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path
from typing import IO

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats.base import Format, Holds, Sample, Source

SCHEMES = ("iob1", "iob2", "bioes", "bilou", "bmes")
_SEPARATORS = {"tab": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_LETTERS = {  # of an entity's first, inner and last word, and of a single one
    "iob1": ("B", "I", "I", "B"),
    "iob2": ("B", "I", "I", "B"),
    "bioes": ("B", "I", "E", "S"),
    "bilou": ("B", "I", "L", "U"),
    "bmes": ("B", "M", "E", "S"),
}
_DOCSTART = "-DOCSTART-"
_NO_NAMES = ("-X-", "O")  # behind -DOCSTART-: just columns
_NO_DOCUMENT = "-"  # ours, for sentences that belong to none
_TAG = re.compile(r"O|[BIMELSU]-\S.*")
_BREAKS = re.compile("[ \t\n\r]")
# Types of syntactic chunks, whose tags look like a layer of entities.
_CHUNKS = frozenset("NP VP PP ADVP ADJP SBAR PRT CONJP INTJ LST UCP".split())
_CONTINUES = frozenset("IMEL")
_CLOSES = frozenset("ELSU")
# Letters that no scheme has together.
_EITHER = ((frozenset("ES"), frozenset("LU")), (frozenset("M"), frozenset("LU")))


@dataclass(frozen=True)
class ConllOptions:
    """Columns count from 0 or, negative, from the last; several are joined by +, as in 2+3."""

    word: str = ""  # column of the word
    labels: str = ""  # columns of tags
    separator: str = ""  # tab, space, comma, semicolon, pipe
    scheme: str = "iob2"  # to write

    def __post_init__(self) -> None:
        if self.scheme not in SCHEMES:
            raise ValueError(f"scheme is one of {', '.join(SCHEMES)}, not '{self.scheme}'")
        if self.separator and self.separator not in _SEPARATORS:
            raise ValueError(f"separator is one of {', '.join(_SEPARATORS)}")
        if not re.fullmatch(r"(-?\d{1,4})?", self.word):
            raise ValueError(f"word is the number of a column, not '{self.word}'")
        if not re.fullmatch(r"(-?\d{1,4}(\+-?\d{1,4})*)?", self.labels):
            raise ValueError(f"labels are columns such as 3 or 1+2, not '{self.labels}'")


@dataclass(frozen=True)
class Layout:
    """Which columns of a file are what."""

    word: int
    labels: tuple[int, ...]
    width: int | None = None  # of all rows; columns that only came later would be lost unseen


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return False
    rows = [_split(line, "") for line in sample.lines[:50]]
    if rows and rows[0][:1] == [_DOCSTART]:
        return True
    rows = [row for row in rows if not row[0].startswith("#")] or rows
    if not rows or len(rows[0]) < 2 or not is_tag(rows[0][-1]):
        return False
    # A line of prose may well end in "B-52"; most lines of it do not, nor have as many words.
    like = [row for row in rows if len(row) == len(rows[0]) and is_tag(row[-1])]
    return 2 * len(like) > len(rows) or len(rows) == 2


def other_separator(sample: Sample) -> str | None:
    """The name of the separator, neither tab nor space, by which the first line is a row."""
    for name, separator in _SEPARATORS.items():
        rows = [_split(line, separator) for line in sample.lines[:2]]
        if separator.strip() and rows and all(len(r) > 1 and is_tag(r[-1]) for r in rows):
            return name
    return None


def read(source: Source, options: ConllOptions) -> Iterator[Sentence]:
    return _parse(source, source.lines(), options)


def _parse(
    source: Source, lines: Iterable[tuple[str, str]], options: ConllOptions
) -> Iterator[Sentence]:
    """Each -DOCSTART- line begins a document: the name behind it or else doc-1, doc-2, and so on.

    A line that begins with # is a comment unless it is a row for the word "#": tags where they
    belong and as many columns as the row before.
    """
    lines = iter(lines)
    first = list(islice(lines, 200))
    separator = _SEPARATORS.get(options.separator, "")
    layout = _layout([_split(text, separator) for _, text in first], options)
    schemes: set[str] = set()
    documents = 0
    doc: str | None = None
    rows: list[list[str]] = []
    begins = ""
    bad = False  # the sentence has a row that was refused
    # The blank line added at the end closes a last sentence that has none after it.
    for where, text in chain(first, lines, [("", "")]):
        columns = _split(text, separator)
        if not columns or columns[0] == _DOCSTART:
            if rows and not bad:
                yield _sentence(rows, layout, doc, begins)
            rows, bad = [], False
            if columns:
                documents += 1
                doc = f"doc-{documents}"
                if len(columns) == 2 and columns[1] not in _NO_NAMES:
                    doc = None if columns[1] == _NO_DOCUMENT else columns[1]
            continue
        if text.startswith("#") and not _is_row(columns, layout, rows):
            continue
        try:
            if "\r" in text:
                raise DataError(f"{where}: a carriage return inside the line; end it with \\n")
            _check_row(columns, layout, rows, schemes, where)
        except DataError as error:
            source.refuse(error)
            bad = True
            continue
        begins = begins if rows else where
        rows.append(columns)


def _layout(rows: Sequence[Sequence[str]], options: ConllOptions) -> Layout:
    """The columns as told or, where not told, as the first rows have them."""
    rows = [row for row in rows if len(row) > 1 and row[0] != _DOCSTART]
    rows = [row for row in rows if not row[0].startswith("#")] or rows
    word = int(options.word) if options.word else 0
    if not options.word and rows and len(rows[0]) > 2 and _numbered(rows):
        word = 1
    if options.labels:
        return Layout(word, tuple(map(int, options.labels.split("+"))))
    if not rows:
        return Layout(word, (-1,))
    width = statistics.mode(map(len, rows))  # rows that are otherwise will be refused
    rows = [row for row in rows if len(row) == width]
    behind = range(word % width + 1, width)
    # Most rows say it: one that is wrong must be refused, not change how all others are read.
    if all(2 * sum(is_tag(row[i]) for row in rows) > len(rows) for i in behind):
        chunks = {i for i in behind if _chunks({row[i][2:] for row in rows})}
        layers = tuple(i for i in behind if i not in chunks) or tuple(behind)
        return Layout(word, layers or (-1,), width)
    return Layout(word, (-1,), width)


def _chunks(labels: set[str]) -> bool:
    """Whether a column's labels, the empty one of O among them, are those of chunks."""
    return {"NP", "VP"} <= labels <= _CHUNKS | {""}


def _numbered(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first column counts the words of a sentence, as in GermEval's own files."""
    firsts = ["0", *(row[0] for row in rows)]
    if not all(first.isdecimal() and len(first) < 5 for first in firsts):
        return False
    counting = sum(n in ("1", str(int(before) + 1)) for before, n in pairwise(firsts))
    return 10 * counting > 9 * len(rows) and not all(is_tag(row[1]) for row in rows)


def _sentence(rows: list[list[str]], layout: Layout, doc: str | None, where: str) -> Sentence:
    words = [row[layout.word] for row in rows]
    spans = [
        span for column in layout.labels for span in decode_tags([row[column] for row in rows])
    ]
    return Sentence(words, spans, doc, where)


def decode_tags(tags: Sequence[str]) -> list[Span]:
    """The entities of one sentence's tags.

    B, S and U begin an entity. I, M, E and L carry on an open one of the same type and otherwise
    begin one, as IOB1 has it. E, L, S and U close theirs.
    """
    spans: list[Span] = []
    start: int | None = None
    label = ""
    for index, tag in enumerate(tags):
        prefix, _, kind = tag.partition("-")
        if start is not None and not (prefix in _CONTINUES and kind == label):
            spans.append(Span(start, index, label))
            start = None
        if prefix == "O":
            continue
        if start is None:
            start, label = index, kind
        if prefix in _CLOSES:
            spans.append(Span(start, index + 1, label))
            start = None
    if start is not None:
        spans.append(Span(start, len(tags), label))
    return spans


def encode_tags(words: int, spans: Iterable[Span], scheme: str = "iob2") -> list[str]:
    """The tags of entities that do not overlap."""
    begin, inside, last, single = _LETTERS[scheme]
    tags = ["O"] * words
    for start, end, label in spans:
        for index in range(start, end):
            letter = inside
            if index == start:
                letter = single if end - start == 1 else begin
            elif index == end - 1:
                letter = last
            tags[index] = f"{letter}-{label}"
    if scheme == "iob1":
        # I begins an entity too; B only where one of the same type ends just before.
        for index, tag in enumerate(list(tags)):
            if tag.startswith("B-") and (index == 0 or tags[index - 1][2:] != tag[2:]):
                tags[index] = "I" + tag[1:]
    return tags


def layers_of(spans: Iterable[Span]) -> list[list[Span]]:
    """Entities in as few layers without overlap as greed finds, the outer ones first."""
    layers: list[list[Span]] = []
    for span in sorted(spans, key=lambda s: (s.start - s.end, s.start)):
        for layer in layers:
            at = bisect_left(layer, span)
            if (at == 0 or layer[at - 1].end <= span.start) and (
                at == len(layer) or span.end <= layer[at].start
            ):
                layer.insert(at, span)
                break
        else:
            layers.append([span])
    return layers


def write(sentences: Iterable[Sentence], path: Path, options: ConllOptions) -> None:
    """Words and tags between tabs; all rows get as many tags as the deepest sentence needs.

    Only the end tells how many. Until then each sentence stands in a draft, behind a line with
    its bytes and its columns of tags (0 for -DOCSTART-, which gets no more).
    """
    if options.word or options.labels or options.separator:
        raise DataError(
            "format conll: word, labels and separator are for reading; it is written with the "
            "word first, then its tags, between tabs"
        )
    # Beside the file: a folder for temporary files may be too small for it, or lie in memory.
    with tempfile.TemporaryFile(dir=path.parent) as draft:
        deepest, doc = 1, None
        for sentence in sentences:
            if sentence.doc != doc:
                doc = sentence.doc
                _put(draft, f"{_DOCSTART}\t{_document_name(sentence)}\n", 0)
            layers = layers_of(sentence.entities) or [[]]
            deepest = max(deepest, len(layers))
            tags = [encode_tags(len(sentence.words), layer, options.scheme) for layer in layers]
            rows = map("\t".join, zip(sentence.words, *tags, strict=True))
            _put(draft, "\n".join(rows) + "\n", len(layers))
        draft.seek(0)
        with path.open("wb") as file:
            while header := draft.readline():
                size, columns = map(int, header.split())
                rows_text = draft.read(size)
                if 0 < columns < deepest:
                    rows_text = rows_text.replace(b"\n", b"\tO" * (deepest - columns) + b"\n")
                file.write(rows_text + b"\n")


def _document_name(sentence: Sentence) -> str:
    doc = sentence.doc
    if doc is None:
        return _NO_DOCUMENT
    if doc in (*_NO_NAMES, _NO_DOCUMENT) or not _one_column(doc):
        raise DataError(
            f"{sentence.where or 'sentence'}: format conll cannot hold a document named "
            f"{doc[:80]!r}; give it a name without line breaks, or write jsonl"
        )
    return doc


def _put(draft: IO[bytes], rows: str, columns: int) -> None:
    content = rows.encode()
    draft.write(b"%d %d\n" % (len(content), columns) + content)


def _split(text: str, separator: str) -> list[str]:
    """The columns of a line, none when it is blank.

    Not str.split(): it also parts words at no-break and ideographic spaces.
    """
    if not text.strip():
        return []
    text = text.rstrip(" \t\r")
    if not separator:
        separator = "\t" if "\t" in text else " "
    if separator == " ":
        return [column for column in text.split(" ") if column]
    return [column.strip(" ") for column in text.split(separator)]


def is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def _is_row(columns: Sequence[str], layout: Layout, rows: Sequence[Sequence[str]]) -> bool:
    width = len(rows[-1]) if rows else layout.width or len(columns)
    least = max((c + 1 if c >= 0 else -c for c in layout.labels), default=1)
    if len(columns) < max(2, least) or len(columns) != width:
        return False
    return all(is_tag(columns[column]) for column in layout.labels)


def _check_row(
    columns: Sequence[str],
    layout: Layout,
    rows: Sequence[Sequence[str]],
    schemes: set[str],
    where: str,
) -> None:
    if len(columns) == 1:
        raise DataError(
            f"{where}: '{columns[0][:80]}' is alone on its line; a row is a word, then its tag, "
            "separated by a tab or spaces"
        )
    width = len(rows[-1]) if rows else layout.width or len(columns)
    if len(columns) != width:
        raise DataError(
            f"{where}: {len(columns)} columns where the rows before have {width}; give every "
            "row the same columns, separated by tabs if a word holds a space"
        )
    for column in (layout.word, *layout.labels):
        if not -width <= column < width:
            raise DataError(
                f"{where}: there is no column {column} among {width}; they count from 0"
            )
    if not columns[layout.word].strip():
        raise DataError(f"{where}: the word is only white space; remove the row")
    for column in layout.labels:
        tag = columns[column]
        if not is_tag(tag):
            place = "the last column" if column == -1 else f"column {column}"
            raise DataError(
                f"{where}: unknown tag '{tag[:80]}' in {place}; a tag is O, or one of "
                "B I E S (also M, L, U), a hyphen and a type, as in B-PER"
            )
        if tag[0] not in schemes:
            schemes.add(tag[0])
            if any(schemes & one and schemes & other for one, other in _EITHER):
                raise DataError(
                    f"{where}: tag '{tag[:80]}' is of another scheme than those before; BIOES, "
                    "BILOU and BMES cannot be mixed in a file"
                )


def _writable(word: str) -> bool:
    # The byte order mark would be taken for the file's if the word were its first.
    if _BREAKS.search(word) or word.isspace() or word == _DOCSTART or not word:
        return False
    return word[0] != "\ufeff"


def _one_column(text: str) -> bool:
    """Whether a label or a document's name can stand between tabs, as it is."""
    return text.strip() == text and not any(c in text for c in "\t\n\r")


FORMAT = Format(
    name="conll",
    summary="CoNLL columns: IOB1, IOB2, BIOES, BILOU, BMES; several columns of tags if nested",
    recognises=recognises,
    read=read,
    write=write,
    options=ConllOptions,
    holds=Holds(word=_writable, label=_one_column),
    extensions=(
        *(".conll", ".tsv", ".bio", ".iob", ".iob1", ".iob2", ".bioes", ".bilou", ".bmes"),
    ),
)
