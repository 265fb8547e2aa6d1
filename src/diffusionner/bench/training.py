"""Training speed: the real trainer on the data, watched through hooks and stopped after a while."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from diffusionner import formats
from diffusionner.bench import sample
from diffusionner.bench.machine import PeakMemory
from diffusionner.bench.timing import Summary, Tell, synchronise
from diffusionner.corpus import Sentence
from diffusionner.settings import Settings
from diffusionner.training.trainer import Trainer

WARM_UP = 3  # updates
STAGE_UPDATES = 100  # at most
UPDATES_PER_SECOND = {"cpu": 20, "cuda": 100}  # of a small model, roughly
STAGES = {
    "wait": "for the next batch, which is collated and noised ahead",
    "forward": "copy, encoder, decoder, costs to the host",
    "match": "the assignment",
    "loss": "the likelihood of what is matched (recorded: in backward)",
    "backward": "gradients",
    "optimise": "clipping, AdamW",
}


class Enough(Exception):
    """Ends the trainer's loop."""


@dataclass
class Speedometer:
    """Sentences per second between updates that the device has finished."""

    device: str
    windows: int
    seconds: float  # of a window, at least
    tell: Callable[[int, int], None]
    sizes: Sequence[int] = ()  # sentences of each update of an epoch
    found: list[float] = field(default_factory=list)
    updates: int = 0
    _started: float = field(default_factory=time.perf_counter)
    _since: float = 0.0
    _sentences: int = 0

    def after_update(self) -> None:
        number = self.updates % len(self.sizes)
        self.updates += 1
        warm = time.perf_counter() - self._started > 2 * self.seconds
        first = self.updates < WARM_UP or not (warm or self.found)
        if first or number == 0:  # between two epochs there is more than training
            self._begin()
            return
        self._sentences += self.sizes[number]
        # The device may lag behind, so the clock is only read when it is waited for.
        if self._since and time.perf_counter() - self._since > self.seconds:
            synchronise(self.device)
            self.found.append(self._sentences / (time.perf_counter() - self._since))
            self.tell(len(self.found), self.windows)
            if len(self.found) == self.windows:
                raise Enough
            self._begin()

    def _begin(self) -> None:
        synchronise(self.device)
        self._since, self._sentences = time.perf_counter(), 0


class Watched(Trainer):
    """A trainer that says when an update is done."""

    def __init__(self, settings: Settings, after_update: Callable[[], None]) -> None:
        super().__init__(settings, resume=False)
        self.after_update = after_update

    def _update(self, *arguments: Any) -> torch.Tensor:
        loss = super()._update(*arguments)
        self.after_update()
        return loss

    def run_until_enough(self) -> None:
        try:
            self.run()
        except Enough:
            pass
        finally:
            self.reporter.close()


class Staged(Watched):
    """A trainer whose updates are split into stages, waiting for the device after each."""

    def __init__(self, settings: Settings, seconds: float) -> None:
        """seconds: after which it has seen enough."""
        super().__init__(settings, self._close)
        self.limit = seconds
        self.found: list[dict[str, float]] = []  # of each update, seconds by stage
        self._current: dict[str, float] = {}
        assign = self.objective.assign

        def assign_between(*arguments: Any) -> Any:
            self._until("forward")
            assigned = assign(*arguments)
            self._until("match")
            return assigned

        self.objective.assign = assign_between  # type: ignore[method-assign,assignment]
        self.objective.register_forward_hook(lambda *_: self._until("loss"))
        self._started = self._last = time.perf_counter()

    def _gradients(self, *arguments: Any, **options: Any) -> torch.Tensor:
        self._until("wait")
        loss = super()._gradients(*arguments, **options)
        self._until("backward")
        return loss

    def _until(self, stage: str) -> None:
        """What has passed since the last such call was this stage."""
        synchronise(str(self.device))
        now = time.perf_counter()
        self._current[stage] = self._current.get(stage, 0.0) + now - self._last
        self._last = now

    def _close(self) -> None:
        self._until("optimise")
        self.found.append(self._current)
        self._current = {}
        updates = len(self.found) - WARM_UP
        late = self._last - self._started > self.limit
        if updates == STAGE_UPDATES or (late and updates >= WARM_UP):
            raise Enough

    def medians(self) -> dict[str, float]:
        """Milliseconds by stage."""
        warm = self.found[WARM_UP:]
        return {
            stage: 1000 * statistics.median(update.get(stage, 0.0) for update in warm)
            for stage in STAGES
        }


@dataclass(frozen=True)
class Job:
    """Something to train."""

    settings: Settings
    encoder: Path
    sentences: Sequence[Sentence]
    folder: Path  # for the run
    draws: int

    def prepare(self, updates: int) -> Settings:
        """Settings of a run whose epochs have so many updates; sentences may repeat for that."""
        data = self.folder / "train.jsonl"
        count = updates * self.settings.training.batch_size
        formats.write(data, sample.draw(self.sentences, count))
        values = self.settings.to_dict()
        values["data"] = {"train": str(data)}
        values["encoder"]["name"] = str(self.encoder)
        values["training"] |= {
            "output": str(self.folder / "run"),
            "epochs": 1_000_000,
            "frozen_epochs": 0,
            "draws": self.draws,
            "evaluate_every": 1_000_000,
            "checkpoint_minutes": 1e6,
        }
        return Settings.from_dict(values)


def measure(job: Job, repeats: int, seconds: float, tell: Tell) -> dict[str, Any]:
    """Sentences per second and the stages of an update, from the trainer as it is."""
    what = f"training, {job.draws} draw" + "s" * (job.draws > 1)
    tell(what, 0, repeats)
    # No epoch should end meanwhile: what happens between two of them is not measured.
    at_once = UPDATES_PER_SECOND[_device()]
    updates = round(at_once * seconds * (repeats + 2)) + STAGE_UPDATES
    settings = job.prepare(updates)
    training = settings.training
    meter = Speedometer(_device(), repeats, seconds, lambda done, total: tell(what, done, total))
    trainer = Watched(settings, meter.after_update)
    batches = trainer.corpus.shuffled_batches(training.batch_size, training.seed, 0)
    meter.sizes = [len(batch) for batch in batches]
    memory = PeakMemory(meter.device)
    trainer.run_until_enough()
    peak = memory.read()
    del trainer
    staged = Staged(settings, repeats * seconds)
    staged.run_until_enough()
    return {
        "draws": job.draws,
        "batch_size": training.batch_size,
        "precision": staged.accelerator.mixed_precision.replace("no", "float32"),
        "cuda_graphs": training.cuda_graphs,
        "sentences_per_second": Summary.of(meter.found).to_dict(),
        "ms_per_update": staged.medians(),
        "peak_memory": peak,
    }


def _device() -> str:
    """Where the trainer will train."""
    return "cuda" if torch.cuda.is_available() else "cpu"
