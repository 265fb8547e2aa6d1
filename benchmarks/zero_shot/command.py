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
        Path | None,
        typer.Option("--data", help="Folder of the corpora, with crossner-ai and its like."),
    ] = None,
    trained_on: Annotated[
        Path | None,
        typer.Option(help="Corpus that the model was trained on, to tell seen labels from unseen."),
    ] = None,
    first: Annotated[
        int | None,
        typer.Option(min=1, help="Only the first N sentences of each corpus.  [default: all]"),
    ] = None,
    out: Annotated[Path | None, typer.Option(metavar="FILE", help="Also write JSON.")] = None,
    saved: Annotated[
        Path | None,
        typer.Option(
            "--from", metavar="FILE", help="Measure nothing; show what a run wrote with --out."
        ),
    ] = None,
    card: Annotated[
        Path | None,
        typer.Option(metavar="YAML", help="Also write the model's card, with the texts from here."),
    ] = None,
    passages: Annotated[Path, typer.Option(help="Passages with open types.")] = PASSAGES,
    device: options.Device = None,
) -> None:
    """Measure what a model with open labels finds of types that are only named.

    Scores the test sets of CrossNER's five domains and the held-out passages with the model's own
    settings and threshold: strict F1, calibration, what denoising adds, seen and unseen labels, and
    how much the wording of the labels matters. Then checks that the order of labels does not
    matter, and measures speed by the number of labels. The JSON file is written after every
    corpus, so that an interrupted run leaves its results.

    With `--card`, README.md in the model's folder is written. The YAML file contains what cannot be
    measured, as for `python -m benchmarks card`, but names no corpora;
    `models/open/recipe/card.yaml` is an example.

    Examples:

    * `python -m benchmarks zero-shot runs/open --data $DATA --trained-on open-train.jsonl`

    * `python -m benchmarks zero-shot runs/open --from zero.json --card card.yaml`
    """
    from rich.console import Console

    from benchmarks.card.about import read_texts
    from benchmarks.zero_shot import tables
    from benchmarks.zero_shot.card import command_of, read_record, render
    from diffusionner.files import write_bytes
    from diffusionner.storage import registry
    from diffusionner.storage.config import CARD

    about = None if card is None else read_texts(card)
    if saved is not None:
        if data is not None or out is not None:
            raise SettingsError("--from measures nothing; leave out --data and --out")
        record = read_record(saved)
    elif data is None:
        raise SettingsError("give --data, the folder of the corpora, or --from, a saved record")
    else:
        record = _measure(model, data, trained_on, first, out, passages, device)
    console = Console()
    tables.show(record, console)
    if card is not None and about is not None:
        folder = registry.find_model(model).resolve()
        # A card must not contain paths of this machine.
        name = folder.name if Path(model).is_absolute() else model
        text = render(Path(name).name, name, about, record, command_of(record, name, card))
        write_bytes(folder / CARD, text.encode())
        console.print(f"{folder / CARD}", highlight=False, soft_wrap=True)


def _measure(
    model: str,
    data: Path,
    trained_on: Path | None,
    first: int | None,
    out: Path | None,
    passages: Path,
    device: str | None,
) -> dict[str, Any]:
    """Return the record, which is written to `out` as it grows."""
    import torch

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

        return {**about, **run(ner, corpora, known, device, progress, save)}
