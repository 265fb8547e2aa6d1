"""The command line of `python -m benchmarks`."""

from __future__ import annotations

import typer

import reproduce  # noqa: F401 - registers the rival methods, so that they can be measured
from benchmarks import (
    beliefs,
    compare_spacy,
    convert_large,
    flat_views,
    footprint,
    host_time,
    messy,
    page_screenshots,
    profile_parts,
    refine,
    serve_load,
    service_work,
    speed,
    threads,
    word_limits,
)
from benchmarks.attack import inputs, journals, kills, ray_workers
from benchmarks.attack import models as attacked_models
from benchmarks.attack import serve as attacked_service
from benchmarks.card import command
from benchmarks.zero_shot import command as zero_shot
from benchmarks.zero_shot import few_shot
from diffusionner import cli

app = typer.Typer(
    name="benchmarks",
    cls=cli.Commands,
    no_args_is_help=True,
    rich_markup_mode="markdown",
    pretty_exceptions_show_locals=False,
    add_completion=False,
    help="Measure speed and memory of training, inference, the service and data conversion, score "
    "models with open labels, and attack processes, files and inputs at random.",
)
app.command("speed")(speed.speed)
app.command("profile")(profile_parts.profile_parts)
app.command("host")(host_time.host_time)
app.command("threads")(threads.threads)
app.command("footprint")(footprint.footprint)
app.command("spacy")(compare_spacy.compare_spacy)
app.command("serve")(serve_load.serve_load)
app.command("work")(service_work.service_work)
app.command("convert")(convert_large.convert_large)
app.command("refine")(refine.refine)
app.command("beliefs")(beliefs.beliefs)
app.command("flat")(flat_views.flat_views)
app.command("zero-shot")(zero_shot.zero_shot)
app.command("few-shot")(few_shot.few_shot)
app.command("attack-inputs")(inputs.attack_inputs)
app.command("card")(command.card)
app.command("attack-serve")(attacked_service.attack_serve)
app.command("attack-models")(attacked_models.attack_models)
app.command("messy")(messy.messy)
app.command("word-limits")(word_limits.word_limits)
app.command("screenshots")(page_screenshots.page_screenshots)
app.command("attack-annotate")(kills.attack_annotate)
app.command("attack-training")(kills.attack_training)
app.command("attack-journals")(journals.attack_journals)
app.command("attack-ray")(ray_workers.attack_ray)


def main() -> None:
    cli.run(app)
