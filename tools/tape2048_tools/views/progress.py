"""How a long job stands, whatever it does: what each job makes of its own events, and what views show."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tape2048_tools.terminal.display import duration, number, rate, share

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

#: Whole numbers below this are shown in full.
_SHORT_FROM = 100_000


class Progress(NamedTuple):
    """How a job stands.

    Attributes:
        what: the name of the amount (``session``), or of the whole job where it has no ``state``.
        done: the amount that is done.
        of: the whole amount; None where nobody knows.
        unit: of both (``rows``); empty: a share is shown.
        state: a word for what the job does now (``recording``).
        rate: the speed, and what belongs to it (``1.5M steps/s``); none yet: empty.
        elapsed_s: seconds since it began.
        left_s: seconds to go.
        facts: more of it, each with a name.
        trend: the name of a fact, and its value: a curve of it is drawn.
        warning: why it does not go on.
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
        """What is done of the whole: ``4M of 10M rows``, ``120 of 1,000 steps`` or ``40%``."""
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
