"""Merging of corpora with different labels, and training with partially annotated types."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import torch

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Sentence, Span
from diffusionner.data.merging import merge, read_recipe
from diffusionner.errors import DataError
from diffusionner.evaluation import score_sentences
from diffusionner.model.initializer import span_loss


def recipe(folder: Path, text: str) -> Path:
    formats.write(
        folder / "news.jsonl",
        [Sentence(["Ada", "of", "Rome"], [Span(0, 1, "PER"), Span(2, 3, "MISC")], doc="d")],
    )
    formats.write(
        folder / "book.jsonl",
        [
            Sentence(
                "The old man and the King met Mr. Fox".split(),
                [Span(0, 3, "P"), Span(4, 6, "P"), Span(7, 9, "P"), Span(7, 9, "X")],
                doc="d",
            )
        ],
    )
    path = folder / "recipe.yaml"
    path.write_text(text)
    return path


WHOLE = """
sources:
- {file: news.jsonl, labels: {PER: person, MISC: other}}
- {file: book.jsonl, labels: {P: person}, names: true}
"""


def test_labels_become_the_same_and_types_are_noted(tmp_path):
    news, book = merge(read_recipe(recipe(tmp_path, WHOLE)))
    assert news.entities == [Span(0, 1, "person"), Span(2, 3, "other")]
    assert news.types is None  # all there are
    assert book.types == ("person",)
    assert news.doc != book.doc  # though both have a document d
    # Names only, without their article; labels that the recipe does not name are left out.
    assert book.entities == [Span(5, 6, "person"), Span(7, 9, "person")]


@pytest.mark.parametrize(
    ("part", "expected"),
    [
        ("", "abcde"),
        (", first: 2", "ab"),
        (", after: 3", "de"),
        (", first: 1, after: 2", "c"),
        (", after: 9", ""),
        (", first: 0", ""),
    ],
)
def test_a_part_of_a_corpus(tmp_path, part, expected):
    formats.write(tmp_path / "long.jsonl", [Sentence([letter]) for letter in "abcde"])
    path = recipe(tmp_path, f"sources: [{{file: long.jsonl, labels: {{A: B}}{part}}}]")
    assert "".join(s.words[0] for s in merge(read_recipe(path))) == expected


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("sources: []", "no list 'sources'"),
        ("- 1", "no list 'sources'"),
        ("sources: [{file: a.jsonl}]", "source 1: expected 'file', 'labels'"),
        ("sources: [{file: a.jsonl, labels: {}}]", "source 1: 'labels' must map"),
        ("sources: [{file: a.jsonl, labels: {A: B}, name: true}]", "source 1: expected"),
        ("sources: [{file: a.jsonl, labels: {A: B}, first: x}]", "numbers of sentences"),
        ("sources: [{file: a.jsonl, labels: {A: B}, after: -1}]", "numbers of sentences"),
        ("sources: [", "is not YAML"),
    ],
)
def test_a_wrong_recipe_is_explained(tmp_path, text, message):
    with pytest.raises(DataError, match=message):
        read_recipe(recipe(tmp_path, text))


def test_types_are_written_and_read(tmp_path, cli):
    path = recipe(tmp_path, WHOLE)
    path = path.rename(tmp_path.parent / f"{tmp_path.name}.yaml")  # elsewhere
    assert cli("data", "merge", path, tmp_path / "all.jsonl", "--data", tmp_path).status == 0
    news, book = formats.read(tmp_path / "all.jsonl")
    assert (news.types, book.types) == (None, ("person",))
    with pytest.raises(DataError, match="only some labels were annotated"):
        formats.write(tmp_path / "all.conll", [book])
    formats.write(tmp_path / "all.conll", [book], lossy=True)
    (tmp_path / "bad.jsonl").write_text('{"tokens": ["a"], "types": "person"}\n')
    with pytest.raises(DataError, match="'types' must be a list"):
        formats.read(tmp_path / "bad.jsonl")


def test_predictions_of_unannotated_types_do_not_count():
    sentence = Sentence(["Ada", "of", "Rome"], [Span(0, 1, "person")], types=("person",))
    found = [Span(0, 1, "person"), Span(2, 3, "place")]
    assert score_sentences([sentence], [found]).micro.f1 == 1.0
    sentence.types = None
    assert score_sentences([sentence], [found]).micro.f1 < 1.0


def test_the_initializer_spares_what_may_be_an_unmarked_entity():
    scores = torch.full((2, 3, 3), -5.0)
    scores[:, 1, 2] = 4.0  # looks like an entity, and is not marked
    scores.requires_grad_()
    gold, present = torch.zeros(2, 1, 2, dtype=torch.long), torch.tensor([[True], [True]])
    loss = span_loss(scores, gold, present, torch.tensor([True, False]))
    loss.sum().backward()
    assert loss[0] > loss[1] + 3
    assert scores.grad is not None
    assert scores.grad[0, 1, 2] > 0.5 and scores.grad[1, 1, 2] == 0
    assert np.isclose(scores.grad[0, 0, 0], scores.grad[1, 0, 0])  # what is marked is learned


def test_a_label_that_a_corpus_lacks_is_refused(tmp_path, refused):
    """A typo would silently drop all of its entities."""
    path = recipe(tmp_path, "sources: [{file: news.jsonl, labels: {PERS: person}}]")
    err = refused("data", "merge", path, tmp_path / "all.jsonl")
    assert f"{tmp_path / 'news.jsonl'} has no label 'PERS'" in err
    assert "did you mean 'PER'? It has: MISC, PER" in err
    assert not (tmp_path / "all.jsonl").exists()
    path = recipe(tmp_path, "sources: [{file: news.jsonl, labels: {PER: person, dog: animal}}]")
    with pytest.raises(DataError, match=r"no label 'dog', .*; choose one of: MISC, PER$"):
        list(merge(read_recipe(path)))


@pytest.mark.parametrize("part", ["first: 1", "after: 2", "first: 0"])
def test_a_label_may_occur_only_in_skipped_sentences(tmp_path, part):
    spans = [[], [Span(0, 1, "A")], []]
    formats.write(tmp_path / "long.jsonl", [Sentence(["w"], entities) for entities in spans])
    path = recipe(tmp_path, f"sources: [{{file: long.jsonl, labels: {{A: B}}, {part}}}]")
    assert all(not sentence.entities for sentence in merge(read_recipe(path)))


def test_an_annotated_type_need_not_occur(tmp_path):
    formats.write(tmp_path / "a.jsonl", [Sentence(["w"], [Span(0, 1, "A")], types=("A", "rare"))])
    path = recipe(tmp_path, "sources: [{file: a.jsonl, labels: {A: A, rare: R}}]")
    assert [s.entities for s in merge(read_recipe(path))] == [[Span(0, 1, "A")]]


def test_dropped_labels_are_reported(tmp_path, cli):
    text = WHOLE.replace(", MISC: other", "")
    result = cli("data", "merge", recipe(tmp_path, text), tmp_path / "all.jsonl")
    assert result.status == 0, result.err
    assert f"{tmp_path / 'news.jsonl'}: dropped MISC\n" in result.out
    assert f"{tmp_path / 'book.jsonl'}: dropped X\n" in result.out


def test_a_long_list_of_dropped_labels_is_cut(tmp_path, cli):
    labels = [f"L{number:02}" for number in range(60)]
    sentence = Sentence(["Ada"], [Span(0, 1, label) for label in labels])
    formats.write(tmp_path / "many.jsonl", [sentence])
    path = recipe(tmp_path, "sources: [{file: many.jsonl, labels: {L00: person}}]")
    result = cli("data", "merge", path, tmp_path / "all.jsonl")
    assert ", L50 and 9 more\n" in result.out.replace("\n and", " and")


@pytest.mark.parametrize("name", ["news.jsonl", "recipe.yaml", "link.jsonl"])
def test_merging_onto_what_is_read_is_refused(tmp_path, refused, name):
    path = recipe(tmp_path, WHOLE)
    (tmp_path / "link.jsonl").symlink_to("news.jsonl")
    before = (tmp_path / name).read_bytes()
    assert "is the same file as the input" in refused("data", "merge", path, tmp_path / name)
    assert (tmp_path / name).read_bytes() == before


def test_discontinuous_entities_are_renamed_and_dropped(tmp_path):
    words = "King Ada and Zoe Fox ran".split()
    of = {"P": ((0, 1), (3, 5)), "X": ((0, 1), (2, 3))}
    gapped = [Discontinuous(fragments, label) for label, fragments in of.items()]
    gapped += [gapped[0], Discontinuous(((1, 2), (5, 6)), "P")]
    formats.write(tmp_path / "a.jsonl", [Sentence(words, discontinuous=gapped)])
    for names, expected in (("false", [gapped[0], gapped[3]]), ("true", [gapped[0]])):
        path = tmp_path / "recipe.yaml"
        path.write_text(f"sources: [{{file: a.jsonl, labels: {{P: person}}, names: {names}}}]")
        dropped: dict[Path, set[str]] = {}
        (found,) = merge(read_recipe(path), dropped)
        assert found.discontinuous == [e._replace(label="person") for e in expected]
        assert dropped == {tmp_path / "a.jsonl": {"X"}}


def test_text_and_irregular_annotations_stay(tmp_path, cli):
    record = '{"text": "Adas book", "entities": [{"start": 0, "end": 3, "label": "PER"}]}\n'
    (tmp_path / "texts.jsonl").write_text(record)  # cut through a word
    path = recipe(tmp_path, "sources: [{file: texts.jsonl, labels: {PER: person}}]")
    assert cli("data", "merge", path, tmp_path / "all.jsonl").status == 0
    (found,) = formats.read(tmp_path / "all.jsonl")
    assert (found.text, found.words) == ("Adas book", ["Adas", "book"])
    assert [one.label for one in found.irregular] == ["person"]


def test_types_of_a_source_are_kept_apart(tmp_path):
    sentences = [
        Sentence(["Ada"], [Span(0, 1, "P")], types=("P", "X")),
        Sentence(["Rome"], [Span(0, 1, "L")], types=("L",)),
        Sentence(["w"], [Span(0, 1, "X")], types=("X",)),  # nothing that is mapped
    ]
    formats.write(tmp_path / "a.jsonl", sentences)
    path = recipe(tmp_path, "sources: [{file: a.jsonl, labels: {P: person, L: place}}]")
    person, place = merge(read_recipe(path))
    assert (person.types, place.types) == (("person",), ("place",))
