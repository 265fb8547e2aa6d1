"""From scores to entities, and the choice of the threshold, against literal definitions."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
import torch
from diffusionner.inference.predictor import Task, predict
from plain import plain_encoder, plain_inference

from diffusionner.batching import Batch, EncodedCorpus, Windows
from diffusionner.corpus import Sentence, Span
from diffusionner.evaluation.scorer import score
from diffusionner.inference.decoding import (
    Columns,
    DecodedEntity,
    by_sentence,
    deduplicate,
    resolve_overlaps,
    to_spans,
)
from diffusionner.model import Prediction
from diffusionner.model.decoder import read_out
from diffusionner.model.initializer import Initial
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.training.selection import GRID, best_phi
from models import everything

# Reading out


def entity(left: int, right: int, kind: int, total: float) -> DecodedEntity:
    return DecodedEntity(left, right, kind, total, 0.0, 1)


def passing(found: list[DecodedEntity], phi: float) -> list[DecodedEntity]:
    return [one for one in found if one.total >= phi]


def distinct(
    table: np.ndarray, windows: Windows, chosen: np.ndarray
) -> list[tuple[int, DecodedEntity]]:
    """Whatever its total; its score and votes are of other tests."""
    columns = deduplicate(table, windows, chosen, everything(["A", "B", "C"]))
    found = (one._replace(score=0.0, votes=1) for one in columns.found())
    return list(zip(columns.sentence.tolist(), found, strict=True))


def pointing(spans: list[tuple[int, int, int]], words: int = 6, types: int = 2) -> Prediction:
    """One sentence whose scores single out a (left, right, type) for every slot."""
    left, right = torch.full((1, 1, len(spans), words), -4.0), torch.zeros(1, 1, len(spans), words)
    kinds = torch.zeros(1, 1, len(spans), types + 1)
    for slot, (first, last, kind) in enumerate(spans):
        left[0, 0, slot, first] = 1.0
        right[0, 0, slot, last] = 2.0
        kinds[0, 0, slot, kind] = 3.0
    return Prediction(left, right, kinds)


def full(prediction: Prediction, initial: Initial | None = None) -> torch.Tensor:
    """Read out; all its spans count."""
    slots = torch.ones(prediction.left.shape[0], prediction.left.shape[2], dtype=torch.bool)
    return read_out(prediction, slots, initial)


def test_read_out_takes_the_likeliest():
    table = full(pointing([(1, 4, 0), (2, 2, 1)]))
    assert table.shape == (1, 2, 5)
    assert table[0, :, :3].tolist() == [[1, 4, 0], [2, 2, 1]]
    type_p = np.exp(3) / (np.exp(3) + 2)
    total = 1 / (1 + np.exp(-1)) + 1 / (1 + np.exp(-2)) + type_p
    assert table[0, :, 3].tolist() == pytest.approx([total, total])
    assert table[0, :, 4].tolist() == pytest.approx([type_p, type_p])


def test_read_out_drops_what_is_no_entity():
    spans = [(0, 3, 0), (0, 3, 2), (3, 2, 0), (5, 0, 1), (5, 5, 1)]
    slots = torch.ones(1, 5, dtype=torch.bool)
    kept = read_out(pointing(spans), slots, None)[0, :, 3] >= 0
    assert kept.tolist() == [True, False, False, False, True]
    slots[0, 0] = False
    kept = read_out(pointing(spans), slots, None)[0, :, 3] >= 0
    assert kept.tolist() == [False] * 4 + [True]


@pytest.mark.parametrize("level", [40.0, -200.0])
def test_read_out_tells_scores_apart_that_round_to_the_same_probability(level):
    """All sigmoids are 1, or 0 as padding's: still the highest score, never padding."""
    scores = torch.full((1, 1, 2, 5), -1e4)
    scores[..., :4] = level
    prediction = Prediction(scores.clone(), scores.clone(), torch.tensor([[[[3.0, 0], [3, 0]]]]))
    prediction.left[0, 0, :, [1, 2]] += torch.eye(2)
    prediction.right[0, 0, :, 3] += 1
    table = full(prediction)
    assert table[0, :, :2].tolist() == [[1, 3], [2, 3]]
    assert (table[0, :, 3] > 0).all()


