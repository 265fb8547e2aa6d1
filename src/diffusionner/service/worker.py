"""Code that runs in a model process: sentences in, entities out. Only this process loads the model.

The process answers calls on two connections. Between two modules of the network, a call on the
connection for short requests interrupts a long one, so that it need not wait for it.
"""

from __future__ import annotations

import gc
import os
import signal
import time
from collections.abc import Sequence
from copy import copy
from dataclasses import dataclass, replace
from multiprocessing.connection import Connection, wait
from typing import TYPE_CHECKING, Any, NamedTuple, TypeAlias

from diffusionner.corpus import Offsets, Sentence
from diffusionner.errors import CheckpointError, DiffusionNERError, first_line
from diffusionner.label_set import LabelSet
from diffusionner.refinement import PlacedSpan
from diffusionner.settings import Settings
from diffusionner.word_limits import WordLimits

if TYPE_CHECKING:
    import numpy as np

    from diffusionner.inference.pipeline import DiffusionNER

FEW = 8  # slices in a batch of short requests

# Entities of a sentence, as `inference.decoding.DecodedEntity`: left and right word, type, summed
# probability, score, votes, and gaps. Plain tuples: the HTTP process does not load that module.
Found: TypeAlias = Sequence[tuple[int, int, int, float, float, int, Offsets]]


class Operation(NamedTuple):
    """Computation requested for a text; texts with equal operations can share a batch."""

    kind: str  # "entities", "refine" or "steps"
    options: tuple[tuple[str, object], ...]
    labels: LabelSet | None = None  # that a model with open labels is asked for


class Slice(NamedTuple):
    """Consecutive sentences of a text between the sentences that are their context."""

    sentences: list[list[str]]  # words
    first: int  # sentences[first:last] are computed,
    last: int
    share: int = 0  # and of a single sentence this share of its windows
    shares: int = 1
    found: Found = ()  # in earlier shares
    given: Sequence[list[PlacedSpan]] = ()  # to refine, in each of the sentences that are computed
    passages: Sequence[int] = ()  # of all sentences; () if each is one of its own

    def numbered_passages(self, number: int) -> np.ndarray:
        """Return the passage of each sentence; number: of the slice, for numbers of its own."""
        import numpy as np

        count = len(self.sentences)
        passages = self.passages or range(count)
        return np.array(passages, dtype=np.int64) + (number << 32)


class Answer(NamedTuple):
    """Result of a call."""

    value: Any  # None if the call failed; a DiffusionNERError if the model could not be loaded
    seconds: float  # without interruptions
    error: str | None = None  # name of the exception


@dataclass(frozen=True)
class ModelInfo:
    """Description of the loaded model."""

    labels: list[str]
    backend: str
    settings: Settings
    interruptible: bool  # short requests interrupt long ones
    word_limits: WordLimits


