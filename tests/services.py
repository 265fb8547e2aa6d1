"""Services that run in a thread of the tests, spoken to over real connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

import httpx
import uvicorn

from diffusionner import DiffusionNER
from diffusionner.service.app import create
from diffusionner.service.keys import ApiKeys
from diffusionner.service.limits import Limits
from diffusionner.service.protocol import protocol
from diffusionner.service.service import Service
from diffusionner.service.waiting import Task
from diffusionner.service.worker import About, Answerer


class ModelThread:
    """A model in this process."""

    def __init__(self, answerer: Answerer) -> None:
        self.answerer = answerer
        self.pool = ThreadPoolExecutor(1)

    async def about(self) -> About:
        return self.answerer.about()

    async def answer(self, task: Task, texts: Sequence[str]) -> list[bytes]:
        loop = asyncio.get_running_loop()
        return await loop.run_in_executor(self.pool, self.answerer.answer, task, texts)

    def stop(self) -> None:
        self.pool.shutdown()


class Held(Answerer):
    """Computes nothing before it is let go, and notes what it was given."""

    def __init__(self, ner: DiffusionNER) -> None:
        super().__init__(ner)
        self.go = threading.Event()
        self.given: list[list[str]] = []

    def answer(self, task: Task, texts: Sequence[str]) -> list[bytes]:
        self.given.append(list(texts))
        assert self.go.wait(20)
        return super().answer(task, texts)


class Client(httpx.Client):
    """Of one running service."""

    service: Service

    @property
    def address(self) -> tuple[str, int]:
        return self.base_url.host, self.base_url.port or 80

    def entities(self, *texts: str, **options: object) -> httpx.Response:
        return self.post("/v1/entities", json={"texts": texts, **options})

    def connect(self) -> socket.socket:
        return socket.create_connection(self.address, timeout=10)

    def metric(self, name: str, **labels: str) -> float:
        found = self.service.metrics.registry.get_sample_value(f"diffusionner_{name}", labels)
        return found or 0.0


@contextmanager
def running(
    answerer: Answerer, limits: Limits | None = None, keys: ApiKeys | None = None
) -> Iterator[Client]:
    """A service on a port of its own."""
    limits = limits or Limits()
    service = Service("tiny", lambda metrics: [ModelThread(answerer)], limits, keys)
    config = uvicorn.Config(
        create(service), port=0, http=protocol(limits.receive), ws="none", log_config=None,
        timeout_graceful_shutdown=5,
    )  # fmt: skip
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started and service.ready)
        port = server.servers[0].sockets[0].getsockname()[1]
        with Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            client.service = service
            yield client
    finally:
        server.should_exit = True
        thread.join(20)


def until(true: object, seconds: float = 20) -> None:
    """Wait for something that happens elsewhere."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def request_bytes(body: bytes, *headers: str, path: str = "/v1/entities") -> bytes:
    """A POST as it goes over the wire."""
    lines = [f"POST {path} HTTP/1.1", "Host: x", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith(("content-length", "transfer")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_all(connection: socket.socket) -> bytes:
    """Until the server closes."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received
