"""Errors of the HTTP API and their responses."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from http import HTTPStatus

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

DRAIN_SECONDS = 3.0  # maximum time to read and discard an oversized body
CLOSE = {"connection": "close"}
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
HEADERS = {  # of every response
    "cache-control": "no-cache",
    "content-security-policy": POLICY,
    "cross-origin-resource-policy": "same-origin",
    "referrer-policy": "no-referrer",
    "x-content-type-options": "nosniff",
}


@dataclass(eq=False)
class ApiError(Exception):
    """An error response."""

    status: int
    code: str  # for programs
    message: str  # for people
    headers: Mapping[str, str] | None = None

    def body(self) -> bytes:
        content = {"error": {"code": self.code, "message": self.message}}
        return json.dumps(content, ensure_ascii=False).encode()

    def http_response(self) -> bytes:
        """Return the response for a connection whose request did not reach the application."""
        body = self.body()
        about = {"content-type": "application/json", "content-length": str(len(body))}
        headers = {**about, **CLOSE, **HEADERS, **(self.headers or {})}
        lines = [f"HTTP/1.1 {self.status} {HTTPStatus(self.status).phrase}"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        return "\r\n".join([*lines, "", ""]).encode() + body


class ErrorResponse(Response):
    media_type = "application/json"

    def __init__(self, error: ApiError) -> None:
        super().__init__(error.body(), error.status, error.headers)
        self.drains = error.status == 413

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.drains or any(name == b"expect" for name, _ in scope["headers"]):
            await super().__call__(scope, receive, send)
            return
        # A client reads the response only after sending its whole body; closing the connection
        # earlier would look like a reset.
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with anyio.move_on_after(DRAIN_SECONDS):
            while (await receive()).get("more_body"):
                pass
        await send({"type": "http.response.body", "body": b"", "more_body": False})


def too_large(limit: int) -> ApiError:
    message = f"the body is larger than {limit} bytes; split the texts into several requests"
    return ApiError(413, "body_too_large", message, CLOSE)


def timed_out(seconds: float) -> ApiError:
    message = f"not done within {seconds:g} seconds; send fewer or shorter texts per request"
    return ApiError(504, "timed_out", message)


def too_much_work(reason: str) -> ApiError:
    return ApiError(422, "too_much_work", reason)


def client_gone() -> ApiError:
    """Return the error for a closed connection; nobody reads it, but nginx's status is logged."""
    return ApiError(499, "gone", "the client closed the connection")


def failed() -> ApiError:
    return ApiError(500, "failed", "the model failed on this text; see the log of the service")


def not_loaded() -> ApiError:
    return ApiError(503, "not_loaded", "the model cannot be loaded; see the log of the service")
