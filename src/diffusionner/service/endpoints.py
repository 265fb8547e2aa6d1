"""The endpoints under /v1, and those for whoever runs the service."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from diffusionner.service import body
from diffusionner.service.limits import Limits
from diffusionner.service.problems import Problem, gone, loading, timed_out
from diffusionner.service.schema import (
    EntitiesRequest,
    EntitiesResponse,
    Health,
    Model,
    Models,
    Options,
    ProblemResponse,
    StepsRequest,
    StepsResponse,
    request_schema,
)
from diffusionner.service.service import Service
from diffusionner.service.waiting import Task, Waiting

NDJSON = "application/x-ndjson"
PROBLEMS = {
    400: "The body is not JSON in UTF-8.",
    401: "A key is needed, and was not given.",
    408: "The body came too slowly.",
    413: "The body is too large.",
    415: "The body is not said to be JSON.",
    422: "The request is not as it should be, or over a limit.",
    429: "Too much is waiting; Retry-After says when to come again.",
    503: "The model is being loaded, or the service is stopping.",
    504: "It took too long.",
}


def router(service: Service) -> APIRouter:
    limits = service.limits
    routes = APIRouter()

    @routes.post(
        "/v1/entities",
        response_class=Response,
        responses=_responses(EntitiesResponse, *PROBLEMS, ndjson=True),
        openapi_extra=_body(EntitiesRequest, limits),
    )
    async def entities(request: Request) -> Response:
        """Entities of texts. With `Accept: application/x-ndjson`, a line for each text, in order,
        as soon as it is known: `{"text", "entities"}`, or, as the last one, `{"error"}`."""
        asked = await body.read(request, EntitiesRequest, limits)
        waiting = await _submit(service, "entities", asked, asked.texts)
        if NDJSON in request.headers.get("accept", ""):
            return Lines(service, waiting)
        found = await _all(service, request, waiting)
        return _answer(service, b'"results":[' + b",".join(found) + b"]")

    @routes.post(
        "/v1/steps",
        response_class=Response,
        responses=_responses(StepsResponse, *PROBLEMS),
        openapi_extra=_body(StepsRequest, limits),
    )
    async def steps(request: Request) -> Response:
        """Every denoising step of every sentence of a text, from noise to entities."""
        asked = await body.read(request, StepsRequest, limits)
        waiting = await _submit(service, "steps", asked, [asked.text])
        (found,) = await _all(service, request, waiting)
        return _answer(service, found[1:-1])

    @routes.get("/v1/models", responses=_responses(Models, 401, 503), response_model=None)
    async def models() -> Response:
        """The model that is served."""
        about = service.about
        inference, denoises = about.settings.inference, about.settings.denoises
        model = Model(
            name=service.name,
            labels=about.labels,
            backend=about.backend,
            method=about.settings.method,
            steps=inference.steps if denoises else None,
            spans=inference.spans if denoises else None,
            overlap=inference.overlap,
        )
        return JSONResponse(Models(models=[model]).model_dump())

    @routes.get("/healthz", responses=_responses(Health), response_model=None)
    async def healthz() -> Response:
        """Whether the service runs."""
        return JSONResponse({"status": "ok"})

    @routes.get("/readyz", responses=_responses(Health, 503), response_model=None)
    async def readyz() -> Response:
        """Whether the model is loaded."""
        if not service.ready:
            raise loading()
        return JSONResponse({"status": "ready"})

    @routes.get(
        "/metrics",
        response_class=Response,
        responses={
            200: {"content": {"text/plain": {}}, "description": "For Prometheus."},
            401: {"model": ProblemResponse, "description": PROBLEMS[401]},
        },
    )
    async def metrics() -> Response:
        """Requests, latency, batches, queue and memory."""
        return Response(service.metrics.text(), media_type="text/plain; version=0.0.4")

    return routes


def _responses(model: Any, *problems: int, ndjson: bool = False) -> dict[int | str, dict[str, Any]]:
    content: dict[str, Any] = {"application/json": {}} | ({NDJSON: {}} if ndjson else {})
    described: dict[int | str, dict[str, Any]] = {200: {"model": model, "content": content}}
    for status in problems:
        described[status] = {"model": ProblemResponse, "description": PROBLEMS[status]}
    return described


def _body(model: type[Options], limits: Limits) -> dict[str, Any]:
    schema = request_schema(model, limits)
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "content": content}}


async def _submit(service: Service, kind: str, asked: Options, texts: list[str]) -> Waiting:
    about = service.about
    if kind == "steps" and not about.settings.denoises:
        raise Problem(422, "invalid", f"no steps: the model's method is {about.settings.method}")
    body.check_options(asked, about.settings, about.labels)
    options = asked.model_dump(exclude={"texts", "text", "labels"}, exclude_none=True)
    labels = None if asked.labels is None else tuple(asked.labels)
    return await service.batcher.submit(Task(kind, tuple(options.items()), labels), texts)


def _answer(service: Service, fields: bytes) -> Response:
    """The parts are JSON already, made where the model is."""
    model = b'"model":' + json.dumps(service.name).encode()
    return Response(b"{" + model + b"," + fields + b"}", media_type="application/json")


async def _all(service: Service, request: Request, waiting: Waiting) -> list[bytes]:
    """All answers, unless the client goes away or the time is over."""
    seconds = service.limits.timeout
    left: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
    answers = asyncio.ensure_future(_together(waiting))
    try:
        await asyncio.wait({left, answers}, timeout=seconds, return_when="FIRST_COMPLETED")
        if answers.done():
            return answers.result()
        raise gone() if left.done() else timed_out(seconds)
    finally:
        answers.cancel()
        service.batcher.drop(waiting, "gone" if left.done() else "timed_out")
        left.cancel()


async def _together(waiting: Waiting) -> list[bytes]:
    """A task, unlike what gather returns, is silent when it is cancelled and nobody asks."""
    return await asyncio.gather(*waiting.answers)


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


class Lines(StreamingResponse):
    """One line for each text, in order, each as soon as it is known."""

    def __init__(self, service: Service, waiting: Waiting) -> None:
        self.service = service
        self.waiting = waiting
        super().__init__(self._lines(), media_type=NDJSON)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.service.batcher.drop(self.waiting, "gone")

    async def _lines(self) -> AsyncIterator[bytes]:
        seconds = self.service.limits.timeout
        end = time.monotonic() + seconds
        try:
            for answer in self.waiting.answers:
                done, _ = await asyncio.wait({answer}, timeout=max(0, end - time.monotonic()))
                if not done:
                    raise timed_out(seconds)
                yield answer.result() + b"\n"
        except Problem as problem:
            yield problem.body() + b"\n"
