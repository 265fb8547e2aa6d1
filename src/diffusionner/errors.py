"""Errors caused by user input. Each message states the cause, the place and the remedy."""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable

_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f\u2028\u2029]")


class DiffusionNERError(Exception):
    """Base class; the command line prints the message without a traceback."""


class SettingsError(DiffusionNERError):
    """An unknown setting or an invalid value."""


class DataError(DiffusionNERError):
    """An unusable corpus file; the message names the file and line."""

    def __init__(self, message: str) -> None:
        # A label or word in the message must neither break the line nor control the terminal.
        super().__init__(_CONTROL.sub(lambda found: repr(found[0])[1:-1], message))


class EncoderError(DiffusionNERError):
    """A pretrained encoder that cannot be found or loaded."""


class CheckpointError(DiffusionNERError):
    """A model folder or training state that is missing, truncated or in an unknown format."""


class WriteError(DiffusionNERError):
    """A file that cannot be written; existing files are unchanged."""


class TrainingDiverged(DiffusionNERError):
    """A loss that is not finite; the last good state is on disk."""


def nearest(word: str, known: Iterable[str]) -> str:
    """Return a hint that names the most similar known word, or all of them if none is close."""
    options = [str(option) for option in known]
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "choose one of: " + ", ".join(options)


def first_line(error: Exception) -> str:
    """Return the first line of another library's message, shortened, or the name of the error."""
    lines = str(error).strip().splitlines() or [type(error).__name__]
    return lines[0][:200]
