"""The public class `DiffusionNER`: text or words in, entities out."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import partial
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Entities, Sentence, Span
from diffusionner.errors import CheckpointError, SettingsError, nearest
from diffusionner.inference import pickling, refining, self_test
from diffusionner.inference.coverage import refuse_unread
from diffusionner.inference.decoding import DecodedEntity, ScoreRule, to_spans
from diffusionner.inference.engine import Engine
from diffusionner.inference.stream import (
    ChunkReader,
    Inputs,
    Item,
    PredictionTask,
    paused_collector,
    predict,
    predict_stream,
    separate_documents,
)
from diffusionner.inference.trajectory import Trajectory, trajectories
from diffusionner.refinement import LabelMap, Refinement, SpanLike, refinement_settings
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage import registry
from diffusionner.storage.calibration import Calibration, load_calibration
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE, read_config
from diffusionner.text import TextSentence, split_sentences

if TYPE_CHECKING:
    from diffusionner.model.base import Network
    from diffusionner.model.encoder import SentenceEncoder

BACKENDS = ("torch", "onnx")
NOISE_FACTOR = 2.5  # spans that start as noise, for each one in training


class DiffusionNER:
    """A trained model: text or words in, entities out.

    Every method takes the inference settings as keyword arguments: start ("candidates" or "noise"),
    steps (γ), spans (K_eval), eta, threshold (minimum score) or phi (minimum sum of the three
    probabilities), overlap ("nested", "flat", "all"), seed, batch_size. The defaults are stored
    with the model. strict=True raises DataError if the model cannot read every visible character.
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
        self.engine = engine
        self.labels = engine.labels
        self.subwords = subwords
        self.settings = settings
        self.calibration = calibration
        self.folder = folder
        self._score_rules: dict[InferenceSettings, ScoreRule] = {}
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
        exported = any((path / file).exists() for file in (ENCODER_FILE, DENOISER_FILE))
        if backend is None:
            backend = "onnx" if exported else "torch"
        if backend == "onnx":
            from diffusionner.inference import onnx_engine

            if device not in (None, "cpu"):
                raise SettingsError(f"backend onnx runs on the CPU, not on device '{device}'")
            if precision is not None:
                raise SettingsError("the precision of an ONNX model is fixed when it is exported")
            ner = cls(*onnx_engine.load(path), load_calibration(path), path)
            return ner._checked(self_test.LOW_PRECISION_TOLERANCE)
        if backend != "torch":
            raise SettingsError(f"unknown backend '{backend}'; {nearest(backend, BACKENDS)}")
        if exported:
            raise CheckpointError(f"'{path}' is an exported model for backend onnx, not for torch")
        try:
            from diffusionner.inference.torch_engine import load_engine
        except ModuleNotFoundError as error:
            if error.name != "torch":
                raise
            raise CheckpointError(
                f"'{path}' is not an exported model, and others need the package 'torch'; install "
                "it, or run `diffusionner export` on a machine that has it"
            ) from error
        from diffusionner.storage import checkpoint

        network, subwords, settings = checkpoint.load(path)
        engine = load_engine(network, device, precision, cuda_graphs)
        ner = cls(engine, subwords, settings, load_calibration(path), path)
        exact = getattr(engine, "running", None) is network
        return ner._checked(self_test.TOLERANCE if exact else self_test.LOW_PRECISION_TOLERANCE)

    def _checked(self, tolerance: float) -> DiffusionNER:
        """Return the model if it passes the self-test that it was saved with."""
        assert self.folder is not None
        model = self.engine, self.subwords, self.settings
        expected = read_config(self.folder).get("self_test")
        self_test.check(*model, expected, tolerance, self.folder)
        return self

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
        """Train a new model that starts from this one; see `diffusionner.train`."""
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
            raise CheckpointError(
                "an ONNX model has no torch module; load the folder it was exported from"
            )
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
        self.settings.require_denoising("steps()")
        settings = self._with_options({**options, "start": "noise"}, noise_factor=1.0)
        parts = split_sentences(text)
        if not parts:
            return [], []
        sentences = [Sentence(part.words, doc="") for part in parts]
        corpus = EncodedCorpus(sentences, self.subwords, self.settings.encoder)
        rule = self.score_rule(settings.inference)
        return parts, list(trajectories(self.engine, corpus, settings, rule))

    def pipe(self, texts: Iterable[str], **options: Any) -> Iterator[Entities]:
        """Yield the entities of many texts, in order. Sentences of one text are context."""
        if isinstance(texts, str):
            raise TypeError(
                "pipe takes a collection of texts; to process one text, call the model itself"
            )
        return self.stream(separate_documents(texts), **options)

    def predict_entities(
        self,
        text: str,
        labels: Sequence[str] | None = None,
        threshold: float = 0.5,
        *,
        flat_ner: bool = True,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Return entities as GLiNER does: dicts of start, end, text, label and score.

        labels: types to return; the default is all types of the model. The best set of entities
        that do not overlap is returned or, with flat_ner=False, the best that do not cross.
        """
        from diffusionner.integrations import gliner

        if labels is not None:
            gliner.check_types(labels, self.labels)
        entities = self(text, **{**options, "threshold": threshold, "overlap": "all"})
        policy = self.score_rule(self.settings.inference).flat_policy if flat_ner else "nested"
        return gliner.to_gliner(entities, labels, policy)

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
    ) -> list[list[Span]]:
        """Return the entities of a corpus as labelled spans, as the scorer compares them.

        progress is called with the number of windows done and in total.
        """
        decoded = self.decode_sentences(sentences, progress, **options)
        return [to_spans(entities, self.labels) for entities in decoded]

    def decode_sentences(
        self,
        sentences: Sequence[Sentence],
        progress: Callable[[int, int], None] = lambda done, total: None,
        **options: Any,
    ) -> list[list[DecodedEntity]]:
        """Return the entities of a corpus as word and type indices, with scores and votes."""
        inference = self._with_options(options).inference
        with paused_collector():
            corpus = EncodedCorpus(sentences, self.subwords, self.settings.encoder)
            task, rule = PredictionTask(corpus, range(len(sentences))), self.score_rule(inference)
            return predict(self.engine, task, inference, rule, progress)

    def stream(self, items: Inputs, strict: bool = False, **options: Any) -> Iterator[Entities]:
        """Yield the entities of (text or words, document) pairs, in order, buffering only a few.

        Adjacent items of one document are each other's context.
        """
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
        **options: Any,
    ) -> Iterator[Refinement]:
        """Refine the spans of many texts, in order, as `refine` does; buffer only a few.

        Args:
            items: (text, spans) or (text, spans, document) tuples. Adjacent items of one document
                are each other's context, as in `stream`.
            only: As in `refine`.
            label_map: Translates labels to those of the model; None drops a label, not the span.
            timestep: Timestep assigned to the spans; the default is a fifth of T.
            **options: Inference settings. The default is at least 3 steps.
        """
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
            self._score_rules[inference] = rule
        return rule
