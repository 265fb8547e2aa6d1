"""The Presidio recognizer in Presidio's engine."""

from __future__ import annotations

from pathlib import Path

import pytest

from diffusionner import DiffusionNER
from diffusionner.errors import SettingsError
from models import lively_model

presidio = pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")
from presidio_analyzer.nlp_engine import NoOpNlpEngine  # noqa: E402

from diffusionner.integrations.presidio import DiffusionNERRecognizer  # noqa: E402

TEXT = "A b c d e f g h i j k l m n o p"


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("presidio") / "model"
    ner.save_pretrained(folder)
    return folder


def found(results: list) -> list[tuple[int, int, str]]:
    return sorted((r.start, r.end, r.entity_type) for r in results)


def test_types_are_mapped(ner, model):
    recognizer = DiffusionNERRecognizer(model)
    assert recognizer.supported_entities == ["LOCATION", "PERSON"]
    results = recognizer.analyze(TEXT, [])
    names = {"FAC": "LOCATION", "GPE": "LOCATION", "PER": "PERSON"}
    entities = ner(TEXT)
    assert found(results) == sorted((e.start, e.end, names[e.label]) for e in entities)
    assert {kind for _, _, kind in found(results)} == {"LOCATION", "PERSON"}
    assert [r.score for r in results] == pytest.approx([e.score for e in entities])


def test_requested_entities_only(model):
    recognizer = DiffusionNERRecognizer(model)
    every = found(recognizer.analyze(TEXT, []))
    persons = found(recognizer.analyze(TEXT, ["PERSON", "PHONE_NUMBER"]))
    assert persons and persons == [one for one in every if one[2] == "PERSON"]


def test_in_the_engine(model):
    """Together with a recognizer of Presidio, without a spaCy model."""
    registry = presidio.RecognizerRegistry(supported_languages=["en"])
    registry.add_recognizer(presidio.predefined_recognizers.IpRecognizer())
    registry.add_recognizer(DiffusionNERRecognizer(model, overlap="flat"))
    words = NoOpNlpEngine(models=[{"lang_code": "en", "model_name": "none"}])
    words.load()
    engine = presidio.AnalyzerEngine(registry=registry, nlp_engine=words)
    assert {"PERSON", "LOCATION", "IP_ADDRESS"} <= set(engine.get_supported_entities("en"))
    results = engine.analyze("Ada wrote to 192.168.0.1", "en", return_decision_process=True)
    by_name = {r.recognition_metadata["recognizer_name"]: r for r in results}
    assert by_name["IpRecognizer"].entity_type == "IP_ADDRESS"
    ours = by_name["DiffusionNERRecognizer"]
    assert "by DiffusionNER" in ours.analysis_explanation.textual_explanation
    assert engine.analyze("Ada wrote to 192.168.0.1", "en", entities=["IP_ADDRESS"])


def test_mappings(model):
    recognizer = DiffusionNERRecognizer(model, {"FAC": "BUILDING"}, threshold=0.0)
    assert recognizer.supported_entities == ["BUILDING"]
    assert {r.entity_type for r in recognizer.analyze(TEXT, [])} <= {"BUILDING"}
    with pytest.raises(SettingsError, match=r"no type DNA; .* types: FAC, GPE, PER"):
        DiffusionNERRecognizer(model, {"DNA": "GENE", "FAC": "BUILDING"})
    with pytest.raises(SettingsError, match="treshold"):
        DiffusionNERRecognizer(model, treshold=0.1)


def test_the_types_of_en(provided):
    recognizer = DiffusionNERRecognizer(provided("en"))
    supported = ["DATE_TIME", "LOCATION", "NRP", "ORGANIZATION", "PERSON"]
    assert recognizer.supported_entities == supported
    text = "Ada Lovelace lives in London."
    assert found(recognizer.analyze(text, [])) == [(0, 12, "PERSON"), (22, 28, "LOCATION")]
