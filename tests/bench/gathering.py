"""Random batches of rows in memory: the C floor, what others offer, and the order they come in.

::

    python -m tests.bench.gathering [--rows 20000000] [--batch 4096] [--rounds 9]

Everything takes turns over the same array on huge pages, with fresh random indices for each call; a sample
is the median of 128 calls. Ratios are to the floor of the same round.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.batches.shuffle import Permutation
from tape2048.io.bulk_read import allocate

from .figures import ROUNDS_MIN, Figure, machine, median_of, report
from .floor import ROW_BYTES, Floor, load_floor

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

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


def peers(rows: NDArray[np.uint8], batch: int) -> dict[str, Callable[[NDArray[np.uint64]], object]]:
    """Ways to take rows that everybody has at hand; those that are not installed are left out."""
    row_bytes = rows.shape[1]
    fields: list[Any] = [("run_id", "<u8"), ("step_idx", "<u4"), ("exps", "u1", (16,))]
    if row_bytes > 28:
        fields.append(("rest", "u1", (row_bytes - 28,)))
    structured = rows.view(np.dtype(fields)).reshape(-1)
    untyped = rows.view(f"V{row_bytes}").reshape(-1)
    taken = np.empty(batch, untyped.dtype)
    found: dict[str, Callable[[NDArray[np.uint64]], object]] = {
        "structured array, a[indices]": lambda indices: structured[indices],
        "np.take of a view of bytes": lambda indices: np.take(
            untyped, indices.view(np.int64), out=taken, mode="clip"
        ),
    }
    try:
        import torch
    except ImportError:
        return found
    torch.set_num_threads(1)
    # float32 columns: of a matrix of bytes, index_select copies byte by byte and is several times slower.
    matrix = torch.from_numpy(rows.view(np.float32))
    selected = torch.empty((batch, row_bytes // 4))
    found["torch.index_select"] = lambda indices: torch.index_select(
        matrix, 0, torch.from_numpy(indices.view(np.int64)), out=selected
    )
    return found


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
    names = list(contenders)
    found: dict[str, list[float]] = {name: [] for name in names}
    for i in range(rounds):
        for name in names[i % len(names) :] + names[: i % len(names)]:
            indices = rng.integers(0, rows, (calls, batch), dtype=np.uint64)
            found[name].append(sample(contenders[name], indices))
    return found


def gather_figures(*, rows: int, batch: int, rounds: int, row_bytes: int) -> list[Figure]:
    """The floor, the peers, and the shuffle's share of a batch."""
    data = random_rows(rows, row_bytes)
    out = np.empty(batch * row_bytes, np.uint8)
    contenders = peers(data, batch)
    if load_floor() is not None:
        floor = Floor(data.view(f"V{row_bytes}").reshape(-1))
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
            median_of(
                [one / other for one, other in zip(samples, floors, strict=True)],
                group=group,
                name=f"{name}, of the C loop",
                unit="ratio",
            )
            for name, samples in found.items()
        ]
    return figures


def main() -> None:
    """Measure, print, write the table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--rows", type=int, default=ROWS)
    parser.add_argument("--batch", type=int, default=BATCH)
    parser.add_argument("--rounds", type=int, default=ROUNDS_MIN + 4)
    args = parser.parse_args()
    before = machine()
    figures = []
    for row_bytes in ROW_BYTES:
        figures += gather_figures(rows=args.rows, batch=args.batch, rounds=args.rounds, row_bytes=row_bytes)
    report("gathering", figures, before)


if __name__ == "__main__":
    main()
