"""Estimated work of a request.

One unit of work is about a millisecond of one core of the CPU on which the constants were fitted
(`python -m benchmarks work` compares estimates with measurements). The service measures how many
units a second its own machine does.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from itertools import accumulate
from typing import Any

from diffusionner.label_set import DEFAULT_LABELS, LabelSet
from diffusionner.settings import Settings
from diffusionner.text import TextSentence
from diffusionner.word_limits import MAX_PHRASE, SEPARATOR_SIZE, SEPARATORS, WordLimits

LETTERS_PER_SUBWORD = 5.0
LONG_RUN, LETTERS_PER_SUBWORD_OF_LONG = 15, 1.5  # longer runs of letters are in no vocabulary
SPECIAL_SUBWORDS = 2
BATCH = 13.0  # reading the weights, whatever the batch contains
BATCH_STEP = 2.0  # per denoising step
SUBWORD, SUBWORD_SQUARED = 0.42, 0.0005  # encoder, per sentence
STEP = 0.9  # per sentence and denoising step,
SPAN, SPAN_WORD = 0.125, 0.0005  # and for each of its spans
TYPICAL_WORDS = 40  # as in diffusion.sampler, which the HTTP process does not load
_LETTERS = re.compile("[A-Za-z]+")


class WorkEstimate:
    """Estimates the work of sentences for a model and the options of a request."""

    def __init__(
        self,
        settings: Settings,
        options: dict[str, Any],
        limits: WordLimits,
        only_given: bool = False,
        labels: LabelSet | None = None,
    ) -> None:
        """only_given: no other spans than those given are denoised; labels: read with the text."""
        inference = settings.with_inference(options).inference
        self.context = settings.encoder.context
        self.max_subwords = settings.encoder.max_subwords
        self.limits = limits
        self.steps = inference.steps if settings.denoises else 1
        self.spans = inference.spans
        self.only_given = only_given
        self.from_noise = inference.start == "noise"
        self.largest_window = 0.0  # work of one window so far
        self.label_groups, self.label_subwords = 1, 0.0  # which are read with each window
        if settings.reads_labels:
            texts = DEFAULT_LABELS if labels is None else labels.texts
            self.label_groups = 1 if labels is None else len(labels.groups())
            read = sum(_subwords(text.split()) + SPECIAL_SUBWORDS for text in texts)
            self.label_subwords = read / self.label_groups

    @property
    def batch(self) -> float:
        """Work of a batch apart from its sentences."""
        return BATCH + BATCH_STEP * self.steps

    def of_sentences(
        self, sentences: Sequence[TextSentence], given: Sequence[int] | None = None
    ) -> Iterator[float]:
        """Yield the work of each sentence of a text, its neighbours being its context.

        given: number of spans given for each sentence.
        """
        sizes = [_subwords(sentence.words) for sentence in sentences]
        before = list(accumulate(sizes, initial=0.0))
        for i, (sentence, subwords) in enumerate(zip(sentences, sizes, strict=True)):
            last = min(len(sizes), i + 1 + self.context)
            read = before[last] - before[max(0, i - self.context)]
            words, spans = len(sentence.words), given[i] if given else 0
            windows, phrases, phrase = self._windows(sentence.words, subwords)
            if windows + phrases == 1:
                yield self._of_window(words, read, spans)
                continue
            subwords_per_word = subwords / words
            context = 2 * self.context * self.limits.window
            words -= phrases * phrase
            words = min(words, math.ceil(2 * words / windows))  # they overlap by half
            spans_here = math.ceil(2 * spans / (windows + phrases))
            work = 0.0
            for count, size in ((windows, words), (phrases, phrase)):
                read_here = min(read, (size + context) * subwords_per_word)
                work += count * self._of_window(size, read_here, spans_here)
            yield work

    def windows(self, words: Sequence[str]) -> float:
        """Return about how many windows a sentence is read in."""
        windows, phrases, _ = self._windows(words, _subwords(words))
        return windows + phrases

    def _windows(self, words: Sequence[str], subwords: float) -> tuple[float, int, int]:
        """Return the windows of ordinary text, the repeated phrases, and the words of a phrase."""
        phrases, phrase = max(_phrases(words, size) for size in range(MAX_PHRASE, 0, -1))
        repeated = phrases * phrase
        separators = sum(word in SEPARATORS for word in words)
        short = len(words) <= self.limits.sentence
        if short and separators + repeated <= self.limits.separators:
            if subwords <= self.max_subwords:
                return 1, 0, 0
            return 1 + 2 * subwords / self.max_subwords, 0, 0
        size = len(words) - repeated + (SEPARATOR_SIZE - 1) * separators
        subwords *= 1 - repeated / len(words)
        windows = 1 + 2 * max(size / self.limits.window, subwords / self.max_subwords)
        return windows, phrases, phrase

    def _of_window(self, words: int, subwords: float, given: int) -> float:
        subwords = min(subwords, self.max_subwords) + SPECIAL_SUBWORDS + self.label_subwords
        spans = (given + self.span_count(words)) * (SPAN + SPAN_WORD * words)
        work = subwords * (SUBWORD + SUBWORD_SQUARED * subwords) + self.steps * (STEP + spans)
        work *= self.label_groups
        self.largest_window = max(self.largest_window, work)
        return work

    def span_count(self, words: int) -> float:
        """Return the expected number of own spans; "auto" keeps only likely candidates."""
        if self.only_given:
            return 0
        if isinstance(self.spans, int):
            return self.spans * max(1, words / TYPICAL_WORDS)
        return min(150, 1.5 * words + 6) if self.from_noise else 2 + words / 10


def _phrases(words: Sequence[str], size: int) -> tuple[int, int]:
    """Return about how many phrases of a size stand three times in a row, and the size."""
    triples = zip(words, words[size:], words[2 * size :], strict=False)
    return sum(a == b == c for a, b, c in triples) // size, size


def _subwords(words: Sequence[str]) -> float:
    """Return about how many subwords words have; other characters than letters are one each."""
    runs = [len(run) for run in _LETTERS.findall(" ".join(words))]
    letters, in_long = sum(runs), sum(size for size in runs if size > LONG_RUN)
    others = sum(map(len, words)) - letters
    # One space per word counts as a letter: more are not read.
    usual = (letters - in_long + len(words)) / LETTERS_PER_SUBWORD
    return max(len(words), usual + in_long / LETTERS_PER_SUBWORD_OF_LONG + others)
