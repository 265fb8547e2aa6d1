"""HTTP/1.1 of uvicorn, extended.

Requests that are not valid HTTP, or that a proxy might read differently, get a JSON error. Clients
cannot keep others out by opening connections, sending slowly or not reading. Half-closed
connections get their response, and a shutdown loses no request on its way.
"""

from __future__ import annotations

import asyncio
import logging
import re
import socket
from typing import Any

import h11
from uvicorn.protocols.http.h11_impl import H11Protocol

from diffusionner.service.api_errors import ApiError

log = logging.getLogger("diffusionner.service")

HEAD_BYTES = 32_768
MAX_CHUNKS = 10_000  # of a chunked body; each takes some microseconds
MAX_LINGERING = 100  # refused connections that are still open
PROBE_SECONDS = 0.02  # first interval between checks of a half-closed connection; then doubled
LINGER_SECONDS = 0.3  # time for a request to arrive that was sent before the shutdown
DRAIN_SECONDS = 3.0  # time to read an error; closing earlier would look like a reset
STALL_SECONDS = 30.0  # a client that reads nothing for so long is cut off
_LENGTHS = re.compile(rb"(?im)^content-length[ \t]*:([^\n]*)")
_TLS = b"\x16\x03"  # how a TLS connection starts
REFUSALS = {
    400: ("bad_request", "this is not a valid HTTP/1.1 request"),
    431: ("head_too_large", f"the head of the request is larger than {HEAD_BYTES} bytes"),
    501: ("not_supported", "the only supported transfer encoding is chunked"),
}
ONE_LENGTH = "give one Content-Length, with one number"
REASONS = {  # by the messages of h11
    "Missing mandatory Host: header": "give a Host header",
    "Found multiple Host: headers": "give one Host header",
    "bad Content-Length": ONE_LENGTH,
    "conflicting Content-Length headers": ONE_LENGTH,
}


