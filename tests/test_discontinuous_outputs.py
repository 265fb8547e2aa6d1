"""Discontinuous entities in everything that writes, serves or stores predictions."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
import spacy
import torch
from pyarrow import parquet
from services import Client, running
from spacy.tokens import Doc, DocBin

from diffusionner import DiffusionNER, Entity, formats
from diffusionner.corpus import Discontinuous, Entities, Span
from diffusionner.errors import DataError
from diffusionner.integrations.gliner import to_gliner
from diffusionner.service.worker import Predictor
from models import lively_model, spans

TEXT = "Muscle pain and  stiffness of both shoulders. The 😀 left and right lung hurt."
WORDS = "Muscle pain and stiffness of both shoulders .".split()
REFUSED = "it is discontinuous, and only contiguous spans can be refined"
OFFSET_LISTS = pa.list_(pa.list_(pa.int32()))


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    """A model that finds many entities, some of them with gaps."""
    changes = ("decoder.initializer=spans", "inference.start=candidates", "inference.spans=auto")
    ner = lively_model(encoder_folder, *changes, "decoder.discontinuous=true")
    with torch.no_grad():
        for scores in (ner.network.fragments.envelopes, ner.network.fragments.pairs):
            scores.first_weight.bias += 4
            scores.product.weight.normal_(std=0.5)
    return ner


@pytest.fixture(scope="module")
def model(ner: DiffusionNER, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("discontinuous") / "model"
    ner.save_pretrained(folder)
    return folder


@pytest.fixture(scope="module")
def client(ner: DiffusionNER) -> Iterator[Client]:
    with running(Predictor(ner)) as client:
        yield client


def both_kinds(entities: list[Entity]) -> bool:
    return len({bool(entity.gaps) for entity in entities}) == 2


def check_text(entity: dict, text: str) -> None:
    """Check that fragments, where there are several, are those of the text."""
    fragments = entity.get("fragments", [[entity["start"], entity["end"]]])
    assert entity["text"] == " … ".join(text[start:end] for start, end in fragments)
    assert [fragments[0][0], fragments[-1][1]] == [entity["start"], entity["end"]]
    assert "fragments" not in entity or len(fragments) > 1


# --- The service --------------------------------------------------------------------------------


def test_service(client, ner):
    (result,) = client.post("/v1/entities", json={"texts": [TEXT]}).json()["results"]
    found = ner(TEXT)
    assert both_kinds(found)
    for entity in result["entities"]:
        check_text(entity, TEXT)
    keys = ("start", "end", "label", "text", "fragments")
    assert [[e.get(key) for key in keys] for e in result["entities"]] == [
        [e.to_dict().get(key) for key in keys] for e in found
    ]


def test_steps_of_the_service(client):
    answer = client.post("/v1/steps", json={"text": TEXT, "steps": 2}).json()
    assert any("fragments" in entity for entity in answer["entities"])
    for entity in answer["entities"]:
        check_text(entity, TEXT)


def test_service_refines_contiguous_spans_only(client):
    (result,) = client.post("/v1/entities", json={"texts": [TEXT]}).json()["results"]
    whole = [entity for entity in result["entities"] if "fragments" not in entity]
    response = client.post("/v1/refine", json={"texts": [{"text": TEXT, "spans": whole}]})
    (refined,) = response.json()["results"]
    assert any("fragments" in entity for entity in refined["entities"])
    became = [outcome["entity"] for outcome in refined["outcomes"]]
    assert any(became) and not any("fragments" in entity for entity in became if entity)
    place = next(i for i, e in enumerate(result["entities"]) if "fragments" in e)
    texts = [{"text": "a", "spans": []}, {"text": TEXT, "spans": result["entities"]}]
    response = client.post("/v1/refine", json={"texts": texts})
    assert response.status_code == 422
    error = response.json()["error"]
    assert error["code"] == "invalid_span"
    assert error["message"].startswith(f"texts[1]: span {place}: {REFUSED}")


def test_description_of_the_service(client):
    entity = client.get("/openapi.json").json()["components"]["schemas"]["FoundEntity"]
    assert "fragments" in entity["properties"] and "fragments" not in entity["required"]


# --- Refining in Python ---------------------------------------------------------------------------


@pytest.mark.parametrize(
    "span",
    [
        Entity(0, 26, "PER", gaps=((6, 17),)),
        Entity(0, 26, "PER", gaps=((6, 17),)).to_dict(),
        Discontinuous(((0, 6), (17, 26)), "PER"),
    ],
)
def test_discontinuous_spans_cannot_be_refined(ner, span):
    with pytest.raises(DataError, match=f"^text 0, span 1: {REFUSED}; leave it out$"):
        ner.refine(TEXT, [(0, 6), span])


def test_refine_returns_discontinuous_entities_but_spans_become_none(ner):
    discontinuous = [entity for entity in ner(TEXT) if entity.gaps]
    given = [(e.start, e.end, e.label) for e in discontinuous]
    refined = ner.refine(TEXT, given)
    assert any(entity.gaps for entity in refined.entities)
    assert not any(o.entity.gaps for o in refined.outcomes if o.entity is not None)
    only = ner.refine(TEXT, given, only=True)
    assert not any(entity.gaps for entity in only.entities)


# --- Files ----------------------------------------------------------------------------------------


def test_predict_and_annotate_write_the_same(cli, model, ner, tmp_path):
    source = tmp_path / "in.jsonl"
    records = [{"text": TEXT}, {"tokens": WORDS}, {"text": "a"}]
    source.write_text("".join(json.dumps(record) + "\n" for record in records))
    predicted = cli("predict", "--model", model, "--input", source).records
    found = [ner(TEXT), *ner.predict_tokens([WORDS]), ner("a")]
    for record, entities in zip(predicted, found, strict=True):
        assert [e.get("fragments") for e in record["entities"]] == [
            e.to_dict().get("fragments") for e in entities
        ]
    for entity in predicted[0]["entities"]:
        check_text(entity, TEXT)
    assert cli("annotate", source, tmp_path / "out.jsonl", "--model", model).status == 0
    written = (tmp_path / "out.jsonl").read_text(encoding="utf-8")
    assert [json.loads(line)["entities"] for line in written.splitlines()] == [
        record["entities"] for record in predicted
    ]


def test_predict_prints_and_draws(cli, model, ner, tmp_path):
    page = tmp_path / "found.html"
    shown = cli("predict", "--model", model, "--html", page, TEXT)
    assert shown.status == 0 and "┘┄" in shown.out
    assert " … " in page.read_text(encoding="utf-8")


def test_parquet_has_a_column_of_fragments(cli, model, ner, tmp_path):
    source, target = tmp_path / "in.txt", tmp_path / "out.parquet"
    source.write_text(f"{TEXT}\na\n", encoding="utf-8")
    result = cli("annotate", source, target, "--model", model, "--part-rows", 1)
    assert result.status == 0, result.err
    table = parquet.read_table(target)
    entity = table.schema.field("entities").type.value_type
    assert entity.field(entity.num_fields - 1) == pa.field("fragments", OFFSET_LISTS)
    written = [entity["fragments"] for row in table.to_pylist() for entity in row["entities"]]
    assert written == [e.to_dict().get("fragments") for text in (TEXT, "a") for e in ner(text)]
    assert None in written and any(written)


@pytest.mark.parametrize("name", ["out.jsonl", "out.parquet"])
def test_annotated_corpora_are_read_as_they_were_written(cli, model, ner, tmp_path, name):
    (tmp_path / "in.jsonl").write_text(json.dumps({"tokens": WORDS}), encoding="utf-8")
    target = tmp_path / name
    assert cli("annotate", tmp_path / "in.jsonl", target, "--model", model).status == 0
    (read,) = formats.read(target)
    (found,) = ner.predict_tokens([WORDS])
    assert {(e.fragments, e.label) for e in read.all_entities} == {
        (e.fragments, e.label) for e in found
    }
    assert read.discontinuous and read.entities


def test_parquet_without_gaps_has_no_such_column(cli, encoder_folder, tmp_path):
    lively_model(encoder_folder).save_pretrained(tmp_path / "model")
    (tmp_path / "in.txt").write_text(TEXT, encoding="utf-8")
    target = tmp_path / "out.parquet"
    assert cli("annotate", tmp_path / "in.txt", target, "--model", tmp_path / "model").status == 0
    entity = parquet.read_schema(target / "part-00000.parquet").field("entities").type.value_type
    assert [field.name for field in entity] == ["start", "end", "label", "score", "text"]


# --- Other libraries ------------------------------------------------------------------------------


def test_spacy(ner, model):
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner", config={"model": str(model)})
    doc = nlp(" ".join(WORDS))
    (expected,) = ner.predict_tokens([WORDS])
    assert both_kinds(expected)
    for copy in (doc, doc.copy(), Doc(nlp.vocab).from_bytes(doc.to_bytes()), through_docbin(doc)):
        found = copy.spans["sc"]
        assert [(s.start, s.end, s.label_) for s in found] == spans(expected)
        assert [tuple(span._.fragments) for span in found] == [e.fragments for e in expected]
        assert np.allclose(found.attrs["scores"], [e.score for e in expected], atol=1e-4)
    whole = {(e.start, e.end, e.label) for e in expected if not e.gaps}
    assert doc.ents and {(s.start, s.end, s.label_) for s in doc.ents} <= whole
    assert all(span._.fragments == [(span.start, span.end)] for span in doc.ents)


def through_docbin(doc: Doc) -> Doc:
    content = DocBin(store_user_data=True, docs=[doc]).to_bytes()
    (read,) = DocBin().from_bytes(content).get_docs(spacy.blank("en").vocab)
    return read


def test_spacy_does_not_refine_discontinuous_spans(model):
    nlp = spacy.blank("en")
    nlp.add_pipe("diffusionner", name="first", config={"model": str(model)})
    nlp.add_pipe("diffusionner", config={"model": str(model), "refine": "sc"})
    with pytest.raises(DataError, match=REFUSED):
        nlp(" ".join(WORDS))


def test_presidio_has_a_result_for_each_fragment(ner, model):
    pytest.importorskip("presidio_analyzer", reason="Presidio is not installed")
    from diffusionner.integrations.presidio import DiffusionNERRecognizer

    results = DiffusionNERRecognizer(model).analyze(TEXT, [])
    entities = ner(TEXT)
    assert [(r.start, r.end) for r in results] == [f for e in entities for f in e.fragments]
    assert len(results) > len(entities)


def test_form_of_gliner(ner):
    found = ner.predict_entities(TEXT, threshold=0.0, flat_ner=False)
    assert any("fragments" in entity for entity in found)
    for entity in found:
        check_text(entity, TEXT)
        assert list(entity)[:5] == ["start", "end", "text", "label", "score"]


def test_flat_entities_in_the_form_of_gliner_share_no_word():
    pain, stiffness = Entity(0, 11, "A", 0.5), Entity(0, 26, "A", 0.9, gaps=((6, 17),))
    inside = Entity(12, 15, "B", 0.4)

    def kept(entities: list[Entity], policy: str) -> list[tuple[int, int]]:
        return [(e["start"], e["end"]) for e in to_gliner(entities, policy)]

    for policy in ("flat", "flat view"):
        assert kept([pain, stiffness, inside], policy) == [(0, 11), (12, 15)]
        assert kept([stiffness, inside], policy) == [(0, 26), (12, 15)]
    assert kept([pain, stiffness, inside], "nested") == [(0, 26), (0, 11), (12, 15)]


# --- Scores and drawings of what models return ----------------------------------------------------


def test_predictions_are_scored_as_they_are(ner):
    from diffusionner.evaluation import score

    (found,) = ner.predict_tokens([WORDS])
    gold = [
        Discontinuous(e.fragments, e.label) if e.gaps else Span(e.start, e.end, e.label)
        for e in found
    ]
    report = score([gold], [found])
    assert report.micro.f1 == report.words.f1 == report.discontinuous.f1 == 1
    assert report.discontinuous.gold == len({e for e in gold if isinstance(e, Discontinuous)})


def test_words_are_drawn_as_text(ner):
    (found,) = ner.predict_tokens([WORDS])
    text, moved = found.characters()
    assert Entities.of(moved, text, found.labels).to_svg() == found.to_svg()
    for entity in moved:
        check_text(entity.to_dict(), text)
