"""Progress of a run: a bar or plain lines on stderr, a JSONL log, and TensorBoard."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from typing import Any

from rich import progress as bars
from rich.console import Console

from diffusionner.errors import CheckpointError
from diffusionner.files import try_lock
from diffusionner.training.state import Progress

LINE_INTERVAL = 10.0  # seconds between plain lines


class Reporter:
    """Reports on the main process and does nothing on the others.

    A terminal gets a progress bar. Redirected output gets a plain line every few seconds.
    """

    def __init__(
        self, folder: Path, progress: Progress, total: int, done: int, active: bool
    ) -> None:
        """progress: position of a resumed run; total, done: sentences."""
        self.active = active
        if not active:
            return
        self.console = Console(stderr=True)
        self.total, self.done_before = total, done
        self.started = self.last_line = time.monotonic()
        self.dev_f1 = "-"
        path = folder / "log.jsonl"
        self.log = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()
        if not try_lock(self.log):
            self.log.close()
            raise CheckpointError(
                f"another process is training in {folder}; wait for it, stop it, or set "
                "training.output to another folder"
            )
        _forget_after(path, progress)
        self.board = _tensorboard(folder / "tensorboard", progress.step)
        self.bar = bars.Progress(
            bars.TextColumn("{task.description}"),
            bars.BarColumn(),
            bars.TextColumn("{task.completed}/{task.total} sentences · {task.fields[status]}"),
            bars.TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=total, completed=done, status="")
        self.bar.start()

    def update(self, step: int, epoch: str, done: int, record: dict[str, float]) -> None:
        """Report loss, learning rate and speed every few updates. done: sentences so far."""
        if not self.active:
            return
        self._write({"step": step, **record})
        status = (
            f"loss {record['loss']:.3f} · {record['sentences_per_second']:.3g} sentences/s · "
            f"dev F1 {self.dev_f1}"
        )
        self.bar.update(self.task, completed=done, description=epoch, status=status)
        now = time.monotonic()
        if not self.console.is_terminal and now - self.last_line >= LINE_INTERVAL:
            self.last_line = now
            seconds = (now - self.started) / max(1, done - self.done_before)
            left = timedelta(seconds=round(seconds * (self.total - done)))
            self.say(f"{epoch}: {done}/{self.total} sentences · {status} · {left} left")

    def epoch(self, step: int, epoch: int, record: dict[str, Any]) -> None:
        """Report an evaluation."""
        if not self.active:
            return
        self._write({"step": step, "epoch": epoch, **record})
        text = "saved"
        if "f1" in record:
            self.dev_f1 = f"{100 * record['f1']:.2f}"
            text = f"dev F1 {self.dev_f1} · best epoch {record['best']}"
        self.say(f"epoch {epoch}: {text}")

    def say(self, text: str) -> None:
        if self.active:
            self.console.print(text, highlight=False, markup=False, soft_wrap=True)

    def close(self) -> None:
        if self.active:
            self.bar.stop()
            self.log.close()
            if self.board is not None:
                self.board.close()

    def _write(self, record: dict[str, Any]) -> None:
        self.log.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")
        self.log.flush()
        for name, value in record.items():
            if isinstance(value, float) and self.board is not None:
                self.board.add_scalar(name, value, record["step"])


def _tensorboard(folder: Path, step: int) -> Any:
    """Return a TensorBoard writer, or None if TensorBoard is not installed."""
    try:
        from torch.utils.tensorboard import SummaryWriter
    except ModuleNotFoundError:
        return None
    return SummaryWriter(folder, purge_step=step or None)


def _forget_after(log: Path, progress: Progress) -> None:
    """Remove from the log what a resumed run is going to repeat."""
    lines = log.read_text(encoding="utf-8").splitlines()
    kept = [line for line in lines if _is_finished(line, progress)]
    log.write_text("".join(line + "\n" for line in kept), encoding="utf-8")


def _is_finished(line: str, progress: Progress) -> bool:
    try:
        record = json.loads(line)
        return bool(record["step"] <= progress.step and record.get("epoch", 0) <= progress.epoch)
    except (ValueError, KeyError, TypeError):
        return False  # the torn last line of a killed run
