"""`python -m benchmarks attack-models`"""

from __future__ import annotations

import json
import os
import random
import re
import resource
import shutil
import signal
import sys
import tempfile
import time
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.attack.model_damages import OF_ONNX, OF_TORCH, Folder
from diffusionner import DiffusionNER
from diffusionner.corpus import Sentence, Span
from diffusionner.errors import CheckpointError, SettingsError
from diffusionner.storage import registry

TEXTS = (
    "Ada Lovelace met Charles Babbage of the Royal Society in London on 5 June 1833.",
    "Human T cells express the IL-2 gene after activation of NF-kappa B.",
    "Angela Merkel flew from Berlin to the United Nations in New York last Monday.",
)
MAX_SECONDS, MAX_MB = 1.0, 200.0
KILL_SECONDS = 60
GOOD = ("refused", "same answers", "another model")


@dataclass(frozen=True)
class Outcome:
    """Outcome of loading a damaged folder; `what` is one of GOOD, or a failure."""

    what: str
    message: str
    seconds: float  # of CPU
    megabytes: float  # more than before


def attack_models(
    damages: Annotated[int, typer.Option(help="Folders to damage.", min=1)] = 500,
    seed: Annotated[int, typer.Option(help="Seed of the damages.")] = 0,
    model: Annotated[str, typer.Option(help="Model to damage.")] = registry.DEFAULT,
    other: Annotated[str, typer.Option(help="Model to swap files with.")] = "bio",
    onnx: Annotated[bool, typer.Option(help="Damage an int8 export as well.")] = True,
    show: Annotated[bool, typer.Option(help="Print every damage, not only failures.")] = False,
) -> None:
    """Load damaged model folders, each in a process of its own.

    A folder must be refused with one clear error, within a second of CPU time and 200 MB (or what
    the undamaged model takes), or give the answers of the undamaged model. Some changes to JSON,
    tensors and graphs come with new digests, as from an attacker, or without any, as in an old
    model: such a folder may also be another model, which loads and answers. Exit with 1 if anything
    else happens. Linux only.
    """
    sources = [registry.find_model(one) for one in (model, other)]
    with tempfile.TemporaryDirectory() as name:
        place = Path(name)
        kinds = {"torch": (sources, OF_TORCH)}
        if onnx:
            kinds["onnx"] = ([_export(one, place / one.name) for one in sources], OF_ONNX)
        expected = {backend: _answers(folders[0]) for backend, (folders, _) in kinds.items()}
        whole = {b: _load(folders[0], expected[b], False) for b, (folders, _) in kinds.items()}
        table: dict[tuple[str, str], list[Outcome]] = defaultdict(list)
        for number in range(damages):
            draw = random.Random(f"{seed} {number}")
            backend = draw.choice(list(kinds))
            folders, possible = kinds[backend]
            folder = Folder(folders[0], folders[1], place / "damaged", draw)
            damage = draw.choice(possible)
            described = damage(folder)
            attack = damage.__name__.replace("_", " ")
            hidden = damage.__name__.startswith("change") and draw.random() < 0.6
            if hidden:
                old = draw.random() < 0.5
                hidden = _hide(folder, old)
                attack += (", no digests" if old else ", new digests") if hidden else ""
            most = max(MAX_MB, 1.1 * whole[backend].megabytes)
            outcome = _load(folder.path, expected[backend], hidden, most)
            table[backend, attack].append(outcome)
            if show or outcome.what not in GOOD:
                typer.echo(f"{number} {backend} {attack} ({described}): {outcome}")
            shutil.rmtree(folder.path)
    _print(table)
    if any(outcome.what not in GOOD for outcomes in table.values() for outcome in outcomes):
        raise typer.Exit(1)


