"""`python -m benchmarks speed`"""

from __future__ import annotations

import gc
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format, Json
from diffusionner.errors import SettingsError
from diffusionner.files import to_json, write_bytes

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
        Path | None, typer.Option(help="Preset with the settings of the shape and of training.")
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
        typer.Option(help="bf16, float32 or both.  [default: depends on the device]"),
    ] = None,
    cuda_graphs: Annotated[
        bool,
        typer.Option(help="On a GPU, use CUDA graphs, as the library does."),
    ] = True,
    device: options.Device = None,
    repeats: Annotated[int, typer.Option(help="Repeats of all measurements.", min=1)] = 5,
    seconds: Annotated[
        float,
        typer.Option(
            help="Duration of one measurement of the base configuration, in seconds.", min=0.05
        ),
    ] = 2.0,
    scaling: Annotated[
        bool,
        typer.Option(
            "--scaling", help="Also measure how cost grows with up to 100 times the data."
        ),
    ] = False,
    train: Annotated[bool, typer.Option(help="Also measure training.")] = True,
    quick: Annotated[
        bool, typer.Option("--quick", help="Measure less; under a minute for a small model.")
    ] = False,
    json_path: Json = None,
) -> None:
    """Measure the speed of training and inference, compared with the encoder alone.

    One parameter at a time is varied from a base configuration (γ = 1, K = 60, batches of 32, or
    512 on a GPU). Measurements are interleaved, so that disturbances affect all of them alike;
    figures are medians. A shape has random weights: its speed is real, its entities are not. The
    JSON file is written after inference, agreement and training, so that an interrupted run leaves
    its results.

    Examples:

    * `python -m benchmarks speed --model runs/model --data test.jsonl --json bench.json`

    * `python -m benchmarks speed --shape bert-large --data test.jsonl encoder.context=2`
    """
    import torch
    from rich.console import Console

    from benchmarks import report
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

    def save(record: dict[str, Any]) -> None:
        if json_path is not None:
            write_bytes(json_path, to_json(record))

    with options.progress() as progress:
        record = run(request, progress, save)
    report.show(record, Console())
    if wrong := [one for one in record["agreement"] if not one["holds"]]:
        names = ", ".join(f"{one['subject']} at γ = {one['steps']}" for one in wrong)
        Console(stderr=True).print(
            f"[bold red]error:[/] in float32 the fast path finds other entities than the plain "
            f"network ({names}); its speed is meaningless until that is fixed",
            soft_wrap=True,
        )
        raise typer.Exit(1)


def _model_settings(models: list[Path]) -> Settings:
    """Return the settings of the first model, or the defaults."""
    from diffusionner.settings import Settings
    from diffusionner.storage.config import read_config

    if not models:
        return Settings()
    return Settings.from_dict(read_config(models[0])["settings"], str(models[0]))


def _list(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def _number(option: str, text: str) -> int:
    if not text.isdecimal() or int(text) < 1:
        raise SettingsError(
            f"{option}: '{text}' is not a positive number; write a list such as 1,2,5"
        )
    return int(text)


def _numbers(option: str, text: str) -> list[int]:
    return [_number(option, part) for part in _list(text)]
