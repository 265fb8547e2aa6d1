"""Atomic writes: a file or folder appears complete under its name, or not at all. Bounded reads."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import stat
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from diffusionner.errors import DataError, WriteError

Writer = Callable[[Path], None]
_BINARY = getattr(os, "O_BINARY", 0)  # Windows


def write_all_or_none(writers: Mapping[Path, Writer]) -> None:
    """Let each writer fill a temporary file next to its path, then move all files into place.

    A full disk or a kill leaves every previous file unchanged, except for a kill during the moves
    themselves. Temporary files have fixed names, so the next write overwrites leftovers.
    """
    _write_and_move(writers, check_writable, _fill_file)


def write_folders(writers: Mapping[Path, Writer]) -> None:
    """Let each writer fill a new folder, then move all folders into place."""
    _write_and_move(writers, _check_absent, _fill_folder)


def write_atomically(path: Path, write: Writer) -> None:
    write_all_or_none({path: write})


def write_bytes(path: Path, content: bytes) -> None:
    write_all_or_none({path: bytes_writer(content)})


def to_json(value: Any) -> bytes:
    """Return indented JSON. A file name need not be valid Unicode: it is written with escapes."""
    text = json.dumps(value, indent=1, ensure_ascii=False) + "\n"
    return text.encode("utf-8", "backslashreplace")


def open_regular(path: Path, limit: int) -> IO[bytes]:
    """Open a file for reading; raise OSError unless it is a regular file of at most `limit` bytes.

    Opening a pipe would block, and a device such as /dev/zero has no end.
    """
    file = os.fdopen(os.open(path, os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | _BINARY), "rb")
    status = os.fstat(file.fileno())
    problem = ""
    if not stat.S_ISREG(status.st_mode):
        problem = "it is not a regular file"
    elif status.st_size > limit:
        problem = f"it has {status.st_size:,} bytes, more than the {limit:,} that are allowed"
    if problem:
        file.close()
        raise OSError(problem)
    return file


def read_bounded(path: Path, limit: int) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; otherwise raise OSError."""
    with open_regular(path, limit) as file:
        return file.read(limit)


def file_digest(path: Path) -> dict[str, Any]:
    """Return the size and the SHA-256 of a file."""
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while chunk := file.read(2**20):
            digest.update(chunk)
        return {"size": file.tell(), "sha256": digest.hexdigest()}


def bytes_writer(content: bytes) -> Writer:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    return write


def check_writable(path: Path) -> None:
    """Raise WriteError if a file cannot replace `path`: a folder, or a device such as /dev/null."""
    if path.exists() and not path.is_file():
        raise WriteError(f"{path} exists and is not a regular file; choose another name")


def refuse_overwrite(target: Path, *inputs: Path) -> None:
    """Raise DataError if the target is one of the inputs, also under another name."""
    for path in inputs:
        if target.exists() and path.exists() and target.samefile(path):
            kind = "folder" if target.is_dir() else "file"
            raise DataError(
                f"{target} is the same {kind} as the input {path} and would overwrite the input; "
                "choose another name"
            )


def try_lock(file: IO[Any]) -> bool:
    """Lock a file until it is closed or this process ends; False if another process holds it.

    Always True on systems and file systems without locks.
    """
    try:
        import fcntl
    except ImportError:  # Windows
        return True
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    except OSError:  # a file system without locks
        return True
    return True


def _write_and_move(
    writers: Mapping[Path, Writer],
    check: Callable[[Path], None],
    fill: Callable[[Path, Path, Writer], None],
) -> None:
    temporary = {path: temporary_path(path) for path in writers}
    path = next(iter(writers))
    try:
        for path in writers:
            check(path)
        for path, write in writers.items():
            fill(path, temporary[path], write)
        for path in writers:
            os.replace(temporary[path], path)
    except BaseException as error:
        for leftover in temporary.values():
            _remove(leftover)
        if isinstance(error, OSError):
            raise WriteError(
                f"{path} cannot be written ({error}); existing files are unchanged. Check the "
                "folder and the free disk space"
            ) from error
        raise


def _fill_file(path: Path, temporary: Path, write: Writer) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    if path.exists():
        mode = _permissions(path)
    else:
        # Reading the umask would mean changing it, which other threads would see.
        temporary.unlink(missing_ok=True)  # a leftover may have other permissions
        temporary.touch()
        mode = _permissions(temporary)
    write(temporary)
    with open(temporary, "rb+") as file:
        os.fsync(file.fileno())
    if _permissions(temporary) != mode:  # safetensors creates files with mode 0600
        temporary.chmod(mode)


def _fill_folder(path: Path, temporary: Path, write: Writer) -> None:
    _remove(temporary)
    temporary.mkdir(parents=True)
    write(temporary)


def _check_absent(path: Path) -> None:
    if path.exists():
        raise WriteError(f"{path} already exists; remove it or choose another name")


def _permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def temporary_path(path: Path) -> Path:
    """Return where a file is written before it is moved to its name."""
    if not path.name:  # "." or "/"
        raise WriteError(f"{path} is an existing folder; choose another name")
    return path.with_name(f".{path.name}.partial")


def _remove(path: Path) -> None:
    if path.is_dir():
        shutil.rmtree(path, ignore_errors=True)
    else:
        with suppress(OSError):  # its parent is not a folder, so neither does the file exist
            path.unlink(missing_ok=True)
