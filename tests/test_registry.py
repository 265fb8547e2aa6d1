"""Installed models found by name, models on the hub, and `diffusionner models`."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from pathlib import Path

import huggingface_hub
import pytest
import torch

from diffusionner import DiffusionNER, formats
from diffusionner.corpus import Sentence
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.settings import Settings
from diffusionner.storage import registry
from diffusionner.storage.config import CARD as CARD_FILE
from diffusionner.training.trainer import Trainer
from models import lively_model

TEXT = "Ada Lovelace met Charles Babbage in London ."
CARD = """---
language: en
license: mit
description: Names of [all] kinds
f1:
  dev: 71.2
---

# en
About the model.
"""


@pytest.fixture(scope="module")
def made(encoder_folder: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Folder with two tiny models, which differ in their settings."""
    folder = tmp_path_factory.mktemp("models")
    for name, steps in (("bio", 1), ("en", 3)):
        ner = lively_model(encoder_folder, f"inference.steps={steps}")
        ner.save_pretrained(folder / name, precision="int8")
    (folder / "en" / CARD_FILE).write_text(CARD)
    return folder


@pytest.fixture
def models(made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The two models are installed, and the working directory is empty."""
    folders = {name: made / name for name in ("en", "bio")}
    monkeypatch.setattr(registry, "installed_models", lambda: folders)
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return made


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch, made: Path) -> list[tuple[str, list[str]]]:
    """Requests to a hub that has the model `bio` under every name."""
    calls: list[tuple[str, list[str]]] = []

    def download(name: str, allow_patterns: list[str]) -> str:
        calls.append((name, allow_patterns))
        return str(made / "bio")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    return calls


# --- Names and folders ------------------------------------------------------------------------


def install(site: Path, name: str, package: str, code: str = "") -> None:
    """Install a distribution with an entry point as pip would."""
    info = site / f"model_{name}-1.0.dist-info"
    info.mkdir(parents=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: model-{name}\nVersion: 1.0\n")
    (info / "entry_points.txt").write_text(f"[{registry.ENTRY_POINTS}]\n{name} = {package}\n")
    folder = site / package.replace(".", "/")
    folder.mkdir(parents=True)
    for one in (folder, *folder.relative_to(site).parents[:-1]):
        (site / one / "__init__.py").write_text(code)


def test_packages_are_found_without_running_their_code(tmp_path, monkeypatch):
    code = "raise AssertionError('model code must not run')"
    install(tmp_path, "first", "model_first", code)
    install(tmp_path, "nested", "model_parent.nested", code)
    monkeypatch.syspath_prepend(tmp_path)
    found = registry.installed_models()
    assert found["first"] == tmp_path / "model_first"
    assert "nested" not in found  # locating it would import its parent
    assert not {"model_first", "model_parent"} & set(sys.modules)


def test_a_broken_installation_is_ignored(tmp_path, monkeypatch):
    install(tmp_path, "gone", "model_gone")
    shutil.rmtree(tmp_path / "model_gone")
    monkeypatch.syspath_prepend(tmp_path)
    assert "gone" not in registry.installed_models()


def test_the_default_is_listed_first(tmp_path, monkeypatch):
    for name in ("a", "en", "z"):
        install(tmp_path, name, f"model_{name}")
    monkeypatch.syspath_prepend(tmp_path)
    names = list(registry.installed_models())
    assert names[0] == "en" and names == ["en", *sorted(set(names) - {"en"})]


def test_only_a_name_is_resolved(models):
    assert registry.resolve("bio") == models / "bio"
    for other in ("./bio", "user/model", "bio/", str(models / "bio")):
        assert registry.resolve(other) == other
    assert registry.resolve(Path("bio")) == Path("bio")


def test_loading_by_name(models):
    assert DiffusionNER.from_pretrained().settings.inference.steps == 3
    assert DiffusionNER.from_pretrained("en").settings.inference.steps == 3
    bio = DiffusionNER.from_pretrained("bio")
    assert bio.settings.inference.steps == 1
    assert bio(TEXT)


def test_a_folder_of_the_same_name_must_be_named_as_a_folder(models, encoder_folder):
    lively_model(encoder_folder, "inference.steps=7").save_pretrained("en")
    assert DiffusionNER.from_pretrained("en").settings.inference.steps == 3
    for folder in ("./en", Path("en"), Path("en").resolve()):
        assert DiffusionNER.from_pretrained(folder).settings.inference.steps == 7


@pytest.mark.parametrize("name", [None, "en", "bio"])
def test_no_model_installed(models, monkeypatch, asked, name):
    monkeypatch.setattr(registry, "installed_models", dict)
    Path(name or "en").mkdir()  # a folder of that name changes nothing
    with pytest.raises(CheckpointError, match=rf"pip install \./models/{name or 'en'}"):
        DiffusionNER.from_pretrained(name)
    assert not asked


def test_torch_is_not_imported():
    code = (
        "import sys, diffusionner.storage.registry as r; r.installed_models()\n"
        "assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


# --- The hub ----------------------------------------------------------------------------------


@pytest.mark.parametrize("name", ["user/model", "Some-One/model_1.2"])
def test_other_names_are_the_hubs(models, asked, name):
    assert DiffusionNER.from_pretrained(name).settings.inference.steps == 1
    ((found, patterns),) = asked
    assert found == name
    assert set(patterns) == {"*.safetensors", "*.json", "*.txt", "*.onnx"}


@pytest.mark.parametrize(
    "path", ["./model", "../model", "/none/model", "~/model", "runs/model", "a/b/c", "a b", "here"]
)
def test_paths_are_not_sent_to_the_hub(models, asked, path):
    Path("runs").mkdir()
    Path("here").mkdir()
    with pytest.raises(CheckpointError, match=re.escape(f"no model in '{Path(path)}'")):
        DiffusionNER.from_pretrained(path)
    with pytest.raises(CheckpointError, match="no model in 'model'"):
        DiffusionNER.from_pretrained(Path("model"))
    assert not asked


def test_a_hub_out_of_reach(models, monkeypatch, refused):
    def download(name: str, allow_patterns: list[str]) -> str:
        raise ConnectionError("no route\nand more about it")

    monkeypatch.setattr(huggingface_hub, "snapshot_download", download)
    err = refused("predict", "--model", "user/model", "Ada")
    assert "no model 'user/model'" in err and "(installed: en, bio)" in err
    assert "no route" in err and "and more" not in err
    assert "Offline, use an installed model" in err


# --- Commands and training --------------------------------------------------------------------


def test_predict_works_at_once(models, cli):
    for arguments, name in (((), "en"), (("--model", "bio"), "bio")):
        result = cli("predict", *arguments, "--output", "-", TEXT)
        assert result.status == 0, result.err
        expected = DiffusionNER.from_pretrained(models / name)(TEXT)
        assert [e["label"] for e in result.records[0]["entities"]] == [e.label for e in expected]


def test_a_folder_on_the_command_line(models, cli, encoder_folder, monkeypatch):
    lively_model(encoder_folder, "inference.steps=7").save_pretrained("en")
    formats.write("dev.jsonl", [Sentence(TEXT.split())])
    for name, steps in (("./en", 7), ("en", 3)):
        options = ("--data", "dev.jsonl", "--resamples", 2, "--json", "s.json")
        result = cli("evaluate", "--model", name, *options)
        assert result.status == 0, result.err
        found = json.loads(Path("s.json").read_text())
        assert (found["model"], found["inference"]["steps"]) == (name, steps)


def test_calibrate_takes_names(models, cli):
    sentences = [Sentence(["Ada", "met", f"{i}", "."]) for i in range(60)]
    formats.write("dev.jsonl", sentences)
    result = cli("calibrate", "mine", "--model", "bio", "--data", "dev.jsonl")
    assert result.status == 0, result.err
    assert DiffusionNER.from_pretrained("./mine").settings.inference.steps == 1


def test_export_takes_names(models, refused, monkeypatch):
    def export(ner, *_):
        raise SettingsError(f"steps {ner.settings.inference.steps}")

    monkeypatch.setattr("diffusionner.export.export", export)
    formats.write("dev.jsonl", [Sentence(["Ada"])])
    assert "steps 1" in refused("export", "out", "--model", "bio", "--dev", "dev.jsonl")


@pytest.mark.parametrize("as_mapping", [True, False])
def test_training_from_an_installed_model(models, tiny_settings, as_mapping):
    """Weights stored as int8 are unpacked and reused where they fit."""
    values = tiny_settings.to_dict()
    values["encoder"] = {**values["encoder"], "name": "en"} if as_mapping else "en"
    found = Trainer(Settings.from_dict(values), resume=False).network.state_dict()
    expected = DiffusionNER.from_pretrained("en").network.state_dict()
    prefix = "encoder.transformer."
    names = [name for name in expected if name.startswith(prefix)]
    assert names
    if as_mapping:  # the same character and LSTM sizes
        names += [name for name in expected if name.startswith("encoder.lstm")]
        assert any(name.startswith("encoder.lstm") for name in names)
    assert all(torch.equal(found[name], expected[name]) for name in names)


# --- `diffusionner models` --------------------------------------------------------------------


def test_the_table(models, cli):
    result = cli("models")
    assert result.status == 0, result.err
    row = next(line for line in result.out.splitlines() if " en " in line)
    for cell in ("Names of [all] kinds (en)", "FAC, GPE, PER", "dev 71.2", "mit"):
        assert cell in row
    size = sum(file.stat().st_size for file in (models / "en").iterdir())
    assert f"{size / 1e6:.1f}" in row
    for name in ("en", "bio"):
        assert f"{name}: {models / name}\n" in result.out


def test_an_empty_table_says_what_to_install(models, cli, monkeypatch):
    monkeypatch.setattr(registry, "installed_models", dict)
    assert "pip install ./models/en" in cli("models").out
    assert json.loads(cli("models", "--json").out) == []


def test_the_list_as_json(models, cli):
    en, bio = json.loads(cli("models", "--json").out)
    assert en["name"] == "en" and en["f1"] == {"dev": 71.2} and en["license"] == "mit"
    assert en["labels"] == bio["labels"] == ["FAC", "GPE", "PER"]
    assert bio["folder"] == str(models / "bio") and "f1" not in bio


def test_a_card(models, cli, refused):
    assert cli("models", "en").out == CARD
    assert cli("models", models / "en").out == CARD
    assert "no model card for 'bio'" in refused("models", "bio")
    assert "(en, bio)" in refused("models", "nothing")


def test_a_broken_card_is_named(models, tmp_path):
    card = tmp_path / "README.md"
    card.write_text("---\na: [\n---\n")
    with pytest.raises(CheckpointError, match=r"cannot read .*README\.md"):
        registry.front_matter(card)
    card.write_text("no front matter")
    assert registry.front_matter(card) == {}


# --- The provided models ----------------------------------------------------------------------


@pytest.mark.parametrize("name", registry.PROVIDED)
def test_a_provided_model_is_small_and_has_a_card(name, provided):
    folder = provided(name)
    assert (folder / "model.safetensors").stat().st_size <= 45e6
    about = registry.describe(name, folder)
    assert about["license"] and about["description"] and all(f1 > 40 for f1 in about["f1"].values())
    text = (folder / CARD_FILE).read_text(encoding="utf-8")
    for part in ("Intended use", "Limits", "Training data and licences", "Calibration"):
        assert f"## {part}\n" in text


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("en", "Ada Lovelace met Charles Babbage in London.", {("Ada Lovelace", "person")}),
        (
            "bio",
            "The NF-kappa B binding site in the IL-2 promoter is active in human T cells.",
            {
                ("NF-kappa B", "protein"),
                ("NF-kappa B binding site", "DNA"),
                ("IL-2 promoter", "DNA"),
                ("human T cells", "cell_type"),
            },
        ),
        (
            "open",  # without being asked for labels
            "Ada Lovelace met Charles Babbage in London.",
            {("Charles Babbage", "person"), ("London", "city or country")},
        ),
    ],
)
def test_a_provided_model_finds_the_obvious(name, text, expected, provided):
    found = DiffusionNER.from_pretrained(provided(name), "cpu")(text)
    assert expected <= {(entity.text, entity.label) for entity in found}
