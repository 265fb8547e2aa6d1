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
        typer.Option("--data", help="Folder of the corpora.  [default: the YAML file's]"),
    ] = None,
    sentences: Annotated[
        int | None,
        typer.Option(
            min=1,
            help="Number of sentences for the curves and the speed.  [default: all]",
        ),
    ] = None,
    device: options.Device = None,
) -> None:
    """Measure a model and write its card, README.md in its folder.

    The YAML file contains what cannot be measured. Texts: `description`, `language`, `license`,
    `use`, `limits` and `training` (data and licences). Lists: `tags` and `datasets`. Corpora: any
    number by name under `tests` (`{}` if there are none), and `dev`, unless the model was trained
    on it. Only `dev` is optional; `models/en/recipe/card.yaml` is an example.

    A corpus is a file, as in `dev: dev.jsonl`, or a mapping with a `file`, or with the `recipe` of
    a merged corpus. `last: N` takes its last N sentences. `labels` maps its labels to the model's;
    other labels are ignored in gold and in predictions. `map` maps types of the model to labels of
    the corpus, as `diffusionner evaluate --map` does. Curves and speed are measured on `dev`, or
    else on the first test corpus.

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
    ner.settings.require_denoising("a card, with its curves over steps and noise,")
    with options.progress() as progress:
        figures = measure(folder, ner, described, device, sentences, progress)
    # A card must not contain paths of this machine.
    name = folder.name if Path(model).is_absolute() else model
    words = ["python -m benchmarks card", name, f"--about {about.name}"]
    words += ["--data $DATA"] if data is not None else []
    words += [f"--sentences {sentences}"] if sentences is not None else []
    settings = ner.settings.inference
    text = render(Path(name).name, name, described, figures, settings, " ".join(words))
    write_bytes(folder / CARD, text.encode())
    Console().print(f"{folder / CARD}", highlight=False, soft_wrap=True)
