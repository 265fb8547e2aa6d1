"""Discontinuous entities in all formats: how they are read, written and refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from corpus_files import refuses

from diffusionner import formats
from diffusionner.corpus import Discontinuous, Irregular, Sentence, Span
from diffusionner.errors import DataError
from diffusionner.formats import FORMATS, read

WORDS = ["Muscle", "pain", "and", "stiffness", "."]
SYMPTOM = Discontinuous(((0, 1), (3, 4)), "ADR")
SENTENCE = Sentence(WORDS, [Span(0, 2, "ADR")], discontinuous=[SYMPTOM])


@pytest.fixture
def make(tmp_path: Path):
    def write(*records: object) -> Path:
        path = tmp_path / "a.jsonl"
        path.write_text("".join(json.dumps(record) + "\n" for record in records))
        return path

    return write


def by_words(*entities: dict[str, Any], **more: object) -> dict[str, object]:
    return {"tokens": WORDS, "entities": entities, **more}


# --- jsonl ------------------------------------------------------------------------------------


@pytest.mark.parametrize("bounds", [{}, {"start": 0, "end": 4}, {"start": 0}, {"start": None}])
def test_jsonl_by_words(make, bounds):
    gapped = {"label": "ADR", "fragments": [[0, 1], [3, 4]], **bounds}
    plain = {"start": 0, "end": 2, "label": "ADR", "fragments": None}
    (sentence,) = read(make(by_words(gapped, plain)))
    assert replace(sentence, where="") == SENTENCE


def test_jsonl_by_characters(make):
    text = "Muscle pain and stiffness. No pain."
    parts = {
        "MUSCLE STIFFNESS": [[0, 6], [16, 25]],
        "JOINED": [[0, 6], [7, 11]],
        "THREE": [[0, 6], [7, 11], [16, 25]],
        "CUT": [[0, 3], [16, 25]],
        "ACROSS": [[16, 25], [30, 34]],
    }
    entities = [{"label": label, "fragments": fragments} for label, fragments in parts.items()]
    entities[0] |= {"start": 0, "end": 25}
    (sentence,) = read(make({"text": text, "entities": entities}))
    assert sentence.entities == [Span(0, 2, "JOINED")]
    assert sentence.discontinuous == [
        Discontinuous(((0, 1), (3, 4)), "MUSCLE STIFFNESS"),
        Discontinuous(((0, 2), (3, 4)), "THREE"),
        Discontinuous(((3, 4), (6, 7)), "ACROSS"),
    ]
    assert sentence.irregular == [Irregular(((0, 3), (16, 25)), "CUT")]


@pytest.mark.parametrize("with_text", [True, False])
def test_jsonl_of_earlier_versions(make, with_text):
    """They kept discontinuous entities in `irregular`, by character."""
    text = " ".join(WORDS)
    irregular = [
        {"parts": [[0, 6], [16, 25]], "label": "ADR"},
        {"parts": [[0, 6], [16, 20]], "label": "CUT"},
    ]
    ends = [len(" ".join(WORDS[: i + 1])) for i in range(len(WORDS))]
    offsets = [[end - len(word), end] for word, end in zip(WORDS, ends, strict=True)]
    more = {"text": text, "offsets": offsets} if with_text else {}
    (sentence,) = read(make(by_words(irregular=irregular, **more)))
    assert sentence.discontinuous == [SYMPTOM]
    assert sentence.irregular == [Irregular(((0, 6), (16, 20)), "CUT")]


def test_jsonl_writes_fragments_only_of_discontinuous_entities(tmp_path):
    formats.write(tmp_path / "a.jsonl", [SENTENCE])
    assert (tmp_path / "a.jsonl").read_text() == (
        '{"tokens":["Muscle","pain","and","stiffness","."],'
        '"entities":[{"start":0,"end":2,"label":"ADR"},'
        '{"start":0,"end":4,"label":"ADR","fragments":[[0,1],[3,4]]}]}\n'
    )


GIVE = "; give two or more from left to right; offsets count words from 0, end exclusive"
FEW = "has fewer than two 'fragments'; leave them out and give 'start' and 'end'"
ORDER = f"has fragments that overlap, touch or are not in order{GIVE}"


@pytest.mark.parametrize(
    ("entity", "message"),
    [
        (
            {"fragments": [[3, 4], [0, 1]]},
            f"entity X of the fragments [3, 4), [0, 1) {ORDER}",
        ),
        (
            {"fragments": [[0, 1], [3, 4], [2, 5]]},
            f"entity X of the fragments [0, 1), [3, 4), [2, 5) {ORDER}",
        ),
        (
            {"fragments": [[0, 2], [1, 4]]},
            f"entity X of the fragments [0, 2), [1, 4) {ORDER}",
        ),
        (
            {"fragments": [[0, 2], [2, 4]]},
            f"entity X of the fragments [0, 2), [2, 4) {ORDER}",
        ),
        (
            {"fragments": [[0, 1], [3, 3]]},
            "entity X of the fragments [0, 1), [3, 3) has an empty fragment, or fewer than "
            f"two{GIVE}",
        ),
        (
            {"fragments": [[0, 1], [3, 6]]},
            f"entity X of the fragments [0, 1), [3, 6) lies outside its sentence of 5 words{GIVE}",
        ),
        (
            {"fragments": [[-1, 1], [3, 4]]},
            f"entity X of the fragments [-1, 1), [3, 4) lies outside its sentence of 5 words{GIVE}",
        ),
        ({"fragments": [[0, 1]]}, f"entity X {FEW}"),
        ({"fragments": []}, f"entity X {FEW}"),
        (
            {"fragments": [[0, 1], [3, 4]], "start": 1},
            "'start' 1 of entity X contradicts its fragments [[0, 1], [3, 4]]; correct one, or "
            "leave out 'start' and 'end'",
        ),
        (
            {"fragments": [[0, 1], [3, 4]], "start": 0, "end": 5},
            "'end' 5 of entity X contradicts its fragments [[0, 1], [3, 4]]; correct one, or "
            "leave out 'start' and 'end'",
        ),
        (
            {"fragments": [[0, 1], [3]]},
            "'fragments' must be pairs of numbers, such as [[0, 2], [5, 7]]",
        ),
        (
            {"fragments": [[0, True], [3, 4]]},
            "'fragments' must be pairs of numbers, such as [[0, 2], [5, 7]]",
        ),
        ({"fragmets": [[0, 1], [3, 4]]}, "unknown key 'fragmets'; did you mean 'fragments'?"),
    ],
)
def test_jsonl_that_is_wrong(make, entity, message):
    path = make(by_words(), by_words({"label": "X", **entity}), by_words())
    with pytest.raises(DataError) as caught:
        read(path)
    assert str(caught.value) == f"{path}:2: {message}"
    errors: list[DataError] = []
    found = [s.where for s in formats.iterate_with_errors(path, None, errors)]
    assert (found, len(errors)) == ([f"{path}:1", f"{path}:3"], 1)


@pytest.mark.parametrize(
    ("fragments", "message"),
    [
        (
            [[16, 25], [0, 6]],
            "the fragment [0, 6) of entity X starts before the end of the one "
            "before, 25; give fragments from left to right",
        ),
        (
            [[0, 6], [5, 11]],
            "the fragment [5, 11) of entity X starts before the end of the one "
            "before, 6; give fragments from left to right",
        ),
        ([[0, 6], [7, 7]], "entity X [7, 7) is empty; remove it"),
        ([[0, 6], [16, 99]], "entity X [16, 99) lies outside its text of 26 characters"),
    ],
)
def test_jsonl_by_characters_that_is_wrong(make, fragments, message):
    entity = {"label": "X", "fragments": fragments}
    path = make({"text": "Muscle pain and stiffness.", "entities": [entity]})
    refuses(path, None, f"{path}:1", message)


# --- All formats ------------------------------------------------------------------------------

WRITABLE = {name: f.capabilities.discontinuous for name, f in FORMATS.items() if f.write}


def test_formats_with_discontinuous_entities():
    able = {name for name, has in WRITABLE.items() if has}
    assert able == {"brat", "conllu", "docbin", "huggingface", "jsonl", "parquet", "w2ner"}


@pytest.mark.parametrize("name", [name for name, able in WRITABLE.items() if not able])
def test_formats_without_them_refuse_or_drop_them(tmp_path, name):
    sentence = replace(SENTENCE, where="in:7")
    with pytest.raises(DataError) as caught:
        formats.write(tmp_path / "out", [sentence], name)
    assert str(caught.value) == (
        f"in:7: entity ADR [0, 1), [3, 4) is discontinuous, which format {name} cannot represent; "
        "write jsonl, which represents everything, or remove it with --lossy"
    )
    assert list(tmp_path.iterdir()) == []
    formats.write(tmp_path / "out", [sentence], name, lossy=True)
    assert read(tmp_path / "out", name)[0].all_entities == SENTENCE.entities


@pytest.mark.parametrize("name", [name for name, able in WRITABLE.items() if able])
def test_duplicates_are_read_once(tmp_path, name):
    twice = replace(SENTENCE, discontinuous=[SYMPTOM, SYMPTOM._replace(label="B"), SYMPTOM])
    formats.write(tmp_path / "out", [twice], name)
    (found,) = read(tmp_path / "out", name)
    assert found.discontinuous == twice.discontinuous[:2]


# --- DocBin -----------------------------------------------------------------------------------


def spans_of(doc: Any, *spans: tuple[int, int, str, str]) -> list[Any]:
    from spacy.tokens import Span as DocSpan

    return [DocSpan(doc, start, end, label, span_id=name) for start, end, label, name in spans]


def save(path: Path, doc: Any) -> Path:
    from spacy.tokens import DocBin

    DocBin(docs=[doc]).to_disk(path)
    return path


def test_docbin_lists_fragments_in_the_id(tmp_path):
    """Tokens of white space count: fragments are of the Doc's tokens."""
    spacy = pytest.importorskip("spacy")
    text = "Muscle  pain and stiffness."
    offsets = [(0, 6), (8, 12), (13, 16), (17, 26), (26, 27)]
    sentence = replace(SENTENCE, text=text, offsets=offsets)
    formats.write(tmp_path / "a.spacy", [sentence])
    (doc,) = spacy.tokens.DocBin().from_disk(tmp_path / "a.spacy").get_docs(spacy.vocab.Vocab())
    assert [token.text for token in doc][:3] == ["Muscle", " ", "pain"]
    spans = [(s.start, s.end, s.label_, s.id_) for s in doc.spans["sc"]]
    assert spans == [(0, 3, "ADR", ""), (0, 5, "ADR", "0-1 4-5")]
    assert [ent.text for ent in doc.ents] == ["Muscle  pain"]
    assert [replace(s, where="") for s in read(tmp_path / "a.spacy")] == [sentence]


