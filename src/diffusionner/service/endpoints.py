"""The endpoints under /v1, and those for operators: health, readiness and metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from diffusionner.service.api_errors import ApiError, client_gone, timed_out
from diffusionner.service.request_body import check_options, read_body
from diffusionner.service.request_queue import QueuedRequest
from diffusionner.service.runtime import Service
from diffusionner.service.schema import (
    EntitiesRequest,
    EntitiesResponse,
    ErrorBody,
    Health,
    Model,
    Models,
    Options,
    StepsRequest,
    StepsResponse,
    with_limits,
)
from diffusionner.service.worker import Operation

NDJSON = "application/x-ndjson"
ERRORS = {
    400: "The body is not JSON in UTF-8.",
    401: "The API key is missing or wrong.",
    408: "The body arrived too slowly.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    422: "The request is invalid or exceeds a limit.",
    429: "The queue is full; Retry-After gives the seconds to wait.",
    503: "The model is loading, or the service is stopping.",
    504: "The request took too long.",
}


def make_router(service: Service) -> APIRouter:
    limits = service.limits
    entities_request = with_limits(EntitiesRequest, limits)
    steps_request = with_limits(StepsRequest, limits)
    router = APIRouter()

    @router.post(
        "/v1/entities",
        response_class=Response,
        responses=_responses(EntitiesResponse, *ERRORS, ndjson=True),
        openapi_extra=_request_body(entities_request),
    )
    async def entities(request: Request) -> Response:
        """Predict the entities in texts.

        With `Accept: application/x-ndjson`, the response has one line per text, in order, each
        sent when it is ready: `{"text", "entities"}`, or `{"error"}` as the last line.
        """
        parsed = await read_body(request, entities_request, limits)
        queued = await _submit(service, "entities", parsed, parsed.texts)
        if NDJSON in request.headers.get("accept", ""):
            return LinesResponse(service, queued)
        results = await _wait(service, request, queued)
        return _respond(service, b'"results":[' + b",".join(results) + b"]")

    @router.post(
        "/v1/steps",
        response_class=Response,
        responses=_responses(StepsResponse, *ERRORS),
        openapi_extra=_request_body(steps_request),
    )
    async def steps(request: Request) -> Response:
        """Return every denoising step of every sentence of a text, from noise to entities."""
        parsed = await read_body(request, steps_request, limits)
        queued = await _submit(service, "steps", parsed, [parsed.text])
        (result,) = await _wait(service, request, queued)
        return _respond(service, result[1:-1])

    @router.get("/v1/models", responses=_responses(Models, 401, 503), response_model=None)
    async def models() -> Response:
        """Describe the model."""
        loaded = service.model
        inference, denoises = loaded.settings.inference, loaded.settings.denoises
        model = Model(
            name=service.name,
            labels=loaded.labels,
            backend=loaded.backend,
            method=loaded.settings.method,
            steps=inference.steps if denoises else None,
            spans=inference.spans if denoises else None,
            overlap=inference.overlap,
        )
        return JSONResponse(Models(models=[model]).model_dump())

    @router.get("/healthz", responses=_responses(Health), response_model=None)
    async def healthz() -> Response:
        """Report that the service is running."""
        return JSONResponse({"status": "ok"})

    @router.get("/readyz", responses=_responses(Health, 503), response_model=None)
    async def readyz() -> Response:
        """Report that the model is loaded."""
        _ = service.model
        return JSONResponse({"status": "ready"})

    @router.get(
        "/metrics",
        response_class=Response,
        responses={
            **_responses(None, 401),
            200: {"content": {"text/plain": {}}, "description": "Prometheus metrics."},
        },
    )
    async def metrics() -> Response:
        """Return metrics of requests, latency, batches, queue and memory."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    return router


def _responses(model: Any, *errors: int, ndjson: bool = False) -> dict[int | str, dict[str, Any]]:
    """Return the OpenAPI descriptions of a response and its possible errors."""
    content: dict[str, Any] = {"application/json": {}} | ({NDJSON: {}} if ndjson else {})
    described: dict[int | str, dict[str, Any]] = {200: {"model": model, "content": content}}
    for status in errors:
        described[status] = {"model": ErrorBody, "description": ERRORS[status]}
    return described


def _request_body(model: type[Options]) -> dict[str, Any]:
    content = {"application/json": {"schema": model.model_json_schema()}}
    return {"requestBody": {"required": True, "content": content}}


async def _submit(service: Service, kind: str, parsed: Options, texts: list[str]) -> QueuedRequest:
    settings = service.model.settings
    if kind == "steps" and not settings.denoises:
        raise ApiError(422, "invalid", f"method {settings.method} has no denoising steps")
    check_options(parsed, service.model)
    options = tuple(parsed.inference_options().items())
    labels = None if parsed.labels is None else tuple(parsed.labels)
    return await service.batcher.submit(Operation(kind, options, labels), texts)


def _respond(service: Service, fields: bytes) -> Response:
    """Build a response from fields that the model process has already encoded as JSON."""
    model = b'"model":' + json.dumps(service.name).encode()
    return Response(b"{" + model + b"," + fields + b"}", media_type="application/json")


async def _wait(service: Service, request: Request, queued: QueuedRequest) -> list[bytes]:
    """Return all results; raise ApiError if the client leaves or the time is up."""
    seconds = service.limits.timeout
    left: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
    results = asyncio.ensure_future(_gather(queued))
    try:
        await asyncio.wait({left, results}, timeout=seconds, return_when="FIRST_COMPLETED")
        if results.done():
            return results.result()
        raise client_gone() if left.done() else timed_out(seconds)
    finally:
        results.cancel()
        service.batcher.drop(queued, "gone" if left.done() else "timed_out")
        left.cancel()


async def _gather(queued: QueuedRequest) -> list[bytes]:
    """Gather the results in a task which, unlike gather's future, can be cancelled silently."""
    return await asyncio.gather(*queued.results)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class LinesResponse(StreamingResponse):
    """One JSON line per text, in order, each sent when it is ready."""

    def __init__(self, service: Service, queued: QueuedRequest) -> None:
        self.service = service
        self.queued = queued
        super().__init__(self._lines(), media_type=NDJSON)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.service.batcher.drop(self.queued, "gone")

    async def _lines(self) -> AsyncIterator[bytes]:
        seconds = self.service.limits.timeout
        end = time.monotonic() + seconds
        try:
            for result in self.queued.results:
                done, _ = await asyncio.wait({result}, timeout=max(0, end - time.monotonic()))
                if not done:
                    raise timed_out(seconds)
                yield result.result() + b"\n"
        except ApiError as error:
            yield error.body() + b"\n"
