"""The errors a user can cause. Each says what is wrong, where, and what to do about it."""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class DiffusionNERError(Exception):
    """Base class: the command line prints the message of these without a traceback."""


class SettingsError(DiffusionNERError):
    """An unknown setting, or a value it cannot take."""


class DataError(DiffusionNERError):
    """A corpus file that cannot be used as it is; the message names file and line."""


class EncoderError(DiffusionNERError):
    """A pretrained encoder that cannot be found or loaded."""


class CheckpointError(DiffusionNERError):
    """A model folder or training state that is missing, truncated or not ours."""


class WriteError(DiffusionNERError):
    """A file that could not be written; what was there before is untouched."""


class TrainingDiverged(DiffusionNERError):
    """The loss is no longer a finite number; the last good state is on disk."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint naming the most similar known word, or all of them when none is close."""
    options = [str(option) for option in known]
    close = difflib.get_close_matches(word, options, n=1, cutoff=0.5)
    if close:
        return f"did you mean '{close[0]}'?"
    return "choose one of: " + ", ".join(options)
