"""The service against its OpenAPI description, by schemathesis."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from services import Client, running

from diffusionner.service.limits import Limits
from diffusionner.service.worker import Predictor
from models import lively_model

schemathesis = pytest.importorskip("schemathesis", reason="install the extra 'dev'")

QUICK = settings(
    max_examples=40,
    deadline=None,
    derandomize=True,
    phases=[Phase.explicit, Phase.generate],
    suppress_health_check=list(HealthCheck),
)
UNDESCRIBED = (
    "invalid_span", "too_much_work", "no_such_sentence", "sentence_too_long", "body_too_large"
)  # fmt: skip


@pytest.fixture(scope="module")
def client(encoder_folder: Path) -> Iterator[Client]:
    changes = ("decoder.initializer=spans", "inference.start=candidates")
    model = lively_model(encoder_folder, *changes)
    with running(Predictor(model), Limits(receive=2)) as client:
        yield client


@pytest.mark.parametrize("mode", ["positive", "negative"])
@pytest.mark.parametrize("path", ["/v1/entities", "/v1/refine", "/v1/steps"])
def test_posts_match_the_description(client, path, mode):
    """Valid requests are answered, others refused, all as described."""
    described = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    cases = described[path]["POST"].as_strategy(schemathesis.GenerationMode(mode))

    @QUICK
    @given(case=cases)
    def check(case: Any) -> None:
        response = case.call()
        # The schema cannot describe the limits on work, nor on all texts together.
        if (
            response.status_code not in (413, 422)
            or response.json()["error"]["code"] not in UNDESCRIBED
        ):
            case.validate_response(response)

    check()


@pytest.mark.parametrize("path", ["/v1/models", "/healthz", "/readyz", "/metrics"])
def test_gets_match_the_description(client, path):
    described = schemathesis.openapi.from_url(f"{client.base_url}/openapi.json")
    described[path]["GET"].Case().call_and_validate()


def test_description(client):
    paths = client.get("/openapi.json").json()["paths"]
    assert set(paths) == {
        "/v1/entities", "/v1/refine", "/v1/steps", "/v1/models", "/healthz", "/readyz", "/metrics",
    }  # fmt: skip
    body = paths["/v1/entities"]["post"]["requestBody"]["content"]["application/json"]["schema"]
    assert body["properties"]["texts"]["maxItems"] == 1000
    assert {"413", "415", "422", "429", "504"} <= set(paths["/v1/entities"]["post"]["responses"])
