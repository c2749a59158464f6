"""Panels and summaries of recordings, and of trainings of networks and critics."""

from __future__ import annotations

import math
import shlex
import sys
from typing import TYPE_CHECKING, Any, Self

import msgspec

from tape2048.base.text import counted, printable
from tape2048.files.opening import storage_error
from tape2048_tools.progress.panel import Progress, ProgressPanel, open_panel, progress_bar
from tape2048_tools.terminal.display import (
    double_quoted,
    duration,
    near,
    number,
    rate,
    reach_words,
    runnable,
    share,
    size,
)
from tape2048_tools.terminal.output import columns, complain

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from rich.console import RenderableType

    from tape2048.critic.critic_config import CriticConfig, NTupleCriticConfig
    from tape2048.critic.ntuple.ntuple_critic import GameSource, TrainedNTuple
    from tape2048.files.training_directory import TrainingProgress
    from tape2048.torch.training import Trained
    from tape2048_recorder.ntuple_training.training_config import TrainingConfig
    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_recorder.status.status_report import Level, RecordingSummary, Status

_SESSIONS_SHOWN = 8

_SHORTEST_S = 1.0  # shorter recordings have no meaningful speed and no bytes per minute


class RecordingPanel:
    """The progress panel of a recorder."""

    def __init__(self, config: RecorderConfig) -> None:
        self._config = config
        self.panel = open_panel(
            f"tape2048 record: {config.tag}",
            config.log_interval_s,
            level=config.log_level,
            form=config.log_format,
            describe=lambda make_status: self.describe(make_status()),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.panel.__exit__()

    def changed(self, config: RecorderConfig) -> None:
        """Apply a changed configuration."""
        self._config = config
        self.panel.change(config.log_interval_s, config.log_level)

    def event(self, level: Level, message: str) -> None:
        """Show an event."""
        self.panel.event(message, level)

    def status(self, make_status: Callable[[], Status]) -> None:
        """Show the status if the interval has passed."""
        self.panel.progress(make_status)

    def describe(self, status: Status) -> Progress:
        """Convert a status to the progress that panels show."""
        from tape2048_recorder.record_options import row_bytes

        facts = {"games": [number(status.games)]}
        if status.mean_score is not None:
            facts["games"].append(f"mean score {number(status.mean_score)}")
            facts["reach"] = reach_words(status.reach)
        facts["published"] = [number(status.sessions)]
        if status.free_bytes is not None:
            disk = f"{size(status.free_bytes)} left in {self._config.out_dir}"
            per_s = status.steps_per_s * row_bytes(self._config) / self._config.sample_rate
            left = f" ({duration(status.free_bytes / per_s)} at this rate)" if per_s > 0 else ""
            facts["disk"] = [disk + left]
        warning = status.why if status.state in {"paused", "starting"} else None
        if status.state == "recording" and not status.games:
            warning = f"playing the first games: {counted(status.steps, 'step')} so far"
        return Progress(
            "session",
            status.session_rows,
            self._config.rotate_steps,
            "rows",
            state=status.state,
            rate=[
                f"{rate(status.steps_per_s)} steps/s{in_model(status.model_share)}",
                f"{status.workers_ready} of {counted(status.workers, 'worker')}",
            ],
            elapsed_s=status.elapsed_s,
            facts=facts,
            warning=warning,
        )


def in_model(model_share: float | None) -> str:
    """Return the share of the workers' time in the model, to follow a rate; empty without a model."""
    return "" if model_share is None else f", {share(model_share)} of the time in the model"


def dropped_words(games: int) -> str:
    """Return the number of games that were not recorded, and their possible states."""
    return (
        f"{counted(games, 'game')} of the workers: not started, in progress, or finished and not yet written"
    )


def summary_parts(summary: RecordingSummary) -> list[RenderableType]:
    """Return the summary of a recording as text: its results, its sessions, and commands to run next."""
    if not summary.games:
        recovered = f"; {len(summary.recovered)} recovered" if summary.recovered else ""
        text = f"Nothing was recorded ({printable(summary.reason)}){recovered}."
        if summary.first_step_s is None:
            text += " The recorder was still compiling or loading the player."
        return [text]
    played_s, speed, a_minute = summary.played_s, "", ""
    if played_s >= _SHORTEST_S:
        speed = f", {rate(summary.steps / played_s)}/s"
        a_minute = f", {size(round(summary.bytes / played_s * 60))} a minute"
    facts: dict[str, object] = {
        "ended": summary.reason,
        "games": f"{number(summary.games)} ({counted(summary.steps, 'step')} in "
        f"{duration(played_s)}{speed}{in_model(summary.model_share)})",
        "score": f"mean {number(summary.mean_score)}, best {number(summary.score_max)}",
        "reach": "   ".join(reach_words(summary.reach)),
        "sessions": f"{len(summary.sessions)} in {near(summary.out_dir)} ({size(summary.bytes)}{a_minute})",
    }
    if summary.recovered:
        facts["recovered"] = f"{counted(len(summary.recovered), 'session')} of a killed recorder"
    if summary.games_dropped:
        facts["dropped"] = dropped_words(summary.games_dropped)
    if summary.games_forfeited:
        facts["forfeited"] = f"{counted(summary.games_forfeited, 'game')}, because of engine faults"
    shown = summary.sessions[-_SESSIONS_SHOWN:]
    names = [f"  {printable(path.rpartition('/')[2])}" for path in shown]
    if len(shown) < len(summary.sessions):
        names.insert(0, f"  ... {len(summary.sessions) - len(shown)} more")
    last = near(summary.sessions[-1] if summary.sessions else summary.out_dir)
    command, python = runnable("tape2048", sys.argv[0]), runnable("python", sys.executable)
    labels = f"from tape2048 import Session; print(Session.open({last!r}).labels().mean(axis=0))"
    replay = " --replay" if summary.model_share is None else ""  # rejected if it would run a user's code
    following = (
        "\nNext:\n"
        f"  {command} show {shlex.quote(last)}\n"
        f"  {command} validate {shlex.quote(near(summary.out_dir))}{replay}\n"
        f"  {python} -c {double_quoted(labels)}"
    )
    return [columns(facts), "\n".join(names), following]


_STOPPED = "stopped. The same command resumes it"


def _panel(
    title: str, details: Callable[[dict[str, Any]], dict[str, Any]], *, quiet: bool = False
) -> ProgressPanel:
    def describe(made: TrainingProgress) -> Progress:
        shown = Progress("learned", made.done, made.of, made.unit, "training", elapsed_s=made.elapsed_s)
        left_s = max(made.of - made.done, 0) / made.per_s if made.per_s else None
        return shown._replace(left_s=left_s, **details(made.figures))

    return open_panel(title, quiet=quiet, describe=describe)


def critic_panel(config: CriticConfig, *, quiet: bool = False) -> ProgressPanel:
    """Open the panel of ``critic train``; with ``quiet`` it shows errors only."""

    def details(found: dict[str, Any]) -> dict[str, Any]:
        facts = {"epoch": [f"{found['epoch']:.2f}"], "loss": [f"{found['loss']:.5f}"]}
        if found["val_loss"] is not None:
            best = f"best at step {number(found['best_step'])}"
            facts["validation"] = [f"loss {found['val_loss']:.5f}", _base(found["val_base_loss"]), best]
            facts["AUROC"] = _auroc(found["val_auroc"])
        speed = [f"{rate(found['rows_per_s'])} rows/s", f"{share(found['data_wait'])} waiting for data"]
        return {"rate": speed, "facts": facts, "trend": ("loss", found["loss"])}

    return _panel(f"tape2048 critic train: {config.out}", details, quiet=quiet)


def _base(loss: float | None) -> str:
    return f"base rate {'-' if loss is None else format(loss, '.5f')}"


def _auroc(found: dict[str, float | None]) -> list[str]:
    return [f"{tile} {'-' if value is None else format(value, '.4f')}" for tile, value in found.items()]


def critic_document(trained: Trained) -> dict[str, Any]:
    """Return the result of a critic's training as a document."""
    found = trained.progress.figures
    return {
        "ended": trained.ended or "stopped",
        "step": found["step"],
        "steps": found["steps"],
        "best": None if trained.best is None else str(trained.best),
        "best_step": found["best_step"],
        **trained.best_metrics,
        "parts": {name: {"rows": rows, "runs": runs} for name, (rows, runs) in trained.counts.items()},
        **{name: found[name] for name in ("rows_per_s", "data_wait", "elapsed_s")},
    }


def critic_summary(config: CriticConfig, trained: Trained) -> list[RenderableType]:
    """Return the result of a critic's training, and the commands to try next, as text."""
    found = trained.progress.figures
    facts: dict[str, Any] = {
        "ended": trained.ended or _STOPPED,
        "learned": f"step {number(found['step'])} of {number(found['steps'])}, "
        f"{duration(found['elapsed_s'])}, {rate(found['rows_per_s'])} rows/s, "
        f"{share(found['data_wait'])} waiting for data",
        "parts": ", ".join(
            f"{name} {counted(runs, 'game')} ({counted(rows, 'row')} per epoch)"
            for name, (rows, runs) in trained.counts.items()
        ),
    }
    if trained.best is None:
        return [columns(facts)]
    best = near(str(trained.best))
    facts["best"] = f"{best}, from step {number(found['best_step'])}"
    metrics = trained.best_metrics
    facts["validation"] = f"loss {metrics['val_loss']:.5f}, {_base(metrics.get('val_base_loss'))}"
    facts["AUROC"] = "   ".join(_auroc(metrics["val_auroc"]))
    following = f"\nNext:\n  tape2048 critic eval {best} {near(config.data)}"
    if not config.use_embeddings:
        following += f"\n  tape2048 embed {near(config.data)} --tower {best}"
    return [columns(facts), following]


def open_games(config: NTupleCriticConfig) -> GameSource:
    """Return the games of a training: from its sessions, or new games of its player."""
    if config.games is None:
        from tape2048.critic.ntuple.ntuple_critic import corpus_games

        with progress_bar("reading", unit="boards") as progress:
            return corpus_games(config, progress)
    from tape2048_recorder.evaluation.evaluated_games import played_games
    from tape2048_tools.options.recorder_options import parse_player

    name, args = parse_player(config.player)
    with progress_bar("playing", unit="games") as progress:
        return played_games(config, name, args, config.games, progress)


def ntuple_critic_panel(config: NTupleCriticConfig) -> ProgressPanel:
    """Open the panel of ``critic train --kind ntuple``."""

    def details(found: dict[str, Any]) -> dict[str, Any]:
        facts = {"epoch": [f"{found['epoch']} of {found['epochs']}"]}
        if found["loss"] is not None:
            best = f"best {found['best_loss']:.5f}"
            facts["validation"] = [f"log loss {found['loss']:.5f}", _base(found["base_loss"]), best]
        speed = [f"{rate(found['rows_per_s'])} boards/s", counted(config.thread_count, "thread")]
        return {"rate": speed, "facts": facts}

    return _panel(f"tape2048 critic train --kind ntuple: {config.out}", details)


def ntuple_critic_document(trained: TrainedNTuple) -> dict[str, Any]:
    """Return the result of an n-tuple critic's training as a document."""
    best = trained.best and str(trained.best)
    return {**trained.progress.figures, "done": trained.done, "early": trained.early, "best": best}


def ntuple_critic_summary(config: NTupleCriticConfig, trained: TrainedNTuple) -> list[RenderableType]:
    """Return the result of an n-tuple critic's training, and the commands to try next, as text."""
    found = trained.progress.figures
    ended = "all epochs are complete"
    if trained.early:
        ended = f"no lower loss in {counted(config.patience or 0, 'validation')}"
    speed = f"{duration(found['elapsed_s'])}, {rate(found['rows_per_s'])} boards/s"
    facts: dict[str, Any] = {
        "ended": ended if trained.done else _STOPPED,
        "learned": f"{counted(found['epoch'], 'epoch')} of "
        f"{number(found['games_in_all'] // found['epochs'])} games, {number(found['rows'])} boards, {speed}",
    }
    if trained.best is None or found["best_loss"] is None:
        return [columns(facts)]
    best = near(str(trained.best))
    facts["best"] = f"{best}, {number(trained.best.stat().st_size)} bytes"
    loss = f"log loss {found['best_loss']:.5f}, {_base(found['base_loss'])}"
    facts["validation"] = f"{loss}, means over boards and tiles"
    following = (
        f"\nNext:\n  tape2048 critic eval {best} {near(config.data)} --oracle 48\n"
        f"  tape2048 critic ask --critic {best} 0x0123456789abcdef"
    )
    return [columns(facts), following]


def player_panel(config: TrainingConfig, out: str) -> ProgressPanel:
    """Open the panel of ``train-player``, which writes to ``out``."""

    def details(found: dict[str, Any]) -> dict[str, Any]:
        speed, score, facts = found["moves_per_s"], found["mean_score"], {}
        if not math.isnan(score):
            facts = {
                "games": [number(found["games"])],
                "score": [f"mean {number(score)}"],
                "reach": reach_words(found["reach"]),
            }
        first = f"{rate(speed)} moves/s" if speed else "compiling kernels"
        state = "training" if speed else "getting ready"
        words = [first, counted(config.thread_count, "thread")]
        return {"state": state, "rate": words, "facts": facts, "trend": ("score", score)}

    return _panel(f"tape2048 train-player: {out}", details)


def player_summary(
    progress: TrainingProgress, *, done: bool, network: Path | None, curve: Path | None
) -> list[RenderableType]:
    """Return the result and the commands to try next as text; ``network`` is None without a new file."""
    found = progress.figures
    score = found["mean_score"]
    facts: dict[str, Any] = {
        "ended": "all moves are complete" if done else _STOPPED,
        "moves": f"{number(progress.done)} in {duration(progress.elapsed_s)}",
        "games": number(found["games"]),
        "score": "-" if math.isnan(score) else f"mean {number(score)} while learning, 1-ply",
        "reach": "-" if math.isnan(score) else "   ".join(reach_words(found["reach"])),
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
    from tape2048.files.training_directory import METRICS

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
    bottom.set_ylabel("games that reach the tile, %")
    bottom.set_xlabel("moves of training, 1e9")
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
    moves: int
    mean_score: float | None
    reach: dict[str, float]


def _points(path: Path) -> list[_Point]:
    points, damaged = [], 0
    for line in path.read_bytes().splitlines():
        try:
            points.append(msgspec.json.decode(line, type=_Point))
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            damaged += 1
    if damaged:
        complain(f"{near(str(path))}: the learning curve omits {counted(damaged, 'damaged line')}")
    return [point for point in points if point.mean_score is not None]
