"""Requests that wait for the model, and which of their texts are computed next."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple


class Task(NamedTuple):
    """What to compute of texts; those of equal tasks can go into one batch."""

    kind: str  # "entities" or "steps"
    options: tuple[tuple[str, object], ...]
    labels: tuple[str, ...] | None


class Part(NamedTuple):
    """One text of a request."""

    request: Waiting
    text: str
    answer: asyncio.Future[bytes]


class Waiting:
    """A request: the texts that are still to be taken, and an answer for each."""

    def __init__(self, task: Task, texts: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        self.task = task
        self.answers: list[asyncio.Future[bytes]] = [loop.create_future() for _ in texts]
        parts = zip(texts, self.answers, strict=True)
        self.parts = deque(Part(self, text, answer) for text, answer in parts)
        self.characters = sum(map(len, texts))  # of the parts
        self.since = time.monotonic()

    def take(self) -> Part:
        part = self.parts.popleft()
        self.characters -= len(part.text)
        return part


class Line:
    """All that wait, in the order they came."""

    def __init__(self) -> None:
        self.requests: deque[Waiting] = deque()
        self.characters = 0

    def add(self, request: Waiting) -> None:
        self.requests.append(request)
        self.characters += request.characters

    def remove(self, request: Waiting) -> int:
        """Forget what is left of a request; the number of texts that nobody will compute."""
        left = len(request.parts)
        if left:
            self.requests.remove(request)
            self.characters -= request.characters
            request.parts.clear()
            request.characters = 0
        return left

    def ahead(self, texts: int) -> float:
        """Characters that come before a new request of so many texts, since all take turns."""
        return sum(
            request.characters * min(1, texts / len(request.parts)) for request in self.requests
        )

    def take(self, characters: int) -> list[Part]:
        """The next batch: up to so many characters, at least one text, all of one task.

        The task is that of the first in line. Requests take turns, text by text, so that one of
        a thousand texts does not make all others wait for its end.
        """
        task = self.requests[0].task
        turn = deque(request for request in self.requests if request.task == task)
        batch: list[Part] = []
        room = characters
        while turn and (not batch or len(turn[0].parts[0].text) <= room):
            request = turn.popleft()
            part = request.take()
            batch.append(part)
            room -= len(part.text)
            self.characters -= len(part.text)
            if request.parts:
                turn.append(request)
            else:
                self.requests.remove(request)
        return batch
