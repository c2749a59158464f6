"""What ``tape2048 record`` shows: a live panel on a terminal, log lines elsewhere, a summary at the end.

Both views go to standard error; standard output gets the summary alone.
"""

from __future__ import annotations

import contextlib
import os
import shlex
import shutil
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Self

from tape2048._text import counted
from tape2048_tools.display import number, share, size
from tape2048_tools.log_lines import log_line, stderr_is_journal, worth_saying
from tape2048_tools.output import cell, columns, drop_unwritten, printable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.columns import Columns
    from rich.console import Console, RenderableType
    from rich.panel import Panel

    from tape2048_recorder.config_schema import RecorderConfig
    from tape2048_recorder.report import Level, Status, Summary

__all__ = ["LiveView", "LogView", "duration", "open_view", "summary_parts"]

#: Reach rates that are always shown. Hardly any game gets further: that is said where one did.
_TILES_SHOWN = (2048, 4096, 8192, 16384)
_TILE_WHERE_REACHED = 32768
_SESSIONS_SHOWN = 8
_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}


def duration(seconds: float) -> str:
    """``0:42``, ``1:02:03`` or ``3 days 4 h``."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(per_s: float) -> str:
    """``8G``, ``1.42M``, ``40.1k`` or ``312`` a second."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= 0.9995 * factor:  # so that three digits never round to a thousand
            return f"{per_s / factor:.3g}{unit}"
    return f"{per_s:.0f}"


def _shown(reach: dict[int, float]) -> dict[int, float]:
    """The tiles that fit a line, with 32768 only where a game reached it."""
    shown = {tile: reach[tile] for tile in _TILES_SHOWN if tile in reach}
    if reach.get(_TILE_WHERE_REACHED):
        shown[_TILE_WHERE_REACHED] = reach[_TILE_WHERE_REACHED]
    return shown


def reach_text(reach: dict[int, float]) -> str:
    """``2048 92%   4096 54%``, for the tiles that fit a line."""
    return "   ".join(f"{tile} {share(part)}" for tile, part in _shown(reach).items())


def reach_words(reach: Mapping[int, float]) -> str:
    """``2048: 92%, 4096: 54%``, for a line of a log, where nothing else tells tiles from shares."""
    return ", ".join(f"{tile}: {share(part)}" for tile, part in reach.items())


def reach_columns(reach: Mapping[int, float]) -> Columns:
    """``2048 92%   4096 54%``, for a panel: in a narrow one, no tile is parted from its share."""
    from rich.columns import Columns

    return Columns([f"{tile} {share(part)}" for tile, part in reach.items()], padding=(0, 3))


class LogView:
    """One line an event, and one every ``interval_s`` on how things stand."""

    def __init__(self, interval_s: float, *, level: str = "info", form: str = "text") -> None:
        self._interval_s = interval_s
        self._level = level
        self._form = form
        self._journal = stderr_is_journal(os.environ)
        self._next = time.monotonic() + interval_s

    def changed(self, config: RecorderConfig) -> None:
        """Go on with the settings of this configuration that are the log's."""
        self._interval_s, self._level = config.log_interval_s, config.log_level
        self._next = min(self._next, time.monotonic() + self._interval_s)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        drop_unwritten(sys.stderr)

    def event(self, level: Level, message: str) -> None:
        """One line, with time and level."""
        if worth_saying(level, self._level):
            sys.stderr.write(f"{log_line(level, message, form=self._form, journal=self._journal)}\n")
            sys.stderr.flush()

    def status(self, make_status: Callable[[], Status]) -> None:
        """A line, if it is time for one."""
        now = time.monotonic()
        if now < self._next:
            return
        self._next = now + self._interval_s
        status = make_status()
        facts = [
            status.state,
            f"{rate(status.steps_per_s)} steps/s{in_model(status.model_share)}",
            counted(status.games, "game"),
        ]
        if status.mean_score is not None:
            facts.append(f"mean score {number(status.mean_score)}, reach {reach_words(_shown(status.reach))}")
        facts += [
            f"session {number(status.session_rows)}/{number(status.rotate_steps)} rows",
            f"{status.sessions} published",
        ]
        if status.free_bytes is not None:
            facts.append(f"{size(status.free_bytes)} free")
        self.event("info", ", ".join(facts))


