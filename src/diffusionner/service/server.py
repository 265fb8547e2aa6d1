"""Run the service until it is stopped."""

from __future__ import annotations

import asyncio
import errno
import logging
import os
import signal
import socket
import sys
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

import uvicorn

from diffusionner.errors import SettingsError
from diffusionner.service.app import create_app
from diffusionner.service.hosts import AllowedHosts
from diffusionner.service.http_protocol import make_protocol
from diffusionner.service.limits import Limits
from diffusionner.service.middleware import ApiKeys
from diffusionner.service.model_process import start_processes
from diffusionner.service.runtime import Service
from diffusionner.storage import registry
from diffusionner.storage.config import read_config

CONNECTIONS = 800  # each needs a file descriptor; most systems allow 1,024 per process
KEEP_ALIVE = 30  # seconds


def serve(
    model: str,
    host: str,
    port: int,
    workers: int,
    device: str | None,
    keys: ApiKeys | None,
    allowed_hosts: Sequence[str],
    limits: Limits,
) -> None:
    """Serve until SIGTERM or SIGINT; accepted requests are still answered."""
    hosts = AllowedHosts(host, allowed_hosts)
    check_address(host, port)
    folder = registry.find_model(model)
    read_config(folder)  # reports a wrong name here, not in a model process
    name = model if model in registry.installed_models() else Path(folder).resolve().name
    sys.setswitchinterval(0.0005)  # a thread that splits a long text delays all other requests
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(levelname)s %(message)s")
    service = Service(
        name,
        lambda metrics: start_processes(str(folder), device, workers, metrics),
        limits,
        keys,
        hosts,
        on_failure=lambda: os.kill(os.getpid(), signal.SIGTERM),
    )
    # uvicorn raises the signal again after its shutdown; that must not be an error.
    signal.signal(signal.SIGTERM, lambda *_: None)
    with suppress(KeyboardInterrupt):
        uvicorn.Server(make_config(service, host, port)).run()
    if service.failure is not None:
        raise service.failure


def make_config(service: Service, host: str, port: int) -> uvicorn.Config:
    limits = service.limits
    return uvicorn.Config(
        create_app(service),
        host=host,
        port=port,
        http=make_protocol(limits.receive, CONNECTIONS),
        ws="none",
        log_config=None,
        proxy_headers=False,
        server_header=False,
        timeout_keep_alive=KEEP_ALIVE,
        timeout_graceful_shutdown=int(limits.timeout + limits.receive) + 5,
    )


def check_address(host: str, port: int) -> None:
    """Raise SettingsError if the service cannot listen there, before the model is loaded."""
    try:
        asyncio.run(_listen(host, port))
    except (socket.gaierror, UnicodeError) as error:
        raise SettingsError(
            f"--host {host} is not a known address; give an IP address of this machine, or "
            "0.0.0.0 for all of them"
        ) from error
    except OSError as error:
        if error.errno == errno.EADDRINUSE:
            message = f"port {port} is in use; choose another with --port"
        elif error.errno == errno.EACCES:
            message = f"no permission to use port {port}; choose one from 1024 up with --port"
        else:
            reason = os.strerror(error.errno) if error.errno else str(error)
            message = (
                f"cannot listen on {host} ({reason}); give an IP address of this machine with "
                "--host, or 0.0.0.0 for all of them"
            )
        raise SettingsError(message) from error


async def _listen(host: str, port: int) -> None:
    """Open and close the socket that uvicorn will open."""
    loop = asyncio.get_running_loop()
    server = await loop.create_server(asyncio.Protocol, host, port, start_serving=False)
    server.close()
