"""Writer of a new ``.npy`` file of rows, whose header and checksums are written last."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tape2048.files.durable import write_all
from tape2048.files.npy import rows_header
from tape2048.files.opening import NEW_FILE_MODE
from tape2048.files.reading import crc32c, crc32c_combine
from tape2048.session.layout import BLOCK_DTYPE, STEPS_BLOCK_ROWS, FileEntry

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class NpyWriter:
    """A new ``.npy`` file of rows. A context manager, which closes an unfinished file.

    Rows are appended; :meth:`finish` writes the header and flushes the file. At most ``block_rows`` rows
    share a checksum. Methods raise OSError.
    """

    def __init__(
        self, path: Path, dtype: np.dtype[Any], header_bytes: int, block_rows: int = STEPS_BLOCK_ROWS
    ) -> None:
        self._dtype, self._header_bytes, self._block_rows = dtype, header_bytes, block_rows
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd: int | None = os.open(path, flags, NEW_FILE_MODE)
        self._blocks: list[tuple[int, int, int]] = []  # first row, rows, checksum
        self.rows = 0

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    @property
    def blocks(self) -> NDArray[np.void]:
        return np.array(self._blocks, BLOCK_DTYPE)

    def append(self, rows: NDArray[Any]) -> None:
        assert self._fd is not None
        size = self._dtype.itemsize
        data = np.ascontiguousarray(rows).reshape(-1).view(np.uint8)
        write_all(self._fd, data.data, self._header_bytes + self.rows * size)
        while len(data):
            if not self._blocks or self._blocks[-1][1] == self._block_rows:
                self._blocks.append((self.rows, 0, 0))
            first, count, checksum = self._blocks[-1]
            piece = data[: (self._block_rows - count) * size]
            added = len(piece) // size
            self._blocks[-1] = first, count + added, crc32c(piece.data, checksum)
            self.rows += added
            data = data[len(piece) :]

    def finish(self) -> FileEntry:
        assert self._fd is not None
        header = rows_header(self._dtype, self.rows, self._header_bytes)
        write_all(self._fd, header, 0)
        os.fsync(self._fd)
        self.close()
        total, size = crc32c(header), self._dtype.itemsize
        for _, count, checksum in self._blocks:
            total = crc32c_combine(total, checksum, count * size)
        return FileEntry(self._header_bytes + self.rows * size, total)

    def close(self) -> None:
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None
