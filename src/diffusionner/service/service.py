"""What the endpoints share: the model's processes, who waits for them, and what was counted."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from typing import Any, Protocol

from diffusionner.service.batcher import Backend, Batcher
from diffusionner.service.keys import ApiKeys
from diffusionner.service.limits import Limits
from diffusionner.service.metrics import Metrics
from diffusionner.service.problems import loading
from diffusionner.service.worker import About

log = logging.getLogger("diffusionner.service")


class Startable(Backend, Protocol):
    async def about(self) -> About:
        """Waits until the model is loaded."""

    def stop(self) -> None: ...


class Service:
    def __init__(
        self,
        name: str,
        backends: Callable[[Metrics], Sequence[Startable]],
        limits: Limits,
        keys: ApiKeys | None = None,
        on_failure: Callable[[], None] = lambda: None,
    ) -> None:
        """backends: starts what has the model; on_failure is called when it cannot be loaded."""
        self.name = name
        self.make_backends = backends
        self.limits = limits
        self.keys = keys
        self.on_failure = on_failure
        self.metrics = Metrics()
        self.failure: Exception | None = None
        self._about: About | None = None

    @property
    def ready(self) -> bool:
        return self._about is not None

    @property
    def about(self) -> About:
        if self._about is None:
            raise loading()
        return self._about

    @asynccontextmanager
    async def lifespan(self, app: Any) -> AsyncIterator[None]:
        """The port is open while the model loads, so that health checks have an answer."""
        self.batcher = Batcher(self.limits, self.metrics)
        backends = self.make_backends(self.metrics)
        load = asyncio.create_task(self._load(backends))
        try:
            yield
        finally:
            load.cancel()
            await self.batcher.stop()
            for backend in backends:
                backend.stop()
            log.info("stopped")

    async def _load(self, backends: Sequence[Startable]) -> None:
        try:
            about = [await backend.about() for backend in backends]
        except Exception as error:
            self.failure = error
            self.on_failure()
            return
        self.batcher.start(backends)
        self._about = about[0]
        log.info("ready: model %s, %d process(es)", self.name, len(backends))
