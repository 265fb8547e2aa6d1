"""What /metrics shows, for Prometheus."""

from __future__ import annotations

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
        self.requests = self._counter("requests", "Answered requests.", "path", "status")
        self.seconds = self._histogram(
            "request_seconds",
            "From the head of a request to the end of its answer.",
            SECONDS,
            "path",
        )
        self.texts = self._counter("texts", "Texts computed.")
        self.characters = self._counter("characters", "Characters computed.")
        self.dropped = self._counter("dropped_texts", "Texts not computed: nobody waits.", "reason")
        self.batch_texts = self._histogram("batch_texts", "Texts of a batch.", TEXTS)
        self.batch_requests = self._histogram("batch_requests", "Requests in a batch.", TEXTS)
        self.batch_seconds = self._histogram("batch_seconds", "Time of a batch.", SECONDS)
        self.queued = self._histogram("queue_seconds", "Wait of a text for its batch.", SECONDS)
        self.queue_requests = self._gauge("queue_requests", "Requests that wait.")
        self.queue_characters = self._gauge("queue_characters", "Characters that wait.")
        self.restarts = self._counter("worker_restarts", "Processes of the model that died.")

    def _counter(self, name: str, help_: str, *labels: str) -> Counter:
        return Counter(f"diffusionner_{name}", help_, labels, registry=self.registry)

    def _gauge(self, name: str, help_: str) -> Gauge:
        return Gauge(f"diffusionner_{name}", help_, registry=self.registry)

    def _histogram(
        self, name: str, help_: str, buckets: tuple[float, ...], *labels: str
    ) -> Histogram:
        return Histogram(
            f"diffusionner_{name}", help_, labels, registry=self.registry, buckets=buckets
        )

    def text(self) -> bytes:
        return generate_latest(self.registry)
