"""Around every request: API keys, headers, metrics, the log, and errors that tell nothing."""

from __future__ import annotations

import asyncio
import logging
import time
import traceback
from types import TracebackType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffusionner.service.keys import ApiKeys
from diffusionner.service.metrics import Metrics
from diffusionner.service.problems import Problem, failed
from diffusionner.service.refusal import Refusal

log = logging.getLogger("diffusionner.service")

LOCKED = ("/v1/", "/metrics")  # what needs a key, where there are keys
LOGGED = {
    "/", "/v1/entities", "/v1/steps", "/v1/models", "/healthz", "/readyz", "/metrics",
    "/openapi.json",
}  # fmt: skip
HEADERS = [
    (b"x-content-type-options", b"nosniff"),
    (b"referrer-policy", b"no-referrer"),
    (b"cross-origin-resource-policy", b"same-origin"),
]


class Guard:
    """ASGI middleware, the outermost."""

    def __init__(self, app: ASGIApp, metrics: Metrics, keys: ApiKeys | None) -> None:
        self.app = app
        self.metrics = metrics
        self.keys = keys

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def answer(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *HEADERS]}
            await send(message)

        try:
            if self._locked(scope):
                await Refusal(_unauthorized())(scope, receive, answer)
            else:
                await self.app(scope, receive, answer)
        except asyncio.CancelledError:
            status = status or 499
            raise
        except Exception as error:  # a fault of ours; its message could hold the text
            log.error("%s at %s", type(error).__name__, _place(error.__traceback__))
            if not status:
                await Refusal(failed())(scope, receive, answer)
        finally:
            self._note(scope, status, time.perf_counter() - started)

    def _locked(self, scope: Scope) -> bool:
        if self.keys is None or not scope["path"].startswith(LOCKED):
            return False
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return not (len(given) == 1 and self.keys.allow(given[0]))

    def _note(self, scope: Scope, status: int, seconds: float) -> None:
        """Paths that are none of ours may hold anything, so they are not named."""
        path = scope["path"] if scope["path"] in LOGGED else "other"
        self.metrics.requests.labels(path, status).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        quiet = path in ("/healthz", "/readyz", "/metrics") and status == 200
        level = logging.DEBUG if quiet else logging.INFO
        log.log(level, "%s %s %d %.1f ms", scope["method"], path, status, 1000 * seconds)


def _unauthorized() -> Problem:
    return Problem(
        401,
        "unauthorized",
        "this service needs a key, in the header Authorization: Bearer KEY",
        {"www-authenticate": "Bearer"},
    )


def _place(trace: TracebackType | None) -> str:
    """File, line and function where it happened, innermost last."""
    frames = traceback.extract_tb(trace)[-3:]
    return " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in frames)
