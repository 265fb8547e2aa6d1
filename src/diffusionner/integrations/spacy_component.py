"""A spaCy component: `nlp.add_pipe("diffusionner", config={...})`.

All entities, including nested ones, are written to `doc.spans[spans_key]` with their scores.
The best set of them that do not overlap is also written to `doc.ents`. A discontinuous entity,
which `doc.ents` cannot hold, is a span from its first to its last token; `span._.fragments` lists
the (start, end) tokens of its fragments. With `refine`, the spans of an earlier component are
denoised, and `doc.spans[spans_key].attrs["outcomes"]` says what became of each.
"""

# No postponed annotations: older versions of spaCy read the types of the factory's arguments.

import shutil
from bisect import bisect_right
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

from diffusionner.corpus import Entity, gaps_between
from diffusionner.errors import SettingsError
from diffusionner.formats.span_ids import read_span_id, span_id
from diffusionner.inference.decoding import choose_spans
from diffusionner.label_set import Labels, LabelSet
from diffusionner.refinement import Outcome, SpanLike
from diffusionner.storage import registry
from diffusionner.storage.config import is_model, model_files, read_config
from diffusionner.text import TextSentence, split_sentences

if TYPE_CHECKING:
    from diffusionner.inference.pipeline import DiffusionNER

ENTS = "ents"  # refine doc.ents
_FOLDER = "model"  # within the component's folder of a saved pipeline


class SpacyComponent:
    """A pipeline component; the model is loaded on first use."""

    def __init__(
        self,
        name: str,
        model: str | Path,
        spans_key: str,
        device: str | None,
        refine: str | None = None,
        only: bool = False,
        label_map: dict[str, str | None] | None = None,
        labels: Labels | None = None,
        **options: Any,
    ) -> None:
        """refine: whose spans to refine, "ents" or a key in doc.spans; labels: types to find."""
        if refine is None and (only or label_map):
            raise SettingsError(f"{name}: only and label_map apply to refine; set it as well")
        self.name = name
        self.model = model
        self.spans_key = spans_key
        self.device = device
        self.refine = refine
        self.only = only
        self.label_map = label_map
        self.asked = None if labels is None else LabelSet.of(labels)  # raises if they are wrong
        self.given_labels = labels
        self.options = options
        self._ner: DiffusionNER | None = None
        self._unpacked: TemporaryDirectory[str] | None = None

    @property
    def ner(self) -> "DiffusionNER":
        if self._ner is None:
            from diffusionner.inference.pipeline import DiffusionNER

            ner = DiffusionNER.from_pretrained(self.model, self.device)
            given = self.given_labels
            self._ner = ner if given is None else ner.for_labels(given)
        return self._ner

    @property
    def labels(self) -> tuple[str, ...]:
        """Labels to look for, or those of the model; none while that is not on this machine."""
        if self.asked is not None:
            return self.asked.names
        if self._ner is not None:
            return tuple(self._ner.labels)
        folder = Path(registry.resolve(self.model))
        return tuple(read_config(folder)["labels"]) if is_model(folder) else ()

    def __call__(self, doc: Doc) -> Doc:
        return next(self.pipe([doc]))

    def pipe(self, stream: Iterable[Doc], *, batch_size: int = 128) -> Iterator[Doc]:
        """Annotate docs; sentences of many docs share the model's batches."""
        pending: deque[Doc] = deque()  # not annotated yet

        def items() -> Iterator[tuple[list[TextSentence], str]]:
            for number, doc in enumerate(stream):
                pending.append(doc)
                yield _sentences(doc), str(number)

        if self.refine is None:
            for entities in self.ner.stream(items(), **self.options):
                yield self._annotate(pending.popleft(), entities)
            return
        given = ((sentences, self._given(pending[-1]), doc) for sentences, doc in items())
        mapping = self.label_map
        for refined in self.ner.refine_pipe(given, self.only, label_map=mapping, **self.options):
            doc = pending.popleft()
            if self.refine == ENTS:
                doc.ents = []  # replaced by what they became
            yield self._annotate(doc, *refined)

    def _given(self, doc: Doc) -> list[SpanLike]:
        assert self.refine is not None
        spans = doc.ents if self.refine == ENTS else doc.spans.get(self.refine, [])
        return [
            Entity(span.start, span.end, span.label_, gaps=gaps_between(fragments))
            if (fragments := read_span_id(span.id_, span.start))
            else (span.start, span.end, span.label_ or None)
            for span in spans
        ]

    def _annotate(
        self, doc: Doc, entities: Sequence[Entity], outcomes: Sequence[Outcome] = ()
    ) -> Doc:
        scored = [
            (Span(doc, e.start, e.end, label=e.label, span_id=span_id(e.fragments)), e.score)
            for e in entities
        ]
        attrs: dict[str, Any] = {"scores": np.array([s for _, s in scored], dtype=np.float32)}
        if self.refine is not None:
            place = {id(entity): number for number, entity in enumerate(entities)}
            attrs["outcomes"] = [
                {**given._asdict(), "change": change, "entity": place.get(id(entity))}
                for given, change, entity in outcomes
            ]
        doc.spans[self.spans_key] = SpanGroup(
            doc, name=self.spans_key, attrs=attrs, spans=[span for span, _ in scored]
        )
        whole = [one for one, entity in zip(scored, entities, strict=True) if not entity.gaps]
        doc.ents = [*doc.ents, *self._flat(whole, doc.ents)]
        return doc

    def _flat(self, scored: Iterable[tuple[Span, float]], before: Sequence[Span]) -> list[Span]:
        """Return the best set of spans that overlap neither each other nor existing entities."""
        taken = {i for span in before for i in range(span.start, span.end)}
        free = [one for one in scored if taken.isdisjoint(range(one[0].start, one[0].end))]
        free.sort(key=lambda one: (-one[1], one[0].start, one[0].end))
        policy = self.ner.score_rule(self.ner.settings.inference).flat_policy
        chosen = choose_spans([(s.start, s.end, score) for s, score in free], policy)
        return [free[i][0] for i in chosen]

    # --- Serialisation: installed models are stored by name, others as a copy.

    def to_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> None:
        target = Path(path) / _FOLDER
        for file in self._files_to_save():
            target.mkdir(parents=True, exist_ok=True)
            copy = target / file.name
            if not copy.exists() or not file.samefile(copy):
                shutil.copyfile(file, copy)

    def from_disk(self, path: str | Path, *, exclude: Iterable[str] = ()) -> "SpacyComponent":
        if (folder := Path(path) / _FOLDER).is_dir():
            self.model, self._ner = folder, None
        return self

    def to_bytes(self, *, exclude: Iterable[str] = ()) -> bytes:
        files = {file.name: file.read_bytes() for file in self._files_to_save()}
        content: bytes = srsly.msgpack_dumps(files)
        return content

    def from_bytes(self, content: bytes, *, exclude: Iterable[str] = ()) -> "SpacyComponent":
        if files := srsly.msgpack_loads(content):
            self._unpacked = TemporaryDirectory()  # kept as long as the component
            self.model, self._ner = Path(self._unpacked.name), None
            for name, file in files.items():
                (self.model / Path(name).name).write_bytes(file)  # never outside the folder
        return self

    def _files_to_save(self) -> list[Path]:
        installed = isinstance(self.model, str) and self.model in registry.installed_models()
        return [] if installed else model_files(registry.find_model(self.model))


