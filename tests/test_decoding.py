"""From scores to entities, and the choice of the threshold, against literal definitions."""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Iterable

import numpy as np
import pytest
import torch
from plain import plain_encoder, plain_inference

from diffusionner.batching import Batch, EncodedCorpus, Windows
from diffusionner.corpus import Sentence, Span
from diffusionner.diffusion import Candidates, ReverseStart
from diffusionner.evaluation.scorer import score
from diffusionner.inference.decoding import (
    DecodedEntity,
    EntityColumns,
    choose_spans,
    entities_by_sentence,
    merge_candidates,
    resolve_overlaps,
    to_spans,
)
from diffusionner.inference.stream import PredictionTask, predict
from diffusionner.model.decoder import Prediction, read_out
from diffusionner.model.initializer import SpanScores
from diffusionner.settings import InferenceSettings
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.training.selection import GRID, best_phi
from models import candidates_of, everything

LABELS = ["A", "B", "C"]


def entity(left: int, right: int, type_id: int, summed: float) -> DecodedEntity:
    return DecodedEntity(left, right, type_id, summed, 0.0, 1)


def passing(entities: list[DecodedEntity], phi: float) -> list[DecodedEntity]:
    return [one for one in entities if one.summed_probability >= phi]


# Reading out


def pointing(spans: list[tuple[int, int, int]], words: int = 6, types: int = 2) -> Prediction:
    """Return the prediction of one sentence that singles out (left, right, type) in each slot."""
    left, right = torch.full((1, 1, len(spans), words), -4.0), torch.zeros(1, 1, len(spans), words)
    logits = torch.zeros(1, 1, len(spans), types + 1)
    for slot, (first, last, type_id) in enumerate(spans):
        left[0, 0, slot, first] = 1.0
        right[0, 0, slot, last] = 2.0
        logits[0, 0, slot, type_id] = 3.0
    noisy = torch.arange(2 * len(spans)).view(1, 1, -1, 2)
    return Prediction(left, right, logits, noisy)


# The probabilities of what `pointing` singles out.
BOUNDARIES = 1 / (1 + np.exp(-1)) + 1 / (1 + np.exp(-2))
TYPES = np.array([np.exp(3), 1, 1]) / (np.exp(3) + 2)  # the likeliest and the others


def read_all(prediction: Prediction, initial: SpanScores | None = None) -> Candidates[torch.Tensor]:
    """Read out a prediction whose slots are all in use."""
    slots = torch.ones(prediction.left.shape[0], prediction.left.shape[2], dtype=torch.bool)
    return read_out(prediction, slots, initial)


def test_read_out_takes_the_likeliest():
    prediction = pointing([(1, 4, 0), (2, 2, 1)])
    found = read_all(prediction)
    assert found.left.tolist() == [[[1, 2]]] and found.right.tolist() == [[[4, 2]]]
    assert found.type_id.tolist() == [[[0, 1]]]
    assert found.is_entity.all() and found.slots.all()
    assert torch.equal(found.noisy, prediction.spans)
    assert found.type_probability.flatten().tolist() == pytest.approx([TYPES[0]] * 2)
    assert found.summed_probability.flatten().tolist() == pytest.approx([BOUNDARIES + TYPES[0]] * 2)


def test_read_out_marks_what_is_not_an_entity():
    spans = [(0, 3, 0), (0, 3, 2), (3, 2, 0), (5, 0, 1), (5, 5, 1)]
    slots = torch.ones(1, 5, dtype=torch.bool)
    found = read_out(pointing(spans), slots, None)
    assert found.is_entity.tolist() == [[[True, False, False, False, True]]]
    slots[0, 0] = False
    found = read_out(pointing(spans), slots, None)
    assert found.is_entity.tolist() == [[[False] * 4 + [True]]]
    assert found.slots.tolist() == [[[False] + [True] * 4]]