class Predictor:
    """Runs operations on slices of texts."""

    interruptible = False

    def __init__(self, ner: DiffusionNER) -> None:
        self.ner = ner

    def info(self) -> ModelInfo:
        backend = "torch" if hasattr(self.ner.engine, "network") else "onnx"
        longest = self.ner.settings.encoder.max_subwords
        return ModelInfo(
            list(self.ner.labels),
            backend,
            self.ner.settings,
            self.interruptible,
            self.ner.subwords.word_limits or WordLimits(longest, longest, longest),
        )

    def run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        """Return a result for each sentence of each slice."""
        from diffusionner.inference.open_labels import view

        options, asked = dict(operation.options), self
        if operation.labels is not None:
            asked = copy(self)
            asked.ner = view(self.ner, operation.labels)
        if operation.kind == "steps":
            return [[asked._steps(one, options)] for one in slices]
        return asked._entities(slices, options)

    def _entities(self, slices: Sequence[Slice], options: dict[str, Any]) -> list[list[Any]]:
        """Return the entities of each sentence, all in one batch.

        If spans are to be refined, each sentence has a pair of its entities and its spans. The
        shares of a long sentence are computed one after the other; the last one resolves overlaps
        between the entities of all of them.
        """
        import numpy as np

        from diffusionner.batching import EncodedCorpus
        from diffusionner.inference.decoding import DecodedEntity, resolve_overlaps
        from diffusionner.inference.refining import RefinementTask, start_timestep
        from diffusionner.inference.stream import PredictionTask, paused_collector, predict

        ner, only = self.ner, options.pop("only", None)
        settings = ner.settings.with_inference(options)
        inference = settings.inference
        with paused_collector():
            sentences = [
                Sentence(words, doc=str(number))
                for number, one in enumerate(slices)
                for words in one.sentences
            ]
            passages = np.concatenate([one.numbered_passages(i) for i, one in enumerate(slices)])
            corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder, passages=passages)
            chosen, places = [], []  # windows and sentences of each slice
            offset = 0
            for one in slices:
                place = range(offset + one.first, offset + one.last)
                start, end = np.searchsorted(corpus.windows.sentence, (place.start, place.stop))
                cuts = [start + (end - start) * s // one.shares for s in (one.share, one.share + 1)]
                chosen.append(np.arange(*cuts))
                places.append(place)
                offset += len(one.sentences)
            corpus.keep_windows(np.concatenate(chosen))
            every = range(len(sentences))
            # A slice is a block of a document, or a part of one if the model has no use for blocks.
            blocks = np.repeat(np.arange(len(slices)), [len(one.sentences) for one in slices])
            if only is None:
                task = PredictionTask(corpus, every, blocks)
            else:
                spans: list[list[PlacedSpan]] = [[] for _ in sentences]
                for one, place in zip(slices, places, strict=True):
                    spans[place.start : place.stop] = one.given
                timestep = start_timestep(settings)
                task = RefinementTask(
                    corpus, every, blocks, given=spans, only=only, timestep=timestep
                )
            rule = ner.score_rule(inference)
            decoded = predict(ner.engine, task, replace(inference, overlap="all"), rule)
        policy = rule.flat_policy if inference.overlap == "flat" else inference.overlap
        results = []
        for one, place in zip(slices, places, strict=True):
            found = [decoded[sentence] for sentence in place]
            if one.found:
                found[0] = [*map(DecodedEntity._make, one.found), *found[0]]
            if one.share == one.shares - 1:
                found = [
                    resolve_overlaps(entities, policy) if len(entities) > 1 else entities
                    for entities in found
                ]
            plain = [list(map(tuple, entities)) for entities in found]
            results.append(plain if only is None else list(zip(plain, one.given, strict=True)))
        return results

    def _steps(self, one: Slice, options: dict[str, Any]) -> dict[str, Any]:
        """Return the denoising steps of a sentence and the entities that result from them.

        Of a sentence that is read in several windows, only the first is shown.
        """
        import numpy as np

        from diffusionner.batching import EncodedCorpus
        from diffusionner.inference.trajectory import trajectories

        ner = self.ner
        settings = ner.settings.with_inference(options)
        sentences = [Sentence(words, doc="") for words in one.sentences]
        corpus = EncodedCorpus(
            sentences, ner.subwords, ner.settings.encoder, passages=one.numbered_passages(0)
        )
        corpus.keep_windows(np.flatnonzero(corpus.windows.sentence == one.first)[:1])
        rule = ner.score_rule(settings.inference)
        (trajectory,) = trajectories(ner.engine, corpus, settings, rule)
        (((entities,),)) = self._entities([one], options)
        steps = [(step.timestep, [tuple(s) for s in step.spans]) for step in trajectory.steps]
        inside = [entity for entity in entities if entity[1] < trajectory.words]
        return {"words": trajectory.words, "steps": steps, "entities": inside}


# --- The process --------------------------------------------------------------------------------


class ModelServer:
    """Answers calls on two connections; those on the first interrupt those on the second."""

    def __init__(self, short: Connection, long: Connection) -> None:
        self.short, self.long = short, long
        self.predictor: Predictor | None = None
        self.failure: DiffusionNERError | None = None
        self.running_long = False
        self.next_turn = 0.0  # when short calls take precedence again
        self.interrupted = 0.0  # seconds in total

    def load(self, model: str, device: str | None) -> None:
        from diffusionner.inference.pipeline import DiffusionNER

        try:
            ner = DiffusionNER.from_pretrained(model, device)
        except DiffusionNERError as error:
            self.failure = error
            return
        self.predictor = Predictor(ner)
        if hasattr(ner.engine, "network") and next(ner.network.parameters()).device.type == "cpu":
            from torch.nn.modules.module import register_module_forward_pre_hook

            self.hook = register_module_forward_pre_hook(self.interrupt)
            self.predictor.interruptible = True
        gc.freeze()  # keeps the garbage collector from scanning the model again and again
        try:
            self.predictor.run(Operation("entities", ()), [Slice([["Warm", "."]], 0, 1)])
        except Exception as error:
            message = f"{model}: the model fails on a text: {first_line(error)}"
            self.failure = CheckpointError(message)

    def serve(self) -> None:
        """Answer calls until the main process closes its connections or dies."""
        while True:
            ready = wait([self.short, self.long])
            if self.long in ready and (self.short not in ready or self._is_turn_of_long()):
                self.running_long = True
                self._answer(self.long)
                self.running_long = False
            else:
                self._answer_short()

    def interrupt(self, *_: object) -> None:
        """Answer a short call within a long one."""
        if self.running_long and not self._is_turn_of_long() and self.short.poll():
            self.running_long = False
            self.interrupted += self._answer_short()
            self.running_long = True

    def _is_turn_of_long(self) -> bool:
        return time.monotonic() < self.next_turn

    def _answer_short(self) -> float:
        """Answer a short call; return the seconds it took.

        Long calls then get as much time, and twice as much if many clients share the batch.
        """
        started = time.monotonic()
        requests = self._answer(self.short)
        seconds = time.monotonic() - started
        self.next_turn = started + seconds + seconds * (1 if requests <= FEW else 2)
        return seconds

    def _answer(self, connection: Connection) -> int:
        """Answer a call and return its number of slices."""
        call = connection.recv()
        started, before = time.monotonic(), self.interrupted
        value: object = None
        error = None
        try:
            if self.failure is not None:
                value = self.failure
            else:
                value = self._loaded.info() if call is None else self._run(*call)
        except Exception as failure:  # its message could contain the text
            error = type(failure).__name__
        seconds = time.monotonic() - started - (self.interrupted - before)
        connection.send(Answer(value, seconds, error))
        return 0 if call is None else len(call[1])

    def _run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        return self._loaded.run(operation, slices)

    @property
    def _loaded(self) -> Predictor:
        assert self.predictor is not None
        return self.predictor


def main(
    model: str, device: str | None, cores: set[int] | None, short: Connection, long: Connection
) -> None:
    """Load the model and serve it; the target of a model process."""
    # Signals may reach all processes of the service; the main process ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    if cores is not None:
        os.sched_setaffinity(0, cores)
    server = ModelServer(short, long)
    server.load(model, device)
    try:
        server.serve()
    except (EOFError, OSError):  # the main process is gone
        return
