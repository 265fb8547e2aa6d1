"""Limits of the service; requests beyond them are refused with the code given here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 4_000_000  # 413 body_too_large
    texts: int = 1_000  # per request; 422 too_many_texts
    characters: int = 100_000  # per text; 422 text_too_long
    step_characters: int = 5_000  # per text of /v1/steps; 422 text_too_long
    steps: int = 50  # 422 invalid
    spans: int = 500  # 422 invalid
    queue: int = 256  # queued requests; 429 busy
    wait: float = 2.0  # expected seconds of work ahead of a request; 429 busy
    timeout: float = 60.0  # seconds until the response; 504 timed_out
    receive: float = 15.0  # seconds for the head, and again for the body; 408 too_slow


BATCH_CHARACTERS = 8_000  # per batch: about fifty sentences
BATCH_WINDOW = 0.003  # seconds that a batch waits for other clients, if there are any
FREE_CHARACTERS = 2 * BATCH_CHARACTERS  # always accepted, however slow the machine is
INITIAL_RATE = 20_000.0  # characters per second, before the first measurement
STOP_SECONDS = 2.0  # for running batches, once all connections are closed
