"""Random batches against the C floor and what others offer; cold files into memory against ``cat``."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

from . import gathering, loading
from .floor import ROW_BYTES, Floor, load_floor

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from .figures import Figure

    class Benchmark(Protocol):
        """The part of pytest-benchmark's fixture that is used here."""

        def pedantic(self, target: Callable[..., Any], **how: Any) -> Any: ...


@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_all_gather_the_same(row_bytes: int) -> None:
    rows = gathering.random_rows(5000, row_bytes)
    indices = np.random.default_rng(0).integers(0, 5000, 300, dtype=np.uint64)
    expected = rows[indices.astype(np.int64)].tobytes()
    for name, gather in gathering.peers(rows, 300).items():
        taken: Any = gather(indices)
        assert np.asarray(taken).tobytes() == expected, name
    if load_floor() is None:
        pytest.skip("no C compiler")
    out = np.empty(300 * row_bytes, np.uint8)
    Floor(rows.view(f"V{row_bytes}").reshape(-1))(indices, out)
    assert out.tobytes() == expected


@pytest.mark.benchmark(group="gathering")
@pytest.mark.parametrize("row_bytes", ROW_BYTES)
def test_gathering(
    row_bytes: int, benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool
) -> None:
    how = {"rows": gathering.ROWS if full else 10_000, "batch": gathering.BATCH}
    found = benchmark.pedantic(
        gathering.gather_figures, kwargs={**how, "rounds": rounds, "row_bytes": row_bytes}, rounds=1
    )
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.benchmark(group="loading")
@pytest.mark.skipif(shutil.which("cat") is None, reason="no cat")
def test_loading(
    benchmark: Benchmark, figures: list[Figure], rounds: int, full: bool, tmp_path: Path
) -> None:
    size = loading.MEGABYTES * 10**6 if full else 100_000
    how = {"files": loading.FILES, "size": size, "rounds": rounds, "directory": tmp_path}
    found = benchmark.pedantic(loading.loading_figures, kwargs=how, rounds=1)
    figures.extend(found)
    assert all(figure.value > 0 for figure in found)
    assert not list(tmp_path.iterdir())
