"""Views of long jobs on standard error: a panel or a bar on a terminal, lines of a log elsewhere."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
import time
from typing import TYPE_CHECKING, Generic, Self, TypeVar

from tape2048_tools.terminal.display import number
from tape2048_tools.views.live import LiveView
from tape2048_tools.views.log import LogView
from tape2048_tools.views.progress import Progress, View

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

#: Default of the seconds between two lines of progress in a log.
LOG_INTERVAL_S = 30.0

P = TypeVar("P")


def open_view(
    title: str = "",
    interval_s: float = LOG_INTERVAL_S,
    *,
    level: str = "info",
    form: str = "text",
    quiet: bool = False,
) -> View:
    """Return the view that suits standard error; a context.

    Args:
        title: title of the panel.
        interval_s: seconds between two lines of progress in the log.
        level: the least important level that is logged.
        form: form of the log's lines: ``text`` or ``json``.
        quiet: show errors only.
    """
    if quiet:
        return LogView(math.inf, level="error", form=form)
    if sys.stderr.isatty() and os.environ.get("TERM") != "dumb":
        return LiveView(title)
    return LogView(interval_s, level=level, form=form)


class JobView(Generic[P]):
    """A view of one kind of job, to which the job reports its own kind of progress.

    Args:
        view: see :func:`open_view`.
        describe: turns the job's progress into the one that views show.
    """

    def __init__(self, view: View, describe: Callable[[P], Progress]) -> None:
        self.view = view
        self.describe = describe

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.view.__exit__()

    def event(self, message: str) -> None:
        """Show an event."""
        self.view.event(message)

    def progress(self, progress: P) -> None:
        """Show the progress if it is time."""
        self.view.show(lambda: self.describe(progress))


@contextlib.contextmanager
def stages_bar(*, unit: str = "", quiet: bool = False) -> Iterator[Callable[[str, int, int], None] | None]:
    """Yield a callback for a stage's name, the amount done and the total; None with ``quiet``.

    Only these calls draw: no thread runs beside work that is timed. With a ``unit`` the bar shows the rate
    since the first call of a stage, which may start above 0.
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
    """Yield a callback for the amount done and the total; None with ``quiet``. See :func:`stages_bar`."""
    with stages_bar(unit=unit, quiet=quiet) as update:
        yield None if update is None else functools.partial(update, label)
