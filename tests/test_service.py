"""The service returns the results of the library, and clear errors for bad requests."""

from __future__ import annotations

import gc
import json
import logging
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from services import Client, Held, read_all, request_bytes, running, until

from diffusionner import DiffusionNER, Entity
from diffusionner.errors import SettingsError
from diffusionner.service.limits import Limits
from diffusionner.service.middleware import ApiKeys
from diffusionner.service.schema import EntitiesResponse, StepsResponse
from diffusionner.service.worker import Operation, Predictor, Slice
from models import LABELS, lively_model, written

TEXTS = [
    "Ada Lovelace met Charles Babbage in London. He had a machine.",
    "",
    " \n\t ",
    "Zwölf Boxkämpfer 👩‍🚀 jagen Viktor.\r\nÜber den Deich 𝔘𝔫𝔦!",
    "NUL \0 and bell \a inside",
    "<script>alert(1)</script> & 'quotes' \"double\"",
    "日本語のテキスト。東京。",
]
LIMITS = Limits(
    body_bytes=300_000, texts=50, characters=2_000, step_characters=500, step_words=30, receive=0.5
)


def same(found: list[dict[str, Any]], expected: list[Entity]) -> bool:
    """Compare entities; the last digits of scores depend on the shape of a batch."""
    rounded = [pytest.approx(written(e)["score"], abs=1e-5) for e in expected]
    return found == [
        written(e) | {"score": score} for e, score in zip(expected, rounded, strict=True)
    ]


@pytest.fixture(scope="module")
def ner(encoder_folder: Path) -> DiffusionNER:
    return lively_model(encoder_folder)


@pytest.fixture(scope="module")
def client(ner: DiffusionNER) -> Iterator[Client]:
    with running(Predictor(ner), LIMITS) as client:
        yield client


def test_results_equal_those_of_the_library(client, ner):
    options = {"steps": 3, "spans": 7, "threshold": 0.4, "overlap": "flat"}
    for chosen in ({}, options):
        response = client.entities(*TEXTS, **chosen)
        assert response.status_code == 200
        EntitiesResponse.model_validate_json(response.content)
        answer = response.json()
        assert answer["model"] == "tiny"
        assert [one["text"] for one in answer["results"]] == TEXTS
        for one in answer["results"]:
            assert same(one["entities"], ner(one["text"], **chosen))
            for entity in one["entities"]:
                assert one["text"][entity["start"] : entity["end"]] == entity["text"]
    assert any(answer["results"][0]["entities"])


def test_requested_labels_only(client, ner):
    found = client.entities(TEXTS[0], labels=["PER"]).json()["results"][0]["entities"]
    assert same(found, [e for e in ner(TEXTS[0]) if e.label == "PER"])
    assert client.entities(TEXTS[0], labels=[]).json()["results"][0]["entities"] == []


def test_lines_in_order(client, ner):
    response = client.post(
        "/v1/entities", json={"texts": TEXTS}, headers={"accept": "application/x-ndjson"}
    )
    assert response.headers["content-type"].startswith("application/x-ndjson")
    lines = [json.loads(line) for line in response.content.splitlines()]
    assert [line["text"] for line in lines] == TEXTS
    assert same(lines[0]["entities"], ner(TEXTS[0]))


def test_no_texts(client):
    assert client.entities().json()["results"] == []


@pytest.mark.parametrize("number", [0, 1])
def test_steps_go_from_noise_to_the_entities(client, ner, number):
    text = "Ada Lovelace met Charles. He had a machine."
    body = {"text": text, "steps": 4, "spans": 9, "sentence": number}
    response = client.post("/v1/steps", json=body)
    StepsResponse.model_validate_json(response.content)
    answer = response.json()
    assert answer["sentences"] == [[0, 25], [26, 43]]
    start, end = answer["sentences"][number]
    expected = [e for e in ner(text, steps=4, spans=9, start="noise") if start <= e.start < end]
    assert same(answer["entities"], expected)
    assert [step["timestep"] for step in answer["steps"]] == [100, 75, 50, 25]
    assert all(len(step["spans"]) == 9 for step in answer["steps"])
    words = {tuple(word) for word in answer["words"]}
    starts, ends = {start for start, _ in words}, {end for _, end in words}
    for span in (span for step in answer["steps"] for span in step["spans"]):
        assert {span["start"], span["to_start"]} <= starts
        assert {span["end"], span["to_end"]} <= ends
    # The model takes every span for an entity: the last step's are what is found.
    last = answer["steps"][-1]["spans"]
    found = {(e["start"], e["end"]) for e in answer["entities"]}
    assert found <= {(span["to_start"], span["to_end"]) for span in last if span["label"]}


