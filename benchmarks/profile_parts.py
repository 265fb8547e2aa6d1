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
from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch
from rich.console import Console
from rich.table import Table
from torch.profiler import ProfilerActivity, profile

from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.bench import sample, shapes
from diffusionner.bench.throughput import transformer_inputs
from diffusionner.diffusion import span_noise
from diffusionner.diffusion.span_counts import span_counts, span_slots
from diffusionner.inference.torch_engine import TorchEngine
from diffusionner.model import DenoisingNetwork
from diffusionner.model.decoder import read_out
from diffusionner.model.encoder import SentenceEncoding, pool_subwords
from diffusionner.model.tensors import to_device, to_tensors
from diffusionner.settings import Settings

Parts = dict[str, Callable[[], object]]


def parts_of(
    ner: DiffusionNER, network: DenoisingNetwork, arrays: Batch[np.ndarray], spans: int | str
) -> Parts:
    """Functions that run one part each, on a batch that lies on the device."""
    device = next(network.parameters()).device
    settings = ner.settings.with_inference({"spans": spans}).inference
    encoder = network.encoder
    counts = span_counts(arrays.lengths, spans, settings.start)
    slots = span_slots(counts)
    noise = span_noise(arrays.keys, 0, 0, slots.shape[1])
    tensors = to_tensors(arrays, device)
    visible, noisy = to_device([slots, noise], device)
    inputs = transformer_inputs(tensors.subwords, tensors.attention)
    subwords = encoder.transformer(**inputs).last_hidden_state
    pooled = pool_subwords(subwords, tensors, encoder.pooling)
    encoding: SentenceEncoding = encoder.contextualise(pooled, tensors)
    begun = network.begin(encoding, settings, visible)
    x = noisy if begun.x is None else begun.x
    t = torch.ones_like(tensors.lengths)[:, None]
    _, prediction = network.step(begun, x, t)
    parts: Parts = {
        "copy to the device": lambda: to_tensors(arrays, device),
        "transformer": lambda: encoder.transformer(**inputs),
        "subwords to words": lambda: pool_subwords(subwords, tensors, encoder.pooling),
    }
    if encoder.characters is not None:
        parts["characters"] = lambda: encoder.characters(tensors.characters)
        wide = torch.cat([pooled, encoder.characters(tensors.characters).to(pooled.dtype)], -1)
    else:
        wide = pooled
    if encoder.lstm is not None:
        parts["BiLSTM"] = lambda: encoder.lstm(wide, tensors.lengths)
    if network.decoder.initializer is not None:
        initializer = network.decoder.initializer
        parts["initializer"] = lambda: initializer(encoding.states, encoding.mask)
    return {
        **parts,
        "all before the first step": lambda: network.begin(encoding, settings, visible),
        "a step": lambda: network.step(begun, x, t),
        "reading out": lambda: read_out(prediction, begun.slots, begun.sentence.initial),
    }


def measure(
    run: Callable[[], object], device: str, repeats: int
) -> tuple[float, float, int, list[tuple[str, float, int]]]:
    """Milliseconds of device and host, kernels, and these by name, of one run."""
    on_gpu = device.startswith("cuda")
    wait = torch.cuda.synchronize if on_gpu else lambda: None
    run()
    wait()
    started = time.perf_counter()
    for _ in range(repeats):
        run()
    host = (time.perf_counter() - started) / repeats
    wait()
    kind = ProfilerActivity.CUDA if on_gpu else ProfilerActivity.CPU
    with profile(activities=[kind]) as watched:
        for _ in range(repeats):
            run()
        wait()
    rows = []
    for event in watched.key_averages():
        taken = event.self_device_time_total if on_gpu else event.self_cpu_time_total
        if taken > 0:
            rows.append((event.key, taken / 1000 / repeats, event.count // repeats))
    rows.sort(key=lambda row: -row[1])
    total = sum(row[1] for row in rows)
    return total, 1000 * host, sum(row[2] for row in rows), rows


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
    with tempfile.TemporaryDirectory() as name:
        folder = arguments.model
        if arguments.shape:
            settings = Settings.load(arguments.config) if arguments.config else Settings()
            folder = Path(name) / "model"
            shapes.write_encoder(arguments.shape, sentences, Path(name) / "encoder")
            shapes.write_model(Path(name) / "encoder", sentences, settings, folder)
        ner = DiffusionNER.from_pretrained(folder, device)
    assert isinstance(ner.engine, TorchEngine) and isinstance(ner.engine.running, DenoisingNetwork)
    chosen = sample.draw(sentences, arguments.sentences)
    corpus = EncodedCorpus(chosen, ner.subwords, ner.settings.encoder)
    step = ner.engine.subword_step
    batches = list(corpus.sorted_batches(arguments.batch_size, range(len(chosen)), step))
    sums: dict[str, list[float]] = {}
    kernels: dict[str, dict[str, list[float]]] = {}
    with torch.inference_mode():
        for number in batches:
            parts = parts_of(ner, ner.engine.running, corpus.batch(number, step), spans)
            for name, run in parts.items():
                of_device, of_host, count, rows = measure(run, device, arguments.repeats)
                row = sums.setdefault(name, [0.0, 0.0, 0.0])
                sums[name] = [a + b for a, b in zip(row, (of_device, of_host, count), strict=True)]
                for key, taken, times in rows:
                    known = kernels.setdefault(name, {}).setdefault(key, [0.0, 0.0])
                    kernels[name][key] = [known[0] + taken, known[1] + times]
    console = Console(width=150)
    table = Table(title=f"{len(chosen)} sentences in {len(batches)} batches, {device}")
    for column in ("part", "device, ms per sentence", "host, ms per sentence", "kernels per batch"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, (of_device, of_host, count) in sums.items():
        each = [f"{value / len(chosen):.5f}" for value in (of_device, of_host)]
        table.add_row(name, *each, f"{count / len(batches):.0f}")
    console.print(table)
    for name, found in kernels.items() if arguments.top else ():
        console.print(f"\n{name}", style="bold")
        for key, (taken, times) in sorted(found.items(), key=lambda one: -one[1][0])[
            : arguments.top
        ]:
            console.print(f"  {taken / len(chosen):.5f} ms  {times / len(batches):6.1f} x  {key}")


if __name__ == "__main__":
    main()
