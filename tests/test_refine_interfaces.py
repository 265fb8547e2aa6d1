"""Refining given spans on the command line, in spaCy and over HTTP."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import pytest
import spacy
from services import Client, running
from spacy.tokens import Doc, DocBin

from diffusionner import DiffusionNER
from diffusionner.errors import DataError, SettingsError
from diffusionner.service.limits import Limits
from diffusionner.service.worker import Operation, Predictor, Slice
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


def test_spacy_spans_over_white_space(model, ner):
    """At the end of a doc, no sentence has it."""
    nlp = spacy_pipeline(model, refine="given")
    doc = nlp.make_doc("Ada met Charles \n\n ")
    tokens = len(doc)
    assert doc[tokens - 1].is_space
    doc.spans["given"] = [doc[2:tokens], doc[tokens - 1 : tokens], doc[0:1]]
    outcomes = nlp.get_pipe("diffusionner")(doc).spans["sc"].attrs["outcomes"]
    assert [(one["start"], one["end"]) for one in outcomes] == [
        (2, tokens),
        (tokens - 1, tokens),
        (0, 1),
    ]
    assert outcomes[1]["change"] == "dropped" and outcomes[0]["change"] != "dropped"


def test_spacy_settings_of_refine(model):
    with pytest.raises(SettingsError, match="only and label_map apply to refine"):
        spacy_pipeline(model, only=True)
    nlp = spacy_pipeline(model, refine="ents", label_map={})
    with pytest.raises(DataError, match="span 0: unknown label 'PERSON'; the model knows: FAC"):
        nlp(TEXT)


# --- The service --------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def client(ner: DiffusionNER) -> Iterator[Client]:
    with running(Predictor(ner)) as client:
        yield client


def refine(client: Client, *texts: tuple[str, list], status: int = 200, **options: object) -> dict:
    items = [{"text": text, "spans": spans} for text, spans in texts]
    response = client.post("/v1/refine", json={"texts": items, **options})
    assert response.status_code == status, response.text
    return response.json()


def dicts(*spans: tuple) -> list[dict]:
    return [dict(zip(("start", "end", "label"), span, strict=False)) for span in spans]


@pytest.mark.parametrize("only", [True, False])
def test_the_service_refines_spans(client, ner, only):
    given = dicts((0, 12, "PERSON"), (36, 49), (63, 70, "GPE"))
    texts = [(TEXT, given), ("", []), (TEXT, []), (TEXT * 20, given)]
    options = {"only": only, "label_map": {"PERSON": "PER"}, "overlap": "nested"}
    found = refine(client, *texts, **options)
    for (text, spans), result in zip(texts, found["results"], strict=True):
        expected = ner.refine(text, spans, **options)
        assert result["text"] == text
        assert [(e["start"], e["end"], e["label"]) for e in result["entities"]] == [
            e[:3] for e in expected.entities
        ]
        outcomes = [(o["given"], o["change"]) for o in result["outcomes"]]
        assert outcomes == [(o.to_dict()["given"], o.change) for o in expected.outcomes]
        for one, other in zip(result["outcomes"], expected.outcomes, strict=True):
            assert (one["entity"] or {}).get("text") == (other.entity and other.entity.text)
    assert not only or not found["results"][2]["entities"]


def test_the_service_refines_entities_of_the_service(client):
    """Results of /v1/entities can be posted back; only entities of one type are looked for."""
    results = client.entities(TEXT).json()["results"]
    spans = [(one["text"], one["entities"]) for one in results]
    labels = {entity["label"] for entity in results[0]["entities"]}
    one, *others = sorted(labels)
    assert others
    found = refine(client, *spans, labels=[one], steps=2, threshold=0.1)["results"][0]
    assert len(found["outcomes"]) == len(results[0]["entities"]) > 3
    assert {entity["label"] for entity in found["entities"]} == {one}
    assert {o["entity"]["label"] for o in found["outcomes"] if o["entity"]} == {one}


def test_the_service_sends_lines(client):
    items = [{"text": TEXT, "spans": dicts((0, 3))}, {"text": "Rome", "spans": []}]
    headers = {"accept": "application/x-ndjson"}
    response = client.post("/v1/refine", json={"texts": items}, headers=headers)
    first, second = map(json.loads, response.text.splitlines())
    assert first["outcomes"] and first["text"] == TEXT and second["outcomes"] == []


class Watched(Predictor):
    """Records the shares of each slice, and how many places its spans had reached before it."""

    def __init__(self, ner: DiffusionNER) -> None:
        super().__init__(ner)
        self.seen: list[tuple[int, int]] = []

    def run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        for one in slices:
            reached = max((len(span.reached) for own in one.given for span in own), default=0)
            self.seen.append((one.shares, reached))
        return super().run(operation, slices)


def test_long_sentences_are_refined_in_shares(ner, monkeypatch):
    """The spans keep what they reached in earlier shares."""
    monkeypatch.setattr("diffusionner.service.job.BATCH_WORK", 20.0)
    text = " ".join(["Ada met Charles in London and"] * 40)
    spans = dicts(*((start, start + 11, "PER") for start in range(0, len(text) - 20, 30)))
    predictor = Watched(ner)
    with running(predictor) as client:
        (found,) = refine(client, (text, spans), only=True)["results"]
    assert max(shares for shares, _ in predictor.seen) > 2
    assert max(reached for _, reached in predictor.seen) > 1, "more than the span's own place"
    expected = ner.refine(text, spans, only=True)
    assert [o["change"] for o in found["outcomes"]] == [o.change for o in expected.outcomes]
    assert [e["text"] for e in found["entities"]] == [e.text for e in expected.entities] != []


@pytest.mark.parametrize(
    ("spans", "options", "code", "message"),
    [
        (dicts((0, 3), (0, 900)), {}, "invalid_span", "texts[1]: span 1: [0, 900) is empty or"),
        (dicts((3, 3)), {}, "invalid_span", "texts[1]: span 0: [3, 3) is empty"),
        (dicts((0, 3, "X")), {}, "invalid_span", "unknown label 'X'; the model knows: FAC"),
        (dicts((-1, 3)), {}, "invalid", "greater than or equal to 0"),
        ([{"start": 0}], {}, "invalid", "Field required"),
        (dicts(("0", 3)), {}, "invalid", "valid integer"),
        (dicts((0, 3)) * 1001, {}, "too_many_texts", "at most 1000 items"),
        ([], {"steps": 0}, "invalid", "greater than or equal to 1"),
        ([], {"only": "yes"}, "invalid", "valid boolean"),
        ([], {"labels": ["X"]}, "unknown_label", "no such type"),
    ],
)
def test_bad_requests_to_refine(client, spans, options, code, message):
    error = refine(client, (TEXT, []), (TEXT, spans), status=422, **options)["error"]
    assert error["code"] == code and message in error["message"]


def test_given_spans_are_work(ner):
    """A request with many spans is refused as one with many candidates is."""
    spans = dicts((0, 12)) * 1000
    with running(Predictor(ner), Limits(work=2)) as client:
        assert refine(client, (TEXT, spans[:100]), only=True)["results"]
        error = refine(client, *[(TEXT, spans)] * 9, status=422)["error"]
        assert error["code"] == "too_much_work"
