"""The application: endpoints, the page, and answers of one shape for everything refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from diffusionner import __version__
from diffusionner import drawing as drawing_package
from diffusionner.service.endpoints import router
from diffusionner.service.guard import Guard
from diffusionner.service.problems import Problem
from diffusionner.service.refusal import Refusal
from diffusionner.service.schema import name_labels
from diffusionner.service.service import Service

PAGE = Path(__file__).with_name("page")
DRAWING = Path(drawing_package.__file__).with_name("drawing.css")
POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; img-src 'self'; "
    "base-uri 'none'; form-action 'none'; frame-ancestors 'none'"
)
PAGE_HEADERS = {"content-security-policy": POLICY, "cache-control": "no-cache"}


def create(service: Service) -> FastAPI:
    app = FastAPI(
        title="DiffusionNER",
        version=__version__,
        description="Named entity recognition by boundary denoising.",
        lifespan=service.lifespan,
        docs_url=None,  # these pages would load their scripts from another host
        redoc_url=None,
    )
    app.include_router(router(service))
    app.add_exception_handler(Problem, _refuse)
    app.add_exception_handler(HTTPException, _refuse_path)
    app.add_middleware(Guard, metrics=service.metrics, keys=service.keys)

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html", headers=PAGE_HEADERS)

    @app.get("/page/drawing.css", include_in_schema=False)
    async def drawing() -> Response:
        return FileResponse(DRAWING, headers=PAGE_HEADERS)

    app.mount("/page", StaticFiles(directory=PAGE))
    plain = app.openapi

    def openapi() -> dict[str, Any]:
        description = plain()
        if service.ready:
            name_labels(description, service.about.labels)
        return description

    app.openapi = openapi  # type: ignore[method-assign]
    return app


async def _refuse(request: Request, problem: Exception) -> Response:
    assert isinstance(problem, Problem)
    return Refusal(problem)


async def _refuse_path(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    codes = {404: "not_found", 405: "method_not_allowed"}
    code = codes.get(error.status_code, "invalid")
    return Refusal(Problem(error.status_code, code, str(error.detail), error.headers))
