"""The shared cache in short: each reader removes a session of small ones, and one reader is killed."""

from pathlib import Path

import pytest

from ..sdk.store_servers import size_of
from ..sdk.tapes import games_on_tape, write_tape
from ..tools.small_sessions import session_name
from .shared_cache import hold


@pytest.mark.slow
def test_readers_share_a_small_cache(tmp_path: Path) -> None:
    local = tmp_path / "local"
    for number in range(24):
        write_tape(local / session_name(number), games_on_tape(*range(5 * number, 5 * number + 5)))
    tables = sum(path.stat().st_size for path in local.glob("*/m*"))
    bound = tables + 14 * max(map(size_of, local.iterdir()))
    held = hold(
        tmp_path, local, seconds=0, kind="directory", cache_mb=bound // 1000 + 1, kill_s=3.0, megabyte=1000
    )
    assert held.problems == []
    assert all(said["rows"] for said in held.readers)
    assert 0 < held.most <= held.bound
