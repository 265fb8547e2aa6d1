"""`python -m benchmarks serve`"""

from __future__ import annotations

import asyncio
import json
import random
import re
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import numpy as np
import typer

from diffusionner.cli.options import Model

if TYPE_CHECKING:
    from psutil import Process  # type: ignore[import-untyped]

WORDS = (
    "the in of and a with for was met Angela Merkel London Bank England New York Times University "
    "California Reuters said on Monday that shares rose percent President Smith visited Berlin"
).split()


def texts(seed: int) -> Iterator[str]:
    """Yield random texts, one in ten of them long."""
    numbers = random.Random(seed)

    def sentence() -> str:
        return " ".join(numbers.choices(WORDS, k=numbers.randint(8, 24))).capitalize() + "."

    while True:
        yield " ".join(sentence() for _ in range(20 if numbers.random() < 0.1 else 1))


class Connection:
    """A minimal HTTP client, so that the service takes most of the load, not this program."""

    def __init__(self, url: str) -> None:
        host, port = url.removeprefix("http://").split(":")
        self.address = host, int(port)
        self.streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None

    async def post(self, text: str) -> tuple[int, bytes]:
        return await self.send("/v1/entities", json.dumps({"texts": [text]}).encode())

    async def send(self, path: str, body: bytes) -> tuple[int, bytes]:
        """Return the status and the body of the response."""
        head = f"POST {path} HTTP/1.1\r\nHost: localhost\r\nContent-Type: application/json\r\n"
        if self.streams is None:
            self.streams = await asyncio.open_connection(*self.address)
        reader, writer = self.streams
        writer.write(f"{head}Content-Length: {len(body)}\r\n\r\n".encode() + body)
        answer = await reader.readuntil(b"\r\n\r\n")
        length = int(re.search(rb"content-length: (\d+)", answer)[1])  # type: ignore[index]
        content = await reader.readexactly(length)
        if b"connection: close" in answer.lower():
            self.close()
        return int(answer[9:12]), content

    def close(self) -> None:
        if self.streams is not None:
            self.streams[1].close()
            self.streams = None


class Counted:
    """Status codes and durations of answers."""

    def __init__(self) -> None:
        self.statuses: Counter[str] = Counter()
        self.seconds: list[float] = []
        self.started = time.perf_counter()

    async def send(self, connection: Connection, text: str) -> None:
        began = time.perf_counter()
        try:
            status, body = await connection.post(text)
        except (OSError, EOFError) as error:
            self.statuses[type(error).__name__] += 1
            return
        self.statuses[str(status)] += 1
        if status == 200:
            assert text.encode() in body
            self.seconds.append(time.perf_counter() - began)

    def report(self, name: str) -> float:
        elapsed = time.perf_counter() - self.started
        rate = len(self.seconds) / elapsed
        p50, p95, p99 = np.percentile(self.seconds or [0], [50, 95, 99]) * 1000
        print(
            f"{name:>24}: {rate:7.1f} answers/s, p50 {p50:6.0f} p95 {p95:6.0f} p99 {p99:6.0f} ms, "
            f"{dict(self.statuses)}",
            flush=True,
        )
        return rate


async def closed(url: str, clients: int, seconds: float) -> float:
    """Run clients that each wait for an answer before sending the next request."""
    counted = Counted()
    end = time.perf_counter() + seconds

    async def one(number: int) -> None:
        connection = Connection(url)
        for text in texts(number):
            if time.perf_counter() > end:
                break
            await counted.send(connection, text)
        connection.close()

    await asyncio.gather(*(one(number) for number in range(clients)))
    return counted.report(f"{clients} client(s)")


async def open_loop(url: str, rate: float, seconds: float) -> None:
    """Send requests at a fixed rate, whether answers come or not."""
    counted = Counted()
    running: set[asyncio.Task[None]] = set()
    idle: list[Connection] = []

    async def one(text: str) -> None:
        connection = idle.pop() if idle else Connection(url)
        await counted.send(connection, text)
        idle.append(connection)

    begun = time.perf_counter()
    for number, text in enumerate(texts(7)):
        due = begun + number / rate
        if due > begun + seconds:
            break
        await asyncio.sleep(max(0, due - time.perf_counter()))
        task = asyncio.create_task(one(text))
        running.add(task)
        task.add_done_callback(running.discard)
    await asyncio.gather(*running)
    for connection in idle:
        connection.close()
    counted.report(f"{rate:.0f} requests/s")


async def soak(url: str, process: Process, clients: int, seconds: float) -> None:
    """Measure the memory while many clients send requests."""
    samples: list[tuple[float, float, float]] = []

    async def watch() -> None:
        while True:
            others = sum(child.memory_info().rss for child in process.children(recursive=True))
            samples.append((time.perf_counter(), process.memory_info().rss / 1e6, others / 1e6))
            await asyncio.sleep(2)

    watching = asyncio.create_task(watch())
    await closed(url, clients, seconds)
    watching.cancel()
    times, *memories = np.array(samples).T
    for name, memory in zip(("HTTP", "model"), memories, strict=True):
        for part, since in (("after a fifth", seconds / 5), ("second half", seconds / 2)):
            chosen = times > times[0] + since
            slope = np.polyfit(times[chosen] / 60, memory[chosen], 1)[0]
            print(
                f"{name:>6} process(es), {part:>13}: {memory[chosen][0]:.1f} MB to "
                f"{memory[-1]:.1f} MB, slope {slope:+.3f} MB a minute"
            )


@contextmanager
def served(arguments: list[str]) -> Iterator[tuple[str, Process]]:
    import httpx
    from psutil import Process

    with tempfile.NamedTemporaryFile("w+") as log:
        command = [sys.executable, "-m", "diffusionner", "serve", "--port", "0", *arguments]
        process = subprocess.Popen(command, stdout=log, stderr=log)
        try:
            while not (found := re.search(r"running on (\S+)", Path(log.name).read_text())):
                if process.poll() is not None:
                    sys.exit(Path(log.name).read_text())
                time.sleep(0.1)
            while not httpx.get(found[1] + "/readyz").is_success:
                time.sleep(0.1)
            yield found[1], Process(process.pid)
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60)


def serve_load(
    model: Model = "en",
    workers: int = 1,
    seconds: Annotated[float, typer.Option(help="Duration of each measurement.")] = 20,
    soak_seconds: Annotated[
        float | None,
        typer.Option("--soak", help="Only measure memory under 64 clients, for this many seconds."),
    ] = None,
) -> None:
    """Put load on `diffusionner serve`.

    First 1 and then 64 clients, each sending its next request when it has its answer. Then requests
    at twice the rate that 64 clients reached, whether answers come or not. Nine texts in ten are
    short (a sentence), one is long (twenty sentences). Memory is resident memory, its slope that of
    a fitted line.
    """
    import httpx

    with served(["--model", model, "--workers", str(workers)]) as (url, process):
        if soak_seconds:
            asyncio.run(soak(url, process, 64, soak_seconds))
            return
        asyncio.run(closed(url, 4, 3))  # warm-up
        one = asyncio.run(closed(url, 1, seconds))
        many = asyncio.run(closed(url, 64, seconds))
        print(f"{'64 clients to one':>24}: {many / one:.2f} times")
        asyncio.run(open_loop(url, 2 * many, seconds))
        metrics = httpx.get(url + "/metrics").text
        sums = dict(
            re.findall(r"diffusionner_(batch_(?:texts|requests)_(?:sum|count)) (\S+)", metrics)
        )
        print(json.dumps({name: float(value) for name, value in sums.items()}))