def test_docbin_fragments_survive_joining_docs(tmp_path):
    spacy = pytest.importorskip("spacy")
    formats.write(tmp_path / "a.spacy", [SENTENCE])
    vocab = spacy.vocab.Vocab()
    (doc,) = spacy.tokens.DocBin().from_disk(tmp_path / "a.spacy").get_docs(vocab)
    joined = spacy.tokens.Doc.from_docs([spacy.tokens.Doc(vocab, ["Yes", "."]), doc])
    first, second = read(save(tmp_path / "b.spacy", joined))
    assert (first.discontinuous, second.discontinuous) == ([], SENTENCE.discontinuous)


def test_docbin_ids_do_not_tell_contiguous_entities_apart(tmp_path):
    spacy = pytest.importorskip("spacy")
    doc = spacy.blank("en")("Muscle pain")
    doc.ents = spans_of(doc, (0, 2, "A", "rule"))
    doc.spans["sc"] = spans_of(doc, (0, 2, "A", ""))
    errors: list[DataError] = []
    (sentence,) = formats.iterate_with_errors(save(tmp_path / "a.spacy", doc), None, errors)
    assert (sentence.entities, errors) == ([Span(0, 2, "A")], [])


def test_docbin_groups_by_other_hands(tmp_path):
    """Ids of rules and knowledge bases mean nothing; white space is not a fragment."""
    spacy = pytest.importorskip("spacy")
    doc = spacy.blank("en")("Muscle pain  and stiffness . Yes")
    assert doc[2].text == " "
    doc.spans["ruler"] = spans_of(doc, (0, 1, "A", "rule"), (3, 5, "A", "3-5"))
    doc.spans["other"] = spans_of(doc, (0, 5, "A", "0-1 4-5"), (0, 5, "B", "0-1 2-5"))
    doc.spans["more"] = spans_of(doc, (0, 5, "A", "0-1 4-5"), (0, 4, "C", "0-2 3-4"))
    (sentence,) = read(save(tmp_path / "a.spacy", doc))
    assert sentence.words == ["Muscle", "pain", "and", "stiffness", ".", "Yes"]
    assert sentence.discontinuous == [
        Discontinuous(((0, 1), (3, 4)), "A"),
        Discontinuous(((0, 1), (2, 4)), "B"),
    ]
    assert sentence.entities == [Span(0, 1, "A"), Span(2, 4, "A"), Span(0, 3, "C")]


