"""Nodes of a fleet against recorders alone, and a store that is away; toy sizes in the suite."""

from typing import Any

import pytest

from . import fleet
from .recording import memory_dir, warm_memory


@pytest.mark.slow
@pytest.mark.benchmark(group="fleet")
def test_nodes_of_a_fleet(measure: Any, rounds: int, full: bool) -> None:
    with memory_dir() as directory:
        if full:
            warm_memory(directory)
        player = fleet.PLAYERS[0] if full else "random"
        how = {"rounds": rounds, "seconds": 20.0 if full else 0.5, "nodes": 2 if full else 1}
        found = measure(fleet.overhead_figures, player, directory=directory, **how)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.slow
@pytest.mark.benchmark(group="fleet")
def test_a_store_that_is_away(measure: Any, full: bool) -> None:
    with memory_dir() as directory:
        how: dict[str, Any] = {"seconds": 6.0, "rotate_steps": 200_000, "spool_max_mb": 3}
        if full:
            how = {"seconds": 600.0, "rotate_steps": 20_000_000, "spool_max_mb": 200}
        found = measure(fleet.outage_figures, directory=directory, **how)
    largest, paused, again = found
    # At toy size the games in play alone may pass the limit: the test of a full spool holds it to its size.
    assert largest.value > 0
    assert paused.value > 0
    assert again.value > 0