@Language.factory(  # type: ignore[untyped-decorator]
    "diffusionner",
    assigns=["doc.spans", "doc.ents", "token.ent_iob", "token.ent_type", "span._.fragments"],
)
def create(
    nlp: Language,
    name: str,
    model: str = registry.DEFAULT,
    spans_key: str = "sc",
    device: str | None = None,
    threshold: float | None = None,
    steps: int | None = None,
    overlap: str | None = None,
    batch_size: int | None = None,
    refine: str | None = None,
    only: bool = False,
    label_map: dict[str, str | None] | None = None,
    labels: list[str] | dict[str, str] | None = None,
) -> SpacyComponent:
    """Create the component; None keeps the model's setting."""
    options = {"threshold": threshold, "steps": steps, "overlap": overlap, "batch_size": batch_size}
    return SpacyComponent(
        name, model, spans_key, device, refine, only, label_map, labels, **options
    )


def _fragments(span: Span) -> list[tuple[int, int]]:
    return list(read_span_id(span.id_, span.start)) or [(span.start, span.end)]


# spaCy stores the attributes of a span by its characters, but a discontinuous entity may have those
# of another one. So they are read from its id.
if not Span.has_extension("fragments"):  # somebody else's stays
    Span.set_extension("fragments", getter=_fragments)


def _sentences(doc: Doc) -> list[TextSentence]:
    """Return the sentences without white space, in tokens; uses the doc's sentences if set."""
    if doc.has_annotation("SENT_START"):
        starts = [sentence.start for sentence in doc.sents]
    else:
        offsets = [token.idx for token in doc]
        begins = [part.starts[0] for part in split_sentences(doc.text)]
        starts = [bisect_right(offsets, begin) - 1 for begin in begins]
    sentences = []
    for start, end in pairwise([*starts, len(doc)]):
        tokens = [i for i in range(start, end) if not doc[i].is_space]
        words = [doc[i].text for i in tokens]
        if words:
            sentences.append(TextSentence(words, tokens, [i + 1 for i in tokens]))
    return sentences
