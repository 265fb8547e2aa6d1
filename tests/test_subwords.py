"""Words to subwords, and the cache of words seen before."""

from __future__ import annotations

import json
import tracemalloc
from base64 import b64encode
from concurrent.futures import ThreadPoolExecutor
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from diffusionner.batching import subwords
from diffusionner.batching.subwords import (
    SubwordTokenizer,
    WordCache,
    WordTable,
    character_codes,
    parse_backend,
)
from diffusionner.storage.encoders import load_tokenizer

PAD, UNKNOWN, CLS, SEP = range(4)
TEXT = "Ada met Émile in New-York , didn't she ? 漢字 1,234.5 e.g. xAbC ... \u200b Ada".split()


@pytest.fixture
def tokenizer(encoder_folder: Path) -> SubwordTokenizer:
    return load_tokenizer(encoder_folder, 512)


def subwords_of(table: WordTable) -> list[list[int]]:
    starts, counts = table.subword_start[table.word_ids], table.subword_count[table.word_ids]
    return [table.subwords[s : s + n].tolist() for s, n in zip(starts, counts, strict=True)]


def test_special_tokens_are_detected(tokenizer):
    assert (tokenizer.prefix, tokenizer.suffix) == ([CLS], [SEP])
    assert (tokenizer.pad, tokenizer.unknown, tokenizer.special_count) == (PAD, UNKNOWN, 2)


def test_subwords_align_with_words(tokenizer):
    found = subwords_of(tokenizer.look_up(["Abc", "d", "e-f", "d"]))
    tokens = [tokenizer.hf.convert_ids_to_tokens(ids) for ids in found]
    assert tokens == [["a", "##b", "##c"], ["d"], ["e", "-", "f"], ["d"]]


@pytest.mark.parametrize("word", ["\u200b", "\x00", "\u200b\u200d", "\ufffd", "漢"])
def test_words_without_subwords_become_unknown(tokenizer, word):
    found = subwords_of(tokenizer.look_up(["a", word, "bc", word, "d"]))
    tokens = [tokenizer.hf.convert_ids_to_tokens(ids) for ids in found]
    assert tokens == [["a"], ["[UNK]"], ["b", "##c"], ["[UNK]"], ["d"]]


def test_very_long_words_are_truncated(tokenizer):
    # 100 letters are one token to WordPiece; punctuation is split into single characters.
    assert [len(one) for one in subwords_of(tokenizer.look_up(["." * 500, "a"]))] == [100, 1]


def trained(kind: str) -> Tokenizer:
    """Return a tokenizer of the given family, trained on a few words."""
    alphabet = pre_tokenizers.ByteLevel.alphabet()
    if kind == "wordpiece":
        backend = Tokenizer(models.WordPiece(unk_token="[UNK]"))
        backend.normalizer = normalizers.BertNormalizer(lowercase=True)
        backend.pre_tokenizer = pre_tokenizers.BertPreTokenizer()
        trainer = trainers.WordPieceTrainer(vocab_size=60, special_tokens=["[UNK]"])
    elif kind == "bytes":
        backend = Tokenizer(models.BPE())
        backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=True)
        trainer = trainers.BpeTrainer(vocab_size=300, initial_alphabet=alphabet)
    else:
        backend = Tokenizer(models.Unigram())
        backend.normalizer = normalizers.NFKC()
        scheme = "always" if kind == "unigram" else "first"
        backend.pre_tokenizer = pre_tokenizers.Metaspace(prepend_scheme=scheme)
        backend.decoder = decoders.Metaspace()
        trainer = trainers.UnigramTrainer(
            vocab_size=80, special_tokens=["<unk>"], unk_token="<unk>"
        )
    backend.train_from_iterator(TEXT * 3, trainer)
    return backend


@pytest.mark.parametrize("kind", ["wordpiece", "bytes", "unigram", "unigram-first"])
def test_the_subwords_of_a_word_do_not_depend_on_its_sentence(kind):
    """The cache relies on this."""
    backend = trained(kind)
    tokenizer = SubwordTokenizer(backend, 512, [], [], pad=0, unknown=0)
    whole = backend.encode(TEXT, is_pretokenized=True, add_special_tokens=False)
    expected: list[list[int]] = [[] for _ in TEXT]
    for subword, word in zip(whole.ids, whole.word_ids, strict=True):
        expected[word].append(subword)
    assert sum(len(one) > 1 for one in expected) > 5
    assert subwords_of(tokenizer.look_up(TEXT)) == [one or [0] for one in expected]


def test_known_words_are_not_tokenised_again(tokenizer, monkeypatch):
    cache = WordCache(tokenizer, 4)
    before = cache.look_up(["ab", "c"])
    asked: list[str] = []
    plain = tokenizer.subwords_of_each

    def counting(words):
        asked.extend(words)
        return plain(words)

    monkeypatch.setattr(tokenizer, "subwords_of_each", counting)
    after = cache.look_up(["c", "new", "ab", "new"])
    assert asked == ["new"]
    assert subwords_of(after)[::2] == subwords_of(before)[::-1]
    assert np.array_equal(
        after.characters[after.word_ids[2]], before.characters[before.word_ids[0]]
    )


