"""The card of a model with open labels, written from a small record."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from benchmarks.card.about import read_texts
from benchmarks.cli import main
from benchmarks.zero_shot.card import NEEDED, command_of, read_record, render
from diffusionner.errors import DataError
from diffusionner.storage import registry
from diffusionner.storage.config import CARD

ROOT = Path(__file__).parents[1]
ABOUT = {
    "description": "Any types",
    "language": "en",
    "license": "mit",
    "tags": ["ner"],
    "datasets": ["mine"],
    "use": "Finding what is named.",
    "limits": "English only.",
    "training": "My own sentences, CC BY 4.0.",
}


def score(f1: float, gold: int = 10) -> dict[str, Any]:
    values = {"precision": f1 + 0.01, "recall": f1 - 0.01, "f1": f1}
    interval = (f1 - 0.05, f1 + 0.05)
    return {**values, "correct": 5, "predicted": 9, "gold": gold, "interval": interval}


def change(f1: float) -> dict[str, Any]:
    return {"f1": f1, "interval": (f1 - 0.02, f1 + 0.02), "p": 0.01}


def corpus(name: str, f1: float, labels: list[dict[str, Any]]) -> dict[str, Any]:
    return {
        "file": f"/home/ada/{name}/test.jsonl",
        "fingerprint": {"sentences": 1234, "entities": 5678, "hash": "0123456789abcdef"},
        "micro": score(f1),
        "calibration": {
            "own_threshold": {"error": 0.125, "entities": 90},
            "candidates": {"error": 0.25, "entities": 120},
        },
        "without_denoising": None,
        "wordings": {},
        "labels": labels,
        "seen": score(f1 + 0.1),
        "unseen": score(f1 - 0.1, gold=7),
    }


def small_record() -> dict[str, Any]:
    """A record of one domain and the passages."""
    wordings = {
        "other": {"text": "place", "f1": 0.31},
        "described": {"text": "location: a place", "f1": 0.32},
    }
    location = {"label": "location", "seen": True, **score(0.6), **wordings}
    ai = corpus("crossner-ai", 0.5, [location])
    ai["wordings"] = {
        "other": {"micro": score(0.45), "difference": change(-0.05)},
        "described": {"micro": score(0.4), "difference": change(-0.1)},
    }
    ai["unseen"] = {**score(0.0, gold=0), "predicted": 0}
    seen = [("ship | boat", True), ("inn", False), ("port", False)]
    passages = [{"label": name, "seen": known, **score(0.7)} for name, known in seen]
    speed = {"median": 1500.4, "low": 1400.0, "high": 1600.0, "values": [1400.0, 1600.0]}
    return {
        "model": "diffusionner_tiny",
        "first": None,
        "trained_on": {"file": "/home/ada/data/train.jsonl", "labels": 1357},
        "settings": {"inference": {"steps": 0, "overlap": "flat"}},
        "threshold": 0.35,
        "device": "cpu",
        "machine": {
            "processor": "Analytical Engine",
            "cores": 2,
            "threads": 2,
            "gpu": None,
            "versions": {"numpy": "2.0"},
            "load": 0.5,
        },
        "corpora": {"ai": ai, "passages": corpus("passages", 0.7, passages)},
        "crossner": {
            "mean": {"f1": 0.5, "interval": (0.48, 0.52)},
            "mean_other": {"f1": 0.45, "interval": (0.43, 0.47)},
            "mean_described": {"f1": 0.4, "interval": (0.38, 0.42)},
            "seen": score(0.6),
            "unseen": {**score(0.0, gold=0), "predicted": 0},
        },
        "label_order": {
            "orders": 10,
            "sentences": 50,
            "labels": 38,
            "entities": 77,
            "identical": True,
        },
        "speed": [
            {
                "labels": 20,
                "frozen": frozen,
                "texts": 40,
                "words": 7783,
                "words_per_second": speed,
                "of_fastest": 1.0,
            }
            for frozen in (False, True)
        ],
    }


@pytest.fixture
def about(tmp_path: Path) -> Path:
    path = tmp_path / "about.yaml"
    path.write_text(yaml.safe_dump(ABOUT))
    return path


def card(about: Path, record: dict[str, Any]) -> str:
    command = command_of(record, "tiny", about)
    return render("tiny", "tiny", read_texts(about), record, command)


# --- The text ---------------------------------------------------------------------------------


def test_every_figure_is_that_of_the_record(about: Path):
    text = card(about, small_record())
    for row in (
        "| ai | 51.00 | 49.00 | 50.00 (45.00 to 55.00) | 0.125 | 1,234 | 5,678 |",
        "| **mean of CrossNER** |  |  | **50.00 (48.00 to 52.00)** |  |  |  |",
        "| passages | 71.00 | 69.00 | 70.00 (65.00 to 75.00) | 0.125 | 1,234 | 5,678 |",
        "| CrossNER, seen | 1 | 10 | 61.00 | 59.00 | 60.00 (55.00 to 65.00) |",
        "| passages, seen | 1 | 10 | 81.00 | 79.00 | 80.00 (75.00 to 85.00) |",
        "| passages, unseen | 2 | 7 | 61.00 | 59.00 | 60.00 (55.00 to 65.00) |",
        "| entities that are found | 0.125 of 90 | 0.125 of 90 |",
        "| candidates with a score of at least 0.05 | 0.250 of 120 | 0.250 of 120 |",
        "| ai | 50.00 | 45.00, -5.00 (-7.00 to -3.00) | 40.00, -10.00 (-12.00 to -8.00) |",
        "| **mean** | **50.00** | **45.00, -5.00** | **40.00, -10.00** |",
        "| location | 10 | 61.00 | 59.00 | 60.00 | 31.00 (place) | 32.00 |",
        "| 20 | 1,500 (1,400 to 1,600) | 1.00 |",
        "| 20, frozen | 1,500 (1,400 to 1,600) | 1.00 |",
    ):
        assert row in text.splitlines(), row
    assert "steps=0, overlap=flat, threshold=0.35." in text
    assert "1,357 labels" in text and "All names of CrossNER were seen" in text
    assert "40 texts with 7,783 words. Analytical Engine, 2 cores; numpy 2.0" in text
    assert "38 labels in 10 random orders, 50 sentences, 77 entities: entities and scores are "
    assert "scores are identical." in text and "stores `steps=0`" in text
    assert "CrossNER, unseen" not in text and "\n\n\n" not in text


def test_texts_and_front_matter(about: Path, tmp_path: Path):
    text = card(about, small_record())
    for said in (ABOUT["use"], ABOUT["limits"], ABOUT["training"], ABOUT["description"]):
        assert f"\n{said}\n" in text
    assert 'from_pretrained("tiny")' in text and "/home/ada" not in text
    (tmp_path / CARD).write_text(text)
    head = registry.front_matter(tmp_path / CARD)
    assert head["f1"] == {"crossner": 50.0, "passages": 70.0}
    assert (head["license"], head["tags"]) == ("mit", ["ner"])


def test_a_model_that_denoises_and_depends_on_the_order(about: Path):
    record = small_record()
    record["settings"]["inference"]["steps"] = 3
    record["label_order"]["identical"] = False
    record["corpora"]["ai"]["without_denoising"] = {
        "micro": score(0.55),
        "difference": change(0.05),
    }
    text = card(about, record)
    assert "|  | steps=3 | steps=0, change |" in text
    assert "| ai | 50.00 | 55.00, +5.00 (3.00 to 7.00) |" in text
    assert "**not identical**" in text and "stores `steps=0`" not in text


def test_without_the_training_corpus(about: Path):
    record = small_record()
    del record["trained_on"], record["crossner"]["seen"], record["crossner"]["unseen"]
    record["first"] = 5
    text = card(about, record)
    assert "seen in training" not in text and "Only the first 5 sentences." in text
    command = "python -m benchmarks zero-shot tiny --data $DATA --first 5 --card about.yaml"
    assert text.endswith(f"```bash\n{command}\n```\n")


def test_the_command_has_no_folders(about: Path):
    assert command_of(small_record(), "tiny", about) == (
        "python -m benchmarks zero-shot tiny --data $DATA --trained-on train.jsonl "
        "--card about.yaml"
    )


# --- Files ------------------------------------------------------------------------------------


def test_a_record_that_cannot_be_used(tmp_path: Path):
    path = tmp_path / "zero.json"
    with pytest.raises(DataError, match="cannot be read"):
        read_record(path)
    path.write_text("{")
    with pytest.raises(DataError, match="cannot be read"):
        read_record(path)
    for content in ([], {"f1": 1}):
        path.write_text(json.dumps(content))
        with pytest.raises(DataError, match=f"lacks {NEEDED[0]}"):
            read_record(path)
    record = small_record()
    del record["speed"]
    path.write_text(json.dumps(record))
    with pytest.raises(DataError, match=r"lacks speed: .*interrupted"):
        read_record(path)


def test_texts_name_no_corpora(about: Path):
    about.write_text(yaml.safe_dump({**ABOUT, "tests": {}}))
    with pytest.raises(DataError, match="missing or unknown: tests"):
        read_texts(about)


def test_the_texts_of_the_provided_model():
    about = read_texts(ROOT / "models/open/recipe/card.yaml")
    assert all(about.texts.values()) and about.corpora == []


# --- The command ------------------------------------------------------------------------------


def test_a_card_from_a_saved_record(cli, about: Path, tmp_path: Path):
    folder, saved = tmp_path / "tiny", tmp_path / "zero.json"
    folder.mkdir()
    saved.write_text(json.dumps(small_record()))
    result = cli("zero-shot", folder, "--from", saved, "--card", about, main=main)
    assert result.status == 0, result.err
    assert (folder / CARD).read_text(encoding="utf-8") == card(about, small_record())
    assert "Zero-shot, strict" in result.out and str(folder / CARD) in result.out


def test_the_tables_alone(cli, tmp_path: Path):
    (tmp_path / "zero.json").write_text(json.dumps(small_record()))
    result = cli("zero-shot", tmp_path, "--from", tmp_path / "zero.json", main=main)
    assert result.status == 0, result.err
    assert "Zero-shot, strict" in result.out and not (tmp_path / CARD).exists()


def test_options_that_exclude_each_other(refused, about: Path, tmp_path: Path):
    saved = tmp_path / "zero.json"
    assert "give --data" in refused("zero-shot", tmp_path, main=main)
    for more in (("--data", tmp_path), ("--out", tmp_path / "new.json")):
        message = refused("zero-shot", tmp_path, "--from", saved, *more, main=main)
        assert "measures nothing" in message
    message = refused("zero-shot", tmp_path, "--from", saved, main=main)
    assert "zero.json cannot be read" in message
