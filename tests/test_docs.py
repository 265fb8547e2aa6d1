"""The documentation agrees with the code: commands, options, settings, links, figures."""

from __future__ import annotations

import importlib.util
import re
import shlex
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import yaml
from typer.main import get_command

import benchmarks.cli
import reproduce.cli
from diffusionner import DiffusionNER, __version__, formats
from diffusionner.cli import app
from diffusionner.settings import setting_names
from diffusionner.storage.registry import PROVIDED

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "models/en/pyproject.toml").exists(), reason="a source distribution has no models"
)
SITE = sorted((ROOT / "docs").rglob("*.md"))
NOTES = sorted((ROOT / "notes").glob("*.md"))
PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", ROOT / "examples/README.md", *SITE, *NOTES]
PROGRAMS = {
    "diffusionner": get_command(app),
    "python -m reproduce": get_command(reproduce.cli.app),
    "python -m benchmarks": get_command(benchmarks.cli.app),
}


def name(path: Path) -> str:
    return path.relative_to(ROOT).as_posix()


def blocks(path: Path, language: str) -> list[str]:
    """Return the fenced blocks of a page in a language."""
    text = path.read_text(encoding="utf-8")
    return re.findall(rf"^```{language}\n(.*?)^```", text, re.MULTILINE | re.DOTALL)


def commands(path: Path) -> Iterator[tuple[str, list[str]]]:
    """Yield (program, arguments) of all commands of ours in the shell blocks of a page."""
    for block in blocks(path, "bash"):
        for line in block.replace("\\\n", " ").splitlines():
            for part in re.split(r"[|;]", line.split("  #")[0]):
                words = shlex.split(part, comments=True)
                for program in PROGRAMS:
                    start = program.split()
                    places = [i for i in range(len(words)) if words[i : i + len(start)] == start]
                    if places and not words[0].startswith(("docker", "pip", "#")):
                        yield program, words[places[0] + len(start) :]


def check_command(program: str, arguments: list[str]) -> None:
    command = PROGRAMS[program]
    if program == "python -m reproduce" and arguments[0] not in command.commands:
        arguments = ["run", *arguments]  # `python -m reproduce TABLE` is short for it
    while hasattr(command, "commands"):
        assert arguments[0] in command.commands, f"no command {arguments[0]}"
        command, arguments = command.commands[arguments[0]], arguments[1:]
    known = {flag for p in command.params for flag in [*p.opts, *p.secondary_opts]}
    for argument in arguments:
        if argument.startswith("--"):
            assert argument.split("=")[0] in known, f"no option {argument}"
        elif re.fullmatch(r"[a-z_]+(\.[a-z_]+)?=.*", argument) and command.name in (
            "train",
            "speed",
        ):
            key = argument.split("=")[0]
            assert key in (*setting_names(), "encoder"), f"no setting {key}"


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_commands_exist(path: Path):
    for program, arguments in commands(path):
        check_command(program, arguments)


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_python_compiles(path: Path):
    for block in blocks(path, "python"):
        compile(block, str(path), "exec")


# Python of the other pages needs a network, a GPU, a cluster or minutes of training.
RUNNABLE = "index predict long-texts data spacy presidio gliner".split()


@pytest.mark.parametrize("path", [path for path in SITE if path.stem in RUNNABLE], ids=name)
def test_python_runs(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provided):
    provided("en")
    provided("open")
    monkeypatch.chdir(tmp_path)
    (tmp_path / "corpus.conll").write_text("Ada B-PER\nmet O\nCharles B-PER\n\n", encoding="utf-8")
    names = {"ner": DiffusionNER.from_pretrained("en")}
    for block in blocks(path, "python"):
        exec(compile(block, path.name, "exec"), names)


