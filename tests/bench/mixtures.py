"""Batches of mixtures: rows a second with shares that change, in turns with fixed shares.

::

    python -m tests.bench.mixtures [--rows 4000000] [--batch 4096] [--rounds 9]
"""

import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tape2048 import Mixture

from .batches import corpus_in_memory
from .figures import Benchmark, Figure, alternate, median_of


def figures(directory: Path, *, rows: int, batch: int, rounds: int) -> list[Figure]:
    """Millions of rows a second of one thread's time, and the ratio."""
    del directory
    parts = [corpus_in_memory(max(rows // each, 2 * batch), 2500) for each in (1, 3)]

    def changing(epoch: int, step: int) -> tuple[float, float]:
        new = min(1.0, 0.2 + 0.05 * epoch + 0.0001 * step)
        return new, 1 - new

    def rate(mixture: Mixture) -> Callable[[], float]:
        def serve() -> Iterator[Any]:
            while True:
                yield from batches

        batches = mixture.batches(batch)
        served = serve()

        def measure() -> float:
            count = max(2, min(400, len(batches)))
            begin = time.thread_time()
            for _ in range(count):
                next(served)
            return count * batch / (time.thread_time() - begin) / 1e6

        measure()
        return measure

    one, other = rate(Mixture(parts, changing)), rate(Mixture([(parts[0], 0.2), (parts[1], 0.8)]))
    found, fixed, ratio = alternate(one, other, rounds)
    group = f"mixtures of 2, {batch} rows"
    return [
        median_of(found, group=group, name="shares of a function", unit="M rows/s"),
        median_of(fixed, group=group, name="fixed shares", unit="M rows/s"),
        median_of(ratio, group=group, name="function / fixed", unit="", target=0.9),
    ]


BENCHMARK = Benchmark(
    figures, sizes={"rows": 4_000_000, "batch": 4096, "rounds": 9},
    smallest={"rows": 1000, "batch": 32, "rounds": 1},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("mixtures", __doc__)
