"""Queue of requests waiting for the model, and selection of the next batch of texts."""

from __future__ import annotations

import asyncio
import time
from collections import deque
from collections.abc import Sequence
from typing import NamedTuple

from diffusionner.service.worker import Operation


class QueuedText(NamedTuple):
    """One text of a request."""

    request: QueuedRequest
    text: str
    result: asyncio.Future[bytes]


class QueuedRequest:
    """A request: its texts that are still queued, and a future result for each text."""

    def __init__(self, operation: Operation, texts: Sequence[str]) -> None:
        loop = asyncio.get_running_loop()
        self.operation = operation
        self.results: list[asyncio.Future[bytes]] = [loop.create_future() for _ in texts]
        pairs = zip(texts, self.results, strict=True)
        self.queued = deque(QueuedText(self, text, result) for text, result in pairs)
        self.characters = sum(map(len, texts))  # of the queued texts
        self.received = time.monotonic()

    def pop(self) -> QueuedText:
        queued = self.queued.popleft()
        self.characters -= len(queued.text)
        return queued


class RequestQueue:
    """Queued requests in order of arrival."""

    def __init__(self) -> None:
        self.requests: deque[QueuedRequest] = deque()

    @property
    def characters(self) -> int:
        return sum(request.characters for request in self.requests)

    def remove(self, request: QueuedRequest) -> int:
        """Remove a request and return the number of its texts that were still queued."""
        left = len(request.queued)
        if left:
            self.requests.remove(request)
            request.queued.clear()
            request.characters = 0
        return left

    def characters_ahead(self, texts: int) -> float:
        """Return the characters computed before a new request with this many texts is done."""
        return sum(
            request.characters * min(1, texts / len(request.queued)) for request in self.requests
        )

    def next_batch(self, max_characters: int) -> list[QueuedText]:
        """Remove and return at least one text, all with the operation of the first request.

        Requests take turns, text by text, so that a request of a thousand texts does not block
        the others.
        """
        operation = self.requests[0].operation
        turns = deque(request for request in self.requests if request.operation == operation)
        batch: list[QueuedText] = []
        room = max_characters
        while turns and (not batch or len(turns[0].queued[0].text) <= room):
            request = turns.popleft()
            queued = request.pop()
            batch.append(queued)
            room -= len(queued.text)
            if request.queued:
                turns.append(request)
            else:
                self.requests.remove(request)
        return batch