@pytest.mark.parametrize("level", [40.0, -200.0])
def test_read_out_compares_logits_whose_sigmoids_are_equal(level):
    """All sigmoids are 1, or 0 like those of padding; the highest logit still wins."""
    scores = torch.full((1, 1, 2, 5), -1e4)
    scores[..., :4] = level
    types, noisy = torch.tensor([[[[3.0, 0], [3, 0]]]]), torch.zeros(1, 1, 2, 2, dtype=torch.int64)
    prediction = Prediction(scores.clone(), scores.clone(), types, noisy)
    prediction.left[0, 0, :, [1, 2]] += torch.eye(2)
    prediction.right[0, 0, :, 3] += 1
    found = read_all(prediction)
    assert found.left.tolist() == [[[1, 2]]] and found.right.tolist() == [[[3, 3]]]
    assert found.is_entity.all()


def test_the_initializer_contributes_half_of_the_sum():
    """It scores the whole span; boundaries, type and P^c are the decoder's."""
    spans = [(1, 4, 0), (2, 2, 1), (3, 2, 0), (1, 4, 2), (0, 5, 1)]
    scores = 3 * torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(0))
    without, found = read_all(pointing(spans)), read_all(pointing(spans), SpanScores(scores))
    for name in ("left", "right", "type_id", "type_probability", "is_entity"):
        assert torch.equal(getattr(found, name), getattr(without, name)), name
    assert found.is_entity.flatten().tolist() == [True, True, False, False, True]
    for slot in (0, 1, 4):
        left, right, _ = spans[slot]
        own = 3 / (1 + np.exp(-scores[0, left, right].item()))
        expected = (without.summed_probability[0, 0, slot].item() + own) / 2
        assert found.summed_probability[0, 0, slot].item() == pytest.approx(expected, abs=1e-6)


def test_a_typed_initializer_contributes_half_of_the_type_probabilities():
    """Each type, and no-entity, gets the mean of both probabilities; the likeliest is taken."""
    spans = [(1, 4, 0), (1, 4, 2), (2, 2, 1), (0, 5, 0)]
    types = torch.zeros(1, 6, 6, 2)
    types[0, 1, 4] = torch.tensor([0.0, 9.0])  # more certain of another type
    types[0, 2, 2] = -9.0  # certain that it is not an entity
    found = read_all(pointing(spans), SpanScores(types.logsumexp(-1), types))

    def softmax(scores: list[float]) -> np.ndarray:
        return np.exp([*scores, 0.0]) / np.exp([*scores, 0.0]).sum()

    # The decoder says type 0, then no-entity; the initializer is more certain of type 1.
    p = softmax([0, 9])
    for slot in (0, 1):
        assert found.type_id[0, 0, slot] == 1
        type_probability = found.type_probability[0, 0, slot].item()
        assert type_probability == pytest.approx((p[1] + TYPES[1]) / 2, abs=1e-6)
        expected = (BOUNDARIES + TYPES[1] + 3 * p[1]) / 2
        assert found.summed_probability[0, 0, slot].item() == pytest.approx(expected, abs=1e-6)
    assert found.is_entity[0, 0].tolist() == [True, True, False, True]
    assert found.type_id[0, 0, 3] == 0
    expected = (BOUNDARIES + TYPES[0] + 3 * softmax([0, 0])[0]) / 2
    assert found.summed_probability[0, 0, 3].item() == pytest.approx(expected, abs=1e-6)


# Merging candidates and windows


def windows_of(*rows: tuple[int, int, int, int]) -> Windows:
    """Return windows from (sentence, offset, owned_start, owned_end)."""
    sentence, offset, owned_start, owned_end = np.array(rows, dtype=np.int64).T
    blank = np.zeros_like(sentence)
    return Windows(sentence, blank, blank, offset, owned_start, owned_end, blank, blank, blank)


ONE_WINDOW = windows_of((0, 0, 0, 9))


def one_step(*rows: list[tuple[float, ...]]) -> np.ndarray:
    """Return the table of one step from the candidates of each window."""
    table = np.full((len(rows), 1, max(len(row) for row in rows), 5), -1.0)
    table[..., :3] = 0
    for i, row in enumerate(rows):
        table[i, 0, : len(row)] = np.array(row).reshape(-1, 5)
    return table