def test_steps_of_a_model_that_starts_from_candidates(encoder_folder):
    """They start from noise with the number of spans in training; its own may be too few."""
    ner = lively_model(encoder_folder, "decoder.initializer=spans", "inference.start=candidates")
    assert ner.settings.inference.spans != ner.settings.diffusion.spans
    text = "Ada met Charles."
    with running(Predictor(ner)) as client:
        answer = client.post("/v1/steps", json={"text": text}).json()
    spans = ner.settings.diffusion.spans
    assert {len(step["spans"]) for step in answer["steps"]} == {spans}
    assert same(answer["entities"], ner(text, start="noise", spans=spans))
    assert answer["entities"] != [written(e) for e in ner(text)]


def test_steps_of_empty_text(client):
    answer = client.post("/v1/steps", json={"text": " "}).json()
    assert answer["sentences"] == answer["words"] == answer["steps"] == answer["entities"] == []


def test_steps_are_bounded(client):
    def refused(**body: object) -> str:
        response = client.post("/v1/steps", json=body)
        assert response.status_code == 422
        error: dict[str, str] = response.json()["error"]
        messages.append(error["message"])
        return error["code"]

    messages: list[str] = []
    assert refused(text="One. Two.", sentence=2) == "no_such_sentence"
    assert refused(text="One.", sentence=-1) == "invalid"
    assert refused(text="word " * 31) == "sentence_too_long"
    assert refused(text="One.", steps=50, spans=61) == "too_much_work"
    assert "50 steps × 61 spans" in messages[-1] and "3050, more than 3000" in messages[-1]
    largest = client.post("/v1/steps", json={"text": "word " * 30, "steps": 50, "spans": 60})
    assert largest.status_code == 200
    assert len(largest.content) < 400_000
    many = client.post("/v1/steps", json={"text": "No! " * 125, "steps": 50, "spans": 60})
    assert many.status_code == 200 and len(many.json()["sentences"]) == 125


def test_models_health_and_metrics(client):
    (model,) = client.get("/v1/models").json()["models"]
    assert model["labels"] == LABELS and model["backend"] == "torch" and model["steps"] == 2
    assert client.get("/healthz").json() == {"status": "ok"}
    assert client.get("/readyz").json() == {"status": "ready"}
    client.entities("Some text.")
    text = client.get("/metrics").text
    for name in ("requests_total", "request_seconds_bucket", "batch_texts_bucket"):
        assert f"diffusionner_{name}{{" in text
    assert "diffusionner_queue_requests 0.0" in text


BAD = [
    (b"", 400, "invalid_json"),
    (b"{", 400, "invalid_json"),
    (b'{"texts": ["\xff\xfe"]}', 400, "invalid_json"),
    (b'{"texts": ["half \\ud800"]}', 400, "invalid_json"),
    (b'{"texts": ["a"], "threshold": NaN}', 422, "invalid"),
    (b"[" * 100_000, 400, "invalid_json"),
    (b'{"texts":' * 20_000, 400, "invalid_json"),
    (b'{"texts": [' + b"[" * 150 + b"]" * 150 + b"]}", 422, "invalid"),
    (b"null", 422, "invalid"),
    (b'["a"]', 422, "invalid"),
    (b"{}", 422, "invalid"),
    (b'{"texts": "one"}', 422, "invalid"),
    (b'{"texts": [1]}', 422, "invalid"),
    (b'{"texts": ["a"], "unknown": 1}', 422, "invalid"),
    (b'{"texts": ["a"], "steps": 0}', 422, "invalid"),
    (b'{"texts": ["a"], "steps": "5"}', 422, "invalid"),
    (b'{"texts": ["a"], "steps": true}', 422, "invalid"),
    (b'{"texts": ["a"], "steps": 51}', 422, "invalid"),
    (b'{"texts": ["a"], "steps": 1' + b"0" * 5000 + b"}", 400, "invalid_json"),
    (b'{"texts": ["a"], "spans": 100000}', 422, "invalid"),
    (b'{"texts": ["a"], "threshold": 1.5}', 422, "invalid"),
    (b'{"texts": ["a"], "overlap": "some"}', 422, "invalid"),
    (b'{"texts": ["a"], "labels": ["PRE"]}', 422, "unknown_label"),
    (json.dumps({"texts": ["a"] * 51}).encode(), 422, "too_many_texts"),
    (json.dumps({"texts": ["a", "b" * 2001]}).encode(), 422, "text_too_long"),
    (b'{"texts": ["' + b"x" * 1_000_000 + b'"]}', 413, "body_too_large"),
]