@pytest.mark.parametrize("path", [*PAGES, ROOT / "CHANGELOG.md", ROOT / "SECURITY.md"], ids=name)
def test_links_resolve(path: Path):
    generated = set(load_generator().PAGES)
    for target in re.findall(r"\]\(([^)\s]+)\)", path.read_text(encoding="utf-8")):
        if target.startswith(("http", "mailto:", "#")):
            continue
        file = (path.parent / target.partition("#")[0]).resolve()
        inside = file.is_relative_to(ROOT / "docs")
        if not (inside and file.relative_to(ROOT / "docs").as_posix() in generated):
            assert file.exists(), target


@pytest.mark.parametrize("path", PAGES, ids=name)
def test_settings_and_files_in_the_text_exist(path: Path):
    sections = {key.partition(".")[0] for key in setting_names() if "." in key}
    for code in re.findall(r"`([^`\n]+)`", path.read_text(encoding="utf-8")):
        key = re.match(r"([a-z]+)\.[a-z_]+(?=$|=|:)", code)
        file = code.endswith((".py", ".json", ".jsonl", ".yaml", ".onnx"))
        if key and key[1] in sections and not file and path not in NOTES:  # notes tell the past
            assert key[0] in setting_names(), code
        if re.fullmatch(r"(configs|examples|models|notes|reproduce|tests)/[\w./*-]+", code):
            assert list(ROOT.glob(code.rstrip("/"))), code
        if re.fullmatch(r"[a-z_]+/[a-z_/]+\.py", code) and not (ROOT / code).exists():
            assert (ROOT / "src/diffusionner" / code).exists(), code


def test_all_gpu_tests_are_in_the_command_of_contributing():
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    listed = set(
        re.findall(r"tests/\w+\.py", text.partition("pytest -m gpu")[2].partition("```")[0])
    )
    marked = {
        name(path)
        for path in (ROOT / "tests").rglob("test_*.py")
        if "mark.gpu" in path.read_text(encoding="utf-8") and path.name != Path(__file__).name
    }
    assert listed == marked


def test_tables_of_results_are_those_of_the_records():
    text = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    for heading, table in (("### Nested corpora", "nested"), ("### Flat corpora", "flat")):
        source = (ROOT / f"reproduce/results/{table}.md").read_text(encoding="utf-8")
        rows = [row for row in text.partition(heading)[2].split("\n\n")[0].splitlines() if row]
        assert len(rows) > 5
        for row in rows:
            assert row in source


def test_figures_of_the_models_are_those_of_their_cards():
    results = (ROOT / "docs/results.md").read_text(encoding="utf-8")
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    for model in PROVIDED:
        card = (ROOT / f"models/{model}/diffusionner_{model}/README.md").read_text(encoding="utf-8")
        scores = yaml.safe_load(card.split("---")[1])["f1"]
        for test, f1 in scores.items():
            if test != "dev":
                assert f"**{f1:.2f}**" in results
        (shown,) = scores.keys() & {"uner_en_ewt", "genia", "crossner"}
        assert f"**{scores[shown]:.2f}**" in readme


def test_version_of_the_citation():
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text(encoding="utf-8"))
    assert citation["version"] == __version__
    assert f"## {__version__}" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")


def load_generator():
    spec = importlib.util.spec_from_file_location("generate", ROOT / "docs/generate.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_reference_pages_are_generated_from_the_code():
    pages = load_generator().PAGES
    cli, settings = pages["reference/cli.md"](), pages["reference/settings.md"]()
    for command in ("train", "predict", "data convert"):
        assert f"## diffusionner {command}\n" in cli
    assert "--threshold" in cli
    for key in setting_names():
        assert f"| `{key}` |" in settings
    for format in formats.FORMATS:
        assert f"| `{format}` |" in pages["reference/formats.md"]()
    for page in pages.values():
        assert page().startswith("# ")


def test_site_builds(tmp_path: Path):
    pytest.importorskip("mkdocstrings")
    pytest.importorskip("material")
    command = [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "-d", str(tmp_path)]
    built = subprocess.run(command, cwd=ROOT, capture_output=True, text=True)
    assert built.returncode == 0, built.stderr
    assert "from_pretrained" in (tmp_path / "reference/api/index.html").read_text(encoding="utf-8")
