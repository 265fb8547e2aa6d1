"""What is wrong with a corpus: the kinds there are, and a collection of places."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import dataclass
from enum import IntEnum
from typing import Any


class Severity(IntEnum):
    NOTE = 0  # worth a look
    WARNING = 1  # training goes on, but something is lost or not as it should be
    ERROR = 2  # training refuses the file

    def __str__(self) -> str:
        return self.name.lower()


# Each kind's severity and what it says about what it counts.
KINDS = {
    "unreadable": (Severity.ERROR, "cannot be read"),
    "no-words": (Severity.ERROR, "sentences without words"),
    "out-of-range": (Severity.ERROR, "entities outside their sentence"),
    "empty": (Severity.ERROR, "entities without words"),
    "unknown-label": (Severity.ERROR, "entities whose label is not in the training corpus"),
    "nothing-to-learn": (Severity.ERROR, "training corpora without entities"),
    "duplicate": (Severity.WARNING, "entities that stand twice"),
    "crossing": (Severity.WARNING, "entities that cross another"),
    "two-labels": (Severity.WARNING, "spans with several labels"),
    "misaligned": (Severity.WARNING, "annotations that cut through a word"),
    "discontinuous": (Severity.WARNING, "annotations in several parts"),
    "long-sentence": (Severity.WARNING, "sentences longer than the encoder's window"),
    "cut-entity": (Severity.WARNING, "entities that no window of the encoder holds"),
    "crowded": (Severity.WARNING, "windows with more entities than noisy spans"),
    "label-case": (Severity.WARNING, "labels that differ only by case"),
    "leakage": (Severity.WARNING, "sentences with entities that stand in another file too"),
    "scattered": (Severity.WARNING, "documents whose sentences are not together"),
    "repeated": (Severity.NOTE, "sentences without entities that stand in another file too"),
    "rare-label": (Severity.NOTE, "labels that occur seldom"),
    "punctuation": (Severity.NOTE, "entities that begin or end with punctuation"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    where: str  # "file:line"
    message: str

    @property
    def severity(self) -> Severity:
        return KINDS[self.kind][0]

    def __str__(self) -> str:
        return f"{self.where}: {self.severity}: {self.message}"

    def to_dict(self) -> dict[str, Any]:
        return {
            "severity": str(self.severity),
            "kind": self.kind,
            "where": self.where,
            "message": self.message,
        }


class Findings:
    """How many of each kind, and of each the first few or all."""

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self.counts: Counter[str] = Counter()
        self.kept: defaultdict[str, list[Finding]] = defaultdict(list)

    def add(self, kind: str, where: str, message: str) -> None:
        self.counts[kind] += 1
        # Words may hold anything, even what would make a terminal do things.
        if not message.isprintable():
            message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        if self.keep is None or len(self.kept[kind]) < self.keep:
            self.kept[kind].append(Finding(kind, where, message))

    def kinds(self) -> list[str]:
        """Those that occur, the worst first."""
        return [kind for kind in KINDS if self.counts[kind]]

    def count(self, severity: Severity) -> int:
        return sum(n for kind, n in self.counts.items() if KINDS[kind][0] == severity)
