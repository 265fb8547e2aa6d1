"""`python -m benchmarks card`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli import options


def card(
    model: Annotated[str, typer.Argument(metavar="MODEL", help=options.MODEL_HELP)],
    about: Annotated[Path, typer.Option("--about", help="YAML file, described above.")],
    data: Annotated[
        Path | None,
        typer.Option("--data", help="Folder of the corpora.  [default: that of the YAML file]"),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Of dev or else the first test, for the curves and the speed.  [default: all]",
        ),
    ] = None,
    device: options.Device = None,
) -> None:
    """Measure a model and write its card, README.md in its folder.

    The YAML file has what cannot be measured, as text: `description`, `language`, `license`, `use`,
    `limits` and `training` (data and licences); the lists `tags` and `datasets`; and the corpora:
    under `tests` any by name (`{}` if there are none), and `dev`, unless the model was trained on
    it. All but `dev` must be there; `models/en/recipe/card.yaml` is an example.

    A corpus is a file, `dev: dev.jsonl`, or has a `file`, or the `recipe` of a merged one;
    `last: N` then takes its last sentences, and `labels` says what its labels are for the model:
    others are not counted, neither in gold nor in predictions.

    Example: `python -m benchmarks card runs/model --about card.yaml --data corpora`
    """
    import torch
    from rich.console import Console

    from benchmarks.card.about import read_about
    from benchmarks.card.markdown import render
    from benchmarks.card.measuring import measure
    from diffusionner.files import write_bytes
    from diffusionner.storage import registry
    from diffusionner.storage.config import CARD

    described = read_about(about, data)
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    folder = registry.find_model(model).resolve()
    ner = options.load_model(folder, device)
    ner.settings.need_denoising("a card, with its curves over steps and noise,")
    with options.progress() as tell:
        figures = measure(folder, ner, described, device, sentences, tell)
    # Where things lie is the business of this machine, not of a card.
    name = folder.name if Path(model).is_absolute() else model
    words = ["python -m benchmarks card", name, f"--about {about.name}"]
    words += ["--data $DATA"] if data is not None else []
    words += [f"--sentences {sentences}"] if sentences is not None else []
    settings = ner.settings.inference
    text = render(folder.name, name, described, figures, settings, " ".join(words))
    write_bytes(folder / CARD, text.encode())
    Console().print(f"{folder / CARD}", highlight=False, soft_wrap=True)
