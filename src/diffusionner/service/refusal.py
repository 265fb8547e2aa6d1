"""A problem as an HTTP answer."""

from __future__ import annotations

import anyio
from starlette.responses import Response
from starlette.types import Receive, Scope, Send

from diffusionner.service.problems import Problem

LINGER = 3.0  # seconds to go on reading what is thrown away


class Refusal(Response):
    media_type = "application/json"

    def __init__(self, problem: Problem) -> None:
        super().__init__(problem.body(), problem.status, problem.headers)
        self.lingers = problem.status == 413

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if not self.lingers or any(name == b"expect" for name, _ in scope["headers"]):
            await super().__call__(scope, receive, send)
            return
        # A client that is still sending reads the answer only afterwards; were the connection
        # closed meanwhile, it would see a reset instead.
        start = {"type": "http.response.start", "status": self.status_code}
        await send({**start, "headers": self.raw_headers})
        await send({"type": "http.response.body", "body": self.body, "more_body": True})
        with anyio.move_on_after(LINGER):
            while (message := await receive()).get("more_body"):
                del message
        await send({"type": "http.response.body", "body": b"", "more_body": False})
