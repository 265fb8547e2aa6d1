"""What is in a corpus: one pass over it, of which only sums and the documents are remembered."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from diffusionner.corpus import Sentence
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.data.overlaps import depths, nested


@dataclass
class Statistics:
    """The paper's table of datasets (its appendix B), and what else one wants to see.

    This gives the paper's numbers for GENIA, CoNLL03 and the test set of MSRA, all of them:

    * an entity is nested if it lies inside another of its sentence or has another inside; two
      labels on the same words count too (these corpora have none), crossing ones do not;
    * averages are over all sentences, those without entities too, and rounded to two places;
    * an entity that stands twice counts once.

    Annotations that are no run of whole words are counted apart.
    """

    sentences: int = 0
    nested_sentences: int = 0
    words: int = 0
    entities: int = 0
    nested_entities: int = 0
    most_entities: int = 0  # in a sentence
    irregular: int = 0
    labels: Counter[str] = field(default_factory=Counter)
    # How many there are of each size.
    sentence_lengths: Counter[int] = field(default_factory=Counter)
    entity_lengths: Counter[int] = field(default_factory=Counter)
    nesting_depths: Counter[int] = field(default_factory=Counter)
    _documents: set[int] = field(default_factory=set)  # hashes, which take less than the names

    def add(self, sentence: Sentence) -> None:
        entities = set(sentence.entities)
        inner_or_outer = nested(entities)
        if sentence.doc is not None:
            self._documents.add(hash(sentence.doc))
        self.sentences += 1
        self.nested_sentences += bool(inner_or_outer)
        self.words += len(sentence.words)
        self.entities += len(entities)
        self.nested_entities += len(inner_or_outer)
        self.most_entities = max(self.most_entities, len(entities))
        self.irregular += len(sentence.irregular)
        self.labels.update(span.label for span in entities)
        self.labels.update(annotation.label for annotation in sentence.irregular)
        self.sentence_lengths[len(sentence.words)] += 1
        self.entity_lengths.update(end - start for start, end, _ in entities)
        if inner_or_outer:
            self.nesting_depths.update(depths(entities).values())
        else:
            self.nesting_depths[0] += len(entities)

    @property
    def documents(self) -> int:
        return len(self._documents)

    @property
    def nesting_ratio(self) -> float:
        """In per cent."""
        return 100 * self.nested_entities / self.entities if self.entities else 0.0

    @property
    def average_length(self) -> float:
        return self.words / self.sentences if self.sentences else 0.0

    @property
    def average_entities(self) -> float:
        return self.entities / self.sentences if self.sentences else 0.0

    def to_dict(self) -> dict[str, Any]:
        return {
            "documents": self.documents,
            "sentences": self.sentences,
            "sentences_with_nested_entities": self.nested_sentences,
            "words": self.words,
            "average_sentence_length": round(self.average_length, 6),
            "entities": self.entities,
            "nested_entities": self.nested_entities,
            "nesting_ratio": round(self.nesting_ratio, 6),
            "maximum_entities": self.most_entities,
            "average_entities": round(self.average_entities, 6),
            "irregular": self.irregular,
            "labels": {label: self.labels[label] for label in ranked(self.labels)},
            "sentence_lengths": _by_size(self.sentence_lengths),
            "entity_lengths": _by_size(self.entity_lengths),
            "nesting_depths": _by_size(self.nesting_depths),
        }


def gather(sentences: Iterable[Sentence]) -> tuple[Statistics, Fingerprint]:
    statistics = Statistics()

    def passing() -> Iterator[Sentence]:
        for sentence in sentences:
            statistics.add(sentence)
            yield sentence

    return statistics, fingerprint(passing())


def ranked(labels: Counter[str]) -> list[str]:
    """The most frequent first."""
    return sorted(labels, key=lambda label: (-labels[label], label))


def _by_size(counts: Counter[int]) -> dict[str, int]:
    return {str(size): counts[size] for size in sorted(counts) if counts[size]}
