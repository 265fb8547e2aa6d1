"""Windows and batches, with the tiny tokenizer, which has one subword per letter."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import fields
from pathlib import Path

import numpy as np
import pytest
from plain import plain_encoder

from diffusionner.batching import Batch, EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Sentence, Span
from diffusionner.storage.encoders import load_tokenizer

PAD, UNKNOWN, CLS, SEP = range(4)


@pytest.fixture(scope="module")
def tokenizer(encoder_folder: Path) -> SubwordTokenizer:
    return load_tokenizer(encoder_folder, limit=128)


def encode(
    tokenizer: SubwordTokenizer,
    sentences: list[Sentence],
    labels: list[str] | None = None,
    **settings: object,
) -> EncodedCorpus:
    chosen = plain_encoder(**{"context": 0, "character_filters": 0, **settings})
    return EncodedCorpus(sentences, tokenizer, chosen, labels)


def everything(corpus: EncodedCorpus) -> Batch[np.ndarray]:
    return corpus.batch(np.arange(len(corpus)))


def words_of(corpus: EncodedCorpus, batch: Batch[np.ndarray], row: int) -> list[str]:
    """Return the words of a row, rebuilt from its subwords."""
    words = [""] * int(batch.lengths[row])
    for place, word in enumerate(batch.word_of[row].tolist(), start=int(batch.first[row, 0])):
        if word < len(words):
            subword = int(batch.subwords[row, place])
            words[word] += corpus.tokenizer.hf.convert_ids_to_tokens(subword).removeprefix("##")
    return words


def text_of(corpus: EncodedCorpus, batch: Batch[np.ndarray], row: int) -> str:
    """Return all subwords that the encoder sees, context included."""
    shown = batch.subwords[row][batch.attention[row].astype(bool)].tolist()
    tokens = corpus.tokenizer.hf.convert_ids_to_tokens(shown)
    return "".join(f" {t}" if not t.startswith("##") else t[2:] for t in tokens).strip()


def document(*texts: str, doc: str | None = "d") -> list[Sentence]:
    return [Sentence(text.split(), doc=doc) for text in texts]


# Alignment


def test_batches_hold_words_and_special_tokens(tokenizer):
    corpus = encode(tokenizer, document("Ab cde", "f", doc=None))
    batch = everything(corpus)
    ids = tokenizer.hf.convert_tokens_to_ids(["a", "##b", "c", "##d", "##e"])
    assert batch.subwords.tolist() == [
        [CLS, *ids, SEP],
        [CLS, tokenizer.hf.convert_tokens_to_ids("f"), SEP, PAD, PAD, PAD, PAD],
    ]
    assert batch.attention.tolist() == [[1] * 7, [1] * 3 + [0] * 4]
    assert batch.word_of.tolist() == [[0, 0, 1, 1, 1], [0, 2, 2, 2, 2]]
    assert batch.first.tolist() == [[1, 3], [1, 0]]
    assert batch.lengths.tolist() == [2, 1]


@pytest.mark.parametrize("context", [0, 2])
@pytest.mark.parametrize("limit", [24, 128])
def test_words_align_with_subwords(tokenizer, nested_sentences, context, limit):
    corpus = encode(tokenizer, nested_sentences, context=context, max_subwords=limit)
    batch = everything(corpus)
    for row in range(len(corpus)):
        offset, count = corpus.windows.offset[row], corpus.windows.words[row]
        words = nested_sentences[corpus.windows.sentence[row]].words[offset : offset + count]
        at = batch.word_of[row]
        for number, word in enumerate(words):
            positions = batch.first[row, 0] + np.flatnonzero(at == number)
            assert (
                batch.subwords[row, positions].tolist()
                == tokenizer.subwords_of_each([word])[0].tolist()
            )
            assert batch.first[row, number] == positions[0]
        assert at.max() <= batch.first.shape[1] and (np.diff(at) >= 0).all()
        own = tokenizer.subwords_of_each(words)
        assert (at < count).sum() == sum(map(len, own)), "padding belongs to no word"


def test_sizes_are_padded_to_multiples_within_the_limit(encoder_folder):
    tokenizer = load_tokenizer(encoder_folder, limit=22)
    corpus = encode(tokenizer, document("a " * 3, "a " * 20, doc=None))
    assert corpus.batch(np.array([0])).subwords.shape[1] == 5
    assert corpus.batch(np.array([0]), (8, 1, 1, 1, 1)).subwords.shape[1] == 8
    assert corpus.batch(np.array([1]), (8, 1, 1, 1, 1)).subwords.shape[1] == 22
    assert corpus.batch(np.array([1])).first.shape[1] == 20
    assert corpus.batch(np.array([1]), (1, 16, 1, 1, 1)).first.shape[1] == 32
    assert corpus.batch(np.array([0])).word_of.shape[1] == 3
    assert corpus.batch(np.array([0]), (1, 1, 1, 1, 4)).word_of.shape[1] == 4
    assert corpus.batch(np.array([1]), (1, 1, 1, 1, 64)).word_of.shape[1] == 22


def test_context_is_not_part_of_the_words(tokenizer):
    corpus = encode(tokenizer, document("ab c", "def", "gh " * 9), context=1)
    batch = corpus.batch(np.array([1]))
    assert batch.subwords.shape[1] == 2 + 3 + 3 + 18 and batch.word_of.tolist() == [[0, 0, 0]]
    assert batch.first.tolist() == [[4]]


# Context


def test_context_comes_from_the_same_document(tokenizer):
    sentences = [
        *document("a1", "a2", "a3", "a4", doc="a"),
        *document("b1", "b2", doc="b"),
        *document("c1", "c2", doc=None),
        *document("a5", doc="a"),  # not adjacent to its document
    ]
    for context, expected in {
        0: ["a1", "a2", "a3", "a4", "b1", "b2", "c1", "c2", "a5"],
        1: ["a1 a2", "a1 a2 a3", "a2 a3 a4", "a3 a4", "b1 b2", "b1 b2", "c1", "c2", "a5"],
        9: ["a1 a2 a3 a4"] * 4 + ["b1 b2"] * 2 + ["c1", "c2", "a5"],
    }.items():
        corpus = encode(tokenizer, sentences, context=context)
        batch = everything(corpus)
        shown = [text_of(corpus, batch, row) for row in range(9)]
        assert shown == [f"[CLS] {text} [SEP]" for text in expected]
        own = [" ".join(words_of(corpus, batch, row)) for row in range(9)]
        assert own == [s.words[0] for s in sentences], "context adds no words"


@pytest.mark.parametrize("budget", [16, 20, 33, 50, 128])
@pytest.mark.parametrize("context", [1, 3, 50])
def test_context_never_exceeds_the_budget(tokenizer, nested_sentences, budget, context):
    one_document = [Sentence(s.words, doc="d") for s in nested_sentences]
    corpus = encode(tokenizer, one_document, context=context, max_subwords=budget)
    batch = everything(corpus)
    sizes = batch.attention.sum(1)
    assert sizes.max() == budget
    if context == 50:
        assert (sizes == budget).all(), "all the room is used"


@pytest.mark.parametrize(
    ("before", "after", "shown"),
    [
        (20, 20, "a " * 5 + "b " * 4 + "c " * 5),
        (2, 20, "a " * 2 + "b " * 4 + "c " * 8),  # one side gets what the other does not need
        (20, 2, "a " * 8 + "b " * 4 + "c " * 2),
        (1, 1, "a b b b b c "),
    ],
)
def test_context_is_shared_between_both_sides(tokenizer, before, after, shown):
    sentences = document("a " * before, "b " * 4, "c " * after)
    corpus = encode(tokenizer, sentences, context=1, max_subwords=16)
    middle = int(np.flatnonzero(corpus.windows.sentence == 1)[0])
    assert text_of(corpus, everything(corpus), middle).split() == f"[CLS] {shown}[SEP]".split()


# Windows of long sentences


def long_sentences() -> list[Sentence]:
    random = np.random.default_rng(0)
    sentences = []
    for length in (1, 30, 31, 75, 200):
        words = ["x" * int(n) for n in random.integers(1, 7, length)]
        spans = [Span(i, min(length, i + 1 + i % 5), "A") for i in range(0, length, 3)]
        sentences.append(Sentence(words, spans))
    return sentences


@pytest.mark.parametrize("budget", [16, 17, 40, 128])
@pytest.mark.parametrize("context", [0, 1])
def test_windows_cover_long_sentences(tokenizer, budget, context):
    sentences = long_sentences()
    for s in sentences:
        s.doc = "d"
    corpus = encode(tokenizer, sentences, context=context, max_subwords=budget)
    w = corpus.windows
    assert everything(corpus).attention.sum(1).max() <= budget
    for number, sentence in enumerate(sentences):
        mine = np.flatnonzero(w.sentence == number)
        owners = np.zeros(len(sentence.words), dtype=int)
        for i in mine:
            assert w.offset[i] <= w.owned_start[i] <= w.owned_end[i] <= w.offset[i] + w.words[i]
            owners[w.owned_start[i] : w.owned_end[i]] += 1
        assert (owners == 1).all()
        ends = w.offset[mine] + w.words[mine]
        # Windows of barely two long words may only touch; larger ones overlap by about half.
        assert (w.offset[mine][1:] <= ends[:-1] - (budget >= 40)).all()
        assert (np.diff(w.offset[mine]) > 0).all() and (np.diff(ends) > 0).all()
        subwords = sum(len(word) for word in sentence.words)
        assert (len(mine) == 1) == (subwords + 2 <= budget)


def test_owned_words_have_context_on_both_sides(tokenizer):
    corpus = encode(tokenizer, document("a " * 60, doc=None), max_subwords=22)
    w = corpus.windows
    for i in range(1, len(corpus) - 1):
        before = w.owned_start[i] - w.offset[i]
        after = w.offset[i] + w.words[i] - w.owned_end[i]
        assert min(before, after) >= 4


def test_windows_fit_into_the_encoder(encoder_folder):
    tokenizer = load_tokenizer(encoder_folder, limit=30)
    corpus = encode(tokenizer, document("a " * 70, doc=None), max_subwords=128)
    assert everything(corpus).attention.sum(1).max() == 30


def test_a_word_longer_than_a_window_is_truncated(tokenizer):
    corpus = encode(tokenizer, document("b " + "." * 40 + " c", doc=None), max_subwords=16)
    batch = everything(corpus)
    assert batch.attention.sum(1).max() <= 16
    for row in range(len(corpus)):
        for word in range(int(batch.lengths[row])):
            assert (batch.word_of[row] == word).any()


def test_first_subword_of_a_word_longer_than_a_window(tokenizer):
    corpus = encode(tokenizer, document("b " + "." * 40 + " c", doc=None), max_subwords=16)
    assert everything(corpus).first.min() >= 0


# Gold


@pytest.mark.parametrize("budget", [40, 64, 128])
def test_gold_is_in_every_window_that_holds_it(tokenizer, budget):
    sentences = long_sentences()
    corpus = encode(tokenizer, sentences, ["B", "A"], max_subwords=budget)
    batch = everything(corpus)
    w = corpus.windows
    placed = set()
    for row in range(len(corpus)):
        offset, end = w.offset[row], w.offset[row] + w.words[row]
        expected = [
            (start - offset, stop - 1 - offset)
            for start, stop, _ in sentences[w.sentence[row]].entities
            if offset <= start and stop <= end
        ]
        count = int(batch.gold_counts[row])
        gold = [tuple(span) for span in batch.gold[row, :count].tolist()]
        assert gold == expected
        assert batch.gold_types[row, :count].tolist() == [1] * count
        assert (batch.gold_types[row, count:] == -1).all(), "padding has no type"
        placed |= {(w.sentence[row], left + offset, right + offset) for left, right in gold}
    # The overlap of windows, minus the two words that its ends may cut, holds every entity of
    # that length.
    certain = {
        (i, start, end - 1)
        for i, one in enumerate(sentences)
        for start, end, _ in one.entities
        if sum(len(word) for word in one.words[start:end]) <= (budget - 2) // 2 - 12
    }
    assert len(certain) >= 20 and certain <= placed


def test_without_labels_there_is_no_gold(tokenizer, nested_sentences):
    batch = everything(encode(tokenizer, nested_sentences))
    assert batch.gold_counts.sum() == 0
    assert (batch.gold_types == -1).all() and (batch.gold == 0).all()


# Batches


@pytest.mark.parametrize("labels", [None, ["A"]])
@pytest.mark.parametrize("filters", [0, 4])
def test_batches_are_numpy_integers(tokenizer, labels, filters):
    corpus = encode(tokenizer, long_sentences(), labels, character_filters=filters)
    batch = everything(corpus)
    assert batch.labels is None and batch.gap_cells is None
    for f in (f for f in fields(Batch) if f.name not in ("labels", "gap_cells")):
        value = getattr(batch, f.name)
        # All of them fit into 32 bits, so that they are copied to a device at once.
        kind = np.bool_ if f.name == "annotated_types" else np.int64
        assert isinstance(value, np.ndarray) and value.dtype == kind, f.name
        assert len(value) == len(corpus), f.name


@pytest.mark.parametrize(
    "module",
    ["batching", "diffusion", "settings", "inference.pipeline", "inference.onnx_engine", "cli"],
)
def test_torch_and_transformers_are_not_imported(module):
    """Another backend may run where neither is installed."""
    command = [sys.executable, "-c", f"import sys, diffusionner.{module}; print(*sys.modules)"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert f"diffusionner.{module}" in done.stdout.split()
    assert not {"torch", "transformers"} & {*done.stdout.split()}


def test_sorted_batches_cover_the_chosen_sentences(tokenizer):
    corpus = encode(tokenizer, long_sentences(), max_subwords=24)
    for chosen in ([0, 1, 2, 3, 4], [3, 1], range(1, 5, 2)):
        batches = corpus.sorted_batches(4, chosen)
        windows = np.concatenate(batches)
        lengths = corpus.windows.subword_end - corpus.windows.subword_start + 2
        budget = 4 * lengths[windows].mean()
        assert max(len(batch) * lengths[batch].max() for batch in batches) <= budget
        expected = np.flatnonzero(np.isin(corpus.windows.sentence, list(chosen)))
        assert np.array_equal(np.sort(windows), expected)
        assert (np.diff(lengths[windows]) >= 0).all()


@pytest.fixture(scope="module")
def many(tokenizer: SubwordTokenizer) -> EncodedCorpus:
    random = np.random.default_rng(0)
    texts = ["a " * int(n) for n in random.integers(1, 40, 701)]
    return encode(tokenizer, document(*texts, doc=None))


def test_shuffled_batches_cover_everything_once(many):
    batches = many.shuffled_batches(8, seed=3, epoch=1)
    assert sorted(np.concatenate(batches).tolist()) == list(range(701))
    assert sorted(len(batch) for batch in batches) == [5] + [8] * 87


def test_shuffled_batches_are_a_function_of_seed_and_epoch(many):
    def flat(seed: int, epoch: int) -> list[list[int]]:
        return [batch.tolist() for batch in many.shuffled_batches(8, seed, epoch)]

    first = flat(3, 1)
    np.random.seed(0)
    assert flat(3, 1) == first
    assert flat(3, 2) != first and flat(4, 1) != first and flat(1, 3) != first
    assert {tuple(b) for b in flat(3, 2)} != {tuple(b) for b in first}, "not just another order"


def test_shuffled_batches_have_similar_lengths_in_random_order(many):
    sizes = many.windows.words
    batches = many.shuffled_batches(8, seed=0, epoch=0)
    spread = np.mean([np.ptp(sizes[batch]) for batch in batches])
    assert spread < 3 < np.ptp(sizes) / 3
    means = np.array([sizes[batch].mean() for batch in batches])
    assert abs(np.corrcoef(means[:-1], means[1:])[0, 1]) < 0.4


def test_a_row_does_not_depend_on_its_batch(tokenizer, nested_sentences):
    sentences = [*nested_sentences[:6], *long_sentences()[3:]]
    corpus = encode(
        tokenizer, sentences, sorted({"A"} | {e.label for s in sentences for e in s.entities}),
        context=1, max_subwords=60, character_filters=4,
    )  # fmt: skip
    order = np.random.default_rng(0).permutation(len(corpus))
    together = corpus.batch(order)
    for row, window in enumerate(order):
        alone = corpus.batch(np.array([window]))
        words = int(alone.lengths[0])
        assert alone.row.tolist() == [0] and together.row[row] == row
        for f in (f for f in fields(Batch) if f.name not in ("row", "labels", "gap_cells")):
            one, among = getattr(alone, f.name)[0], getattr(together, f.name)[row]
            if f.name == "word_of":  # padding has the number of words
                one = np.where(one == words, -1, one)
                among = np.where(among == together.first.shape[1], -1, among)
            cut = tuple(slice(0, n) for n in one.shape)
            assert np.array_equal(one, among[cut]), f.name
            padding = np.array(among)
            padding[cut] = -1 if f.name == "word_of" else 0
            assert (padding <= 0).all(), "the rest is padding"


def test_keys_distinguish_sentences_and_windows(tokenizer):
    texts = ["a b", "a b", "ab", "a B", "a " * 50]
    corpus = encode(tokenizer, document(*texts, doc=None), max_subwords=24)
    keys = everything(corpus).keys.tolist()
    assert keys[0] == keys[1], "the key depends on the words alone"
    assert len(set(keys)) == len(keys) - 1


# Characters


def test_characters_distinguish_case_and_order(tokenizer):
    corpus = encode(
        tokenizer, document("US us Us su é\u0153 漢", doc=None),
        character_filters=4,
    )  # fmt: skip
    codes = everything(corpus).characters[0]
    assert codes.shape == (6, 2), "no wider than the longest word"
    assert len({tuple(row) for row in codes.tolist()}) == 6
    assert ((codes > 0).sum(-1) == [2, 2, 2, 2, 2, 1]).all(), "0 is padding"
    assert codes.max() < 512


def test_both_ends_of_long_words_are_read(tokenizer):
    start, end = "abcdefghij", "klmnopqrst"
    text = f"{start}xxx{end} {start}xxxyyy{end} {start}{end} abc"
    corpus = encode(tokenizer, document(text, doc=None), character_filters=4)
    long, longer, exact, short = everything(corpus).characters[0].tolist()
    assert long == longer == exact == [ord(c) + 1 for c in start + end]
    assert short == [ord(c) + 1 for c in "abc"] + [0] * 17


@pytest.mark.parametrize(("multiple", "width"), [(1, 7), (4, 8), (32, 20)])
def test_characters_are_as_wide_as_the_longest_word_of_the_batch(tokenizer, multiple, width):
    corpus = encode(
        tokenizer, document("a abcdefg", "b" * 90, doc=None),
        character_filters=4,
    )  # fmt: skip
    codes = corpus.batch(np.array([0]), (1, 1, 1, multiple, 1)).characters
    assert codes.shape == (1, 2, width), "padded, but to no more than is read of a word"
    assert (codes != 0).sum(-1).tolist() == [[1, 7]]
    assert corpus.batch(np.array([1, 0]), (1, 1, 1, multiple, 1)).characters.shape == (2, 2, 20)


def test_no_character_codes_without_character_filters(tokenizer):
    assert everything(encode(tokenizer, document("a b"))).characters.shape == (1, 2, 0)


def test_passages_with_long_sentences_are_divided_by_their_pairs_of_words(tokenizer):
    random = np.random.default_rng(0)
    texts = ["a " * int(n) for n in [*random.integers(1, 6, 60), 30, 2, 25, 3]]
    corpus = encode(tokenizer, document(*texts, doc="d"), passage_words=12)
    everything = corpus.shuffled_batches(1000, seed=0, epoch=0)[0]
    words, rows = corpus.windows.words, corpus.windows.row
    assert len(everything) == len(texts)
    assert [part.tolist() for part in corpus.divide(everything, 10**9)] == [everything.tolist()]
    parts = corpus.divide(everything, 400)
    assert sorted(np.concatenate(parts).tolist()) == list(range(len(texts)))
    whole = [set(rows[part].tolist()) for part in parts]
    assert sum(map(len, whole)) == len(set().union(*whole)), "a row is in one part only"
    for part, its_rows in zip(parts, whole, strict=True):
        assert len(part) * words[part].max() ** 2 <= 400 or len(its_rows) == 1
    assert len(parts) < len(set(rows.tolist())), "short rows share a part"
