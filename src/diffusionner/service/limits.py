"""Limits of the service; requests beyond them are refused with the code given here."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Limits:
    body_bytes: int = 4_000_000  # 413 body_too_large
    texts: int = 1_000  # per request; 422 too_many_texts
    characters: int = 100_000  # per text; 422 text_too_long
    steps: int = 50  # 422 invalid
    spans: int = 500  # 422 invalid
    work: float = 30.0  # estimated seconds of computing per request; 422 too_much_work
    step_characters: int = 5_000  # per text of /v1/steps; 422 text_too_long
    step_words: int = 50  # of its sentence; 422 sentence_too_long
    step_spans: int = 3_000  # steps × spans of /v1/steps: 300 kB; 422 too_much_work
    queue: int = 256  # queued requests; 429 busy
    wait: float = 2.0  # expected seconds of work ahead of a request; 429 busy
    timeout: float = 60.0  # seconds until the response; 504 timed_out
    receive: float = 15.0  # seconds for the head, and again for the body; 408 too_slow


# In units of work (see work.py); about milliseconds on a CPU.
SENTENCE_WORK = 1_500.0  # of one sentence, which is never divided; 422 too_much_work
PART_WORK = 60.0  # requests take turns in parts of this size
SHORT_WORK = 120.0  # requests up to this size need not wait for longer ones
BATCH_WORK = 500.0  # per batch: about fifty sentences
FREE_WORK = 6 * BATCH_WORK  # always accepted, however slow the machine is;
FREE_SHORT_WORK = 2 * BATCH_WORK  # of short requests
INITIAL_RATE = 1_000.0  # work per second, before the first measurement

BATCH_SECONDS = 0.03  # of long requests, if short ones cannot interrupt the batch
BATCH_WINDOW = 0.003  # seconds that a batch waits for other clients, if there are any
SPLIT_CHARACTERS = 2_000  # longer texts are split into sentences in a thread
STOP_SECONDS = 2.0  # for running batches, once all connections are closed
