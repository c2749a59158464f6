"""The benchmarks, which are not part of the suite, at a toy size each, so that they cannot rot."""

import importlib
import math
import shutil
from pathlib import Path

import pytest

from .bench.__main__ import NAMES, benchmark_of
from .bench.figures import memory_dir
from .bench.peers.__main__ import GROUPS, Child
from .bench.soak import soak

BENCH = Path(__file__).parent / "bench"


@pytest.mark.slow
def test_every_benchmark_runs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for module in BENCH.rglob("*.py"):
        importlib.import_module(".".join(module.relative_to(BENCH.parents[1]).with_suffix("").parts))
    for name in NAMES:
        if name == "viewer" and shutil.which("chromium") is None:
            continue
        measured = benchmark_of(name)
        figures = measured.run(tmp_path, **measured.smallest)
        assert all(math.isfinite(figure.value) for figure in figures), name
        assert len({(figure.group, figure.name) for figure in figures}) == len(figures) > 0, name
    for number, peer in enumerate(GROUPS["engines"][0][:2]):
        child = Child("engines", number, tmp_path)
        assert child.failure == "", peer.name
        assert child.measure(0.01) > 0
        child.close()
    with memory_dir() as directory:
        (directory / "out").mkdir()
        tally = soak(
            directory / "out", seconds=0, every_s=(0.1, 0.2), workers=1, victims=("worker", "recovery")
        )
    assert tally.problems == []
