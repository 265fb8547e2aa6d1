"""spaCy's DocBin files (.spacy), read and written with spaCy.

A Doc is split at its sentence starts; without any it is one sentence, or is split by the rules for
text if the option `split` is true. Entities are those of `doc.ents` and of the span groups in
`doc.spans`, which may be nested; sentences that share an entity are joined. A discontinuous entity
is a span from its first to its last token whose `id_` lists its fragments, as in "0-1 3-4", counted
from the start of the span. Tokens of white space are not words: entities shrink to the words in
them. If a Doc has unknown spaces, all its tokens are words and there is no text.

A document, or a sentence without a document, is written as one Doc: all entities are in
`doc.spans["sc"]`, the outermost contiguous ones also in `doc.ents`, the document's name in
`doc.user_data["doc"]`.
A DocBin is in memory as a whole, at most some 200 bytes per word; the rest is streamed.
"""

from __future__ import annotations

import zlib
from bisect import bisect_right
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from itertools import count, pairwise
from pathlib import Path
from typing import TYPE_CHECKING, Any

import regex

from diffusionner.corpus import Discontinuous, Sentence, Span, check_fragments
from diffusionner.corpus import Offsets as Fragments
from diffusionner.errors import DataError
from diffusionner.formats.bio_tags import split_layers
from diffusionner.formats.documents import (
    Annotation,
    Offsets,
    TextDocument,
    group_by_document,
    to_sentences,
)
from diffusionner.formats.format import Capabilities, Format
from diffusionner.formats.source import (
    Sample,
    Source,
    check_label,
    import_extra,
    reason,
    unreadable,
)
from diffusionner.formats.span_ids import read_span_id, span_id
from diffusionner.text import split_sentences

if TYPE_CHECKING:
    from spacy.tokens import Doc
    from spacy.vocab import Vocab

_ENTS = "ents"  # name of doc.ents in the option `spans`
_GROUP = "sc"  # spaCy's default
# Key in user_data for the tokens that are not words, if they are not just those of white space.
_GAPS = "diffusionner:gaps"
_ATTRIBUTES = ("ENT_IOB", "ENT_TYPE", "SENT_START")
_CHUNK = 2**20
_SPACE_OR_TEXT = regex.compile(r"\s+|\S+")


@dataclass(frozen=True)
class DocBinOptions:
    """spans: the span groups to read, joined by +; `ents` stands for doc.ents. Default: all."""

    spans: str = ""
    split: bool = False  # split Docs that have no sentence starts


def recognises(sample: Sample) -> bool:
    if sample.folder:
        return False
    if sample.path.suffix.lower() == ".spacy":
        return True
    try:
        head = zlib.decompressobj().decompress(sample.raw, 16)
    except zlib.error:
        return False
    # A msgpack map whose first key is one of a DocBin.
    return head[:1] >= b"\x80" and head[1:].startswith((b"\xa7version", b"\xa5attrs"))


def read(source: Source, options: DocBinOptions) -> Iterator[Sentence]:
    groups = {_ENTS}

    def convert(doc: Doc, where: str) -> list[Sentence]:
        groups.update(doc.spans)
        return _sentences(doc, where, options)

    yield from source.convert_each(_docs(source.path), convert)
    for name in _group_names(options):
        if name not in groups:
            raise DataError(
                f"{source.path}: no document has a span group '{name}'; available: "
                + ", ".join(sorted(groups))
            )


def _docs(path: Path) -> Iterator[tuple[str, Doc]]:
    """Yield ("file:number", Doc); numbers count from 1."""
    spacy = import_extra("spacy", "spacy", FORMAT.name)
    # spaCy trusts its files: a damaged one can raise any exception.
    try:
        docs = spacy.tokens.DocBin().from_bytes(_content(path)).get_docs(spacy.vocab.Vocab())
    except OSError as error:
        raise unreadable(path, error) from error
    except Exception as error:
        raise DataError(
            f"{path}: not a complete DocBin ({reason(error)}); write it again with spaCy's "
            "DocBin.to_disk"
        ) from error
    for number in count(1):
        where = f"{path}:{number}"
        try:
            with _cached_plugins():
                doc = next(docs, None)
        except Exception as error:
            raise DataError(
                f"{where}: not a valid Doc ({reason(error)}); write it again"
            ) from error
        if doc is None:
            return
        yield where, doc


def _content(path: Path) -> bytes:
    with path.open("rb") as file:
        # Fails for a file of another kind, which may be too large to load.
        zlib.decompressobj().decompress(file.read(_CHUNK), _CHUNK)
        file.seek(0)
        return file.read()