def test_read_out_asks_the_initializer_for_half_of_the_total():
    """Its view is of the whole span; boundaries, type and its probability are the decoder's."""
    spans = [(1, 4, 0), (2, 2, 1), (3, 2, 0), (1, 4, 2), (0, 5, 1)]
    initial = 3 * torch.randn(1, 6, 6, generator=torch.Generator().manual_seed(0))
    plain, table = full(pointing(spans)), full(pointing(spans), Initial(initial))
    assert torch.equal(table[..., [0, 1, 2, 4]], plain[..., [0, 1, 2, 4]])
    for slot in (0, 1, 4):
        left, right, _ = spans[slot]
        own = 3 / (1 + np.exp(-initial[0, left, right].item()))
        expected = (plain[0, slot, 3].item() + own) / 2
        assert table[0, slot, 3].item() == pytest.approx(expected, abs=1e-6)
    assert table[0, [2, 3], 3].tolist() == [-1, -1], "no entities, however likely the spans"


def test_read_out_asks_a_typed_initializer_for_half_of_the_types_too():
    """Each type, and no-entity, has the mean of both probabilities; the likeliest is taken."""
    spans = [(1, 4, 0), (1, 4, 2), (2, 2, 1), (0, 5, 0)]
    types = torch.zeros(1, 6, 6, 2)
    types[0, 1, 4] = torch.tensor([0.0, 9.0])  # surer of another type
    types[0, 2, 2] = -9.0  # of none at all
    initial = Initial(types.logsumexp(-1), types)
    table = full(pointing(spans), initial)
    decoder = np.array([np.exp(3), 1, 1]) / (np.exp(3) + 2)
    boundaries = 1 / (1 + np.exp(-1)) + 1 / (1 + np.exp(-2))

    def of(scores: list[float]) -> np.ndarray:
        return np.exp([*scores, 0.0]) / np.exp([*scores, 0.0]).sum()

    # Decoder: type 0, then no-entity; the initializer says type 1, and it is surer.
    for slot, own_view in ((0, decoder), (1, decoder[[1, 2, 0]])):
        p = of([0, 9])
        assert table[0, slot, 2] == 1
        assert table[0, slot, 4].item() == pytest.approx((p[1] + own_view[1]) / 2, abs=1e-6)
        total = (boundaries + own_view[1] + 3 * p[1]) / 2
        assert table[0, slot, 3].item() == pytest.approx(total, abs=1e-6)
    assert table[0, 2, 3] == -1, "the initializer is surer that it is none"
    p = of([0, 0])
    assert table[0, 3, 2] == 0
    total = (boundaries + decoder[0] + 3 * p[0]) / 2
    assert table[0, 3, 3].item() == pytest.approx(total, abs=1e-6)


# De-duplication and windows


def windows_of(*rows: tuple[int, int, int, int]) -> Windows:
    """Windows from (sentence, offset, owned_start, owned_end)."""
    sentence, offset, owned_start, owned_end = np.array(rows, dtype=np.int64).T
    blank = np.zeros_like(sentence)
    return Windows(sentence, blank, blank, offset, owned_start, owned_end, blank, blank)


def table_of(*rows: list[tuple[float, ...]]) -> np.ndarray:
    """Read-outs (left, right, type, total, type probability) of each window, padded: one step."""
    table = np.full((len(rows), 1, max(len(row) for row in rows), 5), -1.0)
    for i, row in enumerate(rows):
        table[i, 0, : len(row)] = np.array(row).reshape(-1, 5)
    return table


