"""Candidates of many sentences, denoised document by document.

A document is denoised in blocks of some thousand words, which follow from the document alone. So it
gives the same entities alone, in any batch and in a stream.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import fields
from itertools import pairwise
from operator import itemgetter
from typing import NamedTuple

import numpy as np

from diffusionner.batching import EncodedCorpus, PassageCounter, Windows
from diffusionner.diffusion import Candidates
from diffusionner.diffusion.beliefs import MAX_PAIRS, BeliefDenoiser, CandidateSet, softmax
from diffusionner.inference.decoding import EntityColumns, ScoreRule

BLOCK_WORDS = 2048  # a longer block ends before the next text or sentence given
MAX_BLOCK_WORDS = 4096  # a longer block ends before the next sentence of the same text
KEY_BASE = 0x9E3779B97F4A7C15  # odd, so that it has an inverse modulo 2^64
MAX_CANDIDATES = 2000  # of a block; the others are scored as the initializer does
MIN_BELIEF = 0.005  # that a candidate is an entity, likewise
MAX_INPUTS = 2**16  # candidates times types whose inputs are in memory at a time


class CandidateColumns(NamedTuple):
    """Distinct candidates of many sentences, [N] each."""

    sentence: np.ndarray
    left: np.ndarray  # first word in the sentence
    right: np.ndarray  # last word
    logits: np.ndarray  # [N, C + 1]


class BlockCounter:
    """Numbers the blocks of documents, sentence by sentence. They consist of whole passages."""

    def __init__(self, passage_words: int = 0) -> None:
        self.passages = PassageCounter(passage_words)
        self.doc: str | None = None
        self.words = 0
        self.block = -1

    def add(self, doc: str | None, words: int, starts_item: bool = True) -> int:
        """Return the block of the next sentence.

        starts_item: it is the first of a text, or was given on its own.
        """
        limit = BLOCK_WORDS if starts_item else MAX_BLOCK_WORDS
        before = self.passages.number
        is_new = self.passages.add(doc, words) > before
        if doc is None or doc != self.doc or (is_new and self.words >= limit):
            self.block += 1
            self.words = 0
        self.doc = doc
        self.words += words
        return self.block


def document_blocks(corpus: EncodedCorpus, sentences: Sequence[int]) -> np.ndarray:
    """Return the block of each sentence, as if each were given on its own."""
    counter, words = BlockCounter(corpus.passage_words), np.diff(corpus.word_offset).tolist()
    return np.array([counter.add(corpus.docs[i], words[i]) for i in sentences], dtype=np.int64)


def owned_candidates(
    candidates: Candidates[np.ndarray], windows: Windows, chosen: np.ndarray
) -> CandidateColumns:
    """Return the distinct candidates of a batch. Windows keep those whose middle they own."""
    assert candidates.logits is not None
    valid = candidates.slots & (candidates.left <= candidates.right)
    window = np.broadcast_to(chosen[:, None, None], valid.shape)[valid]
    offset = windows.offset[window]
    left, right = candidates.left[valid] + offset, candidates.right[valid] + offset
    middle = (left + right + 1) // 2
    owned = (middle >= windows.owned_start[window]) & (middle < windows.owned_end[window])
    spans = np.stack([windows.sentence[window], left, right], 1)[owned]
    spans, first = np.unique(spans, axis=0, return_index=True)
    sentence, left, right = spans.T
    return CandidateColumns(sentence, left, right, candidates.logits[valid][owned][first])


def candidate_sets(
    columns: CandidateColumns,
    beliefs: np.ndarray,
    corpus: EncodedCorpus,
    sentences: Sequence[int],
    blocks: np.ndarray,
) -> tuple[list[CandidateSet[np.ndarray]], list[np.ndarray]]:
    """Return the candidates of each block, [1, N], and their places in the columns.

    Those that are hardly believed to be entities are left out.
    beliefs: [N, C + 1] probabilities before the first step.
    """
    place = np.full(len(corpus.docs), -1)
    place[np.asarray(sentences)] = np.arange(len(sentences))
    number = place[columns.sentence]  # of the sentence, in the order of the blocks
    order = np.lexsort((columns.right, columns.left, number))
    no_entity = np.minimum(softmax(columns.logits)[:, -1], beliefs[:, -1])
    order = order[no_entity[order] <= 1 - MIN_BELIEF]
    start = corpus.word_offset[columns.sentence]
    left, right = start + columns.left, start + columns.right
    arrays = (
        columns.logits,
        beliefs,
        number,
        columns.left,
        columns.right,
        *_word_keys(corpus, left, right),
        np.ones(len(number), dtype=bool),
    )
    cuts = np.flatnonzero(np.diff(blocks[number[order]])) + 1
    places = [part for part in np.split(order, cuts) if len(part)]
    return [CandidateSet(*(array[part][None] for array in arrays)) for part in places], places


def _word_keys(corpus: EncodedCorpus, left: np.ndarray, right: np.ndarray) -> list[np.ndarray]:
    """Return hashes of the words of spans, of their first and of their last word, [N] each.

    left, right: words of the corpus. Case does not matter. The hash of several words is a
    polynomial, modulo 2^64: a difference of two sums, divided by the power of the first word.
    """
    _, first, place = np.unique(corpus.word_ids, return_index=True, return_inverse=True)
    spelled = (corpus.words[i].lower().encode("utf-8", "surrogatepass") for i in first.tolist())
    digests = b"".join(hashlib.blake2b(word, digest_size=8).digest() for word in spelled)
    keys = np.frombuffer(digests, dtype="<u8")[place]
    powers = np.cumprod(np.full(len(keys), KEY_BASE, dtype=np.uint64))
    inverses = np.cumprod(np.full(len(keys), pow(KEY_BASE, -1, 2**64), dtype=np.uint64))
    sums = np.concatenate([[np.uint64(0)], np.cumsum(keys * powers)])
    of_span = (sums[right + 1] - sums[left]) * inverses[left]
    return [of_span, keys[left], keys[right]]


def denoise_documents(
    denoiser: BeliefDenoiser,
    columns: CandidateColumns,
    beliefs: np.ndarray,
    corpus: EncodedCorpus,
    sentences: Sequence[int],
    blocks: np.ndarray,
    steps: int,
    rule: ScoreRule,
) -> EntityColumns:
    """Return the entities of all documents that score high enough, overlaps included.

    beliefs: [N, C + 1] probabilities before the first step. With zero steps, candidates are scored
    as the initializer does.
    """
    probabilities = softmax(columns.logits)
    if steps:
        sets, places = candidate_sets(columns, beliefs, corpus, sentences, blocks)
        # Of too many candidates, the likeliest are denoised.
        best = probabilities[:, :-1].max(1)
        for i, place in enumerate(places):
            if len(place) > MAX_CANDIDATES:
                kept = np.sort(np.argsort(-best[place], kind="stable")[:MAX_CANDIDATES])
                sets[i], places[i] = sets[i].map(itemgetter((slice(None), kept))), place[kept]
        sizes = [one.left.shape[1] for one in sets]
        for group in group_documents(sizes, MAX_PAIRS, MAX_INPUTS // columns.logits.shape[1]):
            padded = pad_documents([sets[i] for i in group])
            denoised = denoiser(padded, steps)
            chosen = np.concatenate([places[i] for i in group])
            probabilities[chosen] = denoised[padded.present]
    type_id = probabilities[:, :-1].argmax(1)
    summed = 3 * np.take_along_axis(probabilities, type_id[:, None], 1)[:, 0]
    passed = summed >= rule.min_sums[type_id]
    sentence, left, right, _ = columns
    summed = summed[passed]
    votes = np.ones(len(summed), dtype=np.int64)
    return EntityColumns(
        sentence[passed], left[passed], right[passed], type_id[passed], summed,
        rule.scores(summed), votes,
    )  # fmt: skip


def group_documents(
    sizes: Sequence[int], max_pairs: int, max_spans: int, max_documents: int | None = None
) -> list[list[int]]:
    """Group documents of similar size; the limits hold for a padded group of several documents."""
    order = np.argsort(sizes, kind="stable").tolist()
    cuts = [0]
    for index, document in enumerate(order):
        count = index + 1 - cuts[-1]
        if count > 1 and (
            count * sizes[document] ** 2 > max_pairs
            or count * sizes[document] > max_spans
            or count > (max_documents or len(sizes))
        ):
            cuts.append(index)
    return [order[a:b] for a, b in pairwise([*cuts, len(order)]) if b > a]


def pad_documents(sets: Sequence[CandidateSet[np.ndarray]]) -> CandidateSet[np.ndarray]:
    """Join sets of one document each, [1, N], padded to the same number of candidates."""
    most = max(one.left.shape[1] for one in sets)

    def padded(name: str) -> np.ndarray:
        first = getattr(sets[0], name)
        joined = np.zeros((len(sets), most, *first.shape[2:]), dtype=first.dtype)
        for row, one in zip(joined, sets, strict=True):
            row[: one.left.shape[1]] = getattr(one, name)[0]
        return joined

    return CandidateSet(*(padded(f.name) for f in fields(CandidateSet)))
