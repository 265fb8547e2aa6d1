"""`diffusionner data ...`"""

from __future__ import annotations

import typer

from diffusionner.cli.data import check, convert, formats, merge, split, stats, vary

app = typer.Typer(
    help="Inspect, convert, merge, split, vary and check corpora in any format.",
    no_args_is_help=True,
    rich_markup_mode="markdown",
)
app.command()(stats.stats)
app.command()(convert.convert)
app.command()(merge.merge)
app.command()(split.split)
app.command()(vary.vary)
app.command()(check.check)
app.command()(formats.formats)