class Refusal(h11.RemoteProtocolError):
    """A request that h11 would accept."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message, status)
        self.error = ApiError(status, code, message)


class StrictConnection(h11.Connection):
    """Refuses requests with more than one interpretation; `refusal` is the error to send."""

    refusal: ApiError
    chunks = 0

    def next_event(self) -> Any:
        buffered = self.trailing_data[0] if self.their_state is h11.IDLE else b""
        try:
            event = super().next_event()
            if isinstance(event, h11.Request):
                _check(event, buffered[: len(buffered) - len(self.trailing_data[0])])
                self.chunks = 0
            elif isinstance(event, h11.Data):
                self.chunks += event.chunk_start
                if self.chunks > MAX_CHUNKS:
                    raise Refusal(413, "body_too_large", f"more than {MAX_CHUNKS} chunks")
            return event
        except Refusal as error:
            self.refusal = error.error
            raise
        except h11.RemoteProtocolError as error:  # its message may contain anything
            status = error.error_status_hint
            code, message = REFUSALS.get(status, REFUSALS[400])
            if buffered.startswith(_TLS):
                message = "this port speaks HTTP, not HTTPS"
            self.refusal = ApiError(status, code, REASONS.get(str(error), message))
            raise


def _check(request: h11.Request, head: bytes) -> None:
    """Raise Refusal for a request that others may read differently or that is for a proxy."""
    if len(head) > HEAD_BYTES:  # h11 accepts longer ones that arrive at once
        raise Refusal(431, *REFUSALS[431])
    lengths = [length.strip() for length in _LENGTHS.findall(head)]  # h11 merges equal ones
    chunked = any(name == b"transfer-encoding" for name, _ in request.headers)
    if len(lengths) > 1 or not all(length.isdigit() for length in lengths):
        raise Refusal(400, "bad_request", ONE_LENGTH)
    if chunked and (lengths or request.http_version == b"1.0"):
        reason = "Transfer-Encoding needs HTTP/1.1 and excludes Content-Length"
        raise Refusal(400, "bad_request", reason)
    if request.http_version not in (b"1.0", b"1.1"):
        raise Refusal(505, "http_version", "this service speaks HTTP/1.1")
    if not request.target.startswith(b"/"):
        raise Refusal(400, "bad_request", "this is not a proxy; request a path, such as /v1/models")


class HttpProtocol(H11Protocol):
    # Set for each service by make_protocol:
    head_timeout: float  # seconds for the head of a request
    max_connections: int
    waiting: dict[HttpProtocol, None]  # connections without a request in progress, oldest first
    lingering: set[HttpProtocol]
    conn: StrictConnection

    def __init__(self, *arguments: Any, **options: Any) -> None:
        super().__init__(*arguments, **options)
        self.conn = StrictConnection(h11.SERVER, HEAD_BYTES)
        self.access_log = False  # would log paths, which may contain anything
        self.head_timer: asyncio.TimerHandle | None = None
        self.stall_timer: asyncio.TimerHandle | None = None
        self.closing = False
        self.refused = False

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        self._start_head_timer()
        self.waiting[self] = None
        if len(self.connections) > self.max_connections:
            # Refuses this connection if all others have a request in progress.
            message = "too many connections; retry later"
            error = ApiError(503, "too_many_connections", message, {"retry-after": "1"})
            next(iter(self.waiting))._refuse(error)

    def connection_lost(self, exc: Exception | None) -> None:
        self._cancel_head_timer()
        self.resume_writing()
        self.waiting.pop(self, None)
        self.lingering.discard(self)
        super().connection_lost(exc)

    # The head must be complete in time, however slowly its bytes arrive.

    def data_received(self, data: bytes) -> None:
        if self.refused:
            return
        super().data_received(data)
        if self._has_request():
            self._cancel_head_timer()
            self.waiting.pop(self, None)
        elif self.head_timer is None and not self.refused:
            self._start_head_timer()
        if self.closing and self.cycle is not None:
            self.cycle.keep_alive = False

    def on_response_complete(self) -> None:
        super().on_response_complete()
        if not self._has_request() and not self.refused:
            self.waiting[self] = None

    def _has_request(self) -> bool:
        return self.cycle is not None and not self.cycle.response_complete

    def _start_head_timer(self) -> None:
        self.head_timer = self.loop.call_later(self.head_timeout, self._head_timed_out)

    def _head_timed_out(self) -> None:
        if self.conn.trailing_data[0]:
            message = f"the head did not arrive within {self.head_timeout:g} seconds; send it again"
            self._refuse(ApiError(408, "too_slow", message))
        else:
            self.transport.abort()

    def _cancel_head_timer(self) -> None:
        if self.head_timer is not None:
            self.head_timer.cancel()
            self.head_timer = None

    # Errors before a request reaches the application.

    def send_400_response(self, msg: str) -> None:
        """Refuse what h11 refused; called by uvicorn."""
        self._refuse(self.conn.refusal)

    def _refuse(self, error: ApiError) -> None:
        """Send an error and close the connection once the client has had time to read it."""
        log.info("refused %d %s", error.status, error.code)
        self.refused = True
        self._cancel_head_timer()
        self._unset_keepalive_if_required()
        self.waiting.pop(self, None)
        self.connections.discard(self)
        if self._has_request():
            self.cycle.disconnected = True
            self.cycle.message_event.set()
        if self.conn.our_state not in (h11.IDLE, h11.SEND_RESPONSE):
            self.transport.abort()  # in the middle of a response
            return
        self.transport.write(error.http_response())
        if len(self.lingering) >= MAX_LINGERING:
            self.transport.close()
            return
        self.lingering.add(self)
        self.transport.write_eof()
        self.flow.resume_reading()
        self.loop.call_later(DRAIN_SECONDS, self.transport.abort)

    # A client that does not read its response must not occupy memory forever.

    def pause_writing(self) -> None:
        super().pause_writing()
        self._start_stall_timer()

    def resume_writing(self) -> None:
        super().resume_writing()
        if self.stall_timer is not None:
            self.stall_timer.cancel()
            self.stall_timer = None

    def _start_stall_timer(self) -> None:
        unsent = self.transport.get_write_buffer_size()
        self.stall_timer = self.loop.call_later(STALL_SECONDS, self._check_stall, unsent)

    def _check_stall(self, unsent: int) -> None:
        if self.transport.get_write_buffer_size() < unsent:
            self._start_stall_timer()
        else:
            self.transport.abort()

    # After EOF a client may still be listening, or be gone. Only sending something to it tells: a
    # closed connection answers with a reset. "100 Continue" is harmless: all clients of HTTP/1.1
    # accept it.

    def eof_received(self) -> bool:  # type: ignore[override]
        if self.refused:
            return False
        if not self._has_request() and self.conn.trailing_data[0]:
            self._refuse(ApiError(400, *REFUSALS[400]))  # half a head
            return True
        cycle = self.cycle
        if cycle is None or cycle.response_complete or cycle.more_body or self.flow.write_paused:
            return False
        cycle.keep_alive = False
        if not cycle.response_started and cycle.scope["http_version"] == "1.1":
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
        if self._has_request():
            self.cycle.keep_alive = False
        else:
            self.loop.call_later(LINGER_SECONDS, self._close)

    def _close(self) -> None:
        if not self.transport.is_closing() and not self.refused:
            super().shutdown()


def make_protocol(head_timeout: float, max_connections: int) -> type[HttpProtocol]:
    """Return the protocol class for uvicorn."""
    options = {"head_timeout": head_timeout, "max_connections": max_connections}
    state: dict[str, Any] = {"waiting": {}, "lingering": set()}
    return type("Protocol", (HttpProtocol,), {**options, **state})
