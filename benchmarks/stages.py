"""Time of each stage of inference, waiting for the device after each.

The library overlaps some stages, so their sum exceeds its time per sentence.
"""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch

from benchmarks.throughput import Loaded, transformer_inputs
from benchmarks.timing import Summary, synchronise, uncounted_turns
from diffusionner import formats
from diffusionner.batching import EncodedCorpus
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.diffusion import span_noise, span_slots
from diffusionner.inference.decoding import (
    EntityColumns,
    entities_by_sentence,
    merge_candidates,
)
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.stream import Item
from diffusionner.model.decoder import read_out
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device, to_device

STAGES = {
    "read": "the corpus file",
    "tokenise": "words to subwords, windows and characters (EncodedCorpus)",
    "collate": "arrays and noise of a batch",
    "copy": "arrays to the device",
    "encode": "the transformer",
    "words": "pooling, characters, BiLSTM, and the decoder's preparation",
    "denoise": "one denoising step",
    "read out": "most likely boundaries and types, copied to the host",
    "decode": "merge duplicates, resolve overlaps, create entities",
}


class Clock:
    """Sums the time of stages, waiting for the device at both ends."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.seconds: dict[str, float] = {}

    @contextmanager
    def stage(self, name: str) -> Iterator[None]:
        synchronise(self.device)
        started = time.perf_counter()
        yield
        synchronise(self.device)
        self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


def read_seconds(path: str, format: str | None) -> tuple[list[Sentence], float]:
    """Read a corpus; return it with the seconds per sentence."""
    started = time.perf_counter()
    sentences = formats.read(path, format)
    return sentences, (time.perf_counter() - started) / len(sentences)


def measure(
    loaded: Loaded,
    sentences: Sequence[Sentence],
    read: float,
    spans: int | str,
    batch_size: int,
    repeats: int,
    progress: ProgressCallback,
) -> dict[str, Any]:
    """Measure the milliseconds per sentence of every stage at γ = 1."""
    runs = []
    network = loaded.network
    assert isinstance(network, DenoisingNetwork)
    first = uncounted_turns(loaded.subject.device)
    for turn in range(first + repeats):
        progress("stages", turn, first + repeats)
        clock = Clock(loaded.subject.device)
        _pass(loaded.ner, network, sentences, spans, batch_size, clock)
        runs.append(clock.seconds)
    counted = runs[first:]
    stages = {"read": Summary.of([1000 * read])}
    for name in list(STAGES)[1:]:
        stages[name] = Summary.of([1000 * run[name] / len(sentences) for run in counted])
    return {
        "subject": loaded.subject.name,
        "precision": loaded.precision,
        "spans": spans,
        "batch_size": batch_size,
        "ms_per_sentence": {name: value.to_dict() for name, value in stages.items()},
    }


@torch.inference_mode()
def _pass(
    ner: DiffusionNER,
    network: DenoisingNetwork,
    sentences: Sequence[Sentence],
    spans: int | str,
    batch_size: int,
    clock: Clock,
) -> None:
    device = torch.device(clock.device)
    inference = ner.settings.inference
    rule = ner.score_rule(inference)
    ner.subwords.caches.clear()  # as if no word had been seen
    with clock.stage("tokenise"):
        corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
    collected: list[EntityColumns] = []
    multiple = ner.engine.subword_multiple
    for chosen in corpus.sorted_batches(batch_size, range(len(sentences)), multiple):
        with clock.stage("collate"):
            arrays = corpus.batch(chosen, (multiple, 1, 1, 1, 1))
            slots = span_slots(arrays.lengths, spans, inference.start)
            noise = span_noise(arrays.keys, inference.seed, 0, slots.shape[1])
        with clock.stage("copy"):
            batch = batch_to_device(arrays, device)
            visible, x = to_device([slots, noise], device)
        inputs = transformer_inputs(batch.subwords, batch.attention)
        with clock.stage("encode"):
            network.encoder.transformer(**inputs)
        with clock.stage("words"):  # includes the transformer, which is subtracted below
            prepared = network.prepare(batch)
        t = torch.full_like(batch.lengths[:, None], network.schedule.timesteps)
        with clock.stage("denoise"):
            _, prediction = network.denoise(prepared, x, t, visible)
        with clock.stage("read out"):
            found = read_out(prediction, visible, prepared.initial)
            candidates = found.map(lambda array: array.cpu().numpy())
        with clock.stage("decode"):
            collected.append(merge_candidates(candidates, corpus.windows, chosen, rule))
    clock.seconds["words"] = max(0.0, clock.seconds["words"] - clock.seconds["encode"])
    items = [Item(sentence.words, None, number) for number, sentence in enumerate(sentences)]
    with clock.stage("decode"):
        decoded = iter(entities_by_sentence(collected, range(len(sentences)), inference.overlap))
        for item in items:
            item.entities(decoded, ner.labels)