def entities_of(columns: EntityColumns) -> list[DecodedEntity]:
    rows = zip(*(column.tolist() for column in columns[1:]), strict=True)
    return [DecodedEntity(*row) for row in rows]


def merged(
    table: np.ndarray, windows: Windows, chosen: np.ndarray
) -> list[tuple[int, DecodedEntity]]:
    """Return (sentence, entity) whatever the sum, leaving score and votes to other tests."""
    columns = merge_candidates(candidates_of(table), windows, chosen, everything(LABELS))
    found = (one._replace(score=0.0, votes=1) for one in entities_of(columns))
    return list(zip(columns.sentence.tolist(), found, strict=True))


def test_equal_spans_keep_the_likeliest_type():
    table = one_step(
        [
            (1, 2, 0, 2.9, 0.50),
            (1, 2, 1, 2.1, 0.90),  # the likeliest type, though not the largest sum
            (1, 2, 0, 2.8, 0.60),
            (1, 3, 0, 1.0, 0.30),
            (0, 2, 1, 0.0, 0.20),  # still an entity
            (4, 4, 1, -1.0, 0.99),
        ]
    )
    found = merged(table, windows_of((7, 0, 0, 9)), np.array([0]))
    assert found == [
        (7, entity(0, 2, 1, 0.0)), (7, entity(1, 2, 1, 2.1)), (7, entity(1, 3, 0, 1.0)),
    ]  # fmt: skip


def test_equal_types_keep_the_larger_sum():
    table = one_step([(1, 2, 0, 2.5, 0.9), (1, 2, 0, 2.7, 0.9), (1, 2, 0, 2.6, 0.9)])
    found = merged(table, windows_of((0, 0, 0, 9)), np.array([0]))
    assert found == [(0, entity(1, 2, 0, 2.7))]


def test_merging_equals_the_loop():
    random = np.random.default_rng(0)
    windows = windows_of((3, 0, 0, 6), (1, 0, 0, 6), (0, 0, 0, 6))
    chosen = np.array([2, 0])
    for _ in range(20):
        table = np.concatenate(
            [random.integers(0, 3, (2, 30, 3)), random.uniform(-1, 3, (2, 30, 2))], -1
        )
        table[..., 1] += table[..., 0]
        expected = {}
        for row, slot in np.ndindex(2, 30):
            left, right, type_id, summed, type_p = table[row, slot]
            key = ((0, 3)[row], int(left), int(right))
            if summed >= 0 and (key not in expected or type_p > expected[key][0]):
                expected[key] = (type_p, entity(int(left), int(right), int(type_id), summed))
        found = merged(table[:, None], windows, chosen)
        assert len(found) == len(expected)
        assert {(sentence, f.left, f.right): f for sentence, f in found} == {
            key: entity for key, (_, entity) in expected.items()
        }


def test_sums_are_averaged_over_the_steps_that_found_an_entity():
    first = [(1, 2, 0, 2.0, 0.6), (1, 2, 1, 2.9, 0.5), (4, 5, 0, 1.5, 0.9), (4, 5, 0, 1.0, 0.9)]
    second = [(1, 2, 1, 2.4, 0.8), (7, 7, 1, 0.5, 0.4), (4, 5, 1, -1.0, 1.0), (8, 8, 0, -1.0, 1.0)]
    third = [(1, 2, 0, 1.6, 0.7), (1, 2, 0, 1.5, 0.7), (1, 2, 0, 1.4, 0.7), (0, 2, 1, 3.0, 1.0)]
    candidates = candidates_of(np.array([[first, second, third]]))
    found = merge_candidates(candidates, ONE_WINDOW, np.array([0]), everything(LABELS))
    assert [
        (e.left, e.right, e.type_id, round(e.summed_probability, 6), e.votes)
        for e in entities_of(found)
    ] == [
        (0, 2, 1, 3.0, 1),
        (1, 2, 1, 2.0, 3),  # mean of 2.0, 2.4 and 1.6; the second step is surest of its type
        (4, 5, 0, 1.5, 2),  # steps that moved away do not count
        (7, 7, 1, 0.5, 1),
    ]


