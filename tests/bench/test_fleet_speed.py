"""Nodes of a fleet against recorders alone, and a store that is away; toy sizes in the suite."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from . import fleet
from .recording import memory_dir, warm_memory

if TYPE_CHECKING:
    from .figures import Figure


@pytest.mark.slow
@pytest.mark.benchmark(group="fleet")
def test_nodes_of_a_fleet(benchmark: Any, figures: list[Figure], rounds: int, full: bool) -> None:
    with memory_dir() as directory:
        if full:
            warm_memory(directory)
        player = fleet.PLAYERS[0] if full else "random"
        how = {"rounds": rounds, "seconds": 20.0 if full else 0.5, "nodes": 2 if full else 1}
        found = benchmark.pedantic(
            fleet.overhead_figures, kwargs={"player": player, "directory": directory, **how}, rounds=1
        )
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.slow
@pytest.mark.benchmark(group="fleet")
def test_a_store_that_is_away(benchmark: Any, figures: list[Figure], full: bool) -> None:
    with memory_dir() as directory:
        how = {"spool_max_mb": 200, "rotate_steps": 20_000_000} if full else {"spool_max_mb": 3}
        found = benchmark.pedantic(
            fleet.outage_figures,
            kwargs={
                "seconds": 600.0 if full else 6.0,
                "rotate_steps": 200_000,
                "directory": directory,
                **how,
            },
            rounds=1,
        )
    figures.extend(found)
    largest, paused, again = found
    assert largest.met, f"{largest.value:.2f} of its limit"
    assert paused.value > 0
    assert again.value > 0
