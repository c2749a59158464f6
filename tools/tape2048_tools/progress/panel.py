"""Progress of long jobs on standard error: a panel or a bar on a terminal, lines of a log elsewhere."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Self

import msgspec

from tape2048.base.text import printable
from tape2048_tools.terminal.display import duration, number, rate, share, spark
from tape2048_tools.terminal.output import cell, drop_unwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from rich.console import Console, RenderableType
    from rich.text import Text

    from tape2048_recorder.status.status_report import Level

_SHORT_FROM = 100_000  # whole numbers below this are shown in full

#: Default interval of progress lines in a log.
LOG_INTERVAL_S = 30.0

#: Priorities of syslog. The journal expects them at the start of a line: sd-daemon(3).
_PRIORITIES: dict[str, int] = {"error": 3, "warning": 4, "info": 6}

_STYLES = {"info": "", "warning": "yellow", "error": "bold red"}
_SPARK_WIDTH = 48
_BESIDE = 14  # width of a fact's name and spaces
_PANEL_WIDTH = 88
_BAR_WIDTH = 24
_DRAW_INTERVAL_S = 0.4
#: Shorter jobs show nothing: hundreds of small sessions would only flicker.
_DRAW_AFTER_S = 0.3


class Progress(NamedTuple):
    """A job's progress at one moment.

    Attributes:
        what: name of the amount (``session``), or of the whole job if it has no ``state``.
        done: amount done.
        of: total amount; None if unknown.
        unit: unit of both amounts (``rows``); if it is empty, panels show the share.
        state: word for the job's current phase (``recording``); empty for a bar.
        rate: speed, and related facts (``1.5M steps/s``).
        elapsed_s: seconds since the start.
        left_s: estimated seconds to the end.
        facts: further facts by name, each as a list of words.
        trend: name and value of the fact that panels draw as a curve.
        warning: why the job is paused.
    """

    what: str
    done: float
    of: float | None
    unit: str = ""
    state: str = ""
    rate: Sequence[str] = ()
    elapsed_s: float | None = None
    left_s: float | None = None
    facts: Mapping[str, Sequence[str]] = {}
    trend: tuple[str, float] | None = None
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
    def pace(self) -> list[str]:
        """The speed and the times."""
        elapsed = [] if self.elapsed_s is None else [duration(self.elapsed_s)]
        return [*self.rate, *elapsed, *([] if self.left_s is None else [f"{duration(self.left_s)} left"])]


class ProgressPanel:
    """A context that shows a job's events, and its progress at intervals."""

    def __init__(
        self, interval_s: float, first_s: float, describe: Callable[[Any], Progress] = lambda made: made
    ) -> None:
        self._interval_s = interval_s
        self._next = time.monotonic() + first_s
        self.describe = describe

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        drop_unwritten(sys.stderr)

    def change(self, interval_s: float, level: str) -> None:
        """Apply the settings of a log."""

    def event(self, message: str, level: Level = "info") -> None:
        """Show an event."""
        raise NotImplementedError

    def progress(self, progress: Any) -> None:
        """Show the job's progress if the interval has passed."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval_s
            self._show(self.describe(progress))

    def _show(self, progress: Progress) -> None:
        raise NotImplementedError


def open_panel(
    title: str = "",
    interval_s: float = LOG_INTERVAL_S,
    *,
    level: str = "info",
    form: str = "text",
    quiet: bool = False,
    **how: Callable[[Any], Progress],
) -> ProgressPanel:
    """Return the panel that suits standard error."""
    if quiet:
        return LogPanel(math.inf, level="error", form=form, **how)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return TerminalPanel(title, **how)
    return LogPanel(interval_s, level=level, form=form, **how)


@contextlib.contextmanager
def stages_bar(*, unit: str = "", quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a callback for a stage's name, the amount done and the total; None with ``quiet``.

    These calls draw the bar, without a thread, which would disturb timed work. With a ``unit``, the bar shows
    the rate since the first call of a stage, which can start above 0.
    """
    if quiet:
        yield None
        return
    began: dict[str, tuple[float, int]] = {}
    with open_panel() as panel:

        def update(stage: str, done: int, total: int) -> None:
            now = time.monotonic()
            begin, before = began.setdefault(stage, (now, done))
            speed = (done - before) / max(now - begin, 1e-9)
            left_s = (total - done) / speed if speed else None
            shown = (f"{number(speed)} {unit}/s",) if unit and speed else ()
            panel.progress(Progress(stage, done, total, unit, rate=shown, left_s=left_s))

        yield update


