"""Checks of corpora for errors and anomalies, each reported by file and line."""

from __future__ import annotations

import unicodedata
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from itertools import groupby
from pathlib import Path
from typing import Any

from diffusionner import formats
from diffusionner.corpus import ELLIPSIS, MAX_FRAGMENTS, Discontinuous, Sentence, Span
from diffusionner.data.ceiling import F1Ceiling, Window, WindowSplitter
from diffusionner.data.findings import Findings, Severity
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.data.overlaps import crossing_pairs
from diffusionner.diffusion import min_spans
from diffusionner.errors import DataError
from diffusionner.settings import Settings

_BATCH_SIZE = 256  # sentences tokenized at a time
_EXCERPT = 60  # characters of a sentence or an entity in a message


@dataclass
class CheckedFile:
    path: Path
    fingerprint: Fingerprint | None = None  # None if the file has errors
    ceiling: F1Ceiling = field(default_factory=F1Ceiling)

    def to_dict(self) -> dict[str, Any]:
        return {
            "file": str(self.path),
            "fingerprint": self.fingerprint.to_dict() if self.fingerprint else None,
            **self.ceiling.to_dict(),
        }


class Checker:
    """Checks files one after the other, and against each other."""

    def __init__(
        self,
        settings: Settings,
        splitter: WindowSplitter,
        findings: Findings,
        compare: bool,
        rare: int,
    ) -> None:
        """compare: look for sentences in several files; rare: report labels with fewer entities."""
        self.settings = settings
        self.splitter = splitter
        self.findings = findings
        self.compare = compare
        self.rare = rare
        self.known_labels: set[str] | None = None  # of the training corpus
        self.label_counts: Counter[str] = Counter()
        self.label_places: dict[str, str] = {}  # first occurrence
        self.files = 0
        # Hash of a sentence's words → number of each file that has it, and the first place.
        self.seen: dict[int, list[tuple[int, str]]] = {}

    def compare_with(self, path: Path, format: str | None, train: bool) -> None:
        """Remember a valid file to compare later files with.

        train: later files may only have the labels of such files.
        """
        self.files += 1
        labels: set[str] = set()
        for sentence in formats.iterate(path, format):
            self._remember(sentence)
            labels.update(entity.label for entity in sentence.all_entities)
        if train:
            self.known_labels = labels | (self.known_labels or set())

    def check(self, path: Path, format: str | None, train: bool = False) -> CheckedFile:
        """Check a file. train: later files may only have the labels of this one."""
        self.files += 1
        errors = self.findings.count(Severity.ERROR)
        result = CheckedFile(path, ceiling=F1Ceiling(_max_fragments(self.settings)))
        labels: set[str] = set()
        corpus_fingerprint = fingerprint(self._checked(path, format, result.ceiling, labels))
        if train:
            self.known_labels = labels
            if not labels:
                message = "the training corpus has no entities"
                self.findings.add("nothing-to-learn", str(path), message)
        if self.findings.count(Severity.ERROR) == errors:
            result.fingerprint = corpus_fingerprint
        return result

    def finish(self) -> None:
        """Report labels that are rare or nearly equal in all files together."""
        counts, places = self.label_counts, self.label_places
        by_case = sorted(counts, key=lambda label: (label.casefold(), -counts[label]))
        for _, group in groupby(by_case, key=str.casefold):
            first, *others = group
            for label in others:
                message = (
                    f"label {label} ({counts[label]} times) differs only in case from {first} "
                    f"({counts[first]} times, first at {places[first]})"
                )
                self.findings.add("label-case", places[label], message)
        for label in sorted(counts):
            if counts[label] < self.rare:
                message = f"label {label} occurs only {_times(counts[label])}, first here"
                self.findings.add("rare-label", places[label], message)

    def _checked(
        self, path: Path, format: str | None, ceiling: F1Ceiling, labels: set[str]
    ) -> Iterator[Sentence]:
        """Check the sentences of a file and yield them as they were read."""
        refused: list[DataError] = []
        documents: set[str | None] = set()
        doc: str | None = None
        batch: list[Sentence] = []
        count = 0
        for sentence in formats.iterate_with_errors(path, format, refused):
            count += 1
            if sentence.doc is not None and sentence.doc != doc and sentence.doc in documents:
                message = f"document {sentence.doc} continues here after other sentences"
                self._add("scattered", sentence, message)
            doc = sentence.doc
            documents.add(doc)
            yield sentence
            if not sentence.words:
                self._add("no-words", sentence, "the sentence has no words")
                continue
            sentence.entities = self._check_entities(sentence)
            sentence.discontinuous = self._check_discontinuous(sentence)
            self._check_labels(sentence)
            labels.update(entity.label for entity in sentence.all_entities)
            if self.compare and (places := self._remember(sentence)):
                annotated = sentence.all_entities or sentence.irregular
                kind = "leakage" if annotated else "repeated"
                message = f"{_excerpt(sentence.words)} also occurs at {places[0]}"
                self._add(kind, sentence, message)
            batch.append(sentence)
            if len(batch) == _BATCH_SIZE:
                self._check_windows(batch, ceiling)
                batch = []
        self._check_windows(batch, ceiling)
        for error in refused:
            self.findings.add("unreadable", *_split_place(str(error), str(path)))
        if not count and not refused:
            self.findings.add("unreadable", str(path), "the file contains no sentences")

    def _check_entities(self, sentence: Sentence) -> list[Span]:
        """Return the distinct valid entities."""
        words = sentence.words
        valid: Counter[Span] = Counter()
        for span in sentence.entities:
            start, end, label = span
            if start >= end:
                message = "has no words; remove it, or correct its end, which is exclusive"
                self._add("empty", sentence, f"entity {label} [{start}, {end}) {message}")
            elif start < 0 or end > len(words):
                message = (
                    f"entity {label} [{start}, {end}) lies outside its sentence of {len(words)} "
                    "words; offsets count words from 0, end exclusive"
                )
                self._add("out-of-range", sentence, message)
            else:
                valid[span] += 1
        for span, times in valid.items():
            self._check_entity(sentence, span, times)
        for one, other in crossing_pairs(valid):
            self._add("crossing", sentence, f"{_show(one, words)} and {_show(other, words)} cross")
        for parts, label in sentence.irregular:
            places = " and ".join(f"{start}-{end}" for start, end in parts)
            message = f"annotation {label} at characters {places} does not align with token "
            self._add("misaligned", sentence, message + "boundaries")
        return list(valid)

    def _check_discontinuous(self, sentence: Sentence) -> list[Discontinuous]:
        """Return the distinct discontinuous entities; reading has checked their fragments."""
        counts = Counter(sentence.discontinuous)
        for entity, times in counts.items():
            self._check_entity(sentence, entity, times)
            message = f"{_show(entity, sentence.words)} has {len(entity.fragments)} fragments"
            self._add("discontinuous", sentence, message)
            if len(entity.fragments) > MAX_FRAGMENTS:
                message += f"; models find at most {MAX_FRAGMENTS}"
                self._add("many-fragments", sentence, message)
        return list(counts)

    def _check_labels(self, sentence: Sentence) -> None:
        """Report several labels on the same words."""
        by_place = sorted(
            sentence.all_entities, key=lambda entity: (entity.fragments, entity.label)
        )
        for _, group in groupby(by_place, key=lambda entity: entity.fragments):
            first, *others = group
            if others:
                labels = ", ".join(entity.label for entity in (first, *others))
                message = f"{_show_words(first, sentence.words)} has labels {labels}"
                self._add("two-labels", sentence, message)

    def _check_entity(self, sentence: Sentence, span: Span | Discontinuous, times: int) -> None:
        words, label = sentence.words, span.label
        self.label_counts[label] += 1
        self.label_places.setdefault(label, sentence.where)
        if times > 1:
            self._add("duplicate", sentence, f"{_show(span, words)} occurs {_times(times)}")
        if self.known_labels is not None and label not in self.known_labels:
            message = f"label {label} does not occur in the training corpus"
            self._add("unknown-label", sentence, message)
        if _is_punctuation(words[span.start]) or _is_punctuation(words[span.end - 1]):
            message = f"{_show(span, words)} starts or ends with punctuation"
            self._add("punctuation", sentence, message)

    def _check_windows(self, sentences: Sequence[Sentence], ceiling: F1Ceiling) -> None:
        size, unit, inference = self.splitter.size, self.splitter.unit, self.settings.inference
        for sentence, length, windows in self.splitter.split(sentences):
            if len(windows) > 1:
                message = (
                    f"{length} {unit}, but the encoder reads at most {size}: the sentence is split "
                    f"into {len(windows)} overlapping windows"
                )
                self._add("long-sentence", sentence, message)
            for span in ceiling.add(sentence, sentence.all_entities, windows, inference):
                message = f"does not fit into a window of {size} {unit}"
                self._add("cut-entity", sentence, f"{_show(span, sentence.words)} {message}")
            fewest = min(self.settings.diffusion.spans, min_spans(inference.spans))
            for window in windows if len(sentence.entities) > fewest else ():
                self._check_crowding(sentence, window)

    def _check_crowding(self, sentence: Sentence, window: Window) -> None:
        training = self.settings.diffusion.spans
        count = window.span_count(self.settings.inference)
        inside = [span for span in sentence.entities if window.contains(span)]
        distinct = len({span[:2] for span in inside})
        if len(inside) > training:
            message = f"{len(inside)} entities in a window, but diffusion.spans={training}: "
            self._add("crowded", sentence, message + "each training step sees a random subset")
        if distinct > count:
            message = f"{distinct} spans in a window with {count} noisy spans (inference.spans): "
            self._add("crowded", sentence, message + "the rest cannot be predicted")

    def _remember(self, sentence: Sentence) -> list[str]:
        """Return the places of the same words in previous files."""
        places = self.seen.setdefault(hash(tuple(sentence.words)), [])
        if not places or places[-1][0] != self.files:
            places.append((self.files, sentence.where))
        return [where for file, where in places if file != self.files]

    def _add(self, kind: str, sentence: Sentence, message: str) -> None:
        self.findings.add(kind, sentence.where, message)


