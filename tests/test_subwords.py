"""Words to subwords, and the lexicon that remembers them."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from tokenizers import Tokenizer, decoders, models, normalizers, pre_tokenizers, trainers

from diffusionner.batching import subwords
from diffusionner.batching.subwords import SubwordTokenizer, WordCache, WordTable, character_codes
from diffusionner.storage.encoders import load_tokenizer

PAD, UNKNOWN, CLS, SEP = range(4)
TEXT = "Ada met Émile in New-York , didn't she ? 漢字 1,234.5 e.g. xAbC ... \u200b Ada".split()


@pytest.fixture
def tokenizer(encoder_folder: Path) -> SubwordTokenizer:
    return load_tokenizer(encoder_folder, 512)


def pieces(table: WordTable) -> list[list[int]]:
    starts, counts = table.piece_start[table.kinds], table.piece_count[table.kinds]
    return [table.pieces[s : s + n].tolist() for s, n in zip(starts, counts, strict=True)]


def test_special_tokens_are_found(tokenizer):
    assert (tokenizer.prefix, tokenizer.suffix) == ([CLS], [SEP])
    assert (tokenizer.pad, tokenizer.unknown, tokenizer.special_count) == (PAD, UNKNOWN, 2)


def test_pieces_line_up_with_words(tokenizer):
    found = pieces(tokenizer.look_up(["Abc", "d", "e-f", "d"]))
    tokens = [tokenizer.hf.convert_ids_to_tokens(ids) for ids in found]
    assert tokens == [["a", "##b", "##c"], ["d"], ["e", "-", "f"], ["d"]]


@pytest.mark.parametrize("word", ["\u200b", "\x00", "\u200b\u200d", "\ufffd", "漢"])
def test_words_without_subwords_become_unknown(tokenizer, word):
    found = pieces(tokenizer.look_up(["a", word, "bc", word, "d"]))
    tokens = [tokenizer.hf.convert_ids_to_tokens(ids) for ids in found]
    assert tokens == [["a"], ["[UNK]"], ["b", "##c"], ["[UNK]"], ["d"]]


def test_endless_words_are_cut(tokenizer):
    # 100 letters are one token to WordPiece; punctuation is split into single characters.
    assert [len(one) for one in pieces(tokenizer.look_up(["." * 500, "a"]))] == [48, 1]


def trained(kind: str) -> Tokenizer:
    """One tokenizer of each family, learned from a few words."""
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
def test_a_word_alone_has_the_subwords_it_has_in_a_sentence(kind):
    """What lets the lexicon keep words."""
    backend = trained(kind)
    tokenizer = SubwordTokenizer(backend, 512, [], [], pad=0, unknown=0)
    whole = backend.encode(TEXT, is_pretokenized=True, add_special_tokens=False)
    expected: list[list[int]] = [[] for _ in TEXT]
    for piece, word in zip(whole.ids, whole.word_ids, strict=True):
        expected[word].append(piece)
    assert sum(len(one) > 1 for one in expected) > 5
    assert pieces(tokenizer.look_up(TEXT)) == [one or [0] for one in expected]


def test_words_met_before_are_not_tokenised_again(tokenizer, monkeypatch):
    lexicon = WordCache(tokenizer, 4)
    before = lexicon.look_up(["ab", "c"])
    asked: list[str] = []
    plain = tokenizer.subwords_of_each

    def counting(words):
        asked.extend(words)
        return plain(words)

    monkeypatch.setattr(tokenizer, "subwords_of_each", counting)
    after = lexicon.look_up(["c", "new", "ab", "new"])
    assert asked == ["new"]
    assert pieces(after)[::2] == pieces(before)[::-1]
    assert np.array_equal(after.characters[after.kinds[2]], before.characters[before.kinds[0]])


def test_the_lexicon_forgets_and_what_was_handed_out_stays(tokenizer, monkeypatch):
    monkeypatch.setattr(subwords, "MOST_KNOWN", 50)
    monkeypatch.setattr(subwords, "CHUNK", 7)
    lexicon = WordCache(tokenizer, 3)
    first = lexicon.look_up(["abc", "d"])
    expected = pieces(first)
    for number in range(2000):
        word = f"w{number}"
        table = lexicon.look_up([word, "abc"])
        assert pieces(table) == [one.tolist() for one in tokenizer.subwords_of_each([word, "abc"])]
    assert len(lexicon.known) <= 52
    assert pieces(first) == expected


def test_the_lexicon_can_be_asked_from_several_threads(tokenizer):
    lexicon = WordCache(tokenizer, 5)
    texts = [[f"a{i % 97}", f"b{i}", "c"] for i in range(400)]
    with ThreadPoolExecutor(8) as threads:
        found = [pieces(table) for table in threads.map(lexicon.look_up, texts)]
    assert found == [[p.tolist() for p in tokenizer.subwords_of_each(text)] for text in texts]


@pytest.mark.parametrize("at", ["character_codes", "extend"])
def test_an_interrupt_leaves_nothing_half_known(tokenizer, monkeypatch, at):
    lexicon = WordCache(tokenizer, 5)
    lexicon.look_up(["before"])

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    with monkeypatch.context() as patched:
        if at == "extend":  # the last of the columns, when the others have grown
            patched.setattr(lexicon.characters, "extend", interrupt)
        else:
            patched.setattr(subwords, at, interrupt)
        with pytest.raises(KeyboardInterrupt):
            lexicon.look_up(["alpha", "beta"])
    words = ["London", "before", "Paris", "alpha"]
    assert pieces(lexicon.look_up(words)) == [p.tolist() for p in tokenizer.subwords_of_each(words)]


def test_character_codes():
    codes = character_codes(["aB", "abcdefg", "é漢", "\ud800"], 4)
    assert codes[0].tolist() == [ord("a") + 1, ord("B") + 1, 0, 0]
    assert codes[1].tolist() == [ord(c) + 1 for c in "abfg"]
    assert codes[2].tolist() == [ord("é") + 1, 256 + ord("漢") % 256, 0, 0]
    assert codes[3].tolist() == [256 + 0xD800 % 256, 0, 0, 0]
    assert character_codes(["a", "b"], 0).shape == (2, 0)
