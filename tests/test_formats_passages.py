"""Passages with inline marks and the types that were looked for."""

from __future__ import annotations

from pathlib import Path

import pytest
from corpus_files import PASSAGES

from diffusionner import formats
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import DataError


def read(folder: Path, content: str, format: str | None = None) -> list[Sentence]:
    path = folder / "passages.txt"
    path.write_text(content, encoding="utf-8")
    return formats.read(path, format)


def test_marks_become_entities(tmp_path: Path):
    first, second, third = read(tmp_path, PASSAGES)
    assert first.words == [*"Labrador Retriever from Dover , seen for".split(),
                           "intermittent", "limping", "."]  # fmt: skip
    assert first.entities == [Span(0, 2, "animal breed"), Span(7, 9, "symptom")]
    assert set(second.entities) == {Span(4, 5, "city"), Span(4, 6, "animal breed")}
    assert first.doc == second.doc == "W2-03-07"
    assert first.text is second.text is not None and "⟦" not in first.text
    assert (third.doc, third.words, third.types) == (
        "W2-03-08",
        ["Aspirin", ":", "none"],
        ("drug",),
    )


def test_absent_types_were_looked_for(tmp_path: Path):
    first = read(tmp_path, PASSAGES)[0]
    assert first.types == ("animal breed", "city", "drug", "symptom")


def test_descriptions_become_part_of_labels(tmp_path: Path):
    first = read(tmp_path, PASSAGES, "passages:descriptions=true")[0]
    described = "symptom: a sign of illness that is observed in the animal"
    assert described in (first.types or ())
    assert Span(7, 9, described) in first.entities


def test_a_folder_is_read_in_order_of_its_files(tmp_path: Path):
    for name, drug in (("b", "aspirin"), ("a", "insulin")):
        (tmp_path / f"{name}.txt").write_text(f"### id: {name}\ntypes: drug\n⟦{drug}|drug⟧\n")
    assert [s.words for s in formats.read(tmp_path)] == [["insulin"], ["aspirin"]]


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("types: drug\n⟦aspirin|drug", "marks are written ⟦text|type⟧"),
        ("types: drug\naspirin⟧", "marks are written"),
        ("types: drug\n⟦aspirin", "marks are written"),
        ("types: drug\n⟦aspirin|⟧", "marks are written"),
        ("types: drug\n⟦|drug⟧ aspirin", "marks are written"),
        ("types: drug\n⟦aspirin|medicine⟧", "'medicine' is marked but not among the types"),
        ("types: drug\nabsent: drug\n⟦aspirin|drug⟧", "is marked and listed as absent"),
        ("⟦aspirin|drug⟧", "no line 'types:'"),
    ],
)
def test_damaged_passages(tmp_path: Path, body: str, message: str):
    whole = "### id: 1\ntypes: drug\n⟦aspirin|drug⟧\n"
    with pytest.raises(DataError, match=message) as caught:
        read(tmp_path, f"{whole}\n### id: 2\n{body}\n", "passages")
    assert "passages.txt:5: " in str(caught.value)
