"""Steps a second in lanes: without a model, and recorded with a small network."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import pytest

from . import lanes, recording

if TYPE_CHECKING:
    from collections.abc import Callable

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


@pytest.mark.benchmark(group="lanes, recorded")
def test_a_network_recorded(benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool) -> None:
    pytest.importorskip("torch")
    how: dict[str, Any] = {"lanes": lanes.NETWORK_LANES, "seconds": 8, "workers": 2, "width": lanes.WIDTH}
    if not full:
        how = {"lanes": 64, "seconds": 0.1, "workers": 1, "width": 8, "block_rows": 4096}
    with recording.memory_dir() as directory:
        if full:
            recording.warm_memory(directory)
        found = benchmark.pedantic(
            lanes.network_figures, kwargs={**how, "rounds": rounds, "directory": directory}, rounds=1
        )
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
    assert found[1].value < 1
