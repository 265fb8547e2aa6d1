"""Reading a request: never more than the limit in memory, nor longer than the time-out."""

from __future__ import annotations

from typing import TypeVar

import anyio
from fastapi import Request
from pydantic import ValidationError
from starlette.requests import ClientDisconnect

from diffusionner.errors import SettingsError, nearest
from diffusionner.service.limits import Limits
from diffusionner.service.problems import Problem, gone, too_large, too_slow
from diffusionner.service.schema import EntitiesRequest, Options, StepsRequest
from diffusionner.settings import Settings

Read = TypeVar("Read", bound=Options)
SHOWN = 5  # mistakes of a request that are named


async def read(request: Request, kind: type[Read], limits: Limits) -> Read:
    """The body as what it should be; a Problem says what it is not."""
    media = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media != "application/json":
        # Also what keeps pages of other sites, which may send plain text unasked, away.
        raise Problem(415, "not_json", "send JSON, with the header Content-Type: application/json")
    body = await _receive(request, limits)
    try:
        parsed = kind.model_validate_json(body)
    except ValidationError as error:
        raise _explain(error) from None
    _check_sizes(parsed, limits)
    return parsed


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
        raise too_slow(limits.receive) from None
    except ClientDisconnect:
        raise gone() from None
    return bytes(body)


def _explain(error: ValidationError) -> Problem:
    """What is wrong and where, without the values: they may be long, or secret."""
    found = error.errors(include_url=False, include_input=False, include_context=False)
    if found[0]["type"] == "json_invalid":
        return Problem(400, "invalid_json", f"the body is not JSON in UTF-8: {found[0]['msg']}")
    said = [f"{_place(one['loc'])}: {one['msg']}" for one in found[:SHOWN]]
    if len(found) > SHOWN:
        said.append(f"and {len(found) - SHOWN} more")
    return Problem(422, "invalid", "; ".join(said))


def _place(location: tuple[int | str, ...]) -> str:
    """Such as texts[3]. A name may be the client's own and is cut; what follows is pydantic's."""
    if not location:
        return "body"
    numbers = "".join(f"[{part}]" for part in location[1:] if isinstance(part, int))
    return str(location[0])[:40] + numbers


def _check_sizes(parsed: Options, limits: Limits) -> None:
    if isinstance(parsed, EntitiesRequest):
        texts, most = parsed.texts, limits.characters
        if len(texts) > limits.texts:
            raise Problem(
                422,
                "too_many_texts",
                f"{len(texts)} texts, at most {limits.texts} in a request; send several",
            )
    elif isinstance(parsed, StepsRequest):
        texts, most = [parsed.text], limits.step_characters
    for number, text in enumerate(texts):
        if len(text) > most:
            raise Problem(
                422,
                "text_too_long",
                f"text {number} has {len(text)} characters, at most {most}; split it",
            )
    if (parsed.steps or 0) > limits.steps:
        raise Problem(422, "invalid", f"steps: at most {limits.steps}")
    if isinstance(parsed.spans, int) and parsed.spans > limits.spans:
        raise Problem(422, "invalid", f"spans: at most {limits.spans}")


def check_options(parsed: Options, settings: Settings, labels: list[str]) -> None:
    """What only the model can tell."""
    try:
        settings.with_inference(parsed.model_dump(exclude={"texts", "text", "labels"}))
    except SettingsError as error:
        raise Problem(422, "invalid", str(error)) from None
    for label in parsed.labels or ():
        if label not in labels:
            hint = nearest(label[:40], labels)
            raise Problem(422, "unknown_label", f"the model has no such type; {hint}")
