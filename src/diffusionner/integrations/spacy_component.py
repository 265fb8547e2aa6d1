"""A spaCy component: `nlp.add_pipe("diffusionner", config={...})`.

All entities go to `doc.spans[spans_key]`, nested ones too, with their scores; those that do not
overlap a better one go to `doc.ents`.
"""

# No postponed annotations: older versions of spaCy read the types of the factory's arguments.

from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import TYPE_CHECKING, Any

import numpy as np
import srsly
from spacy.language import Language
from spacy.tokens import Doc, Span, SpanGroup

from diffusionner.corpus import Entity
from diffusionner.integrations.model_files import copy_model, pack_model, unpack_model
from diffusionner.storage import registry
from diffusionner.storage.config import is_model, read_config
from diffusionner.text import split_sentences

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER

_FOLDER = "model"  # within the component's own in a saved pipeline


class SpacyComponent:
    """The model is loaded when it is first needed: a saved pipeline brings its own."""

    def __init__(
        self, name: str, model: str | Path, spans_key: str, device: str | None, **options: Any
    ) -> None:
        self.name = name
        self.model = model
        self.spans_key = spans_key
        self.device = device
        self.options = options
        self._ner: DiffusionNER | None = None
        self._unpacked: TemporaryDirectory[str] | None = None

    @property
    def ner(self) -> "DiffusionNER":
        if self._ner is None:
            from diffusionner.inference.pipeline import DiffusionNER

            self._ner = DiffusionNER.from_pretrained(self.model, self.device)
        return self._ner

    @property
    def labels(self) -> tuple[str, ...]:
        """Of a model that is not on this machine (yet) none are known; spaCy asks early."""
        if self._ner is not None:
            return tuple(self._ner.labels)
        folder = Path(registry.resolve(self.model))
        return tuple(read_config(folder)["labels"]) if is_model(folder) else ()

    def __call__(self, doc: Doc) -> Doc:
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Sentences of many docs in the model's batches, whatever the batches of docs are."""
        waiting: deque[tuple[Doc, list[list[int]]]] = deque()  # docs without entities yet

        def items() -> Iterator[tuple[list[str], str]]:
            for number, doc in enumerate(stream):
                sentences = _sentences(doc)
                waiting.append((doc, sentences))
                for sentence in sentences:
                    yield [doc[i].text for i in sentence], str(number)

        found: list[Sequence[Entity]] = []  # of the first doc that waits, sentence by sentence
        for entities in self.ner.stream(items(), **self.options):
            while not waiting[0][1]:
                yield self._annotate(*waiting.popleft(), [])
            found.append(entities)
            if len(found) == len(waiting[0][1]):
                yield self._annotate(*waiting.popleft(), found)
                found = []
        while waiting:
            yield self._annotate(*waiting.popleft(), [])

    def _annotate(
        self, doc: Doc, sentences: list[list[int]], found: Sequence[Sequence[Entity]]
    ) -> Doc:
        scored: list[tuple[Span, float]] = []
        for sentence, entities in zip(sentences, found, strict=True):
            for entity in entities:
                first, last = sentence[entity.start], sentence[entity.end - 1]
                scored.append((Span(doc, first, last + 1, label=entity.label), entity.score))
        scores = np.array([score for _, score in scored], dtype=np.float32)
        doc.spans[self.spans_key] = SpanGroup(
            doc, name=self.spans_key, attrs={"scores": scores}, spans=[span for span, _ in scored]
        )
        doc.ents = _flat(doc.ents, scored)
        return doc

    # --- With the pipeline on disk and in bytes: a model that comes with the package by its name,
    # --- any other as a copy.

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        if not self._shipped():
            copy_model(registry.find_model(self.model), Path(path) / _FOLDER)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "SpacyComponent":
        if (folder := Path(path) / _FOLDER).is_dir():
            self.model, self._ner = folder, None
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        content: bytes = srsly.msgpack_dumps(
            {} if self._shipped() else pack_model(registry.find_model(self.model))
        )
        return content

    def from_bytes(self, content: bytes, *, exclude: Iterable[str] = ()) -> "SpacyComponent":
        if files := srsly.msgpack_loads(content):
            self._unpacked = TemporaryDirectory()  # as long as the component lives
            self.model, self._ner = Path(self._unpacked.name), None
            unpack_model(files, self.model)
        return self

    def _shipped(self) -> bool:
        return isinstance(self.model, str) and self.model in registry.installed_models()


@Language.factory(  # type: ignore[untyped-decorator]
    "diffusionner",
    assigns=["doc.spans", "doc.ents", "token.ent_iob", "token.ent_type"],
    default_config={
        "model": registry.DEFAULT,
        "spans_key": "sc",
        "device": None,
        "threshold": None,
        "steps": None,
        "overlap": None,
        "batch_size": None,
    },
)
def create(
    nlp: Language,
    name: str,
    model: str,
    spans_key: str,
    device: str | None,
    threshold: float | None,
    steps: int | None,
    overlap: str | None,
    batch_size: int | None,
) -> "SpacyComponent":
    """What is None is as the model has it."""
    options = {
        "threshold": threshold,
        "steps": steps,
        "overlap": overlap,
        "batch_size": batch_size,
    }
    return SpacyComponent(name, model, spans_key, device, **options)


def _sentences(doc: Doc) -> list[list[int]]:
    """The tokens of each sentence, white space aside; the doc's sentences, if it has any."""
    if doc.has_annotation("SENT_START"):
        starts = [sentence.start for sentence in doc.sents]
    else:
        begins = [part.starts[0] for part in split_sentences(doc.text)]
        starts = _first_tokens(doc, begins)
    sentences = [
        [i for i in range(start, end) if not doc[i].is_space]
        for start, end in pairwise([*starts, len(doc)])
    ]
    return [sentence for sentence in sentences if sentence]


def _first_tokens(doc: Doc, begins: list[int]) -> list[int]:
    """The token in which each of these characters stands."""
    starts = []
    token = 0
    for begin in begins:
        while token + 1 < len(doc) and doc[token + 1].idx <= begin:
            token += 1
        starts.append(token)
    return starts


def _flat(before: Iterable[Span], scored: Iterable[tuple[Span, float]]) -> list[Span]:
    """What is there already, then the best of ours that overlap nothing."""
    chosen = list(before)
    taken = {i for span in chosen for i in range(span.start, span.end)}
    for span, _ in sorted(scored, key=lambda one: (-one[1], one[0].start)):
        if taken.isdisjoint(range(span.start, span.end)):
            taken.update(range(span.start, span.end))
            chosen.append(span)
    return sorted(chosen, key=lambda span: span.start)
