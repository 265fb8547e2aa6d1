"""What a run tells the world: a progress bar, a JSONL log and TensorBoard."""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeRemainingColumn

from diffusionner.errors import CheckpointError
from diffusionner.files import try_lock


class Reporter:
    """Does nothing on all but the main process."""

    def __init__(self, folder: Path, total: int, step: int, epoch: int, active: bool) -> None:
        """step, epoch: how many the run has behind it already."""
        self.active = active
        if not active:
            return
        # Imported here: TensorBoard is slow to load and only training writes to it.
        from torch.utils.tensorboard import SummaryWriter

        self.console = Console(stderr=True)
        path = folder / "log.jsonl"
        self.log = open(path, "a", encoding="utf-8")  # noqa: SIM115 - closed in close()
        if not try_lock(self.log):
            self.log.close()
            raise CheckpointError(
                f"another process is training in {folder}; let it end, stop it, or set "
                "training.output to another folder"
            )
        self._drop_after(path, step, epoch)
        self.board = SummaryWriter(folder / "tensorboard", purge_step=step or None)
        self.bar = Progress(
            TextColumn("{task.description}"),
            BarColumn(),
            TextColumn("{task.completed}/{task.total}"),
            TextColumn(
                "loss {task.fields[loss]} · dev F1 {task.fields[f1]} · {task.fields[speed]}"
            ),
            TimeRemainingColumn(),
            console=self.console,
            disable=not self.console.is_terminal,
        )
        self.task = self.bar.add_task(
            "training", total=total, completed=step, loss="-", f1="-", speed="-"
        )
        self.bar.start()

    @staticmethod
    def _drop_after(path: Path, step: int, epoch: int) -> None:
        """A resumed run repeats what came after its state, so the log must forget that."""
        if path.exists():
            lines = path.read_text(encoding="utf-8").splitlines()
            kept = [line for line in lines if _happened(line, step, epoch)]
            path.write_text("".join(line + "\n" for line in kept), encoding="utf-8")

    def update(self, step: int, epoch: str, record: dict[str, float]) -> None:
        """Every few updates: loss, rate, speed."""
        if not self.active:
            return
        self._write({"step": step, **record})
        speed = f"{record['sentences_per_second']:.0f} sentences/s"
        loss = f"{record['loss']:.3f}"
        self.bar.update(self.task, completed=step, description=epoch, loss=loss, speed=speed)

    def epoch(self, step: int, epoch: int, record: dict[str, Any]) -> None:
        """After an evaluation."""
        if not self.active:
            return
        self._write({"step": step, "epoch": epoch, **record})
        if "f1" in record:
            self.bar.update(self.task, f1=f"{100 * record['f1']:.2f}")
        text = " · ".join(
            f"{name} {value:.4f}" if isinstance(value, float) else f"{name} {value}"
            for name, value in record.items()
        )
        self.console.print(f"epoch {epoch}: {text}", highlight=False)

    def say(self, text: str) -> None:
        if self.active:
            self.console.print(text, highlight=False, markup=False)

    def close(self) -> None:
        if self.active:
            self.bar.stop()
            self.log.close()
            self.board.close()

    def _write(self, record: dict[str, Any]) -> None:
        self.log.write(json.dumps({"time": round(time.time(), 3), **record}) + "\n")
        self.log.flush()
        for name, value in record.items():
            if isinstance(value, float):
                self.board.add_scalar(name, value, record["step"])


def _happened(line: str, step: int, epoch: int) -> bool:
    """Whether a line of the log is of the steps and epochs that are done."""
    try:
        record = json.loads(line)
        return bool(record["step"] <= step and record.get("epoch", 0) <= epoch)
    except (ValueError, KeyError, TypeError):
        return False  # the torn last line of a killed run
