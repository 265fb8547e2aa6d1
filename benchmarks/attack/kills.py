"""`python -m benchmarks attack-annotate` and `attack-training`"""

from __future__ import annotations

import json
import random
import tempfile
import time
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from benchmarks.attack import tiny
from benchmarks.attack.processes import KILLED, Commands, Death, Ended
from diffusionner.annotation.journal import journal_path

ANNOTATING = {"fsync": 40, "replace": 1, "unlink": 1}
TRAINING = {"fsync": 20, "replace": 20}
Kills = Annotated[int, typer.Option(help="Processes to kill.", min=1)]
Seed = Annotated[int, typer.Option(help="Seed of the moments.")]


def attack_annotate(
    kills: Kills = 100,
    seed: Seed = 0,
    records: Annotated[int, typer.Option(help="Texts in the corpus.", min=1)] = 200,
) -> None:
    """Kill `diffusionner annotate` at random moments and resume it, run after run.

    The output must be that of an undisturbed run, in JSON lines and in Parquet. Processes die at a
    random time, or before or after a call that changes files. Exit with 1 if one output is wrong.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        commands = Commands()
        model = train_model(commands, folder)
        tiny.write_texts(folder / "in.jsonl", records)

        def command(target: Path) -> list[object]:
            if target.exists() and not journal_path(target).exists():
                return []  # killed after everything was done
            return annotate_command(model, folder / "in.jsonl", target)

        campaign = Campaign(commands, folder, random.Random(seed), kills, ANNOTATING)
        expected = {}
        for suffix in (".jsonl", ".parquet"):
            whole = folder / f"whole{suffix}"
            campaign.undisturbed(command(whole))
            expected[suffix] = read_records(whole)

        def check(target: Path) -> str:
            left = [path.name for path in folder.glob(f"{target.name}.*")]
            if left:
                return f"left behind: {', '.join(left)}"
            return compare(read_records(target), expected[target.suffix])

        suffixes = (".jsonl", ".parquet")
        campaign.run(lambda n: folder / f"out{n}{suffixes[n % 2]}", command, check)
    campaign.report()


def attack_training(kills: Kills = 100, seed: Seed = 0) -> None:
    """Kill `diffusionner train` at random moments and resume it, run after run.

    Weights and training state must be those of an undisturbed run, bit by bit. Processes die at a
    random time, or before or after a call that changes files. Exit with 1 if one run is different.
    """
    from safetensors.numpy import load_file

    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)

        def command(output: Path) -> list[object]:
            settings = tiny.write_settings(folder, str(output))
            resume = ["--resume"] if (output / "state.safetensors").exists() else []
            return ["train", settings, *resume]

        campaign = Campaign(Commands(), folder, random.Random(seed), kills, TRAINING)
        whole = folder / "whole"
        campaign.undisturbed(command(whole))

        def check(output: Path) -> str:
            for file in ("model.safetensors", "state.safetensors"):
                ours, theirs = load_file(output / file), load_file(whole / file)
                if ours.keys() != theirs.keys():
                    return f"{file} has other tensors"
                changed = [name for name in ours if ours[name].tobytes() != theirs[name].tobytes()]
                if changed:
                    return f"{file}: {len(changed)} tensors differ, such as {changed[0]}"
            steps = [json.loads(line)["step"] for line in (output / "log.jsonl").open()]
            return "" if steps == sorted(steps) else "steps are logged out of order"

        campaign.run(lambda n: folder / f"run{n}", command, check)
    campaign.report()


class Campaign:
    """Runs that are killed and resumed until they are done, one after the other."""

    def __init__(
        self,
        commands: Commands,
        folder: Path,
        chance: random.Random,
        kills: int,
        places: dict[str, int],
    ) -> None:
        """places: calls around which files change, and how often a run makes them."""
        self.commands, self.chance, self.kills, self.places = commands, chance, kills, places
        self.log = folder / "log"
        self.deaths: Counter[str] = Counter()
        self.runs = 0
        self.longest = 0.0  # seconds of an undisturbed run
        self.failures: list[str] = []
        self.began = time.monotonic()

    def undisturbed(self, command: list[object]) -> None:
        done = self.commands.run(*command, log=self.log)
        if done.status:
            raise SystemExit(f"a run that is not killed fails: {done.output}")
        self.longest = done.seconds

    def run(
        self,
        name: Callable[[int], Path],
        command: Callable[[Path], list[object]],
        check: Callable[[Path], str],
    ) -> None:
        """Start runs until enough processes were killed; the last run is completed."""
        while self.deaths.total() < self.kills:
            target = name(self.runs)
            self.runs += 1
            problem = self._complete(target, command) or check(target)
            if problem:
                self.failures.append(f"run {self.runs}: {problem}")

    def _complete(self, target: Path, command: Callable[[Path], list[object]]) -> str:
        """Resume a run until there is nothing left to do; return what went wrong."""
        while True:
            enough = self.deaths.total() >= self.kills
            death = None if enough else Death.draw(self.chance, self.longest, self.places)
            arguments = command(target)
            if not arguments:
                return ""
            done = self.commands.run(*arguments, log=self.log, death=death)
            if done.status == KILLED:
                if death is None:
                    return "an endless run"
                self.deaths[str(death)] += 1
            elif done.status:
                return f"status {done.status}: {done.output.strip()[-500:]}"
            else:
                return ""

    def report(self) -> None:
        for death, count in sorted(self.deaths.items()):
            print(f"{count:6} killed {death}")
        seconds = time.monotonic() - self.began
        good = self.runs - len(self.failures)
        print(f"{self.deaths.total():6} killed in {self.runs} runs, {seconds:.0f} s")
        print(f"{good:6} of {self.runs} runs ended as if nothing had happened")
        print("\n".join(self.failures), end="\n" if self.failures else "")
        if self.failures:
            raise typer.Exit(1)


def train_model(commands: Commands, folder: Path) -> Path:
    settings = tiny.write_settings(folder, str(folder / "model"))
    done: Ended = commands.run("train", settings, log=folder / "log")
    if done.status:
        raise SystemExit(f"the model cannot be trained: {done.output}")
    return folder / "model"


def annotate_command(model: Path, source: Path, target: Path) -> list[object]:
    return ["annotate", source, target, "--model", model, "--part-rows", 25, "--device", "cpu"]


def read_records(path: Path) -> list[dict[str, Any]]:
    if path.suffix == ".parquet":
        from pyarrow import parquet

        return list(parquet.read_table(path).to_pylist())
    return [json.loads(line) for line in path.read_text(encoding="utf-8").splitlines()]


def compare(ours: list[dict[str, Any]], expected: list[dict[str, Any]]) -> str:
    """Return the first difference; scores may differ in the sixth decimal, as batches differ."""
    if len(ours) != len(expected):
        return f"{len(ours)} records instead of {len(expected)}"
    for number, (one, other) in enumerate(zip(ours, expected, strict=True)):
        scores = [[e["score"] for e in record["entities"]] for record in (one, other)]
        plain = [
            {**r, "entities": [{**e, "score": None} for e in r["entities"]]} for r in (one, other)
        ]
        if plain[0] != plain[1]:
            return f"record {number} differs"
        if any(abs(a - b) > 1e-5 for a, b in zip(*scores, strict=True)):
            return f"record {number} has other scores"
    return ""
