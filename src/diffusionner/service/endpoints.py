"""The endpoints under /v1, and those for operators: health, readiness and metrics."""

from __future__ import annotations

import asyncio
import json
import time
from collections.abc import AsyncIterator, Callable, Sequence
from functools import partial
from typing import Any

from fastapi import APIRouter, Request, Response
from fastapi.responses import JSONResponse, StreamingResponse
from starlette.types import Receive, Scope, Send

from diffusionner.errors import DataError, SettingsError
from diffusionner.label_set import LabelSet
from diffusionner.refinement import GivenSpans, refinement_settings
from diffusionner.service.api_errors import ApiError, client_gone, timed_out, too_much_work
from diffusionner.service.job import Document, Job
from diffusionner.service.limits import Limits
from diffusionner.service.request_body import check_options, read_body
from diffusionner.service.runtime import Service
from diffusionner.service.schema import (
    EntitiesRequest,
    EntitiesResponse,
    ErrorBody,
    Health,
    Model,
    Models,
    Options,
    RefineRequest,
    RefineResponse,
    StepsRequest,
    StepsResponse,
    with_limits,
)
from diffusionner.service.work import WorkEstimate
from diffusionner.service.worker import ModelInfo, Operation

NDJSON = "application/x-ndjson"
ERRORS = {
    400: "The body is not JSON in UTF-8.",
    401: "The API key is missing or wrong.",
    408: "The body arrived too slowly.",
    413: "The body is too large.",
    415: "The content type is not application/json.",
    422: "The request is invalid or exceeds a limit.",
    429: "The queue is full; Retry-After gives the seconds to wait.",
    503: "The model is loading or cannot be loaded, or the service is stopping.",
    504: "The request took too long.",
}


