"""`diffusionner calibrate`"""

from __future__ import annotations

import json
import shutil
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from diffusionner.cli import options
from diffusionner.cli.data.shared import Format
from diffusionner.files import refuse_overwrite
from diffusionner.storage import registry
from diffusionner.storage.registry import DEFAULT

if TYPE_CHECKING:
    from diffusionner.inference.calibration import Calibration


def calibrate(
    output: Annotated[Path, typer.Argument(help="Folder to write.")],
    data: Annotated[
        Path | None, typer.Option("--data", help="Labelled corpus to fit the scores on.")
    ] = None,
    scores_of: Annotated[
        str | None,
        typer.Option("--scores-of", help="Take over the scores of this model instead."),
    ] = None,
    model: options.Model = DEFAULT,
    format: Format = None,
    device: options.Device = None,
) -> None:
    """Fit scores and their thresholds anew, on text like yours.

    Training does this on its dev corpus. Elsewhere the same model may be right more or less often
    than its scores say; some hundred labelled sentences mend that, and no weight changes.
    A model trained on all there is, dev included, has nothing left to fit scores on: it can take
    those of one that was trained in the same way without dev.

    Examples:

    - `diffusionner calibrate runs/mine --model runs/model --data dev.jsonl`
    - `diffusionner calibrate runs/mine --model runs/all --scores-of runs/without-dev`
    """
    if (data is None) == (scores_of is None):
        raise typer.BadParameter("give either --data or --scores-of")
    refuse_overwrite(
        output, *(registry.find_model(one) for one in (model, scores_of) if one is not None)
    )
    if data is None:
        calibration = _scores_of(str(scores_of), model)
    else:
        calibration = _fitted(output, data, model, format, device)
    _write(output, registry.find_model(model), calibration)
    for label, threshold in calibration.thresholds.items():
        typer.echo(f"  {label}: from {threshold:.2f}")


def _scores_of(other: str, model: str) -> Calibration:
    from diffusionner.errors import CheckpointError
    from diffusionner.inference.calibration import load_calibration
    from diffusionner.storage.config import read_config

    source, target = registry.find_model(other), registry.find_model(model)
    calibration = load_calibration(source)
    if calibration is None:
        raise CheckpointError(f"{other}: no scores were fitted for it; fit some with --data")
    if read_config(source)["labels"] != read_config(target)["labels"]:
        raise CheckpointError(f"{other} has other types than {model}: its scores do not fit")
    return calibration


def _fitted(
    output: Path, data: Path, model: str, format: str | None, device: str | None
) -> Calibration:
    from rich.console import Console

    from diffusionner import formats
    from diffusionner.corpus import check_labels
    from diffusionner.errors import DataError
    from diffusionner.inference.calibration import (
        FEWEST_PER_KNOT,
        expected_calibration_error,
        fit,
        outcomes,
    )

    sentences = formats.read(data, format)
    ner = options.load_model(model, device)
    check_labels(sentences, ner.labels)
    errors = Console(stderr=True)
    with errors.status("predicting"):
        found = ner.find(sentences, phi=0.0)
    calibration = fit(sentences, found, ner.labels)
    if calibration is None:
        raise DataError(
            f"{data}: too little is found there to fit scores on; give a corpus in which the model "
            f"finds at least {2 * FEWEST_PER_KNOT} entities"
        )
    totals, right, _ = outcomes(sentences, found, ner.labels)
    before = expected_calibration_error(ner.judge(ner.settings.inference).scores(totals), right)
    after = expected_calibration_error(calibration.scores(totals), right)
    Console().print(
        f"{output}: expected calibration error on {data}, over all candidates: {before:.3f} before,"
        f" {after:.3f} after",
        highlight=False,
        soft_wrap=True,
    )
    return calibration


def _write(output: Path, source: Path, calibration: Calibration) -> None:
    """The same model with other scores: its weights stay as they are stored."""
    from diffusionner.files import bytes_writer, write_all_or_none
    from diffusionner.storage.config import CARD, TEST_SCORES, model_files, read_config

    config = read_config(source)
    config["calibration"] = calibration.to_dict()
    config["settings"]["inference"] |= {"threshold": None, "phi": None}
    text = json.dumps(config, indent=1, ensure_ascii=False) + "\n"
    # Both tell of the scores before.
    outdated = {CARD, TEST_SCORES}
    others = {file.name for file in model_files(source)} - {"config.json", *outdated}
    copies = {output / name: partial(shutil.copyfile, source / name) for name in sorted(others)}
    write_all_or_none({**copies, output / "config.json": bytes_writer(text.encode())})
