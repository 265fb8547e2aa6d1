"""`python -m benchmarks few-shot`"""

from __future__ import annotations

import tempfile
from dataclasses import replace
from pathlib import Path
from statistics import fmean, stdev
from typing import Annotated, Any

import typer

from benchmarks.zero_shot.crossner import LABELS, LEFT_OUT
from diffusionner import DiffusionNER, formats, train
from diffusionner.corpus import Sentence
from diffusionner.evaluation import evaluate
from diffusionner.files import check_writable, to_json, write_bytes

DOMAINS = ("ai", "music")  # with 100 training sentences each


def few_shot(
    model: Annotated[str, typer.Argument(metavar="MODEL", help="Model or encoder to start from.")],
    data: Annotated[Path, typer.Option("--data", help="Folder of the corpora.")],
    seeds: Annotated[int, typer.Option(min=1, help="Runs per domain, with seeds from 0 on.")] = 3,
    epochs: Annotated[
        int | None, typer.Option(min=1, help="Epochs.  [default: as `diffusionner train`]")
    ] = None,
    learning_rate: Annotated[
        float | None,
        typer.Option(help="Rate of the encoder; five times as much for the rest."),
    ] = None,
    test: Annotated[bool, typer.Option("--test", help="Also score the test sets.")] = False,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JSON.")] = None,
) -> None:
    """Fine-tune a model on 100 sentences of CrossNER's AI and music domains.

    All labels of a domain are learned, under names in words, which a model with open labels reads.
    The best epoch and the thresholds are chosen on dev.

    Example: `python -m benchmarks few-shot open --data $DATA --test`
    """
    if out is not None:
        check_writable(out)
    record: dict[str, dict[str, list[float]]] = {}
    for domain in DOMAINS:
        splits = {name: _read(data, domain, name) for name in ("train", "dev", "test")}
        scored = ("dev", "test") if test else ("dev",)
        record[domain] = {name: [] for name in scored}
        for seed in range(seeds):
            with tempfile.TemporaryDirectory() as folder:
                ner = _fine_tune(model, splits, Path(folder), seed, epochs, learning_rate)
                for name in scored:
                    f1 = evaluate(ner, splits[name]).micro.f1
                    record[domain][name].append(f1)
            if out is not None:
                write_bytes(out, to_json({"model": Path(model).name, "f1": record}))
        for name, values in record[domain].items():
            each = ", ".join(f"{100 * value:.1f}" for value in values)
            spread = f" ± {100 * stdev(values):.1f}" if seeds > 1 else ""
            print(f"{domain}, {name}: F1 {100 * fmean(values):.1f}{spread} ({each})", flush=True)


def _read(data: Path, domain: str, split: str) -> list[Sentence]:
    names = {label: words.name for label, words in LABELS.items()} | {LEFT_OUT: "other name"}
    return [
        replace(s, entities=[e._replace(label=names[e.label]) for e in s.entities])
        for s in formats.read(data / f"crossner-{domain}" / f"{split}.jsonl")
    ]


def _fine_tune(
    model: str,
    splits: dict[str, list[Sentence]],
    folder: Path,
    seed: int,
    epochs: int | None,
    learning_rate: float | None,
) -> DiffusionNER:
    settings: dict[str, Any] = {"seed": seed}
    if epochs is not None:
        settings["epochs"] = epochs
    if learning_rate is not None:
        settings |= {"encoder_learning_rate": learning_rate, "learning_rate": 5 * learning_rate}
    output = folder / "model"
    return train(splits["train"], dev=splits["dev"], start=model, output=output, **settings)