def _sentences(doc: Doc, where: str, options: DocBinOptions) -> list[Sentence]:
    gaps = _gaps(doc, where)
    starts = _sentence_starts(doc, options.split)
    words: list[Offsets] = []
    for index, token in enumerate(doc):
        if index in starts:
            words.append([])
        if index not in gaps:
            words[-1].append((token.idx, token.idx + len(token.text)))
    annotations = []
    for entity in _entities(doc, where, options):
        label, parts = entity.label, []
        for start, end in entity.fragments:
            inside = [doc[index] for index in range(start, end) if index not in gaps]
            if not inside:
                raise DataError(
                    f"{where}: entity {label} at tokens {start}-{end} is only white space; "
                    "remove it"
                )
            last = inside[-1]
            parts.append((inside[0].idx, last.idx + len(last.text)))
        annotations.append(Annotation(tuple(parts), label))
    name = doc.user_data.get("doc")
    document = TextDocument(doc.text, annotations, name if isinstance(name, str) else None, where)
    sentences = to_sentences(document, sentences=list(filter(None, words)))
    if doc.has_unknown_spaces:
        for sentence in sentences:
            sentence.text = sentence.offsets = None
    return sentences


def _gaps(doc: Doc, where: str) -> set[int]:
    """Return the tokens that are not words."""
    given = doc.user_data.get(_GAPS)
    if given is None:
        if doc.has_unknown_spaces:
            return set()
        return {index for index, token in enumerate(doc) if token.text.isspace()}
    if not isinstance(given, (list, tuple)) or any(type(index) is not int for index in given):
        raise DataError(f"{where}: user_data['{_GAPS}'] is not a list of tokens; remove it")
    return set(given)


def _sentence_starts(doc: Doc, split: bool) -> set[int]:
    """Return the tokens that begin a sentence."""
    begins = {0}
    if split and not doc.has_annotation("SENT_START"):
        offsets = [token.idx for token in doc]
        for sentence in split_sentences(doc.text):
            begins.add(bisect_right(offsets, sentence.starts[0]) - 1)
    else:
        begins.update(index for index, token in enumerate(doc) if token.is_sent_start)
    return begins


def _group_names(options: DocBinOptions) -> list[str]:
    return list(filter(None, options.spans.split("+")))


def _entities(doc: Doc, where: str, options: DocBinOptions) -> list[Span | Discontinuous]:
    """Return the entities by tokens, without those that an earlier group has too."""
    found: list[tuple[Span, Fragments]] = []  # with the fragments, if there are several
    try:
        for name in _group_names(options) or [*doc.spans, _ENTS]:
            group = doc.ents if name == _ENTS else doc.spans.get(name, ())
            spans = [(Span(s.start, s.end, s.label_), read_span_id(s.id_, s.start)) for s in group]
            known = set(found)
            found += [span for span in spans if span not in known]
    except (IndexError, KeyError, ValueError) as error:
        raise DataError(
            f"{where}: spaCy cannot decode the entities ({reason(error)}); write them again"
        ) from error
    for (start, end, label), _ in found:
        check_label(label, where)
        if start == end:
            raise DataError(f"{where}: entity {label} at token {start} is empty; remove it")
    return [_entity(span, fragments, len(doc), where) for span, fragments in found]


def _entity(span: Span, fragments: Fragments, tokens: int, where: str) -> Span | Discontinuous:
    if not fragments:
        return span
    entity = Discontinuous(fragments, span.label)
    check_fragments(entity, tokens, where)
    if (entity.start, entity.end) != span[:2]:
        raise DataError(
            f"{where}: entity {span.label} at tokens {span.start}-{span.end} has an id that lists "
            "fragments elsewhere; correct the id of the span, or remove it"
        )
    return entity


@contextmanager
def _cached_plugins() -> Iterator[None]:
    """Make srsly, which (un)packs Docs, use cached plug-ins.

    It searches for them three times per Doc, which takes longer than everything else together.
    """
    for registry, found in _plugins():
        registry.get_all = found.copy
    try:
        yield
    finally:
        for registry, _ in _plugins():
            vars(registry).pop("get_all", None)  # restores the method of the class


@cache
def _plugins() -> list[tuple[Any, dict[str, Any]]]:
    import srsly

    return [(r, r.get_all()) for r in (srsly.msgpack_encoders, srsly.msgpack_decoders)]


