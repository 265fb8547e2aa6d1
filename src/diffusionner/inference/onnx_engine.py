"""Inference with ONNX Runtime on a CPU: no torch.

In float32 and in int8, a sentence gives the same entities alone, in any batch and in any order: no
range or scale in the graphs depends on the batch.
"""

from __future__ import annotations

import copy
import json
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from functools import partial
from operator import itemgetter
from pathlib import Path
from typing import Any
from weakref import WeakSet

import numpy as np

from diffusionner.batching import Batch, RowLabels
from diffusionner.batching.subwords import (
    BACKEND_FILE,
    MAX_TOKENIZER,
    SubwordTokenizer,
    parse_backend,
)
from diffusionner.diffusion import (
    AUTO,
    BeliefDenoiser,
    Candidates,
    Coordinates,
    ReverseStart,
    Schedule,
    absent,
    likely_candidates,
    reverse_process,
    span_noise,
    timestep_sequence,
)
from diffusionner.errors import CheckpointError
from diffusionner.files import read_bounded
from diffusionner.inference.engine import Pending
from diffusionner.inference.fragments import gapped_candidates
from diffusionner.inference.label_groups import join_groups
from diffusionner.inference.onnx_graph import Graph
from diffusionner.label_set import LabelSet
from diffusionner.settings import InferenceSettings, Settings
from diffusionner.storage.beliefs import beliefs_of
from diffusionner.storage.config import (
    ENCODER_FILE,
    GRAPHS,
    WEIGHTS,
    check_files,
    read_config,
    read_word_limits,
)
from diffusionner.storage.initializers import Initializers
from diffusionner.threads import available_threads

TOKENIZER_NUMBERS = ("limit", "prefix", "suffix", "pad", "unknown")  # in config.json
MAX_ID = 10_000_000  # of a subword
PART = 8  # windows that are worth a thread of their own
LABEL_INPUTS = ("label_subwords", "label_places", "label_belongs")  # of the encoder
IMPOSSIBLE = -1e4  # score of a pair of words that is not a span, as in model.initializer