@contextlib.contextmanager
def progress_bar(
    label: str, *, unit: str = "", quiet: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """Yield a callback for the amount done and the total; None with ``quiet``. See :func:`stages_bar`."""
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


class LogPanel(ProgressPanel):
    """A log with a line for each event, and a line of progress every ``interval_s``."""

    def __init__(
        self, interval_s: float, *, level: str = "info", form: str = "text", **how: Callable[[Any], Progress]
    ) -> None:
        super().__init__(interval_s, interval_s, **how)
        self._level = level
        self._form = form
        self._journal = stderr_is_journal(os.environ)

    def change(self, interval_s: float, level: str) -> None:
        """Change the interval and the level."""
        self._interval_s, self._level = interval_s, level
        self._next = min(self._next, time.monotonic() + interval_s)

    def event(self, message: str, level: Level = "info") -> None:
        """Write one line; drop it if standard error fails."""
        if _PRIORITIES[level] <= _PRIORITIES[self._level]:
            with contextlib.suppress(OSError):
                sys.stderr.write(f"{log_line(level, message, form=self._form, journal=self._journal)}\n")
                sys.stderr.flush()

    def _show(self, progress: Progress) -> None:
        facts = [f"{name} {', '.join(words)}".lstrip() for name, words in progress.facts.items()]
        done = progress.amount if not progress.state else f"{progress.what} {progress.amount}"
        words = [done, *progress.pace, *facts, *filter(None, [progress.warning])]
        self.event(f"{progress.state or progress.what}: {', '.join(words)}")


class Display:
    """A context manager for lines on a terminal, which the next lines replace.

    A terminal wraps long lines when it becomes narrower. Therefore, lines have no frame and no trailing
    spaces, and the additional rows of wrapped lines are erased before the next display.
    """

    def __init__(self, console: Console, *, transient: bool = True) -> None:
        from rich.live import Live

        self.console = console
        self._widths: list[int] = []  # of the lines on the terminal
        self._live = Live(console=console, auto_refresh=False, transient=transient, vertical_overflow="crop")

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._erase_wrapped()
        self._live.stop()

    def show(self, drawn: RenderableType) -> None:
        """Replace the lines."""
        from rich.console import Group
        from rich.text import Text

        self._erase_wrapped()
        rendered = self.console.render_lines(drawn, pad=False)[: self.console.height]
        lines = [Text(no_wrap=True, overflow="crop") for _ in rendered]
        for line, parts in zip(lines, rendered, strict=True):
            for part in parts:
                line.append(part.text, part.style)
            line.rstrip()
        self._live.start()
        self._live.update(Group(*lines), refresh=True)
        self._widths = [line.cell_len for line in lines]

    def print(self, text: Text) -> None:
        """Print above the lines."""
        self._erase_wrapped()
        self.console.print(text)

    def _erase_wrapped(self) -> None:
        from rich.control import Control
        from rich.segment import ControlType

        width = self.console.width
        rows = sum(max(line - 1, 0) // width for line in self._widths)
        if rows:
            up = ((ControlType.ERASE_IN_LINE, 2), (ControlType.CURSOR_UP, 1))
            self.console.control(Control(*up * rows))
        self._widths = [min(line, width) for line in self._widths]


class TerminalPanel(ProgressPanel):
    """A panel for a job with a state, or one line with a bar for another job. Events scroll above it."""

    def __init__(self, title: str = "", **how: Callable[[Any], Progress]) -> None:
        from rich.console import Console

        super().__init__(_DRAW_INTERVAL_S, _DRAW_AFTER_S, **how)
        self._title = title
        self._trend: list[float] = []
        self._console: Console = Console(stderr=True, highlight=False)
        self._display = Display(self._console)

    def __exit__(self, *_: object) -> None:
        with contextlib.suppress(OSError):
            self._display.__exit__()
        super().__exit__()

    def event(self, message: str, level: Level = "info") -> None:
        """Print a line above the panel."""
        with self._dropping_unwritten():
            self._display.print(cell(message, _STYLES[level]))

    def _show(self, progress: Progress) -> None:
        with self._dropping_unwritten():
            self._display.show(self.draw(progress))

    @contextlib.contextmanager
    def _dropping_unwritten(self) -> Iterator[None]:
        """Drop output that the terminal did not accept: rich would keep it, and write it again every time."""
        try:
            yield
        except OSError:
            self._console.quiet = True
            self._console.print()
            self._console.quiet = False

    def draw(self, progress: Progress) -> RenderableType:
        """Return the display of one moment."""
        from rich.columns import Columns
        from rich.console import Group
        from rich.padding import Padding
        from rich.progress_bar import ProgressBar
        from rich.table import Table
        from rich.text import Text

        of = progress.of or None
        bar = ProgressBar(total=of, completed=min(progress.done, of or math.inf), width=_BAR_WIDTH)
        done = Table.grid(padding=(0, 1))
        if not progress.state:
            done.add_row(cell(progress.what), bar, progress.amount, "  ".join(progress.pace))
            return done
        done.add_row(bar, progress.amount)
        shown = Table.grid(padding=(0, 2))
        shown.add_column(style="dim")
        shown.add_column()
        style = "bold green" if progress.warning is None else "bold yellow"
        pace = Columns([cell(text, "bold") for text in progress.pace], padding=(0, 3))
        shown.add_row(Text(progress.state, style), pace)
        shown.add_row(progress.what, done)
        name_of_trend, value = progress.trend or ("", math.nan)
        if math.isfinite(value):
            self._trend.append(value)
        for name, words in progress.facts.items():
            facts = list(words)
            if name == name_of_trend:
                room = min(self._console.width, _PANEL_WIDTH) - _BESIDE - sum(len(word) + 3 for word in facts)
                facts.append(spark(self._trend, max(1, min(_SPARK_WIDTH, room))))
            shown.add_row(name, Columns(map(cell, facts), padding=(0, 3)))
        if progress.warning is not None:
            shown.add_row("", cell(progress.warning, "yellow"))
        return Group(Text(printable(self._title), "bold"), Padding(shown, (0, 0, 0, 2)))
