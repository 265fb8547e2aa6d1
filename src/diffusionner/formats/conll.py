"""CoNLL columns: a word a line with its tags, a blank line after a sentence.

IOB1, IOB2 (BIO), BIOES, BILOU and BMES tags need no telling apart: one decoder is right for all
of them. Nested entities stand in several columns of tags, as in GermEval 2014 and LitBank: if all
columns behind the word hold tags, each is a layer; otherwise only the last is.
"""

from __future__ import annotations

import re
import tempfile
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, islice
from pathlib import Path

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
_NO_NAMES = ("-X-", "O", "-")
_TAG = re.compile(r"O|[BIMELSU]-\S.*")
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
        if not re.fullmatch(r"(-?\d+)?", self.word):
            raise ValueError(f"word is the number of a column, not '{self.word}'")
        if not re.fullmatch(r"(-?\d+(\+-?\d+)*)?", self.labels):
            raise ValueError(f"labels are columns such as 3 or 1+2, not '{self.labels}'")


@dataclass(frozen=True)
class Layout:
    """Which columns of a file are what."""

    word: int
    labels: tuple[int, ...]


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return False
    rows = [_split(line, "") for line in sample.lines[:50]]
    if rows and rows[0][:1] == [_DOCSTART]:
        return True
    rows = [row for row, line in zip(rows, sample.lines, strict=False) if not line.startswith("#")]
    return bool(rows) and len(rows[0]) > 1 and _is_tag(rows[0][-1])


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
                    doc = columns[1]
            continue
        if text.startswith("#") and not _is_row(columns, layout, rows):
            continue
        try:
            _check_row(columns, layout, rows, schemes, where)
        except DataError as error:
            source.refuse(error)
            bad = True
        begins = begins if rows else where
        rows.append(columns)


def _layout(rows: Sequence[Sequence[str]], options: ConllOptions) -> Layout:
    """The columns as told or, where not told, as the first rows have them."""
    rows = [row for row in rows if len(row) > 1 and row[0] not in (_DOCSTART, "#")]
    word = int(options.word) if options.word else 0
    if not options.word and rows and len(rows[0]) > 2 and _numbered(rows):
        word = 1
    if options.labels:
        return Layout(word, tuple(map(int, options.labels.split("+"))))
    width = min((len(row) for row in rows), default=2)
    behind = range(word + 1, width)
    layers = [i for i in behind if all(_is_tag(row[i]) for row in rows)]
    if len(layers) == len(behind) and all(len(row) == width for row in rows):
        return Layout(word, tuple(behind) or (-1,))
    return Layout(word, (-1,))


def _numbered(rows: Sequence[Sequence[str]]) -> bool:
    """Whether the first column counts the words of a sentence, as in GermEval's own files."""
    number = 0
    for row in rows:
        if row[0] not in (str(number + 1), "1"):
            return False
        number = int(row[0])
    return not all(_is_tag(row[1]) for row in rows)


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
            if all(span.end <= other.start or other.end <= span.start for other in layer):
                layer.append(span)
                break
        else:
            layers.append([span])
    return layers


def write(sentences: Iterable[Sentence], path: Path, options: ConllOptions) -> None:
    """All rows get as many columns as the deepest sentence needs, which only the end tells."""
    with tempfile.TemporaryFile("w+", encoding="utf-8", newline="\n") as draft:
        deepest, doc = 1, None
        for sentence in sentences:
            if sentence.doc != doc:
                doc = sentence.doc
                draft.write(f"{_DOCSTART}\t{doc or _NO_NAMES[0]}\n\n")
            layers = layers_of(sentence.entities)
            deepest = max(deepest, len(layers))
            tags = [encode_tags(len(sentence.words), layer, options.scheme) for layer in layers]
            for row in zip(sentence.words, *tags, strict=True):
                draft.write("\t".join(row) + "\n")
            draft.write("\n")
        draft.seek(0)
        with path.open("w", encoding="utf-8", newline="\n") as file:
            for line in draft:
                if line != "\n" and not line.startswith(_DOCSTART + "\t"):
                    missing = deepest - line.count("\t")
                    line = line[:-1] + "\tO" * missing + "\n"
                file.write(line)


def _split(text: str, separator: str) -> list[str]:
    """The columns of a line, none when it is blank.

    Not str.split(): it also parts words at no-break and ideographic spaces.
    """
    text = text.rstrip()
    if not separator:
        separator = "\t" if "\t" in text else " "
    if separator == " ":
        return [column for column in text.split(" ") if column]
    return [column.strip(" ") for column in text.split(separator)] if text else []


def _is_tag(text: str) -> bool:
    return _TAG.fullmatch(text) is not None


def _is_row(columns: Sequence[str], layout: Layout, rows: Sequence[Sequence[str]]) -> bool:
    width = len(rows[-1]) if rows else len(columns)
    least = max((c + 1 if c >= 0 else -c for c in layout.labels), default=1)
    if len(columns) < max(2, least) or len(columns) != width:
        return False
    return all(_is_tag(columns[column]) for column in layout.labels)


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
    width = len(rows[-1]) if rows else len(columns)
    if len(columns) != width:
        raise DataError(
            f"{where}: {len(columns)} columns where the row before has {width}; give every "
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
        if not _is_tag(tag):
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
    return bool(word.strip()) and word != _DOCSTART and not any(c in " \t\n" for c in word)


FORMAT = Format(
    name="conll",
    summary="CoNLL columns: IOB1, IOB2, BIOES, BILOU, BMES; several columns of tags if nested",
    recognises=recognises,
    read=read,
    write=write,
    options=ConllOptions,
    holds=Holds(word=_writable),
    extensions=(
        *(".conll", ".tsv", ".bio", ".iob", ".iob1", ".iob2", ".bioes", ".bilou", ".bmes"),
    ),
)
