"""Phases: parts of games, by steps, by a fraction of the steps, by rows left, or by empty cells."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray


_STEPS_MAX = 1 << 32  # above every step_idx


class Phase(NamedTuple):
    """A part of each game, by half-open ranges; None is no condition.

    ``fraction`` is of ``step_idx / steps``, ``empties`` of empty cells, and ``rows_left`` of the rows that
    follow in the game.
    """

    steps: tuple[int, int] | None = None
    fraction: tuple[float, float] | None = None
    empties: tuple[int, int] | None = None
    rows_left: tuple[int, int] | None = None

    def __str__(self) -> str:
        ranges = self._asdict().items()
        return ", ".join(f"{bounds[0]} <= {name} < {bounds[1]}" for name, bounds in ranges if bounds)

    def step_ranges(self, steps: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the first step and the end of the part of each run, ``i64[R]`` each, by steps and fraction.

        ``steps`` are the steps of each run. A fraction starts at the smallest s with s >= fraction x steps
        (in float64). ``empties`` and ``rows_left`` are ignored.
        """
        low = np.zeros(len(steps), np.int64)
        high = np.full(len(steps), _STEPS_MAX, np.int64)
        if self.steps is not None:
            low[:], high[:] = self.steps
        if self.fraction is not None:
            first, end = (
                np.ceil(bound * steps.astype(np.float64)).astype(np.int64) for bound in self.fraction
            )
            low, high = np.maximum(low, first), np.minimum(high, end)
        return low, high


#: Whole games.
ALL = Phase()


def make_phase(before: Phase, steps: Any, fraction: Any, empties: Any, rows_left: Any) -> Phase:
    """Return a phase with the given ranges, and the others of ``before``; raise ValueError if invalid."""
    limits: Any = {
        "steps": (steps, _STEPS_MAX), "fraction": (fraction, 1.0), "empties": (empties, 17),
        "rows_left": (rows_left, _STEPS_MAX),
    }  # fmt: skip
    ranges: dict[str, Any] = {}
    for name, (value, most) in limits.items():
        if value is None:
            continue
        try:
            low, high = value
            number = operator.index if isinstance(most, int) else float
            low, high = number(0 if low is None else low), number(most if high is None else high)
            valid = 0 <= low < high <= most
        except (TypeError, ValueError):
            valid = False
        if not valid:
            kind = "whole numbers " if isinstance(most, int) else ""
            raise ValueError(f"{name}={value!r}; expected {kind}(first, end) with 0 <= first < end <= {most}")
        ranges[name] = (low, high)
    return before._replace(**ranges)
