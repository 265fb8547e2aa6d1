"""`python -m benchmarks zero-shot`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from diffusionner.cli import options
from diffusionner.errors import SettingsError

PASSAGES = Path(__file__).parents[2] / "corpora/open-passages/test"


def zero_shot(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)],
    data: Annotated[
        Path, typer.Option("--data", help="Folder of the corpora, with crossner-ai and its like.")
    ],
    trained_on: Annotated[
        Path | None,
        typer.Option(help="Corpus that the model was trained on, to tell seen labels from unseen."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first N sentences of each corpus.  [default: all]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JSON.")] = None,
    passages: Annotated[Path, typer.Option(help="Passages with open types.")] = PASSAGES,
    device: options.Device = None,
) -> None:
    """Measure what a model with open labels finds of types that are only named.

    Scores the test sets of CrossNER's five domains and the held-out passages with the model's own
    settings and threshold: strict F1, calibration, what denoising adds, seen and unseen labels, and
    how much the wording of the labels matters. Then checks that the order of labels does not
    matter, and measures speed by the number of labels. The JSON file is written after every
    corpus, so that an interrupted run leaves its results.

    Example: `python -m benchmarks zero-shot runs/open --data $DATA --trained-on open-train.jsonl`
    """
    import torch
    from rich.console import Console

    from benchmarks.zero_shot import tables
    from benchmarks.zero_shot.measuring import read_corpora, run, trained_names
    from diffusionner import formats
    from diffusionner.files import check_writable, to_json, write_bytes

    if out is not None:
        check_writable(out)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    about: dict[str, Any] = {"model": Path(model).name, "first": first}
    with options.progress() as progress:
        progress("reading", 0, None)
        corpora = read_corpora(data, passages, first)
        ner = options.load_model(model, device)
        if not ner.is_open:
            raise SettingsError(
                f"the labels of {model} are fixed ({', '.join(ner.labels)}), so it cannot be asked "
                "for others; choose a model with open labels"
            )
        known = None
        if trained_on is not None:
            progress(f"reading {trained_on.name}", 0, None)
            known = trained_names(formats.iterate(trained_on))
            about["trained_on"] = {"file": str(trained_on), "labels": len(known)}

        def save(record: dict[str, Any]) -> None:
            if out is not None:
                write_bytes(out, to_json({**about, **record}))

        record = {**about, **run(ner, corpora, known, device, progress, save)}
    tables.show(record, Console())
