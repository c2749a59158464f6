"""Measurement of a training's speed."""

from __future__ import annotations

import contextlib
import time
from typing import TYPE_CHECKING, TypeVar

if TYPE_CHECKING:
    from collections.abc import Generator, Iterator

T = TypeVar("T")


class Clock:
    """Measures the speed of steps between lines of metrics.

    Validations do not count, nor does the wait for the first batch, during which kernels are compiled.

    Args:
        rows: rows of a step, on all ranks.
        before_s: time spent by former starts.
    """

    def __init__(self, rows: int, before_s: float) -> None:
        self._rows = rows
        self._start = time.perf_counter() - before_s
        self._since: float | None = None  # when the current measurement began
        self._wait_s, self._steps = 0.0, 0
        self._last: tuple[float, float] | None = None

    def lap(self) -> None:
        """End a measurement, whose rates are valid until the next one ends."""
        self._last = self._measured()
        self._since, self._wait_s, self._steps = time.perf_counter(), 0.0, 0

    def timed(self, batches: Iterator[T]) -> Generator[T, None, None]:
        """Yield the batches, and measure the waits for them."""
        begin = time.perf_counter()
        for batch in batches:
            now = time.perf_counter()
            if self._since is None:
                self._since = now
            else:
                self._wait_s += now - begin
            self._steps += 1
            yield batch
            begin = time.perf_counter()

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """Ignore the time of the block."""
        begin = time.perf_counter()
        yield
        if self._since is not None:
            self._since += time.perf_counter() - begin

    @property
    def elapsed_s(self) -> float:
        """Time spent by this start and former ones."""
        return time.perf_counter() - self._start

    @property
    def rates(self) -> tuple[float, float]:
        """Rows a second, and the share of the time that was spent waiting for batches."""
        return self._last or self._measured()

    def _measured(self) -> tuple[float, float]:
        now = time.perf_counter()
        stepping_s = max(1e-9, now - (self._since or now))
        return self._steps * self._rows / stepping_s, min(1.0, self._wait_s / stepping_s)
