"""`diffusionner serve`"""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from diffusionner.cli import options
from diffusionner.storage.registry import DEFAULT


def serve(
    model: options.Model = DEFAULT,
    host: Annotated[str, typer.Option(help="Address; 0.0.0.0 for all networks.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port; 0 picks a free one.")] = 8000,
    workers: Annotated[int, typer.Option(min=1, help="Model processes.")] = 1,
    api_key_file: Annotated[
        Path | None, typer.Option(help="API keys, one per line.  [default: no key needed]")
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(metavar="NAME", help="Host name to answer to, besides localhost; repeatable."),
    ] = None,
    max_body: Annotated[int, typer.Option(min=1, help="Bytes per request.")] = 4_000_000,
    max_texts: Annotated[int, typer.Option(min=1, help="Texts per request.")] = 1_000,
    max_characters: Annotated[int, typer.Option(min=1, help="Characters per text.")] = 100_000,
    max_work: Annotated[
        float, typer.Option(min=0, help="Seconds of computing per request, estimated.")
    ] = 30.0,
    max_queue: Annotated[int, typer.Option(min=1, help="Queued requests.")] = 256,
    max_wait: Annotated[
        float, typer.Option(min=0, help="Seconds of work queued ahead of a request.")
    ] = 2.0,
    timeout: Annotated[float, typer.Option(min=0.01, help="Seconds per request.")] = 60.0,
    device: options.Device = None,
    threads: options.Threads = None,
) -> None:
    """Serve a model over HTTP, with a web page at /.

    `POST /v1/entities` with `{"texts": [...]}` returns the entities of each text; the page at `/`
    draws them and animates the denoising. `/openapi.json` describes the API. Texts are never
    logged. The documentation lists the limits and metrics, and explains the shutdown.

    Examples:

    * `diffusionner serve`

    * `diffusionner serve --model runs/small --port 9000 --workers 2`

    * `diffusionner serve --host 0.0.0.0 --allowed-host ner.example.org --api-key-file keys.txt`
    """
    from diffusionner.service.limits import Limits
    from diffusionner.service.middleware import ApiKeys
    from diffusionner.service.server import serve as run

    keys = None if api_key_file is None else ApiKeys.read(api_key_file)
    limits = Limits(
        body_bytes=max_body,
        texts=max_texts,
        characters=max_characters,
        work=max_work,
        queue=max_queue,
        wait=max_wait,
        timeout=timeout,
    )
    run(model, host, port, workers, device, keys, allowed_host or (), limits)
