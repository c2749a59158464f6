"""The panel of ``tape2048 record`` on standard error, and its summary on standard output."""

from __future__ import annotations

import shlex
import sys
from typing import TYPE_CHECKING, Self

from tape2048.base.text import counted
from tape2048_tools.progress.panel import Progress, open_panel
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
from tape2048_tools.terminal.output import columns, printable

if TYPE_CHECKING:
    from collections.abc import Callable

    from rich.console import RenderableType

    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.status.report import Level, Status, Summary

_SESSIONS_SHOWN = 8

#: A shorter recording is too short for its speed and its bytes a minute.
_SHORTEST_S = 1.0


class RecordingPanel:
    """The panel to which a recorder reports."""

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
        """Apply the log settings of a changed configuration."""
        self.panel.change(config.log_interval_s, config.log_level)

    def event(self, level: Level, message: str) -> None:
        """Show an event."""
        self.panel.event(message, level)

    def status(self, make_status: Callable[[], Status]) -> None:
        """Show the status if the interval has passed."""
        self.panel.progress(make_status)

    def describe(self, status: Status) -> Progress:
        """Convert a status to the progress that panels show."""
        from tape2048_recorder.config.loading import row_bytes

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
        return Progress(
            "session",
            status.session_rows,
            status.rotate_steps,
            "rows",
            state=status.state,
            rate=[
                f"{rate(status.steps_per_s)} steps/s{in_model(status.model_share)}",
                f"{status.workers_ready} of {counted(status.workers, 'worker')}",
            ],
            elapsed_s=status.elapsed_s,
            facts=facts,
            warning=status.why if status.state in {"paused", "starting"} else None,
        )


def in_model(model_share: float | None) -> str:
    """Return the share of the workers' time in the model, to follow a rate; empty without a model."""
    return "" if model_share is None else f", {share(model_share)} of the time in the model"


def dropped_words(games: int) -> str:
    """Return the number of games that were not recorded, and their possible states."""
    return f"{counted(games, 'game')} of the workers: not begun, in play, or finished and not yet written"


def summary_parts(summary: Summary) -> list[RenderableType]:
    """Return what was recorded, where, and the commands to try next, as text."""
    if not summary.games:
        recovered = f"; {len(summary.recovered)} recovered" if summary.recovered else ""
        text = f"Nothing was recorded ({printable(summary.reason)}){recovered}."
        if summary.first_step_s is None:
            text += " No move was made yet: it compiled, or loaded the player."
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
        facts["recovered"] = f"{counted(len(summary.recovered), 'session')} of a recorder that was killed"
    if summary.games_dropped:
        facts["dropped"] = dropped_words(summary.games_dropped)
    shown = summary.sessions[-_SESSIONS_SHOWN:]
    names = [f"  {printable(path.rpartition('/')[2])}" for path in shown]
    if len(shown) < len(summary.sessions):
        names.insert(0, f"  ... {len(summary.sessions) - len(shown)} more")
    last = near(summary.sessions[-1] if summary.sessions else summary.out_dir)
    command, python = runnable("tape2048", sys.argv[0]), runnable("python", sys.executable)
    labels = f"from tape2048 import Session; print(Session.open({last!r}).labels().mean(axis=0))"
    replay = " --replay" if summary.model_share is None else ""  # refused if it would run a user's code
    following = (
        "\nNext:\n"
        f"  {command} show {shlex.quote(last)}\n"
        f"  {command} validate {shlex.quote(near(summary.out_dir))}{replay}\n"
        f"  {python} -c {double_quoted(labels)}"
    )
    return [columns(facts), "\n".join(names), following]
