"""Every command and Python block of the README runs, each in a folder with small files.

Blocks run as they stand, but for the changes listed in `CHANGES`.
"""

from __future__ import annotations

import json
import re
import shlex
import shutil
import subprocess
import sys
import threading
import urllib.request
from pathlib import Path

import pytest

from diffusionner import formats
from diffusionner.corpus import Sentence

ROOT = Path(__file__).resolve().parents[1]
pytestmark = pytest.mark.skipif(
    not (ROOT / "models/en/pyproject.toml").exists(), reason="a source distribution has no models"
)
README = (ROOT / "README.md").read_text(encoding="utf-8")
# (language, commands, expected output if the README shows it)
BLOCKS = re.findall(
    r"^```(bash|python)\n(.*?)^```\n(?:```text\n(.*?)^```)?", README, re.MULTILINE | re.DOTALL
)

# What is run differently here, and why.
CHANGES = {
    "--output runs/mine": "--output runs/mine training.epochs=1",  # seconds instead of minutes
    'output="runs/mine")': 'output="runs/mine", epochs=1)',
    "export exported --model runs/mine": "export exported --model en",  # trained in another block
    "pip install": "pip install --dry-run --no-deps --no-build-isolation --quiet",  # no network
    "make": "make --dry-run",  # `make test` runs this very test
}
SENTENCES = [
    ("Ada Lovelace wrote to Charles Babbage .", [(0, 2, "person"), (4, 6, "person")]),
    ("Marie Curie moved to Paris .", [(0, 2, "person"), (4, 5, "location")]),
    ("Alan Turing worked in Manchester .", [(0, 2, "person"), (4, 5, "location")]),
    ("Grace Hopper was born in New York .", [(0, 2, "person"), (5, 7, "location")]),
]


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provided) -> Path:
    """A working directory with the files that the README names."""
    provided("en")
    provided("bio")
    provided("open")
    monkeypatch.chdir(tmp_path)
    for name in ("train", "dev", "test"):
        parts = [
            {
                "doc": f"{name} {number}",
                "tokens": [name, *words.split()],  # no sentence is in two of them
                "entities": [
                    {"start": start + 1, "end": end + 1, "label": label}
                    for start, end, label in entities
                ],
            }
            for number, (words, entities) in enumerate(SENTENCES)
        ]
        write_lines(tmp_path / f"{name}.jsonl", parts)
        sentences: list[Sentence] = formats.read(tmp_path / f"{name}.jsonl")
        formats.write(tmp_path / f"{name}.conll", sentences)
    shutil.copy(tmp_path / "test.conll", tmp_path / "predicted.conll")
    texts = [{"text": words} for words, _ in SENTENCES]
    write_lines(tmp_path / "in.jsonl", texts)
    (tmp_path / "news").mkdir()
    write_lines(tmp_path / "news/monday.jsonl", texts)
    return tmp_path


def write_lines(path: Path, records: list[dict]) -> None:
    path.write_text("".join(json.dumps(record) + "\n" for record in records), encoding="utf-8")


def changed(text: str) -> str:
    for old, new in CHANGES.items():
        text = text.replace(old, new)
    return text


def test_the_readme_is_short_and_begins_with_a_picture():
    assert len(README.splitlines()) <= 130
    assert README.splitlines()[2].startswith("![")


@pytest.mark.parametrize(
    "language, block, output",
    BLOCKS,
    ids=[f"{language} {re.sub(r'[^a-z]+', ' ', block)[:40]}" for language, block, _ in BLOCKS],
)
def test_block_runs(language: str, block: str, output: str, folder: Path, cli, capsys):
    block = changed(block)
    if language == "python":
        exec(compile(block, "README.md", "exec"), {})
        assert output in capsys.readouterr().out
        return
    for line in block.splitlines():
        words = shlex.split(line, comments=True)
        if words[:2] == ["diffusionner", "serve"]:
            serves(words[1:])
        elif words[:1] == ["diffusionner"]:
            result = cli(*words[1:])
            assert result.status == 0, f"{line}\n{result.out}\n{result.err}"
        elif words[0] in ("pip", "make"):
            program = [sys.executable, "-m", "pip"] if words[0] == "pip" else ["make"]
            subprocess.run([*program, *words[1:]], cwd=ROOT, check=True, capture_output=True)
        else:
            pytest.fail(f"do not know how to run: {line}")


def serves(arguments: list[str]) -> None:
    """Start the service on a free port, ask it for entities, stop it."""
    command = [sys.executable, "-m", "diffusionner", *arguments, "--port", "0"]
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True)
    watchdog = threading.Timer(120, process.kill)
    watchdog.start()
    try:
        seen = ""
        while "ready" not in seen:
            line = process.stderr.readline()
            assert line, f"the service stopped: {seen}"
            seen += line
        address = re.search(r"http://[\d.]+:\d+", seen)[0]
        threading.Thread(target=process.stderr.read, daemon=True).start()
        body = json.dumps({"texts": ["Ada Lovelace met Charles Babbage in London."]}).encode()
        request = urllib.request.Request(
            f"{address}/v1/entities", body, {"Content-Type": "application/json"}
        )
        with urllib.request.urlopen(request) as answer:
            [result] = json.load(answer)["results"]
        assert {entity["label"] for entity in result["entities"]} == {"person", "city or country"}
    finally:
        process.terminate()
        process.wait(timeout=60)
        watchdog.cancel()
