"""Training: moves a second, and what a second thread brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from . import training

if TYPE_CHECKING:
    from collections.abc import Callable

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


@pytest.mark.benchmark(group="training")
def test_one_thread_and_two(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool) -> None:
    how = {"moves": 150_000_000 if full else 20_000, "games": 1000 if full else 2}
    found = benchmark.pedantic(training.training_figures, kwargs={**how, "rounds": min(rounds, 4)}, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
