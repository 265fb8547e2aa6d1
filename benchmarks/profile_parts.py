"""What each part of inference takes, of the device and of the host that launches it.

    python benchmarks/profile_parts.py --shape bert-large --data test.jsonl \
      --config configs/conll03-e5-small.yaml
    python benchmarks/profile_parts.py --model runs/model --data test.jsonl --top 8

By the profiler of torch, over batches as inference has them. Device time is the sum of a part's
kernels, host time how long it takes to launch these while the device is not waited for; on a CPU
both are the same. `--top` also names the kernels that take most of a part.
"""

from __future__ import annotations

import argparse
import tempfile
import time
from collections import Counter, defaultdict
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import sample, shapes
from benchmarks.throughput import transformer_inputs
from benchmarks.timing import synchronise, timed
from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.diffusion import span_noise
from diffusionner.diffusion.span_counts import span_counts, span_slots
from diffusionner.model import DenoisingNetwork
from diffusionner.model.decoder import read_out
from diffusionner.model.encoder import SentenceEncoding, pool_subwords
from diffusionner.model.tensors import to_device, to_tensors
from diffusionner.settings import Settings

Parts = dict[str, Callable[[], object]]
Kernels = dict[str, tuple[float, float]]


def parts_of(
    ner: DiffusionNER, network: DenoisingNetwork, arrays: Batch[np.ndarray], spans: int | str
) -> Parts:
    """Functions that run one part each, on a batch that lies on the device."""
    device = next(network.parameters()).device
    settings = ner.settings.with_inference({"spans": spans}).inference
    encoder = network.encoder
    slots = span_slots(span_counts(arrays.lengths, spans, settings.start))
    noise = span_noise(arrays.keys, 0, 0, slots.shape[1])
    tensors = to_tensors(arrays, device)
    visible, noisy = to_device([slots, noise], device)
    inputs = transformer_inputs(tensors.subwords, tensors.attention)
    subwords = encoder.transformer(**inputs).last_hidden_state

    def pool() -> Tensor:
        return pool_subwords(subwords, tensors.first, tensors.word_of, encoder.pooling)

    pooled = pool()

    def contextualise() -> SentenceEncoding:
        return encoder.contextualise(pooled, tensors.lengths, tensors.characters)

    encoding = contextualise()
    begun = network.begin(encoding, settings, visible)
    x = noisy if begun.x is None else begun.x
    t = torch.ones_like(tensors.lengths)[:, None]
    _, prediction = network.step(begun, x, t)
    parts: Parts = {
        "copy to the device": lambda: to_tensors(arrays, device),
        "transformer": lambda: encoder.transformer(**inputs),
        "subwords to words": pool,
    }
    if encoder.characters is not None:
        parts["characters"] = lambda: encoder.characters(tensors.characters)
    parts["characters, BiLSTM, projection"] = contextualise
    if network.decoder.initializer is not None:
        initializer = network.decoder.initializer
        parts["initializer"] = lambda: initializer(encoding.states, encoding.mask)
    return {
        **parts,
        "all before the first step": lambda: network.begin(encoding, settings, visible),
        "a step": lambda: network.step(begun, x, t),
        "reading out": lambda: read_out(prediction, begun.slots, begun.sentence.initial),
    }


def measure(run: Callable[[], object], device: str, repeats: int) -> tuple[float, Kernels]:
    """Milliseconds of the host, and of each kernel with how often it ran, of one run."""
    timed(run, device)
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    host = (time.perf_counter() - started) / repeats
    synchronise(device)
    on_gpu = device.startswith("cuda")
    with profile(activities=[ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU]) as watched:
        for _ in range(repeats):
            timed(run, device)
    taken = {
        event.key: (event.self_device_time_total if on_gpu else event.self_cpu_time_total, event)
        for event in watched.key_averages()
    }
    return 1000 * host, {
        key: (microseconds / 1000 / repeats, event.count / repeats)
        for key, (microseconds, event) in taken.items()
        if microseconds > 0
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    subject = parser.add_mutually_exclusive_group(required=True)
    subject.add_argument("--model", help="a model's folder or name")
    subject.add_argument("--shape", choices=shapes.SHAPES, help="random weights of that size")
    parser.add_argument("--data", required=True, help="a corpus")
    parser.add_argument("--config", type=Path, help="settings of a shape")
    parser.add_argument("--sentences", type=int, default=2048)
    parser.add_argument("--batch-size", type=int, default=512)
    parser.add_argument("--spans", default="60", help="a number, or auto")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--top", type=int, default=0, help="kernels to name of each part")
    arguments = parser.parse_args()
    spans = arguments.spans if arguments.spans == "auto" else int(arguments.spans)
    device = "cuda" if torch.cuda.is_available() else "cpu"
    sentences = formats.read(arguments.data)
    with tempfile.TemporaryDirectory() as scratch:
        folder = arguments.model
        if arguments.shape:
            settings = Settings.load(arguments.config) if arguments.config else Settings()
            folder = shapes.write(arguments.shape, sentences, settings, Path(scratch))
        ner = DiffusionNER.from_pretrained(folder, device)
    network = getattr(ner.engine, "running", None)
    if not isinstance(network, DenoisingNetwork):
        parser.error("only a model of torch that denoises can be profiled")
    chosen = sample.draw(sentences, arguments.sentences)
    corpus = EncodedCorpus(chosen, ner.subwords, ner.settings.encoder)
    step = ner.engine.subword_step
    batches = list(corpus.sorted_batches(arguments.batch_size, range(len(chosen)), step))
    host: Counter[str] = Counter()
    times: defaultdict[str, Counter[str]] = defaultdict(Counter)
    counts: defaultdict[str, Counter[str]] = defaultdict(Counter)
    with torch.inference_mode():
        for number in batches:
            for name, run in parts_of(ner, network, corpus.batch(number, step), spans).items():
                taken, kernels = measure(run, device, arguments.repeats)
                host[name] += taken
                for key, (milliseconds, count) in kernels.items():
                    times[name][key] += milliseconds
                    counts[name][key] += count
    console = Console(width=150)
    table = Table(title=f"{len(chosen)} sentences in {len(batches)} batches, {device}")
    for column in ("part", "device, ms per sentence", "host, ms per sentence", "kernels per batch"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, of_host in host.items():
        each = [f"{value / len(chosen):.5f}" for value in (times[name].total(), of_host)]
        table.add_row(name, *each, f"{counts[name].total() / len(batches):.0f}")
    console.print(table)
    for name in host if arguments.top else ():
        console.print(f"\n{name}", style="bold")
        for key, taken in times[name].most_common(arguments.top):
            often = counts[name][key] / len(batches)
            console.print(
                f"  {taken / len(chosen):.5f} ms  {often:6.1f} x  {key.removeprefix('void ')[:110]}"
            )


if __name__ == "__main__":
    main()
