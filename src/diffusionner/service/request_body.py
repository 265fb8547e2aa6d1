"""Read and check request bodies, within the limits on size and time."""

from __future__ import annotations

from typing import Any, TypeVar

import anyio
from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from diffusionner.errors import SettingsError, nearest
from diffusionner.label_set import LabelSet
from diffusionner.service.api_errors import CLOSE, ApiError, client_gone, too_large
from diffusionner.service.limits import Limits
from diffusionner.service.schema import Options
from diffusionner.service.worker import ModelInfo

Parsed = TypeVar("Parsed", bound=Options)
CODES = {"too_long": "too_many_texts", "string_too_long": "text_too_long"}  # by pydantic type
MAX_REPORTED = 5  # errors named in one message


async def read_body(request: Request, model: type[Parsed], limits: Limits) -> Parsed:
    """Read and parse the body; raise ApiError if it is not a valid request."""
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        # Also blocks other sites, whose pages may send plain text without a preflight request.
        raise ApiError(415, "not_json", "send JSON, with the header Content-Type: application/json")
    try:
        return model.model_validate_json(await _receive(request, limits))
    except ValidationError as error:
        raise _describe(error) from None


async def _receive(request: Request, limits: Limits) -> bytes:
    announced = request.headers.get("content-length", "")
    if announced.isdecimal() and int(announced[:18]) > limits.body_bytes:
        raise too_large(limits.body_bytes)
    body = bytearray()
    try:
        with anyio.fail_after(limits.receive):
            async for chunk in request.stream():
                body += chunk
                if len(body) > limits.body_bytes:
                    raise too_large(limits.body_bytes)
    except TimeoutError:
        message = f"the body did not arrive within {limits.receive:g} seconds; send it again"
        raise ApiError(408, "too_slow", message, CLOSE) from None
    except ClientDisconnect:
        raise client_gone() from None
    return bytes(body)


def _describe(error: ValidationError) -> ApiError:
    """Name the errors without the values, which may be long or secret."""
    errors = error.errors(include_url=False, include_input=False, include_context=False)
    if errors[0]["type"] == "json_invalid":
        return ApiError(400, "invalid_json", f"the body is not JSON in UTF-8: {errors[0]['msg']}")
    errors = _of_chosen_branches(errors)
    messages = [f"{_field_name(one['loc'])}: {one['msg']}" for one in errors[:MAX_REPORTED]]
    if len(errors) > MAX_REPORTED:
        messages.append(f"and {len(errors) - MAX_REPORTED} more")
    about_texts = errors[0]["loc"][:1] in (("texts",), ("text",))
    code = CODES.get(errors[0]["type"], "invalid") if about_texts else "invalid"
    return ApiError(422, code, "; ".join(messages))


def _of_chosen_branches(errors: list[Any]) -> list[Any]:
    """Leave out that `labels` is no list where it is an object, and the reverse."""
    other_kind = ("list_type", "dict_type")
    of_labels = [one for one in errors if one["loc"][:1] == ("labels",)]
    if all(one["type"] in other_kind for one in of_labels):
        return errors
    return [one for one in errors if one not in of_labels or one["type"] not in other_kind]


def _field_name(location: tuple[int | str, ...]) -> str:
    """Return a name such as texts[3]; names may come from the client and are truncated."""
    if not location:
        return "body"
    indices = "".join(f"[{part}]" for part in location[1:] if isinstance(part, int))
    return str(location[0])[:40] + indices


def check_options(parsed: Options, model: ModelInfo, **inference: Any) -> LabelSet | None:
    """Raise ApiError for options that this model does not support.

    inference: settings that the service adds to them.

    Return the labels to look for; None for all of the model.
    """
    try:
        model.settings.with_inference({**parsed.inference_options(), **inference})
    except SettingsError as error:
        raise ApiError(422, "invalid", str(error)) from None
    if parsed.labels is None:
        return None
    if not model.settings.reads_labels:
        for label in parsed.labels:
            if label not in model.labels:
                hint = nearest(label[:40], model.labels)
                raise ApiError(422, "unknown_label", f"the model has no such type; {hint}")
        return LabelSet.among(parsed.labels, model.labels)
    try:
        return LabelSet.of(parsed.labels)
    except SettingsError as error:
        raise ApiError(422, "invalid", f"labels: {error}") from None
