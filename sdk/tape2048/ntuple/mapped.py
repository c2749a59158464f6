"""The shared tables of networks that this process maps, and the check that no process has changed them."""

from __future__ import annotations

import contextlib
import time
import weakref
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.errors import ChecksumError
from tape2048.files.reading import crc32c

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: Longest time of a write, in seconds, during which the file can still have its earlier checksum.
WRITING_S_MAX = 10.0


def check_tables() -> None:
    """Raise ChecksumError if a shared table has changed: moves since then may be wrong. Takes 1 us."""
    for table in _mapped[:]:
        if (data := table.data()) is None:
            with contextlib.suppress(ValueError):  # another thread has just removed it
                _mapped.remove(table)
        else:
            table.check(data)


class MappedTable:
    """A shared table that this process maps, with the state of its file before the checksum was verified."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._note(_state_of(path))

    def _note(self, state: tuple[int, ...]) -> None:
        # A write that is in progress may not have reached all bytes: verify the checksum again for a while.
        self._state = state
        self._is_settled = not state or abs(time.time() - state[3] / 1e9) > WRITING_S_MAX

    def verify(self, data: npt.NDArray[np.uint8], checksum: int) -> bool:
        """Check the checksum of the mapped file. If it is right, list the table for :func:`check_tables`."""
        self.data, self._checksum = weakref.ref(data), checksum
        if is_right := crc32c(data[:-4].data) == checksum:
            _mapped.append(self)
        return is_right

    def check(self, data: npt.NDArray[np.uint8]) -> None:
        """Raise ChecksumError if the file has changed and its content is another one."""
        # Each write changes the time of the file. A removal does so, too, and leaves the checksum right.
        if (state := _state_of(self._path)) == self._state and self._is_settled:
            return
        is_cut = state[:2] == self._state[:2] and state[2] < len(data)  # touching its end is SIGBUS
        if is_cut or crc32c(data[:-4].data) != self._checksum:
            raise ChecksumError(
                "this shared table of a network has changed since it was loaded, so later moves may be wrong",
                path=self._path,
                hint="Find the program that writes to this file, and start again. The table is made again.",
            )
        self._note(state)


_mapped: list[MappedTable] = []


def _state_of(path: Path) -> tuple[int, ...]:
    try:
        status = path.stat()
    except OSError:
        return ()
    return status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns
