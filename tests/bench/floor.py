"""The floor of a random batch: ``floor.c``, compiled here and called in this process.

So it takes turns with what is measured against it, over the same rows and the same indices.
"""

import ctypes
import functools
import shutil
import subprocess
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

SOURCE = Path(__file__).with_name("floor.c")
COMPILERS = ("cc", "gcc", "clang")

#: Sizes of a row in bytes that ``floor.c`` has a loop for.
ROW_BYTES = (28, 32)


@functools.cache
def load_floor() -> ctypes.CDLL | None:
    """The compiled loops, or None where there is no C compiler."""
    compiler = next((path for name in COMPILERS if (path := shutil.which(name))), None)
    if compiler is None:
        return None
    with tempfile.TemporaryDirectory() as directory:
        target = f"{directory}/floor.so"
        command = [compiler, "-O3", "-march=native", "-shared", "-fPIC", "-o", target, str(SOURCE)]
        subprocess.run(command, check=True)
        library = ctypes.CDLL(target)  # mapped: it outlives the file
    for size in ROW_BYTES:
        # By attribute: library[...] would be a new object each time.
        gather, ask = getattr(library, f"gather{size}"), getattr(library, f"ask{size}")
        gather.restype = ask.restype = None
        gather.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t, ctypes.c_void_p]
        ask.argtypes = gather.argtypes[:-1]
    return library


class Floor:
    """The loop over one array of rows.

    Args:
        rows: ``[n]`` of 28 or 32 bytes each, contiguous.

    Raises:
        RuntimeError: there is no C compiler.
    """

    def __init__(self, rows: NDArray[Any]) -> None:
        library = load_floor()
        if library is None:
            raise RuntimeError(f"no C compiler: none of {', '.join(COMPILERS)} is installed")
        assert rows.flags.c_contiguous
        self._rows = rows
        self._gather = getattr(library, f"gather{rows.dtype.itemsize}")
        self._ask = getattr(library, f"ask{rows.dtype.itemsize}")
        self._address = rows.ctypes.data

    def __call__(self, indices: NDArray[np.uint64], out: NDArray[np.uint8]) -> None:
        """Copy the rows at ``indices`` (all below n) to ``out``."""
        self._check(indices)
        assert out.nbytes == len(indices) * self._rows.dtype.itemsize
        self._gather(self._address, indices.ctypes.data, len(indices), out.ctypes.data)

    def ask(self, indices: NDArray[np.uint64]) -> None:
        """Ask for a cache line of each row at ``indices``, and do nothing with it.

        What is left is how long the machine takes to find rows: mostly walks to pages that are in no TLB.
        """
        self._check(indices)
        self._ask(self._address, indices.ctypes.data, len(indices))

    @staticmethod
    def _check(indices: NDArray[np.uint64]) -> None:
        assert indices.dtype == np.uint64
        assert indices.flags.c_contiguous
