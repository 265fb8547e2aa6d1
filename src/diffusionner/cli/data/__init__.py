"""`diffusionner data ...`"""

from __future__ import annotations

import typer

from diffusionner.cli.data import check, convert, formats, merge, split, stats

app = typer.Typer(
    help="Inspect, convert, merge, split and check corpora in any format.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command()(stats.stats)
app.command()(convert.convert)
app.command()(merge.merge)
app.command()(split.split)
app.command()(check.check)
app.command()(formats.formats)
