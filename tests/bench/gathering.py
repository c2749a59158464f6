"""Random batches of rows in memory: the C floor, NumPy, and the order they come in.

::

    python -m tests.bench.gathering [--rows 20000000] [--batch 4096] [--rounds 9]

Everything takes turns over the same array on huge pages, with fresh random indices for each call; a sample
is the median of 128 calls. Ratios are to the floor of the same round.
"""

import functools
import statistics
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tape2048.files.bulk_read import allocate
from tape2048.loader.shuffle import Permutation

from .figures import ROUNDS_MIN, Benchmark, Figure, in_turns, median_of, ratios
from .floor import ROW_BYTES, Floor, load_floor

ROWS = 20_000_000
BATCH = 4096
CALLS = 128

#: Bytes written at a time when the rows are made up.
_FILL_BYTES = 1 << 26


def random_rows(count: int, row_bytes: int) -> NDArray[np.uint8]:
    """``u8[count, row_bytes]`` of noise, on huge pages."""
    memory = allocate(count * row_bytes)
    rng = np.random.default_rng(1)
    for first in range(0, len(memory), _FILL_BYTES):
        part = memory[first : first + _FILL_BYTES]
        part[:] = np.frombuffer(rng.bytes(len(part)), np.uint8)
    return memory.reshape(count, row_bytes)


def sample(work: Callable[[NDArray[np.uint64]], object], indices: NDArray[np.uint64]) -> float:
    """Median milliseconds of a call, one for each row of ``indices``, in the cache as if just made."""
    times = []
    made = np.empty_like(indices[0])
    for fresh in indices:
        made[:] = fresh
        begin = time.perf_counter()
        work(made)
        times.append(time.perf_counter() - begin)
    return 1e3 * statistics.median(times)


def take_turns(
    contenders: dict[str, Callable[[NDArray[np.uint64]], object]],
    *,
    rows: int,
    batch: int,
    rounds: int,
    calls: int = CALLS,
) -> dict[str, list[float]]:
    """A sample of each contender in each round, in an order that changes; milliseconds a call."""
    rng = np.random.default_rng(2)

    def measured(work: Callable[[NDArray[np.uint64]], object]) -> float:
        return sample(work, rng.integers(0, rows, (calls, batch), dtype=np.uint64))

    turns = {name: functools.partial(measured, work) for name, work in contenders.items()}
    return in_turns(turns, rounds)


def gather_figures(*, rows: int, batch: int, rounds: int, row_bytes: int) -> list[Figure]:
    """NumPy, the floor, and the shuffle's share of a batch."""
    data = random_rows(rows, row_bytes)
    out = np.empty(batch * row_bytes, np.uint8)
    untyped = data.view(f"V{row_bytes}").reshape(-1)
    contenders: dict[str, Callable[[NDArray[np.uint64]], object]] = {
        "array of bytes, a[indices]": lambda indices: untyped[indices]
    }
    if load_floor() is not None:
        floor = Floor(untyped)
        contenders["C loop with prefetch"] = lambda indices: floor(indices, out)
    permutation = Permutation(rows, seed=1, epoch=2)
    order = np.empty(batch, np.uint64)
    start = iter(range(0, rows - batch, max(1, (rows - batch) // (2 * CALLS * rounds))))
    contenders["the indices of a shuffled batch alone"] = lambda _: permutation.fill(next(start, 0), order)
    found = take_turns(contenders, rows=rows, batch=batch, rounds=rounds)
    group = f"{batch} random rows of {row_bytes} B, of {rows:,}"
    figures = [median_of(samples, group=group, name=name, unit="ms") for name, samples in found.items()]
    if floors := found.pop("C loop with prefetch", None):
        figures += [
            median_of(ratios(samples, floors), group=group, name=f"{name}, of the C loop", unit="ratio")
            for name, samples in found.items()
        ]
    return figures


def measure(_directory: Path, *, rows: int, batch: int, rounds: int) -> list[Figure]:
    """Rows of each size."""
    how = {"rows": rows, "batch": batch, "rounds": rounds}
    return [figure for size in ROW_BYTES for figure in gather_figures(**how, row_bytes=size)]


BENCHMARK = Benchmark(
    measure,
    sizes={"rows": ROWS, "batch": BATCH, "rounds": ROUNDS_MIN + 4},
    smallest={"rows": 10_000, "batch": 512, "rounds": 1},
)

if __name__ == "__main__":
    BENCHMARK.main("gathering", __doc__)
