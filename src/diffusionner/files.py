"""Files that are either there whole or not at all."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

from diffusionner.errors import WriteError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place in one move.

    A kill or a full disk at any moment leaves the previous file as it was. The temporary file has a
    fixed name, so what a kill leaves behind is overwritten by the next attempt.
    """
    temporary = path.with_name(f".{path.name}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.replace(temporary, path)
    except OSError as error:
        _remove(temporary)
        raise WriteError(
            f"{path} cannot be written ({error}); what was there before is untouched. "
            "Check the folder and the space on its disk"
        ) from error
    except BaseException:
        _remove(temporary)
        raise


def write_bytes(path: Path, content: bytes) -> None:
    def put(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, put)


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # its folder is no folder, or gone: then so is the file
