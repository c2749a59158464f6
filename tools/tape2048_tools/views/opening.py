"""Views of long jobs on standard error: a panel or a bar on a terminal, lines of a log elsewhere."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Self

from tape2048_tools.terminal.display import number
from tape2048_tools.views.live import LiveView
from tape2048_tools.views.log import LogView
from tape2048_tools.views.progress import Progress

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Seconds from one line of a log to the next, where no setting says it.
LOG_INTERVAL_S = 30.0

View = LiveView | LogView


def open_view(
    title: str = "",
    interval_s: float = LOG_INTERVAL_S,
    *,
    level: str = "info",
    form: str = "text",
    quiet: bool = False,
) -> View:
    """The view for where standard error goes; a context.

    Args:
        title: stands above the panel.
        interval_s: seconds from one line of the log to the next.
        level: the least important level that a log has.
        form: of the log's lines: ``text`` or ``json``.
        quiet: show errors alone.
    """
    if quiet:
        return LogView(math.inf, level="error", form=form)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return LiveView(title)
    return LogView(interval_s, level=level, form=form)


class JobView:
    """Where a job's words go; each job adds what makes a :class:`Progress` of its own events.

    Args:
        view: see :func:`open_view`.
    """

    def __init__(self, view: View) -> None:
        self.view = view

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.view.__exit__()

    def event(self, message: str) -> None:
        """Something happened once that a person should know."""
        self.view.event(message)


@contextlib.contextmanager
def stages_bar(*, unit: str = "", quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield what is to be called with a stage's name, the amount done and the whole; None with ``quiet``.

    Nothing is drawn but in these calls: no thread is beside work that is timed. With a ``unit``, its rate is
    shown, from the first call of a stage on, which says what was done before.
    """
    if quiet:
        yield None
        return
    began: dict[str, tuple[float, int]] = {}
    with open_view() as view:

        def update(stage: str, done: int, total: int) -> None:
            now = time.monotonic()
            begin, before = began.setdefault(stage, (now, done))
            rate = (done - before) / max(now - begin, 1e-9)
            left_s = (total - done) / rate if rate else None
            shown = (f"{number(rate)} {unit}/s",) if unit and rate else ()
            view.show(lambda: Progress(stage, done, total, unit, rate=shown, left_s=left_s))

        yield update


@contextlib.contextmanager
def progress_bar(
    label: str, *, unit: str = "", quiet: bool = False
) -> Iterator[Callable[[int, int], None] | None]:
    """As :func:`stages_bar`, for work of one stage: yields what takes the amount done and the whole."""
    with stages_bar(unit=unit, quiet=quiet) as update:
        yield None if update is None else functools.partial(update, label)
