"""The labels that a model with open labels is asked for."""

from __future__ import annotations

import re
import unicodedata
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import TypeAlias

from diffusionner.errors import SettingsError

# Names of types, or names with descriptions. The names are what entities are labelled with.
Labels: TypeAlias = Sequence[str] | Mapping[str, str]

# What a model with open labels finds if it is asked for nothing else.
DEFAULT_LABELS = (
    "person", "organization", "city or country", "location", "facility", "nationality or group",
    "date", "time", "money", "quantity", "product", "event", "work", "law", "language", "award",
)  # fmt: skip
MAX_LABELS = 1000
MAX_CHARACTERS = 300  # of a label with its description
MAX_SHOWN = 60  # characters of a label in a message
# At most about 50 labels are read with a text at once, fewer if their descriptions are long.
GROUP_SIZE, MIN_SIZE = 4000, 80  # characters of a group; a shorter label counts as this many
SEPARATOR = ": "  # between a label and its description
# Names of types in common annotation schemes.
ABBREVIATIONS = {
    "PER": "person",
    "ORG": "organization",
    "LOC": "location",
    "GPE": "country, city or state",
    "FAC": "building or facility",
    "NORP": "nationality, religious or political group",
    "MISC": "other name",
    "VEH": "vehicle",
    "WEA": "weapon",
}
_CAMEL = re.compile("(?<=[a-z]{2})(?=[A-Z][a-z])")  # not in mRNA, pH, iOS


@dataclass(frozen=True)
class LabelSet:
    """Labels in an order that does not depend on how they were given."""

    names: tuple[str, ...]
    texts: tuple[str, ...]  # what the model reads: a name, or "name: description"

    @classmethod
    def of(cls, labels: Labels) -> LabelSet:
        """Check labels and put them in order; raise SettingsError for those that cannot be used."""
        if isinstance(labels, str):  # its letters would be taken for labels
            raise TypeError(f"labels is a list of types, such as [{labels!r}], not a string")
        described = isinstance(labels, Mapping)
        pairs = list(labels.items()) if isinstance(labels, Mapping) else [(x, "") for x in labels]
        if not pairs:
            raise SettingsError("there are no labels; name at least one type to look for")
        if len(pairs) > MAX_LABELS:
            raise SettingsError(
                f"{len(pairs):,} labels are too many; ask for at most {MAX_LABELS:,} at a time"
            )
        known: dict[str, str] = {}
        for name, description in pairs:
            if not isinstance(name, str) or not isinstance(description, str):
                kind = "pairs of strings" if described else "strings"
                raise TypeError(f"labels must be {kind}, and one is {name!r:.60}")
            key = unicodedata.normalize("NFC", label_text(name)).casefold()
            if not key:
                raise SettingsError("a label is empty; name the type in words")
            if key in known:
                raise SettingsError(
                    f"{_shown(known[key])} and {_shown(name)} are the same label, which is read as "
                    f"{_shown(key)}; remove one of them"
                )
            known[key] = name
        keys = {name: key for key, name in known.items()}
        ordered = sorted(pairs, key=lambda pair: keys[pair[0]])
        texts = tuple(label_text(name, description) for name, description in ordered)
        for (name, _), text in zip(ordered, texts, strict=True):
            if len(text) > MAX_CHARACTERS:
                raise SettingsError(
                    f"the label {_shown(name)} is too long: it has {len(text):,} characters with "
                    f"its description, and {MAX_CHARACTERS} are allowed"
                )
        return cls(tuple(name for name, _ in ordered), texts)

    @classmethod
    def among(cls, labels: Labels, known: Sequence[str]) -> LabelSet:
        """Return the labels to keep of a model with fixed labels."""
        if isinstance(labels, str):
            raise TypeError(f"labels is a list of types, such as [{labels!r}], not a string")
        names = tuple(sorted(set(labels), key=str))
        chosen = cls(names, names)
        chosen.check_known(known)
        return chosen

    def check_known(self, known: Sequence[str]) -> None:
        """Raise SettingsError for a label that a model with fixed labels does not have."""
        unknown = [name for name in self.names if name not in known]
        if unknown:
            raise SettingsError(
                f"the model has no type {', '.join(map(_shown, unknown))}; its types are fixed by "
                f"its training: {', '.join(known)}. A model with open labels (`open`) finds types "
                "that are only named"
            )

    def groups(self) -> list[slice]:
        """Divide the labels into as few groups as can be read at once, of similar size."""
        sizes = [max(MIN_SIZE, len(text)) for text in self.texts]
        before = [0, *accumulate(sizes)]
        count = -(-before[-1] // GROUP_SIZE)
        group = [start * count // before[-1] for start in before[:-1]]
        starts = [i for i, g in enumerate(group) if i == 0 or g != group[i - 1]]
        return [slice(a, b) for a, b in pairwise([*starts, len(sizes)])]


def label_text(name: str, description: str = "") -> str:
    """Return what the model reads of a label.

    Names as annotation schemes have them are put into words: "chemical_element", "MusicalWork" and
    "PER" are read as "chemical element", "Musical Work" and "person".
    """
    words = " ".join(name.replace("_", " ").split())
    words = ABBREVIATIONS.get(words) or (words if " " in words else _CAMEL.sub(" ", words))
    description = " ".join(description.split())
    return f"{words}{SEPARATOR}{description}" if description else words


def _shown(name: str) -> str:
    return repr(name if len(name) <= MAX_SHOWN else name[:MAX_SHOWN] + "…")
