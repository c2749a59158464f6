"""What ``tape2048 critic train`` shows: a panel on a terminal, log lines elsewhere, and how it ended."""

from __future__ import annotations

import math
import sys
import time
from collections import deque
from typing import TYPE_CHECKING, Any, Self

from tape2048._text import counted
from tape2048_tools.display import number, share
from tape2048_tools.log_lines import log
from tape2048_tools.output import columns, printable
from tape2048_tools.recording_view import duration, near, rate
from tape2048_tools.training_view import sparkline

if TYPE_CHECKING:
    from rich.console import RenderableType
    from rich.panel import Panel

    from tape2048.critic_config import CriticConfig
    from tape2048.torch.training import Progress, Trained

__all__ = ["open_critic_view", "trained_facts", "trained_summary"]

_LOG_INTERVAL_S = 30.0
_DRAW_INTERVAL_S = 0.5
_LOSSES = 2000


def _auroc(found: dict[str, float | None]) -> str:
    return "   ".join(
        f"{tile} {'-' if value is None else format(value, '.4f')}" for tile, value in found.items()
    )


class _Quiet:
    """Shows nothing."""

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def event(self, message: str) -> None:
        pass

    def progress(self, progress: Progress) -> None:
        pass


class _LogView(_Quiet):
    """A line every half minute, and one for each event."""

    def __init__(self) -> None:
        self._next = time.monotonic() + _LOG_INTERVAL_S / 3

    def event(self, message: str) -> None:
        log(message)

    def progress(self, progress: Progress) -> None:
        if time.monotonic() < self._next:
            return
        self._next = time.monotonic() + _LOG_INTERVAL_S
        self.event(
            f"step {number(progress.step)} of {number(progress.steps)}, epoch {progress.epoch:.2f}, "
            f"loss {progress.loss:.5f}, {rate(progress.rows_per_s)} rows/s, "
            f"{share(progress.data_wait)} waiting for data"
        )


class _LiveView(_Quiet):
    """A panel that is drawn anew twice a second."""

    def __init__(self, config: CriticConfig) -> None:
        from rich.console import Console
        from rich.live import Live

        self._config = config
        self._losses: deque[float] = deque(maxlen=_LOSSES)
        self._next = 0.0
        self._console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._live.stop()

    def event(self, message: str) -> None:
        self._console.print(printable(message), markup=False)

    def progress(self, progress: Progress) -> None:
        if math.isfinite(progress.loss):
            self._losses.append(progress.loss)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + _DRAW_INTERVAL_S
            self._live.update(self.panel(progress), refresh=True)

    def panel(self, progress: Progress) -> Panel:
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim")
        facts.add_column()
        bar = Table.grid(padding=(0, 1))
        bar.add_row(
            ProgressBar(total=progress.steps, completed=progress.step, width=24),
            f"step {number(progress.step)} of {number(progress.steps)}, epoch {progress.epoch:.2f}",
        )
        facts.add_row("learned", bar)
        left = (
            (progress.steps - progress.step) * self._rows / progress.rows_per_s if progress.rows_per_s else 0
        )
        facts.add_row(
            "speed",
            Text(
                f"{rate(progress.rows_per_s)} rows/s   {share(progress.data_wait)} waiting for data   "
                f"{duration(progress.elapsed_s)} so far, at most {duration(left)} to go",
                style="bold",
            ),
        )
        facts.add_row("loss", f"{progress.loss:.5f}   {sparkline(list(self._losses))}")
        if progress.val_loss is not None:
            facts.add_row(
                "validation", f"loss {progress.val_loss:.5f}, best at step {number(progress.best_step)}"
            )
            facts.add_row("AUROC", _auroc(progress.val_auroc))
        title = Text(f"tape2048 critic train: {printable(self._config.out)}")
        return Panel(facts, title=title, title_align="left", width=100)

    @property
    def _rows(self) -> int:
        import os

        return self._config.batch_rows * int(os.environ.get("WORLD_SIZE") or 1)


def open_critic_view(config: CriticConfig, *, quiet: bool = False) -> Any:
    """The view for where standard error goes; a context."""
    if quiet:
        return _Quiet()
    return _LiveView(config) if sys.stderr.isatty() else _LogView()


def trained_facts(trained: Trained) -> dict[str, Any]:
    """How a training ended, as a document."""
    progress = trained.progress
    return {
        "ended": trained.ended or "stopped",
        "step": progress.step,
        "steps": progress.steps,
        "best": None if trained.best is None else str(trained.best),
        "best_step": progress.best_step,
        **trained.best_metrics,
        "parts": {name: {"rows": rows, "runs": runs} for name, (rows, runs) in trained.counts.items()},
        "rows_per_s": progress.rows_per_s,
        "data_wait": progress.data_wait,
        "elapsed_s": progress.elapsed_s,
    }


def trained_summary(config: CriticConfig, trained: Trained) -> list[RenderableType]:
    """How a training ended, and what comes next."""
    progress = trained.progress
    facts: dict[str, Any] = {
        "ended": trained.ended or "stopped; the same command goes on",
        "learned": f"step {number(progress.step)} of {number(progress.steps)}, "
        f"{duration(progress.elapsed_s)}, {rate(progress.rows_per_s)} rows/s, "
        f"{share(progress.data_wait)} waiting for data",
        "parts": ", ".join(
            f"{name} {counted(runs, 'game')} ({counted(rows, 'row')} an epoch)"
            for name, (rows, runs) in trained.counts.items()
        ),
    }
    following = ""
    if trained.best is not None:
        best = near(str(trained.best))
        facts["best"] = f"{best}, of step {number(progress.best_step)}"
        facts["validation"] = f"loss {trained.best_metrics['val_loss']:.5f}"
        facts["AUROC"] = _auroc(trained.best_metrics["val_auroc"])
        following = f"\nNext:\n  tape2048 critic eval {best} {near(config.data)}"
        if not config.use_embeddings:
            following += f"\n  tape2048 embed {near(config.data)} --tower {best}"
    return [columns(facts), following]
