"""Every benchmark runs, at its smallest size."""

import math
import shutil
from pathlib import Path

import pytest

from .__main__ import NAMES, benchmark_of
from .floor import load_floor

#: Programs and packages that a benchmark cannot do without.
NEEDS = {"critic": "safetensors", "torch_loader": "torch", "viewer": "playwright"}


@pytest.mark.slow
@pytest.mark.parametrize("name", NAMES)
def test_runs_at_its_smallest_size(name: str, tmp_path: Path) -> None:
    if name in NEEDS:
        pytest.importorskip(NEEDS[name])
    if (name == "viewer" and shutil.which("chromium") is None) or (name == "datasets" and not load_floor()):
        pytest.skip("no chromium, or no C compiler")
    benchmark = benchmark_of(name)
    figures = benchmark.run(tmp_path, **benchmark.smallest)
    assert figures
    assert len({(figure.group, figure.name) for figure in figures}) == len(figures)
    assert all(math.isfinite(figure.value) for figure in figures)