class LiveView:
    """A panel that is drawn anew twice a second; events scroll by above it."""

    def __init__(self, config: RecorderConfig) -> None:
        from rich.console import Console
        from rich.live import Live

        from tape2048.formats.session import step_dtype

        self._config = config
        self._bytes_per_step = step_dtype(record_action=config.record_action).itemsize / config.sample_rate
        self._console: Console = Console(stderr=True, highlight=False)
        self._live = Live(console=self._console, auto_refresh=False, transient=True)

    def __enter__(self) -> Self:
        self._live.start()
        return self

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._live.stop()
        drop_unwritten(sys.stderr)

    def changed(self, config: RecorderConfig) -> None:
        """Nothing here depends on what may change."""

    def event(self, level: Level, message: str) -> None:
        """A line above the panel."""
        with self._letting_go():
            self._console.print(cell(message, _STYLES[level]))

    def status(self, make_status: Callable[[], Status]) -> None:
        """Draw the panel."""
        with self._letting_go():
            self._live.update(self.panel(make_status()), refresh=True)

    @contextlib.contextmanager
    def _letting_go(self) -> Iterator[None]:
        """Have rich forget what a terminal did not take; it would keep all of it, and write it each time."""
        try:
            yield
        except OSError:
            self._console.quiet = True
            self._console.print()
            self._console.quiet = False
            raise

    def panel(self, status: Status) -> Panel:
        """The panel for one moment."""
        from rich.panel import Panel
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        facts = Table.grid(padding=(0, 2))
        facts.add_column(style="dim")
        facts.add_column()
        speed = f"{rate(status.steps_per_s)} steps/s{in_model(status.model_share)}"
        state = {"paused": "bold yellow", "recording": "bold green"}.get(status.state, "bold")
        facts.add_row(
            Text(status.state, style=state),
            Text(f"{speed}   {duration(status.elapsed_s)}", style="bold"),
        )
        facts.add_row("games", f"{number(status.games)}   mean score {number(status.mean_score)}")
        facts.add_row("reach", reach_columns(_shown(status.reach)) if status.mean_score is not None else "-")
        session = Table.grid(padding=(0, 1))
        bar = ProgressBar(
            total=status.rotate_steps, completed=min(status.session_rows, status.rotate_steps), width=24
        )
        session.add_row(bar, f"{rate(status.session_rows)} of {rate(status.rotate_steps)} rows")
        facts.add_row("session", session)
        facts.add_row("published", number(status.sessions))
        facts.add_row("disk", self._disk(status))
        if status.state == "paused" and status.why is not None:
            facts.add_row("", cell(status.why, "yellow"))
        tag = printable(self._config.tag)
        workers = f"{status.workers_ready} of {counted(status.workers, 'worker')}"
        return Panel(facts, title=Text(f"tape2048 record: {tag}, {workers}"), title_align="left", width=76)

    def _disk(self, status: Status) -> str:
        if status.free_bytes is None:
            return "-"
        text = f"{size(status.free_bytes)} left in {printable(self._config.out_dir)}"
        bytes_per_s = status.steps_per_s * self._bytes_per_step
        if bytes_per_s > 0:
            text += f" ({duration(status.free_bytes / bytes_per_s)} at this rate)"
        return text


def open_view(config: RecorderConfig) -> LiveView | LogView:
    """The view for where standard error goes."""
    if sys.stderr.isatty():
        return LiveView(config)
    return LogView(config.log_interval_s, level=config.log_level, form=config.log_format)


def near(path: str) -> str:
    """A path from here, where that is the shorter way to say it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def runnable(name: str, path: str) -> str:
    """How to call a program that runs now: by its name if that finds it, else by its path."""
    found = shutil.which(name)
    same = found is not None and Path(found).parent == Path(path).parent
    return name if same or not Path(path).name.startswith(name) else shlex.quote(near(path))


def _double_quoted(text: str) -> str:
    """Text with single quotes in it as one word of a shell's command, readable where it can be."""
    return shlex.quote(text) if any(char in text for char in '"$`\\!') else f'"{text}"'


def in_model(model_share: float | None) -> str:
    """What a batched player has of the workers' time, to follow a rate; nothing without one."""
    return "" if model_share is None else f", {share(model_share)} of the time in the model"


def dropped_words(games: int) -> str:
    """So many games that workers had and that were not recorded, and what these may have been."""
    return f"{counted(games, 'game')} that workers had: not begun, in play, or finished and not yet written"


def summary_parts(summary: Summary) -> list[RenderableType]:
    """What was recorded, where, and what to try next."""
    if not summary.games:
        recovered = f"; {len(summary.recovered)} recovered" if summary.recovered else ""
        said = f"Nothing was recorded ({printable(summary.reason)}){recovered}."
        if summary.first_step_s is None and not summary.reason.startswith(("max_disk_mb", "max_ram_mb")):
            said += (
                " No move was made yet: the first start of a version compiles, for half a minute or so."
                " Start it again, and give it longer."
            )
        return [said]
    steps_per_s = summary.steps / summary.elapsed_s
    facts: dict[str, object] = {
        "ended": summary.reason,
        "games": f"{number(summary.games)} ({counted(summary.steps, 'step')} in "
        f"{duration(summary.elapsed_s)}, {rate(steps_per_s)}/s{in_model(summary.model_share)})",
        "score": f"mean {number(summary.mean_score)}, best {number(summary.score_max)}",
        "reach": reach_text(summary.reach),
        "sessions": f"{len(summary.sessions)} in {near(summary.out_dir)} ({size(summary.bytes)})",
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
    replay = " --replay" if summary.model_share is None else ""  # refused where it would run a user's code
    following = (
        "\nNext:\n"
        f"  {command} show {shlex.quote(last)}\n"
        f"  {command} validate {shlex.quote(near(summary.out_dir))}{replay}\n"
        f"  {python} -c {_double_quoted(labels)}"
    )
    return [columns(facts), "\n".join(names), following]
