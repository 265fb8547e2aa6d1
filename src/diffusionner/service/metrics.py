"""Metrics for Prometheus, served at /metrics."""

from __future__ import annotations

from functools import partial

from prometheus_client import (
    CollectorRegistry,
    Counter,
    Gauge,
    Histogram,
    ProcessCollector,
    generate_latest,
)

SECONDS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1, 2, 5, 10, 30, 60)
TEXTS = (1, 2, 4, 8, 16, 32, 64, 128, 256)


class Metrics:
    def __init__(self) -> None:
        self.registry = CollectorRegistry()
        ProcessCollector(registry=self.registry)
        registry, namespace = self.registry, "diffusionner"
        counter = partial(Counter, namespace=namespace, registry=registry)
        gauge = partial(Gauge, namespace=namespace, registry=registry)
        histogram = partial(Histogram, namespace=namespace, registry=registry)
        self.requests = counter("requests", "Answered requests.", ("path", "status"))
        self.seconds = histogram(
            "request_seconds", "Duration of a request.", ("path",), buckets=SECONDS
        )
        self.texts = counter("texts", "Texts computed.")
        self.characters = counter("characters", "Characters computed.")
        self.dropped = counter(
            "dropped_texts", "Texts not computed because the client left.", ("reason",)
        )
        self.batch_texts = histogram("batch_texts", "Texts per batch.", buckets=TEXTS)
        self.batch_requests = histogram("batch_requests", "Requests per batch.", buckets=TEXTS)
        self.batch_seconds = histogram("batch_seconds", "Duration of a batch.", buckets=SECONDS)
        self.queued = histogram("queue_seconds", "Wait of a text for its batch.", buckets=SECONDS)
        self.queue_requests = gauge("queue_requests", "Queued requests.")
        self.queue_work = gauge("queue_work", "Estimated work queued, in units of about a ms.")
        self.rate = gauge("work_rate", "Work per second of one model process, measured.")
        self.restarts = counter("worker_restarts", "Restarts of model processes.")

    def text(self) -> bytes:
        return generate_latest(self.registry)
