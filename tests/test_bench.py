"""The benchmarks, which are not part of the suite, at a toy size each, so that they cannot rot."""

import importlib
import math
import os
import shutil
from concurrent.futures import ProcessPoolExecutor
from multiprocessing import get_context
from pathlib import Path

import pytest

from .bench.__main__ import NAMES, benchmark_of
from .bench.figures import Figure, memory_dir
from .bench.peers.__main__ import GROUPS, Child
from .bench.soak import soak

BENCH = Path(__file__).parent / "bench"


def run_smallest(name: str, directory: Path) -> list[Figure]:
    measured = benchmark_of(name)
    return measured.run(directory, **measured.smallest)


@pytest.mark.slow
def test_every_benchmark_runs(tmp_path: Path) -> None:
    for module in BENCH.rglob("*.py"):
        importlib.import_module(".".join(module.relative_to(BENCH.parents[1]).with_suffix("").parts))
    # Another process: Playwright refuses a thread in which other tests have started it.
    with ProcessPoolExecutor(1, get_context("spawn")) as process:
        for name in NAMES:
            if name == "viewer" and shutil.which("chromium") is None and "CI" not in os.environ:
                continue
            figures = process.submit(run_smallest, name, tmp_path).result()
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
