"""`python -m benchmarks attack-journals`"""

from __future__ import annotations

import random
import re
import shutil
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from benchmarks.attack import tiny
from benchmarks.attack.kills import annotate_command, compare, read_records, train_model
from benchmarks.attack.processes import KILLED, Commands, Death
from diffusionner.annotation.journal import journal_path, partial_path

DIGITS = b"0123456789"
Draw = random.Random


def attack_journals(
    damages: Annotated[int, typer.Option(help="Interrupted runs to damage.", min=1)] = 250,
    seed: Annotated[int, typer.Option(help="Seed of the damages.")] = 0,
    records: Annotated[int, typer.Option(help="Texts in the corpus.", min=40)] = 120,
) -> None:
    """Damage journal or output of interrupted runs of `diffusionner annotate` and resume them.

    A run must end with the output of an undisturbed run, or with one clear error and status 2, and
    then no file may have changed. Exit with 1 if anything else happens.
    """
    began = time.monotonic()
    outcomes: Counter[tuple[str, str]] = Counter()
    failures = []
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands()
        model = train_model(commands, folder)
        tiny.write_texts(folder / "in.jsonl", records)
        states = {}
        for suffix in (".jsonl", ".parquet"):
            place = folder / suffix.strip(".")
            place.mkdir()
            target = place / f"out{suffix}"
            command = annotate_command(model, folder / "in.jsonl", target)
            commands.run(*command, log=folder / "log")
            expected = read_records(target)
            _remove(target)
            # Interrupted after something was written that the journal does not have.
            death = Death(None, "fsync", 12 if suffix == ".jsonl" else 8, True)
            assert commands.run(*command, log=folder / "log", death=death).status == KILLED
            shutil.copytree(place, folder / f"{place.name}.kept")
            states[suffix] = command, target, expected
        for number in range(damages):
            draw = Draw(f"{seed} {number}")
            command, target, expected = states[draw.choice(list(states))]
            shutil.rmtree(target.parent)
            shutil.copytree(f"{target.parent}.kept", target.parent)
            damage = _damage(target, draw)
            before = _contents(target.parent)
            done = commands.run(*command, log=folder / "log")
            outcome = "resumed"
            if done.status == 0:
                problem = compare(read_records(target), expected)
            else:
                outcome = "refused"
                problem = "" if _is_clear(done.status, done.output) else done.output[-500:]
                if not problem and _contents(target.parent) != before:
                    problem = "files have changed"
            outcomes[damage, "failed" if problem else outcome] += 1
            if problem:
                failures.append(f"damage {number} ({damage}, {target.suffix}): {problem}")
    for (damage, outcome), count in sorted(outcomes.items()):
        print(f"{count:6} {outcome:8} {damage}")
    print(f"{damages:6} damages, {len(failures)} failures, {time.monotonic() - began:.0f} s")
    print("\n".join(failures), end="\n" if failures else "")
    if failures:
        raise typer.Exit(1)


def _is_clear(status: int, output: str) -> bool:
    """Return True for one short message without a traceback."""
    lines = [line for line in output.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error: ")]
    return status == 2 and len(errors) == 1 and "Traceback" not in output and len(lines) < 4


def _damage(target: Path, draw: Draw) -> str:
    """Change the journal or a file of the output; return a description."""
    partial = partial_path(target)
    files = [partial] if partial.is_file() else sorted(partial.iterdir())
    journal = draw.random() < 0.6
    path = journal_path(target) if journal else draw.choice(files)
    while True:  # until something is different
        content = path.read_bytes()
        kind = draw.choice(_KINDS)
        changed = kind(content, draw)
        if changed != content:
            break
    path.write_bytes(changed)
    if not journal and draw.random() < 0.1:
        path.unlink()
        return "output: missing file"
    what = (kind.__doc__ or "").rstrip(".").lower()
    return f"{'journal' if journal else 'output'}: {what}"


def _flip(content: bytes, draw: Draw) -> bytes:
    """Flipped bits."""
    changed = bytearray(content)
    for _ in range(draw.choice((1, 1, 4, 30))):
        changed[draw.randrange(len(changed))] ^= 1 << draw.randrange(8)
    return bytes(changed)


def _digits(content: bytes, draw: Draw) -> bytes:
    """Changed number."""
    numbers = list(re.finditer(rb"\d+", content))
    if not numbers:
        return content
    number = draw.choice(numbers)
    digits = bytes(draw.choice(DIGITS) for _ in range(draw.randint(1, 6)))
    return content[: number.start()] + digits + content[number.end() :]


def _truncate(content: bytes, draw: Draw) -> bytes:
    """Cut off."""
    return content[: draw.randrange(len(content))]


def _zeros(content: bytes, draw: Draw) -> bytes:
    """Zeros at the end."""
    count = draw.randint(1, min(4096, len(content)))
    return content[:-count] + bytes(count)


def _remove_line(content: bytes, draw: Draw) -> bytes:
    """Line removed."""
    return _edit_lines(content, draw, lambda lines, i, j: lines.pop(i))


def _double_line(content: bytes, draw: Draw) -> bytes:
    """Line doubled."""
    return _edit_lines(content, draw, lambda lines, i, j: lines.insert(j, lines[i]))


def _swap_lines(content: bytes, draw: Draw) -> bytes:
    """Lines swapped."""

    def swap(lines: list[bytes], i: int, j: int) -> None:
        lines[i], lines[j] = lines[j], lines[i]

    return _edit_lines(content, draw, swap)


def _append(content: bytes, draw: Draw) -> bytes:
    """Something added at the end."""
    return content + draw.choice((b"\n", b"x", b'{"records": 7}\n', content[-40:], bytes(100)))


def _edit_lines(
    content: bytes, draw: Draw, edit: Callable[[list[bytes], int, int], object]
) -> bytes:
    lines = content.splitlines(keepends=True)
    edit(lines, draw.randrange(len(lines)), draw.randrange(len(lines)))
    return b"".join(lines)


_KINDS = (
    _flip, _digits, _truncate, _zeros, _remove_line, _double_line, _swap_lines, _append,
)  # fmt: skip


def _contents(folder: Path) -> dict[str, bytes]:
    files = (path for path in folder.rglob("*") if path.is_file())
    return {str(path.relative_to(folder)): path.read_bytes() for path in files}


def _remove(path: Path) -> None:
    shutil.rmtree(path) if path.is_dir() else path.unlink()
