"""`diffusionner train`"""

from __future__ import annotations

import gc
import os
from pathlib import Path
from typing import Annotated

import typer


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
    `--resume` continues from, to bit-identical weights.

    Examples:

    * `diffusionner train configs/litbank-minilm.yaml`

    * `diffusionner train my.yaml data.train=train.conll training.epochs=5 training.output=runs/a`

    * `accelerate launch -m diffusionner train my.yaml` on several GPUs
    """
    from rich.console import Console

    from diffusionner.settings import Settings
    from diffusionner.training.trainer import train as run

    gc.freeze()  # what is imported stays: the collector of cycles need not go through it again
    outcome = run(Settings.load(config, overrides or []), resume)
    console = Console(quiet=os.environ.get("RANK", "0") != "0")  # one of many processes speaks
    console.print(
        f"best dev F1 {100 * outcome.best_f1:.2f} in epoch {outcome.best_epoch}; "
        f"{outcome.sentences_per_second:.0f} sentences/s in training"
        if outcome.best_f1 >= 0
        else f"kept the last epoch ({outcome.best_epoch}): there is no dev set to choose on",
        highlight=False,
    )
    if outcome.test is not None:
        console.print(outcome.test.to_table())