def make_router(service: Service) -> APIRouter:
    limits = service.limits
    entities_request = with_limits(EntitiesRequest, limits)
    refine_request = with_limits(RefineRequest, limits)
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
        model, asked = service.model, check_options(parsed, service.model)
        options = parsed.inference_options()
        estimate = WorkEstimate(model.settings, options, model.word_limits, labels=asked)
        documents = await service.batcher.read_all(parsed.texts, estimate)
        operation = Operation("entities", tuple(options.items()), asked)
        job = Job(operation, documents, estimate.batch, service.model.settings)
        await service.batcher.submit(job)

        def encode(document: Document) -> bytes:
            found = document.entities(document.results, _label_names(model, asked))
            return _json({"text": document.text, "entities": found})

        return await _respond(service, request, job, encode)

    @router.post(
        "/v1/refine",
        response_class=Response,
        responses=_responses(RefineResponse, *ERRORS, ndjson=True),
        openapi_extra=_request_body(refine_request),
    )
    async def refine(request: Request) -> Response:
        """Denoise the spans given for texts, and report what became of each.

        With `Accept: application/x-ndjson`, as for /v1/entities.
        """
        parsed = await read_body(request, refine_request, limits)
        model, only = service.model, parsed.only
        try:
            settings = refinement_settings(model.settings, parsed.inference_options(), only)
        except SettingsError as error:
            raise ApiError(422, "invalid", str(error)) from None
        asked = check_options(parsed, model)
        names = _label_names(model, asked)
        options = {**parsed.inference_options(), "steps": settings.inference.steps}
        estimate = WorkEstimate(model.settings, options, model.word_limits, only, asked)
        places = (
            partial(
                GivenSpans,
                [span.model_dump() for span in one.spans],
                len(one.text),
                labels=names,
                label_map=parsed.label_map,
                place=f"texts[{number}]: ",
            )
            for number, one in enumerate(parsed.texts)
        )
        try:
            texts = [one.text for one in parsed.texts]
            documents = await service.batcher.read_all(texts, estimate, places)
        except DataError as error:
            raise ApiError(422, "invalid_span", str(error)) from None
        operation = Operation("refine", (*options.items(), ("only", only)), asked)
        job = Job(operation, documents, estimate.batch, model.settings)
        await service.batcher.submit(job)

        def encode(document: Document) -> bytes:
            refined = document.refinement(names, only)
            return _json({"text": document.text, **refined})

        return await _respond(service, request, job, encode)

    @router.post(
        "/v1/steps",
        response_class=Response,
        responses=_responses(StepsResponse, *ERRORS),
        openapi_extra=_request_body(steps_request),
    )
    async def steps(request: Request) -> Response:
        """Return every denoising step of a sentence of a text, from noise to entities."""
        parsed = await read_body(request, steps_request, limits)
        settings = service.model.settings
        if not settings.denoises:
            raise ApiError(422, "invalid", f"method {settings.method} has no denoising steps")
        asked = check_options(parsed, service.model, start="noise")
        # Noise needs as many spans as in training.
        spans = settings.diffusion.spans if settings.inference.start != "noise" else None
        options = {"spans": spans, **parsed.inference_options(), "start": "noise"}
        estimate = WorkEstimate(settings, options, service.model.word_limits, labels=asked)
        document = await service.batcher.read(parsed.text, estimate)
        if document.sentences:
            _choose_sentence(document, parsed.sentence, estimate, limits)
        operation = Operation("steps", tuple(options.items()), asked)
        job = Job(operation, [document], estimate.batch, service.model.settings)
        await service.batcher.submit(job)
        await _wait(service, request, job)
        names = _label_names(service.model, asked)
        return StreamingResponse(
            _steps_json(service, document, names), media_type="application/json"
        )

    @router.get("/v1/models", responses=_responses(Models, 401, 503), response_model=None)
    async def models() -> Response:
        """Describe the model."""
        loaded = service.model
        inference, denoises = loaded.settings.inference, loaded.settings.denoises
        model = Model(
            name=service.name,
            labels=loaded.labels,
            open_labels=loaded.settings.reads_labels,
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
    schema = model.model_json_schema()
    content = {"application/json": {"schema": _inline(schema, schema.pop("$defs", {}))}}
    return {"requestBody": {"required": True, "content": content}}


def _inline(schema: Any, definitions: dict[str, Any]) -> Any:
    """Replace references, which are relative to the whole description, by what they refer to."""
    if isinstance(schema, list):
        return [_inline(one, definitions) for one in schema]
    if not isinstance(schema, dict):
        return schema
    if "$ref" in schema:
        return _inline(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    return {name: _inline(one, definitions) for name, one in schema.items()}


def _label_names(model: ModelInfo, asked: LabelSet | None) -> Sequence[str]:
    """Return the labels that type ids refer to."""
    if asked is None or not model.settings.reads_labels:
        return model.labels
    return asked.names


def _choose_sentence(
    document: Document, number: int, estimate: WorkEstimate, limits: Limits
) -> None:
    """Compute only this sentence; raise ApiError if it does not exist or is too long."""
    count = len(document.sentences)
    if number >= count:
        message = f"sentence: the text has {count} sentence(s), counted from 0"
        raise ApiError(422, "no_such_sentence", message)
    words = len(document.sentences[number].words)
    if words > limits.step_words:
        message = f"the sentence has {words} words, more than {limits.step_words}"
        raise ApiError(422, "sentence_too_long", message)
    spans = round(estimate.span_count(words))
    if estimate.steps * spans > limits.step_spans:
        raise too_much_work(
            f"{estimate.steps} steps × {spans} spans, which grow with the {words} words of the "
            f"sentence, are {estimate.steps * spans}, more than {limits.step_spans}; ask for fewer "
            "steps or spans"
        )
    document.choose(number)


async def _respond(
    service: Service, request: Request, job: Job, encode: Callable[[Document], bytes]
) -> Response:
    """Send the results of all texts, at once or line by line."""
    if NDJSON in request.headers.get("accept", ""):
        return LinesResponse(service, job, encode)
    results = b",".join(map(encode, await _wait(service, request, job)))
    head = b'{"model":' + _json(service.name) + b',"results":['
    return Response(head + results + b"]}", media_type="application/json")


async def _wait(service: Service, request: Request, job: Job) -> list[Document]:
    """Return all documents; raise ApiError if the client leaves or the time is up."""
    seconds = service.limits.timeout
    left: asyncio.Future[Any] = asyncio.ensure_future(_disconnected(request))
    results = asyncio.ensure_future(_gather(job))
    try:
        await asyncio.wait({left, results}, timeout=seconds, return_when="FIRST_COMPLETED")
        if results.done():
            return results.result()
        raise client_gone() if left.done() else timed_out(seconds)
    finally:
        results.cancel()
        service.batcher.drop(job, "gone" if left.done() else "timed_out")
        left.cancel()


async def _gather(job: Job) -> list[Document]:
    """Gather the results in a task which, unlike gather's future, can be cancelled silently."""
    return await asyncio.gather(*job.futures.values())


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


def _json(value: object) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()


class LinesResponse(StreamingResponse):
    """One JSON line per text, in order, each sent when it is ready."""

    def __init__(self, service: Service, job: Job, encode: Callable[[Document], bytes]) -> None:
        self.service = service
        self.job = job
        self.encode = encode
        super().__init__(self._lines(), media_type=NDJSON)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self.service.batcher.drop(self.job, "gone")

    async def _lines(self) -> AsyncIterator[bytes]:
        seconds = self.service.limits.timeout
        end = time.monotonic() + seconds
        try:
            for future in self.job.futures.values():
                done, _ = await asyncio.wait({future}, timeout=max(0, end - time.monotonic()))
                if not done:
                    raise timed_out(seconds)
                yield self.encode(future.result()) + b"\n"
        except ApiError as error:
            yield error.body() + b"\n"


async def _steps_json(
    service: Service, document: Document, labels: Sequence[str]
) -> AsyncIterator[bytes]:
    """Yield the JSON of a `StepsResponse`, step by step."""
    sentences = [(s.starts[0], s.ends[-1]) for s in document.sentences]
    head = {"model": service.name, "text": document.text, "sentences": sentences}
    if not document.chosen:
        yield _json({**head, "words": [], "steps": [], "entities": []})
        return
    (number,) = document.chosen
    sentence, result = document.sentences[number], document.results[number]
    starts, ends = sentence.starts, sentence.ends
    words = list(zip(starts, ends, strict=True))[: result["words"]]
    yield _json({**head, "words": words})[:-1] + b',"steps":['
    for i, (timestep, rows) in enumerate(result["steps"]):
        spans = [
            {
                "start": starts[left],
                "end": ends[right],
                "to_start": starts[to_left],
                "to_end": ends[to_right],
                "label": None if type_id is None else labels[type_id],
                "score": score,
            }
            for (left, right), (to_left, to_right), type_id, score in rows
        ]
        yield (b"," if i else b"") + _json({"timestep": timestep, "spans": spans})
    found = [()] * number + [result["entities"]] + [()] * (len(sentences) - number - 1)
    yield b'],"entities":' + _json(document.entities(found, labels)) + b"}"
