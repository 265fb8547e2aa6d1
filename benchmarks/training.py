"""Training speed: the real trainer on the data, watched through hooks and stopped after a while."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from benchmarks import sample
from benchmarks.machine import PeakMemory
from benchmarks.timing import Summary, synchronise
from diffusionner import formats
from diffusionner.cli.options import ProgressCallback
from diffusionner.corpus import Sentence
from diffusionner.settings import Settings
from diffusionner.training.trainer import MicroBatch, Trainer

WARM_UP = 3  # updates, at least
EPOCH = 200  # updates: many shapes, and on a GPU over in seconds
STAGE_UPDATES = 100  # at most
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
    """Sentences per second over windows of so much training, however many epochs one takes.

    The clock stands still between epochs, where there is more than training: it starts after the
    first update of an epoch and stops after the last. Epochs have at least two.
    """

    device: str
    seconds: float  # of a window, at least
    found: list[float] = field(default_factory=list)
    _since: float | None = None  # when the clock was started
    _spent: float = 0.0  # seconds of the window before that
    _sentences: int = 0

    def after_update(self, sentences: int, last: bool) -> None:
        """sentences: of the update; last: it ends an epoch."""
        if self._since is None:
            self._since = None if last else self._now()
            return
        self._sentences += sentences
        # The device may lag behind and is waited for, which costs time, only where it must be.
        if last or self._spent + time.perf_counter() - self._since > self.seconds:
            now = self._now()
            self._spent += now - self._since
            self._since = None if last else now
        if self._spent > self.seconds:
            self.found.append(self._sentences / self._spent)
            self._spent, self._sentences = 0.0, 0

    def _now(self) -> float:
        synchronise(self.device)
        return time.perf_counter()


class StageClock:
    """Seconds by stage of each update, waiting for the device after each stage."""

    def __init__(self, device: str) -> None:
        self.device = device
        self.found: list[dict[str, float]] = []
        self._current: dict[str, float] = {}
        synchronise(device)
        self.started = self._last = time.perf_counter()

    def until(self, stage: str) -> None:
        """What has passed since the last such call was this stage."""
        synchronise(self.device)
        now = time.perf_counter()
        self._current[stage] = self._current.get(stage, 0.0) + now - self._last
        self._last = now

    def after_update(self) -> None:
        self.until("optimise")
        self.found.append(self._current)
        self._current = {}

    def enough(self, seconds: float) -> bool:
        late = self._last - self.started > seconds
        return len(self.found) == STAGE_UPDATES or (late and len(self.found) >= WARM_UP)

    def medians(self) -> dict[str, float]:
        """Milliseconds by stage."""
        return {
            stage: 1000 * statistics.median(update.get(stage, 0.0) for update in self.found)
            for stage in STAGES
        }


class Watched(Trainer):
    """A trainer that takes its speed after a warm-up, then the stages of its updates, and ends.

    One trainer for both: recording the steps anew would take longer than the measurement.
    """

    def __init__(
        self, settings: Settings, windows: int, seconds: float, tell: Callable[[int, int], None]
    ) -> None:
        """windows of so many seconds to take the speed over."""
        super().__init__(settings, resume=False)
        self.windows, self.seconds, self.tell = windows, seconds, tell
        self.per_epoch = -(-len(self.corpus) // settings.training.batch_size)
        self.meter = Speedometer(str(self.device), seconds)
        self.clock: StageClock | None = None  # when the speed is known
        self.started = 0.0

    def run_until_enough(self) -> None:
        self.started = time.perf_counter()
        try:
            self.run()
        except Enough:
            pass
        finally:
            self.reporter.close()

    def _update(
        self, model: torch.nn.Module, prepared: list[MicroBatch], epoch: int, number: int
    ) -> torch.Tensor:
        loss = super()._update(model, prepared, epoch, number)
        if self.clock is not None:
            self.clock.after_update()
            if self.clock.enough(self.windows * self.seconds):
                raise Enough
        elif self._is_warm(epoch):
            sentences = sum(len(micro.batch.lengths) for micro in prepared if micro.weight)
            self.meter.after_update(sentences, last=number + 1 == self.per_epoch)
            self.tell(len(self.meter.found), self.windows)
            if len(self.meter.found) == self.windows:
                self.clock = self._time_stages()
        return loss

    def _is_warm(self, epoch: int) -> bool:
        """Where steps are recorded, after an epoch: the others have few shapes that it had not."""
        if self.uses_graphs:
            return epoch > 0
        enough = self.progress.step + 1 >= WARM_UP
        return enough and time.perf_counter() - self.started > self.seconds

    def _time_stages(self) -> StageClock:
        """From now on."""
        clock, assign = StageClock(str(self.device)), self.objective.assign

        def assign_between(*arguments: Any) -> Any:
            clock.until("forward")
            assigned = assign(*arguments)
            clock.until("match")
            return assigned

        self.objective.assign = assign_between
        self.objective.register_forward_hook(lambda *_: clock.until("loss"))
        return clock

    def _gradients(self, *arguments: Any, **options: Any) -> torch.Tensor:
        if self.clock is None:
            return super()._gradients(*arguments, **options)
        self.clock.until("wait")
        loss = super()._gradients(*arguments, **options)
        self.clock.until("backward")
        return loss

    def _save(self, started: float) -> None:
        """Nothing of this run is kept, and the state of a large model takes long to write."""


@dataclass(frozen=True)
class Job:
    """Something to train."""

    settings: Settings
    encoder: Path
    sentences: Sequence[Sentence]
    folder: Path  # for the run

    def prepare(self) -> Settings:
        """Settings of a run whose epochs have EPOCH updates; sentences may repeat for that."""
        data = self.folder / "train.jsonl"
        count = EPOCH * self.settings.training.batch_size
        formats.write(data, sample.exactly(self.sentences, count))
        values = self.settings.to_dict()
        values["data"] = {"train": str(data)}
        values["encoder"]["name"] = str(self.encoder)
        values["training"] |= {
            "output": str(self.folder / "run"),
            "epochs": 1_000_000,
            "frozen_epochs": 0,
            "evaluate_every": 1_000_000,
        }
        return Settings.from_dict(values)


def measure(job: Job, repeats: int, seconds: float, tell: ProgressCallback) -> dict[str, Any]:
    """Sentences per second and the stages of an update, from the trainer as it is."""
    what = "training"
    tell(what, 0, repeats)
    trainer = Watched(job.prepare(), repeats, seconds, lambda done, total: tell(what, done, total))
    memory = PeakMemory(str(trainer.device))
    trainer.run_until_enough()
    assert trainer.clock is not None
    return {
        "batch_size": job.settings.training.batch_size,
        "device": str(trainer.device),
        "precision": trainer.accelerator.mixed_precision.replace("no", "float32"),
        "cuda_graphs": trainer.uses_graphs,
        "sentences_per_second": Summary.of(trainer.meter.found).to_dict(),
        "ms_per_update": trainer.clock.medians(),
        "peak_memory": memory.read(),
    }
