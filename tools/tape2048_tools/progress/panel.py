"""Progress of long jobs on standard error: a panel or a bar on a terminal, lines of a log elsewhere."""

from __future__ import annotations

import contextlib
import functools
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from tape2048.base.text import printable
from tape2048_tools.terminal.display import duration, number, rate, share
from tape2048_tools.terminal.output import cell, drop_unwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from rich.table import Table

    from tape2048.files.training_directory import TrainingProgress
    from tape2048_recorder.status.status_report import Level

#: The end of a training that a signal stopped.
STOPPED = "stopped. The same command resumes it"

_SHORT_FROM = 100_000  # whole numbers below this are shown in full

#: Priorities of syslog. The journal expects them at the start of a line: sd-daemon(3).
_PRIORITIES: dict[str, int] = {"error": 3, "warning": 4, "info": 6}

_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
_LOG_INTERVAL_S = 30.0
_DRAW_INTERVAL_S = 0.4
#: Shorter jobs show nothing: hundreds of small sessions would only flicker.
_DRAW_AFTER_S = 0.3


class Progress(NamedTuple):
    """A job's progress at one moment.

    Attributes:
        what: name of the amount (``session``), or of the whole job if it has no ``state``.
        done: amount done.
        of: total amount; None if unknown.
        unit: unit of both amounts (``rows``); if it is empty, the share is shown.
        state: word for the job's current phase (``recording``); empty for a bar.
        rate: speed, and related facts (``1.5M steps/s``).
        elapsed_s: seconds since the start.
        left_s: estimated seconds to the end.
        facts: further facts by name.
        warning: why the job is paused.
    """

    what: str
    done: float
    of: float | None
    unit: str = ""
    state: str = ""
    rate: str = ""
    elapsed_s: float | None = None
    left_s: float | None = None
    facts: Mapping[str, str] = {}
    warning: str | None = None

    @property
    def amount(self) -> str:
        """The amount done: ``4M of 10M rows``, ``120 of 1,000 steps`` or ``40%``."""
        if not self.unit:
            return share(min(self.done / max(self.of or 0, 1), 1))
        shown = number if max(self.done, self.of or 0) < _SHORT_FROM else rate
        done, of = shown(self.done), shown(self.of or 0)
        return f"{done} {self.unit}" if self.of is None else f"{done} of {of} {self.unit}"

    @property
    def pace(self) -> str:
        elapsed = "" if self.elapsed_s is None else duration(self.elapsed_s)
        left = "" if self.left_s is None else f"{duration(self.left_s)} left"
        return ", ".join(filter(None, [self.rate, elapsed, left]))

    @property
    def line(self) -> str:
        """The line of a log."""
        done = f"{self.what} {self.amount}" if self.state else self.amount
        facts = [f"{name} {words}" for name, words in self.facts.items()]
        words = filter(None, [done, self.pace, *facts, self.warning])
        return f"{self.state or self.what}: {', '.join(words)}"

    def table(self) -> Table:
        """Return the panel of a job with a state, or the bar of another job."""
        from rich.progress_bar import ProgressBar
        from rich.table import Table

        bar = ProgressBar(total=self.of or None, completed=min(self.done, self.of or self.done), width=24)
        done, shown = Table.grid(padding=(0, 1)), Table.grid(padding=(0, 2))
        if not self.state:
            done.add_row(cell(self.what), bar, self.amount, self.pace)
            return done
        done.add_row(bar, self.amount)
        style = "bold green" if self.warning is None else "bold yellow"
        shown.add_row(cell(f"  {self.state}", style), cell(self.pace, "bold"))
        shown.add_row(cell(f"  {self.what}", "dim"), done)
        for name, words in self.facts.items():
            shown.add_row(cell(f"  {name}", "dim"), cell(words))
        if self.warning is not None:
            shown.add_row("", cell(self.warning, "yellow"))
        return shown


