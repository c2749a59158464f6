"""The progress of a long job, and the base of the views that show it on standard error."""

from __future__ import annotations

import sys
import time
from typing import TYPE_CHECKING, NamedTuple, Self

from tape2048_tools.terminal.display import duration, number, rate, share
from tape2048_tools.terminal.output import drop_unwritten

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from tape2048_recorder.status.report import Level

#: Whole numbers below this are shown in full.
_SHORT_FROM = 100_000


class Progress(NamedTuple):
    """A job's progress at one moment.

    Attributes:
        what: the name of the amount (``session``), or of the whole job if it has no ``state``.
        done: the amount done.
        of: the total amount; None if unknown.
        unit: unit of both (``rows``); empty: views show the share.
        state: a word for the job's current phase (``recording``).
        rate: the speed, and related facts (``1.5M steps/s``).
        elapsed_s: seconds since the start.
        left_s: estimated seconds to the end.
        facts: further facts by name.
        trend: name and value of the fact that views draw as a curve.
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
        of = "" if self.of is None else f" of {_short(self.of)}"
        return f"{_short(self.done)}{of} {self.unit}"

    @property
    def pace(self) -> list[str]:
        """The speed and the times."""
        elapsed = [] if self.elapsed_s is None else [duration(self.elapsed_s)]
        left = [] if self.left_s is None else [f"{duration(self.left_s)} left"]
        return [*self.rate, *elapsed, *left]


def _short(count: float) -> str:
    return number(count) if count < _SHORT_FROM else rate(count)


class View:
    """A context that shows a job's events, and its progress at intervals.

    Args:
        interval_s: seconds between two displays of the progress.
        first_s: seconds before the first one.
    """

    def __init__(self, interval_s: float, first_s: float) -> None:
        self._interval_s = interval_s
        self._next = time.monotonic() + first_s

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        drop_unwritten(sys.stderr)

    def change(self, interval_s: float, level: str) -> None:
        """Apply a log's settings; a panel has none."""

    def event(self, message: str, level: Level = "info") -> None:
        """Show an event."""
        raise NotImplementedError

    def show(self, make: Callable[[], Progress]) -> None:
        """Make and show the progress if the interval has passed."""
        now = time.monotonic()
        if now >= self._next:
            self._next = now + self._interval_s
            self._show(make())

    def _show(self, progress: Progress) -> None:
        raise NotImplementedError
