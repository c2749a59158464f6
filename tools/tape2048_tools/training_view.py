"""What ``tape2048 train-player`` shows: a panel on a terminal, log lines elsewhere, the learning curve."""

from __future__ import annotations

import itertools
import math
import sys
import time
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tape2048._durable import storage_error
from tape2048._words import counted
from tape2048_tools.display import number, share
from tape2048_tools.log_lines import log
from tape2048_tools.output import columns, complain, printable
from tape2048_tools.recording_view import duration, near, rate, reach_columns, reach_words

if TYPE_CHECKING:
    from pathlib import Path

    from rich.console import RenderableType
    from rich.panel import Panel

    from tape2048_recorder.ntuple.trainer import Progress
    from tape2048_recorder.ntuple.training_config import TrainingConfig

__all__ = ["draw_curve", "open_training_view", "sparkline", "training_summary"]

_BARS = "▁▂▃▄▅▆▇█"
_SPARK_WIDTH = 48
_BESIDE = 14  # what the panel has beside it: borders, labels, spaces
_LOG_INTERVAL_S = 30.0


def sparkline(values: list[float], width: int = _SPARK_WIDTH) -> str:
    """The values as a line of bars, each of ``width`` bars the mean of its part; lowest to highest."""
    if not values:
        return ""
    width = min(width, len(values))
    edges = [index * len(values) // width for index in range(width + 1)]
    means = [sum(values[a:b]) / (b - a) for a, b in itertools.pairwise(edges)]
    low, high = min(means), max(means)
    span = (high - low) or 1.0
    return "".join(_BARS[min(int((mean - low) / span * len(_BARS)), len(_BARS) - 1)] for mean in means)


def _reach(progress: Progress) -> str:
    return "   ".join(f"{tile} {share(part)}" for tile, part in progress.reach.items())


def _has_means(progress: Progress) -> bool:
    """Whether a game has ended since training began or went on: before, there is nothing to take means of."""
    return not math.isnan(progress.mean_score)


class _LogView:
    """A line every half minute, and one for each event."""

    def __init__(self, config: TrainingConfig, _: str) -> None:
        self._config = config
        self._next = time.monotonic()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def event(self, message: str) -> None:
        log(message)

    def progress(self, progress: Progress) -> None:
        if time.monotonic() < self._next or not _has_means(progress):
            return
        self._next = time.monotonic() + _LOG_INTERVAL_S
        self.event(
            f"learning, {rate(progress.moves)} of {rate(self._config.moves)} moves, "
            f"{rate(progress.moves_per_s)} moves/s, {counted(progress.games, 'game')}, "
            f"mean score {number(progress.mean_score)}, reach {reach_words(progress.reach)}"
        )


class _LiveView:
    """A panel that is drawn anew twice a second."""

    def __init__(self, config: TrainingConfig, out: str) -> None:
        from rich.console import Console
        from rich.live import Live

        self._config = config
        self._out = out
        self._scores: list[float] = []
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
        if _has_means(progress):
            self._scores.append(progress.mean_score)
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
            ProgressBar(total=self._config.moves, completed=progress.moves, width=24),
            f"{rate(progress.moves)} of {rate(self._config.moves)} moves",
        )
        facts.add_row("learned", bar)
        facts.add_row("speed", Text(self._speed(progress), style="bold"))
        if _has_means(progress):
            facts.add_row("games", f"{number(progress.games)}   mean score {number(progress.mean_score)}")
            facts.add_row("reach", reach_columns(progress.reach))
            facts.add_row("score", sparkline(self._scores, min(_SPARK_WIDTH, self._console.width - _BESIDE)))
        count = self._config.thread_count
        threads = "one thread" if count == 1 else f"{count} threads"
        title = f"tape2048 train-player: {printable(self._out)}, {threads}"
        return Panel(facts, title=Text(title), title_align="left", width=88)

    def _speed(self, progress: Progress) -> str:
        elapsed = duration(progress.elapsed_s)
        if not progress.moves_per_s:
            return f"getting ready   {elapsed}   (kernels compile at their first use)"
        left = max(self._config.moves - progress.moves, 0) / progress.moves_per_s
        return f"{rate(progress.moves_per_s)} moves/s   {elapsed}   {duration(left)} left"


def open_training_view(config: TrainingConfig, out: str) -> _LiveView | _LogView:
    """The view for where standard error goes."""
    return _LiveView(config, out) if sys.stderr.isatty() else _LogView(config, out)


def training_summary(
    progress: Progress, *, done: bool, network: Path | None, curve: Path | None
) -> list[RenderableType]:
    """What was learned, and what to try next; ``network`` is None where none was written."""
    facts: dict[str, Any] = {
        "ended": "all moves are learned" if done else "stopped; the same command goes on",
        "moves": f"{number(progress.moves)} in {duration(progress.elapsed_s)}",
        "games": number(progress.games),
        "score": f"mean {number(progress.mean_score)} while learning, 1-ply" if _has_means(progress) else "-",
        "reach": _reach(progress) if _has_means(progress) else "-",
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
    from tape2048._training_directory import METRICS

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