def _export(source: Path, target: Path) -> Path:
    from diffusionner.export import export

    ner = DiffusionNER.from_pretrained(source, "cpu")
    sentences = [Sentence(text.rstrip(".").split()) for text in TEXTS * 8]
    for sentence, found in zip(sentences, ner.predict_sentences(sentences), strict=True):
        sentence.entities = [span for span in found if isinstance(span, Span)]
    export(ner, target, sentences, "int8")
    return target


def _hide(folder: Folder, old: bool) -> bool:
    """Return whether the damage could be hidden: not in a file that is no JSON any more."""
    try:
        folder.hide(old)
    except (ValueError, RecursionError):
        return False
    return True


def _answers(folder: Path) -> list[Any]:
    ner = DiffusionNER.from_pretrained(
        folder, "cpu" if (folder / "model.safetensors").exists() else None
    )
    return [
        [(e.start, e.end, e.label, round(e.score, 4)) for e in entities]
        for entities in ner.pipe(TEXTS)
    ]


def _load(folder: Path, expected: list[Any], hidden: bool, most: float = MAX_MB) -> Outcome:
    """Load a folder in a fork, which has all imports, and describe what happened."""
    reading, writing = os.pipe()
    child = os.fork()
    if not child:
        os.close(reading)
        _in_child(folder, expected, hidden, most, writing)
    os.close(writing)
    with open(reading, encoding="utf-8") as pipe:
        answer = pipe.read()
    _, status = os.waitpid(child, 0)
    if not answer:
        seconds = KILL_SECONDS if os.WIFSIGNALED(status) else 0.0
        return Outcome("killed", f"status {status}", seconds, 0.0)
    return Outcome(**json.loads(answer))


def _in_child(folder: Path, expected: list[Any], hidden: bool, most: float, writing: int) -> None:
    signal.alarm(KILL_SECONDS)  # ends this process
    Path("/proc/self/clear_refs").write_text("5")  # forget the peak of the parent
    before, started = _peak(), time.process_time()
    message = ""
    try:
        found = _answers(folder)
        what = "same answers" if found == expected else "changed answers"
        if found != expected and hidden:
            what = "another model"
    except (CheckpointError, SettingsError) as error:
        what, message = "refused", str(error)
    except BaseException as error:
        what, message = "exception", f"{type(error).__name__}: {error}"
    seconds, megabytes = time.process_time() - started, _peak() - before
    if what == "refused":
        if "\n" in message or len(message) > 1000:
            what = "unclear message"
        elif seconds > MAX_SECONDS:
            what = "too slow"
        elif megabytes > most:
            what = "too much memory"
    outcome = {"what": what, "message": message[:300], "seconds": seconds, "megabytes": megabytes}
    os.write(writing, json.dumps(outcome).encode())
    sys.stdout.flush()
    os._exit(0)


def _peak() -> float:
    """Return the peak memory of this process in MB."""
    found = re.search(r"VmHWM:\s+(\d+)", Path("/proc/self/status").read_text())
    return (
        int(found[1]) / 1024 if found else resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    )


def _print(table: dict[tuple[str, str], list[Outcome]]) -> None:
    heads = ("refused", "same", "another", "failed", "max s", "max MB")
    typer.echo(f"{'':48}" + "".join(f"{head:>9}" for head in heads))
    everything = [one for outcomes in table.values() for one in outcomes]
    rows = [(f"{backend}: {attack}", table[backend, attack]) for backend, attack in sorted(table)]
    for name, outcomes in [*rows, ("all", everything)]:
        counts = [sum(one.what == good for one in outcomes) for good in GOOD]
        refused = [one for one in outcomes if one.what == "refused"]
        cells = [*counts, len(outcomes) - sum(counts)]
        largest = [
            max((getattr(r, f) for r in refused), default=0) for f in ("seconds", "megabytes")
        ]
        typer.echo(
            f"{name:48}" + "".join(f"{cell:9}" for cell in cells)
            + f"{largest[0]:9.2f}{largest[1]:9.0f}"
        )  # fmt: skip
