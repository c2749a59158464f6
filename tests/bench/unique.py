"""Views of the first of equal boards: rows a second of one core, and the shares of repeated positions.

::

    python -m tests.bench.unique [--rows 20000000] [--games 2000] [--rounds 7] [--directory .]

Plays games of ``ntuple:weights=small,look_below=0``, and prints the share of positions that repeat by the
highest tile on the board. The games are then repeated up to so many rows on tape, in memory, and a pass of
``Corpus.unique`` is measured in turns with reading the same boards alone.
"""

import os
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tape2048 import Corpus

from .figures import Benchmark, Figure, alternate, cpu_rate, median_of
from .tapes import corpus_on_tape, play

PLAYER = "ntuple:weights=small,look_below=0"


def _stages(corpus: Corpus) -> NDArray[np.int64]:
    found = np.zeros(17, np.int64)
    for first in range(0, len(corpus), 1 << 20):
        rows = slice(first, first + (1 << 20))
        found += np.bincount(corpus.fetch(rows, ("board_highest",))["board_highest"], minlength=17)
    return found


def _read(corpus: Corpus) -> int:
    for _ in corpus.batches(1 << 16, fields=("tokens",), shuffle=False):
        pass
    return len(corpus)


def figures(directory: Path, *, rows: int, games: int, rounds: int) -> list[Figure]:
    """Shares, and then rates, on one core."""
    del directory
    cores = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {min(cores)})
    try:
        return _figures(rows, games, rounds)
    finally:
        os.sched_setaffinity(0, cores)


def _figures(rows: int, games: int, rounds: int) -> list[Figure]:
    played = play(PLAYER, games)
    once = corpus_on_tape(played, len(played.tape))
    table = []
    for symmetry in (False, True):
        name = "with symmetry" if symmetry else "equal boards"
        every, kept = _stages(once), _stages(once.unique(symmetry=symmetry))
        for tile in np.flatnonzero(every >= 1000).tolist():
            share = 100 * (1 - kept[tile] / every[tile])
            table.append(Figure(group=f"repeated, {name}", name=f"{1 << tile}", value=float(share), unit="%"))
        share = 100 * (1 - kept.sum() / every.sum())
        table.append(Figure(group=f"repeated, {name}", name="all", value=float(share), unit="%"))
    corpus = corpus_on_tape(played, max(rows, len(played.tape)))

    def rate(work: Callable[[], int]) -> Callable[[], float]:
        return lambda: cpu_rate(work) / 1e6

    for name, symmetry in (("unique()", False), ("unique(symmetry=True)", True)):

        def search(symmetry: bool = symmetry) -> int:
            corpus.unique(symmetry=symmetry)
            return len(corpus)

        search(), _read(corpus)
        found, alone, ratio = alternate(rate(search), rate(lambda: _read(corpus)), rounds)
        group = f"{len(corpus):,} rows on tape, one core"
        table += [
            median_of(found, group=group, name=name, unit="M rows/s", target=20.0),
            median_of(alone, group=group, name=f"reading, beside {name}", unit="M rows/s"),
            median_of(ratio, group=group, name=f"{name} / reading", unit=""),
        ]
    return table


BENCHMARK = Benchmark(
    figures, sizes={"rows": 20_000_000, "games": 2000, "rounds": 7},
    smallest={"rows": 1000, "games": 3, "rounds": 1},
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("unique", __doc__)
