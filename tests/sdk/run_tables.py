"""Tables of runs and blocks, as :func:`tape2048.session.metadata_writer.write_metadata` takes them."""

import zlib
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tape2048.session.layout import BLOCK_DTYPE, RUN_DTYPE

from .builders import change_database


def some_runs(count: int) -> NDArray[np.void]:
    """Runs that agree with each other, with large numbers in them."""
    runs = np.zeros(count, RUN_DTYPE)
    runs["run_id"] = np.arange(count) * 3 + 5
    runs["seed"] = np.arange(count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    runs["rows"] = runs["steps"] = np.arange(count) % 7 + 1
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    runs["score"] = 2**32 - 1
    runs["highest_tile"] = 32768
    return runs


def some_blocks(count: int) -> NDArray[np.void]:
    """Blocks of 100 rows."""
    blocks = np.zeros(count, BLOCK_DTYPE)
    blocks["first_row"] = np.arange(count) * 100
    blocks["rows"] = 100
    blocks["crc32c"] = 2**32 - 1 - np.arange(count)
    return blocks


def pack(path: Path, runs: NDArray[np.void]) -> None:
    """Put another copy beside the run table, as nobody should."""
    data = runs.tobytes()
    crc = zlib.crc32(data)
    change_database(path, f"UPDATE runs_packed SET crc32 = {crc}, data = x'{data.hex()}'")
    change_database(path, f"PRAGMA user_version = {np.array(crc, np.uint32).astype(np.int32)}")
