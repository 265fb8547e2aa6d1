"""How much the service takes on. What is over a limit is refused, each with its own code."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 4_000_000  # 413 body_too_large
    texts: int = 1_000  # of a request; 422 too_many_texts
    characters: int = 100_000  # of a text; 422 text_too_long
    step_characters: int = 5_000  # of a text whose steps are wanted: they are many; the same
    steps: int = 50  # 422 invalid
    spans: int = 500  # 422 invalid
    queue: int = 256  # requests that wait; 429 busy
    wait: float = 2.0  # seconds that what comes before it is expected to take; 429 busy
    timeout: float = 60.0  # seconds for the answer; 504 timed_out
    receive: float = 15.0  # seconds for the request's head, and again for its body; 408 too_slow


BATCH_CHARACTERS = 8_000  # texts are computed together up to here: some fifty sentences
BATCH_WINDOW = 0.003  # seconds that a batch waits for others, where there are any
FREE_CHARACTERS = 2 * BATCH_CHARACTERS  # may wait however slow the machine is
FIRST_RATE = 20_000.0  # characters a second, before anything was measured
LAST_SECONDS = 2.0  # for a batch under way when all connections are closed
