"""Corpus statistics, computed in one pass with little memory."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.data.fingerprint import Fingerprint, fingerprint
from diffusionner.data.overlaps import nested_entities, nesting_depths

# Attributes of Statistics: the rows of the paper's table, and further ones.
PAPER_COUNTS = (
    "sentences",
    "sentences_with_nested_entities",
    "entities",
    "nested_entities",
    "nesting_ratio",
    "average_sentence_length",
    "maximum_entities",
    "average_entities",
)
MORE_COUNTS = (
    "documents",
    "words",
    "longest_sentence",
    "longest_entity",
    "discontinuous",
    "maximum_fragments",
    "irregular",
)


@dataclass
class Statistics:
    """The statistics in the paper's appendix B, and more.

    They reproduce all the paper's numbers for GENIA, CoNLL03 and the test set of MSRA:

    * an entity is nested if it contains another of its sentence or lies inside another; two labels
      on the same words count as nested (these corpora have none), crossing entities do not;
    * averages are over all sentences, including those without entities, rounded to two places;
    * duplicate entities count once.

    Discontinuous entities are entities, but only contiguous ones are tested for nesting; the length
    of an entity is its number of words, without its gaps. Annotations that do not align with token
    boundaries (`irregular`) are counted separately.
    """

    sentences: int = 0
    sentences_with_nested_entities: int = 0
    words: int = 0
    entities: int = 0
    nested_entities: int = 0
    maximum_entities: int = 0  # per sentence
    irregular: int = 0
    fragments: Counter[int] = field(default_factory=Counter)  # of discontinuous entities
    labels: Counter[str] = field(default_factory=Counter)
    sentence_lengths: Counter[int] = field(default_factory=Counter)
    entity_lengths: Counter[int] = field(default_factory=Counter)
    nesting_depths: Counter[int] = field(default_factory=Counter)
    _documents: set[int] = field(default_factory=set)  # hashes, to save memory

    def add(self, sentence: Sentence) -> None:
        contiguous, discontinuous = set(sentence.entities), set(sentence.discontinuous)
        entities: set[Span | Discontinuous] = {*contiguous, *discontinuous}
        nested = nested_entities(contiguous)
        if sentence.doc is not None:
            self._documents.add(hash(sentence.doc))
        self.sentences += 1
        self.sentences_with_nested_entities += bool(nested)
        self.words += len(sentence.words)
        self.entities += len(entities)
        self.nested_entities += len(nested)
        self.maximum_entities = max(self.maximum_entities, len(entities))
        self.irregular += len(sentence.irregular)
        self.fragments.update(len(entity.fragments) for entity in discontinuous)
        self.labels.update(entity.label for entity in entities)
        self.labels.update(annotation.label for annotation in sentence.irregular)
        self.sentence_lengths[len(sentence.words)] += 1
        self.entity_lengths.update(sum(end - start for start, end in e.fragments) for e in entities)
        if nested:
            self.nesting_depths.update(nesting_depths(contiguous).values())
        else:
            self.nesting_depths[0] += len(contiguous)

    @property
    def documents(self) -> int:
        return len(self._documents)

    @property
    def nesting_ratio(self) -> float:
        """Percentage of nested entities."""
        return 100 * self.nested_entities / self.entities if self.entities else 0.0

    @property
    def average_sentence_length(self) -> float:
        return self.words / self.sentences if self.sentences else 0.0

    @property
    def longest_sentence(self) -> int:
        return max(self.sentence_lengths, default=0)

    @property
    def longest_entity(self) -> int:
        return max(self.entity_lengths, default=0)

    @property
    def discontinuous(self) -> int:
        return self.fragments.total()

    @property
    def maximum_fragments(self) -> int:
        """Number of fragments of the entity with the most; 0 without discontinuous ones."""
        return max(self.fragments, default=0)

    @property
    def average_entities(self) -> float:
        return self.entities / self.sentences if self.sentences else 0.0

    def to_dict(self) -> dict[str, Any]:
        sizes = ("sentence_lengths", "entity_lengths", "nesting_depths", "fragments")
        return {
            **{name: round(getattr(self, name), 6) for name in (*PAPER_COUNTS, *MORE_COUNTS)},
            "labels": {label: self.labels[label] for label in most_frequent(self.labels)},
            **{name: _by_size(getattr(self, name)) for name in sizes},
        }


def collect_statistics(sentences: Iterable[Sentence]) -> tuple[Statistics, Fingerprint]:
    statistics = Statistics()

    def counted() -> Iterator[Sentence]:
        for sentence in sentences:
            statistics.add(sentence)
            yield sentence

    return statistics, fingerprint(counted())


def most_frequent(labels: Counter[str]) -> list[str]:
    """Return the labels by descending frequency."""
    return sorted(labels, key=lambda label: (-labels[label], label))


def _by_size(counts: Counter[int]) -> dict[str, int]:
    return {str(size): counts[size] for size in sorted(counts) if counts[size]}
