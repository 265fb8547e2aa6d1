"""`python -m benchmarks attack-serve`"""

from __future__ import annotations

import asyncio
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Annotated, Any

import numpy as np
import typer

from benchmarks.serve_load import Connection, served, texts
from diffusionner.cli.options import Model

if TYPE_CHECKING:
    from psutil import Process  # type: ignore[import-untyped]

    from diffusionner import DiffusionNER

SMALL = "Ada Lovelace met Charles Babbage."
ALLOWED = {503, 504}  # of 5xx, with a cause
KILL_SECONDS = 60
WAITING = 90  # seconds until a client gives up; the service promises an answer in 60
# Requests that must be refused before anything is computed.
REFUSED: dict[str, tuple[str, dict[str, Any]]] = {
    "16 characters, 50 × 500": ("/v1/entities", {"texts": ["No! " * 4], "steps": 50, "spans": 500}),
    "100,000 characters of No!": ("/v1/entities", {"texts": ["No! " * 25_000]}),
    "4 MB of No!": ("/v1/entities", {"texts": ["No! " * 24_000] * 40}),
    "1,000 texts, 20 steps": ("/v1/entities", {"texts": ["Ada met Bob."] * 1_000, "steps": 20}),
    "steps, 50 × 500": ("/v1/steps", {"text": "No! " * 5, "steps": 50, "spans": 500}),
}
MALFORMED = [b"", b"{", b"\xff" * 50, b"[" * 5_000, b'{"texts": 1}', b'{"texts": ["a"], "x": 1}']


@dataclass
class Report:
    """Statuses, latencies and problems of one phase."""

    name: str
    statuses: Counter[str] = field(default_factory=Counter)
    small: list[float] = field(default_factory=list)  # seconds of small requests
    problems: list[str] = field(default_factory=list)

    def line(self) -> str:
        p50, p99 = np.percentile(self.small or [0], [50, 99]) * 1000
        return (
            f"{self.name:>24}: {len(self.small)} small requests, p50 {p50:.0f} p99 {p99:.0f} ms; "
            f"{dict(sorted(self.statuses.items()))}"
        )


@dataclass
class Expected:
    """A request and the answer of the library."""

    body: dict[str, Any]
    entities: list[tuple[int, int, str]]
    scores: list[float]

    @classmethod
    def of(cls, ner: DiffusionNER, text: str, **options: Any) -> Expected:
        found = ner(text, **options)
        places = [(e.start, e.end, e.label) for e in found]
        return cls({"texts": [text], **options}, places, [e.score for e in found])

    def equals(self, answer: bytes) -> bool:
        (result,) = json.loads(answer)["results"]
        found = result["entities"]
        places = [(e["start"], e["end"], e["label"]) for e in found]
        scores = [e["score"] for e in found]
        return places == self.entities and np.allclose(scores, self.scores, atol=1e-3)