def test_averaging_equals_the_loop():
    random = np.random.default_rng(1)
    windows = windows_of((3, 0, 0, 6), (1, 0, 0, 6), (0, 0, 0, 6))
    for _ in range(10):
        table = np.concatenate(
            [random.integers(0, 3, (2, 4, 9, 3)), random.uniform(-1, 3, (2, 4, 9, 2))], -1
        )
        table[..., 1] += table[..., 0]
        best: dict[tuple[int, int, int], dict[int, tuple[float, float, int]]] = {}
        for row, step, slot in np.ndindex(2, 4, 9):
            left, right, type_id, summed, type_p = table[row, step, slot]
            if summed >= 0:
                steps = best.setdefault(((0, 3)[row], int(left), int(right)), {})
                steps[step] = max(steps.get(step, (-2.0, 0.0, 0)), (type_p, summed, int(type_id)))
        found = merged(table, windows, np.array([2, 0]))
        assert {
            (sentence, e.left, e.right): (e.type_id, e.summed_probability) for sentence, e in found
        } == {
            key: (max(steps.values())[2], pytest.approx(np.mean([s[1] for s in steps.values()])))
            for key, steps in best.items()
        }


def test_each_entity_comes_from_the_window_that_owns_its_middle():
    # Words 0..9 and 4..13 of one sentence; the first owns 0..6, the second the rest.
    windows = windows_of((5, 0, 0, 7), (5, 4, 7, 14))
    first = [(2, 9, 0, 2.0, 0.9), (6, 6, 0, 2.1, 0.9), (6, 7, 0, 2.2, 0.9), (8, 9, 0, 2.3, 0.9)]
    second = [
        (left - 4, right - 4, type_id, summed - 1, p)
        for left, right, type_id, summed, p in first[1:]
    ]
    second.append((0, 9, 1, 1.5, 0.9))  # words 4..13 of the sentence
    found = merged(one_step(first, second), windows, np.array([0, 1]))
    assert {sentence for sentence, _ in found} == {5}
    assert sorted(f for _, f in found) == [
        entity(2, 9, 0, 2.0),  # the first window owns its middle, 6
        entity(4, 13, 1, 1.5),
        entity(6, 6, 0, 2.1),
        entity(6, 7, 0, pytest.approx(1.2)),  # the middle of two words is the right one
        entity(8, 9, 0, pytest.approx(1.3)),
    ]


def test_every_span_is_kept_from_exactly_one_window():
    windows = windows_of((0, 0, 0, 7), (0, 4, 7, 11), (0, 8, 11, 18))
    width = 10
    spans = [(i, j) for i in range(width) for j in range(i, width)]
    table = one_step(*[[(i, j, 0, w, 0.5) for i, j in spans] for w in (1.0, 2.0, 3.0)])
    found = [f for _, f in merged(table, windows, np.arange(3))]
    assert len({f[:2] for f in found}) == len(found)
    for f in found:
        owned = ((0, 7), (7, 11), (11, 18))[int(f.summed_probability) - 1]
        assert owned[0] <= (f.left + f.right + 1) // 2 < owned[1]
    short = {(i, j) for i in range(18) for j in range(i, min(18, i + 6))}
    assert short <= {f[:2] for f in found}, "the overlap holds every short span"


