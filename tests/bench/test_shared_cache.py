"""The shared cache in short: each reader removes a session of small ones, and one reader is killed."""

from pathlib import Path

import pytest

from .shared_cache import hold


@pytest.mark.slow
def test_readers_share_a_small_cache(tmp_path: Path) -> None:
    held = hold(
        tmp_path, seconds=0, count=60, kind="directory", share=0.6, kill_s=0.0, rotate_steps=8000,
        megabyte=1000,
    )  # fmt: skip
    assert held.problems == []
    assert all(said["rows"] for said in held.readers)
    assert 0 < held.most <= held.bound
