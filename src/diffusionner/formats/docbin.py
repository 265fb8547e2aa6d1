"""spaCy's DocBin files (.spacy), through spaCy itself.

A Doc is read as its marked sentences; one that has none marked is one sentence, or is split by the
rules for text if the option `split` is true. Entities come from `doc.ents` and from the groups of
`doc.spans`, where nested ones live; one that reaches over a sentence's end joins the two. Tokens
of white space are no words: entities shrink to the words in them. If the Doc does not know the
spaces between its tokens, all tokens are words and there is no text.

A document is written as one Doc, and so is a sentence that belongs to none: all entities in
`doc.spans["sc"]`, the outermost in `doc.ents` too, the document's name in `doc.user_data["doc"]`.
A DocBin is in memory as a whole, at most some 200 bytes a word; all else passes one by one.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import records
from diffusionner.formats.base import Format, Holds, Sample, Source, missing_extra, unreadable
from diffusionner.formats.conll import layers_of
from diffusionner.formats.texts import gather
from diffusionner.text import split_sentences

if TYPE_CHECKING:
    from spacy.tokens import Doc, DocBin
    from spacy.vocab import Vocab

_ENTS = "ents"  # what the option `spans` calls doc.ents
_GROUP = "sc"  # spaCy's own default
# In user_data: the tokens that are no words, where white space does not tell them.
_GAPS = "diffusionner:gaps"
_ATTRIBUTES = ("ENT_IOB", "ENT_TYPE", "SENT_START")
_CHUNK = 2**20
_PIECE = regex.compile(r"\s+|\S+")


@dataclass(frozen=True)
class DocBinOptions:
    """spans: the groups to read, joined by +, and only those; `ents` stands for doc.ents."""

    spans: str = ""
    split: bool = False  # Docs without marked sentences into sentences


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return False
    return sample.path.suffix.lower() == ".spacy" or _begins_docbin(sample.raw)


def _begins_docbin(raw: bytes) -> bool:
    """Whether this is zlib's, of a small msgpack map whose first key is one of a DocBin's."""
    try:
        head = zlib.decompressobj().decompress(raw, 16)
    except zlib.error:
        return False
    return head[:1] >= b"\x80" and head[1:].startswith((b"\xa7version", b"\xa5attrs"))


# --- Reading ----------------------------------------------------------------------------------


def read(source: Source, options: DocBinOptions) -> Iterator[Sentence]:
    found: set[str] = set()  # names of groups
    for where, doc in _docs(source.path):
        found.update(doc.spans)
        try:
            sentences = _sentences(doc, where, options)
        except DataError as error:
            source.refuse(error)
            continue
        yield from sentences
    for name in _names(options):
        if name not in found and name != _ENTS:
            raise DataError(
                f"{source.path}: no document has a span group '{name}'; there are: "
                + ", ".join(sorted(found | {_ENTS}))
            )


def _docs(path: Path) -> Iterator[tuple[str, Doc]]:
    """("file:number", Doc), counted from 1."""
    try:
        from spacy.tokens import DocBin
        from spacy.vocab import Vocab
    except ImportError as error:
        raise missing_extra("spacy", "spacy", FORMAT.name) from error
    # spaCy trusts its files: a damaged one can raise anything.
    try:
        docs = DocBin().from_bytes(_content(path)).get_docs(Vocab())
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:
        raise DataError(
            f"{path}: no whole DocBin ({_reason(error)}); write it again, with spaCy's "
            "DocBin.to_disk"
        ) from error
    plugins = _Plugins()
    for number in count(1):
        where = f"{path}:{number}"
        try:
            with plugins:
                doc = next(docs, None)
        except Exception as error:
            raise DataError(
                f"{where}: not what a DocBin holds for a Doc ({_reason(error)}); write it again"
            ) from error
        if doc is None:
            return
        yield where, doc


def _content(path: Path) -> bytes:
    """The bytes of a file, as long as they can be unpacked: not all of some huge other file."""
    unpacked = zlib.decompressobj()
    chunks: list[bytes] = []
    with path.open("rb") as file:
        while not unpacked.eof and (chunk := file.read(_CHUNK)):
            chunks.append(chunk)
            while chunk:
                unpacked.decompress(chunk, _CHUNK)
                chunk = unpacked.unconsumed_tail
    return b"".join(chunks)


def _sentences(doc: Doc, where: str, options: DocBinOptions) -> list[Sentence]:
    name = doc.user_data.get("doc")
    text = None if doc.has_unknown_spaces else doc.text
    gaps = _gaps(doc, where)
    entities = _entities(doc, where, options)
    begins = _begins(doc, options.split)
    for start, end, _ in entities:
        begins.difference_update(range(start + 1, end))
    sentences: list[Sentence] = []
    places: list[tuple[int, int]] = []  # of each token: its sentence, and the words before it there
    for index, token in enumerate(doc):
        if index in begins:
            sentences.append(
                Sentence(
                    words=[],
                    doc=name if isinstance(name, str) else None,
                    where=where,
                    text=text,
                    offsets=None if text is None else [],
                )
            )
        sentence = sentences[-1]
        places.append((len(sentences) - 1, len(sentence.words)))
        if index not in gaps:
            word = token.text
            sentence.words.append(word)
            if sentence.offsets is not None:
                sentence.offsets.append((token.idx, token.idx + len(word)))
    for start, end, label in entities:
        number, first = places[start]
        last = places[end - 1][1] + (end - 1 not in gaps)
        if first == last:
            raise DataError(
                f"{where}: entity {label} at tokens {start}-{end} is only white space; remove it"
            )
        sentences[number].entities.append(Span(first, last, label))
    return [sentence for sentence in sentences if sentence.words]


def _gaps(doc: Doc, where: str) -> set[int]:
    """The tokens that are no words."""
    given = doc.user_data.get(_GAPS)
    if given is None:
        if doc.has_unknown_spaces:
            return set()
        return {index for index, token in enumerate(doc) if token.text.isspace()}
    if not isinstance(given, (list, tuple)) or any(type(index) is not int for index in given):
        raise DataError(f"{where}: user_data['{_GAPS}'] is not a list of tokens; remove it")
    return set(given)


def _begins(doc: Doc, split: bool) -> set[int]:
    """The tokens that sentences begin with."""
    begins = {0}
    if split and not doc.has_annotation("SENT_START"):
        offsets = [token.idx for token in doc]
        for sentence in split_sentences(doc.text):
            begins.add(bisect_right(offsets, sentence.starts[0]) - 1)
    else:
        begins.update(index for index, token in enumerate(doc) if token.is_sent_start)
    return begins


def _names(options: DocBinOptions) -> list[str]:
    return list(filter(None, options.spans.split("+")))


def _entities(doc: Doc, where: str, options: DocBinOptions) -> list[Span]:
    """By tokens. What one group says twice stays; what several say does not come twice."""
    found: list[Span] = []
    try:
        for name in _names(options) or [*doc.spans, _ENTS]:
            group = doc.ents if name == _ENTS else doc.spans.get(name, ())
            spans = [Span(span.start, span.end, span.label_) for span in group]
            known = set(found)
            found += [span for span in spans if span not in known]
    except (IndexError, KeyError, ValueError) as error:
        raise DataError(
            f"{where}: entities that spaCy cannot decode ({_reason(error)}); set them again"
        ) from error
    for start, end, label in found:
        records.label(label, where)
        if start == end:
            raise DataError(f"{where}: entity {label} at token {start} is empty; remove it")
    return found


def _reason(error: Exception) -> str:
    return records.short(" ".join(str(error).split())) or type(error).__name__


class _Plugins:
    """Within it srsly, which packs the bytes of a Doc, knows its plug-ins.

    It would look for them three times for each Doc, which takes longer than all else together.
    """

    def __init__(self) -> None:
        import srsly

        self.registries = (srsly.msgpack_encoders, srsly.msgpack_decoders)
        self.found = [registry.get_all() for registry in self.registries]

    def __enter__(self) -> None:
        for registry, found in zip(self.registries, self.found, strict=True):
            registry.get_all = found.copy

    def __exit__(self, *error: object) -> None:
        for registry in self.registries:
            vars(registry).pop("get_all", None)  # the class has the real one


# --- Writing ----------------------------------------------------------------------------------


@dataclass
class _Tokens:
    """The tokens of a Doc: words, and what is between them beside single spaces."""

    texts: list[str] = field(default_factory=list)
    spaces: list[bool] = field(default_factory=list)  # whether one follows the token
    gaps: list[int] = field(default_factory=list)
    places: list[list[int]] = field(default_factory=list)  # of the words of each sentence

    def add(self, text: str) -> int:
        self.texts.append(text)
        self.spaces.append(False)
        return len(self.texts) - 1

    def fill(self, gap: str) -> None:
        """As spaCy has it: one space belongs to the token before, the rest is tokens."""
        for piece in _PIECE.findall(gap):
            if piece[0] == " " and self.spaces and not self.spaces[-1]:
                self.spaces[-1] = True
                piece = piece[1:]
            if piece:
                self.gaps.append(self.add(piece))

    @property
    def told_by_space(self) -> bool:
        """Whether the gaps are just the tokens of white space."""
        return self.gaps == [index for index, text in enumerate(self.texts) if text.isspace()]


def write(sentences: Iterable[Sentence], path: Path, options: DocBinOptions) -> None:
    try:
        from spacy.tokens import DocBin
        from spacy.vocab import Vocab
    except ImportError as error:
        raise missing_extra("spacy", "spacy", FORMAT.name) from error
    docbin = DocBin(attrs=_ATTRIBUTES, store_user_data=True)
    vocab = Vocab()
    plugins = _Plugins()
    for document in gather(sentences):
        doc = _to_doc(document, vocab)
        with plugins:
            docbin.add(doc)
    path.write_bytes(_pack(docbin))


def _pack(docbin: DocBin) -> bytes:
    try:
        return docbin.to_bytes()
    except ValueError as error:  # msgpack's limit of 4 GiB for one array
        raise DataError(
            "more words than one DocBin holds, some 130 million; write several, or another format"
        ) from error


def _to_doc(sentences: Sequence[Sentence], vocab: Vocab) -> Doc:
    from spacy.tokens import Doc
    from spacy.tokens import Span as DocSpan

    tokens = _tokenise(sentences)
    user_data: dict[str, Any] = {}
    if sentences[0].doc is not None:
        user_data["doc"] = sentences[0].doc
    if tokens.spaces and not tokens.told_by_space:
        user_data[_GAPS] = tokens.gaps
    begins = {0, *(words[0] for words in tokens.places[1:])}
    doc = Doc(
        vocab,
        words=tokens.texts,
        spaces=tokens.spaces or None,
        sent_starts=[index in begins for index in range(len(tokens.texts))],
        user_data=user_data,
    )

    def mark(entities: Iterable[Span], places: Sequence[int]) -> list[DocSpan]:
        return [
            DocSpan(doc, places[start], places[end - 1] + 1, label=label)
            for start, end, label in entities
        ]

    spans, outermost = [], []
    for sentence, places in zip(sentences, tokens.places, strict=True):
        spans += mark(sentence.entities, places)
        for layer in layers_of(sentence.entities)[:1]:
            outermost += mark(layer, places)
    doc.spans[_GROUP] = spans
    doc.set_ents(outermost)
    return doc


def _tokenise(sentences: Sequence[Sentence]) -> _Tokens:
    tokens = _Tokens()
    text = sentences[0].text or ""
    if any(_out_of_order(sentence) for sentence in sentences):
        for sentence in sentences:
            begin = len(tokens.texts)
            tokens.texts += sentence.words
            tokens.places.append(list(range(begin, len(tokens.texts))))
        return tokens
    end = 0
    for sentence in sentences:
        places = []
        for word, (start, word_end) in zip(sentence.words, sentence.offsets or (), strict=True):
            tokens.fill(text[end:start])
            places.append(tokens.add(word))
            end = word_end
        tokens.places.append(places)
    tokens.fill(text[end:])
    return tokens


def _out_of_order(sentence: Sentence) -> bool:
    """Whether the words are not, one after the other, pieces of the text: no tokens of a Doc."""
    text, offsets = sentence.text, sentence.offsets
    if text is None or offsets is None:
        return True
    end = 0
    for word, (start, word_end) in zip(sentence.words, offsets, strict=True):
        if start < end or text[start:word_end] != word:
            return True
        end = word_end
    return False


FORMAT = Format(
    name="docbin",
    summary="spaCy's DocBin (.spacy)",
    recognises=recognises,
    read=read,
    write=write,
    options=DocBinOptions,
    holds=Holds(text=True),
    extensions=(".spacy",),
)
