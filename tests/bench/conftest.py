"""Toy sizes in the suite, full ones with ``--benchmark-only`` (``make bench``) or ``BENCH_FULL=1``."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from .figures import Figure, machine, write_table

if TYPE_CHECKING:
    from collections.abc import Iterator


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
