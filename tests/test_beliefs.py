"""Beliefs of candidates, denoised over documents."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch
from services import running

from diffusionner import DiffusionNER, Sentence, Span
from diffusionner.diffusion import BeliefDenoiser, Schedule, beliefs
from diffusionner.diffusion.beliefs import (
    INPUTS,
    CandidateSet,
    belief_logits,
    network_inputs,
    relations,
    softmax,
    timestep_inputs,
)
from diffusionner.errors import DataError, SettingsError
from diffusionner.evaluation.significance import Difference
from diffusionner.inference import documents
from diffusionner.inference.documents import (
    BLOCK_WORDS,
    MAX_BLOCK_WORDS,
    BlockCounter,
    group_documents,
    pad_documents,
)
from diffusionner.model.beliefs import BeliefNetwork
from diffusionner.service.worker import Predictor
from diffusionner.settings import Settings
from diffusionner.storage.beliefs import fitted_beliefs
from diffusionner.training import trainer as trainer_module
from diffusionner.training.selection import DevResult
from diffusionner.training.trainer import Trainer
from models import assert_same, by_heart, lively_model, written
from reproduce.belief_fitting import LabelledSet, fit_beliefs

SCHEDULE = Schedule("cosine", 100)
WORDS = "Ada met Charles Babbage in London and Ada wrote to Charles about London".split()


def candidates(spans: list[tuple[int, int, int, str]], logits: np.ndarray) -> CandidateSet:
    """One document; spans are (sentence, left, right, words)."""
    texts = [text.split() for *_, text in spans]
    ids: dict[str, int] = {}
    keys = [
        [ids.setdefault(key, len(ids)) for key in (" ".join(words), words[0], words[-1])]
        for words in texts
    ]
    numbers = np.array([span[:3] for span in spans])
    logits = logits[None].astype(np.float32)
    return CandidateSet(
        logits,
        softmax(logits),
        *numbers.T[:, None],
        *np.array(keys).T[:, None],
        np.ones((1, len(spans)), dtype=bool),
    )


def lively_network() -> BeliefNetwork:
    """Return a network with large residuals."""
    torch.manual_seed(1)
    network = BeliefNetwork()
    with torch.no_grad():
        network.output.weight.normal_(std=0.3)
    return network


@pytest.fixture
def ner(encoder_folder: Path) -> DiffusionNER:
    changes = ("decoder.initializer=types", "decoder.beliefs=true", "inference.start=candidates")
    model = lively_model(encoder_folder, *changes, "inference.spans=auto", "encoder.context=1")
    model.network.beliefs.load_state_dict(lively_network().state_dict())
    return model


def test_relations_of_spans():
    spans = [
        (0, 0, 2, "the New York"),
        (0, 1, 2, "New York"),
        (1, 4, 5, "new York"),
        (9, 0, 0, "It"),
    ]
    spans = [(*numbers, text.lower()) for *numbers, text in spans]
    found = relations(candidates(spans, np.zeros((4, 3))))[0].astype(bool)
    contains, inside, _, _, _, same_right, same_sentence, same_words, last = found[:9]
    assert contains[0, 1] and inside[1, 0] and not contains[1, 0]
    assert same_right[0, 1] and same_sentence[0, 1] and not same_sentence[1, 2]
    assert same_words[1, 2] and same_words[2, 1] and not same_words[0, 2]
    assert last[0, 2] and not last[0, 3]
    near, middle, far = found[-3:]
    assert near[0, 2] and middle[2, 3] and far[0, 3]
    assert not found[:, np.arange(4), np.arange(4)].any()  # not to itself


def test_numpy_computes_what_torch_does():
    network = lively_network()
    random = np.random.default_rng(0)
    spans = [(i // 3, i % 3, i % 3 + i % 2, f"w{i % 4}") for i in range(8)]
    one = candidates(spans, random.normal(size=(8, 3)))
    z = random.normal(size=(1, 8, 3)).astype(np.float32)
    time = timestep_inputs(7, SCHEDULE)
    inputs = network_inputs(one, z, time)
    assert inputs.shape == (1, 8, 2, INPUTS)
    tensors = one.map(torch.from_numpy)
    of_torch = network_inputs(tensors, torch.from_numpy(z), time)
    np.testing.assert_allclose(of_torch.numpy(), inputs, atol=1e-5)
    logits = belief_logits(network.weights(), inputs, one.logits)
    np.testing.assert_allclose(
        network.eval()(of_torch, tensors.logits).detach().numpy(), logits, atol=1e-4
    )


@pytest.mark.parametrize("types", [1, 2, 7])
def test_the_order_of_types_does_not_matter(types: int):
    """One network serves any number of types, in any order."""
    denoiser = BeliefDenoiser(lively_network().weights(), SCHEDULE)
    random = np.random.default_rng(0)
    spans = [(i // 3, i % 3, i % 3 + i % 2, f"w{i % 4}") for i in range(8)]
    logits = random.normal(size=(8, types + 1))
    logits[:, -1] = 0.0
    order = random.permutation(types)
    plain = denoiser(candidates(spans, logits), 3)
    shuffled = denoiser(candidates(spans, logits[:, [*order, types]]), 3)
    assert np.abs(plain - softmax(logits[None])).max() > 1e-3
    np.testing.assert_allclose(shuffled, plain[..., [*order, types]], atol=1e-6)


def test_an_untrained_network_changes_nothing(encoder_folder: Path):
    changes = ("decoder.initializer=types", "decoder.beliefs=true", "inference.start=candidates")
    model = lively_model(encoder_folder, *changes)
    alone = model.predict_tokens([WORDS], steps=0)
    assert alone[0]
    for steps in (1, 5):
        assert_same(model.predict_tokens([WORDS], steps=steps), alone)


def test_learns_from_other_mentions():
    """Half of the mentions of a name are unclear; the clear ones tell their type."""
    random = np.random.default_rng(0)

    def document() -> LabelledSet:
        kinds = random.integers(0, 2, 4)
        names = random.integers(0, 4, 12)
        clear = random.random(12) < 0.6
        logits = np.zeros((12, 3))
        logits[np.arange(12), kinds[names]] = 5.0 * clear
        logits[:, 2] = -5.0
        spans = [(i, 0, 0, f"name{name}") for i, name in enumerate(names)]
        return LabelledSet(candidates(spans, logits), kinds[names][None])

    def accuracy(steps: int) -> float:
        right = [denoiser(one.candidates, steps)[0].argmax(-1) == one.types[0] for one in held_out]
        return float(np.mean(right))

    held_out = [document() for _ in range(50)]
    denoiser = BeliefDenoiser(BeliefNetwork().weights(), SCHEDULE)
    before = accuracy(1)
    network = fit_beliefs([document() for _ in range(300)], SCHEDULE, seed=0)
    denoiser = BeliefDenoiser(network.weights(), SCHEDULE)
    assert before < 0.85
    assert accuracy(1) > before + 0.08
    assert accuracy(5) > before + 0.08


def test_padding_does_not_matter():
    denoiser = BeliefDenoiser(lively_network().weights(), SCHEDULE)
    random = np.random.default_rng(0)
    sets = [
        candidates([(i, 0, i, f"w{i % 2}") for i in range(n)], random.normal(size=(n, 3)))
        for n in (2, 5, 1)
    ]
    padded = pad_documents(sets)
    together = denoiser(padded, 3)
    for row, one in enumerate(sets):
        count = one.left.shape[1]
        np.testing.assert_allclose(together[row, :count], denoiser(one, 3)[0], atol=1e-5)
    assert group_documents([2, 5, 1], 10, 100) == [[2, 0], [1]]
    assert group_documents([2, 2, 2, 2], 100, 6) == [[0, 1, 2], [3]]
    assert group_documents([9, 9], 10, 6, 4) == [[0], [1]]


def test_a_document_is_the_same_in_any_batch(ner: DiffusionNER):
    first = [WORDS, WORDS[:5], "London is where Ada met him".split()]
    second = ["Charles Babbage lived in London".split(), WORDS[4:]]
    alone = ner.predict_tokens(first, docs=["a"] * 3) + ner.predict_tokens(second, docs=["b"] * 2)
    assert sum(map(len, alone)) > 5
    for size in (1, 2, 32):
        together = ner.predict_tokens(first + second, docs=list("aaabb"), batch_size=size)
        assert_same(together, alone)
    corpus = [Sentence(words, doc=doc) for words, doc in zip(first + second, "aaabb", strict=True)]
    found = ner.predict_sentences(corpus)
    assert [len(spans) for spans in found] == [len(entities) for entities in alone]


def test_a_mention_depends_on_the_rest_of_its_document(ner: DiffusionNER):
    sentences = ["Ada left".split(), *[["Nothing", "else"]] * 5, "Ada wrote to Ada".split()]
    of_document = ner.predict_tokens(sentences, docs=["a"] * 7)
    apart = ner.predict_tokens(sentences, docs=[None] * 7)
    scores, alone = ([e.score for e in found[0]] for found in (of_document, apart))
    assert scores and scores != pytest.approx(alone, abs=1e-6)


def test_a_stream_does_not_divide_blocks(ner: DiffusionNER):
    """The first chunk of a stream has one sentence, the document many."""
    sentences = [WORDS[i % 3 : i % 3 + 6] for i in range(40)]
    docs = ["a"] * 35 + ["b"] * 5
    whole = ner.predict_tokens(sentences, docs=docs, batch_size=64)
    assert_same(ner.predict_tokens(sentences, docs=docs, batch_size=1), whole)


def test_empty_items_do_not_divide_blocks(ner: DiffusionNER):
    sentences = [[] if i % 4 == 3 else WORDS[i % 3 : i % 3 + 6] for i in range(24)]
    whole = ner.predict_tokens(sentences, docs=["a"] * 24, batch_size=64)
    assert_same(ner.predict_tokens(sentences, docs=["a"] * 24, batch_size=1), whole)


def test_rows_at_a_time_give_the_same(monkeypatch: pytest.MonkeyPatch):
    spans = [(i // 3, i % 3, i % 3, f"w{i % 2}") for i in range(7)]
    one = candidates(spans, np.random.default_rng(0).normal(size=(7, 3)))
    time = timestep_inputs(7, SCHEDULE)
    expected = network_inputs(one, one.start, time)
    monkeypatch.setattr(beliefs, "MAX_PAIRS", 15)
    np.testing.assert_allclose(network_inputs(one, one.start, time), expected, atol=1e-6)


def test_of_too_many_candidates_the_likeliest_are_denoised(
    ner: DiffusionNER, monkeypatch: pytest.MonkeyPatch
):
    every, alone = (ner.predict_tokens([WORDS] * 3, ["a"] * 3, steps=steps) for steps in (1, 0))
    monkeypatch.setattr(documents, "MAX_CANDIDATES", 2)
    few = ner.predict_tokens([WORDS] * 3, ["a"] * 3)
    assert [len(found) for found in few] == [len(found) for found in alone]
    scores = [[e.score for found in each for e in found] for each in (few, alone, every)]
    changed = np.abs(np.subtract(scores[0], scores[1])) > 1e-6
    assert 1 <= changed.sum() <= 2 and scores[0] != scores[2]


def test_blocks_of_a_document():
    counter = BlockCounter()
    assert [counter.add(doc, 10) for doc in ("a", "a", "b", None, None, "b")] == [0, 0, 1, 2, 3, 4]
    counter = BlockCounter()
    assert counter.add("a", BLOCK_WORDS) == 0
    assert counter.add("a", MAX_BLOCK_WORDS - BLOCK_WORDS, starts_item=False) == 0
    assert counter.add("a", 1, starts_item=False) == 1
    assert [counter.add("a", BLOCK_WORDS), counter.add("a", 1)] == [1, 2]


def test_from_noise_and_given_spans(ner: DiffusionNER):
    assert ner.predict_tokens([WORDS], start="noise", steps=3)[0]
    result = ner.refine(WORDS, [(0, 1), (2, 4)], only=True)
    assert len(result.outcomes) == 2
    assert "dropped" not in {outcome.change for outcome in result.outcomes}  # all pass here


def test_the_label_of_a_given_span_is_believed(ner: DiffusionNER):
    """Beliefs that are given change the scores, the less so the lower their score."""

    def score(*span: object) -> float:
        entities = ner.refine(WORDS, [span], only=True, overlap="all").entities
        return next(e.score for e in entities if (e.start, e.end) == (2, 4))

    plain = score(2, 4)
    believed = [score(2, 4, "GPE", certainty) for certainty in (1.0, 0.5, 0.0)]
    assert abs(believed[0] - plain) > 1e-3
    assert believed[1] != pytest.approx(believed[0], abs=1e-4)
    assert believed[2] == pytest.approx(plain, abs=1e-6)
    assert score(2, 4, "GPE") == pytest.approx(believed[0])


@pytest.mark.parametrize("score", [float("nan"), "high", [1], 10**400, True])
def test_a_score_that_is_no_number(ner: DiffusionNER, score: object):
    with pytest.raises(DataError, match="span 0: the score must be a finite number"):
        ner.refine(WORDS, [(0, 1, "PER", score)])


def test_saved_with_the_model(ner: DiffusionNER, tmp_path: Path):
    ner.save_pretrained(tmp_path / "model")
    loaded = DiffusionNER.from_pretrained(tmp_path / "model", device="cpu")
    assert_same(loaded.predict_tokens([WORDS]), ner.predict_tokens([WORDS]))


def test_needs_an_initializer_of_types(encoder_folder: Path):
    with pytest.raises(SettingsError, match=r"decoder\.beliefs needs decoder\.initializer=types"):
        lively_model(encoder_folder, "decoder.initializer=spans", "decoder.beliefs=true")


DOCUMENTS = [
    Sentence(["Ada", "met", "Charles", "Babbage"], [Span(0, 1, "PER"), Span(2, 4, "PER")], "a"),
    Sentence(["London", "is", "large"], [Span(0, 1, "GPE")], "a"),
    Sentence(["Nothing", "happened"], [], "b"),
] * 4


def run_settings(encoder: Path, folder: Path, *changes: str) -> Settings:
    return by_heart(DOCUMENTS, encoder, folder).override(
        ["decoder.initializer=types", "training.epochs=2", "inference.start=candidates",
         "diffusion.spans=8", *changes]
    )  # fmt: skip


@pytest.mark.parametrize(
    ("choice", "f1", "p", "steps"),
    [
        (choice, *case)
        for choice, cases in {
            "decoder.beliefs=true": [(0.01, 0.01, 1), (0.01, 0.2, 1), (-0.01, 0.2, 0), (0, 1, 0)],
            "training.tune_steps=true": [(0.01, 0.01, 1), (0.01, 0.2, 0), (-0.01, 0.01, 0)],
        }.items()
        for case in cases
    ],
)
def test_denoising_has_to_be_better_on_dev(
    encoder_folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys,
    choice: str, f1: float, p: float, steps: int,
):  # fmt: skip
    trainer = Trainer(run_settings(encoder_folder, tmp_path, choice))
    compared: list[tuple[int, int]] = []

    def compare(denoised: DevResult, alone: DevResult, *_: object) -> Difference:
        compared.append((denoised.inference.steps, alone.inference.steps))
        return Difference(f1, (f1, f1), p)

    monkeypatch.setattr(trainer_module, "compare_on_dev", compare)
    trainer.run()
    assert compared == [(1, 0)]
    said = " ".join(capsys.readouterr().err.split())
    assert f"p = {p:.3f}; inference.steps={steps}" in said
    loaded = DiffusionNER.from_pretrained(tmp_path / "run", device="cpu")
    assert loaded.settings.inference.steps == steps
    assert loaded.predict_tokens([["Ada", "met", "Ada"]])
    if choice == "decoder.beliefs=true":
        np.testing.assert_array_equal(loaded.engine.beliefs.weights.output, fitted_beliefs().output)


def test_beliefs_are_added_last(encoder_folder: Path, tmp_path: Path):
    trainer = Trainer(run_settings(encoder_folder, tmp_path, "decoder.beliefs=true"))
    # With several processes, all weights that are trained must take part in the loss.
    assert not any(p.requires_grad for p in trainer.network.beliefs.parameters())
    assert not trainer.network.beliefs.output.weight.any()


def test_beliefs_without_dev(encoder_folder: Path, tmp_path: Path, capsys):
    changes = "decoder.beliefs=true", "data.dev=null", "training.tune_steps=true"
    Trainer(run_settings(encoder_folder, tmp_path, *changes)).run()
    assert "denoising: used unchecked, without dev sentences" in capsys.readouterr().err
    loaded = DiffusionNER.from_pretrained(tmp_path / "run", device="cpu")
    assert loaded.settings.inference.steps == 1
    assert loaded.engine.beliefs.weights.output.any()


@pytest.mark.parametrize(
    "changes",
    [
        ("data.dev=null",),
        ("inference.steps=0",),
        ("inference.start=noise",),
        ("decoder.initializer=spans",),
    ],
)
def test_steps_are_kept_where_there_is_nothing_to_choose(
    encoder_folder: Path, tmp_path: Path, changes: tuple[str, ...]
):
    settings = run_settings(encoder_folder, tmp_path, "training.tune_steps=true", *changes)
    trainer = Trainer(settings)
    assert not trainer.chooses_steps
    assert trainer.settings.inference == settings.inference


def test_the_likeliest_other_type():
    noised = np.array([[0.5, -1.4, -1.6], [-1.2, -1.4, -1.6]], dtype=np.float32)
    expected = np.array([[-1.4, 0.5, 0.5], [-1.4, -1.2, -1.2]], dtype=np.float32)
    np.testing.assert_array_equal(beliefs._likeliest_other(noised), expected)
    of_torch = beliefs._likeliest_other(torch.from_numpy(noised))
    np.testing.assert_array_equal(of_torch.numpy(), expected)
    assert beliefs._likeliest_other(noised[:, :1]).tolist() == [[-1.0], [-1.0]]


def test_the_fitted_network_follows_the_other_mentions():
    """An unclear mention follows the clear ones, whatever their type: the more there are."""
    denoiser = BeliefDenoiser(fitted_beliefs(), SCHEDULE)
    spans = [(i, 0, 0, "Jordan") for i in range(4)]
    unclear = np.array([0.5, 0.4, 0.3, 0.0])
    for type_id in range(3):
        clear = np.full(4, -8.0)
        clear[[type_id, 3]] = 6.0, 0.0
        of_one = denoiser(candidates(spans[:2], np.stack([unclear, clear])), 1)[0, 0]
        of_three = denoiser(candidates(spans, np.stack([unclear, *[clear] * 3])), 1)[0, 0]
        before = softmax(unclear)[type_id]
        assert before + 0.02 < of_one[type_id] < of_three[type_id]


def test_the_service_answers_as_the_library(ner: DiffusionNER):
    """A long text is one block, not cut into parts."""
    text = " ".join(f"{' '.join(WORDS)} again ." for _ in range(12))
    expected = [written(entity) for entity in ner(text)]
    with running(Predictor(ner)) as client:
        answer = client.post("/v1/entities", json={"texts": ["Ada left.", text]}).json()
    found = answer["results"][1]["entities"]
    assert len(found) == len(expected) > 12
    for ours, theirs in zip(found, expected, strict=True):
        assert ours["score"] == pytest.approx(theirs["score"], abs=1e-4)
