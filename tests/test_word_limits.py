"""A model reads no more words at once than it was trained on, whatever the text looks like."""

from __future__ import annotations

import json
from collections.abc import Sequence
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from corpus_files import EXCERPT
from hypothesis import given, settings
from hypothesis import strategies as st
from plain import plain_encoder

from benchmarks.word_limits import word_limits
from diffusionner import DiffusionNER, formats
from diffusionner.batching import EncodedCorpus
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import CheckpointError
from diffusionner.storage.config import read_config
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.word_limits import WordLimits
from models import assert_same, lively_model

LIMITS = WordLimits(sentence=12, separators=2, window=6)
VALID = {"sentence": 5, "separators": 1, "window": 2}


@pytest.fixture(scope="module")
def tokenizer(encoder_folder: Path) -> SubwordTokenizer:
    tokenizer = load_tokenizer(encoder_folder, limit=128)
    tokenizer.word_limits = LIMITS
    return tokenizer


def plan(tokenizer: SubwordTokenizer, *sentences: Sequence[str], context: int = 0) -> EncodedCorpus:
    chosen = plain_encoder(max_subwords=64, context=context)
    return EncodedCorpus([Sentence(list(s), doc="d") for s in sentences], tokenizer, chosen)


def lengths(corpus: EncodedCorpus, sentence: int = 0) -> list[int]:
    return corpus.windows.words[corpus.windows.sentence == sentence].tolist()


def test_sentences_within_the_limit_are_read_whole(tokenizer):
    corpus = plan(tokenizer, ["w"], "a b c d e f g h i j k l".split(), "a b c , d e f".split())
    assert corpus.windows.words.tolist() == [1, 12, 7]


def test_a_longer_sentence_is_read_in_windows(tokenizer):
    corpus = plan(tokenizer, "a b c d e f g h i j k l m".split())
    assert lengths(corpus) == [6, 6, 6, 4]
    assert corpus.windows.offset.tolist() == [0, 3, 6, 9]


def test_a_list_is_read_a_few_items_at_a_time(tokenizer):
    """It is short enough to be read whole, but has three separators."""
    corpus = plan(tokenizer, "a b c , d e , f g , h".split())
    assert max(lengths(corpus)) <= 3 + 1


def test_a_repeated_word_is_read_alone(tokenizer):
    assert lengths(plan(tokenizer, ["w"] * 20)) == [1] * 20
    assert lengths(plan(tokenizer, "a a b b".split())) == [4], "twice is ordinary text"


@pytest.mark.parametrize("phrase", ["a b", "a b c", "a b c d", "a a b"])
def test_a_repeated_phrase_is_read_alone(tokenizer, phrase):
    words = phrase.split()
    corpus = plan(tokenizer, words * 5, words * 2, ["a", "b", *words])
    assert lengths(corpus) == [len(words)] * 5
    assert corpus.windows.owned_start[:5].tolist() == corpus.windows.offset[:5].tolist()
    assert lengths(corpus, 1) == [2 * len(words)], "twice is ordinary text"
    assert lengths(corpus, 2) == [2 + len(words)], "of two sentences"


def test_a_separator_between_items_is_no_phrase(tokenizer):
    """Only the commas are repeated."""
    commas = plan(tokenizer, "a , b , c , d , e , f".split())
    assert lengths(commas) == lengths(plan(tokenizer, "a , b ; c , d ; e , f".split()))


def test_windows_do_not_depend_on_neighbours(tokenizer):
    """A word at the end of one sentence and the start of the next is not repeated."""
    words = ["a", *"b c d e f g h i j k".split(), "a"]
    assert plan(tokenizer, words, words, ["a"], ["a"]).windows.words.tolist() == [12, 12, 1, 1]


def test_only_a_model_trained_with_context_gets_context(tokenizer):
    words = [f"w{i}" for i in range(40)]
    without = plan(tokenizer, words).windows
    own = plan(tokenizer, words).subword_offset
    assert (without.subword_start == own[without.word_start]).all()
    assert (without.subword_end == own[without.word_start + without.words]).all()
    within = plan(tokenizer, words, context=1)
    start, end = within.windows.subword_start, within.windows.subword_end
    before = own[within.windows.word_start] - start
    assert before[0] == 0 and before[5] > 0
    # as much as a neighbouring sentence of training, not the whole text
    first = within.word_of_subword[start]
    last = within.word_of_subword[end - 1]
    assert (first >= within.windows.word_start - LIMITS.window).all()
    assert (last < within.windows.word_start + within.windows.words + LIMITS.window).all()


words = st.lists(st.sampled_from(["a", "b", "c", ",", ";", "longerword", "w"]), min_size=1)


