"""steps=0: the initializer's candidates as it scores them, without denoising."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch
from services import running
from test_recorded_decoding import with_recordings

from diffusionner import DiffusionNER
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import Sentence
from diffusionner.errors import SettingsError
from diffusionner.inference import onnx_engine
from diffusionner.model.initializer import SpanScores
from diffusionner.service.worker import Predictor
from diffusionner.settings import Settings
from models import LABELS, assert_same, lively_model, spans, written

TEXT = "Ada met the wife of Charles Babbage in London."


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    """A model whose initializer likes some spans."""
    ner = lively_model(
        encoder_folder,
        "decoder.initializer=types",
        "inference.start=candidates",
        "inference.spans=auto",
    )
    with torch.no_grad():
        for weight in ("first_weight", "last_weight"):
            getattr(ner.network.decoder.initializer.types, weight).weight *= 10
        ner.network.decoder.initializer.project.bias[-1] += 3
    return ner


@pytest.fixture(scope="module")
def folder(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder: Path = tmp_path_factory.mktemp("zero") / "model"
    ner.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def words(nested_sentences: list[Sentence]) -> list[list[str]]:
    joined = [word for s in nested_sentences for word in s.words]
    return [joined[:1], joined[3:5], joined[100:250], *(s.words for s in nested_sentences[:6])]


@pytest.fixture
def no_denoising(ner: DiffusionNER) -> Iterator[None]:
    """Fail if the decoder runs."""

    def fail(*_: object) -> None:
        raise AssertionError("the decoder was run")

    hook = ner.network.decoder.register_forward_pre_hook(fail)
    yield
    hook.remove()


def scores_of(ner: DiffusionNER, words: list[str]) -> SpanScores:
    corpus = EncodedCorpus([Sentence(words)], ner.subwords, ner.settings.encoder)
    with torch.no_grad():
        batch = corpus.batch(np.array([0])).map(torch.from_numpy)
        initial = ner.network.prepare(batch).initial
    assert initial is not None
    return initial


def alone(scores: SpanScores, left: int, right: int) -> tuple[str | None, float]:
    """Return the likeliest type of a span, None for no entity, and its probability."""
    logits = [*scores.types[0, left, right].tolist(), 0.0]
    best = int(np.argmax(logits))
    probability = 1 / sum(math.exp(other - logits[best]) for other in logits)
    return [*LABELS, None][best], probability


def test_entities_are_the_initializers(ner, words, no_denoising):
    """Every span that it prefers to no-entity, with the probability of its type."""
    found = 0
    for own in words[3:]:
        scores = scores_of(ner, own)
        every = [(i, j) for i in range(len(own)) for j in range(i, len(own))]
        likely = sorted(every, key=lambda span: -scores.spans[0][span].item())
        expected = {}
        for left, right in likely[:30]:
            label, probability = alone(scores, left, right)
            if label is not None:
                expected[left, right + 1, label] = probability
        (entities,) = ner.predict_tokens([own], steps=0, spans=30)
        assert {(e.start, e.end, e.label) for e in entities} == set(expected)
        for entity in entities:  # without a calibration, the score is a third of the sum
            probability = expected[entity.start, entity.end, entity.label]
            assert entity.score == pytest.approx(probability, abs=1e-5)
        found += len(entities)
        (automatic,) = ner.predict_tokens([own], steps=0)
        assert set(spans(automatic)) <= set(spans(entities))
    assert found > 20


def test_entities_do_not_depend_on_the_batch(ner, words, no_denoising):
    for number in ("auto", 20):
        options = {"steps": 0, "spans": number}
        expected = [ner.predict_tokens([own], **options)[0] for own in words]
        assert sum(map(len, expected)) > len(words)
        for size in (2, 100):
            assert_same(ner.predict_tokens(words, batch_size=size, **options), expected)


def test_given_spans_are_scored_as_they_are(ner, words, no_denoising):
    own = words[3]
    scores = scores_of(ner, own)
    given = [(left, left + width) for left in range(len(own) - 3) for width in (1, 3)]
    entities = ner.refine(own, given, only=True, steps=0).entities
    typed = {span: alone(scores, span[0], span[1] - 1) for span in given}
    expected = {(*span, label) for span, (label, _) in typed.items() if label}
    assert set(spans(entities)) == expected and expected


def test_every_interface_takes_zero_steps(ner, folder, cli, no_denoising, tmp_path):
    expected = ner(TEXT, steps=0)
    assert expected and expected != ner.predict_tokens([TEXT.split()], steps=0)
    assert next(ner.pipe([TEXT], steps=0)) == expected
    result = cli("predict", TEXT, "--model", folder, "--steps", 0, "--output", "-")
    assert result.records[0]["entities"] == [written(e) for e in expected]
    with running(Predictor(ner)) as client:
        answer = client.entities(TEXT, steps=0).json()["results"][0]
        assert [(e["start"], e["end"], e["label"]) for e in answer["entities"]] == spans(expected)
        refused = client.post("/v1/steps", json={"text": TEXT, "steps": 0})
        assert refused.status_code == 422 and "greater than or equal to 1" in refused.text
    (tmp_path / "in.txt").write_text(TEXT)
    files = (tmp_path / "in.txt", tmp_path / "out.jsonl")
    assert cli("annotate", *files, "--model", folder, "--steps", 0).status == 0
    assert json.loads(files[1].read_text())["entities"] == [written(e) for e in expected]


def test_spacy_takes_zero_steps(ner, folder):
    nlp = pytest.importorskip("spacy").blank("en")
    nlp.add_pipe("diffusionner", config={"model": str(folder), "steps": 0})
    doc = nlp(TEXT)
    (own,) = ner.predict_tokens([[token.text for token in doc]], steps=0)
    assert {(s.start, s.end, s.label_) for s in doc.spans["sc"]} == set(spans(own)) != set()


def test_presidio_takes_zero_steps(ner, folder):
    pytest.importorskip("presidio_analyzer")
    from diffusionner.integrations.presidio import DiffusionNERRecognizer

    recognizer = DiffusionNERRecognizer(folder, {label: label for label in LABELS}, steps=0)
    found = {(r.start, r.end, r.entity_type) for r in recognizer.analyze(TEXT, [])}
    assert found == set(spans(ner(TEXT, steps=0)))


def test_the_engine_of_a_gpu(ner, words):
    recorded, _ = with_recordings(ner)
    expected = ner.predict_tokens(words, steps=0)
    for _ in range(2):
        assert_same(recorded.predict_tokens(words, steps=0, batch_size=4), expected)
    options = {"spans": 9, "batch_size": 4}  # recorded, after a run without steps
    assert_same(recorded.predict_tokens(words, **options), ner.predict_tokens(words, **options))


def test_scores_agree_between_torch_and_onnx():
    torch.manual_seed(0)
    types = 3 * torch.randn(2, 7, 7, 3)
    chosen = torch.tensor([[[0, 3], [2, 2], [1, 6]], [[0, 0], [1, 3], [0, 0]]])
    slots = torch.tensor([[True, True, True], [True, True, False]])
    expected = SpanScores(types.logsumexp(-1), types).candidates(chosen, slots)
    found = onnx_engine.read_initializer(types.numpy(), chosen.numpy(), slots.numpy())
    for name, tensor in vars(expected).items():
        array = vars(found)[name]
        if name == "gapped":
            assert tensor is None and array is None
            continue
        assert array.shape == tuple(tensor.shape) and np.allclose(array, tensor.numpy()), name
    assert not found.is_entity[1, 0, 2], "an empty slot"


# What cannot work without steps


@pytest.mark.parametrize(
    ("initializer", "start"), [("spans", "candidates"), ("none", "noise"), ("types", "noise")]
)
def test_settings_that_need_a_step(initializer, start):
    changes = [f"decoder.initializer={initializer}", f"inference.start={start}"]
    message = f"inference.steps=0 needs .*, and these are {initializer} and {start}; use at least"
    with pytest.raises(SettingsError, match=message):
        Settings().override(["inference.steps=0", *changes])
    assert Settings().override(changes)
    assert Settings().override(["inference.steps=0"]).inference.steps == 0


def test_steps_without_any(ner):
    with pytest.raises(SettingsError, match="use at least one step"):
        ner.steps(TEXT, steps=0)
    with pytest.raises(SettingsError, match="use at least one step"):
        ner(TEXT, start="noise", steps=0)
