"""Where the time of a training's steps goes."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")


class Clock:
    """Where the time of the steps goes: since the last line of metrics, without validations.

    The wait for the first batch, in which kernels are compiled, is no step's.

    Args:
        rows: of a step, all ranks together.
        before_s: spent by the starts before.
    """

    def __init__(self, rows: int, before_s: float) -> None:
        self._rows = rows
        self._before_s = before_s
        self._start = time.perf_counter()
        self._warm = False
        self._last: tuple[float, float] | None = None
        self._begin()

    def _begin(self) -> None:
        self._since = time.perf_counter()
        self._wait_s = 0.0
        self._steps = 0

    def lap(self) -> None:
        """A line of metrics is due: rates are those up to here, until the next one."""
        self._last = self._rates()
        self._begin()

    def waited_for(self, batches: Iterator[T]) -> Generator[T, None, None]:
        """Hand the batches on, and time the waits."""
        begin = time.perf_counter()
        for batch in batches:
            self._wait_s += time.perf_counter() - begin
            if not self._warm:
                self._warm = True
                self._begin()
            self._steps += 1
            yield batch
            begin = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Leave the time of the block out: it is no step's."""
        begin = time.perf_counter()
        yield
        self._since += time.perf_counter() - begin

    @property
    def elapsed_s(self) -> float:
        """Of this start, and those before."""
        return self._before_s + time.perf_counter() - self._start

    @property
    def rates(self) -> tuple[float, float]:
        """Rows a second, and the share of the time that went into waiting for batches."""
        return self._last or self._rates()

    def _rates(self) -> tuple[float, float]:
        stepping_s = max(1e-9, time.perf_counter() - self._since)
        return self._steps * self._rows / stepping_s, min(1.0, self._wait_s / stepping_s)
