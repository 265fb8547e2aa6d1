"""`diffusionner train`"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli.messages import say
from diffusionner.storage.config import STATE_FILE


def train(
    config: Annotated[Path, typer.Argument(help="YAML file: one file is one experiment.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings to change, e.g. training.epochs=5."),
    ] = None,
    resume: Annotated[
        bool, typer.Option("--resume", help="Continue the run in training.output where it stopped.")
    ] = False,
) -> None:
    """Train a model on your data.

    The config names the data, the encoder and everything else; `diffusionner settings` lists
    every setting with its default. The best epoch on dev ends up in `training.output`, ready for
    `diffusionner predict --model`; beside it are `log.jsonl`, `tensorboard/` and the state that
    `--resume` continues from, on the CPU to bit-identical weights.

    Examples:

    * `diffusionner train configs/litbank-minilm.yaml`

    * `diffusionner train my.yaml data.train=train.conll training.epochs=5 training.output=runs/a`

    * `accelerate launch -m diffusionner train my.yaml` on several GPUs
    """
    from rich.console import Console

    from diffusionner.settings import Settings
    from diffusionner.training.trainer import train as run

    gc.freeze()  # what is imported stays: the collector of cycles need not go through it again
    settings = Settings.load(config, overrides or [])
    quiet = os.environ.get("RANK", "0") != "0"  # one of many processes speaks
    try:
        outcome = run(settings, resume)
    except KeyboardInterrupt:
        say(Console(stderr=True, quiet=quiet), _how_to_go_on(Path(settings.training.output)))
        raise
    console = Console(quiet=quiet)
    console.print(
        f"best dev F1 {100 * outcome.best_f1:.2f} in epoch {outcome.best_epoch}; "
        f"{outcome.sentences_per_second:.0f} sentences/s in training"
        if outcome.best_f1 >= 0
        else f"kept the last epoch ({outcome.best_epoch}): there is no dev set to choose on",
        highlight=False,
    )
    if outcome.best_f1 == 0:
        console.print(
            "nothing was learned: more epochs, more sentences, or encoder=en, which takes over all "
            "of a trained model that fits",
            highlight=False,
        )
    if outcome.test is not None:
        print(outcome.test)


def _how_to_go_on(output: Path) -> str:
    if (output / STATE_FILE).exists():
        return f"stopped; the same command with --resume goes on from the last state in {output}"
    return "stopped before there was a state to go on from; start again"