class Panel:
    """A context that shows a job's events, and its progress at intervals.

    Attributes:
        describe: turns what :meth:`progress` receives into a :class:`Progress`.
    """

    def __init__(
        self,
        title: str = "",
        describe: Callable[[Any], Progress] = lambda made: made,
        *,
        interval_s: float = _LOG_INTERVAL_S,
        level: str = "info",
        form: str = "text",
        quiet: bool = False,
    ) -> None:
        self.describe = describe
        self._title = title
        self._interval_s = interval_s
        self._level, self._form, self._quiet = "error" if quiet else level, form, quiet
        self._journal = stderr_is_journal(os.environ)
        self._live = None
        if not quiet and sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
            from rich.console import Console
            from rich.live import Live

            console = Console(stderr=True, highlight=False)
            # Not by a thread of rich, which would disturb timed work.
            self._live = Live(console=console, auto_refresh=False, transient=True, vertical_overflow="crop")
            self._interval_s, interval_s = _DRAW_INTERVAL_S, _DRAW_AFTER_S
        self._next = time.monotonic() + interval_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._live is not None:
            with contextlib.suppress(OSError):
                self._live.stop()
        drop_unwritten(sys.stderr)

    def change(self, interval_s: float, level: str) -> None:
        """Change the interval and the level of a log."""
        if self._live is None:
            self._interval_s, self._level = interval_s, level
            self._next = min(self._next, time.monotonic() + interval_s)

    def event(self, message: str, level: Level = "info") -> None:
        """Show an event: a line of the log, or a line above the panel."""
        if self._live is not None:
            with self._dropping_unwritten():
                self._live.console.print(cell(message, _STYLES[level]))
        elif _PRIORITIES[level] <= _PRIORITIES[self._level]:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{log_line(level, message, form=self._form, journal=self._journal)}\n")
                sys.stderr.flush()

    def progress(self, progress: Any) -> None:
        """Show the job's progress if the interval has passed."""
        now = time.monotonic()
        if self._quiet or now < self._next:
            return
        self._next = now + self._interval_s
        described = self.describe(progress)
        if self._live is None:
            self.event(described.line)
            return
        from rich.console import Group

        title = [cell(self._title, "bold")] if self._title else []
        with self._dropping_unwritten():
            self._live.start()
            self._live.update(Group(*title, described.table()), refresh=True)

    @contextlib.contextmanager
    def _dropping_unwritten(self) -> Iterator[None]:
        """Drop output that the terminal did not accept: rich would keep it, and write it again every time."""
        try:
            yield
        except OSError:
            assert self._live is not None
            self._live.console.quiet = True
            self._live.console.print()
            self._live.console.quiet = False


def training_panel(
    title: str, details: Callable[[dict[str, Any]], dict[str, Any]], *, quiet: bool = False
) -> Panel:
    """Open the panel of a training. ``details`` turns its figures into attributes of :class:`Progress`."""

    def describe(made: TrainingProgress) -> Progress:
        left_s = max(made.of - made.done, 0) / made.per_s if made.per_s else None
        shown = Progress("learned", made.done, made.of, made.unit, "training", "", made.elapsed_s, left_s)
        return shown._replace(**details(made.figures))

    return Panel(title, describe, quiet=quiet)


@contextlib.contextmanager
def stages_bar(*, unit: str = "", quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a callback for a stage's name, the amount done and the total; None with ``quiet``.

    With a ``unit``, the bar shows the rate since the first call of a stage, which can start above 0.
    """
    if quiet:
        yield None
        return
    began: dict[str, tuple[float, int]] = {}
    with Panel() as panel:

        def update(stage: str, done: int, total: int) -> None:
            now = time.monotonic()
            begin, before = began.setdefault(stage, (now, done))
            speed = (done - before) / max(now - begin, 1e-9)
            left_s = (total - done) / speed if speed else None
            shown = f"{number(speed)} {unit}/s" if unit and speed else ""
            panel.progress(Progress(stage, done, total, unit, rate=shown, left_s=left_s))

        yield update


@contextlib.contextmanager
def progress_bar(
    label: str, *, unit: str = "", quiet: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    with stages_bar(unit=unit, quiet=quiet) as update:
        yield None if update is None else functools.partial(update, label)


def stderr_is_journal(env: Mapping[str, str]) -> bool:
    """Return whether standard error is the stream that systemd opened to the journal (``JOURNAL_STREAM``)."""
    with contextlib.suppress(OSError, ValueError):
        stat = os.fstat(sys.stderr.fileno())
        return env.get("JOURNAL_STREAM") == f"{stat.st_dev}:{stat.st_ino}"
    return False


def log_line(level: Level, message: str, *, form: str, journal: bool) -> str:
    """Return one line of a log, ``text`` or ``json``. The journal adds the time and reads the priority."""
    now = datetime.now(UTC)
    text = printable(message)
    prefix = f"<{_PRIORITIES[level]}>" if journal else ""
    if form == "json":
        fields = {"time": now.isoformat(timespec="milliseconds"), "level": level, "message": text}
        return prefix + msgspec.json.encode(fields).decode()
    return prefix + text if journal else f"{now.strftime('%Y-%m-%dT%H:%M:%SZ')} {level} {text}"
