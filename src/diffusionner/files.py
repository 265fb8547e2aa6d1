"""Files that are either there whole or not at all."""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import IO

from diffusionner.errors import DataError, WriteError


def write_all_or_none(writers: Mapping[Path, Callable[[Path], None]]) -> None:
    """Let each writer fill a temporary file beside its path, then move them all into place.

    A full disk leaves every previous file as it was, and so does a kill, but for the instant of the
    moves. Temporary files have fixed names: what a kill leaves behind is overwritten next time.
    """
    temporary = {path: _beside(path) for path in writers}
    path = next(iter(writers))
    try:
        for path in writers:
            check_writable(path)
        for path, write in writers.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            mode = _mode(path, temporary[path])
            write(temporary[path])
            with open(temporary[path], "rb+") as file:
                os.fsync(file.fileno())
            if _permissions(temporary[path]) != mode:  # as after safetensors, which takes 0600
                temporary[path].chmod(mode)
        for path in writers:
            os.replace(temporary[path], path)
    except BaseException as error:
        for leftover in temporary.values():
            _remove(leftover)
        if isinstance(error, OSError):
            raise WriteError(
                f"{path} cannot be written ({error}); what was there before is untouched. "
                "Check the folder and the space on its disk"
            ) from error
        raise


def write_atomically(path: Path, write: Callable[[Path], None]) -> None:
    write_all_or_none({path: write})


def write_folders(writers: Mapping[Path, Callable[[Path], None]]) -> None:
    """Let each writer fill a new folder; they appear under their names when all are whole."""
    temporary = {path: _beside(path) for path in writers}
    path = next(iter(writers))
    try:
        for path in writers:
            if path.exists():
                raise WriteError(f"{path} exists already; remove it or choose another name")
        for path, write in writers.items():
            shutil.rmtree(temporary[path], ignore_errors=True)  # what a kill left behind
            temporary[path].mkdir(parents=True)
            write(temporary[path])
        for path in writers:
            os.replace(temporary[path], path)
    except BaseException as error:
        for leftover in temporary.values():
            shutil.rmtree(leftover, ignore_errors=True)
        if isinstance(error, OSError):
            raise WriteError(
                f"{path} cannot be written ({error}). Check the folder and the space on its disk"
            ) from error
        raise


def check_writable(path: Path) -> None:
    """Refuse what a file cannot be moved to: a folder, or a device such as /dev/null, which it
    would replace.
    """
    if path.exists() and not path.is_file():
        raise WriteError(f"{path} is there and is no file; choose another name")


def refuse_overwrite(target: Path, *inputs: Path) -> None:
    """Refuse to write over what is read, by whatever name."""
    for given in inputs:
        if target.exists() and given.exists() and target.samefile(given):
            what = "folder" if target.is_dir() else "file"
            raise DataError(
                f"{target} is the {what} to read and would overwrite the input {given}; choose "
                "another folder or another name"
            )


def try_lock(file: IO[str]) -> bool:
    """Keep other processes from locking this file until it is closed, or this process ends.

    False where another has it. Where there are no such locks, all may have it.
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


def bytes_writer(content: bytes) -> Callable[[Path], None]:
    def write(temporary: Path) -> None:
        temporary.write_bytes(content)

    return write


def write_bytes(path: Path, content: bytes) -> None:
    write_all_or_none({path: bytes_writer(content)})


def _mode(path: Path, temporary: Path) -> int:
    """Permissions that a file keeps or, where it is new, gets: what the umask says.

    Told by a file that is made, because the umask can be asked for only by changing it, which other
    threads would see.
    """
    if path.exists():
        return _permissions(path)
    temporary.unlink(missing_ok=True)  # what a kill left behind has permissions of its own
    temporary.touch()
    return _permissions(temporary)


def _permissions(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def _beside(path: Path) -> Path:
    if not path.name:  # "." or "/"
        raise WriteError(f"{path} is a folder that is there; choose another name")
    return path.with_name(f".{path.name}.partial")


def _remove(path: Path) -> None:
    try:
        path.unlink(missing_ok=True)
    except OSError:
        return  # its folder is no folder, or gone: then so is the file