def _max_fragments(settings: Settings) -> int:
    """Return the number of fragments of an entity that a model with these settings predicts."""
    return MAX_FRAGMENTS if settings.denoises and settings.decoder.discontinuous is not False else 1


def _split_place(error: str, path: str) -> tuple[str, str]:
    """Split an error message into "file:line" and the rest."""
    at = error.find(": ", len(path))
    if at < 0 or not error.startswith(path):
        return path, error
    return error[:at], error[at + 2 :]


def _is_punctuation(word: str) -> bool:
    return all(unicodedata.category(c)[0] == "P" or c.isspace() for c in word)


def _show(entity: Span | Discontinuous, words: Sequence[str]) -> str:
    return f"{entity.label} {_show_words(entity, words)}"


def _show_words(entity: Span | Discontinuous, words: Sequence[str]) -> str:
    text = ELLIPSIS.join(" ".join(words[start:end]) for start, end in entity.fragments)
    return f"{_quote(text)} " + ", ".join(f"[{start}, {end})" for start, end in entity.fragments)


def _excerpt(words: Sequence[str]) -> str:
    return _quote(" ".join(words))


def _quote(text: str) -> str:
    return f"'{text}'" if len(text) <= _EXCERPT else f"'{text[:_EXCERPT]}...'"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")