@dataclass
class _Tokens:
    """The tokens of a Doc: words, and the text between them except for single spaces."""

    texts: list[str] = field(default_factory=list)
    spaces: list[bool] = field(default_factory=list)  # per token: a space follows
    gaps: list[int] = field(default_factory=list)  # tokens that are not words
    places: list[list[int]] = field(default_factory=list)  # tokens of each sentence's words

    def add(self, text: str) -> int:
        self.texts.append(text)
        self.spaces.append(False)
        return len(self.texts) - 1

    def add_gap(self, gap: str) -> None:
        """Add text between words as spaCy does: one space belongs to the previous token."""
        for part in _SPACE_OR_TEXT.findall(gap):
            if part[0] == " " and self.spaces and not self.spaces[-1]:
                self.spaces[-1] = True
                part = part[1:]
            if part:
                self.gaps.append(self.add(part))


def write(sentences: Iterable[Sentence], path: Path, options: DocBinOptions) -> None:
    spacy = import_extra("spacy", "spacy", FORMAT.name)
    docbin = spacy.tokens.DocBin(attrs=_ATTRIBUTES, store_user_data=True)
    vocab = spacy.vocab.Vocab()
    for document in group_by_document(sentences):
        doc = _to_doc(document, vocab)
        with _cached_plugins():
            docbin.add(doc)
    try:
        path.write_bytes(docbin.to_bytes())
    except ValueError as error:  # msgpack's limit of 4 GiB for one array
        raise DataError(
            "more words than a DocBin can store, some 130 million; write several, or another format"
        ) from error


def _to_doc(sentences: Sequence[Sentence], vocab: Vocab) -> Doc:
    from spacy.tokens import Doc
    from spacy.tokens import Span as DocSpan

    tokens = _to_tokens(sentences)
    user_data: dict[str, Any] = {}
    if sentences[0].doc is not None:
        user_data["doc"] = sentences[0].doc
    space = [index for index, text in enumerate(tokens.texts) if text.isspace()]
    if tokens.spaces and tokens.gaps != space:
        user_data[_GAPS] = tokens.gaps
    begins = {0, *(words[0] for words in tokens.places[1:])}
    doc = Doc(
        vocab,
        words=tokens.texts,
        spaces=tokens.spaces or None,
        sent_starts=[index in begins for index in range(len(tokens.texts))],
        user_data=user_data,
    )

    spans: list[DocSpan] = []
    outermost: list[DocSpan] = []
    for sentence, places in zip(sentences, tokens.places, strict=True):
        outer = next(iter(split_layers(sentence.entities)), [])
        for entities, target in ((sentence.entities, spans), (outer, outermost)):
            for start, end, label in entities:
                target.append(DocSpan(doc, places[start], places[end - 1] + 1, label=label))
        for fragments, label in sentence.discontinuous:
            found = tuple((places[start], places[end - 1] + 1) for start, end in fragments)
            ends = found[0][0], found[-1][1]
            spans.append(DocSpan(doc, *ends, label=label, span_id=span_id(found)))
    doc.spans[_GROUP] = spans
    doc.set_ents(outermost)
    return doc


def _to_tokens(sentences: Sequence[Sentence]) -> _Tokens:
    tokens = _Tokens()
    text = sentences[0].text or ""
    if not all(map(_is_aligned, sentences)):
        for sentence in sentences:
            begin = len(tokens.texts)
            tokens.texts += sentence.words
            tokens.places.append(list(range(begin, len(tokens.texts))))
        return tokens
    end = 0
    for sentence in sentences:
        places = []
        for word, (start, word_end) in zip(sentence.words, sentence.offsets or (), strict=True):
            tokens.add_gap(text[end:start])
            places.append(tokens.add(word))
            end = word_end
        tokens.places.append(places)
    tokens.add_gap(text[end:])
    return tokens


def _is_aligned(sentence: Sentence) -> bool:
    """Return True if the words are consecutive parts of the text, as tokens of a Doc are."""
    text, offsets = sentence.text, sentence.offsets
    if text is None or offsets is None or [text[s:e] for s, e in offsets] != sentence.words:
        return False
    return all(end <= start for (_, end), (start, _) in pairwise([(0, 0), *offsets]))


FORMAT = Format(
    name="docbin",
    summary="spaCy's DocBin (.spacy)",
    recognises=recognises,
    read=read,
    write=write,
    options=DocBinOptions,
    capabilities=Capabilities(discontinuous=True, text=True),
    extensions=(".spacy",),
)
