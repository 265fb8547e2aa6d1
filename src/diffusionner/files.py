"""Files that are either there whole or not at all."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path

from safetensors.torch import save_file
from torch import Tensor

from diffusionner.errors import WriteError


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    """Let `write` fill a temporary file beside `path`, then put it in place in one move.

    A kill or a full disk at any moment leaves the previous file as it was.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    handle, name = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
    os.close(handle)
    temporary = Path(name)
    try:
        write(temporary)
        with open(temporary, "rb+") as file:
            os.fsync(file.fileno())
        os.chmod(temporary, 0o644)
        os.replace(temporary, path)
    except BaseException as error:
        temporary.unlink(missing_ok=True)
        if isinstance(error, OSError) or type(error).__name__ == "SafetensorError":
            raise WriteError(
                f"could not write {path}: {error}; what was there before is untouched. "
                "Check the folder and the space on its disk"
            ) from error
        raise


def write_bytes(path: Path, content: bytes) -> None:
    def put(temporary: Path) -> None:
        temporary.write_bytes(content)

    write_atomically(path, put)


def write_tensors(path: Path, tensors: Mapping[str, Tensor], metadata: dict[str, str]) -> None:
    """A safetensors file, written atomically."""
    plain = {name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()}
    write_atomically(path, lambda temporary: save_file(plain, temporary, metadata))
