"""`diffusionner train`"""

from __future__ import annotations

import gc
import json
import os
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli.options import Threads, say
from diffusionner.errors import SettingsError
from diffusionner.storage.config import STATE_FILE

if TYPE_CHECKING:
    from diffusionner.training.api import Run


def train(
    arguments: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="CONFIG|KEY=VALUE",
            help="YAML file with the settings, and settings to change, e.g. training.epochs=5.",
            show_default=False,
        ),
    ] = None,
    data: Annotated[
        str | None, typer.Option("--data", metavar="FILE", help="Training corpus, in any format.")
    ] = None,
    dev: Annotated[
        str | None,
        typer.Option(
            metavar="FILE", help="Development corpus.  [default: a tenth of the training corpus]"
        ),
    ] = None,
    start: Annotated[
        str | None,
        typer.Option(
            "--from",
            metavar="MODEL",
            help="Installed model, model folder or pretrained encoder to start from.  "
            "[default: en]",
        ),
    ] = None,
    output: Annotated[
        str | None,
        typer.Option(metavar="FOLDER", help="Output folder.  [default: runs/model]"),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in the output folder.")
    ] = False,
    keep_open: Annotated[
        bool,
        typer.Option("--keep-open", help="Of a model with open labels, keep the labels open."),
    ] = False,
    threads: Threads = None,
) -> None:
    """Train a model on your data.

    Without a config file, epochs, batch size and learning rates follow from the amount of data and
    the device, and are printed. With one, it sets everything; `diffusionner settings` lists all
    settings.

    The best epoch on dev is saved in the output folder, for example for
    `diffusionner predict --model`, with `log.jsonl`, `tensorboard/` and the training state from
    which `--resume` continues, on a CPU to bit-identical weights.

    Examples:

    * `diffusionner train --data train.conll --dev dev.conll --from en --output runs/mine`

    * `diffusionner train --data train.jsonl training.epochs=20 inference.overlap=nested`

    * `diffusionner train configs/litbank-minilm.yaml training.output=runs/a`

    * `accelerate launch -m diffusionner train my.yaml` on several GPUs
    """
    from rich.console import Console

    gc.freeze()  # keeps the garbage collector from scanning the imported modules again and again
    run = _prepare(arguments or [], data, dev, start, output, keep_open)
    quiet = os.environ.get("RANK", "0") != "0"  # only one of several processes prints
    try:
        outcome = run.train(resume)
    except KeyboardInterrupt:
        say(Console(stderr=True, quiet=quiet), _how_to_resume(Path(run.settings.training.output)))
        raise
    console = Console(quiet=quiet)
    if outcome.best_f1 < 0:
        say(console, f"kept the last epoch ({outcome.best_epoch}), because there is no dev set")
    else:
        speed = outcome.sentences_per_second
        say(
            console,
            f"best dev F1 {100 * outcome.best_f1:.2f} in epoch {outcome.best_epoch}; "
            f"{speed:.3g} sentences/s in training",
        )
    if outcome.best_f1 == 0:
        say(
            console,
            "the model finds nothing: train for more epochs, on more sentences, or with --from en, "
            "which reuses a trained model",
        )
    if outcome.test is not None:
        say(console, str(outcome.test))


def _prepare(
    arguments: list[str],
    data: str | None,
    dev: str | None,
    start: str | None,
    output: str | None,
    keep_open: bool,
) -> Run:
    from diffusionner.settings import Settings
    from diffusionner.storage.registry import DEFAULT
    from diffusionner.training.api import Run, prepare
    from diffusionner.training.data import load_data

    config = None if not arguments or "=" in arguments[0] else arguments[0]
    given = {"data.train": data, "data.dev": dev, "training.output": output}
    options = [f"{name}={json.dumps(value)}" for name, value in given.items() if value is not None]
    overrides = [*options, *arguments[config is not None :]]
    if config is None:
        if data is None and not any(one.startswith("data.train=") for one in overrides):
            raise SettingsError("nothing to train on; give --data FILE, or a config file")
        return prepare(start or DEFAULT, overrides, keep_open=keep_open)
    if keep_open:
        raise SettingsError("--keep-open applies to training without a config file; leave one out")
    if start is not None:
        overrides.insert(0, f"encoder.name={json.dumps(start)}")
    settings = Settings.load(config, overrides)
    return Run(settings, load_data(settings), [])


def _how_to_resume(output: Path) -> str:
    if (output / STATE_FILE).exists():
        return f"stopped; run the same command with --resume to continue from the state in {output}"
    return "stopped before the first training state was saved; start again"
