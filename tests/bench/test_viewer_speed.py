"""The benchmark of the viewer in short: it measures everything, and what it measures is there."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest

from .recording import memory_dir
from .viewer import measure


@pytest.mark.slow
@pytest.mark.skipif(shutil.which("chromium") is None, reason="no chromium here: apt-get install chromium")
def test_viewer_benchmark() -> None:
    small = {"sessions": 2, "rows": 20_000, "small": 5, "games": 1000, "frames": 10, "seconds": 1}
    # In a thread of its own: playwright takes one browser a thread, and tests beside this one have theirs.
    with memory_dir() as directory, ThreadPoolExecutor(1) as thread:
        found = thread.submit(measure, directory, player="greedy", **small).result()
    assert len(found) == 15
    assert all(one.value >= 0 for one in found)
