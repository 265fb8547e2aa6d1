"""Everything that can be wrong with a corpus, found by file and line."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.data.ceiling import Reach, Room, Window
from diffusionner.data.findings import Findings, Severity
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.data.overlaps import crossing
from diffusionner.diffusion.span_counts import fewest
from diffusionner.errors import DataError
from diffusionner.settings import Settings

_BATCH = 256  # sentences that are given to the tokenizer together
_EXCERPT = 60  # characters of a sentence or an entity that a message shows


@dataclass
class CheckedFile:
    path: Path
    fingerprint: Fingerprint | None = None  # None if it has errors
    reach: Reach = field(default_factory=Reach)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "fingerprint": self.fingerprint.to_dict() if self.fingerprint else None,
            **self.reach.to_dict(),
        }


class Checker:
    """Goes through files one after the other; some things only show between them."""

    def __init__(
        self, settings: Settings, room: Room, findings: Findings, several: bool, rare: int
    ) -> None:
        """several: files are compared with each other, which takes memory; rare: see `finish`."""
        self.settings = settings
        self.room = room
        self.findings = findings
        self.several = several
        self.rare = rare
        self.known_labels: set[str] | None = None  # of the training corpus
        self.labels: Counter[str] = Counter()
        self.label_places: dict[str, str] = {}  # where each stands first
        self.files = 0
        # By the hash of a sentence's words: the number of each file it is in, and where first.
        self.seen: dict[int, list[tuple[int, str]]] = {}

    def compare_with(self, path: Path, format: str | None, train: bool) -> None:
        """Remember a file, which must be in order, to hold those that follow against it.

        train: its labels, with those of other such files, are all that there may be.
        """
        self.files += 1
        labels = self.known_labels or set()
        for sentence in formats.iterate(path, format):
            self._remember(sentence)
            if train:
                labels.update(span.label for span in sentence.entities)
        if train:
            self.known_labels = labels

    def check(self, path: Path, format: str | None, train: bool = False) -> CheckedFile:
        """train: the labels of the files that follow must be among this one's."""
        self.files += 1
        errors = self.findings.count(Severity.ERROR)
        result = CheckedFile(path)
        labels: set[str] = set()
        found = fingerprint(self._checked(path, format, result.reach, labels))
        if train:
            self.known_labels = labels
            if not labels:
                self.findings.add(
                    "nothing-to-learn", str(path), "no entities, so there is nothing to learn"
                )
        if self.findings.count(Severity.ERROR) == errors:
            result.fingerprint = found
        return result

    def finish(self) -> None:
        """Report what only all files together tell: labels that are rare, or almost the same."""
        by_case = sorted(self.labels, key=lambda label: (label.casefold(), -self.labels[label]))
        for _, group in groupby(by_case, key=str.casefold):
            first, *others = group
            for label in others:
                self.findings.add(
                    "label-case", self.label_places[label],
                    f"label {label} ({self.labels[label]} times) differs only by case from {first} "
                    f"({self.labels[first]} times, first at {self.label_places[first]})",
                )  # fmt: skip
        for label in sorted(self.labels):
            if self.labels[label] < self.rare:
                self.findings.add(
                    "rare-label", self.label_places[label],
                    f"label {label} occurs {_times(self.labels[label])}, first here",
                )  # fmt: skip

    def _checked(
        self, path: Path, format: str | None, reach: Reach, labels: set[str]
    ) -> Iterator[Sentence]:
        """The sentences of a file, each looked at from all sides."""
        refused: list[DataError] = []
        documents: set[str] = set()
        doc: str | None = None
        waiting: list[Sentence] = []  # for the tokenizer
        count = 0
        for sentence in self._read(path, format, refused):
            count += 1
            if sentence.doc is not None and sentence.doc != doc and sentence.doc in documents:
                self.findings.add(
                    "scattered", sentence.where,
                    f"document {sentence.doc} goes on here, after sentences that are not of it",
                )  # fmt: skip
            doc = sentence.doc
            if doc is not None:
                documents.add(doc)
            yield sentence
            if not sentence.words:
                self.findings.add("no-words", sentence.where, "the sentence has no words")
                continue
            sentence.entities = self._check_entities(sentence)
            labels.update(span.label for span in sentence.entities)
            if self.several:
                self._compare(sentence)
            if self.room.surely_fits(sentence.words):
                whole = len(sentence.words)
                self._check_windows(sentence, 0, [Window(0, whole, 0, whole)], reach)
                continue
            waiting.append(sentence)
            if len(waiting) == _BATCH:
                self._cut(waiting, reach)
                waiting = []
        self._cut(waiting, reach)
        for error in refused:
            self.findings.add("unreadable", *_place(str(error), str(path)))
        if not count and not refused:
            self.findings.add("unreadable", str(path), "the file holds no sentences")

    def _read(self, path: Path, format: str | None, refused: list[DataError]) -> Iterator[Sentence]:
        try:
            yield from formats.unchecked(path, format, refused)
        except DataError as error:  # of no known format, for instance
            refused.append(error)

    def _check_entities(self, sentence: Sentence) -> list[Span]:
        """The entities that are sound, each once."""
        words = sentence.words
        sound: dict[Span, int] = {}
        for span in sentence.entities:
            start, end, label = span
            if start >= end:
                self._add(
                    "empty", sentence, f"entity {label} [{start}, {end}) holds no word; "
                    "remove it, or correct its end, which is exclusive",
                )  # fmt: skip
            elif start < 0 or end > len(words):
                self._add(
                    "out-of-range", sentence, f"entity {label} [{start}, {end}) lies outside its "
                    f"sentence of {len(words)} words; offsets count words from 0, end exclusive",
                )  # fmt: skip
            else:
                sound[span] = sound.get(span, 0) + 1
        for span, times in sound.items():
            self._check_span(sentence, span, times)
        for one, other in crossing(sound):
            self._add("crossing", sentence, f"{_show(one, words)} and {_show(other, words)} cross")
        for (start, end), group in groupby(sorted(sound), key=lambda span: span[:2]):
            names = [span.label for span in group]
            if len(names) > 1:
                text = _excerpt(words[start:end])
                self._add(
                    "two-labels", sentence, f"{text} [{start}, {end}) has labels {', '.join(names)}"
                )
        for parts, label in sentence.irregular:
            places = " and ".join(f"{start}-{end}" for start, end in parts)
            kind, how = "discontinuous", f"is in {len(parts)} parts"
            if len(parts) == 1:
                kind, how = "misaligned", "begins or ends within a word"
            self._add(kind, sentence, f"annotation {label} at characters {places} {how}")
        return list(sound)

    def _check_span(self, sentence: Sentence, span: Span, times: int) -> None:
        words, label = sentence.words, span.label
        self.labels[label] += 1
        self.label_places.setdefault(label, sentence.where)
        if times > 1:
            self._add("duplicate", sentence, f"{_show(span, words)} stands there {_times(times)}")
        if self.known_labels is not None and label not in self.known_labels:
            self._add(
                "unknown-label", sentence, f"label {label} does not occur in the training corpus"
            )
        if _is_punctuation(words[span.start]) or _is_punctuation(words[span.end - 1]):
            self._add(
                "punctuation", sentence, f"{_show(span, words)} begins or ends with punctuation"
            )

    def _cut(self, sentences: Sequence[Sentence], reach: Reach) -> None:
        if sentences:
            for sentence, length, windows in self.room.cut(sentences):
                self._check_windows(sentence, length, windows, reach)

    def _check_windows(
        self, sentence: Sentence, length: int, windows: Sequence[Window], reach: Reach
    ) -> None:
        if len(windows) > 1:
            self._add(
                "long-sentence", sentence, f"{length} {self.room.unit}, where the encoder has room "
                f"for {self.room.size}: it is read in {len(windows)} overlapping windows",
            )  # fmt: skip
        for span in reach.add(sentence, sentence.entities, windows, self.settings.inference):
            self._add(
                "cut-entity", sentence,
                f"no window of {self.room.size} {self.room.unit} holds all of "
                f"{_show(span, sentence.words)}",
            )  # fmt: skip
        training = self.settings.diffusion.spans
        if len(sentence.entities) <= min(training, fewest(self.settings.inference.spans)):
            return
        for window in windows:
            inference = window.spans(self.settings.inference)
            inside = [span for span in sentence.entities if window.holds(span)]
            if len(inside) > training:
                self._add(
                    "crowded",
                    sentence,
                    f"{len(inside)} entities in a window, but diffusion.spans={training}: "
                    "training sees a random choice of them at a time",
                )
            different = len({span[:2] for span in inside})
            if different > inference:
                self._add(
                    "crowded",
                    sentence,
                    f"{different} spans in a window that gets {inference} (inference.spans): "
                    "more cannot be found",
                )

    def _compare(self, sentence: Sentence) -> None:
        others = self._remember(sentence)
        if others:
            kind = "leakage" if sentence.entities or sentence.irregular else "repeated"
            self._add(kind, sentence, f"{_excerpt(sentence.words)} stands at {others[0]} too")

    def _remember(self, sentence: Sentence) -> list[str]:
        """Where these words stand in files before this one."""
        places = self.seen.setdefault(hash(tuple(sentence.words)), [])
        if not places or places[-1][0] != self.files:
            places.append((self.files, sentence.where))
        return [where for file, where in places if file != self.files]

    def _add(self, kind: str, sentence: Sentence, message: str) -> None:
        self.findings.add(kind, sentence.where, message)


def _place(error: str, path: str) -> tuple[str, str]:
    """The file and line that an error names, and what it says about them."""
    at = error.find(": ", len(path))
    if at < 0 or not error.startswith(path):
        return path, error
    return error[:at], error[at + 2 :]


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(c)[0] == "P" or c.isspace() for c in word)


def _show(span: Span, words: Sequence[str]) -> str:
    start, end, label = span
    return f"{label} {_excerpt(words[start:end])} [{start}, {end})"


def _excerpt(words: Sequence[str]) -> str:
    text = " ".join(words)
    return f"'{text}'" if len(text) <= _EXCERPT else f"'{text[:_EXCERPT]}...'"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
