"""Every benchmark runs at its smallest size; ``pytest tests/bench --benchmark-only`` shows the times."""

import math
import shutil
from pathlib import Path
from typing import Any

import pytest

from .__main__ import NAMES, benchmark_of
from .floor import load_floor

#: Programs and packages that a benchmark cannot do without.
NEEDS = {"critic": "safetensors", "torch_loader": "torch", "viewer": "playwright"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_at_its_smallest_size(name: str, tmp_path: Path, benchmark: Any) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if (name == "viewer" and shutil.which("chromium") is None) or (name == "datasets" and not load_floor()):
        pytest.skip("no chromium, or no C compiler")
    measured = benchmark_of(name)
    figures = benchmark.pedantic(measured.run, (tmp_path,), measured.smallest, rounds=1)
    assert figures
    assert len({(figure.group, figure.name) for figure in figures}) == len(figures)
    assert all(math.isfinite(figure.value) for figure in figures)
