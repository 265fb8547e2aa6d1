"""Values of settings: what a type and a range allow, and conversion to it."""

from __future__ import annotations

import dataclasses
import math
import types
import typing
from collections.abc import Mapping
from typing import Any, Literal

from diffusionner.errors import SettingsError, nearest

MAX_SHOWN = 200  # characters of a wrong value in a message


def allowed(hint: Any, f: dataclasses.Field[Any]) -> str:
    """Describe the values that a field can have."""
    if typing.get_origin(hint) is Literal:
        return " | ".join(typing.get_args(hint))
    names = " or ".join(_type_name(kind) for kind in _members(hint))
    low, high = f.metadata["low"], f.metadata["high"]
    if low is not None:
        names += f", {low:g} to {high:g}" if high is not None else f", at least {low:g}"
    return names


def coerce(where: str, value: Any, hint: Any, f: dataclasses.Field[Any]) -> Any:
    """Return the value as its field's type; otherwise raise an error naming a valid value."""
    if typing.get_origin(hint) is Literal:
        options = typing.get_args(hint)
        if value not in options:
            hint = nearest(str(value)[:MAX_SHOWN], options)
            raise SettingsError(f"{where}={shown(value)} is not valid; {hint}")
        return value
    expected = f"{where}={shown(value)} is not valid; expected {allowed(hint, f)}"
    members = _members(hint)
    if value is None and type(None) in members:
        return None
    if any(value in typing.get_args(m) for m in members if typing.get_origin(m) is Literal):
        return value
    kind = next(m for m in members if m is not type(None))
    if typing.get_origin(kind) is dict:
        if not isinstance(value, Mapping) or not all(isinstance(key, str) for key in value):
            raise SettingsError(expected)
        return dict(value)
    if kind in (bool, str) and isinstance(value, kind):
        return value
    number = None if kind in (bool, str) or isinstance(value, bool) else _number(value, kind)
    if number is None:
        raise SettingsError(expected)
    low, high = f.metadata["low"], f.metadata["high"]
    bound = low if low is not None and number < low else high
    if bound is not None and (number < bound if bound is low else number > bound):
        raise SettingsError(f"{expected} (the nearest valid value is {bound:g})")
    return number


def shown(value: Any) -> str:
    """Return a value as it appears in messages, truncated."""
    text = repr(value)
    return text if len(text) <= MAX_SHOWN else text[:MAX_SHOWN] + "…"


def _members(hint: Any) -> tuple[Any, ...]:
    """Return the types of a union, or the type itself."""
    is_union = typing.get_origin(hint) in (types.UnionType, typing.Union)
    return typing.get_args(hint) if is_union else (hint,)


def _type_name(kind: Any) -> str:
    if typing.get_origin(kind) is Literal:
        return " or ".join(typing.get_args(kind))
    if typing.get_origin(kind) is dict:
        return "mapping"
    return "null" if kind is type(None) else str(kind.__name__)


def _number(value: Any, kind: type[int | float]) -> int | float | None:
    """Return the value as an int or a finite float, or None if it is not one."""
    if isinstance(value, int):
        return kind(value) if abs(value) < 2**63 else None
    try:
        number = float(value)  # YAML parses 2e-5 as a string
    except (TypeError, ValueError):
        return None
    if not math.isfinite(number) or (kind is int and number != int(number)):
        return None
    return kind(number)