@pytest.mark.parametrize(
    ("start", "end", "name", "message"),
    [
        (1, 4, "0-1 3-4", "entity ADR at tokens 1-4 has an id that lists fragments elsewhere; "
         "correct the id of the span, or remove it"),
        (0, 4, "0-1 3-9", "entity ADR of the fragments [0, 1), [3, 9) lies outside its sentence"),
        (0, 4, "0-9 3-4", f"entity ADR of the fragments [0, 9), [3, 4) {ORDER}"),
        (0, 4, "0-2 2-4", f"entity ADR of the fragments [0, 2), [2, 4) {ORDER}"),
        (0, 4, "3-4 0-1", f"entity ADR of the fragments [3, 4), [0, 1) {ORDER}"),
    ],
)  # fmt: skip
def test_docbin_ids_that_are_wrong(tmp_path, start, end, name, message):
    spacy = pytest.importorskip("spacy")
    doc = spacy.tokens.Doc(spacy.vocab.Vocab(), words=WORDS)
    doc.spans["sc"] = spans_of(doc, (start, end, "ADR", name))
    path = save(tmp_path / "a.spacy", doc)
    refuses(path, None, f"{path}:1", message)


# --- Tables -----------------------------------------------------------------------------------


def test_tables_of_earlier_versions(tmp_path):
    """They have no column `discontinuous`, and these entities in `irregular`."""
    pq = pytest.importorskip("pyarrow.parquet")
    formats.write(tmp_path / "a.parquet", [SENTENCE])
    table = pq.read_table(tmp_path / "a.parquet")
    parts = [{"parts": [{"start": 0, "end": 6}, {"start": 16, "end": 25}], "label": "ADR"}]
    old = table.drop_columns(["discontinuous", "irregular"])
    import pyarrow

    column = pyarrow.array([parts], type=table.schema.field("irregular").type)
    pq.write_table(old.append_column("irregular", column), tmp_path / "old.parquet")
    for name in ("a", "old"):
        (sentence,) = read(tmp_path / f"{name}.parquet")
        assert replace(sentence, where="") == SENTENCE


