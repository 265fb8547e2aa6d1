"""Write corpora, and check that malformed ones are rejected."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

import pytest

from diffusionner.errors import DataError
from diffusionner.formats import iterate_with_errors, read

EXCERPT = Path(__file__).parent / "excerpt" / "litbank.jsonl"


def put(folder: Path, files: Mapping[str, str | bytes]) -> Path:
    """Write files into a folder and return it."""
    for name, content in files.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
    return folder


def refuses(path: Path, format: str | None, place: str, message: str) -> None:
    """Assert that strict reading raises an error, and that checking collects the same error."""
    with pytest.raises(DataError) as caught:
        read(path, format)
    assert str(caught.value).startswith(f"{place}: ")
    assert message in str(caught.value)
    refused: list[DataError] = []
    list(iterate_with_errors(path, format, refused))
    assert str(caught.value) in map(str, refused)


PASSAGES = """\
### domain: clinic | genre: note | id: W2-03-07
types: animal breed; symptom; city
absent: drug
describe: symptom = a sign of illness that is observed in the animal
⟦Labrador Retriever|animal breed⟧ from Dover, seen for ⟦intermittent limping|symptom⟧.
It came to the ⟦⟦Dover|city⟧ Retriever|animal breed⟧ show.

### id: W2-03-08
types: drug
⟦Aspirin|drug⟧: none
"""
