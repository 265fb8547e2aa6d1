"""Services that run in a thread of the tests and answer over real connections."""

from __future__ import annotations

import asyncio
import socket
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from typing import Any

import httpx
import uvicorn

from diffusionner import DiffusionNER
from diffusionner.service.hosts import AllowedHosts
from diffusionner.service.limits import Limits
from diffusionner.service.middleware import ApiKeys
from diffusionner.service.runtime import Service
from diffusionner.service.server import make_config
from diffusionner.service.worker import Answer, ModelInfo, Operation, Predictor, Slice


class ModelThread:
    """A model in this process."""

    def __init__(self, predictor: Predictor) -> None:
        self.predictor = predictor
        self.pool = ThreadPoolExecutor(1)

    async def info(self) -> ModelInfo:
        return self.predictor.info()

    async def run(self, short: bool, operation: Operation, slices: Sequence[Slice]) -> Answer:
        loop = asyncio.get_running_loop()
        started = time.monotonic()
        value = await loop.run_in_executor(self.pool, self.predictor.run, operation, slices)
        return Answer(value, time.monotonic() - started)

    def stop(self) -> None:
        self.pool.shutdown()


class Held(Predictor):
    """Blocks until `go` is set, and records its batches."""

    def __init__(self, ner: DiffusionNER) -> None:
        super().__init__(ner)
        self.go = threading.Event()
        self.given: list[list[str]] = []

    def run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        self.given.append([" ".join(words) for one in slices for words in one.sentences])
        assert self.go.wait(20)
        return super().run(operation, slices)


class Client(httpx.Client):
    """A client of a running service."""

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
    predictor: Predictor,
    limits: Limits | None = None,
    keys: ApiKeys | None = None,
    hosts: AllowedHosts | None = None,
) -> Iterator[Client]:
    """Run a service on a free port."""
    limits = limits or Limits()
    service = Service("tiny", lambda metrics: [ModelThread(predictor)], limits, keys)
    service.hosts = hosts or service.hosts
    config = make_config(service, "127.0.0.1", 0)
    config.timeout_graceful_shutdown = 5
    server = uvicorn.Server(config)
    thread = threading.Thread(target=server.run)
    thread.start()
    try:
        until(lambda: server.started and service.loaded)
        port = server.servers[0].sockets[0].getsockname()[1]
        with Client(base_url=f"http://127.0.0.1:{port}", timeout=30) as client:
            client.service = service
            yield client
    finally:
        server.should_exit = True
        thread.join(20)


def until(true: object, seconds: float = 20) -> None:
    """Wait until a condition is true."""
    end = time.monotonic() + seconds
    while not true():  # type: ignore[operator]
        assert time.monotonic() < end, "it did not happen"
        time.sleep(0.01)


def request_bytes(body: bytes, *headers: str, path: str = "/v1/entities") -> bytes:
    """Return the bytes of a POST request."""
    lines = [f"POST {path} HTTP/1.1", "Host: localhost", "Content-Type: application/json", *headers]
    if not any(line.lower().startswith(("content-length", "transfer")) for line in headers):
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def read_all(connection: socket.socket) -> bytes:
    """Read until the server closes the connection."""
    received = b""
    while chunk := connection.recv(65536):
        received += chunk
    return received
