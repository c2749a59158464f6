"""Where a recorded row's time goes, piece by piece, in one process: nanoseconds of CPU time a row.

::

    python -m tests.bench.costs [--player random] [--rounds 7]

What a worker does for a row: play it, store it into the buffer, checksum it, hand it to the kernel. The
pieces are measured in turns with blocks and sessions of the recorder's size; the rest of what the daemon
does shows in ``tests.bench.recording``. Memory is warmed before, as there.
"""

import os
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from crc32c import crc32c

from tape2048.session.layout import BLOCK_DTYPE, RUN_DTYPE
from tape2048.session.metadata_writer import write_metadata

from .figures import Benchmark, Figure, median_of
from .games import BLOCK_ROWS, Games, make_buffer

ROW_BYTES = 28
BLOCK_BYTES = BLOCK_ROWS * ROW_BYTES

#: Blocks of a session by default: 10,000,000 rows.
SESSION_BLOCKS = 38

#: Games in a round, about a third of a second.
GAMES = {"random": 100_000, "greedy": 30_000, "expectimax:depth=1": 150}


def _cpu_ns(work: Callable[[], int]) -> float:
    """CPU nanoseconds for each of the rows that ``work`` says it handled."""
    begin = time.process_time_ns()
    rows = work()
    return (time.process_time_ns() - begin) / rows


def cost_figures(directory: Path, *, player: str, rounds: int, toy: bool) -> list[Figure]:
    """The pieces of a row of this player."""
    play = Games(player, 2 if toy else GAMES[player])
    buffer = make_buffer()
    blocks = 1 if toy else SESSION_BLOCKS
    block = os.urandom(BLOCK_BYTES)
    path = directory / "steps"
    database = directory / "metadata.db"
    rows_a_game = play.play_unrecorded() // play.count

    def write(flags: int) -> int:
        fd = os.open(path, os.O_WRONLY | os.O_CREAT | flags, 0o644)
        for i in range(blocks):
            os.pwrite(fd, block, i * BLOCK_BYTES)
        os.close(fd)
        return blocks * BLOCK_ROWS

    def checksum() -> int:
        for _ in range(blocks):
            crc32c(block)
        return blocks * BLOCK_ROWS

    def metadata() -> int:
        runs = np.zeros(max(1, blocks * BLOCK_ROWS // rows_a_game), dtype=RUN_DTYPE)
        runs["id"] = np.arange(len(runs))
        write_metadata(database, runs=runs, blocks=np.zeros(0, dtype=BLOCK_DTYPE), session={})
        database.unlink()
        return blocks * BLOCK_ROWS

    def remove() -> int:
        path.unlink()
        return blocks * BLOCK_ROWS

    pieces: dict[str, Callable[[], int]] = {
        "play": play.play_unrecorded, "play and store": lambda: play.play_recorded(buffer),
        "checksum": checksum, "write, new pages": lambda: write(os.O_EXCL),
        "write, the same pages again": lambda: write(0), "metadata of its session": metadata,
        "delete (the benchmark's own)": remove,
    }  # fmt: skip
    samples: dict[str, list[float]] = {name: [] for name in pieces}
    for i in range(rounds + 1):  # the first one compiles and touches memory
        for name, piece in pieces.items():
            cost = _cpu_ns(piece)
            if i:
                samples[name].append(cost)
    samples["store alone"] = [b - a for a, b in zip(samples["play"], samples["play and store"], strict=True)]
    group = f"a row of `{player}`"
    return [median_of(found, group=group, name=name, unit="CPU-ns") for name, found in samples.items()]


BENCHMARK = Benchmark(
    cost_figures,
    sizes={"player": "random", "rounds": 7, "toy": False},
    smallest={"player": "random", "rounds": 1, "toy": True},
    in_memory=True,
)

if __name__ == "__main__":
    BENCHMARK.main("costs", __doc__)
