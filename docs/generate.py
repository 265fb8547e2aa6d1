"""Generate the reference pages from the code when the site is built.

mkdocs calls `on_files`. To see a page without mkdocs, run for example
`python docs/generate.py reference/cli.md`.
"""

from __future__ import annotations

import dataclasses
import inspect
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from typer.main import get_command

from diffusionner import formats, settings
from diffusionner.cli import app

ROOT = Path(__file__).resolve().parents[1]


def cli_page() -> str:
    """Return the reference of all commands, from the typer app."""
    lines = ["# Command line", "", "`python -m diffusionner` is the same as `diffusionner`.", ""]
    for path, command in _commands(get_command(app), "diffusionner"):
        lines += [f"## {path}", "", inspect.cleandoc(command.help or ""), ""]
        context = command.make_context(path, [], resilient_parsing=True)
        usage = " ".join(command.collect_usage_pieces(context))
        lines += ["```text", f"{path} {usage}", "```", ""]
        arguments = [p for p in command.params if p.param_type_name == "argument"]
        lines += _table(
            ["argument", "meaning"],
            [[f"`{p.metavar or p.name}`", _escape(p.help or "")] for p in arguments],
        )
        options = [p for p in command.params if p.param_type_name == "option" and not p.hidden]
        rows = [[_flags(p), _default(p), _escape(p.help or "")] for p in options]
        lines += _table(["option", "default", "meaning"], rows)
    return "\n".join(lines)


def _commands(command: Any, path: str) -> Iterator[tuple[str, Any]]:
    """Yield all commands below a group, with their full names."""
    if not hasattr(command, "commands"):
        yield path, command
        return
    for name, inner in command.commands.items():
        yield from _commands(inner, f"{path} {name}")


def _flags(option: Any) -> str:
    return ", ".join(f"`{flag}`" for flag in [*option.opts, *option.secondary_opts])


def _default(option: Any) -> str:
    if option.required:
        return "required"
    if option.default in (None, False) or callable(option.default):
        return ""
    return f"`{option.default}`"


def settings_page() -> str:
    """Return the reference of all settings, from their dataclasses."""
    lines = [
        "# Settings",
        "",
        "Every setting can stand in a YAML file, as `section.key=value` on the command line of "
        "`diffusionner train`, and as an argument of `train()`: `epochs=5` for those of section "
        '`training`, `inference={"overlap": "flat"}` for others. The settings of a trained model '
        "are stored in its `config.json`. `diffusionner settings` prints this list.",
        "",
    ]
    described = settings.describe()
    sections = {f.name: f for f in dataclasses.fields(settings.Settings)}
    for section in sections:
        rows = [row for row in described if row[0].rpartition(".")[0] == section]
        kind = settings.SECTIONS.get(section)
        if kind is None:
            rows, text = [row for row in described if row[0] == section], ""
        else:
            text = inspect.cleandoc(kind.__doc__ or "")
        lines += [f"## {section}", "", text, ""]
        cells = [
            [f"`{name}`", _escape(allowed), f"`{_yaml(default)}`", _escape(meaning)]
            for name, allowed, default, meaning in rows
        ]
        lines += _table(["setting", "values", "default", "meaning"], cells)
    return "\n".join(lines)


def _yaml(value: Any) -> str:
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def formats_page() -> str:
    """Return the reference of all corpus formats, from their registry."""
    lines = [
        "# Formats",
        "",
        "Every command that reads a corpus detects the format from the content of the file. "
        "`--format NAME` or `--format NAME:OPTION=VALUE,OPTION=VALUE` overrides the detection. "
        "`diffusionner data formats` prints this list.",
        "",
        "Every format represents words, documents and nested entities.",
        "",
    ]
    rows = []
    for name, format in sorted(formats.FORMATS.items()):
        options = ", ".join(
            f"`{f.name}={_yaml(f.default)}`" for f in dataclasses.fields(format.options)
        )
        written = "yes" if format.write is not None else "no"
        rows.append(
            [
                f"`{name}`",
                _escape(format.summary),
                written,
                _represents(format.capabilities),
                options,
            ]
        )
    return "\n".join(
        lines
        + _table(
            ["format", "description", "written", "also represents", "options and defaults"], rows
        )
    )


def _represents(capabilities: Any) -> str:
    """Return what a format represents besides words, documents and nested entities."""
    parts = [] if capabilities.crossing else ["no crossing entities"]
    parts += ["discontinuous entities"] * capabilities.discontinuous
    parts += ["entities that split words"] * capabilities.irregular
    parts += ["the text"] * capabilities.text + ["annotated types"] * capabilities.types
    return ", ".join(parts)


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ").replace("<", "&lt;")


def _table(head: list[str], rows: list[list[str]]) -> list[str]:
    if not rows:
        return []
    lines = [head, ["---"] * len(head), *rows]
    return [f"| {' | '.join(cell.replace(chr(10), ' ') for cell in line)} |" for line in lines] + [
        ""
    ]


def card_page(name: str) -> str:
    """Return the card of a model that is distributed with the library."""
    text = (ROOT / "models" / name / f"diffusionner_{name}/README.md").read_text(encoding="utf-8")
    _, _, body = text.removeprefix("---\n").partition("\n---\n")  # without the metadata
    return body.lstrip()


def changelog_page() -> str:
    return (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


PAGES: dict[str, Callable[[], str]] = {
    "reference/cli.md": cli_page,
    "reference/settings.md": settings_page,
    "reference/formats.md": formats_page,
    "reference/models/en.md": lambda: card_page("en"),
    "reference/models/bio.md": lambda: card_page("bio"),
    "reference/models/open.md": lambda: card_page("open"),
    "changelog.md": changelog_page,
}


def on_files(files: Any, config: Any) -> Any:
    """Add the generated pages to the site."""
    from mkdocs.structure.files import File

    for name, page in PAGES.items():
        files.append(File.generated(config, name, content=page()))
    return files


if __name__ == "__main__":
    print(PAGES[sys.argv[1]]())
