"""HTTP/1.1 of uvicorn, extended: timeouts for request heads, responses on half-closed
connections, and a shutdown that loses no request on its way.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PROBE_SECONDS = 0.02  # first interval between checks of a half-closed connection; then doubled
LINGER_SECONDS = 0.3  # time for a request to arrive that was sent before the shutdown


class HttpProtocol(H11Protocol):
    head_timeout = 15.0  # seconds for the head of a request

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False  # would log paths, which may contain anything
        self.head_timer: asyncio.TimerHandle | None = None
        self.closing = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        super().connection_lost(exc)

    # The head must be complete in time, however slowly its bytes arrive.

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._cancel_head_timer()
        elif self.head_timer is None:
            self._start_head_timer()
        if self.closing and self.cycle is not None:
            self.cycle.keep_alive = False

    def _start_head_timer(self) -> None:
        self.head_timer = self.loop.call_later(self.head_timeout, self.transport.abort)

    def _cancel_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    # After EOF a client may still be listening, or be gone. Only sending something to it tells: a
    # closed connection answers with a reset. "100 Continue" is harmless: all clients accept it.

    def eof_received(self) -> bool:  # type: ignore[override]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused:
            return False
        cycle.keep_alive = False
        if not cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self.loop.call_later(PROBE_SECONDS, self._probe, PROBE_SECONDS)
        return True

    def _probe(self, seconds: float) -> None:
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            seconds = min(2 * seconds, 1.0)
            self.loop.call_later(seconds, self._probe, seconds)

    # A request may be on its way on an idle connection.

    def shutdown(self) -> None:
        self.closing = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LINGER_SECONDS, self._close)
        else:
            self.cycle.keep_alive = False

    def _close(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()


def make_protocol(head_timeout: float) -> type[HttpProtocol]:
    """Return the protocol class for uvicorn."""
    return type("Protocol", (HttpProtocol,), {"head_timeout": head_timeout})
