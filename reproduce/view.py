"""Live overview of all runs on a terminal; elsewhere one line per event."""

from __future__ import annotations

from types import TracebackType

from rich.console import Console, Group
from rich.live import Live
from rich.progress_bar import ProgressBar
from rich.table import Table
from rich.text import Text

from diffusionner.cli.options import say
from reproduce.runner import Overview, WorkerStatus


class LiveView:
    def __init__(self, console: Console) -> None:
        self.console = console
        self.live = Live(console=console, auto_refresh=False, transient=True)

    def __enter__(self) -> LiveView:
        if self.console.is_terminal:
            self.live.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.live.stop()

    def say(self, text: str) -> None:
        say(self.console, text)

    def show(self, overview: Overview) -> None:
        if self.console.is_terminal:
            self.live.update(picture(overview), refresh=True)


def picture(overview: Overview) -> Group:
    table = Table(box=None, padding=(0, 1), header_style="bold")
    for title in ("run", "doing", "", "dev F1", "sentences/s", "left"):
        table.add_column(title, justify="left" if title in ("run", "doing", "") else "right")
    for status in overview.active:
        table.add_row(*_row(status))
    done = overview.total - overview.done - overview.failed
    parts = [f"{overview.done} of {overview.total} runs done", f"{done} to go"]
    if overview.failed:
        parts.append(f"{overview.failed} failed")
    parts.append(f"about {duration(overview.left)} left")
    if overview.budget is not None:
        parts.append(f"{duration(overview.budget)} of the budget left")
    return Group(table, Text(" · ".join(parts), style="bold"))


def _row(status: WorkerStatus) -> tuple[str | ProgressBar, ...]:
    worker, progress, job = status.worker, status.progress, status.worker.job
    doing = f"{worker.stage} {status.done}/{status.total}"
    if worker.stage == "training":
        per_epoch = max(1, job.updates // job.epochs)
        epoch = min(job.epochs, progress.step // per_epoch + 1)
        doing = f"epoch {epoch}/{job.epochs}"
    best = progress.best_f1
    return (
        job.name,
        doing,
        ProgressBar(total=status.total, completed=status.done, width=20),
        "-" if best is None else f"{100 * best:.2f}",
        f"{progress.speed:.0f}" if worker.stage == "training" and progress.speed else "-",
        duration(status.left),
    )


def duration(seconds: float | None) -> str:
    if seconds is None:
        return "?"
    minutes, rest = divmod(max(0, round(seconds)), 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours}:{minutes:02}:{rest:02}" if hours else f"{minutes}:{rest:02}"
