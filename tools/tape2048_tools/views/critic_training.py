"""The view of ``tape2048 critic train``, and its summary at the end."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

from tape2048.base.text import counted
from tape2048_tools.terminal.display import duration, near, number, rate, share
from tape2048_tools.terminal.output import columns
from tape2048_tools.views import progress as views
from tape2048_tools.views.opening import JobView, open_view

if TYPE_CHECKING:
    from rich.console import RenderableType

    from tape2048.critic.config import CriticConfig
    from tape2048.torch.training.run import Progress, Trained


def critic_view(config: CriticConfig, *, quiet: bool = False) -> JobView[Progress]:
    """Open the view of a training; with ``quiet`` it shows errors only."""
    step_rows = config.batch_rows * int(os.environ.get("WORLD_SIZE") or 1)

    def describe(progress: Progress) -> views.Progress:
        facts = {"epoch": [f"{progress.epoch:.2f}"], "loss": [f"{progress.loss:.5f}"]}
        if progress.val_loss is not None:
            best = f"best at step {number(progress.best_step)}"
            facts["validation"] = [f"loss {progress.val_loss:.5f}", best]
            facts["AUROC"] = _auroc(progress.val_auroc)
        rows = (progress.steps - progress.step) * step_rows
        return views.Progress(
            "learned",
            progress.step,
            progress.steps,
            "steps",
            state="training",
            rate=[f"{rate(progress.rows_per_s)} rows/s", f"{share(progress.data_wait)} waiting for data"],
            elapsed_s=progress.elapsed_s,
            left_s=rows / progress.rows_per_s if progress.rows_per_s else None,
            facts=facts,
            trend=("loss", progress.loss),
        )

    return JobView(open_view(f"tape2048 critic train: {config.out}", quiet=quiet), describe)


def _auroc(found: dict[str, float | None]) -> list[str]:
    return [f"{tile} {'-' if value is None else format(value, '.4f')}" for tile, value in found.items()]


def trained_facts(trained: Trained) -> dict[str, Any]:
    """Return the result of a training as a document."""
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
    """Return the result of a training, and the commands to try next, as text."""
    progress = trained.progress
    facts: dict[str, Any] = {
        "ended": trained.ended or "stopped; the same command resumes it",
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
        facts["AUROC"] = "   ".join(_auroc(trained.best_metrics["val_auroc"]))
        following = f"\nNext:\n  tape2048 critic eval {best} {near(config.data)}"
        if not config.use_embeddings:
            following += f"\n  tape2048 embed {near(config.data)} --tower {best}"
    return [columns(facts), following]
