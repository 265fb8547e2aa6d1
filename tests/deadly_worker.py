"""A model process that dies of one word; imports little, since a process starts with it."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from multiprocessing.connection import Connection
from typing import Any

from diffusionner.service.worker import ModelServer, Operation, Slice


class DeadlyServer(ModelServer):
    def _run(self, operation: Operation, slices: Sequence[Slice]) -> list[list[Any]]:
        words = [word for one in slices for sentence in one.sentences for word in sentence]
        if "deadly" in words:
            os._exit(1)
        if "slow" in words:
            time.sleep(0.5)
        return [words for _ in slices]


def main(model: str, device: None, cores: None, short: Connection, long: Connection) -> None:
    server = DeadlyServer(short, long)
    try:
        server.serve()
    except EOFError:
        return