class Attack:
    """Clients of a running service, friendly and hostile."""

    def __init__(self, url: str, ner: DiffusionNER, seed: int) -> None:
        self.url = url
        self.random = random.Random(seed)
        source = texts(seed)
        self.ordinary = [Expected.of(ner, next(source)) for _ in range(150)]
        self.small = Expected.of(ner, SMALL)
        long = " ".join(next(source) for _ in range(60))
        self.heavy = [
            Expected.of(ner, long),
            Expected.of(ner, long.replace(".", "").lower()),
            Expected.of(ner, "No! " * 500),
            Expected.of(ner, SMALL, steps=50, spans=150),
            Expected.of(ner, SMALL, steps=2, spans=500, threshold=0.3),
        ]
        self.hostile: list[Callable[[Report], Awaitable[None]]] = [
            self.send_heavy, self.send_heavy, self.send_refused, self.abandon, self.send_malformed,
            self.send_slowly,
        ]  # fmt: skip

    async def send(self, report: Report, expected: Expected, connection: Connection) -> str:
        """Send a request and check the answer; return its status."""
        try:
            status, answer = await asyncio.wait_for(
                connection.send("/v1/entities", json.dumps(expected.body).encode()), WAITING
            )
        except (OSError, EOFError, TimeoutError) as error:
            connection.close()
            report.statuses[type(error).__name__] += 1
            report.problems.append(f"no answer: {type(error).__name__}")
            return type(error).__name__
        if status == 200 and not expected.equals(answer):
            report.problems.append(f"wrong answer to {str(expected.body)[:80]}")
        if status >= 500 and (status not in ALLOWED or b'"code"' not in answer):
            report.problems.append(f"{status}: {answer[:200]!r}")
        report.statuses[str(status)] += 1
        return str(status)

    async def ping(self, report: Report, seconds: float, pause: float = 0.05) -> None:
        """Send small requests one after the other and measure them."""
        connection = Connection(self.url)
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            began = time.perf_counter()
            if await self.send(report, self.small, connection) == "200":
                report.small.append(time.perf_counter() - began)
            await asyncio.sleep(pause)
        connection.close()

    async def friendly(self, report: Report, seconds: float, interval: float) -> None:
        """Send ordinary requests at a fixed rate, or as fast as they are answered."""
        connection = Connection(self.url)
        begun = due = time.perf_counter()
        while due < begun + seconds:
            expected = self.random.choice(self.ordinary)
            status = await self.send(report, expected, connection)
            if status == "429" and not interval:
                await asyncio.sleep(0.1)
            due = max(due + interval, time.perf_counter() - 5 * interval)
            await asyncio.sleep(max(0, due - time.perf_counter()))
        connection.close()

    async def attack(self, report: Report, seconds: float) -> None:
        """Send hostile requests, one after the other."""
        end = time.perf_counter() + seconds
        while time.perf_counter() < end:
            await self.random.choice(self.hostile)(report)

    async def send_heavy(self, report: Report) -> None:
        connection = Connection(self.url)
        await self.send(report, self.random.choice(self.heavy), connection)
        connection.close()

    async def send_refused(self, report: Report) -> None:
        await self.refuse(report, *self.random.choice(list(REFUSED.values())))

    async def send_malformed(self, report: Report) -> None:
        await self.refuse(report, "/v1/entities", self.random.choice(MALFORMED))

    async def refuse(self, report: Report, path: str, body: dict[str, Any] | bytes) -> None:
        connection = Connection(self.url)
        content = body if isinstance(body, bytes) else json.dumps(body).encode()
        status, answer = await connection.send(path, content)
        report.statuses[str(status)] += 1
        if not 400 <= status < 500 and status not in ALLOWED:
            report.problems.append(f"{status} instead of a refusal: {answer[:100]!r}")
        connection.close()

    async def abandon(self, report: Report) -> None:
        connection = Connection(self.url)
        body = json.dumps(self.random.choice(self.heavy).body).encode()
        sending = asyncio.create_task(connection.send("/v1/entities", body))
        await asyncio.sleep(self.random.random() / 2)
        sending.cancel()
        connection.close()
        report.statuses["abandoned"] += 1

    async def send_slowly(self, report: Report) -> None:
        _, writer = await asyncio.open_connection(*Connection(self.url).address)
        writer.write(b"POST /v1/entities HTTP/1.1\r\nHost: localhost\r\nContent-")
        await asyncio.sleep(1 + self.random.random())
        writer.close()
        report.statuses["slow"] += 1


async def kill_workers(service: Process, seconds: float, report: Report) -> None:
    """Kill a model process every minute, the first one soon."""
    end = time.perf_counter() + seconds
    pause = min(KILL_SECONDS, seconds / 3)
    while time.perf_counter() + pause < end:
        await asyncio.sleep(pause)
        workers = [p for p in service.children() if "spawn_main" in " ".join(p.cmdline())]
        if workers:
            random.choice(workers).kill()
            report.statuses["killed"] += 1
        pause = KILL_SECONDS


async def watch_memory(service: Process, samples: list[tuple[float, float, float]]) -> None:
    """Sample the resident memory of the HTTP process and of its children, in MB."""
    import psutil

    while True:
        children = 0
        for child in service.children(recursive=True):
            try:
                children += child.memory_info().rss
            except psutil.NoSuchProcess:
                continue
        rss = service.memory_info().rss
        samples.append((time.perf_counter(), rss / 1e6, children / 1e6))
        await asyncio.sleep(1)


def cpu_seconds(service: Process) -> float:
    processes = [service, *service.children(recursive=True)]
    return float(sum(sum(process.cpu_times()[:2]) for process in processes))