class RunFinder:
    """Engine that finds every run of words 'x' in its windows."""

    labels = LABELS
    subword_multiple, prefetch, beliefs = 1, 2, None

    def __init__(self, sentences: list[Sentence], corpus: EncodedCorpus) -> None:
        self.sentences, self.corpus = sentences, corpus

    def launch(
        self,
        batch: Batch[np.ndarray],
        start: ReverseStart[np.ndarray],
        settings: InferenceSettings,
    ) -> Callable[[], Candidates[np.ndarray]]:
        rows = []
        for key, length in zip(batch.keys.tolist(), batch.lengths.tolist(), strict=True):
            keys = self.corpus.sentence_keys[self.corpus.windows.sentence]
            window = np.flatnonzero(keys + self.corpus.windows.offset == key)[0]
            offset = int(self.corpus.windows.offset[window])
            words = self.sentences[self.corpus.windows.sentence[window]].words
            rows.append(runs_of_x(words[offset : offset + length]))
        spans = start.slots.shape[1]
        table = np.full((len(rows), 1, spans, 5), -1.0)
        table[..., :3] = 0
        for row, runs in enumerate(rows):
            for slot, (left, right) in enumerate(runs):
                table[row, 0, slot] = (left, right, 0, 2.0, 0.9)
        return lambda: candidates_of(table)


def runs_of_x(words: list[str]) -> list[tuple[int, int]]:
    """Return first and last word of every run of 'x'."""
    runs, at = [], 0
    for is_x, group in itertools.groupby(word == "x" for word in words):
        length = len(list(group))
        if is_x:
            runs.append((at, at + length - 1))
        at += length
    return runs


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_entities_of_windows_are_merged_by_sentence(encoder_folder, batch_size):
    texts = ["a x b x x c " * 8, "x b", "a b", "x x x a a a " * 10]
    sentences = [Sentence(text.split()) for text in texts]
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    corpus = EncodedCorpus(sentences, tokenizer, plain_encoder(max_subwords=20))
    assert len(corpus) > 2 * len(sentences)
    engine = RunFinder(sentences, corpus)
    options = plain_inference(batch_size=batch_size)
    for chosen in ([0, 1, 2, 3], [3, 0]):
        results = predict(engine, PredictionTask(corpus, chosen), options, everything(LABELS))
        for number, found in zip(chosen, results, strict=True):
            assert [e[:2] for e in found] == runs_of_x(sentences[number].words)


# Overlaps


def random_spans(
    random: np.random.Generator, count: int = 25, words: int = 12
) -> list[DecodedEntity]:
    found = []
    for _ in range(count):
        left, right = sorted(random.integers(0, words, 2).tolist())
        type_id, summed = int(random.integers(0, 3)), float(np.round(random.uniform(1, 3), 1))
        found.append(entity(left, right, type_id, summed)._replace(score=summed / 3))
    return found


def words_of(one: DecodedEntity) -> set[int]:
    return set(range(one.left, one.right + 1))


def clashes(a: DecodedEntity, b: DecodedEntity, policy: str) -> bool:
    shared = words_of(a) & words_of(b)
    if policy == "all" or not shared:
        return False
    return policy == "flat" or shared not in (words_of(a), words_of(b))


@pytest.mark.parametrize("policy", ["nested", "flat", "all"])
def test_overlaps_are_resolved_greedily_by_sum(policy):
    random = np.random.default_rng(0)
    dropped = 0
    for _ in range(50):
        found = random_spans(random)
        kept = resolve_overlaps(found, policy)
        expected: list[DecodedEntity] = []
        for one in sorted(found, key=lambda e: (-e.summed_probability, e[:3])):
            if not any(clashes(one, better, policy) for better in expected):
                expected.append(one)
        assert sorted(kept) == sorted(expected)
        assert [(f.left, -f.right) for f in kept] == sorted((f.left, -f.right) for f in kept)
        dropped += len(found) - len(kept)
    assert (dropped > 0) == (policy != "all")


@pytest.mark.parametrize("policy", ["nested", "flat", "flat view", "all"])
def test_the_order_of_entities_does_not_matter(policy):
    random = np.random.default_rng(1)
    found = random_spans(random)
    expected = resolve_overlaps(found, policy)
    for _ in range(5):
        shuffled = [found[i] for i in random.permutation(len(found))]
        assert resolve_overlaps(shuffled, policy) == expected