def test_equal_spans_keep_the_likeliest_type():
    table = table_of(
        [
            (1, 2, 0, 2.9, 0.50),
            (1, 2, 1, 2.1, 0.90),  # the likeliest type, though not the largest sum
            (1, 2, 0, 2.8, 0.60),
            (1, 3, 0, 1.0, 0.30),
            (0, 2, 1, 0.0, 0.20),  # a total of nothing at all is still an entity
            (4, 4, 1, -1.0, 0.99),
        ]
    )
    found = distinct(table, windows_of((7, 0, 0, 9)), np.array([0]))
    assert found == [
        (7, entity(0, 2, 1, 0.0)), (7, entity(1, 2, 1, 2.1)), (7, entity(1, 3, 0, 1.0)),
    ]  # fmt: skip


def test_equal_types_keep_the_larger_sum():
    table = table_of([(1, 2, 0, 2.5, 0.9), (1, 2, 0, 2.7, 0.9), (1, 2, 0, 2.6, 0.9)])
    found = distinct(table, windows_of((0, 0, 0, 9)), np.array([0]))
    assert found == [(0, entity(1, 2, 0, 2.7))]


def test_deduplication_written_out():
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
            left, right, kind, total, type_p = table[row, slot]
            key = ((0, 3)[row], int(left), int(right))
            if total >= 0 and (key not in expected or type_p > expected[key][0]):
                expected[key] = (type_p, entity(int(left), int(right), int(kind), total))
        found = distinct(table[:, None], windows, chosen)
        assert len(found) == len(expected)
        assert {(sentence, f.left, f.right): f for sentence, f in found} == {
            key: entity for key, (_, entity) in expected.items()
        }


def test_steps_are_averaged_where_an_entity_was_found():
    first = [(1, 2, 0, 2.0, 0.6), (1, 2, 1, 2.9, 0.5), (4, 5, 0, 1.5, 0.9), (4, 5, 0, 1.0, 0.9)]
    second = [(1, 2, 1, 2.4, 0.8), (7, 7, 1, 0.5, 0.4), (4, 5, 1, -1.0, 1.0), (8, 8, 0, -1.0, 1.0)]
    third = [(1, 2, 0, 1.6, 0.7), (1, 2, 0, 1.5, 0.7), (1, 2, 0, 1.4, 0.7), (0, 2, 1, 3.0, 1.0)]
    table = np.array([[first, second, third]])
    found = deduplicate(table, windows_of((0, 0, 0, 9)), np.array([0]), everything(["A", "B"]))
    assert [(f.left, f.right, f.kind, round(f.total, 6), f.votes) for f in found.found()] == [
        (0, 2, 1, 3.0, 1),
        (1, 2, 1, 2.0, 3),  # the mean of 2.0, 2.4 and 1.6; the second step is surest of its type
        (4, 5, 0, 1.5, 2),  # what it became later does not count against it
        (7, 7, 1, 0.5, 1),
    ]


def test_averaged_steps_written_out():
    random = np.random.default_rng(1)
    windows = windows_of((3, 0, 0, 6), (1, 0, 0, 6), (0, 0, 0, 6))
    for _ in range(10):
        table = np.concatenate(
            [random.integers(0, 3, (2, 4, 9, 3)), random.uniform(-1, 3, (2, 4, 9, 2))], -1
        )
        table[..., 1] += table[..., 0]
        best: dict[tuple[int, int, int], dict[int, tuple[float, float, int]]] = {}
        for row, step, slot in np.ndindex(2, 4, 9):
            left, right, kind, total, type_p = table[row, step, slot]
            if total >= 0:
                steps = best.setdefault(((0, 3)[row], int(left), int(right)), {})
                steps[step] = max(steps.get(step, (-2.0, 0.0, 0)), (type_p, total, int(kind)))
        found = distinct(table, windows, np.array([2, 0]))
        assert {(sentence, f.left, f.right): (f.kind, f.total) for sentence, f in found} == {
            key: (max(steps.values())[2], pytest.approx(np.mean([s[1] for s in steps.values()])))
            for key, steps in best.items()
        }


