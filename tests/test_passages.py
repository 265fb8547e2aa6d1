"""Passages: sentences of a document that are encoded at once."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import torch
from plain import plain_encoder
from services import running

from diffusionner import DiffusionNER, Sentence
from diffusionner.batching import EncodedCorpus, PassageCounter
from diffusionner.batching.subwords import SubwordTokenizer
from diffusionner.batching.windows import number_passages
from diffusionner.inference.documents import BLOCK_WORDS, BlockCounter
from diffusionner.service.worker import Predictor
from diffusionner.storage.encoders import load_tokenizer
from diffusionner.training.api import prepare
from diffusionner.training.plan import PASSAGE_WORDS
from models import assert_same, lively_model, written

LIMIT = 9  # words
TEXTS = [
    "Ada met Bob in Rome .", "He sang .", "Then Eve left for Oslo with Ada and Bob .", "So what ?",
    "Ada .", "It was in May .", "Bob and Eve", "ran to Bonn", "and to Kiel .",
]  # fmt: skip


@pytest.fixture(scope="module")
def tokenizer(encoder_folder: Path) -> SubwordTokenizer:
    return load_tokenizer(encoder_folder, limit=128)


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(
        encoder_folder, f"encoder.passage_words={LIMIT}", "encoder.context=1",
        "decoder.initializer=types", "inference.start=candidates",
    )  # fmt: skip


def document(doc: str = "d", texts: list[str] = TEXTS) -> list[Sentence]:
    return [Sentence(text.split(), doc=doc) for text in texts]


def encode(
    tokenizer: SubwordTokenizer, sentences: list[Sentence], **settings: object
) -> EncodedCorpus:
    chosen = plain_encoder(**{"context": 1, "passage_words": LIMIT, **settings})
    return EncodedCorpus(sentences, tokenizer, chosen)


def row_texts(corpus: EncodedCorpus) -> list[str]:
    """Return what the encoder reads for each window."""
    batch = corpus.batch(np.arange(len(corpus)))
    texts = []
    for row in batch.row:
        shown = batch.subwords[row][batch.attention[row].astype(bool)].tolist()[1:-1]
        tokens = corpus.tokenizer.hf.convert_ids_to_tokens(shown)
        texts.append("".join(t[2:] if t.startswith("##") else f" {t}" for t in tokens).strip())
    return texts


def lower(*texts: str) -> str:
    return " ".join(texts).lower()


# Which sentences are read at once


def test_passages_follow_from_the_document():
    counter = PassageCounter(10)
    sizes = [("a", 4), ("a", 6), ("a", 1), ("a", 30), ("a", 2), ("b", 3), (None, 1), (None, 1)]
    assert [counter.add(*one) for one in sizes] == [0, 0, 1, 2, 3, 4, 5, 6]
    counter = PassageCounter(0)
    assert [counter.add("a", 1) for _ in range(3)] == [0, 1, 2]


def test_first_passages_are_drawn_in_training():
    docs, counts = ["a"] * 40 + ["b"] * 40, [5] * 80
    drawn = [number_passages(docs, counts, 50, np.random.default_rng(i)) for i in range(20)]
    first = {int((one == 0).sum()) for one in drawn}
    assert len(first) > 3 and min(first) >= 3 and max(first) <= 10
    for passages in drawn:
        assert np.isin(np.diff(passages), (0, 1)).all() and passages[40] > passages[39]
        assert np.bincount(passages[passages < passages[39]]).tolist()[1:] == (
            [10] * (int(passages[39]) - 1)
        )
    assert (drawn[0] == number_passages(docs, counts, 50, np.random.default_rng(0))).all()


def test_blocks_consist_of_whole_passages():
    counter, plain = BlockCounter(100), BlockCounter()
    numbers = [(counter.add("d", 30), counter.passages.number) for _ in range(200)]
    starts = [i for i in range(1, 200) if numbers[i][0] != numbers[i - 1][0]]
    assert starts and all(numbers[i][1] != numbers[i - 1][1] for i in starts)
    assert starts != [
        i for i, (a, b) in enumerate(pairwise([plain.add("d", 30) for _ in range(200)])) if a != b
    ]
    assert 30 * starts[0] >= BLOCK_WORDS


def test_sentences_of_a_passage_share_a_row_with_context(tokenizer):
    texts = row_texts(encode(tokenizer, document()))
    assert texts[0] == texts[1] == lower(*TEXTS[:3])
    assert texts[2] == lower(*TEXTS[1:4])
    assert texts[3] == texts[4] == lower(*TEXTS[2:6])
    assert texts[5] == texts[6] == lower(*TEXTS[4:8])
    assert texts[7] == texts[8] == lower(*TEXTS[6:])
    alone = encode(tokenizer, [Sentence(s.words) for s in document()])
    assert row_texts(alone) == [text.lower() for text in TEXTS]


@pytest.mark.parametrize("context", [0, 1, 3])
def test_words_align_with_subwords(tokenizer, context):
    corpus = encode(tokenizer, [*document("a"), *document("b")], context=context, max_subwords=100)
    order = np.random.default_rng(0).permutation(len(corpus))
    batch = corpus.batch(order)
    assert len(batch.subwords) < len(batch.lengths)
    for number, window in enumerate(order):
        words = TEXTS[corpus.windows.sentence[window] % len(TEXTS)].split()
        assert batch.lengths[number] == len(words)
        for place, word in enumerate(words):
            own = batch.first[number, 0] + np.flatnonzero(batch.word_of[number] == place)
            shown = batch.subwords[batch.row[number], own].tolist()
            assert shown == tokenizer.subwords_of_each([word])[0].tolist()
            assert batch.first[number, place] == own[0]


def test_a_passage_that_does_not_fit_is_read_by_sentence(tokenizer):
    by_sentence = encode(tokenizer, document(), passage_words=0, max_subwords=44)
    corpus = encode(tokenizer, document(), passage_words=25, max_subwords=44)
    texts, expected = row_texts(corpus), row_texts(by_sentence)
    assert texts[:5] == expected[:5] and len(set(texts[5:])) == 1 and texts[5] != expected[5]
    assert corpus.windows.sentence.tolist() == by_sentence.windows.sentence.tolist()


def test_batches_keep_rows_whole(tokenizer):
    corpus = encode(tokenizer, [s for n in range(9) for s in document(f"{n}")])
    for batches in (
        corpus.sorted_batches(7, range(len(corpus.docs))),
        corpus.shuffled_batches(7, 0, 0),
    ):
        assert len(batches) > 5
        assert sorted(np.concatenate(batches).tolist()) == list(range(len(corpus)))
        rows = [set(corpus.windows.row[batch].tolist()) for batch in batches]
        assert sum(map(len, rows)) == len(set().union(*rows))
    before = corpus.windows.row.copy()
    corpus.draw_passages(0, 1)
    assert (corpus.windows.row != before).any() and len(corpus.windows.row) == len(before)


# Predictions


def found(ner: DiffusionNER, sentences: list[Sentence], **options: object) -> list[object]:
    words, docs = [s.words for s in sentences], [s.doc for s in sentences]
    return ner.predict_tokens(words, docs, **options)


def test_a_document_is_the_same_in_any_batch(ner: DiffusionNER):
    first, second = document("a"), document("b", TEXTS[::-1])
    alone = [*found(ner, first), *found(ner, second)]
    assert sum(map(len, alone)) > 20
    for size in (1, 4, 50):
        assert_same(found(ner, [*first, *second], batch_size=size), alone)
    decoded = ner.decode_sentences([*first, *second])
    for entities, expected in zip(decoded, alone, strict=True):
        spans = [(left, right + 1) for left, right, *_ in entities]
        assert spans == [(e.start, e.end) for e in expected]


def test_a_mention_depends_on_its_passage(ner: DiffusionNER):
    changed = [*TEXTS[:4], "Xy .", *TEXTS[5:]]
    one, other = found(ner, document()), found(ner, document(texts=changed))
    differ = [
        [e.score for e in ours] != pytest.approx([e.score for e in theirs], abs=1e-9)
        for ours, theirs in zip(one, other, strict=True)
    ]
    # Sentences 3 and 4 are a passage; that of 5 and 6 has the last of them as context.
    assert differ == [False, False, False, True, True, True, True, False, False]


def test_empty_texts_and_texts_without_documents(ner: DiffusionNER):
    texts = ["", " ".join(TEXTS), "", "", TEXTS[0]]
    alone = [ner(text) for text in texts]
    for size in (1, 3):
        assert_same(list(ner.pipe(texts, batch_size=size)), alone)


def test_the_service_answers_as_the_library(ner: DiffusionNER):
    text = " ".join(TEXTS)
    expected = [written(entity) for entity in ner(text)]
    with running(Predictor(ner)) as client:
        answer = client.post("/v1/entities", json={"texts": [text, "Ada .", text]}).json()
    for number in (0, 2):
        entities = answer["results"][number]["entities"]
        assert len(entities) == len(expected) > 12
        for ours, theirs in zip(entities, expected, strict=True):
            assert (ours["start"], ours["end"]) == (theirs["start"], theirs["end"])
            assert ours["score"] == pytest.approx(theirs["score"], abs=1e-4)


# Training


def test_documents_are_trained_in_passages(encoder_folder: Path, nested_sentences, tmp_path: Path):
    def setting(sentences: list[Sentence]) -> int:
        run = prepare(encoder_folder, [f"training.output={tmp_path}/run"], sentences, sentences)
        return run.settings.encoder.passage_words

    alone = [Sentence(s.words, s.entities) for s in nested_sentences]
    joined = [Sentence(s.words, s.entities, doc="d") for s in nested_sentences]
    assert setting(alone) == 0 and setting(joined) == PASSAGE_WORDS


def test_states_are_those_of_the_row(ner: DiffusionNER):
    """A sentence has the same states alone and among others of its passage."""
    corpus = EncodedCorpus(document(), ner.subwords, ner.settings.encoder)
    together = corpus.batch(np.arange(len(corpus)))
    with torch.inference_mode():
        states = ner.network.encode(together.map(torch.as_tensor)).states
        for i in range(len(corpus)):
            one = corpus.batch(np.array([i]))
            alone = ner.network.encode(one.map(torch.as_tensor)).states[0]
            assert torch.allclose(alone, states[i, : len(alone)], atol=1e-5)