def test_tables_stay_valid_when_the_cache_is_emptied(tokenizer, monkeypatch):
    monkeypatch.setattr(subwords, "CHUNK", 7)
    cache = WordCache(tokenizer, 3)
    monkeypatch.setattr(subwords, "MAX_CACHED_BYTES", cache.size + 50 * 160)
    first = cache.look_up(["abc", "d"])
    expected = subwords_of(first)
    for number in range(2000):
        word = f"w{number}"
        table = cache.look_up([word, "abc"])
        assert subwords_of(table) == [
            one.tolist() for one in tokenizer.subwords_of_each([word, "abc"])
        ]
    assert 0 < len(cache.ids) <= 52
    assert subwords_of(first) == expected


@pytest.mark.parametrize(
    "tail", ["." * 60, "x" * 1000, "漢" * 300, ""], ids=["subwords", "long", "wide", "short"]
)
def test_the_cache_is_bounded_in_bytes(tokenizer, monkeypatch, tail):
    limit = 2**19
    monkeypatch.setattr(subwords, "MAX_CACHED_BYTES", limit)
    cache = WordCache(tokenizer, 20)
    sizes: list[int] = []
    tracemalloc.start()
    before = tracemalloc.get_traced_memory()[0]
    for call in range(30):
        cache.look_up([f"{call}-{number}{tail}" for number in range(100)])
        sizes.append(cache.size)
        used = tracemalloc.get_traced_memory()[0] - before
        assert sizes[-1] <= limit and used < 1.1 * sizes[-1] + 2**17
    tracemalloc.stop()
    assert max(sizes) > limit / 4  # words stay as long as there is room
    assert any(one > other for one, other in pairwise(sizes))  # and it was emptied


def test_the_cache_is_thread_safe(tokenizer):
    cache = WordCache(tokenizer, 5)
    texts = [[f"a{i % 97}", f"b{i}", "c"] for i in range(400)]
    with ThreadPoolExecutor(8) as threads:
        found = [subwords_of(table) for table in threads.map(cache.look_up, texts)]
    assert found == [[p.tolist() for p in tokenizer.subwords_of_each(text)] for text in texts]


@pytest.mark.parametrize("at", ["character_codes", "extend"])
def test_an_interrupt_leaves_no_word_half_added(tokenizer, monkeypatch, at):
    cache = WordCache(tokenizer, 5)
    cache.look_up(["before"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if at == "extend":  # one of the last arrays, when others have grown
            patched.setattr(cache.characters, "extend", interrupt)
        else:
            patched.setattr(subwords, at, interrupt)
        with pytest.raises(KeyboardInterrupt):
            cache.look_up(["alpha", "beta"])
    words = ["London", "before", "Paris", "alpha"]
    assert subwords_of(cache.look_up(words)) == [
        p.tolist() for p in tokenizer.subwords_of_each(words)
    ]


def test_lone_surrogates_are_replaced(tokenizer):
    words = ["Ada", "\ud800", "Lon\udc00don", "London"]
    ada, _, london, whole = tokenizer.subwords_of_each(words)
    assert ada.tolist() == tokenizer.subwords_of_each(["Ada"])[0].tolist()
    assert whole.tolist() == tokenizer.subwords_of_each(["London"])[0].tolist()
    assert london.tolist() == tokenizer.subwords_of_each(["Lon\ufffddon"])[0].tolist()


REPLACE = {"type": "Replace", "pattern": {"String": "a"}, "content": "aa"}
ANYWHERE = {"type": "Replace", "pattern": {"Regex": "z*"}, "content": "b"}
NOWHERE = {"type": "Replace", "pattern": {"String": ""}, "content": "b"}
BYTES = {"type": "ByteLevel", "add_prefix_space": False, "trim_offsets": True, "use_regex": False}
MAP = (4).to_bytes(4, "little") + bytes(4) + b"b" * 1001 + b"\0"


@pytest.mark.parametrize(
    "changes",
    [
        {"normalizer": [REPLACE | {"content": "a" * 1000}] * 3},
        {"normalizer": [{"type": "Prepend", "prepend": "a" * 10**6}]},
        {"normalizer": [REPLACE] * 10},
        {"normalizer": [ANYWHERE] * 10},
        {"normalizer": [NOWHERE] * 10},
        {"normalizer": [{"type": "ByteLevel"}] * 10},
        {"pre_tokenizer": [BYTES] * 10},
        {"normalizer": [{"type": "Precompiled", "precompiled_charsmap": b64encode(MAP).decode()}]},
    ],
)
def test_tokenizers_that_inflate_texts_are_refused(tokenizer, changes):
    values = json.loads(tokenizer.backend.to_str())
    for name, steps in changes.items():
        values[name] = {"type": "Sequence", f"{name}s".replace("_", ""): steps}
    with pytest.raises(ValueError, match="times longer"):
        parse_backend(json.dumps(values).encode())


def test_tokenizers_may_replace_characters(tokenizer):
    values = json.loads(tokenizer.backend.to_str())
    values["normalizer"] = {"type": "Sequence", "normalizers": [REPLACE, ANYWHERE] * 2}
    assert parse_backend(json.dumps(values).encode()).normalizer.normalize_str("a")


def test_character_codes():
    codes = character_codes(["aB", "abcdefg", "é漢", "\ud800"], 4)
    assert codes[0].tolist() == [ord("a") + 1, ord("B") + 1, 0, 0]
    assert codes[1].tolist() == [ord(c) + 1 for c in "abfg"]
    assert codes[2].tolist() == [ord("é") + 1, 256 + ord("漢") % 256, 0, 0]
    assert codes[3].tolist() == [256 + 0xD800 % 256, 0, 0, 0]
    assert character_codes(["a", "b"], 0).shape == (2, 0)
