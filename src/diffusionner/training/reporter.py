"""Progress of a run: a bar or plain lines on stderr, a JSONL log, and TensorBoard."""

from __future__ import annotations

import json
import time
from datetime import timedelta
from pathlib import Path
from types import TracebackType
from typing import Any, Self

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from diffusionner.errors import CheckpointError
from diffusionner.files import try_lock

LINE_INTERVAL = 10.0  # seconds between plain lines


class Reporter:
    """Reports on the main process and does nothing on the others.

    A terminal gets a progress bar. Redirected output gets a plain line every few seconds.
    """

    def __init__(
        self, folder: Path, total: int, done: int, step: int, epoch: int, active: bool
    ) -> None:
        """total, done: sentences; step, epoch: numbers already finished, for a resumed run."""
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
        self._drop_after(path, step, epoch)
        self.board = _tensorboard(folder / "tensorboard", step)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total} sentences · {task.fields[status]}"),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task("training", total=total, completed=done, status="")
        self.bar.start()

    @staticmethod
    def _drop_after(path: Path, step: int, epoch: int) -> None:
        """Remove what a resumed run is going to repeat from the log."""
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _is_before(line, step, epoch)]
            path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

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

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        traceback: TracebackType | None,
    ) -> None:
        self.close()

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


def _is_before(line: str, step: int, epoch: int) -> bool:
    """Return True for a line of the log about finished steps and epochs."""
    try:
        record = json.loads(line)
        return bool(record["step"] <= step and record.get("epoch", 0) <= epoch)
    except (ValueError, KeyError, TypeError):
        return False  # the torn last line of a killed run
