"""CoNLL columns: one word per line with its tags, and a blank line after each sentence.

All tagging schemes of `bio_tags` are read alike. Nested entities are in several
columns of tags, as in GermEval 2014 and LitBank: if all columns after the word are tags, each is a
layer; otherwise only the last column is.
"""

from __future__ import annotations

import re
import statistics
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice, pairwise
from pathlib import Path

from diffusionner.corpus import Sentence
from diffusionner.errors import DataError
from diffusionner.formats.bio_tags import (
    SCHEMES,
    VALID_TAGS,
    decode_tags,
    encode_tags,
    is_tag,
    split_layers,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.source import Sample, Source

_SEPARATORS = {"tab": "\t", "space": " ", "comma": ",", "semicolon": ";", "pipe": "|"}
_DOCSTART = "-DOCSTART-"
_NOT_NAMES = ("-X-", "O")  # after -DOCSTART-: other columns, not the name of a document
_NO_DOCUMENT = "-"  # our own name for sentences without a document
_BREAKS = re.compile("[ \t\n\r]")
# Types of syntactic chunks, whose tags look like a layer of entities.
_CHUNKS = frozenset("NP VP PP ADVP ADJP SBAR PRT CONJP INTJ LST UCP".split())
# Letters that no scheme uses together.
_EXCLUSIVE = ((frozenset("ES"), frozenset("LU")), (frozenset("M"), frozenset("LU")))


@dataclass(frozen=True)
class ConllOptions:
    """Columns count from 0 or, if negative, from the last; several are joined by +, as in 2+3."""

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
class _Layout:
    """The columns of a file."""

    word: int
    labels: tuple[int, ...]
    width: int | None = None  # of all rows, if columns were detected


def recognises(sample: Sample) -> bool:
    rows = [_split(line, "") for line in sample.lines[:50]]
    if rows and rows[0][:1] == [_DOCSTART]:
        return True
    rows = [row for row in rows if not row[0].startswith("#")] or rows
    if not rows or len(rows[0]) < 2 or not is_tag(rows[0][-1]):
        return False
    # A line of prose may end in "B-52", but most lines do not, nor have the same number of words.
    similar = [row for row in rows if len(row) == len(rows[0]) and is_tag(row[-1])]
    return 2 * len(similar) > len(rows) or len(rows) == 2


def detect_separator(sample: Sample) -> str | None:
    """Return the separator other than tab and space with which the first lines are rows."""
    for name, separator in _SEPARATORS.items():
        rows = [_split(line, separator) for line in sample.lines[:2]]
        if separator.strip() and rows and all(len(r) > 1 and is_tag(r[-1]) for r in rows):
            return name
    return None


def read(source: Source, options: ConllOptions) -> Iterator[Sentence]:
    """Yield the sentences.

    Each -DOCSTART- line begins a document, named by what follows it or else doc-1, doc-2, ... A
    line that begins with # is a comment unless it is a row for the word "#": with tags in their
    columns and as many columns as the previous row.
    """
    lines = source.lines()
    first = list(islice(lines, 200))
    separator = _SEPARATORS.get(options.separator, "")
    layout = _detect_layout([_split(text, separator) for _, text in first], options)
    letters: set[str] = set()
    documents = 0
    doc: str | None = None
    rows: list[list[str]] = []
    begin = ""
    invalid = False  # the sentence has an invalid row
    # The blank line at the end closes the last sentence.
    for where, text in chain(first, lines, [("", "")]):
        columns = _split(text, separator)
        if not columns or columns[0] == _DOCSTART:
            if rows and not invalid:
                layers = (decode_tags([row[c] for row in rows]) for c in layout.labels)
                words = [row[layout.word] for row in rows]
                yield Sentence(words, list(chain.from_iterable(layers)), doc, begin)
            rows, invalid = [], False
            if columns:
                if any(is_tag(column) and column != "O" for column in columns[2:]):
                    source.report(
                        DataError(
                            f"{where}: {_DOCSTART} with the tags of a word; put it on its own line"
                        )
                    )
                documents += 1
                doc = f"doc-{documents}"
                if len(columns) == 2 and columns[1] not in _NOT_NAMES:
                    doc = None if columns[1] == _NO_DOCUMENT else columns[1]
            continue
        width = len(rows[-1]) if rows else layout.width or len(columns)
        # Within a sentence, "#word" with the right number of columns is a row, even if its tag
        # is invalid.
        hash_row = rows and not text.startswith("# ") and len(columns) == width
        if text.startswith("#") and not hash_row and not _is_row(columns, layout, width):
            continue
        try:
            if "\r" in text:
                raise DataError(f"{where}: a carriage return inside the line; end it with \\n")
            _check_row(columns, layout, width, letters, where)
        except DataError as error:
            source.report(error)
            invalid = True
            continue
        begin = begin if rows else where
        rows.append(columns)


def _split(text: str, separator: str) -> list[str]:
    """Return the columns of a line, none if it is blank.

    Not str.split(), which also splits at no-break and ideographic spaces.
    """
    if not text.strip():
        return []
    text = text.rstrip(" \t\r")
    if not separator:
        separator = "\t" if "\t" in text else " "
    if separator == " ":
        return [column for column in text.split(" ") if column]
    return [column.strip(" ") for column in text.split(separator)]


def _detect_layout(rows: Sequence[Sequence[str]], options: ConllOptions) -> _Layout:
    """Return the columns that the options name; detect the others from the first rows."""
    rows = [row for row in rows if len(row) > 1 and row[0] != _DOCSTART]
    rows = [row for row in rows if not row[0].startswith("#")] or rows
    word = int(options.word) if options.word else 0
    if not options.word and rows and len(rows[0]) > 2 and _is_numbered(rows):
        word = 1
    if options.labels:
        return _Layout(word, tuple(map(int, options.labels.split("+"))))
    if not rows:
        return _Layout(word, (-1,))
    width = statistics.mode(map(len, rows))  # rows of another width are errors
    rows = [row for row in rows if len(row) == width]
    after_word = range(word % width + 1, width)
    # The majority decides: an invalid row must be an error, not change how others are read.
    if all(2 * sum(is_tag(row[i]) for row in rows) > len(rows) for i in after_word):
        labels = {i: {row[i][2:] for row in rows} for i in after_word}  # "" for O
        chunks = {i for i in labels if {"NP", "VP"} <= labels[i] <= _CHUNKS | {""}}
        layers = tuple(i for i in after_word if i not in chunks) or tuple(after_word)
        return _Layout(word, layers or (-1,), width)
    return _Layout(word, (-1,), width)


def _is_numbered(rows: Sequence[Sequence[str]]) -> bool:
    """Return True if the first column numbers the words, as in GermEval's original files."""
    numbers = ["0", *(row[0] for row in rows)]
    if not all(number.isdecimal() and len(number) < 5 for number in numbers):
        return False
    counting = sum(n in ("1", str(int(before) + 1)) for before, n in pairwise(numbers))
    return 10 * counting > 9 * len(rows) and not all(is_tag(row[1]) for row in rows)


def _is_row(columns: Sequence[str], layout: _Layout, width: int) -> bool:
    needed = max((c + 1 if c >= 0 else -c for c in layout.labels), default=1)
    if len(columns) < max(2, needed) or len(columns) != width:
        return False
    return all(is_tag(columns[column]) for column in layout.labels)


def _check_row(
    columns: Sequence[str], layout: _Layout, width: int, letters: set[str], where: str
) -> None:
    """Raise DataError if a row is invalid; `letters` collects the tag letters of the file."""
    if len(columns) == 1:
        raise DataError(
            f"{where}: '{columns[0][:80]}' is alone on its line; a row is a word and its tag, "
            "separated by a tab or spaces"
        )
    if len(columns) != width:
        raise DataError(
            f"{where}: {len(columns)} columns where the previous rows have {width}; give every "
            "row the same columns, separated by tabs if a word contains a space"
        )
    for column in (layout.word, *layout.labels):
        if not -width <= column < width:
            raise DataError(f"{where}: no column {column} among {width}; they count from 0")
    if not columns[layout.word].strip():
        raise DataError(f"{where}: the word is only white space; remove the row")
    for column in layout.labels:
        tag = columns[column]
        if not is_tag(tag):
            place = "the last column" if column == -1 else f"column {column}"
            raise DataError(f"{where}: unknown tag '{tag[:80]}' in {place}; {VALID_TAGS}")
        if tag[0] not in letters:
            letters.add(tag[0])
            if any(letters & one and letters & other for one, other in _EXCLUSIVE):
                raise DataError(
                    f"{where}: tag '{tag[:80]}' is of another scheme than the previous ones; "
                    "BIOES, BILOU and BMES cannot be mixed in a file"
                )


def write(sentences: Iterable[Sentence], path: Path, options: ConllOptions) -> None:
    """Write words and tags separated by tabs, with as many tag columns as the deepest sentence.

    That number is known only at the end, so sentences are written to a temporary file first.
    """
    if options.word or options.labels or options.separator:
        raise DataError(
            "format conll: word, labels and separator are for reading; the word is written first, "
            "then its tags, separated by tabs"
        )
    # In the same folder: the default folder for temporary files may be too small or in memory.
    with tempfile.TemporaryFile("w+", dir=path.parent, encoding="utf-8", newline="\n") as draft:
        deepest, doc = 1, None
        for sentence in sentences:
            if sentence.doc != doc:
                doc = sentence.doc
                draft.write(f"{_DOCSTART}\t{_NO_DOCUMENT if doc is None else doc}\n\n")
            layers = split_layers(sentence.entities) or [[]]
            deepest = max(deepest, len(layers))
            tags = [encode_tags(len(sentence.words), layer, options.scheme) for layer in layers]
            rows = map("\t".join, zip(sentence.words, *tags, strict=True))
            draft.write("\n".join(rows) + "\n\n")
        draft.seek(0)
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for line in draft:
                if line != "\n" and not line.startswith(_DOCSTART + "\t"):
                    line = line[:-1] + "\tO" * (deepest - line.count("\t")) + "\n"
                file.write(line)


def _is_writable(word: str) -> bool:
    if _BREAKS.search(word) or word.isspace() or word == _DOCSTART or not word:
        return False
    return word[0] != "\ufeff"  # at the start of a file it would be read as its byte order mark


def _is_one_column(text: str) -> bool:
    """Return True if a label or a document's name can be written between tabs."""
    return text.strip() == text and not any(c in text for c in "\t\n\r")


def _is_document_name(text: str) -> bool:
    return text not in (*_NOT_NAMES, _NO_DOCUMENT) and _is_one_column(text)


FORMAT = Format(
    name="conll",
    summary="CoNLL columns: IOB1, IOB2, BIOES, BILOU, BMES; several columns of tags if nested",
    recognises=recognises,
    read=read,
    write=write,
    options=ConllOptions,
    capabilities=Capabilities(word=_is_writable, label=_is_one_column, doc=_is_document_name),
    extensions=tuple(".conll .tsv .bio .iob .iob1 .iob2 .bioes .bilou .bmes".split()),
)
