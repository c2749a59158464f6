"""Data sets: batches, building, opening. Toy sizes in the suite."""

from __future__ import annotations

import shutil
from typing import TYPE_CHECKING, Any

import pytest

from . import datasets
from .recording import memory_dir, warm_memory

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from .figures import Figure


@pytest.fixture
def directory(full: bool) -> Iterator[Path]:
    with memory_dir() as path:
        if full:
            warm_memory(path)
        yield path


@pytest.fixture
def measure(benchmark: Any, figures: list[Figure]) -> Callable[..., list[Figure]]:
    """Run a function of figures once; its rounds are its own."""

    def run(function: Callable[..., list[Figure]], *args: Any, **kwargs: Any) -> list[Figure]:
        found: list[Figure] = benchmark.pedantic(function, args=args, kwargs=kwargs, rounds=1)
        figures.extend(found)
        return found

    return run


@pytest.mark.benchmark(group="data set batches")
def test_batches(
    measure: Any, directory: Path, rounds: int, full: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if shutil.which("cc") is None:
        pytest.skip("no C compiler for the floor")
    if not full:
        monkeypatch.setattr(datasets, "CALLS", 3)
    found = measure(datasets.gather_figures, directory, rows=20_000_000 if full else 50_000, rounds=rounds)
    assert all(figure.value > 0 for figure in found)


@pytest.mark.slow
@pytest.mark.benchmark(group="data set build")
def test_build(measure: Any, directory: Path, rounds: int, full: bool) -> None:
    assert measure(datasets.build_figures, directory, runs=2000 if full else 3, rounds=rounds)[0].value > 0


@pytest.mark.benchmark(group="data set opening")
def test_opening(measure: Any, tmp_path: Path, rounds: int, full: bool) -> None:
    found = measure(datasets.open_figures, tmp_path, rows=20_000_000 if full else 50_000, rounds=rounds)
    assert all(figure.value > 0 for figure in found)
