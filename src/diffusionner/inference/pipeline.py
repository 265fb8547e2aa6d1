"""The public class `DiffusionNER`: text or words in, entities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Discontinuous, Entities, Sentence, Span
from diffusionner.errors import CheckpointError
from diffusionner.inference import open_labels, pickling, refining, self_test
from diffusionner.inference.coverage import refuse_unread
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, to_spans
from diffusionner.inference.engine import Engine, OpenEngine
from diffusionner.inference.loading import load
from diffusionner.inference.stream import (
    ChunkReader,
    Inputs,
    Item,
    PredictionTask,
    paused_collector,
    predict,
    predict_stream,
)
from diffusionner.inference.trajectory import Trajectory, trajectories
from diffusionner.label_set import Labels, LabelSet
from diffusionner.refinement import LabelMap, Refinement, SpanLike, refinement_settings
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage import registry
from diffusionner.storage.calibration import Calibration, load_calibration
from diffusionner.storage.config import read_config
from diffusionner.text import TextSentence, split_sentences

if TYPE_CHECKING:
    from diffusionner.model.base import Network
    from diffusionner.model.encoder import SentenceEncoder

NOISE_FACTOR = 2.5  # spans that start as noise, for each one in training


class DiffusionNER:
    """A trained model: text or words in, entities out.

    Every method takes the inference settings as keyword arguments: start ("candidates" or "noise"),
    steps (γ), spans (K_eval), eta, threshold (minimum score) or phi (minimum sum of the three
    probabilities), overlap ("nested", "flat", "all"), seed, batch_size. The defaults are stored
    with the model. labels=["person", "court case"] asks for these types, of which a model with
    fixed labels must know all; labels={"symptom": "a sign of illness"} also describes them.
    strict=True raises DataError if the model cannot read every visible character.
    """

    def __init__(
        self,
        engine: Engine,
        subwords: SubwordTokenizer,
        settings: Settings,
        calibration: Calibration | None = None,
        folder: Path | None = None,
    ) -> None:
        """folder: the folder that the model was loaded from."""
        if settings.reads_labels:  # the default labels
            engine = cast(OpenEngine, engine).bind(LabelSet.of(engine.labels), subwords)
        self.engine = engine
        self.labels = engine.labels
        self.subwords = subwords
        self.settings = settings
        self.calibration = calibration
        self.folder = folder
        self._score_rules: dict[InferenceSettings, ScoreRule] = {}
        self._views: dict[LabelSet, DiffusionNER] = {}  # this model, asked for other labels
        # A view of a model has labels that it is asked for, and the model.
        self.asked: LabelSet | None = None
        self.base = self
        self.weight_versions = pickling.weight_versions(engine)

    __reduce__ = pickling.reduce  # the folder instead of the weights

    def __repr__(self) -> str:
        place = "" if self.folder is None else f"{self.folder.name}: "
        return f"<DiffusionNER {place}{', '.join(self.labels)}>"

    @classmethod
    def from_pretrained(
        cls,
        path: str | Path | None = None,
        device: str | None = None,
        backend: str | None = None,
        precision: str | None = None,
        cuda_graphs: bool = True,
    ) -> DiffusionNER:
        """Load a model.

        Args:
            path: Name of an installed model (`diffusionner models` lists them; the default is
                `en`), a folder written by `diffusionner train`, `diffusionner export` or
                `save_pretrained`, or a name on the Hugging Face hub, the only case in which
                anything is downloaded. An installed model takes precedence over a folder of the
                same name; write `./en` for the folder.
            device: "cpu", "cuda", "cuda:1" …; the default is a GPU if there is one.
            backend: "torch", or "onnx" for an exported model, which needs no torch. The default
                follows from the folder.
            precision: "float32" or "bf16", for torch. The default is bf16 on a GPU, float32 on a
                CPU.
            cuda_graphs: On a GPU, replay batches of a known shape as CUDA graphs. This is faster
                but takes memory.
        """
        path = registry.find_model(path)
        engine, subwords, settings, tolerance = load(path, device, backend, precision, cuda_graphs)
        ner = cls(engine, subwords, settings, load_calibration(path), path)
        expected = read_config(path).get("self_test")
        self_test.check(ner.engine, subwords, settings, expected, tolerance, path)
        return ner

    def save_pretrained(self, path: str | Path, precision: str = "float32") -> None:
        """Write config.json, model.safetensors and the tokenizer.

        precision: "float32", "float16" or "int8", the storage format of the weights.
        """
        from diffusionner.storage import checkpoint

        model = self.network, self.subwords, self.settings
        test = self_test.record_torch(*model, precision)
        checkpoint.save(Path(path), *model, self.calibration, precision, test)

    def fine_tune(
        self,
        data: str | Path | Sequence[Sentence],
        *,
        dev: str | Path | Sequence[Sentence] | None = None,
        output: str | Path = "runs/model",
        format: str | None = None,
        **settings: Any,
    ) -> DiffusionNER:
        """Train a new model that starts from this one; see `diffusionner.train`.

        A model with open labels gets those of the data, unless keep_open=True is given.
        """
        from diffusionner.training.api import train

        return train(data, dev=dev, start=self, output=output, format=format, **settings)

    def push_to_hub(
        self,
        name: str,
        *,
        precision: str = "float32",
        private: bool = False,
        token: str | None = None,
        message: str = "Upload a DiffusionNER model",
    ) -> str:
        """Upload the model with a card to the Hugging Face hub and return the URL of the commit.

        `from_pretrained(name)` then loads it. precision applies to torch models; an exported model
        is uploaded as it is.
        """
        from diffusionner.integrations import hub

        return hub.push(self, name, precision, private, token, message)

    @property
    def network(self) -> Network:
        """The torch module."""
        network: Network | None = getattr(self.engine, "network", None)
        if network is None:
            raise CheckpointError('an ONNX model has no torch module; load it with backend="torch"')
        return network

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer; None for an exported model."""
        if self.subwords.hf is None and self.subwords.files is not None:
            from diffusionner.storage.encoders import hf_tokenizer

            self.subwords.hf = hf_tokenizer(self.subwords.files)
        return self.subwords.hf

    @property
    def encoder(self) -> SentenceEncoder:
        """The sentence encoder as a torch module."""
        return self.network.encoder

    @property
    def finds_discontinuous(self) -> bool:
        """True for a model that finds discontinuous entities, too."""
        return bool(self.settings.decoder.discontinuous)

    @property
    def is_open(self) -> bool:
        """True for a model that reads labels as words and can be asked for any."""
        return self.settings.reads_labels

    def for_labels(self, labels: Labels) -> DiffusionNER:
        """Return this model asked for other labels. The weights are shared.

        Every method takes `labels`, too; views of the last label sets are kept.
        """
        return open_labels.view(self, self.label_set(labels))

    def label_set(self, labels: Labels) -> LabelSet:
        """Check labels to look for; those of a model with fixed labels must be among its own."""
        return LabelSet.of(labels) if self.is_open else LabelSet.among(labels, self.labels)

    def changed(self, **attributes: Any) -> DiffusionNER:
        """Return a copy that shares the weights, with other attributes."""
        copy = object.__new__(type(self))
        base = copy if self.asked is None else self.base
        vars(copy).update({**vars(self), "base": base, "_score_rules": {}, "_views": {}})
        vars(copy).update(attributes)
        return copy

    def freeze(self, labels: Labels) -> DiffusionNER:
        """Return a model with these labels for good, which no longer reads their words.

        It can be saved and fine-tuned like any other. With up to about 50 labels, it finds what
        this one finds; more are read at once, not in groups, so that scores differ.
        """
        return open_labels.freeze(self, LabelSet.of(labels))

    def __call__(self, text: str, **options: Any) -> Entities:
        """Return the entities of a text, with character offsets."""
        if not isinstance(text, str):
            raise TypeError(
                f"expected one text, not {type(text).__name__}; use pipe for many texts and "
                "predict_tokens for lists of words"
            )
        return next(self.pipe([text], **options))

    def steps(self, text: str, **options: Any) -> tuple[list[TextSentence], list[Trajectory]]:
        """Return the sentences of a text, and the denoising steps started from noise.

        There is one trajectory for each stretch of text that the model reads at once. With word
        limits, a long sentence has several.
        """
        if options.get("labels") is not None:
            return self.for_labels(options.pop("labels")).steps(text, **options)
        self.settings.require_denoising("steps()")
        settings = self._with_options({**options, "start": "noise"}, noise_factor=1.0)
        parts = split_sentences(text)
        if not parts:
            return [], []
        sentences = [Sentence(part.words, doc="") for part in parts]
        corpus = EncodedCorpus(sentences, self.subwords, self.settings.encoder)
        rule = self.score_rule(settings.inference)
        return parts, list(trajectories(self.engine, corpus, settings, rule))

    def pipe(
        self,
        texts: Iterable[str] | Iterable[tuple[str, Labels]],
        labels: Labels | None = None,
        **options: Any,
    ) -> Iterator[Entities]:
        """Yield the entities of many texts, in order. Sentences of one text are context.

        texts: texts or, if each has labels of its own, pairs of text and labels.
        """
        if isinstance(texts, str):
            raise TypeError(
                "pipe takes a collection of texts; to process one text, call the model itself"
            )
        if labels is not None:
            return self.for_labels(labels).pipe(texts, **options)
        if options:  # errors in them are raised now, not with the first text
            self._with_options({name: x for name, x in options.items() if name != "strict"})
        return open_labels.pipe(self, texts, options)

    def predict_entities(
        self,
        text: str,
        labels: Labels | None = None,
        threshold: float = 0.5,
        *,
        flat_ner: bool = True,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Return entities as GLiNER does: dicts of start, end, text, label and score.

        labels: types to look for; the default is all types of the model. The best set of entities
        that do not overlap is returned or, with flat_ner=False, the best that do not cross.
        """
        from diffusionner.integrations import gliner

        options = {**options, "threshold": threshold, "overlap": "all"}
        entities = self(text, labels=labels, **options)
        policy = self.score_rule(self.settings.inference).flat_policy if flat_ner else "nested"
        return gliner.to_gliner(entities, policy)

    def predict_tokens(
        self,
        sentences: Sequence[Sequence[str]],
        docs: Sequence[str | None] | None = None,
        **options: Any,
    ) -> list[Entities]:
        """Return the entities of sentences given as words, with word offsets, end exclusive.

        Args:
            sentences: Lists of words.
            docs: Document of each sentence; neighbours in the same document are context.
            **options: Inference settings.
        """
        if any(isinstance(words, str) for words in sentences):
            raise TypeError(
                "predict_tokens takes a list of sentences, each a list of words; for one sentence, "
                "pass a list with that sentence"
            )
        if docs is not None and len(docs) != len(sentences):
            raise ValueError(f"docs has {len(docs)} entries for {len(sentences)} sentences")
        # Streamed, so that a device starts on the first sentences before the last are tokenised.
        return list(self.stream(zip(sentences, docs or repeat(None), strict=False), **options))

    def predict_sentences(
        self,
        sentences: Sequence[Sentence],
        progress: Callable[[int, int], None] = lambda done, total: None,
        **options: Any,
    ) -> list[list[Span | Discontinuous]]:
        """Return the entities of a corpus as labelled spans, as the scorer compares them.

        progress is called with the number of windows done and in total.
        """
        if options.get("labels") is not None:
            ner = self.for_labels(options.pop("labels"))
            return ner.predict_sentences(sentences, progress, **options)
        decoded = self.decode_sentences(sentences, progress, **options)
        labels = self.labels_of(sentences)
        return [to_spans(entities, labels) for entities in decoded]

    def labels_of(self, sentences: Sequence[Sentence]) -> list[str]:
        """Return the labels that a labelled corpus is predicted with, in the order of type ids.

        A model with open labels is asked for those of the corpus: in each sentence for the types
        that were annotated in it.
        """
        if self.is_open and self.asked is None:
            return open_labels.asked_labels(sentences) or self.labels
        return self.labels

    def decode_sentences(
        self,
        sentences: Sequence[Sentence],
        progress: Callable[[int, int], None] = lambda done, total: None,
        **options: Any,
    ) -> list[list[DecodedEntity]]:
        """Return the entities of a corpus as word and type indices, with scores and votes.

        Type indices refer to `labels_of(sentences)`.
        """
        inference = self._with_options(options).inference
        with paused_collector():
            if self.is_open and self.asked is None:
                labels = self.labels_of(sentences)
                trained_for = self.settings.inference.overlap
                rule = ScoreRule(inference, labels, self.calibration, trained_for)
                model = self.engine, self.subwords, self.settings.encoder
                return open_labels.predict_asked(
                    *model, sentences, labels, inference, rule, progress
                )
            corpus = EncodedCorpus(sentences, self.subwords, self.settings.encoder)
            task, rule = PredictionTask(corpus, range(len(sentences))), self.score_rule(inference)
            return predict(self.engine, task, inference, rule, progress)

    def stream(
        self, items: Inputs, strict: bool = False, labels: Labels | None = None, **options: Any
    ) -> Iterator[Entities]:
        """Yield the entities of (text or words, document) pairs, in order, buffering only a few.

        Adjacent items of one document are each other's context.
        """
        if labels is not None:
            return self.for_labels(labels).stream(items, strict, **options)
        inference = self._with_options(options).inference if options else self.settings.inference
        rule = self.score_rule(inference)
        numbered = (Item(*item, number) for number, item in enumerate(items))
        reader = ChunkReader(numbered, self.engine, inference, self.subwords, self.settings.encoder)
        predicted = predict_stream(self.engine, reader, inference, rule)
        results = (entities for _, entities in predicted)
        return refuse_unread(results) if strict else results

    def refine(
        self,
        text: str | Sequence[str],
        spans: Iterable[SpanLike],
        only: bool = False,
        **options: Any,
    ) -> Refinement:
        """Denoise spans that you have for a text, and return what became of them.

        Args:
            text: A text, or the words of a sentence. Offsets of spans and entities count its
                characters, or its words.
            spans: (start, end), (start, end, label), `Entity` or dicts with start, end and, if
                known, label and score; end exclusive. A span is extended to the words it touches;
                one over several sentences is denoised in each of them. The label decides whether
                an entity is reported as retyped; a model with beliefs also starts from it.
            only: Return only entities that given spans became. By default they are denoised
                together with the model's own candidates, and all entities are returned.
            **options: As in `refine_pipe`.
        """
        return next(self.refine_pipe([(text, spans)], only, **options))

    def refine_pipe(
        self,
        items: Iterable[refining.RefineInput],
        only: bool = False,
        *,
        label_map: LabelMap | None = None,
        timestep: int | None = None,
        labels: Labels | None = None,
        **options: Any,
    ) -> Iterator[Refinement]:
        """Refine the spans of many texts, in order, as `refine` does; buffer only a few.

        Args:
            items: (text, spans) or (text, spans, document) tuples. Adjacent items of one document
                are each other's context, as in `stream`.
            only: As in `refine`.
            label_map: Translates labels to those of the model; None drops a label, not the span.
            timestep: Timestep assigned to the spans; the default is a fifth of T.
            labels: Types to look for.
            **options: Inference settings. The default is at least 3 steps.
        """
        if labels is not None:
            options = {**options, "label_map": label_map, "timestep": timestep}
            return self.for_labels(labels).refine_pipe(items, only, **options)
        settings = refinement_settings(self.settings, options, only)
        first, inference = refining.start_timestep(settings, timestep), settings.inference
        make_task = partial(refining.refinement_task, only=only, timestep=first)
        rule = self.score_rule(inference)
        placed = refining.place_spans(items, self.labels, label_map)
        reader = ChunkReader(placed, self.engine, inference, self.subwords, self.settings.encoder)
        predicted = predict_stream(self.engine, reader, inference, rule, make_task)
        return (item.given.refinement(entities, only) for item, entities in predicted if item.given)

    def _with_options(
        self, options: dict[str, Any], noise_factor: float = NOISE_FACTOR
    ) -> Settings:
        """Return the settings with other inference settings.

        noise_factor: spans that start as noise, for each one in training; a model may have fewer
        for its candidates.
        """
        inference = self.settings.inference
        noise = options.get("start") == "noise" != inference.start
        if noise and options.get("spans") is None:
            options = {**options, "spans": round(noise_factor * self.settings.diffusion.spans)}
        return self.settings.with_inference(options)

    def score_rule(self, inference: InferenceSettings) -> ScoreRule:
        """Return the rule that scores and filters entities under these settings."""
        rule = self._score_rules.get(inference)
        if rule is None or rule.calibration is not self.calibration:
            trained_for = self.settings.inference.overlap
            rule = ScoreRule(inference, self.labels, self.calibration, trained_for)
            if self.asked is not None:
                rule = rule.only(np.isin(self.labels, self.asked.names))
            self._score_rules[inference] = rule
        return rule
