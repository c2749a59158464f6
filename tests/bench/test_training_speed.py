"""Training: moves and boards a second, and what a second thread brings."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from . import ntuple_critic, training

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


@pytest.mark.benchmark(group="training")
def test_an_ntuple_critic(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool) -> None:
    how = {"games": 2000, "judged": 1_000_000} if full else {"games": 4, "judged": 1000}
    found = benchmark.pedantic(ntuple_critic.critic_figures, kwargs={**how, "rounds": rounds}, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
