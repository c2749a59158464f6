"""Steps a second in lanes: without a model, and recorded with a small network."""

from pathlib import Path
from typing import Any

import pytest
from tests.recorder.lanes import batched

from . import lanes


@pytest.mark.benchmark(group="lanes")
def test_lanes_without_a_model(measure: Any, rounds: int, full: bool) -> None:
    how = {"lanes": lanes.LANES if full else 64, "seconds": 4 if full else 0.05}
    assert all(figure.value > 0 for figure in measure(lanes.lane_figures, **how, rounds=rounds))


@pytest.mark.slow
@pytest.mark.benchmark(group="lanes, recorded")
def test_a_network_recorded(measure: Any, rounds: int, full: bool, tmp_path: Path, directory: Path) -> None:
    """In the suite a player of NumPy stands for the network: loading torch twice would be most of it."""
    how: dict[str, Any] = {"lanes": lanes.NETWORK_LANES, "seconds": 8, "workers": 2}
    player = f"python:{batched.__file__}:hashed"
    if full:
        pytest.importorskip("torch")
        player = lanes.make_network(tmp_path)
    else:
        how = {"lanes": 64, "seconds": 0.1, "workers": 1, "block_rows": 4096}
    how |= {"group": lanes.NETWORK, "rounds": rounds, "directory": directory}
    found = measure(lanes.recorded_figures, player, **how)
    rate, share = (figure.value for figure in found)
    assert rate > 0
    assert 0 < share < 1