class OnnxEngine:
    """Runs three graphs: two once per sentence, if it is denoised, and the denoiser at each step.

    Every thread works on its own batch or part of a batch: sharing the small matrices of one
    sentence among threads takes longer.
    """

    subword_multiple = 1
    prefetch = 3  # more than its threads run at a time

    def __init__(self, folder: Path, labels: list[str], settings: Settings) -> None:
        self.labels = labels
        self.schedule = Schedule(settings.diffusion.schedule, settings.diffusion.timesteps)
        self.coordinates = Coordinates(settings.diffusion.coordinates, settings.diffusion.scale)
        weights = Initializers(folder / WEIGHTS)
        graphs = (Graph(folder / name, weights) for name in GRAPHS)
        self.encoder, self.sentence, self.denoiser = graphs
        self.beliefs: BeliefDenoiser | None = None
        if settings.decoder.beliefs:
            self.beliefs = BeliefDenoiser(beliefs_of(weights), self.schedule)
        self.exclusive = not settings.decoder.joins_labels
        self.groups: list[dict[str, np.ndarray]] = [{}]  # inputs for each group of labels
        self.threads = available_threads()
        self.workers = ThreadPoolExecutor(self.threads)
        _ENGINES.add(self)

    def bind(self, labels: LabelSet, subwords: SubwordTokenizer) -> OnnxEngine:
        """Return this engine asked for other labels."""
        bound = copy.copy(self)
        bound.labels = list(labels.names)
        rows = list(map(subwords.label_subwords, labels.texts))
        bound.groups = [label_inputs(rows[group], subwords.pad) for group in labels.groups()]
        _ENGINES.add(bound)
        return bound

    def launch(
        self, batch: Batch[np.ndarray], start: ReverseStart[np.ndarray], settings: InferenceSettings
    ) -> Pending:
        count = np.clip(len(start.slots) // PART, 1, self.threads)
        parts = [
            np.flatnonzero(np.isin(batch.row, rows))
            for rows in np.array_split(np.arange(len(batch.subwords)), count)
            if len(rows)
        ]
        order = np.argsort(np.concatenate(parts))
        running = []
        for chosen in parts:
            inputs, own = encoder_inputs(batch, chosen), start.map(itemgetter(chosen))
            running.append(self.workers.submit(self._all_candidates, inputs, own, settings))

        def wait() -> Candidates[np.ndarray]:
            parts = _pad_slots([part.result() for part in running])
            return Candidates.combine(parts, np.concatenate).map(itemgetter(order))

        return wait

    @property
    def label_groups(self) -> int:
        return len(self.groups)

    def _all_candidates(
        self,
        inputs: dict[str, np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Candidates[np.ndarray]:
        """Return the candidates of all groups of labels; decoding chooses among equal spans."""
        parts = [self._candidates(inputs | group, start, settings) for group in self.groups]
        sizes = [group["label_belongs"].shape[1] if group else 0 for group in self.groups]
        given = 0 if start.given is None else start.given.shape[1]
        return join_groups(_pad_slots(parts), sizes, given)

    def _candidates(
        self,
        inputs: dict[str, np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Candidates[np.ndarray]:
        """Encode sentences and return their candidates."""
        lengths = inputs["lengths"]
        sentence = {**self.encoder.run(inputs), "lengths": lengths}
        found = self._reverse(inputs, sentence, start, settings)
        if (scores := sentence.get("fragments")) is not None:
            found.gapped = gapped_candidates(scores)
        return found

    def _reverse(
        self,
        inputs: dict[str, np.ndarray],
        sentence: dict[str, np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Candidates[np.ndarray]:
        """Run the reverse process on encoded sentences and read out the candidates."""
        lengths, slots, given, timestep = (
            inputs["lengths"], start.slots, start.given, start.timestep
        )  # fmt: skip
        spans = None
        if settings.start == "candidates" and slots.shape[1]:
            spans, scores = best_spans(sentence["initial"], slots.shape[1])
            timestep = timestep or max(self.schedule.candidate_start, settings.steps)
            if settings.spans == AUTO:
                slots = likely_candidates(slots, scores)
        if slots.shape[1]:
            count = max(1, int(slots.sum(1).max()))  # a sentence's own spans are the first ones
            slots = slots[:, :count]
            spans = None if spans is None else spans[:, :count]
        own, first = slots.shape[1], 0
        if given is not None:
            assert start.given_slots is not None
            first, candidates = given.shape[1], given[:, :0] if spans is None else spans
            slots = np.concatenate([start.given_slots & absent(given, candidates, slots), slots], 1)
            spans = np.concatenate([given, candidates], 1)
        own_candidates = given is None and settings.start == "candidates"
        if settings.steps == 0 or (self.beliefs is not None and own_candidates):
            assert spans is not None
            return read_initializer(sentence["initial_types"], spans, slots, self.exclusive)

        sentence = sentence | self.sentence.run(sentence)

        def noise(step: int) -> np.ndarray:  # [B, 1, G + K, 2]
            return span_noise(inputs["keys"], settings.seed, step, own, first)

        def denoise(x: np.ndarray, t: int) -> tuple[np.ndarray, Candidates[np.ndarray]]:
            step = {"x": x, "t": np.array(t, dtype=np.int64), "slots": slots}
            outputs = self.denoiser.run(sentence | step)
            x0 = outputs.pop("x0")
            logits = None
            if self.beliefs is not None:
                denoised = np.stack([outputs["left"], outputs["right"]], -1)[:, 0]
                logits = type_logits(sentence["initial_types"], denoised)[:, None]
            return x0, Candidates(**outputs, slots=slots[:, None], logits=logits)

        encode = self.coordinates.encode
        x = noise(0) if spans is None else encode(spans[:, None], lengths[:, None])
        sequence = timestep_sequence(timestep or self.schedule.timesteps, settings.steps)
        alpha_bar = self.schedule.alpha_bar
        reverse = reverse_process(denoise, x, alpha_bar, sequence, settings.eta, noise)
        steps = [step.prediction for step in reverse]
        counted = steps if settings.average_steps else steps[-1:]
        if self.beliefs is not None and spans is not None:  # those given are candidates, too
            counted.append(read_initializer(sentence["initial_types"], spans, slots))
        return Candidates.combine(counted, lambda arrays: np.concatenate(arrays, 1))


_ENGINES: WeakSet[OnnxEngine] = WeakSet()


def _restart_threads() -> None:
    """Give a forked process threads of its own; it would wait for its parent's forever."""
    for engine in _ENGINES:
        engine.workers = ThreadPoolExecutor(engine.threads)


if hasattr(os, "register_at_fork"):  # not on Windows
    os.register_at_fork(after_in_child=_restart_threads)


def _pad_slots(parts: Sequence[Candidates[np.ndarray]]) -> list[Candidates[np.ndarray]]:
    """Pad candidates with empty slots, so that all have as many."""
    slots = max(part.left.shape[2] for part in parts)
    gapped = max(part.gapped.type_id.shape[2] if part.gapped else 0 for part in parts)
    padded = []
    for part in parts:
        of_gapped = part.gapped and part.gapped.map(partial(_pad, count=gapped))
        part = replace(part, gapped=None).map(partial(_pad, count=slots))
        padded.append(replace(part, gapped=of_gapped))
    return padded


def _pad(array: np.ndarray, count: int) -> np.ndarray:
    """Pad the third dimension with zeros."""
    if array.shape[2] == count:
        return array
    width = [(0, 0)] * array.ndim
    width[2] = (0, count - array.shape[2])
    return np.pad(array, width)


def best_spans(scores: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the likeliest spans [B, K, 2], best first, and their scores [B, K].

    The same as `model.initializer.best_spans`, without torch.
    """
    words = scores.shape[1]
    flat = scores.reshape(len(scores), -1)
    taken = min(count, flat.shape[1])
    index = np.argpartition(-flat, taken - 1)[:, :taken]
    best = np.take_along_axis(flat, index, 1)
    order = np.argsort(-best, kind="stable")
    index, best = (np.take_along_axis(one, order, 1) for one in (index, best))
    spans = np.maximum(1, (best > IMPOSSIBLE / 2).sum(1, keepdims=True))
    slots = np.arange(count) % spans
    chosen = np.take_along_axis(index, slots, 1)
    return np.stack([chosen // words, chosen % words], -1), np.take_along_axis(best, slots, 1)


def label_inputs(rows: Sequence[Sequence[int]], pad: int) -> dict[str, np.ndarray]:
    """Return the inputs of the encoder for labels, given as subwords."""
    labels = RowLabels.of([rows], pad)
    belongs = labels.owner[:, None] == np.arange(len(rows))[:, None]
    return dict(zip(LABEL_INPUTS, (labels.subwords, labels.places, belongs), strict=True))


def read_initializer(
    types: np.ndarray, spans: np.ndarray, slots: np.ndarray, exclusive: bool = True
) -> Candidates[np.ndarray]:
    """Score spans [B, K, 2] without denoising, by the initializer's type logits [B, M, M, C].

    The same as `model.initializer.SpanScores.candidates`, without torch.
    """
    left, right = spans[..., 0], spans[..., 1]
    logits = type_logits(types, spans)
    if exclusive:
        type_id = logits.argmax(-1)
        odds = np.exp(logits - logits.max(-1, keepdims=True))
        probability = 1 / odds.sum(-1)  # of the best type, whose odds are 1
    else:
        type_id = logits[..., :-1].argmax(-1)
        probability = np.exp(-np.logaddexp(0, -logits[..., :-1].max(-1)))
    is_entity = (type_id < types.shape[-1]) & slots
    found = Candidates(
        left, right, type_id, 3 * probability, probability, is_entity, slots, spans, logits
    )
    return found.map(lambda array: array[:, None])


def type_logits(types: np.ndarray, spans: np.ndarray) -> np.ndarray:
    """Return the logits of spans [B, K, 2] for each type and no-entity: [B, K, C + 1]."""
    chosen = types[np.arange(len(types))[:, None], spans[..., 0], spans[..., 1]]
    return np.concatenate([chosen, np.zeros_like(chosen[..., :1])], -1)


def encoder_inputs(
    batch: Batch[np.ndarray], chosen: np.ndarray | slice = slice(None)
) -> dict[str, np.ndarray]:
    """Return some windows of a batch, cut to their own longest row and word, with noise keys."""
    rows, row = np.unique(batch.row[chosen], return_inverse=True)
    longest = int(batch.attention[rows].sum(1).max())
    most = int(batch.lengths[chosen].max())
    word_of = np.minimum(batch.word_of[chosen], most)
    characters = batch.characters[chosen, :most]
    width = max(1, int((characters != 0).sum(-1).max(initial=0)))  # of the longest word
    return {
        "subwords": batch.subwords[rows, :longest],
        "attention": batch.attention[rows, :longest],
        "word_of": word_of[:, : int((word_of < most).sum(1).max())],
        "first": batch.first[chosen, :most],
        "row": row,
        "characters": characters[..., :width],
        "lengths": batch.lengths[chosen],
        "keys": batch.keys[chosen],
    }


def load(folder: Path) -> tuple[OnnxEngine, SubwordTokenizer, Settings]:
    """Load an exported model."""
    config = read_config(folder)
    file = folder / "config.json"
    if "tokenizer" not in config and not (folder / ENCODER_FILE).exists():
        raise CheckpointError(
            f"'{folder}' is a torch model without {ENCODER_FILE}; load it with backend torch, or "
            f"export it: diffusionner export OUTPUT --model '{folder}' --dev DEV"
        )
    settings = Settings.from_dict(config["settings"], str(file))
    numbers = _tokenizer_numbers(config.get("tokenizer"), file)
    check_files(folder, config, *GRAPHS, WEIGHTS, BACKEND_FILE)
    path = folder / BACKEND_FILE
    try:
        backend = parse_backend(read_bounded(path, MAX_TOKENIZER))
    except (OSError, ValueError) as error:
        raise CheckpointError(f"{path} cannot be read ({error}); export the model again") from error
    tokenizer = SubwordTokenizer(backend, **numbers, word_limits=read_word_limits(config, file))
    return OnnxEngine(folder, config["labels"], settings), tokenizer, settings


def _tokenizer_numbers(numbers: Any, file: Path) -> dict[str, Any]:
    """Check the numbers, and lists of numbers, that config.json holds about the tokenizer."""
    if not isinstance(numbers, dict) or set(numbers) != set(TOKENIZER_NUMBERS):
        found = ", ".join(map(str, numbers))[:200] if isinstance(numbers, dict) else "not a table"
        raise CheckpointError(
            f"{file}: 'tokenizer' needs {', '.join(TOKENIZER_NUMBERS)}; found: {found}. Export the "
            "model again"
        )
    for name, value in numbers.items():
        lists = name in ("prefix", "suffix")
        values = value if lists and isinstance(value, list) else [None if lists else value]
        if not all(type(one) is int and 0 <= one <= MAX_ID for one in values):
            raise CheckpointError(
                f"{file}: tokenizer.{name} is {json.dumps(value)[:100]}, expected "
                f"{'a list of numbers' if lists else 'a number'}; export the model again"
            )
    return numbers
