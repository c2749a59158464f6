"""Steps a second in lanes: without a model, and recorded with a small network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest
from tests.recorder.lanes import batched

from . import lanes, recording

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


@pytest.mark.benchmark(group="lanes")
def test_lanes_without_a_model(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool) -> None:
    how = {"lanes": lanes.LANES if full else 64, "seconds": 4 if full else 0.05}
    found = benchmark.pedantic(lanes.lane_figures, kwargs={**how, "rounds": rounds}, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.slow
@pytest.mark.benchmark(group="lanes, recorded")
def test_a_network_recorded(
    benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool, tmp_path: Path
) -> None:
    """In the suite a player of NumPy stands for the network: loading torch twice would be most of it."""
    how: dict[str, Any] = {"lanes": lanes.NETWORK_LANES, "seconds": 8, "workers": 2}
    player = f"python:{batched.__file__}:hashed"
    if full:
        pytest.importorskip("torch")
        player = lanes.make_network(tmp_path)
    else:
        how = {"lanes": 64, "seconds": 0.1, "workers": 1, "block_rows": 4096}
    with recording.memory_dir() as directory:
        if full:
            recording.warm_memory(directory)
        found = benchmark.pedantic(
            lanes.recorded_figures,
            args=(player,),
            kwargs={**how, "group": lanes.NETWORK, "rounds": rounds, "directory": directory},
            rounds=1,
        )
    figures.extend(found)
    rate, share = (figure.value for figure in found)
    assert rate > 0
    assert 0 < share < 1
