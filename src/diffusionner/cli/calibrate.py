"""`diffusionner calibrate`"""

from __future__ import annotations

import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format
from diffusionner.cli.options import say
from diffusionner.files import bytes_writer, refuse_overwrite, write_all_or_none
from diffusionner.storage import registry

if TYPE_CHECKING:
    from diffusionner.storage.calibration import Calibration


def calibrate(
    output: Annotated[Path, typer.Argument(help="Output folder.")],
    data: Annotated[Path | None, typer.Option("--data", help="Labelled corpus to fit on.")] = None,
    scores_of: Annotated[
        str | None, typer.Option("--scores-of", help="Copy the calibration of this model instead.")
    ] = None,
    model: options.Model = registry.DEFAULT,
    format: Format = None,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Recalibrate a model's scores and thresholds on text like yours.

    Training calibrates on its dev corpus. On other text, the same model may be correct more or less
    often than its scores say. A few hundred labelled sentences fix that; no weights change.
    A model trained on all data, including dev, has nothing left to calibrate on: it can take the
    calibration of a model that was trained in the same way without dev.

    Examples:

    - `diffusionner calibrate runs/mine --model runs/model --data dev.jsonl`
    - `diffusionner calibrate runs/mine --model runs/all --scores-of runs/without-dev`
    """
    if (data is None) == (scores_of is None):
        raise typer.BadParameter("give either --data or --scores-of")
    sources = [registry.find_model(one) for one in (model, scores_of) if one is not None]
    refuse_overwrite(output, *sources)
    if data is None:
        calibration = _copied(sources[1], sources[0])
    else:
        calibration = _fitted(output, data, model, format, device)
    _write(output, sources[0], calibration)
    for label, threshold in calibration.thresholds.items():
        typer.echo(f"  {label}: threshold {threshold:.2f}")
    if calibration.gapped is not None and calibration.gapped.threshold is not None:
        typer.echo(f"  discontinuous entities: threshold {calibration.gapped.threshold:.2f}")


def _copied(source: Path, target: Path) -> Calibration:
    from diffusionner.errors import CheckpointError
    from diffusionner.storage.calibration import load_calibration
    from diffusionner.storage.config import read_config

    calibration = load_calibration(source)
    if calibration is None:
        raise CheckpointError(f"{source} is not calibrated; calibrate with --data")
    if read_config(source)["labels"] != read_config(target)["labels"]:
        raise CheckpointError(f"{source} has different labels than {target}; calibrate with --data")
    return calibration


def _fitted(
    output: Path, data: Path, model: str, format: str | None, device: str | None
) -> Calibration:
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.evaluation.model import fit_scores
    from diffusionner.inference.calibration import expected_calibration_error, outcomes

    sentences = formats.read(data, format)
    ner = options.load_model(model, device)
    with Console(stderr=True).status("predicting"):
        fitted, found = fit_scores(ner, sentences, str(data))
    calibration = fitted.calibration
    assert calibration is not None
    candidates = outcomes(sentences, found, ner.labels_of(sentences))
    before, after = (
        expected_calibration_error(
            candidates.scored_by(one.score_rule(one.settings.inference)), candidates.right
        )
        for one in (ner, fitted)
    )
    say(
        Console(),
        f"{output}: expected calibration error of all candidates on {data}: {before:.3f} before, "
        f"{after:.3f} after",
    )
    return calibration


def _write(output: Path, source: Path, calibration: Calibration) -> None:
    """Copy the model with a new calibration; its weights stay as stored."""
    from diffusionner.storage.config import (
        CARD,
        TEST_SCORES,
        config_bytes,
        model_files,
        read_config,
    )

    config = read_config(source)
    config["calibration"] = calibration.to_dict()
    config["settings"]["inference"] |= {"threshold": None, "phi": None}
    # The card and the test scores describe the old calibration.
    names = {file.name for file in model_files(source)} - {"config.json", CARD, TEST_SCORES}
    copies = {output / name: partial(shutil.copyfile, source / name) for name in sorted(names)}
    write_all_or_none({**copies, output / "config.json": bytes_writer(config_bytes(config))})
