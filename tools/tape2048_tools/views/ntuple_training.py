"""What ``tape2048 train-player`` shows while it runs and at the end, and the learning curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import counted
from tape2048.io.durable import storage_error
from tape2048_tools.terminal.display import duration, near, number, rate, reach_words
from tape2048_tools.terminal.output import columns, complain, printable
from tape2048_tools.views import progress as job_progress
from tape2048_tools.views.opening import JobView, open_view

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048_recorder.ntuple_training.config import TrainingConfig
    from tape2048_recorder.ntuple_training.trainer import Progress


class TrainingView(JobView):
    """Where a training's words go: the view for where standard error goes."""

    def __init__(self, config: TrainingConfig, out: str) -> None:
        super().__init__(open_view(f"tape2048 train-player: {out}"))
        self._config = config
        self._threads = counted(config.thread_count, "thread")

    def progress(self, progress: Progress) -> None:
        """How it stands."""
        self.view.show(lambda: self._shown(progress))

    def _shown(self, progress: Progress) -> job_progress.Progress:
        moves, speed = self._config.moves, progress.moves_per_s
        facts = {}
        if _has_means(progress):
            facts = {
                "games": [number(progress.games)],
                "score": [f"mean {number(progress.mean_score)}"],
                "reach": reach_words(progress.reach),
            }
        first = f"{rate(speed)} moves/s" if speed else "kernels compile at their first use"
        return job_progress.Progress(
            "learned",
            progress.moves,
            moves,
            "moves",
            state="training" if speed else "getting ready",
            rate=[first, self._threads],
            elapsed_s=progress.elapsed_s,
            left_s=max(moves - progress.moves, 0) / speed if speed else None,
            facts=facts,
            trend=("score", progress.mean_score),
        )


def _has_means(progress: Progress) -> bool:
    """Whether a game has ended since training began or went on: before, there is nothing to take means of."""
    return not math.isnan(progress.mean_score)


def training_summary(
    progress: Progress, *, done: bool, network: Path | None, curve: Path | None
) -> list[RenderableType]:
    """What was learned, and what to try next; ``network`` is None where none was written."""
    facts: dict[str, Any] = {
        "ended": "all moves are learned" if done else "stopped; the same command goes on",
        "moves": f"{number(progress.moves)} in {duration(progress.elapsed_s)}",
        "games": number(progress.games),
        "score": f"mean {number(progress.mean_score)} while learning, 1-ply" if _has_means(progress) else "-",
        "reach": "   ".join(reach_words(progress.reach)) if _has_means(progress) else "-",
    }
    if network is not None:
        facts["network"] = near(str(network))
    if curve is not None:
        facts["curve"] = near(str(curve))
    if network is None:
        return [columns(facts)]
    path = near(str(network))
    following = (
        f"\nNext:\n  tape2048 player eval ntuple:weights={path}\n"
        f"  tape2048 record --player ntuple:weights={path}"
    )
    return [columns(facts), following]


def draw_curve(directory: Path) -> Path | None:
    """Draw ``curve.svg`` from ``metrics.jsonl``; None where there is nothing to draw, or no matplotlib."""
    from tape2048.io.training_directory import METRICS

    path = directory / METRICS
    if not path.exists():
        return None
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        complain("no learning curve is drawn: pip install 'tape2048[plot]' brings matplotlib")
        return None
    points = _points(path)
    if not points:
        return None
    moves = [point.moves / 1e9 for point in points]
    figure, (top, bottom) = plt.subplots(2, 1, sharex=True, figsize=(8, 6), layout="constrained")
    top.plot(moves, [point.mean_score for point in points])
    top.set_ylabel("mean score, 1-ply")
    top.yaxis.set_major_formatter("{x:,.0f}")
    for tile in points[-1].reach:
        bottom.plot(moves, [100 * point.reach.get(tile, math.nan) for point in points], label=tile)
    bottom.set_ylabel("games that reach it, %")
    bottom.set_xlabel("moves learned from, 1e9")
    bottom.legend(title="tile", loc="center left", bbox_to_anchor=(1, 0.5))
    target = directory / "curve.svg"
    try:
        figure.savefig(target)
    except OSError as error:
        raise storage_error(error, target, "drawing the learning curve") from error
    finally:
        plt.close(figure)
    return target


class _Point(msgspec.Struct):
    """What a line of metrics has for the curve."""

    moves: int
    mean_score: float | None
    reach: dict[str, float]


def _points(path: Path) -> list[_Point]:
    """The lines of metrics in which games had ended; one that somebody has spoilt costs no curve."""
    points, spoilt = [], 0
    for line in path.read_bytes().splitlines():
        try:
            points.append(msgspec.json.decode(line, type=_Point))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            spoilt += 1
    if spoilt:
        where = printable(near(str(path)))
        complain(f"the learning curve leaves out {spoilt} lines of {where} that are no metrics")
    return [point for point in points if point.mean_score is not None]
