"""`python -m benchmarks speed`"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format, Json, write_json
from diffusionner.errors import SettingsError

if TYPE_CHECKING:
    from diffusionner.settings import Settings


def speed(
    data: Annotated[Path, typer.Option("--data", help="Corpus to measure on, in any format.")],
    overrides: Annotated[
        list[str] | None,
        typer.Argument(metavar="KEY=VALUE", help="Settings of the shape and of training."),
    ] = None,
    model: Annotated[
        list[str] | None,
        typer.Option("--model", help=f"{options.MODEL_HELP[:-1]}; may be repeated."),
    ] = None,
    shape: Annotated[
        str | None,
        typer.Option(help="Random weights: bert-large, bert-base, e5-small or minilm."),
    ] = None,
    config: Annotated[
        Path | None, typer.Option(help="Preset whose settings the shape and training have.")
    ] = None,
    format: Format = None,
    steps: Annotated[str, typer.Option(help="Denoising steps γ to try.")] = "1,2,5,10",
    spans: Annotated[
        str, typer.Option(help="Noisy spans K_eval to try.")
    ] = "auto,10,30,60,100,150",
    batch_sizes: Annotated[
        str | None,
        typer.Option(help="Batch sizes to try.  [default: 1,8,32,128; on a GPU 32,128,256,512]"),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(help="bf16, float32 or both.  [default: what the device is used with]"),
    ] = None,
    cuda_graphs: Annotated[
        bool,
        typer.Option(help="On a GPU, launch encoder and steps as a whole, as the package does."),
    ] = True,
    device: options.Device = None,
    repeats: Annotated[int, typer.Option(help="Turns over all measurements.", min=1)] = 5,
    seconds: Annotated[
        float, typer.Option(help="Seconds that one measurement takes at the base.", min=0.05)
    ] = 2.0,
    scaling: Annotated[
        bool, typer.Option("--scaling", help="Also show how cost grows over 100 times the data.")
    ] = False,
    train: Annotated[bool, typer.Option(help="Also measure training.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Under a minute for a small model: fewer, shorter.")
    ] = False,
    json_path: Json = None,
    plots_folder: Annotated[
        Path | None,
        typer.Option("--plots", metavar="FOLDER", help="Also draw it.", show_default=False),
    ] = None,
) -> None:
    """Measure training and inference, with the encoder alone as yardstick.

    From a base (γ = 1, K = 60, batches of 32, or 512 on a GPU) one thing is changed at a time. All
    measurements take turns, so that whatever slows the machine down slows all of them; figures are
    medians. A shape has random weights: its speed is real, its entities are not. The JSON file is
    written after inference, agreement and training, so a run that is stopped leaves what it
    had.

    Examples:

    * `python -m benchmarks speed --model runs/model --data test.jsonl --json bench.json`

    * `python -m benchmarks speed --shape bert-large --data test.jsonl encoder.context=2`
    """
    import torch
    from rich.console import Console

    from benchmarks import plots, report
    from benchmarks.run import Request, run
    from benchmarks.throughput import Axes
    from diffusionner.settings import Settings
    from diffusionner.storage import registry

    gc.freeze()  # as the other commands do
    if model and shape:
        raise SettingsError("--model and --shape exclude each other; run the command twice")
    if device is None:
        device = "cuda" if torch.cuda.is_available() else "cpu"
    on_gpu = device.startswith("cuda")
    folders = [registry.find_model(one) for one in model or ()]
    settings = Settings.load(config, overrides or []) if config else None
    if settings is None:
        settings = _model_settings(folders).override(overrides or [])
    if batch_sizes is None:
        batch_sizes = "32,128,256,512" if on_gpu else "1,8,32,128"
    if quick:
        steps, spans, batch_sizes = "1,5", "auto,60", ""
        repeats, seconds = 2, min(seconds, 0.5)
    request = Request(
        data=data,
        models=tuple(folders),
        shape=shape,
        settings=settings,
        format=format,
        device=device,
        precisions=tuple(_list(precision or "")),
        cuda_graphs=cuda_graphs,
        axes=Axes(
            steps=tuple(_numbers("--steps", steps)),
            spans=tuple(one if one == "auto" else _number("--spans", one) for one in _list(spans)),
            batch_sizes=tuple(_numbers("--batch-sizes", batch_sizes)),
            base_steps=1,
            base_spans=60,
            base_batch_size=512 if on_gpu else 32,
        ),
        repeats=repeats,
        seconds=seconds,
        train=train,
        checked=40 if quick else 200,
        scaling=scaling,
    )
    if plots_folder is not None:
        plots.check(plots_folder)

    def save(record: dict[str, Any]) -> None:
        if json_path is not None:
            write_json(json_path, record)

    with options.progress() as tell:
        record = run(request, tell, save)
    report.show(record, Console())
    if plots_folder is not None:
        plots.draw(record, plots_folder)
    if wrong := [one for one in record["agreement"] if not one["holds"]]:
        names = ", ".join(f"{one['subject']} at γ = {one['steps']}" for one in wrong)
        Console(stderr=True).print(
            f"[bold red]error:[/] in float32 the fast path finds other entities than the plain "
            f"one ({names}); its speed means nothing until that is mended",
            soft_wrap=True,
        )
        raise typer.Exit(1)


def _model_settings(models: list[Path]) -> Settings:
    """Those that the first model was trained with; without one, the paper's."""
    from diffusionner.settings import Settings
    from diffusionner.storage.config import read_config

    if not models:
        return Settings()
    return Settings.from_dict(read_config(models[0])["settings"], str(models[0]))


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(f"{option}: '{text}' is no number from 1; write them as 1,2,5")
    return int(text)


def _numbers(option: str, text: str) -> list[int]:
    return [_number(option, part) for part in _list(text)]
