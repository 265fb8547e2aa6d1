"""Where the time of inference goes: each stage alone, one after the other, the device waited for.

The product overlaps some of them, so their sum is more than a sentence costs there.
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
from diffusionner.diffusion import span_noise
from diffusionner.diffusion.span_counts import span_counts, span_slots
from diffusionner.inference.decoding import Columns, by_sentence, deduplicate
from diffusionner.inference.pipeline import DiffusionNER
from diffusionner.inference.reading import Item
from diffusionner.model import DenoisingNetwork
from diffusionner.model.decoder import read_out
from diffusionner.model.tensors import to_device, to_tensors

STAGES = {
    "read": "the corpus file",
    "tokenise": "words to subwords, windows, characters (EncodedCorpus)",
    "collate": "a batch's arrays and its noise",
    "copy": "arrays to the device",
    "encode": "the transformer",
    "words": "pooling, characters, BiLSTM, and what the decoder derives once",
    "denoise": "one denoising step",
    "read out": "the likeliest boundaries and types, back on the host",
    "decode": "de-duplicate, resolve overlaps, make entities",
}


class Clock:
    """Adds up the time of stages, the device waited for at both ends."""

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
    """The corpus, and what reading it took per sentence."""
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
    tell: ProgressCallback,
) -> dict[str, Any]:
    """Milliseconds per sentence of every stage at γ = 1, medians over the repeats."""
    runs = []
    network = loaded.network
    assert isinstance(network, DenoisingNetwork)
    first = uncounted_turns(loaded.subject.device)
    for turn in range(first + repeats):
        tell("stages", turn, first + repeats)
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
    judge = ner.judge(inference)
    ner.subwords.lexicons.clear()  # as of a model that has met none of the words yet
    with clock.stage("tokenise"):
        corpus = EncodedCorpus(sentences, ner.subwords, ner.settings.encoder)
    collected: list[Columns] = []
    step = ner.engine.subword_step
    for chosen in corpus.sorted_batches(batch_size, range(len(sentences)), step):
        with clock.stage("collate"):
            arrays = corpus.batch(chosen, step)
            slots = span_slots(span_counts(arrays.lengths, spans, inference.start))
            noise = span_noise(arrays.keys, inference.seed, 0, slots.shape[1])
        with clock.stage("copy"):
            batch = to_tensors(arrays, device)
            visible, x = to_device([slots, noise], device)
        inputs = transformer_inputs(batch.subwords, batch.attention)
        with clock.stage("encode"):
            network.encoder.transformer(**inputs)
        with clock.stage("words"):  # the transformer again: its share is taken off below
            prepared = network.encode(batch)
        t = torch.full_like(batch.lengths[:, None], network.schedule.timesteps)
        with clock.stage("denoise"):
            prediction = network.denoise(prepared, x, t, visible)
        with clock.stage("read out"):
            table = read_out(prediction, visible, prepared.initial)[:, None].cpu().numpy()
        with clock.stage("decode"):
            collected.append(deduplicate(table, corpus.windows, chosen, judge))
    clock.seconds["words"] = max(0.0, clock.seconds["words"] - clock.seconds["encode"])
    items = [Item(sentence.words, None, number) for number, sentence in enumerate(sentences)]
    with clock.stage("decode"):
        found = by_sentence(collected, range(len(sentences)), inference.overlap)
        for item, one in zip(items, found, strict=True):
            item.of_sentence(0, one, ner.labels)
