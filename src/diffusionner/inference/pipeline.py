"""DiffusionNER, the object people use: text or words in, entities out."""

from __future__ import annotations

import gc
from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import TYPE_CHECKING, Any

from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Entities, Sentence, Span
from diffusionner.diffusion import Schedule
from diffusionner.errors import CheckpointError, DataError, SettingsError, nearest
from diffusionner.inference.calibration import Calibration, ScoreRule, load_calibration
from diffusionner.inference.decoding import DecodedEntity, to_spans
from diffusionner.inference.engine import Engine
from diffusionner.inference.predictor import Task, batch_size, predict, predict_each
from diffusionner.inference.reading import Chunk, Item, Reader
from diffusionner.inference.trajectory import Trajectory, trajectories
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage import registry
from diffusionner.storage.config import DENOISER_FILE, ENCODER_FILE
from diffusionner.text import TextSentence, split_sentences

if TYPE_CHECKING:
    from diffusionner.model.base import Network
    from diffusionner.model.encoder import SentenceEncoder

BACKENDS = ("torch", "onnx")


class DiffusionNER:
    """A trained model, of DiffusionNER or of a rival (`method` in its settings).

    Every method takes the inference settings as keywords: steps (γ), spans (K_eval), eta,
    threshold (least score) or phi (least sum of the three probabilities), overlap ("nested",
    "flat", "all"), seed, batch_size; a rival has no steps, spans, eta or seed.
    What is not given is as the model was saved with.
    """

    def __init__(
        self,
        engine: Engine,
        subwords: SubwordTokenizer,
        settings: Settings,
        calibration: Calibration | None = None,
        folder: Path | None = None,
    ) -> None:
        """folder: where it was loaded from."""
        self.engine = engine
        self.subwords = subwords
        self.settings = settings
        self.calibration = calibration
        self.folder = folder

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
        """Load a model: `en`, the default, `bio`, or another.

        path: the name of a shipped model (`diffusionner models` lists them; a folder called the
        same is `./en`), a folder that `diffusionner train` or `export`, or `save_pretrained` wrote,
        or a model's name on the Hugging Face hub, the only case in which anything is downloaded.
        backend: "torch", or "onnx" for a folder that was exported (which needs no torch). What is
        not given is as the folder has it.
        precision: "float32" or "bf16", of torch; not given: bf16 on a GPU, float32 on a CPU.
        cuda_graphs: on a GPU, launch the encoder, and what finds entities, as a whole where the
        shape of the batch was met before, which takes memory.
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
                raise SettingsError("the precision of backend onnx is the one it was exported with")
            return cls(*onnx_engine.load(path), load_calibration(path), path)
        if backend != "torch":
            raise SettingsError(f"unknown backend '{backend}'; {nearest(backend, BACKENDS)}")
        if exported:
            raise CheckpointError(
                f"'{path}' is an exported model, for backend onnx; load the folder it was made from"
            )
        try:
            import torch
        except ImportError as error:
            raise CheckpointError(
                f"'{path}' is no exported model, and others need the package 'torch'; install it, "
                "or run `diffusionner export` where it is"
            ) from error
        from diffusionner.inference.torch_engine import TorchEngine
        from diffusionner.storage import checkpoint

        if device is None:
            device = "cuda" if torch.cuda.is_available() else "cpu"
        network, subwords, settings = checkpoint.load(path)
        engine = TorchEngine(network, device, precision, cuda_graphs)
        return cls(engine, subwords, settings, load_calibration(path), path)

    def save_pretrained(self, path: str | Path, precision: str = "float32") -> None:
        """Write config.json, model.safetensors and the tokenizer.

        precision: "float32", "float16" or "int8", how the weights are stored.
        """
        from diffusionner.storage import checkpoint

        checkpoint.save(
            Path(path), self.network, self.subwords, self.settings, self.calibration, precision
        )

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
        """Put the model with a card on the Hugging Face hub: the address of the commit.

        Everyone who may read it has it by `from_pretrained(name)`. An exported model is put there
        as it is, precision is for others.
        """
        from diffusionner.integrations import hub

        return hub.push(self, name, precision, private, token, message)

    @property
    def network(self) -> Network:
        """The torch module."""
        network: Network | None = getattr(self.engine, "network", None)
        if network is None:
            raise CheckpointError(
                "a model of backend onnx has no torch module; load the folder it was exported from"
            )
        return network

    @property
    def tokenizer(self) -> Any:
        """The Hugging Face tokenizer."""
        return self.subwords.hf

    @property
    def encoder(self) -> SentenceEncoder:
        """The sentence encoder as a torch module."""
        return self.network.encoder

    @property
    def labels(self) -> list[str]:
        return self.engine.labels

    def __call__(self, text: str, **options: Any) -> Entities:
        """Entities of a text, with character offsets."""
        if not isinstance(text, str):
            raise TypeError(
                f"a model is called with one text, not {type(text).__name__}; pipe takes many "
                "texts, predict_tokens sentences that are words already"
            )
        return next(self.pipe([text], **options))

    def steps(self, text: str, **options: Any) -> tuple[list[TextSentence], list[Trajectory]]:
        """The sentences of a text, and every denoising step of each from noise."""
        self.settings.need_denoising("a look at every step")
        settings = self.settings.with_inference(self.from_noise(options))
        parts = split_sentences(text)
        if not parts:
            return [], []
        sentences = [Sentence(part.words, doc="") for part in parts]
        corpus = EncodedCorpus(sentences, self.subwords, self.settings.encoder)
        judge = self.judge(settings.inference)
        return parts, list(trajectories(self.engine, corpus, settings, judge))

    def from_noise(self, options: dict[str, Any]) -> dict[str, Any]:
        """The same options for a start from noise, which needs as many spans as training had:
        those a model has for its candidates may be few.
        """
        given = {name: value for name, value in options.items() if value is not None}
        return {"spans": self.settings.diffusion.spans, **given, "start": "noise"}

    def pipe(self, texts: Iterable[str], **options: Any) -> Iterator[Entities]:
        """Entities of many texts, streamed in order. Sentences of one text are context."""
        if isinstance(texts, str):
            raise TypeError("pipe takes many texts; for a single one call the model itself")
        return self.stream(_alone(texts), **options)

    def predict_entities(
        self,
        text: str,
        labels: Sequence[str] | None = None,
        threshold: float = 0.5,
        *,
        flat_ner: bool = True,
        **options: Any,
    ) -> list[dict[str, Any]]:
        """Entities as GLiNER gives them: dicts of start, end, text, label and score.

        labels: which types are looked for; not given, all that the model was trained on. Of those
        the best that do not overlap are given or, with flat_ner=False, those that do not cross.
        """
        from diffusionner.integrations import gliner_calls

        if labels is not None:
            gliner_calls.check_types(labels, self.labels)
        found = self(text, **{**options, "threshold": threshold, "overlap": "all"})
        return gliner_calls.choose(found, labels, flat_ner)

    def predict_tokens(
        self,
        sentences: Sequence[Sequence[str]],
        docs: Sequence[str | None] | None = None,
        from_spans: Sequence[Sequence[tuple[int, int]]] | None = None,
        timestep: int | None = None,
        **options: Any,
    ) -> list[Entities]:
        """Entities of sentences given as words, with word offsets, end exclusive.

        docs: the document of each sentence; neighbours of the same document are context.
        from_spans: for each sentence, spans (start, end exclusive) to start the reverse process
        from instead of noise, at that timestep (default: a fifth of T).
        """
        if any(isinstance(words, str) for words in sentences):
            raise TypeError(
                "predict_tokens takes lists of words, one per sentence; wrap a single one"
            )
        if docs is not None and len(docs) != len(sentences):
            raise ValueError(f"{len(docs)} docs for {len(sentences)} sentences")
        if from_spans is not None:
            pairs = zip(sentences, docs or repeat(None), strict=False)
            items = [Sentence(list(words), doc=doc) for words, doc in pairs]
            return self._refine(items, from_spans, timestep, options)
        if timestep is not None:
            raise ValueError("timestep= only applies together with from_spans=")
        # One by one: a device starts on the first before the last are looked at.
        return list(self.stream(zip(sentences, docs or repeat(None), strict=False), **options))

    def predict_sentences(
        self,
        sentences: Sequence[Sentence],
        progress: Callable[[int, int], None] = lambda done, total: None,
        **options: Any,
    ) -> list[list[Span]]:
        """Entities of a whole corpus as labelled spans: what the scorer compares.

        progress is called with the windows done and their number.
        """
        found = self.find(sentences, progress, **options)
        return [to_spans(one, self.labels) for one in found]

    def find(
        self,
        sentences: Sequence[Sentence],
        progress: Callable[[int, int], None] = lambda done, total: None,
        **options: Any,
    ) -> list[list[DecodedEntity]]:
        """The same in word and type indices, with totals, scores and votes."""
        inference = self.settings.with_inference(options).inference
        chosen = range(len(sentences))
        with collector_paused():
            corpus = EncodedCorpus(sentences, self.subwords, self.settings.encoder)
            task, judge = Task(corpus, chosen), self.judge(inference)
            return predict(self.engine, task, inference, judge, progress)

    def judge(self, inference: InferenceSettings) -> ScoreRule:
        """Which entities pass, and their scores."""
        return ScoreRule(inference, self.labels, self.calibration)

    def stream(
        self, items: Iterable[tuple[str | Sequence[str], str | None]], **options: Any
    ) -> Iterator[Entities]:
        """Entities of (text or words, document) pairs, in order, holding only a buffer of them.

        Items of one document that stand together are each other's context.
        """
        inference = self.settings.with_inference(options).inference
        return self._stream(items, inference)

    def _stream(
        self,
        items: Iterable[tuple[str | Sequence[str], str | None]],
        inference: InferenceSettings,
    ) -> Iterator[Entities]:
        """The next sentences are read and tokenised while a device runs over the last ones."""
        size = batch_size(self.engine, inference)
        reader = Reader(items, size, self.subwords, self.settings.encoder)
        coming: list[Chunk] = []
        waiting: deque[Chunk] = deque()

        def read_ahead() -> None:
            if not coming and reader.advance():
                coming.extend(filter(None, [reader.finish()]))

        def tasks() -> Iterator[Task]:
            while (chunk := coming.pop() if coming else reader.finish()) is not None:
                waiting.append(chunk)
                yield Task(chunk.corpus, chunk.chosen)

        judge = self.judge(inference)
        results = predict_each(self.engine, tasks(), inference, judge, launched=read_ahead)
        while True:
            with collector_paused():
                found = next(results, None)
                if found is None:
                    break
                entities = waiting.popleft().entities(found, self.labels)
            yield from entities

    def _refine(
        self,
        sentences: list[Sentence],
        from_spans: Sequence[Sequence[tuple[int, int]]],
        timestep: int | None,
        options: dict[str, Any],
    ) -> list[Entities]:
        """The reverse process from the caller's spans."""
        self.settings.need_denoising("from_spans=")
        settings = self.settings.with_inference(options)
        timesteps = settings.diffusion.timesteps
        if timestep is None:
            timestep = Schedule(settings.diffusion.schedule, timesteps).start
        if not settings.inference.steps <= timestep <= timesteps:
            raise SettingsError(
                f"timestep={timestep} is not possible with steps={settings.inference.steps}; "
                f"expected {settings.inference.steps} to {timesteps}"
            )
        if len(from_spans) != len(sentences):
            raise ValueError(f"spans of {len(from_spans)} sentences for {len(sentences)} sentences")
        for number, (sentence, spans) in enumerate(zip(sentences, from_spans, strict=True)):
            for left, right in spans:
                if not 0 <= left < right <= len(sentence.words):
                    raise DataError(
                        f"sentence {number}: the span [{left}, {right}) lies outside its "
                        f"{len(sentence.words)} words"
                    )
        full = [i for i, s in enumerate(sentences) if s.words]
        results = [Entities([], sentence.words, self.labels) for sentence in sentences]
        if full:
            corpus = EncodedCorpus(
                [sentences[i] for i in full], self.subwords, self.settings.encoder
            )
            given = [from_spans[i] for i in full]
            inference = settings.inference
            task = Task(corpus, range(len(full)), given, timestep)
            found = predict(self.engine, task, inference, self.judge(inference))
            for i, one in zip(full, found, strict=True):
                item = Item(sentences[i].words, None, i)
                results[i].extend(item.of_sentence(0, one, self.labels))
        return results


def _alone(texts: Iterable[str]) -> Iterator[tuple[str, None]]:
    """Each its own document."""
    for number, text in enumerate(texts):
        if not isinstance(text, str):
            raise TypeError(
                f"text {number} is no string but {type(text).__name__}; predict_tokens takes "
                "sentences that are words already"
            )
        yield text, None


@contextmanager
def collector_paused() -> Iterator[None]:
    """Without Python's collector of cycles, which took half of the host's time.

    It looks at every object of the process, hundreds of thousands with torch, whenever some
    thousand new ones were made. What is made here has no cycles.
    """
    was_on = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_on:
            gc.enable()
