"""Rows from cold files into memory, against ``cat`` of the same files.

::

    python -m tests.bench.loading [--files 4] [--megabytes 280] [--rounds 7] [--directory .]

Cold: their pages are dropped from the cache before each turn (``posix_fadvise``, which needs no rights). A
virtual disk may be cached by its host, for both alike. And memory is made ready before each turn
(``claim_memory``): a virtual machine's may be the host's until it is touched.
"""

import os
import time
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from tape2048.files.bulk_read import FileRange, read_rows
from tape2048.loader.boards import read_boards
from tape2048.loader.row_map import BOARD_BYTES
from tape2048.session.layout import STEP_DTYPE

from .figures import ROUNDS_MIN, Benchmark, Figure, alternate, cat_s, make_cold, median_of

TARGET = 0.9
ROW_BYTES = STEP_DTYPE.itemsize
FILES = 4
MEGABYTES = 280  # a session of ten million rows


def make_files(directory: Path, count: int, size: int) -> list[Path]:
    """Files of noise, on the disk: bytes below 16, as exponents are."""
    paths = [directory / f"rows-{i}" for i in range(count)]
    rng = np.random.default_rng(3)
    for path in paths:
        path.write_bytes((np.frombuffer(rng.bytes(size), np.uint8) & 15).data)
        with path.open("rb+") as file:
            os.fsync(file.fileno())
    return paths


def read_s(paths: Sequence[Path], size: int, *, packed: bool) -> float:
    """Seconds that reading them into one array takes, or their boards alone."""
    make_cold(paths, 3 * size * len(paths))
    parts = [FileRange(path, 0, size) for path in paths]
    begin = time.perf_counter()
    rows = read_boards(parts, ROW_BYTES) if packed else read_rows(parts)
    found = time.perf_counter() - begin
    assert rows.nbytes == size * len(paths) * (BOARD_BYTES if packed else ROW_BYTES) // ROW_BYTES
    return found


def loading_figures(directory: Path, *, files: int, megabytes: int, rounds: int) -> list[Figure]:
    """Both speeds, and ours of cat's: of whole rows, and of boards alone."""
    size = megabytes * 10**6 // ROW_BYTES * ROW_BYTES
    paths = make_files(directory, files, size)
    total = files * size / 1e9
    group = f"{total:.2g} GB of cold files"
    figures = []
    read_boards([FileRange(paths[0], 0, ROW_BYTES)], ROW_BYTES)  # compiles
    try:
        for packed, name in ((False, "rows into one array"), (True, "boards alone, packed")):
            ours, cats, ratios = alternate(
                lambda packed=packed: total / read_s(paths, size, packed=packed),
                lambda: total / cat_s(paths, 3 * size * files),
                rounds,
            )
            figures += [
                median_of(ours, group=group, name=name, unit="GB/s"),
                median_of(cats, group=group, name=f"`cat`, beside {name}", unit="GB/s"),
                median_of(ratios, group=group, name=f"{name}, of `cat`", unit="ratio", target=TARGET),
            ]
    finally:
        for path in paths:
            path.unlink()
    return figures


BENCHMARK = Benchmark(
    loading_figures,
    sizes={"files": FILES, "megabytes": MEGABYTES, "rounds": ROUNDS_MIN + 2},
    smallest={"files": 2, "megabytes": 1, "rounds": 1},
)

if __name__ == "__main__":
    BENCHMARK.main("loading", __doc__)
