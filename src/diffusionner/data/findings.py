"""Problems found in a corpus."""

from __future__ import annotations

from collections import Counter, defaultdict
from dataclasses import asdict, dataclass
from enum import IntEnum

from diffusionner.corpus import MAX_FRAGMENTS


class Severity(IntEnum):
    NOTE = 0  # worth a look
    WARNING = 1  # training works, but something is lost or unusual
    ERROR = 2  # training refuses the file

    def __str__(self) -> str:
        return self.name.lower()


# Severity and description of each kind of finding, most severe first.
KINDS = {
    "unreadable": (Severity.ERROR, "cannot be read"),
    "no-words": (Severity.ERROR, "sentences without words"),
    "out-of-range": (Severity.ERROR, "entities outside their sentence"),
    "empty": (Severity.ERROR, "entities without words"),
    "unknown-label": (Severity.ERROR, "entities whose label is not in the training corpus"),
    "nothing-to-learn": (Severity.ERROR, "training corpora without entities"),
    "duplicate": (Severity.WARNING, "duplicate entities"),
    "crossing": (Severity.WARNING, "entities that cross another"),
    "two-labels": (Severity.WARNING, "spans with several labels"),
    "misaligned": (Severity.WARNING, "annotations not aligned with token boundaries"),
    "many-fragments": (Severity.WARNING, f"entities of more than {MAX_FRAGMENTS} fragments"),
    "long-sentence": (Severity.WARNING, "sentences longer than the encoder's window"),
    "cut-entity": (Severity.WARNING, "entities that do not fit into any window of the encoder"),
    "crowded": (Severity.WARNING, "windows with more entities than noisy spans"),
    "label-case": (Severity.WARNING, "labels that differ only in case"),
    "leakage": (Severity.WARNING, "sentences with entities that also occur in another file"),
    "scattered": (Severity.WARNING, "documents whose sentences are not contiguous"),
    "repeated": (Severity.NOTE, "sentences without entities that also occur in another file"),
    "discontinuous": (Severity.NOTE, "discontinuous entities"),
    "rare-label": (Severity.NOTE, "rare labels"),
    "punctuation": (Severity.NOTE, "entities that start or end with punctuation"),
}


@dataclass(frozen=True, slots=True)
class Finding:
    kind: str
    where: str  # "file:line"
    message: str

    def __str__(self) -> str:
        return f"{self.where}: {KINDS[self.kind][0]}: {self.message}"

    def to_dict(self) -> dict[str, str]:
        return {"severity": str(KINDS[self.kind][0]), **asdict(self)}


class Findings:
    """Number of findings of each kind, and the first `keep` of them (all if None)."""

    def __init__(self, keep: int | None = None) -> None:
        self.keep = keep
        self.counts: Counter[str] = Counter()
        self.kept: defaultdict[str, list[Finding]] = defaultdict(list)

    def add(self, kind: str, where: str, message: str) -> None:
        self.counts[kind] += 1
        # Escape control characters, which could manipulate the terminal.
        if not message.isprintable():
            message = "".join(c if c.isprintable() else ascii(c)[1:-1] for c in message)
        if self.keep is None or len(self.kept[kind]) < self.keep:
            self.kept[kind].append(Finding(kind, where, message))

    def kinds(self) -> list[str]:
        """Return the kinds that occur, most severe first."""
        return [kind for kind in KINDS if self.counts[kind]]

    def count(self, severity: Severity) -> int:
        return sum(n for kind, n in self.counts.items() if KINDS[kind][0] == severity)
