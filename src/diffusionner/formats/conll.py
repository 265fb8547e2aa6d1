"""CoNLL columns: a word a line, its tag in the last column, a blank line after a sentence.

Columns are separated by tabs or, in lines without one, by spaces. IOB1, IOB2 (BIO), BIOES,
BILOU and BMES tags need no telling apart: one decoder is right for all of them.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from itertools import chain

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError

EXTENSIONS = (
    *(".conll", ".tsv", ".txt", ".testa", ".testb"),
    *(".bio", ".iob", ".iob1", ".iob2", ".bioes", ".bilou", ".bmes"),
)
_DOCSTART = "-DOCSTART-"
_TAG = re.compile(r"O|[BIMELSU]-\S.*")
_CONTINUES = frozenset("IMEL")
_CLOSES = frozenset("ELSU")


def recognises(first_line: str) -> bool:
    """Whether a file that begins with this line holds CoNLL columns."""
    columns = _split(first_line)
    return columns[:1] == [_DOCSTART] or _is_row(columns)


def parse(lines: Iterable[tuple[str, str]]) -> Iterator[Sentence]:
    """The sentences of ("file:line", text) pairs.

    Each -DOCSTART- line begins a document: doc-1, doc-2, and so on. A line that begins with
    "# " is a comment unless it is a row for the word "#": a tag last, as many columns as the row
    before.
    """
    documents = 0
    doc: str | None = None
    words: list[str] = []
    tags: list[str] = []
    begins = ""
    width = 0
    # The blank line added at the end closes a last sentence that has none after it.
    for where, text in chain(lines, [("", "")]):
        columns = _split(text)
        if not columns or columns[0] == _DOCSTART:
            if words:
                yield Sentence(words, decode(tags), doc, begins)
                words, tags = [], []
            if columns:
                documents += 1
                doc = f"doc-{documents}"
            continue
        if text.startswith("# ") and not (_is_row(columns) and width in (0, len(columns))):
            continue
        _check_row(columns, where)
        if not words:
            begins, width = where, len(columns)
        elif len(columns) != width:
            raise DataError(
                f"{where}: {len(columns)} columns where the row before has {width}; give every "
                "row the same columns, separated by tabs if a word holds a space"
            )
        words.append(columns[0])
        tags.append(columns[-1])


def decode(tags: Sequence[str]) -> list[Span]:
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


def _split(text: str) -> list[str]:
    """The columns of a line, none when it is blank.

    Not str.split(): it also parts words at no-break and ideographic spaces.
    """
    text = text.rstrip()
    if "\t" in text:
        return [column.strip(" ") for column in text.split("\t")]
    return [column for column in text.split(" ") if column]


def _is_row(columns: Sequence[str]) -> bool:
    return len(columns) > 1 and _TAG.fullmatch(columns[-1]) is not None


def _check_row(columns: Sequence[str], where: str) -> None:
    if len(columns) == 1:
        raise DataError(
            f"{where}: '{columns[0]}' is alone on its line; a row is a word, then its tag, "
            "separated by a tab or spaces"
        )
    if not columns[0].strip():
        raise DataError(f"{where}: the word is only white space; remove the row")
    if not _is_row(columns):
        raise DataError(
            f"{where}: unknown tag '{columns[-1]}' in the last column; a tag is O, or one of "
            "B I E S (also M, L, U), a hyphen and a type, as in B-PER"
        )