@pytest.mark.parametrize(("body", "status", "code"), BAD, ids=[str(b[:40]) for b, _, _ in BAD])
def test_bad_requests(client, body, status, code):
    response = client.post(
        "/v1/entities", content=body, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (status, code)
    assert len(response.content) < 1000
    assert response.json()["error"]["message"]


def test_other_errors(client):
    assert client.post("/v1/entities", content=b"{}").status_code == 415
    wrong = client.get("/v1/entities")
    assert (wrong.status_code, wrong.headers["allow"]) == (405, "POST")
    assert client.get("/v1/nothing").json()["error"]["code"] == "not_found"
    long = client.post("/v1/steps", json={"text": "x" * 501})
    assert (long.status_code, long.json()["error"]["code"]) == (422, "text_too_long")


def test_a_word_of_a_million_characters(ner):
    with running(Predictor(ner), Limits(characters=1_000_000)) as client:
        refused = client.entities("x" * 1_000_000)
        assert (refused.status_code, refused.json()["error"]["code"]) == (422, "too_much_work")
        response = client.entities("x" * 20_000)
        assert response.status_code == 200
        assert len(response.json()["results"][0]["text"]) == 20_000


@pytest.mark.parametrize("chunked", [False, True])
def test_a_body_of_100_megabytes(client, chunked):
    chunk = b"x" * 1_000_000
    content = iter([chunk] * 100) if chunked else chunk * 100
    response = client.post(
        "/v1/entities", content=content, headers={"content-type": "application/json"}
    )
    assert (response.status_code, response.json()["error"]["code"]) == (413, "body_too_large")
    assert client.entities("Still here.").status_code == 200


def test_slow_clients_time_out(client):
    with client.connect() as slow, client.connect() as slower:
        slow.sendall(request_bytes(b"", "Content-Length: 1000"))
        slower.sendall(b"POST /v1/ent")
        started = time.monotonic()
        for _ in range(4):
            time.sleep(0.1)
            slow.sendall(b"x")
            slower.sendall(b"i")
        assert client.entities("Meanwhile.").status_code == 200
        for connection in (slow, slower):
            answer = read_all(connection)
            assert answer.startswith(b"HTTP/1.1 408 ") and b"too_slow" in answer
        assert time.monotonic() - started < 5


@pytest.mark.parametrize("version", [b"HTTP/1.0", b"HTTP/1.1"])
def test_a_half_closed_connection_gets_its_response(ner, version):
    held = Held(ner)
    with running(held) as client, client.connect() as half:
        half.sendall(request_bytes(b'{"texts": ["Ada."]}').replace(b"HTTP/1.1", version))
        half.shutdown(1)
        until(lambda: held.given)
        time.sleep(0.1)  # long enough to be taken for gone
        held.go.set()
        answer = read_all(half)
    assert b"HTTP/1.1 200 " in answer
    assert (b"100 Continue" in answer) == (version == b"HTTP/1.1")
    assert json.loads(answer.rpartition(b"\r\n\r\n")[2])["results"][0]["text"] == "Ada."


@pytest.mark.parametrize("accept", ["application/json", "application/x-ndjson"])
def test_requests_of_disconnected_clients_are_dropped(ner, accept):
    held = Held(ner)
    with running(held) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.entities, "First.")
        until(lambda: held.given)
        with client.connect() as gone:
            gone.sendall(request_bytes(b'{"texts": ["Gone.", "Too."]}', f"Accept: {accept}"))
            until(lambda: client.metric("queue_requests") == 1)
        until(lambda: client.metric("dropped_texts_total", reason="gone") == 2)
        held.go.set()
        assert first.result().status_code == 200
        assert client.entities("Last.").status_code == 200
        assert held.given == [["First ."], ["Last ."]]


def test_a_full_queue_refuses_requests(ner):
    held = Held(ner)
    with running(held, Limits(queue=3)) as client, ThreadPoolExecutor(8) as pool:
        waiting = [pool.submit(client.entities, "First.")]
        until(lambda: held.given)
        waiting += [pool.submit(client.entities, f"Number {i}.") for i in range(3)]
        until(lambda: client.metric("queue_requests") == 3)
        refused = client.entities("Too much.")
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert int(refused.headers["retry-after"]) >= 1
        held.go.set()
        assert [one.result().status_code for one in waiting] == [200] * 4
        # What waited went into one batch.
        assert sorted(map(len, held.given)) == [1, 3]


