"""`diffusionner serve`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli import options
from diffusionner.storage.registry import DEFAULT


def serve(
    model: options.Model = DEFAULT,
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 lets others in.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535)] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Processes that have the model.")] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="API keys, one a line; without it none is needed.")
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes of a request.")] = 4_000_000,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts of a request.")] = 1_000,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters of a text.")] = 100_000,
    max_queue: Annotated[int, typer.Option(min=1, help="Requests that may wait.")] = 256,
    max_wait: Annotated[
        float, typer.Option(min=0, help="Seconds of work that may come before a request's own.")
    ] = 2.0,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds for an answer.")] = 60.0,
    device: options.Device = None,
) -> None:
    """Serve a model over HTTP, with a web page at /.

    `POST /v1/entities` with `{"texts": [...]}` answers with the entities of each text; the page at
    `/` shows them, and how they were denoised. `/openapi.json` describes all. Nothing of what is
    sent is logged. docs/service.md has the limits, the metrics and how to stop it.

    Examples:

    * `diffusionner serve`

    * `diffusionner serve --model runs/small --port 9000 --workers 2`

    * `diffusionner serve --host 0.0.0.0 --api-key-file keys.txt`
    """
    from diffusionner.service.api_keys import ApiKeys
    from diffusionner.service.limits import Limits
    from diffusionner.service.server import serve as run

    keys = None if api_key_file is None else ApiKeys.read(api_key_file)
    limits = Limits(
        body_bytes=max_body,
        texts=max_texts,
        characters=max_characters,
        queue=max_queue,
        wait=max_wait,
        timeout=timeout,
    )
    run(model, host, port, workers, device, keys, limits)
