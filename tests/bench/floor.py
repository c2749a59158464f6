"""Random batches of rows in turns, and their floor: ``floor.c``, compiled here and called in this process."""

import ctypes
import functools
import shutil
import statistics
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .figures import in_turns

CALLS = 128
SOURCE = Path(__file__).with_name("floor.c")


@functools.cache
def load_floor() -> ctypes.CDLL | None:
    """The compiled loops, or None where there is no C compiler."""
    compiler = next((path for name in ("cc", "gcc", "clang") if (path := shutil.which(name))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        target = f"{directory}/floor.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", target, str(SOURCE)]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(target)  # mapped: it outlives the file
    library.gather.restype = library.ask.restype = None
    library.gather.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
    library.ask.argtypes = library.gather.argtypes[:-1]
    return library


class Floor:
    """The loops over one array of rows of 28 bytes; indices are ``u64``, all below its length."""

    def __init__(self, rows: NDArray[Any]) -> None:
        assert rows.flags.c_contiguous
        assert rows.dtype.itemsize == 28
        self._rows, self._library = rows, load_floor()
        self._address = rows.ctypes.data

    def __call__(self, indices: NDArray[np.uint64], out: NDArray[np.uint8]) -> None:
        """Copy the rows to ``out``."""
        assert self._library is not None
        self._library.gather(self._address, indices.ctypes.data, len(indices), out.ctypes.data)

    def ask(self, indices: NDArray[np.uint64]) -> None:
        """Ask for a cache line of each row: the time is mostly that of walks to pages that are in no TLB."""
        assert self._library is not None
        self._library.ask(self._address, indices.ctypes.data, len(indices))


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
