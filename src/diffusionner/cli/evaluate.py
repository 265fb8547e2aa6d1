"""`diffusionner evaluate`"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli import options


def evaluate(
    data: Annotated[Path, typer.Option("--data", help="Gold corpus: JSONL or CoNLL columns.")],
    model: options.Model = None,
    steps: options.Steps = None,
    spans: options.Spans = None,
    threshold: options.Threshold = None,
    overlap: options.Overlap = None,
    seed: options.Seed = None,
    batch_size: options.BatchSize = None,
    device: options.Device = None,
    json_path: Annotated[
        Path | None, typer.Option("--json", help="Also write the scores to this file.")
    ] = None,
) -> None:
    """Score a model on a corpus.

    Strict precision, recall and F1 (micro, macro, per type), boundaries alone, types alone, and
    the nested entities apart.

    Example: `diffusionner evaluate --model runs/model --data test.jsonl --steps 5`
    """
    from rich.console import Console
    from rich.progress import Progress

    from diffusionner import formats
    from diffusionner.corpus import check_labels
    from diffusionner.evaluation.scorer import score
    from diffusionner.files import write_bytes

    sentences = formats.read(data)
    ner = options.load_model(model, device)
    check_labels(sentences, ner.labels)
    chosen = options.inference_options(steps, spans, threshold, overlap, seed, batch_size)
    errors = Console(stderr=True)
    with Progress(console=errors, transient=True, disable=not errors.is_terminal) as bar:
        task = bar.add_task("evaluating", total=None)

        def advance(done: int, total: int) -> None:
            bar.update(task, completed=done, total=total)

        predicted = ner.predict_sentences(sentences, progress=advance, **chosen)
    report = score([s.entities for s in sentences], predicted)
    Console().print(report.to_table())
    if json_path is not None:
        settings = ner.settings.with_inference(chosen).to_dict()["inference"]
        result = {"model": str(model), "data": str(data), "inference": settings, **report.to_dict()}
        write_bytes(json_path, (json.dumps(result, indent=1, ensure_ascii=False) + "\n").encode())