def test_each_entity_comes_from_the_window_that_owns_its_middle():
    # Words 0..9 and 4..13 of one sentence; the first owns 0..6, the second the rest.
    windows = windows_of((5, 0, 0, 7), (5, 4, 7, 14))
    first = [(2, 9, 0, 2.0, 0.9), (6, 6, 0, 2.1, 0.9), (6, 7, 0, 2.2, 0.9), (8, 9, 0, 2.3, 0.9)]
    second = [
        (left - 4, right - 4, kind, total - 1, p) for left, right, kind, total, p in first[1:]
    ]
    second.append((0, 9, 1, 1.5, 0.9))  # words 4..13, in its own counting 0..9
    found = distinct(table_of(first, second), windows, np.array([0, 1]))
    assert {sentence for sentence, _ in found} == {5}
    assert sorted(f for _, f in found) == [
        entity(2, 9, 0, 2.0),  # its middle, 6, belongs to the first
        entity(4, 13, 1, 1.5),
        entity(6, 6, 0, 2.1),
        entity(6, 7, 0, pytest.approx(1.2)),  # of two words the right one is the middle
        entity(8, 9, 0, pytest.approx(1.3)),
    ]


def test_every_span_is_kept_from_exactly_one_window():
    windows = windows_of((0, 0, 0, 7), (0, 4, 7, 11), (0, 8, 11, 18))
    width = 10
    spans = [(i, j) for i in range(width) for j in range(i, width)]
    table = table_of(*[[(i, j, 0, w, 0.5) for i, j in spans] for w in (1.0, 2.0, 3.0)])
    found = [f for _, f in distinct(table, windows, np.arange(3))]
    assert len({f[:2] for f in found}) == len(found)
    for f in found:
        owned = ((0, 7), (7, 11), (11, 18))[int(f.total) - 1]
        assert owned[0] <= (f.left + f.right + 1) // 2 < owned[1]
    short = {(i, j) for i in range(18) for j in range(i, min(18, i + 6))}
    assert short <= {f[:2] for f in found}, "the overlap holds every span up to its length"


class Pointing:
    """An engine that finds every run of words equal to 'x' that its window holds."""

    labels = ("A", "B")
    subword_step, ahead = 1, 2

    def __init__(self, sentences: list[Sentence], corpus: EncodedCorpus) -> None:
        self.sentences, self.corpus = sentences, corpus

    def find(
        self, batch: Batch[np.ndarray], settings, slots: np.ndarray, given=None, start=None
    ) -> Callable[[], np.ndarray]:
        rows = []
        for key, length in zip(batch.keys.tolist(), batch.lengths.tolist(), strict=True):
            keys = self.corpus.sentence_keys[self.corpus.windows.sentence]
            window = np.flatnonzero(keys + self.corpus.windows.offset == key)[0]
            offset = int(self.corpus.windows.offset[window])
            words = self.sentences[self.corpus.windows.sentence[window]].words
            is_x = "".join("x" if w == "x" else "." for w in words[offset : offset + length])
            runs = [(i, i + len(r) - 1) for i, r in _runs(is_x)]
            rows.append([(left, right, 0) for left, right in runs] or [(0, 0, 2)])
        most = int(batch.lengths.max())
        spans = slots.shape[1]
        parts = [pointing(row + [(0, 0, 2)] * (spans - len(row)), words=most) for row in rows]
        given = zip(parts, torch.from_numpy(slots), strict=True)
        read = [read_out(part, own, None).numpy() for part, own in given]
        table = np.concatenate(read)[:, None]
        return lambda: table


def _runs(text: str) -> list[tuple[int, str]]:
    runs, at = [], 0
    for letter, group in itertools.groupby(text):
        run = "".join(group)
        if letter == "x":
            runs.append((at, run))
        at += len(run)
    return runs


