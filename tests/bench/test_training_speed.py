"""Training: moves and boards a second, and what a second thread brings."""

from typing import Any

import pytest

from . import ntuple_critic, training


@pytest.mark.benchmark(group="training")
def test_one_thread_and_two(measure: Any, rounds: int, full: bool) -> None:
    how: dict[str, Any] = {"moves": 150_000_000, "games": 1000}
    if not full:  # one stage, as in other tests: no other kernels have to be compiled
        how = {"moves": 20_000, "games": 2, "stages": "128"}
    found = measure(training.training_figures, **how, rounds=min(rounds, 4))
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="training")
def test_an_ntuple_critic(measure: Any, rounds: int, full: bool) -> None:
    how = {"games": 2000, "judged": 1_000_000} if full else {"games": 4, "judged": 1000}
    found = measure(ntuple_critic.critic_figures, **how, rounds=rounds)
    assert all(figure.value > 0 for figure in found)
