"""State of the running service, shared by the endpoints: model, batcher, limits and metrics."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field
from typing import Any

from diffusionner.service.api_errors import ApiError, not_loaded
from diffusionner.service.batcher import Batcher
from diffusionner.service.hosts import AllowedHosts
from diffusionner.service.limits import Limits
from diffusionner.service.metrics import Metrics
from diffusionner.service.middleware import ApiKeys
from diffusionner.service.model_process import ModelProcess
from diffusionner.service.worker import ModelInfo

log = logging.getLogger("diffusionner.service")


@dataclass(eq=False)
class Service:
    name: str
    start_backends: Callable[[Metrics], Sequence[ModelProcess]]
    limits: Limits
    keys: ApiKeys | None = None
    hosts: AllowedHosts = field(default_factory=lambda: AllowedHosts("localhost"))
    on_failure: Callable[[], None] = lambda: None  # called if the model cannot be loaded
    metrics: Metrics = field(default_factory=Metrics, init=False)
    failure: Exception | None = field(default=None, init=False)
    loaded: ModelInfo | None = field(default=None, init=False)

    @property
    def model(self) -> ModelInfo:
        if self.failure is not None:
            raise not_loaded()
        if self.loaded is None:
            message = "the model is loading; retry later"
            raise ApiError(503, "loading", message, {"retry-after": "2"})
        return self.loaded

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """Load the model in the background, so that health checks are answered meanwhile."""
        self.batcher = Batcher(self.limits, self.metrics)
        backends = self.start_backends(self.metrics)
        load = asyncio.create_task(self._load(backends))
        try:
            yield
        finally:
            load.cancel()
            await self.batcher.stop()
            for backend in backends:
                backend.stop()
            log.info("stopped")

    async def _load(self, backends: Sequence[ModelProcess]) -> None:
        try:
            infos = [await backend.info() for backend in backends]
        except Exception as error:
            self._fail(error)
            return
        for backend in backends:
            backend.on_failure = self._fail
        self.batcher.start(backends, infos[0])
        self.loaded = infos[0]
        log.info("ready: model %s, %d process(es)", self.name, len(backends))

    def _fail(self, error: Exception) -> None:
        """Stop the service: the model cannot be loaded, at the start or in a new process."""
        log.error("the model cannot be loaded: %s", error)
        self.failure = error
        self.on_failure()
