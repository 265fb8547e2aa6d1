"""What is answered instead of entities."""

from __future__ import annotations

import json
from collections.abc import Mapping


class Problem(Exception):
    """Refused, with a code for programs and a message for people."""

    def __init__(
        self, status: int, code: str, message: str, headers: Mapping[str, str] | None = None
    ) -> None:
        super().__init__(f"{status} {code}: {message}")
        self.status = status
        self.code = code
        self.message = message
        self.headers = dict(headers or {})

    def body(self) -> bytes:
        return problem_json(self.code, self.message)


def problem_json(code: str, message: str) -> bytes:
    return json.dumps({"error": {"code": code, "message": message}}, ensure_ascii=False).encode()


def too_large(limit: int) -> Problem:
    return Problem(
        413,
        "body_too_large",
        f"the body is larger than {limit} bytes; send the texts in several requests",
        {"connection": "close"},
    )


def too_slow(seconds: float) -> Problem:
    return Problem(
        408,
        "too_slow",
        f"the body did not arrive within {seconds:g} seconds; send it again",
        {"connection": "close"},
    )


def busy(retry_after: int) -> Problem:
    return Problem(
        429,
        "busy",
        f"too much is waiting already; send it again in {retry_after} s",
        {"retry-after": str(retry_after)},
    )


def timed_out(seconds: float) -> Problem:
    return Problem(
        504,
        "timed_out",
        f"not done within {seconds:g} seconds; send fewer or shorter texts at a time",
    )


def gone() -> Problem:
    """Nobody will read it; the log and the metrics count it by nginx's number."""
    return Problem(499, "gone", "the client closed the connection")


def loading() -> Problem:
    return Problem(503, "loading", "the model is being loaded; try again", {"retry-after": "2"})


def stopping() -> Problem:
    return Problem(503, "stopping", "the service is stopping; send it again", {"retry-after": "1"})


def failed() -> Problem:
    return Problem(500, "failed", "the model failed on this text; its log says where")
