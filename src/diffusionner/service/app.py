"""The FastAPI application: endpoints, the web page and error responses."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from fastapi import FastAPI, Request
from fastapi.responses import FileResponse, Response
from fastapi.staticfiles import StaticFiles
from starlette.exceptions import HTTPException

from diffusionner import __version__, drawing
from diffusionner.service.api_errors import ApiError, ErrorResponse
from diffusionner.service.endpoints import make_router
from diffusionner.service.middleware import RequestMiddleware
from diffusionner.service.runtime import Service
from diffusionner.service.schema import describe_model

PAGE = Path(__file__).with_name("page")
DRAWING_CSS = Path(drawing.__file__).with_name("drawing.css")


def create_app(service: Service) -> FastAPI:
    app = FastAPI(
        title="DiffusionNER",
        version=__version__,
        description="Named entity recognition by boundary denoising.",
        lifespan=service.lifespan,
        docs_url=None,  # these pages load scripts from another host
        redoc_url=None,
        redirect_slashes=False,  # a redirect would repeat the Host header
    )
    app.include_router(make_router(service))
    app.add_middleware(
        RequestMiddleware, metrics=service.metrics, keys=service.keys, hosts=service.hosts
    )

    @app.exception_handler(ApiError)
    async def api_error(request: Request, error: ApiError) -> Response:
        return ErrorResponse(error)

    @app.exception_handler(HTTPException)
    async def http_error(request: Request, error: HTTPException) -> Response:
        code = {404: "not_found", 405: "method_not_allowed"}.get(error.status_code, "invalid")
        return ErrorResponse(ApiError(error.status_code, code, str(error.detail), error.headers))

    @app.get("/", include_in_schema=False)
    async def page() -> Response:
        return FileResponse(PAGE / "index.html")

    @app.get("/page/drawing.css", include_in_schema=False)
    async def drawing_css() -> Response:
        return FileResponse(DRAWING_CSS)

    app.mount("/page", StaticFiles(directory=PAGE))
    generate = app.openapi

    def openapi() -> dict[str, Any]:
        description = generate()
        if service.loaded is not None:
            model, settings = service.loaded, service.loaded.settings
            describe_model(
                description, model.labels, settings.reads_labels, not settings.can_skip_denoising
            )
        return description

    app.openapi = openapi  # type: ignore[method-assign]
    return app
