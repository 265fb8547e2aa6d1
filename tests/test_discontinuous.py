"""Discontinuous entities: their parts, how they are joined, and models that learn them."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from plain import plain_encoder, plain_inference, plain_settings

from diffusionner import DiffusionNER, evaluate, train
from diffusionner.batching import EncodedCorpus
from diffusionner.corpus import MAX_FRAGMENTS, Discontinuous, Sentence, Span
from diffusionner.errors import SettingsError
from diffusionner.evaluation import score_sentences
from diffusionner.inference.calibration import fit_calibration
from diffusionner.inference.decoding import (
    DEFAULT_PHI,
    DecodedEntity,
    ScoreRule,
    gapped_entities,
    resolve_overlaps,
    to_spans,
)
from diffusionner.inference.fragments import MAX_GAPPED, gapped_candidates
from diffusionner.model.fragments import FragmentScores
from diffusionner.settings import Settings
from diffusionner.storage.calibration import Calibration
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.training.api import prepare
from diffusionner.training.label_sampling import LabelSampler
from diffusionner.training.type_losses import fragment_loss
from diffusionner.word_limits import WordLimits
from models import LABELS, by_heart, everything, lively_model, open_model

SURE = 9.0
TEXT = "Muscle pain and stiffness after two days ."
TWO = Discontinuous(((0, 1), (3, 4)), "GPE")


def entity(*fragments: tuple[int, int], label: str = "GPE") -> Discontinuous:
    return Discontinuous(fragments, label)


def sentences_of(
    *entities: Discontinuous, words: int = 12, spans: Sequence[Span] = ()
) -> list[Sentence]:
    words_of = [f"w{i}" for i in range(words)]
    return [Sentence(words_of, list(spans), discontinuous=list(entities))]


def encoded(sentences: list[Sentence], encoder: Path, **settings) -> EncodedCorpus:
    return EncodedCorpus(sentences, load_tokenizer(encoder, 128), plain_encoder(**settings), LABELS)


def oracle(cells: np.ndarray, words: int) -> np.ndarray:
    """Return the scores [B, M, M, C + 2] of a network that knows the parts: [B, G, 3]."""
    scores = np.full((len(cells), words, words, len(LABELS) + 2), -SURE, dtype=np.float32)
    for row, known in zip(scores, cells, strict=True):
        for grid, first, last in known[known[:, 0] >= 0].tolist():
            row[first, last, grid] = SURE
    return scores


def decode(scores: np.ndarray, corpus: EncodedCorpus) -> list[Discontinuous]:
    found = gapped_candidates(scores)
    chosen = np.arange(len(corpus))
    entities = [e for _, e in gapped_entities(found, corpus.windows, chosen, everything(LABELS))]
    return to_spans(entities, LABELS)


@pytest.mark.parametrize(
    "entities",
    [
        [entity((0, 1), (3, 4))],
        [entity((0, 1), (3, 4)), entity((0, 1), (5, 8))],  # share a fragment
        [entity((0, 1), (6, 7)), entity((2, 3), (6, 7)), entity((4, 5), (6, 7), label="PER")],
        [entity((0, 2), (3, 4), (5, 6))],
        [entity((0, 1), (2, 3), (4, 5), (6, 9)), entity((1, 2), (10, 12), label="FAC")],
    ],
)
def test_parts_are_joined_to_the_entities_they_come_from(
    entities: list[Discontinuous], encoder_folder: Path
):
    whole = [Span(0, 2, "GPE"), Span(3, 4, "PER"), Span(9, 12, "FAC")]  # have parts, too
    sentences = sentences_of(*entities, spans=whole)
    corpus = encoded(sentences, encoder_folder)
    batch = corpus.batch(np.arange(1))
    assert batch.gap_cells is not None
    assert sorted(decode(oracle(batch.gap_cells, 12), corpus)) == sorted(entities)


def test_any_entities_are_found_among_those_their_parts_allow(encoder_folder: Path):
    draw = random.Random(0)
    complete = 0
    for _ in range(200):
        entities = set()
        for _ in range(draw.randint(1, 4)):
            ends = sorted(draw.sample(range(15), 2 * draw.randint(2, MAX_FRAGMENTS)))
            fragments = tuple(zip(ends[::2], ends[1::2], strict=True))
            if all(one[1] < other[0] for one, other in pairwise(fragments)):
                entities.add(Discontinuous(fragments, draw.choice(LABELS)))
        corpus = encoded(sentences_of(*entities, words=15), encoder_folder)
        cells = corpus.batch(np.arange(1)).gap_cells
        if cells is None:
            continue
        found = decode(oracle(cells, 15), corpus)
        # Several types of one envelope cannot be told apart by their parts.
        assert {e.fragments for e in entities} <= {e.fragments for e in found}
        complete += set(found) == entities
    assert complete > 100


def test_entities_with_too_many_fragments_are_not_learned(encoder_folder: Path):
    many = entity(*((i, i + 1) for i in range(0, 2 * MAX_FRAGMENTS + 2, 2)))
    cells = encoded(sentences_of(many, TWO), encoder_folder).batch(np.arange(1)).gap_cells
    assert cells is not None
    alone = encoded(sentences_of(TWO), encoder_folder).batch(np.arange(1)).gap_cells
    assert cells.tolist() == alone.tolist()


def test_alternatives_take_probability_from_each_other():
    """ "leg … pain" and "arm or leg … pain": at most one of them is right."""
    scores = np.full((1, 8, 8, 3), -SURE, dtype=np.float32)
    scores[0, [2, 0], [6, 6], 0] = 2.0, 1.0  # envelopes of "leg" and "arm or leg"
    scores[0, [2, 0, 6], [2, 2, 6], 1] = 2.0  # fragments
    scores[0, 2, 6, 2] = 2.0  # jump
    found = gapped_candidates(scores)
    assert found.fragments[0, 0, :, :2].tolist() == [[[2, 2], [6, 6]], [[0, 2], [6, 6]]]
    two, one = 1 / (1 + np.exp([-2.0, -1.0]))
    better, worse = two, (two**3 * one) ** 0.25
    assert found.probability[0, 0] == pytest.approx([better, worse * (1 - better)], rel=1e-5)
    scores[0, 0, 6, 0] = -SURE
    assert gapped_candidates(scores).probability[0, 0] == pytest.approx([better], rel=1e-5)


def test_scores_that_are_all_alike_end_soon():
    found = gapped_candidates(np.full((1, 100, 100, 3), SURE, dtype=np.float32))
    assert found.probability.shape == (1, 1, MAX_GAPPED)


def test_windows_keep_the_entities_whose_middle_they_own(encoder_folder: Path):
    """A long sentence is read in windows that overlap; each entity is found once."""
    fragments = [((i, i + 1), (i + 3, i + 5)) for i in range(0, 110, 2)]
    sentences = [Sentence(["word"] * 120, discontinuous=[entity(*f) for f in fragments])]
    corpus = encoded(sentences, encoder_folder, max_subwords=100)
    assert len(corpus) > 3
    batch = corpus.batch(np.arange(len(corpus)))
    assert batch.gap_cells is not None
    found = decode(oracle(batch.gap_cells, batch.first.shape[1]), corpus)
    assert len(found) == len(set(found))
    assert set(found) >= set(sentences[0].discontinuous)


def test_without_discontinuous_entities_batches_are_as_before(encoder_folder: Path):
    batch = encoded([Sentence(["a", "b"], [Span(0, 1, "PER")])], encoder_folder).batch(np.arange(1))
    assert batch.gap_cells is None


# --- Loss -----------------------------------------------------------------------------------


def batch_with(entities: list[Discontinuous], encoder: Path, types: tuple[str, ...] | None = None):
    sentences = [replace(s, types=types) for s in sentences_of(*entities)]
    batch = encoded(sentences, encoder).batch(np.arange(1))
    return batch.map(torch.from_numpy)


def test_loss_is_least_for_the_gold_parts(encoder_folder: Path):
    batch = batch_with([TWO], encoder_folder)
    right = torch.from_numpy(oracle(batch.gap_cells.numpy(), 12))
    missed, invented = right.clone(), right.clone()
    missed[0, 0, 3] = -SURE  # the envelope
    invented[0, 5, 8] = SURE
    least = fragment_loss(right, batch)
    assert least < 0.2
    assert fragment_loss(missed, batch) > least + 8
    assert fragment_loss(invented, batch) > least + 8


def test_loss_ignores_types_that_were_not_annotated(encoder_folder: Path):
    batch = batch_with([TWO], encoder_folder, types=("GPE",))
    scores = torch.from_numpy(oracle(batch.gap_cells.numpy(), 12))
    before = fragment_loss(scores, batch)
    scores[0, 5, 8, LABELS.index("PER")] = SURE  # may well be one
    scores[0, 5, 8, -2:] = SURE  # and its parts
    assert fragment_loss(scores, batch) == before
    scores[0, 5, 8, LABELS.index("GPE")] = SURE
    assert fragment_loss(scores, batch) > before + 8


def test_consistency_is_the_divergence_of_the_two_passes(encoder_folder: Path):
    batch = batch_with([TWO], encoder_folder)
    twice = encoded(sentences_of(TWO), encoder_folder).batch(np.arange(1)).doubled()
    scores = torch.randn(2, 12, 12, len(LABELS) + 2)
    plain = fragment_loss(scores, twice.map(torch.from_numpy))
    first, second = scores.unbind()
    assert plain == pytest.approx(float(sum(fragment_loss(s[None], batch) for s in scores)), 1e-5)
    divergence = (first.sigmoid() - second.sigmoid()) * (first - second)
    weighted = fragment_loss(scores, twice.map(torch.from_numpy), consistency=2.0)
    assert float(weighted - plain) == pytest.approx(2 * float(divergence.sum()), 1e-3)


def test_impossible_pairs_have_no_loss():
    scores = FragmentScores(8, 2, 0.0)(torch.randn(1, 4, 8), torch.tensor([[True] * 3 + [False]]))
    possible = scores[0] > -1e3
    assert possible[..., 0].nonzero().tolist() == [[0, 2]]  # an envelope has a word inside
    assert possible[..., 3].nonzero().tolist() == [[0, 2]]  # and so has a jump
    assert possible[..., 2].sum() == 6  # a fragment is any span


def test_sampled_labels_keep_their_parts(encoder_folder: Path):
    """Envelopes of labels that are not asked for are dropped; fragments and jumps stay."""
    tokenizer = load_tokenizer(encoder_folder, 128)
    several = [TWO, entity((5, 6), (8, 9), label="PER")]
    batch = encoded(sentences_of(*several), encoder_folder).batch(np.arange(1))
    sampler, dropped = LabelSampler(LABELS, tokenizer), 0
    for key in range(50):
        sampled = sampler.apply(batch, np.array([key]))
        asked = sampled.annotated_types.shape[1]
        cells = sampled.gap_cells[0]
        parts = cells[cells[:, 0] >= asked]
        assert sorted(parts[:, 1:].tolist()) == [[0, 0], [0, 3], [3, 3], [5, 5], [5, 8], [8, 8]]
        envelopes = cells[(cells[:, 0] >= 0) & (cells[:, 0] < asked)]
        assert len(envelopes) <= 2
        dropped += len(envelopes) < 2
    assert 0 < dropped < 50


# --- Decoding and calibration -----------------------------------------------------------------


def decoded(left: int, right: int, *gaps: tuple[int, int], summed: float = 2.7) -> DecodedEntity:
    return DecodedEntity(left, right, 0, summed, summed / 3, 1, gaps)


def test_overlaps():
    pain, stiffness = decoded(0, 1, summed=2.0), decoded(0, 3, (1, 2), summed=2.9)
    inside, apart = decoded(1, 1, summed=2.5), decoded(5, 6)
    found = [pain, stiffness, inside, apart]
    assert resolve_overlaps(found, "nested") == [stiffness, pain, inside, apart]
    assert resolve_overlaps(found, "all") == [stiffness, pain, inside, apart]
    assert resolve_overlaps([stiffness, inside, apart], "flat") == [stiffness, inside, apart]
    assert resolve_overlaps([stiffness, pain], "flat") == [pain]  # shares "muscle"


def test_spans_of_decoded_entities():
    found = [decoded(0, 1), decoded(0, 3, (1, 2)), decoded(0, 8, (1, 1), (4, 6))]
    assert to_spans(found, LABELS) == [
        Span(0, 2, "FAC"),
        Discontinuous(((0, 1), (3, 4)), "FAC"),
        Discontinuous(((0, 1), (2, 4), (7, 9)), "FAC"),
    ]


def test_discontinuous_entities_have_a_calibration_of_their_own():
    gold, found, draw = [], [], random.Random(0)
    for number in range(400):
        high = draw.random() < 0.5
        is_right = draw.random() < (0.7 if high else 0.2)
        gold.append(
            Sentence(
                ["a"] * 6,
                [Span(0, 2, "FAC")],
                discontinuous=[Discontinuous(((0, 1), (3, 4)), "FAC")] if is_right else [],
            )
        )
        summed = 1.5 + number / 1e4 if high else 0.5 + number / 1e4
        found.append(
            [decoded(0, 1, summed=2.5 + number / 1e4), decoded(0, 3, (1, 2), summed=summed)]
        )
    calibration = fit_calibration(gold, found, LABELS)
    assert calibration is not None and calibration.gapped is not None
    rule = ScoreRule(plain_inference(), LABELS, calibration)
    assert rule.scores(np.array([2.52])) > 0.95
    assert rule.of_gapped.scores(np.array([1.52, 0.52])) == pytest.approx([0.7, 0.2], abs=0.08)
    assert rule.min_sums[0] == 0 and 0.5 < rule.of_gapped.min_sums[0] < 1.55
    # Other types are left out for both.
    only = rule.only(np.array([False, True, True]))
    assert np.isinf([only.min_sums[0], only.of_gapped.min_sums[0]]).all()
    stored = Calibration.from_dict(calibration.to_dict(), LABELS, "here")
    assert stored == calibration


def test_too_few_for_a_calibration_of_their_own():
    """The calibration of the others would give them any score."""
    gold = [Sentence(["a"] * 6, [Span(0, 2, "FAC")]) for _ in range(60)]
    found = [[decoded(0, 1)] for _ in gold]
    found[0].append(decoded(0, 3, (1, 2), summed=0.3))
    calibration = fit_calibration(gold, found, LABELS)
    assert calibration is not None and calibration.gapped is None
    rule = ScoreRule(plain_inference(), LABELS, calibration)
    assert rule.scores(np.array([0.3])) > 0.9 and rule.min_sums[0] == 0
    assert rule.of_gapped.scores(np.array([0.3])) == pytest.approx([0.1])
    assert rule.of_gapped.min_sums[0] == DEFAULT_PHI


def test_windows_have_room_for_both_ends():
    short = sentences_of(entity((0, 1), (3, 4)), words=4)
    long = sentences_of(entity((0, 1), (9, 10)), words=10)
    assert WordLimits.of([*short, *long]).window == 20


# --- Models -----------------------------------------------------------------------------------

SYMPTOMS = ["pain", "ache", "itch", "rash", "burn", "cramp"]
PLACES = ["arm", "leg", "back", "neck", "skin", "knee"]


def coordinations(count: int, seed: int) -> list[Sentence]:
    """Sentences such as "my arm pain and itch got bad", with two entities each."""
    draw, sentences = random.Random(seed), []
    for number in range(count):
        place, (one, other) = draw.choice(PLACES), draw.sample(SYMPTOMS, 2)
        if number % 3 == 0:
            words, gapped = ["my", place, one, "got", "bad"], []
        else:
            words = ["my", place, one, "and", other, "got", "bad"]
            gapped = [Discontinuous(((1, 2), (4, 5)), "symptom")]
        entities = [Span(1, 3, "symptom"), Span(1, 2, "place")]
        sentences.append(Sentence(words, entities, discontinuous=gapped))
    return sentences


def learned(encoder: Path, folder: Path, *changes: str) -> DiffusionNER:
    settings = by_heart(coordinations(24, 0), encoder, folder).override(
        [
            "decoder.initializer=types",
            "inference.start=candidates",
            "inference.spans=auto",
            "inference.steps=0",
            "training.epochs=60",
            "training.evaluate_every=20",
            "diffusion.spans=8",
            *changes,
        ]
    )
    from diffusionner.training.trainer import Trainer

    Trainer(settings).run()
    return DiffusionNER.from_pretrained(settings.training.output)


@pytest.fixture(scope="module")
def ner(still_encoder: Path, tmp_path_factory: pytest.TempPathFactory) -> DiffusionNER:
    return learned(still_encoder, tmp_path_factory.mktemp("gaps"))


def test_training_finds_them_by_itself(ner: DiffusionNER):
    assert ner.finds_discontinuous
    report = evaluate(ner, coordinations(24, 0))
    assert report.micro.f1 > 0.95
    assert report.discontinuous.f1 > 0.9
    (gapped,) = [e for e in ner("my arm pain and itch got bad") if e.gaps]
    assert (gapped.start, gapped.end, gapped.label) == (3, 20, "symptom")
    assert gapped.fragments == ((3, 6), (16, 20))
    assert gapped.text == "arm … itch"
    assert gapped.to_dict()["fragments"] == [[3, 6], [16, 20]]
    (of_words,) = [
        e for e in ner.predict_tokens([["my", "arm", "pain", "and", "itch"]])[0] if e.gaps
    ]
    assert (of_words.fragments, of_words.text) == (((1, 2), (4, 5)), "arm … itch")


def test_a_sentence_gives_the_same_alone_and_in_any_batch(ner: DiffusionNER):
    texts = [" ".join(s.words) for s in coordinations(20, 1)]
    alone = [ner(text) for text in texts]
    assert any(e.gaps for entities in alone for e in entities)
    for size in (1, 3, 20):
        together = list(ner.pipe(texts, batch_size=size))
        assert [[e[:3] + e[4:] for e in one] for one in together] == [
            [e[:3] + e[4:] for e in one] for one in alone
        ]


def test_threshold_and_labels_apply(ner: DiffusionNER):
    text = "my arm pain and itch got bad"
    assert not any(e.gaps for e in ner(text, threshold=1.0))
    assert not any(e.gaps for e in ner(text, labels=["place"]))
    assert any(e.gaps for e in ner(text, labels=["symptom"]))
    assert not any(e.gaps for e in ner(text, overlap="flat"))  # shares "arm" with "arm pain"


def test_saved_models_are_the_same(ner: DiffusionNER, tmp_path: Path):
    ner.save_pretrained(tmp_path / "copy")
    texts = [" ".join(s.words) for s in coordinations(9, 2)]
    copy = DiffusionNER.from_pretrained(tmp_path / "copy")
    assert copy.finds_discontinuous
    assert [list(e) for e in copy.pipe(texts)] == [list(e) for e in ner.pipe(texts)]


def test_refining_only_what_is_given_adds_no_others(ner: DiffusionNER):
    text = "my arm pain and itch got bad"
    both = ner.refine(text, [(3, 11, "symptom")], steps=1)
    assert any(e.gaps for e in both.entities)
    only = ner.refine(text, [(3, 11, "symptom")], only=True, steps=1)
    assert not any(e.gaps for e in only.entities)


def test_without_gaps_in_the_data_nothing_changes(still_encoder: Path, tmp_path: Path):
    plain = [replace(s, discontinuous=[]) for s in coordinations(12, 0)]
    first = train(plain, dev=plain, start=still_encoder, output=tmp_path / "a", epochs=1)
    off = {"discontinuous": False}
    other = train(
        plain, dev=plain, start=still_encoder, output=tmp_path / "b", epochs=1, decoder=off
    )
    assert not first.finds_discontinuous
    weights = [(tmp_path / name / "model.safetensors").read_bytes() for name in "ab"]
    assert weights[0] == weights[1]
    assert "discontinuous" not in (tmp_path / "a" / "config.json").read_text()
    texts = [" ".join(s.words) for s in plain]
    assert [list(e) for e in first.pipe(texts)] == [list(e) for e in other.pipe(texts)]


def test_training_can_ignore_them(still_encoder: Path, tmp_path: Path, capsys):
    gapped = coordinations(12, 0)
    off = {"discontinuous": False}
    ner = train(
        gapped, dev=gapped, start=still_encoder, output=tmp_path / "run", epochs=1, decoder=off
    )
    assert not ner.finds_discontinuous
    assert "8 training entities are discontinuous and are ignored" in capsys.readouterr().err


def test_fine_tuning_follows_the_data(ner: DiffusionNER, tmp_path: Path, capsys):
    plain = [replace(s, discontinuous=[]) for s in coordinations(12, 0)]
    for data, expected in ((coordinations(12, 0), True), (plain, False)):
        tuned = ner.fine_tune(
            data, dev=data, output=tmp_path / str(expected), epochs=1, evaluate_every=1
        )
        assert tuned.finds_discontinuous is expected
        lost = (
            "no discontinuous entities, so none will be found any more" in capsys.readouterr().err
        )
        assert lost is not expected


def test_entities_that_cannot_be_learned_are_counted(still_encoder: Path, tmp_path: Path, capsys):
    many = tuple((i, i + 1) for i in range(0, 10, 2))
    data = coordinations(12, 0)
    data.append(Sentence(["a"] * 10, discontinuous=[Discontinuous(many, "symptom")]))
    train(data, dev=data[:12], start=still_encoder, output=tmp_path / "run", epochs=1)
    said = capsys.readouterr().err
    assert "1 training entities have more than 4 fragments and are ignored" in said


def test_rivals_cannot(tmp_path: Path):
    with pytest.raises(SettingsError, match="method=crf cannot find discontinuous entities"):
        Settings.from_dict({"method": "crf", "decoder": {"discontinuous": True}})


def test_open_labels(still_encoder: Path, tmp_path: Path):
    ner = learned(
        still_encoder, tmp_path, "decoder.types=words", "training.epochs=80", "diffusion.spans=2"
    )
    assert ner.is_open and ner.finds_discontinuous
    text = "my arm pain and itch got bad"
    labels = ["symptom", "place", "date", "person"]
    expected = list(ner(text, labels=labels))
    assert any(e.gaps and e.label == "symptom" for e in expected)
    assert list(ner(text, labels=labels[::-1])) == expected
    many = [*labels, *(f"kind {i}" for i in range(120))]  # read in groups
    ner.for_labels(many)(text)
    lowest = ner(text, labels=many, threshold=0.0)  # each group gives fragments a type
    places = [e.fragments for e in lowest if e.gaps]
    assert len(places) == len(set(places)) > 0
    frozen = ner.freeze(["symptom", "place", "date", "person"])
    assert [e[:3] for e in frozen(text)] == [e[:3] for e in expected]
    assert frozen.finds_discontinuous


def test_plans_of_runs_mention_them(still_encoder: Path, tmp_path: Path):
    run = prepare(str(still_encoder), [f"training.output={tmp_path}"], coordinations(30, 0))
    assert "some entities overlap, some are discontinuous" in run.choices[0]
    assert run.settings.inference.overlap == "nested"


def test_lively_models_find_gaps_without_an_initializer(encoder_folder: Path):
    """The parts are scored from the sentence alone, whatever else the model has."""
    ner = lively_model(encoder_folder, "decoder.discontinuous=true")
    with torch.no_grad():
        ner.network.fragments.pairs.first_weight.bias += 9
        ner.network.fragments.envelopes.first_weight.bias += 9
    entities = ner.predict_tokens([TEXT.split()])[0]
    assert any(e.gaps for e in entities)
    assert any(not e.gaps for e in entities)


def test_random_open_models_are_scored(encoder_folder: Path):
    ner = open_model(encoder_folder, "decoder.discontinuous=true")
    with torch.no_grad():
        ner.network.fragments.pairs.first_weight.bias += 9
        ner.network.fragments.envelopes.factors.bias[-1] = 60
    (found,) = ner.predict_sentences([Sentence(TEXT.split())], labels=LABELS)
    report = score_sentences([Sentence(TEXT.split(), discontinuous=[TWO])], [found])
    gapped = {e for e in found if isinstance(e, Discontinuous)}
    assert report.discontinuous.predicted == len(gapped) > 0
    assert report.micro.predicted == len(set(found))


def test_settings_written_for_older_releases_do_not_mention_it():
    assert "discontinuous" not in plain_settings().to_dict()["decoder"]
    given = plain_settings({"decoder": {"discontinuous": True}}).to_dict()["decoder"]
    assert given["discontinuous"] is True
