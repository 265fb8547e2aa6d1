"""Training speed, measured in the real trainer, which is stopped after a while."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
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

WARM_UP = 3  # minimum updates
EPOCH = 200  # updates per epoch: many shapes, but only seconds on a GPU
STAGE_UPDATES = 100  # maximum updates to time the stages of
STAGES = {
    "wait": "for the next batch, which is prepared in the background",
    "forward": "copy, encoder, decoder, copy of the costs to the host",
    "match": "the assignment",
    "loss": "likelihood of the matched spans (with CUDA graphs: in backward)",
    "backward": "gradients",
    "optimise": "clipping, AdamW",
}


class Finished(Exception):
    """Raised to end the trainer's loop."""


@dataclass
class Speedometer:
    """Sentences per second over windows of training time, which may span epochs.

    The clock runs from the first to the last update of an epoch, which must have at least two; the
    time between epochs does not count.
    """

    device: str
    seconds: float  # minimum length of a window
    found: list[float] = field(default_factory=list)
    _since: float | None = None  # time at which the clock was started
    _spent: float = 0.0  # seconds of the window before that
    _sentences: int = 0

    def after_update(self, sentences: int, last: bool) -> None:
        """Count an update; last: it ends an epoch."""
        if self._since is None:
            self._since = None if last else self._now()
            return
        self._sentences += sentences
        # Waiting for the device costs time, so it is only done at the end of a window or epoch.
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
        """Assign the time since the previous call to this stage."""
        synchronise(self.device)
        now = time.perf_counter()
        self._current[stage] = self._current.get(stage, 0.0) + now - self._last
        self._last = now

    def after_update(self) -> None:
        self.until("optimise")
        self.found.append(self._current)
        self._current = {}

    def is_done(self, seconds: float) -> bool:
        late = self._last - self.started > seconds
        return len(self.found) == STAGE_UPDATES or (late and len(self.found) >= WARM_UP)

    def medians(self) -> dict[str, float]:
        """Return the milliseconds of each stage."""
        return {
            stage: 1000 * statistics.median(update.get(stage, 0.0) for update in self.found)
            for stage in STAGES
        }


class TimedTrainer(Trainer):
    """A trainer that measures its speed after a warm-up, then its stages, and ends.

    One trainer does both, because recording CUDA graphs again takes longer than measuring.
    """

    def __init__(
        self,
        settings: Settings,
        windows: int,
        seconds: float,
        on_window: Callable[[int, int], None],
    ) -> None:
        """windows: number of windows to measure the speed in; seconds: their length."""
        super().__init__(settings, resume=False)
        self.windows, self.seconds, self.on_window = windows, seconds, on_window
        self.per_epoch = -(-len(self.corpus) // settings.training.batch_size)
        self.meter = Speedometer(str(self.device), seconds)
        self.clock: StageClock | None = None  # set once the speed is known
        self.started = 0.0

    def run_until_measured(self) -> None:
        self.started = time.perf_counter()
        with suppress(Finished):
            self.run()

    def _update(
        self, model: torch.nn.Module, prepared: list[MicroBatch], epoch: int, number: int
    ) -> torch.Tensor:
        loss = super()._update(model, prepared, epoch, number)
        if self.clock is not None:
            self.clock.after_update()
            if self.clock.is_done(self.windows * self.seconds):
                raise Finished
        elif self._is_warm(epoch):
            sentences = sum(len(micro.batch.lengths) for micro in prepared if micro.weight)
            self.meter.after_update(sentences, last=number + 1 == self.per_epoch)
            self.on_window(len(self.meter.found), self.windows)
            if len(self.meter.found) == self.windows:
                self.clock = self._time_stages()
        return loss

    def _is_warm(self, epoch: int) -> bool:
        """With CUDA graphs, the first epoch is the warm-up: later ones have few new shapes."""
        if self.uses_graphs:
            return epoch > 0
        updated = self.progress.step + 1 >= WARM_UP
        return updated and time.perf_counter() - self.started > self.seconds

    def _time_stages(self) -> StageClock:
        """Start timing the stages."""
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
        """Save nothing: the state of a large model takes long to write."""


@dataclass(frozen=True)
class Job:
    """A training run to measure."""

    settings: Settings
    encoder: Path
    sentences: Sequence[Sentence]
    folder: Path  # for the run

    def prepare(self) -> Settings:
        """Return the settings of a run with EPOCH updates per epoch; sentences may repeat."""
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


def measure(job: Job, repeats: int, seconds: float, progress: ProgressCallback) -> dict[str, Any]:
    """Measure the sentences per second and the stages of an update."""
    what = "training"
    progress(what, 0, repeats)
    trainer = TimedTrainer(
        job.prepare(), repeats, seconds, lambda done, total: progress(what, done, total)
    )
    memory = PeakMemory(str(trainer.device))
    trainer.run_until_measured()
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