@pytest.mark.parametrize("batch_size", [1, 3, 50])
def test_cut_sentences_are_put_together_again(encoder_folder, batch_size):
    texts = ["a x b x x c " * 8, "x b", "a b", "x x x a a a " * 10]
    sentences = [Sentence(text.split()) for text in texts]
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    corpus = EncodedCorpus(sentences, tokenizer, plain_encoder(max_subwords=20))
    assert len(corpus) > 2 * len(sentences)
    engine = Pointing(sentences, corpus)
    options = plain_inference(batch_size=batch_size)
    for chosen in ([0, 1, 2, 3], [3, 0]):
        results = predict(engine, Task(corpus, chosen), options, everything(["A", "B", "C"]))
        for number, found in zip(chosen, results, strict=True):
            text = "".join("x" if w == "x" else "." for w in sentences[number].words)
            expected = [(i, i + len(run) - 1) for i, run in _runs(text)]
            assert [f[:2] for f in found] == expected


# Overlaps


def random_spans(
    random: np.random.Generator, count: int = 25, words: int = 12
) -> list[DecodedEntity]:
    found = []
    for _ in range(count):
        left, right = sorted(random.integers(0, words, 2).tolist())
        kind, total = int(random.integers(0, 3)), float(np.round(random.uniform(1, 3), 1))
        found.append(entity(left, right, kind, total))
    return found


def words_of(f: DecodedEntity) -> set[int]:
    return set(range(f.left, f.right + 1))


def clashes(a: DecodedEntity, b: DecodedEntity, policy: str) -> bool:
    shared = words_of(a) & words_of(b)
    if policy == "all" or not shared:
        return False
    return policy == "flat" or shared not in (words_of(a), words_of(b))


@pytest.mark.parametrize("policy", ["nested", "flat", "all"])
def test_overlaps_are_resolved_by_the_definition(policy):
    random = np.random.default_rng(0)
    dropped = 0
    for _ in range(50):
        found = random_spans(random)
        kept = resolve_overlaps(found, policy)
        expected: list[DecodedEntity] = []
        for one in sorted(found, key=lambda f: (-f.total, f.left, f.right, f.kind)):
            if not any(clashes(one, better, policy) for better in expected):
                expected.append(one)
        assert sorted(kept) == sorted(expected)
        assert [(f.left, -f.right) for f in kept] == sorted((f.left, -f.right) for f in kept)
        dropped += len(found) - len(kept)
    assert (dropped > 0) == (policy != "all")


@pytest.mark.parametrize("policy", ["nested", "flat", "all"])
def test_the_order_of_the_spans_does_not_matter(policy):
    random = np.random.default_rng(1)
    found = random_spans(random)
    expected = resolve_overlaps(found, policy)
    for _ in range(5):
        shuffled = [found[i] for i in random.permutation(len(found))]
        assert resolve_overlaps(shuffled, policy) == expected


@pytest.mark.parametrize("policy", ["nested", "flat", "all"])
def test_the_threshold_may_come_before_or_after(policy):
    random = np.random.default_rng(2)
    for _ in range(20):
        found = random_spans(random)
        for threshold in (1.0, 1.7, 2.5, 2.95):
            before = resolve_overlaps([f for f in found if f.total >= threshold], policy)
            after = [f for f in resolve_overlaps(found, policy) if f.total >= threshold]
            assert before == after


def test_what_does_not_pass_keeps_nothing_out():
    """With a threshold for each type."""
    table = np.array([[[(0, 2, 0, 2.2, 0.9), (1, 3, 1, 1.9, 0.9)]]])
    judge = everything(["A", "B"])

    def kinds() -> list[int]:
        columns = deduplicate(table, windows_of((0, 0, 0, 9)), np.array([0]), judge)
        return [one.kind for one in by_sentence([columns], [0], "nested")[0]]

    assert kinds() == [0], "the better one"
    judge.least = np.array([2.4, 1.8])
    assert kinds() == [1]