@pytest.mark.parametrize("policy", ["nested", "flat", "all"])
def test_filtering_by_phi_commutes_with_resolving_overlaps(policy):
    random = np.random.default_rng(2)
    for _ in range(20):
        found = random_spans(random)
        for threshold in (1.0, 1.7, 2.5, 2.95):
            before = resolve_overlaps(passing(found, threshold), policy)
            assert before == passing(resolve_overlaps(found, policy), threshold)


def test_entities_below_their_threshold_exclude_no_others():
    candidates = candidates_of(np.array([[[(0, 2, 0, 2.2, 0.9), (1, 3, 1, 1.9, 0.9)]]]))
    rule = everything(LABELS)

    def types() -> list[int]:
        columns = merge_candidates(candidates, ONE_WINDOW, np.array([0]), rule)
        return [one.type_id for one in entities_by_sentence([columns], [0], "nested")[0]]

    assert types() == [0], "the one with the larger sum"
    rule.min_sums = np.array([2.4, 1.8, 0.0])
    assert types() == [1]


@pytest.mark.parametrize("policy", ["nested", "flat", "flat view", "all"])
def test_entities_by_sentence_equal_those_of_each_sentence_alone(policy):
    random = np.random.default_rng(3)
    for _ in range(20):
        found = {}
        for number in (4, 1, 9, 7):  # 9 has none
            spans = {one[:2]: one for one in random_spans(random, count=int(random.integers(1, 5)))}
            found[number] = [] if number == 9 else list(spans.values())
        rows = [(number, *one[:-1]) for number, several in found.items() for one in several]
        mixed = [rows[i] for i in random.permutation(len(rows))]
        parts = [
            EntityColumns(*map(np.array, zip(*part, strict=True)))
            for part in (mixed[:2], mixed[2:])
        ]
        assert entities_by_sentence(parts, list(found), policy) == [
            resolve_overlaps(several, policy) for several in found.values()
        ]
    assert entities_by_sentence([], [3, 1], policy) == [[], []]


def test_overlap_policies_by_example():
    outer, inner, crossing = entity(0, 5, 0, 2.0), entity(1, 2, 0, 2.5), entity(2, 3, 0, 2.2)
    same_start, apart = entity(0, 1, 0, 1.0), entity(6, 7, 0, 1.0)
    found = [crossing, outer, inner, same_start, apart]
    assert resolve_overlaps(found, "nested") == [outer, inner, apart]
    assert resolve_overlaps([outer, same_start], "nested") == [outer, same_start]
    assert resolve_overlaps(found, "flat") == [inner, apart]
    assert resolve_overlaps(found, "all") == [outer, same_start, inner, crossing, apart]
    assert resolve_overlaps([], "nested") == []


def test_the_flat_view_is_the_likeliest_flat_annotation():
    """Against every set of disjoint spans: the sum over p times (1 - p') of all spans around."""
    random = np.random.default_rng(4)
    differs = 0
    for _ in range(60):
        nested = resolve_overlaps(random_spans(random, count=9, words=9), "nested")
        nested = list({one[:2]: one for one in nested}.values())
        weights = [
            one.score
            * math.prod(1 - o.score for o in nested if o != one and words_of(one) <= words_of(o))
            for one in nested
        ]

        def worth(chosen: Iterable[int], weights: list[float] = weights) -> float:
            return sum(weights[i] for i in chosen)

        def disjoint(chosen: tuple[int, ...], nested: list[DecodedEntity] = nested) -> bool:
            words = [word for i in chosen for word in words_of(nested[i])]
            return len(words) == len(set(words))

        indices = range(len(nested))
        sets = (s for n in indices for s in itertools.combinations(indices, n + 1) if disjoint(s))
        best = max(sets, key=worth)
        kept = [nested.index(one) for one in resolve_overlaps(nested, "flat view")]
        assert disjoint(tuple(kept))
        assert worth(kept) == pytest.approx(worth(best))
        differs += resolve_overlaps(nested, "flat") != resolve_overlaps(nested, "flat view")
    assert differs > 10


