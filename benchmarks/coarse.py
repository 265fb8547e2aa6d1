"""The types of `en` as the labels of corpora that annotate persons, organizations and places."""

from __future__ import annotations

COARSE = {
    "person": "PER",
    "organization": "ORG",
    "city or country": "LOC",
    "location": "LOC",
    "facility": "LOC",
}
FINE = {"PER": "person", "ORG": "organization", "LOC": "city or country"}


def coarse(label: str) -> str:
    """Return the label of corpora for a type; other types keep their names."""
    return COARSE.get(label, label)
