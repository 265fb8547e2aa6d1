"""Middleware around every request: host, API keys, headers, metrics, log and internal errors."""

from __future__ import annotations

import asyncio
import hashlib
import hmac
import logging
import time
import traceback
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType

from starlette.types import ASGIApp, Message, Receive, Scope, Send

from diffusionner.errors import SettingsError
from diffusionner.service.api_errors import HEADERS, ApiError, ErrorResponse, failed
from diffusionner.service.hosts import AllowedHosts
from diffusionner.service.metrics import Metrics

log = logging.getLogger("diffusionner.service")

PROTECTED = ("/v1/", "/metrics")  # path prefixes that need a key, if there are keys
QUIET = ("/healthz", "/readyz", "/metrics")  # successes are logged at level DEBUG
LOGGED = {"/", "/v1/entities", "/v1/steps", "/v1/models", "/openapi.json", *QUIET}
RAW_HEADERS = [(name.encode(), value.encode()) for name, value in HEADERS.items()]
METHOD_CHARACTERS = 16  # of a method in the log


class ApiKeys:
    """Stores digests of keys, so that timing reveals neither their length nor their content."""

    def __init__(self, keys: list[str]) -> None:
        self._digests = [_digest(key.encode()) for key in keys]

    @classmethod
    def read(cls, path: Path) -> ApiKeys:
        """Read a file with one key per line, ignoring empty lines and comments (#)."""
        try:
            lines = path.read_text(encoding="utf-8").splitlines()
        except (OSError, UnicodeDecodeError) as error:
            raise SettingsError(f"the API keys in {path} cannot be read: {error}") from error
        keys = [line.strip() for line in lines]
        keys = [key for key in keys if key and not key.startswith("#")]
        if not keys:
            raise SettingsError(f"{path} contains no API keys; write one per line")
        return cls(keys)

    def allow(self, authorization: bytes) -> bool:
        """Return True if the header is `Bearer KEY` with a known key. Always compares all keys."""
        scheme, _, key = authorization.partition(b" ")
        digest = _digest(key.strip())
        matches = [hmac.compare_digest(digest, known) for known in self._digests]
        return any(matches) and scheme.lower() == b"bearer"


def _digest(key: bytes) -> bytes:
    return hashlib.sha256(key).digest()


@dataclass
class RequestMiddleware:
    """The outermost ASGI middleware."""

    app: ASGIApp
    metrics: Metrics
    keys: ApiKeys | None
    hosts: AllowedHosts

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if scope["type"] != "http":
            await self.app(scope, receive, send)
            return
        started = time.perf_counter()
        status = 0

        async def respond(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
                message = {**message, "headers": [*message["headers"], *RAW_HEADERS]}
            await send(message)

        try:
            refusal = self._refusal(scope)
            app = self.app if refusal is None else ErrorResponse(refusal)
            await app(scope, receive, respond)
        except asyncio.CancelledError:
            status = status or 499
            raise
        except Exception as error:  # an internal error; its message could contain the text
            log.error("%s at %s", type(error).__name__, _location(error.__traceback__))
            if not status:
                await ErrorResponse(failed())(scope, receive, respond)
        finally:
            self._record(scope, status, time.perf_counter() - started)

    def _refusal(self, scope: Scope) -> ApiError | None:
        if not self.hosts.allow(_values(scope, b"host")):
            return _wrong_host()
        if self.keys is None or not scope["path"].startswith(PROTECTED):
            return None
        given = _values(scope, b"authorization")
        return None if len(given) == 1 and self.keys.allow(given[0]) else _unauthorized()

    def _record(self, scope: Scope, status: int, seconds: float) -> None:
        """Log and count a request; unknown paths may contain anything and are not named."""
        path = scope["path"] if scope["path"] in LOGGED else "other"
        self.metrics.requests.labels(path, status).inc()
        self.metrics.seconds.labels(path).observe(seconds)
        level = logging.DEBUG if path in QUIET and status == 200 else logging.INFO
        method = scope["method"][:METHOD_CHARACTERS]  # h11 accepts only printable characters
        log.log(level, "%s %s %d %.1f ms", method, path, status, 1000 * seconds)


def _values(scope: Scope, header: bytes) -> list[bytes]:
    return [value for name, value in scope["headers"] if name == header]


def _wrong_host() -> ApiError:
    message = (
        "the service does not answer to the name in the Host header; start it with "
        "--allowed-host NAME to allow that name"
    )
    return ApiError(421, "wrong_host", message)


def _unauthorized() -> ApiError:
    message = "this service needs a key, in the header Authorization: Bearer KEY"
    return ApiError(401, "unauthorized", message, {"www-authenticate": "Bearer"})


def _location(trace: TracebackType | None) -> str:
    """Return file, line and function of the innermost frames."""
    frames = traceback.extract_tb(trace)[-3:]
    return " > ".join(f"{f.filename.rpartition('/')[2]}:{f.lineno} {f.name}" for f in frames)