async def run(attack: Attack, service: Process, seconds: float, clients: int) -> list[Report]:
    idle, beside = Report("idle"), Report("beside 4 hostile clients")
    capacity, load = Report("capacity"), Report("under load")
    warm_up = Report("warm-up")
    await attack.ping(warm_up, 2)
    await attack.ping(idle, min(20.0, seconds / 6))
    print(idle.line(), flush=True)
    length = min(60.0, seconds / 3)
    hostile = [attack.attack(beside, length) for _ in range(4)]
    await asyncio.gather(attack.ping(beside, length), *hostile)
    print(beside.line(), flush=True)
    length = min(30.0, seconds / 6)
    await asyncio.gather(*(attack.friendly(capacity, length, 0) for _ in range(clients)))
    rate = capacity.statuses["200"] / length
    print(f"{'capacity':>24}: {rate:.1f} answers/s, {dict(capacity.statuses)}", flush=True)
    samples: list[tuple[float, float, float]] = []
    watching = asyncio.create_task(watch_memory(service, samples))
    interval = clients / (2 * max(rate, 0.1))
    friendly = [attack.friendly(load, seconds, interval) for _ in range(clients)]
    hostile = [attack.attack(load, seconds) for _ in range(4)]
    kills = kill_workers(service, seconds, load)
    await asyncio.gather(attack.ping(load, seconds), kills, *friendly, *hostile)
    watching.cancel()
    print(load.line(), flush=True)
    print_memory(samples, load)
    return [idle, beside, capacity, load]


def print_memory(samples: list[tuple[float, float, float]], report: Report) -> None:
    """Compare the second fifth of the time with the last."""
    for name, column in (("HTTP process", 1), ("model process(es)", 2)):
        parts = np.array_split(np.array([sample[column] for sample in samples]), 5)
        if len(parts[-1]) == 0:
            continue
        early, late, most = np.median(parts[1]), np.median(parts[-1]), max(map(np.max, parts))
        print(f"{name:>24}: {early:.0f} MB, later {late:.0f} MB, at most {most:.0f} MB")
        if late > 1.2 * early + 30:
            report.problems.append(f"memory of the {name} grew from {early:.0f} to {late:.0f} MB")


async def refusals(attack: Attack, service: Process, report: Report) -> None:
    """Print the CPU-seconds that a refused request costs, and those after an abandoned one."""
    for name, (path, body) in REFUSED.items():
        before = cpu_seconds(service)
        for _ in range(5):
            await attack.refuse(report, path, body)
        print(f"{name:>28}: {(cpu_seconds(service) - before) / 5:.3f} CPU-seconds, refused")
    connection = Connection(attack.url)
    abandoned = json.dumps(attack.heavy[0].body).encode()
    sending = asyncio.create_task(connection.send("/v1/entities", abandoned))
    await asyncio.sleep(0.5)
    sending.cancel()
    connection.close()
    before = cpu_seconds(service)
    await asyncio.sleep(5)
    print(f"{'abandoned after 0.5 s':>28}: {cpu_seconds(service) - before:.3f} CPU-seconds later")


def attack_serve(
    model: Model = "en",
    minutes: Annotated[float, typer.Option(help="Duration of the load.")] = 10,
    clients: Annotated[int, typer.Option(help="Friendly clients.")] = 64,
    workers: Annotated[int, typer.Option(help="Model processes.")] = 1,
    seed: int = 0,
) -> None:
    """Attack `diffusionner serve` while others use it.

    First small requests alone, then beside four hostile clients, which send expensive options, long
    texts, malformed and slow requests, and abandon some. Then friendly clients at twice the rate
    that they reached before, with the hostile ones, while a model process is killed every minute.
    Every answer is compared with that of the library. Exits with 1 if a request was lost or
    answered wrongly, if a status 5xx had no cause, or if memory grew.
    """
    from diffusionner import DiffusionNER

    ner = DiffusionNER.from_pretrained(model)
    with served(["--model", model, "--workers", str(workers)]) as (url, service):
        attack = Attack(url, ner, seed)
        refused = Report("refused")

        async def everything() -> list[Report]:
            reports = await run(attack, service, 60 * minutes, clients)
            await asyncio.sleep(5)
            await refusals(attack, service, refused)
            return [*reports, refused]

        reports = asyncio.run(everything())
    problems = Counter(problem for report in reports for problem in report.problems)
    for problem, count in problems.most_common(20):
        print(f"PROBLEM, {count} times: {problem}")
    if problems:
        sys.exit(1)
    print("nothing lost, no wrong answer, no 5xx without a cause, memory flat")