def test_flat_views_by_example():
    def view(*spans: tuple[int, int, float]) -> list[tuple[int, int]]:
        ranked = sorted(spans, key=lambda span: -span[2])
        return sorted(ranked[i][:2] for i in choose_spans(ranked, "flat view"))

    assert view((0, 2, 0.90), (0, 1, 0.95)) == [(0, 2)], "Mr. Babbage, and not Mr."
    assert view((0, 2, 0.45), (0, 1, 0.95)) == [(0, 1)], "more likely no entity than one"
    assert view((0, 5, 0.9), (0, 2, 0.9), (3, 5, 0.9)) == [(0, 5)]
    assert view((0, 5, 0.6), (0, 2, 0.9), (3, 5, 0.9)) == [(0, 2), (3, 5)], "0.36 + 0.36 > 0.6"
    assert view((0, 3, 0.8), (2, 5, 0.9), (0, 1, 0.7)) == [(0, 1), (2, 5)], "the better crosses it"
    assert view((0, 2, 0.5), (2, 4, 0.5)) == [(0, 2), (2, 4)]
    assert view() == []


# The threshold


def test_the_threshold_is_inclusive():
    found = [entity(0, 1, 1, 2.5), entity(2, 2, 0, 2.4)]
    assert to_spans(passing(found, 2.5), ["A", "B"]) == [Span(0, 2, "B")]
    assert to_spans(passing(found, 2.4), ["A", "B"]) == [Span(0, 2, "B"), Span(2, 3, "A")]


def f1_at(sentences, found, labels, threshold) -> float:
    predicted = [to_spans(passing(f, threshold), labels) for f in found]
    return score([s.entities for s in sentences], predicted).micro.f1


def test_best_phi_maximises_f1():
    random = np.random.default_rng(0)
    labels = ["A", "B"]
    chosen = set()
    for _ in range(25):
        sentences, found = [], []
        for _ in range(6):
            gold = {Span(i, i + 1 + i % 2, labels[i % 2]) for i in random.integers(0, 9, 3)}
            sentences.append(Sentence(["w"] * 12, sorted(gold)))
            guesses = []
            for i in range(9):
                right = Span(i, i + 1 + i % 2, labels[i % 2]) in gold
                summed = float(random.uniform(2.0 if right else 1.0, 3.0 if right else 2.7))
                guesses.append(entity(i, i + i % 2, i % 2, summed))
            found.append(guesses)
        threshold, f1 = best_phi(sentences, found, labels)
        scores = [f1_at(sentences, found, labels, t) for t in GRID]
        assert f1 == pytest.approx(max(scores))
        best = [t for t, s in zip(GRID, scores, strict=True) if s == pytest.approx(max(scores))]
        assert threshold == best[len(best) // 2]
        chosen.add(threshold)
    assert len(chosen) > 3


def test_best_phi_is_the_middle_of_equally_good_ones():
    sentences = [Sentence(["w"] * 4, [Span(0, 1, "A")])]
    found = [[entity(0, 0, 0, 2.6), entity(1, 1, 0, 1.4)]]
    threshold, f1 = best_phi(sentences, found, ["A"])
    assert f1 == 1.0
    assert threshold == pytest.approx(2.05, abs=0.05)
    found = [[entity(0, 0, 0, 2.5), entity(1, 1, 0, 2.45)]]
    assert best_phi(sentences, found, ["A"]) == (2.5, 1.0)  # inclusive


def test_best_phi_without_entities():
    sentences = [Sentence(["w"], [Span(0, 1, "A")])]
    threshold, f1 = best_phi(sentences, [[]], ["A"])
    assert f1 == 0.0 and threshold in GRID
    threshold, f1 = best_phi([Sentence(["w"])], [[entity(0, 0, 0, 2.0)]], ["A"])
    assert f1 == 0.0 and threshold in GRID


def test_the_grid_contains_the_papers_phi():
    assert GRID[0] == 1.0 and 2.5 in GRID and GRID[-1] == 2.95
