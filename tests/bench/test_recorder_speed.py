"""Whole recorders: recorded against unrecorded play, niced, how soon it starts, what it holds in memory.

Toy sizes in the suite: one short round of each, to see that the measurements work.
"""

import os
from pathlib import Path
from typing import Any

import pytest

from . import costs, memory, recording, start
from .figures import Figure


@pytest.mark.slow
@pytest.mark.benchmark(group="recorded against unrecorded")
@pytest.mark.parametrize("player", recording.TARGETS)
def test_recorded_play(player: str, measure: Any, rounds: int, full: bool, directory: Path) -> None:
    if not full and player != "random":
        pytest.skip("one player will do to see that it works")
    found = measure(
        recording.ratio_figures, player=player, rounds=rounds, seconds=8 if full else 0.5,
        workers=2 if full else 1, directory=directory,
    )  # fmt: skip
    assert all(figure.value > 0 for figure in found[:3])  # what publishing costs is too little to see here


@pytest.mark.slow
@pytest.mark.benchmark(group="niced")
def test_niced_to_one_core(measure: Any, rounds: int, full: bool, directory: Path) -> None:
    found = measure(
        recording.niced_figures,
        rounds=rounds,
        seconds=8 if full else 0.5,
        core=min(os.sched_getaffinity(0)),
        directory=directory,
        nice=19 if full else 0,  # whoever runs the suite beside other work would wait for minutes
    )
    assert found[0].value > 0


@pytest.mark.benchmark(group="costs of a row")
@pytest.mark.parametrize("player", ["random", "expectimax:depth=1"])
def test_costs_of_a_row(player: str, measure: Any, rounds: int, full: bool, directory: Path) -> None:
    found = measure(costs.cost_figures, player=player, rounds=rounds, directory=directory, toy=not full)
    assert {"play", "checksum", "store alone"} <= {figure.name for figure in found}


@pytest.mark.slow
@pytest.mark.benchmark(group="start")
def test_first_recorded_step(measure: Any, rounds: int, full: bool, directory: Path) -> None:
    found = measure(
        start.start_figures, rounds=rounds, cold_rounds=int(full), directory=directory,
        players=start.PLAYERS if full else ("random",),
    )  # fmt: skip
    assert all(figure.value > 0 for figure in found)


@pytest.mark.slow
@pytest.mark.benchmark(group="memory")
def test_memory(measure: Any, full: bool, directory: Path) -> None:
    def short_run(player: str) -> list[Figure]:
        with memory.recorder(directory / "out", player, 2 if full else 1) as child:
            if full:
                samples = memory.watch(child, samples=12, interval_s=10, looks=10)
            else:
                samples = memory.watch(child, samples=3, interval_s=0.2)
        return memory.memory_figures(samples, player)

    found = measure(short_run, player="random")
    daemon = ["daemon, highest", "daemon, growth", "daemon, more descriptors"]
    assert [figure.name for figure in found[:4]] == [*daemon, "worker 0, highest"]
    if full:
        return
    # The bound holds from the first second on; a leak of the grossest kind shows even here.
    assert all(figure.met for figure in found if figure.name.endswith("highest"))
