"""Toy sizes in the suite, full ones with ``--benchmark-only`` (``make bench``) or ``BENCH_FULL=1``."""

import os
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .figures import Figure, machine, write_table
from .recording import memory_dir, warm_memory


@pytest.fixture(scope="session")
def full(pytestconfig: pytest.Config) -> bool:
    """Whether the figures are to be published: enough work in each round, and enough rounds."""
    if "BENCH_FULL" in os.environ:
        return os.environ["BENCH_FULL"] not in {"", "0"}
    return bool(pytestconfig.getoption("benchmark_only", default=False))


@pytest.fixture(scope="session")
def figures(full: bool) -> Iterator[list[Figure]]:
    """What the benchmarks add their figures to; a full run writes them to ``bench-results/``."""
    before = machine()
    found: list[Figure] = []
    yield found
    if full and found:
        write_table("table", found, before)


@pytest.fixture
def rounds(full: bool) -> int:
    """How often each thing is measured."""
    return 7 if full else 1


@pytest.fixture
def measure(benchmark: Any, figures: list[Figure]) -> Callable[..., list[Figure]]:
    """Run a function of figures once, and keep what it finds; its rounds are its own."""

    def run(function: Callable[..., list[Figure]], *args: Any, **kwargs: Any) -> list[Figure]:
        found: list[Figure] = benchmark.pedantic(function, args=args, kwargs=kwargs, rounds=1)
        figures.extend(found)
        return found

    return run


@pytest.fixture(scope="module")
def directory(full: bool) -> Iterator[Path]:
    """A directory in memory that was touched before, where that counts."""
    with memory_dir() as path:
        if full:
            warm_memory(path)
        yield path
