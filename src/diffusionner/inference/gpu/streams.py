"""Streams of a GPU: work that runs beside, or apart from, that of the current one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import torch


@contextmanager
def aside(stream: torch.cuda.Stream) -> Iterator[None]:
    """On another stream, which waits for the current one and is waited for."""
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        yield
    torch.cuda.current_stream().wait_stream(stream)
