"""`python -m benchmarks profile`"""

from __future__ import annotations

import tempfile
import time
from collections import defaultdict
from collections.abc import Callable
from operator import itemgetter
from pathlib import Path
from typing import Annotated

import numpy as np
import torch
import typer
from rich.console import Console
from rich.table import Table
from torch import Tensor
from torch.profiler import ProfilerActivity, profile

from benchmarks import sample, shapes
from benchmarks.throughput import transformer_inputs
from benchmarks.timing import synchronise, timed
from diffusionner import DiffusionNER, formats
from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.cli.options import MODEL_HELP
from diffusionner.diffusion import ReverseStart, span_noise, span_slots
from diffusionner.errors import SettingsError
from diffusionner.model.decoder import read_out
from diffusionner.model.encoder import SentenceEncoding, pool_subwords
from diffusionner.model.network import DenoisingNetwork
from diffusionner.model.tensors import batch_to_device, to_device
from diffusionner.settings import Settings

Parts = dict[str, Callable[[], object]]
Kernels = dict[str, tuple[float, float]]


def parts_of(
    ner: DiffusionNER, network: DenoisingNetwork, arrays: Batch[np.ndarray], spans: int | str
) -> Parts:
    """Return functions that each run one part, on a batch on the device."""
    device = next(network.parameters()).device
    settings = ner.settings.with_inference({"spans": spans}).inference
    encoder = network.encoder
    slots = span_slots(arrays.lengths, spans, settings.start)
    noise = span_noise(arrays.keys, 0, 0, slots.shape[1])
    tensors = batch_to_device(arrays, device)
    visible, noisy = to_device([slots, noise], device)
    inputs = transformer_inputs(tensors.subwords, tensors.attention)
    subwords = encoder.transformer(**inputs).last_hidden_state

    def pool() -> Tensor:
        return pool_subwords(subwords, tensors.first, tensors.word_of, tensors.row, encoder.pooling)

    pooled = pool()

    def contextualise() -> SentenceEncoding:
        return encoder.contextualise(pooled, tensors.lengths, tensors.characters)

    encoding = contextualise()
    start = ReverseStart(visible)
    state = network.start_reverse(encoding, start, settings)
    x = noisy if state.x is None else state.x
    t = torch.ones_like(tensors.lengths)[:, None]
    _, prediction = network.denoise(state.sentence, x, t, state.mask)
    parts: Parts = {
        "copy to the device": lambda: batch_to_device(arrays, device),
        "transformer": lambda: encoder.transformer(**inputs),
        "subwords to words": pool,
    }
    if encoder.characters is not None:
        characters = encoder.characters
        parts["characters"] = lambda: characters(tensors.characters)
    parts["characters, BiLSTM, projection"] = contextualise
    if network.decoder.initializer is not None:
        initializer = network.decoder.initializer
        parts["initializer"] = lambda: initializer(encoding.states, encoding.mask)
    return {
        **parts,
        "all before the first step": lambda: network.start_reverse(encoding, start, settings),
        "a step": lambda: network.denoise(state.sentence, x, t, state.mask),
        "reading out": lambda: read_out(prediction, state.slots, state.sentence.initial),
    }


def measure(run: Callable[[], object], device: str, repeats: int) -> tuple[float, Kernels]:
    """Return the milliseconds of the host, and time and count of each kernel, for one run."""
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


def profile_parts(
    data: Annotated[Path, typer.Option(help="Corpus, in any format.")],
    model: Annotated[str | None, typer.Option(help=MODEL_HELP)] = None,
    shape: Annotated[
        str | None, typer.Option(help=f"Random weights: {', '.join(shapes.SHAPES)}.")
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Preset with the settings of a shape.")
    ] = None,
    sentences: int = 2048,
    batch_size: int = 512,
    spans: Annotated[str, typer.Option(help="Noisy spans K_eval, or auto.")] = "60",
    repeats: int = 3,
    top: Annotated[int, typer.Option(help="Slowest kernels to name for each part.")] = 0,
) -> None:
    """Profile the parts of inference: time on the device, and on the host that launches it.

    Uses torch's profiler, on batches as inference has them. Device time is the sum of a part's
    kernels. Host time is the time to launch them without waiting for the device. On a CPU both are
    the same.

    Example: `python -m benchmarks profile --shape bert-large --data test.jsonl`
    """
    if (model is None) == (shape is None):
        raise SettingsError("give either --model or --shape")
    device = "cuda" if torch.cuda.is_available() else "cpu"
    corpus_sentences = formats.read(data)
    with tempfile.TemporaryDirectory() as scratch:
        folder: str | Path = model or ""
        if shape:
            settings = Settings.load(config) if config else Settings()
            folder = shapes.write(shape, corpus_sentences, settings, Path(scratch))
        ner = DiffusionNER.from_pretrained(folder, device)
    network = getattr(ner.engine, "running", None)
    if not isinstance(network, DenoisingNetwork):
        raise SettingsError("only a torch model of method=diffusion can be profiled")
    chosen = sample.draw(corpus_sentences, sentences)
    count = spans if spans == "auto" else int(spans)
    corpus = EncodedCorpus(chosen, ner.subwords, ner.settings.encoder)
    step = ner.engine.subword_multiple
    batches = list(corpus.sorted_batches(batch_size, range(len(chosen)), step))
    host: defaultdict[str, float] = defaultdict(float)
    times: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    counts: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    with torch.inference_mode():
        for number in batches:
            for name, run in parts_of(
                ner, network, corpus.batch(number, (step, 1, 1, 1, 1)), count
            ).items():
                taken, kernels = measure(run, device, repeats)
                host[name] += taken
                for key, (milliseconds, calls) in kernels.items():
                    times[name][key] += milliseconds
                    counts[name][key] += calls
    console = Console(width=150)
    table = Table(title=f"{len(chosen)} sentences in {len(batches)} batches, {device}")
    for column in ("part", "device, ms per sentence", "host, ms per sentence", "kernels per batch"):
        table.add_column(column, justify="left" if column == "part" else "right")
    for name, of_host in host.items():
        each = [f"{value / len(chosen):.5f}" for value in (sum(times[name].values()), of_host)]
        table.add_row(name, *each, f"{sum(counts[name].values()) / len(batches):.0f}")
    console.print(table)
    for name in host if top else ():
        console.print(f"\n{name}", style="bold")
        for key, taken in sorted(times[name].items(), key=itemgetter(1), reverse=True)[:top]:
            often = counts[name][key] / len(batches)
            console.print(
                f"  {taken / len(chosen):.5f} ms  {often:6.1f} x  {key.removeprefix('void ')[:110]}"
            )
