"""HTTP/1.1 as uvicorn speaks it, with what it leaves out: patience has an end, half-closed
connections get their answers, and a stop loses nothing that is on its way.
"""

from __future__ import annotations

import asyncio
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

PROBE = 0.02  # seconds after which a client that is gone has said so; then ever longer
LEAVE = 0.3  # seconds in which a request may arrive that was sent before the stop


class PatientProtocol(H11Protocol):
    receive_timeout = 15.0  # seconds for the head of a request

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.access_log = False  # it would log what clients put into paths
        self.head_timer: asyncio.TimerHandle | None = None
        self.leaving = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._watch_head()

    def connection_lost(self, exc: Exception | None) -> None:
        self._forget_head()
        super().connection_lost(exc)

    # A head must be complete in time, however slowly its bytes come.

    def data_received(self, data: bytes) -> None:
        super().data_received(data)
        if self.conn.their_state is not h11.IDLE:
            self._forget_head()
        elif self.head_timer is None:
            self._watch_head()
        if self.leaving and self.cycle is not None:
            self.cycle.keep_alive = False

    def _watch_head(self) -> None:
        self.head_timer = self.loop.call_later(self.receive_timeout, self.transport.abort)

    def _forget_head(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    # The end of what a client sends looks the same whether it still listens or is gone. Only
    # something sent to it tells: a closed connection answers with a reset. "100 Continue" says
    # nothing, and every client must be able to read it.

    def eof_received(self) -> bool:  # type: ignore[override]
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused:
            return False
        cycle.keep_alive = False
        if not cycle.response_started:
            self.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")
        self._probe(PROBE)
        return True

    def _probe(self, seconds: float) -> None:
        self.loop.call_later(seconds, self._look, seconds)

    def _look(self, seconds: float) -> None:
        if self.transport.is_closing():
            return
        connection = self.transport.get_extra_info("socket")
        if connection.getsockopt(socket.SOL_SOCKET, socket.SO_ERROR):
            self.transport.abort()
        else:
            self._probe(min(2 * seconds, 1.0))

    # An idle connection may have a request on its way to us.

    def shutdown(self) -> None:
        self.leaving = True
        if self.cycle is None or self.cycle.response_complete:
            self.loop.call_later(LEAVE, self._leave)
        else:
            self.cycle.keep_alive = False

    def _leave(self) -> None:
        if not self.transport.is_closing():
            super().shutdown()


def protocol(receive_timeout: float) -> type[PatientProtocol]:
    """The class that uvicorn is to use."""
    return type("Protocol", (PatientProtocol,), {"receive_timeout": receive_timeout})