@pytest.mark.parametrize("policy", ["nested", "flat", "all"])
def test_entities_by_sentence_are_those_of_each_alone(policy):
    random = np.random.default_rng(3)
    for _ in range(20):
        found = {}
        for number in (4, 1, 9, 7):  # the last but one has none
            spans = {one[:2]: one for one in random_spans(random, count=int(random.integers(1, 5)))}
            found[number] = [] if number == 9 else list(spans.values())
        rows = [(number, *one) for number, several in found.items() for one in several]
        mixed = [rows[i] for i in random.permutation(len(rows))]
        parts = [
            Columns(*map(np.array, zip(*part, strict=True))) for part in (mixed[:2], mixed[2:])
        ]
        assert by_sentence(parts, list(found), policy) == [
            resolve_overlaps(several, policy) for several in found.values()
        ]
    assert by_sentence([], [3, 1], policy) == [[], []]


def test_nested_and_flat_by_example():
    outer, inner, crossing = entity(0, 5, 0, 2.0), entity(1, 2, 0, 2.5), entity(2, 3, 0, 2.2)
    same_start, apart = entity(0, 1, 0, 1.0), entity(6, 7, 0, 1.0)
    found = [crossing, outer, inner, same_start, apart]
    assert resolve_overlaps(found, "nested") == [outer, inner, apart]
    assert resolve_overlaps([outer, same_start], "nested") == [outer, same_start]
    assert resolve_overlaps(found, "flat") == [inner, apart]
    assert resolve_overlaps(found, "all") == [outer, same_start, inner, crossing, apart]
    assert resolve_overlaps([], "nested") == []


# The threshold


def test_the_threshold_is_inclusive():
    found = [entity(0, 1, 1, 2.5), entity(2, 2, 0, 2.4)]
    assert to_spans(passing(found, 2.5), ["A", "B"]) == [Span(0, 2, "B")]
    assert to_spans(passing(found, 2.4), ["A", "B"]) == [Span(0, 2, "B"), Span(2, 3, "A")]


def f1_at(sentences, found, labels, threshold) -> float:
    predicted = [to_spans(passing(f, threshold), labels) for f in found]
    return score([s.entities for s in sentences], predicted).micro.f1


def test_best_phi_is_best():
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
                total = float(random.uniform(2.0 if right else 1.0, 3.0 if right else 2.7))
                guesses.append(entity(i, i + i % 2, i % 2, total))
            found.append(guesses)
        threshold, f1 = best_phi(sentences, found, labels)
        scores = [f1_at(sentences, found, labels, t) for t in GRID]
        assert f1 == pytest.approx(max(scores))
        best = [t for t, s in zip(GRID, scores, strict=True) if s == pytest.approx(max(scores))]
        assert threshold == best[len(best) // 2]
        chosen.add(threshold)
    assert len(chosen) > 3


def test_best_phi_lies_in_the_middle_of_equals():
    sentences = [Sentence(["w"] * 4, [Span(0, 1, "A")])]
    found = [[entity(0, 0, 0, 2.6), entity(1, 1, 0, 1.4)]]
    threshold, f1 = best_phi(sentences, found, ["A"])
    assert f1 == 1.0
    assert threshold == pytest.approx(2.05, abs=0.05)
    found = [[entity(0, 0, 0, 2.5), entity(1, 1, 0, 2.45)]]
    assert best_phi(sentences, found, ["A"]) == (2.5, 1.0)  # inclusive, as in to_spans


def test_best_phi_of_nothing():
    sentences = [Sentence(["w"], [Span(0, 1, "A")])]
    threshold, f1 = best_phi(sentences, [[]], ["A"])
    assert f1 == 0.0 and threshold in GRID
    threshold, f1 = best_phi([Sentence(["w"])], [[entity(0, 0, 0, 2.0)]], ["A"])
    assert f1 == 0.0 and threshold in GRID


def test_the_grid_holds_the_usual_thresholds():
    assert GRID[0] == 1.0 and 2.5 in GRID and GRID[-1] == 2.95
