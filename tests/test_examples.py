"""The examples run as they stand: scripts and notebooks, with few sentences in training."""

from __future__ import annotations

import json
import runpy
import shutil
from pathlib import Path

import pytest

EXAMPLES = Path(__file__).resolve().parents[1] / "examples"
SCRIPTS = sorted(EXAMPLES.glob("*.py"))
NOTEBOOKS = sorted(EXAMPLES.glob("*.ipynb"))


@pytest.fixture(autouse=True)
def small(monkeypatch: pytest.MonkeyPatch, tmp_path: Path, provided) -> None:
    """Run in an empty folder beside the data, with a few sentences and one epoch."""
    provided("en")
    provided("bio")
    monkeypatch.setenv("EXAMPLE_SENTENCES", "8")
    monkeypatch.setenv("EXAMPLE_EPOCHS", "1")
    shutil.copytree(EXAMPLES / "data", tmp_path / "data")
    monkeypatch.chdir(tmp_path)


@pytest.mark.parametrize("path", SCRIPTS, ids=lambda path: path.stem)
def test_script(path: Path, capsys: pytest.CaptureFixture[str]):
    if path.stem.startswith("spacy"):
        pytest.importorskip("spacy")
    runpy.run_path(str(path), run_name="__main__")
    assert capsys.readouterr().out


@pytest.mark.parametrize("path", NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook(path: Path):
    cells = json.loads(path.read_text(encoding="utf-8"))["cells"]
    names: dict[str, object] = {}
    for number, cell in enumerate(cells):
        if cell["cell_type"] == "code":
            assert not cell["outputs"], "notebooks are stored without outputs"
            exec(compile("".join(cell["source"]), f"{path.name}, cell {number}", "exec"), names)


def test_every_example_is_listed():
    listed = (EXAMPLES / "README.md").read_text(encoding="utf-8")
    for path in [*SCRIPTS, *NOTEBOOKS]:
        assert f"({path.name})" in listed
