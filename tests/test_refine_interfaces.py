"""Refining given spans on the command line, in spaCy and over HTTP."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import spacy
from spacy.tokens import Doc, DocBin

from diffusionner import DiffusionNER
from diffusionner.errors import DataError, SettingsError
from models import lively_model, written

TEXT = "Ada Lovelace met Charles Babbage in London.  They talked about engines."
WORDS = "Ada Lovelace met Charles Babbage in London .".split()
INITIALIZER = (
    "decoder.initializer=types",
    "decoder.offset_window=3",
    "inference.start=candidates",
    "inference.spans=auto",
)


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder, "encoder.context=1", *INITIALIZER)


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("refine") / "model"
    ner.save_pretrained(folder)
    return folder


# --- The command line ---------------------------------------------------------------------------


def lines(*records: dict) -> bytes:
    return "".join(json.dumps(record) + "\n" for record in records).encode()


@pytest.mark.parametrize("only", [True, False])
def test_predict_refines_spans(cli, model, ner, only):
    given = [{"start": 0, "end": 12, "label": "PERSON"}, [36, 42], [17, 70, "DATE", 0.5]]
    source = lines(
        {"text": TEXT, "mine": given, "id": 1},
        {"tokens": WORDS, "mine": [[0, 8, "PER"]]},
        {"text": TEXT, "mine": []},
    )
    arguments = ["--model", model, "--input", "-", "--refine", "mine", "--label-map", "PERSON=PER"]
    result = cli("predict", *arguments, "--label-map", "DATE=", *["--only"] * only, stdin=source)
    assert result.status == 0, result.err
    first, second, third = result.records
    assert first["id"] == 1 and first["mine"] == given, "other fields are kept"
    mapping = {"PERSON": "PER", "DATE": None}
    items = [(TEXT, given), (WORDS, [(0, 8, "PER")]), (TEXT, [])]
    refined = ner.refine_pipe(items, only, label_map=mapping)
    for record, expected in zip((first, second, third), refined, strict=True):
        assert record["entities"] == [written(e) for e in expected.entities]
        assert record["outcomes"] == [outcome.to_dict() for outcome in expected.outcomes]
        assert [o["change"] for o in record["outcomes"]] == [o.change for o in expected.outcomes]
    assert first["outcomes"][1]["given"] == {"start": 36, "end": 42}, "no label, no score"
    assert first["outcomes"][0]["given"] == given[0]


def test_neighbouring_lines_are_context(cli, model, ner):
    records = [{"tokens": WORDS, "entities": [[0, 8]], "doc": doc} for doc in "aab"]
    arguments = ("--model", model, "--input", "-", "--refine", "entities")
    result = cli("predict", *arguments, stdin=lines(*records))
    expected = ner.refine_pipe([(WORDS, [(0, 8)], doc) for doc in "aab"])
    assert [r["entities"] for r in result.records] == [
        [written(e) for e in one.entities] for one in expected
    ]


def test_lines_with_bad_spans_are_skipped(cli, model):
    bad = [
        ({"text": TEXT}, 'in:2: expected a list of spans in "spans"'),
        ({"text": TEXT, "spans": [[0, 900]]}, "in:3: span 0: [0, 900) is empty or outside"),
        ({"text": TEXT, "spans": [[0, 3], [0, 3, "X"]]}, "in:4: span 1: unknown label 'X'"),
        ({"text": TEXT, "spans": [[True]]}, "in:5: span 0: expected (start, end)"),
    ]
    good = {"text": TEXT, "spans": [[0, 3]]}
    source = lines(good, *(record for record, _ in bad), good)
    result = cli("predict", "--model", model, "--input", "-", "--refine", "spans", stdin=source)
    assert result.status == 1 and len(result.records) == 2
    for _, message in bad:
        assert message.replace("in:", "standard input:") in result.err
    assert "bad records skipped: 4" in result.err


def test_options_of_refine(refused, model):
    assert "leave out the texts" in refused("predict", "--model", model, "--refine", "spans", TEXT)
    assert "--refine FIELD" in refused("predict", "--model", model, "--only", TEXT)
    pair = ("--input", "-", "--refine", "x", "--label-map", "GPE")
    assert "expected THEIRS=OURS" in refused("predict", "--model", model, *pair)


# --- spaCy --------------------------------------------------------------------------------------

PATTERNS = [
    {"label": "PERSON", "pattern": "Ada Lovelace"},
    {"label": "FAC", "pattern": [{"IS_SPACE": True}]},
    {"label": "GPE", "pattern": "engines"},
    {"label": "DATE", "pattern": "met Charles"},
]


def spacy_pipeline(model: Path, **config: object) -> spacy.Language:
    nlp = spacy.blank("en")
    nlp.add_pipe("entity_ruler").add_patterns(PATTERNS)
    mapping = {"PERSON": "PER", "DATE": None}
    nlp.add_pipe("diffusionner", config={"model": str(model), "label_map": mapping, **config})
    return nlp


@pytest.mark.parametrize("only", [True, False])
def test_spacy_refines_the_entities_of_another_component(model, ner, only):
    nlp = spacy_pipeline(model, refine="ents", only=only)
    doc = nlp(TEXT)
    assert doc[8].is_space, "between two sentences, so that it touches no word"
    given = [(0, 2, "PERSON"), (2, 4, "DATE"), (8, 9, "FAC"), (12, 13, "GPE")]
    characters = [(0, 12, "PER"), (13, 24), (44, 45, "FAC"), (63, 70, "GPE")]
    expected = ner.refine(TEXT, characters, only)
    found = doc.spans["sc"]
    assert [(s.start_char, s.end_char, s.label_) for s in found] == [
        e[:3] for e in expected.entities
    ]
    outcomes = found.attrs["outcomes"]
    assert [(o["start"], o["end"], o["label"]) for o in outcomes] == given
    assert [o["change"] for o in outcomes] == [o.change for o in expected.outcomes]
    assert outcomes[2] == {
        "start": 8, "end": 9, "label": "FAC", "score": None, "change": "dropped", "entity": None,
    }  # fmt: skip
    for outcome, other in zip(outcomes, expected.outcomes, strict=True):
        if other.entity is not None:
            assert found[outcome["entity"]].text == other.entity.text
    assert not {e.label_ for e in doc.ents} & {"PERSON", "DATE"}, "they are replaced"
    (stored,) = DocBin(docs=[doc], store_user_data=True).get_docs(nlp.vocab)
    assert stored.spans["sc"].attrs["outcomes"] == outcomes


def test_spacy_refines_a_span_group(model, ner):
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner", config={"model": str(model), "refine": "mine", "only": True})
    docs = [nlp.make_doc(text) for text in (TEXT, "", TEXT)]
    docs[0].spans["mine"] = [docs[0][0:3], docs[0][3:5]]
    found = list(nlp.get_pipe("diffusionner").pipe(docs))
    expected = ner.refine(TEXT, [(0, 16), (17, 32)], only=True)
    assert [s.text for s in found[0].spans["sc"]] == [e.text for e in expected.entities]
    assert [len(doc.spans["sc"].attrs["outcomes"]) for doc in found] == [2, 0, 0]
    assert isinstance(found[2], Doc) and not found[2].spans["sc"]


def test_spacy_settings_of_refine(model):
    with pytest.raises(SettingsError, match="only and label_map apply to refine"):
        spacy_pipeline(model, only=True)
    nlp = spacy_pipeline(model, refine="ents", label_map={})
    with pytest.raises(DataError, match="span 0: unknown label 'PERSON'; the model knows: FAC"):
        nlp(TEXT)