def test_a_long_expected_wait_refuses_requests(ner):
    held = Held(ner)
    with running(held, Limits(wait=0.5)) as client, ThreadPoolExecutor(30) as pool:
        # They cannot share a batch, and are refused after the first seconds of work.
        sent = [
            pool.submit(client.entities, "long text " * 100, threshold=i / 50) for i in range(30)
        ]
        until(lambda: any(one.done() for one in sent))
        refused = client.entities("long text " * 100)
        assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
        assert client.metric("queue_work") > 500
        held.go.set()
        statuses = [one.result().status_code for one in sent]
        assert set(statuses) == {200, 429} and statuses.count(200) >= 3
        assert client.entities("Short.").status_code == 200


def test_timeout(ner, caplog):
    held = Held(ner)
    with running(held, Limits(timeout=0.3)) as client, ThreadPoolExecutor() as pool:
        first = pool.submit(client.entities, "First.")
        until(lambda: held.given)
        second = client.entities("Second.", "Third.")
        assert (second.status_code, second.json()["error"]["code"]) == (504, "timed_out")
        assert first.result().status_code == 504
        assert client.metric("dropped_texts_total", reason="timed_out") == 2
        line = client.post(
            "/v1/entities", json={"texts": ["x"]}, headers={"accept": "application/x-ndjson"}
        )
        assert json.loads(line.content)["error"]["code"] == "timed_out"
        held.go.set()
        assert client.entities("Fourth.").status_code == 200
    gc.collect()
    assert "never retrieved" not in caplog.text


class Fragile(Predictor):
    """Fails on batches that contain a certain word."""

    def run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        if any("fragile" in words for one in slices for words in one.sentences):
            raise RuntimeError(f"could not compute {slices}")
        return super().run(operation, slices)


def test_a_failing_text_does_not_affect_others(ner, caplog):
    held = Fragile(ner)
    with running(held) as client, ThreadPoolExecutor(8) as pool:
        texts = ["fine", "fragile", "good", "well"] * 3
        answers = list(pool.map(client.entities, texts))
        assert [one.status_code for one in answers] == [
            500 if t == "fragile" else 200 for t in texts
        ]
        mixed = client.entities("fine", "fragile")
        assert (mixed.status_code, mixed.json()["error"]["code"]) == (500, "failed")
    assert "fragile" not in caplog.text


def test_many_clients_share_batches(client, ner):
    texts = [f"Person {i} met Charles Babbage in London number {i % 7}." for i in range(96)]
    before = client.metric("batch_texts_count")
    with ThreadPoolExecutor(32) as pool:
        answers = list(pool.map(client.entities, texts))
    for text, answer in zip(texts, answers, strict=True):
        (result,) = answer.json()["results"]
        assert result["text"] == text and same(result["entities"], ner(text))
    assert client.metric("batch_texts_count") - before < 60


def test_api_keys(ner, tmp_path):
    file = tmp_path / "keys"
    file.write_text("# ours\nsecret-one\n\nsecret-two\n")
    with running(Predictor(ner), keys=ApiKeys.read(file)) as client:
        for header in (None, "Bearer wrong", "Basic secret-one", "Bearer", "secret-one"):
            headers = {} if header is None else {"authorization": header}
            for path in ("/v1/models", "/metrics"):
                refused = client.get(path, headers=headers)
                assert refused.status_code == 401
                assert refused.headers["www-authenticate"] == "Bearer"
        for key in ("secret-one", "secret-two"):
            assert client.get("/v1/models", headers={"authorization": f"Bearer {key}"}).is_success
        assert client.get("/healthz").is_success and client.get("/readyz").is_success


def test_bad_key_files(tmp_path):
    with pytest.raises(SettingsError, match="cannot be read"):
        ApiKeys.read(tmp_path / "nothing")
    (tmp_path / "empty").write_text("# no key\n")
    with pytest.raises(SettingsError, match="contains no API keys"):
        ApiKeys.read(tmp_path / "empty")


def test_no_text_in_the_log(client, caplog):
    caplog.set_level(logging.DEBUG)
    client.entities("Secretary Smith")
    client.entities("Secretary Smith", labels=["Secretary"])
    client.get("/Secretary?text=Secretary")
    client.post("/v1/entities", content=b"Secretary", headers={"content-type": "application/json"})
    ours = [r.getMessage() for r in caplog.records if not r.name.startswith(("httpx", "httpcore"))]
    assert any("POST /v1/entities 200" in line for line in ours)
    assert "Secretary" not in "\n".join(ours)
