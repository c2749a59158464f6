"""The view of ``tape2048 train-player``, its summary at the end, and the learning curve."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import msgspec

from tape2048.base.text import counted
from tape2048.io.durable import storage_error
from tape2048_tools.terminal.display import duration, near, number, rate, reach_words
from tape2048_tools.terminal.output import columns, complain, printable
from tape2048_tools.views import progress as views
from tape2048_tools.views.opening import JobView, open_view

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048_recorder.ntuple_training.config import TrainingConfig
    from tape2048_recorder.ntuple_training.trainer import Progress


def training_view(config: TrainingConfig, out: str) -> JobView[Progress]:
    """Open the view of a training that writes to ``out``."""

    def describe(progress: Progress) -> views.Progress:
        moves, speed = config.moves, progress.moves_per_s
        facts = {}
        if not math.isnan(progress.mean_score):
            facts = {
                "games": [number(progress.games)],
                "score": [f"mean {number(progress.mean_score)}"],
                "reach": reach_words(progress.reach),
            }
        first = f"{rate(speed)} moves/s" if speed else "kernels compile at their first use"
        return views.Progress(
            "learned",
            progress.moves,
            moves,
            "moves",
            state="training" if speed else "getting ready",
            rate=[first, counted(config.thread_count, "thread")],
            elapsed_s=progress.elapsed_s,
            left_s=max(moves - progress.moves, 0) / speed if speed else None,
            facts=facts,
            trend=("score", progress.mean_score),
        )

    return JobView(open_view(f"tape2048 train-player: {out}"), describe)


def training_summary(
    progress: Progress, *, done: bool, network: Path | None, curve: Path | None
) -> list[RenderableType]:
    """Return the result, and the commands to try next, as text; ``network`` is None if none was written."""
    has_games = not math.isnan(progress.mean_score)
    facts: dict[str, Any] = {
        "ended": "all moves are learned" if done else "stopped; the same command resumes it",
        "moves": f"{number(progress.moves)} in {duration(progress.elapsed_s)}",
        "games": number(progress.games),
        "score": f"mean {number(progress.mean_score)} while learning, 1-ply" if has_games else "-",
        "reach": "   ".join(reach_words(progress.reach)) if has_games else "-",
    }
    following = ""
    if network is not None:
        path = facts["network"] = near(str(network))
        following = (
            f"\nNext:\n  tape2048 player eval ntuple:weights={path}\n"
            f"  tape2048 record --player ntuple:weights={path}"
        )
    if curve is not None:
        facts["curve"] = near(str(curve))
    return [columns(facts), *([following] if following else [])]


def draw_curve(directory: Path) -> Path | None:
    """Draw ``curve.svg`` from ``metrics.jsonl``; return None without points or without matplotlib."""
    from tape2048.io.training_directory import METRICS

    path = directory / METRICS
    if not path.exists():
        return None
    try:
        import matplotlib as mpl

        mpl.use("svg")
        import matplotlib.pyplot as plt
    except ImportError:
        complain("no learning curve: matplotlib is missing (pip install 'tape2048[plot]')")
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
    """The part of a line of metrics that the curve shows."""

    moves: int
    mean_score: float | None
    reach: dict[str, float]


def _points(path: Path) -> list[_Point]:
    """Return the lines of metrics with finished games; skip damaged lines."""
    points, damaged = [], 0
    for line in path.read_bytes().splitlines():
        try:
            points.append(msgspec.json.decode(line, type=_Point))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
    if damaged:
        where = printable(near(str(path)))
        complain(f"the learning curve omits {damaged} damaged lines of {where}")
    return [point for point in points if point.mean_score is not None]