def test_tables_with_fragments_in_their_entities(tmp_path):
    """As others make them of our JSON lines, with null for what a line lacks."""
    pyarrow = pytest.importorskip("pyarrow")
    pq = pytest.importorskip("pyarrow.parquet")
    entities = [
        {"start": 0, "end": 2, "label": "ADR", "fragments": None},
        {"start": 0, "end": 4, "label": "ADR", "fragments": [[0, 1], [3, 4]]},
    ]
    table = pyarrow.table({"tokens": [WORDS], "entities": [entities]})
    pq.write_table(table, tmp_path / "a.parquet")
    (sentence,) = read(tmp_path / "a.parquet")
    assert replace(sentence, where="") == SENTENCE


def test_tables_that_are_wrong(tmp_path):
    pq = pytest.importorskip("pyarrow.parquet")
    import pyarrow

    formats.write(tmp_path / "a.parquet", [SENTENCE])
    table = pq.read_table(tmp_path / "a.parquet")
    wrong = [{"fragments": [{"start": 0, "end": 1}, {"start": 3, "end": 9}], "label": "ADR"}]
    field = table.schema.field("discontinuous")
    column = pyarrow.array([wrong], type=field.type)
    table = table.set_column(table.schema.get_field_index("discontinuous"), field, column)
    pq.write_table(table, tmp_path / "b.parquet")
    message = "entity ADR of the fragments [0, 1), [3, 9) lies outside its sentence of 5 words"
    refuses(tmp_path / "b.parquet", None, f"{tmp_path / 'b.parquet'}:1", message)