@settings(max_examples=60, deadline=None)
@given(st.lists(words, min_size=1, max_size=4))
def test_every_word_belongs_to_one_window(tokenizer, sentences):
    corpus = plan(tokenizer, *sentences)
    w = corpus.windows
    for number, sentence in enumerate(sentences):
        own = np.flatnonzero(w.sentence == number)
        assert w.owned_start[own[0]] == 0 and w.owned_end[own[-1]] == len(sentence)
        assert all(w.owned_end[a] == w.owned_start[b] for a, b in pairwise(own))
        assert (w.offset[own] <= w.owned_start[own]).all()
        assert (w.offset[own] + w.words[own] >= w.owned_end[own]).all()
        if len(sentence) > LIMITS.sentence:
            assert (w.words[own] <= LIMITS.window).all()
        alone = plan(tokenizer, sentence).windows
        assert alone.words.tolist() == w.words[own].tolist()


def test_limits_follow_from_the_training_corpus():
    sentences = [Sentence(["w"] * n) for n in [10] * 94 + [20] * 5 + [300]]
    assert WordLimits.of(sentences) == (20, 0, 13)
    sentences[0].entities = [Span(0, 8, "A")]
    assert WordLimits.of(sentences) == (20, 0, 16), "the entity fits into half of a window"
    sentences[1].words = ["a", ","] * 5
    sentences[2].words = ["a", ";"] * 4
    assert WordLimits.of(sentences) == (20, 5, 16)
    assert WordLimits.of([Sentence(["w"])]) == (2, 0, 2)
    lengths = [Sentence([","] * number) for number in range(1, 1001)]
    assert WordLimits.of(lengths)[:2] == (951, 991)
    assert WordLimits.of(lengths, passages=True)[:2] == (996, 1000), "read in passages"


@pytest.mark.parametrize("limits", [LIMITS, None])
def test_limits_are_stored_with_a_model(encoder_folder, tmp_path, limits):
    ner = lively_model(encoder_folder)
    ner.subwords.word_limits = limits
    ner.save_pretrained(tmp_path / "model")
    assert DiffusionNER.from_pretrained(tmp_path / "model").subwords.word_limits == limits


def test_a_model_of_release_0_1_has_the_default(folder, tmp_path):
    config = read_config(folder)
    del config["word_limits"]
    ner = lively_model_like(folder, tmp_path, config)
    assert ner.subwords.word_limits == WordLimits()
    word_limits(tmp_path, [EXCERPT])
    expected = WordLimits.of(formats.read(EXCERPT))
    assert DiffusionNER.from_pretrained(tmp_path).subwords.word_limits == expected


@pytest.mark.parametrize(
    "values",
    [5, {}, {"sentence": 5}, VALID | {"window": 6}, VALID | {"window": 0},
     VALID | {"sentence": 5.0}, VALID | {"window": True}, VALID | {"separators": -1},
     VALID | {"more": 1}],
)  # fmt: skip
def test_invalid_limits_are_refused(folder, tmp_path, values):
    config = {**read_config(folder), "word_limits": values}
    with pytest.raises(CheckpointError, match="word_limits needs three whole numbers"):
        lively_model_like(folder, tmp_path, config)


def lively_model_like(folder: Path, target: Path, config: dict) -> DiffusionNER:
    """Copy a model with another config.json."""
    for file in folder.iterdir():
        if file.is_file():
            (target / file.name).write_bytes(file.read_bytes())
    (target / "config.json").write_text(json.dumps(config))
    return DiffusionNER.from_pretrained(target)


def test_entities_do_not_depend_on_the_batch(encoder_folder, nested_sentences):
    ner = lively_model(encoder_folder)
    ner.subwords.word_limits = LIMITS
    sentences = [s.words for s in nested_sentences[:8]] + [["w"] * 15, ["w"]]
    alone = [ner.predict_tokens([words])[0] for words in sentences]
    assert_same(ner.predict_tokens(sentences), alone)


# The model `en`


@pytest.fixture(scope="module")
def en() -> DiffusionNER:
    return DiffusionNER.from_pretrained("en", device="cpu")


def test_text_without_punctuation(en):
    """As one stretch, at least 90% of what is found sentence by sentence; 30% without limits."""
    sentences = [[w for w in s.words if w[0].isalnum()] for s in formats.read(EXCERPT)[:100]]
    alone = [entity for found in en.predict_tokens(sentences) for entity in found]
    (stretch,) = en.predict_tokens([[word for s in sentences for word in s]])
    assert len(alone) > 30
    assert len(stretch) >= 0.9 * len(alone)


def test_the_same_name_many_times(en):
    assert len(en("Paris " * 100)) == 100


@pytest.mark.parametrize("name", ["New York", "Bank of America", "Bank of New York"])
def test_the_same_phrase_many_times(en, name):
    found = [entity.text for entity in en("We went to " + f"{name} " * 40)]
    assert found.count(name) >= 0.9 * 40


FIRST = "Ada Charles Mary George Anna Peter Laura".split()
LAST = "Lovelace Babbage Shelley".split()


@pytest.mark.parametrize("separator", [", ", "; ", " and "])
def test_a_list_of_names(en, separator):
    names = [f"{first} {last}" for last in LAST for first in FIRST]
    found = {entity.text for entity in en(separator.join(names))}
    assert len(found & set(names)) >= 0.9 * len(names)
