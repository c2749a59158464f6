"""Writer of a data set's rows: one ``steps.npy``, or shards, each with its checksum."""

from __future__ import annotations

import os
import shutil
from typing import TYPE_CHECKING

from tape2048.datasets.table_rows import ROW_BYTES
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, HEADER_BYTES, SHARDS, STEPS_NPY
from tape2048.formats.npy import rows_header
from tape2048.formats.session import FileEntry
from tape2048.io.crc import crc32c_combine
from tape2048.io.durable import fsync_dir, fsync_path, write_all

if TYPE_CHECKING:
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray


class RowsWriter:
    """Appends rows to the files of an unpublished directory; its methods raise OSError.

    Args:
        directory: for ``steps.npy`` or ``shards/``.
        shard_rows: rows of a full shard; None: one ``steps.npy``.

    Attributes:
        rows: rows so far.
        files: size and checksum of each finished file, by name.
    """

    def __init__(self, directory: Path, shard_rows: int | None) -> None:
        if shard_rows is not None and shard_rows < 1:
            raise ValueError(f"shard_rows={shard_rows}; expected at least 1")
        self._directory = directory
        self._shard_rows = shard_rows
        self._fd: int | None = None
        self._name = ""
        self._file_rows = 0
        self._crc = 0
        self.rows = 0
        self.files: dict[str, FileEntry] = {}
        if shard_rows is not None:
            (directory / SHARDS).mkdir()

    def write(self, records: NDArray[np.uint8]) -> None:
        """Append rows, ``u8[32 * n]``."""
        from crc32c import crc32c

        while len(records):
            if self._fd is None:
                self._begin()
            assert self._fd is not None
            room = len(records)
            if self._shard_rows is not None:
                room = (self._shard_rows - self._file_rows) * ROW_BYTES
            piece = records[:room]
            write_all(self._fd, piece.data, HEADER_BYTES + self._file_rows * ROW_BYTES)
            self._crc = crc32c(piece.data, self._crc)
            self._file_rows += len(piece) // ROW_BYTES
            self.rows += len(piece) // ROW_BYTES
            records = records[room:]
            if self._file_rows == self._shard_rows:
                self._end()

    def link(self, shard: Path, rows: int, entry: FileEntry) -> None:
        """Add a finished shard of another directory, by a link if the file system can, else by a copy."""
        name = self._next_name()
        target = self._directory / name
        try:
            os.link(shard, target)
        except OSError:
            shutil.copyfile(shard, target)
            fsync_path(target)
        self.files[name] = entry
        self.rows += rows

    def finish(self) -> None:
        """End the last file, and flush the directory of the shards."""
        if not self.files and self._fd is None:
            self._begin()  # a data set without rows has a file, too
        if self._fd is not None:
            self._end()
        if self._shard_rows is not None:
            fsync_dir(self._directory / SHARDS)

    def close(self) -> None:
        """Close an unfinished file."""
        if self._fd is not None:
            os.close(self._fd)
            self._fd = None

    def _next_name(self) -> str:
        return STEPS_NPY if self._shard_rows is None else f"{SHARDS}/steps_{len(self.files):05d}.npy"

    def _begin(self) -> None:
        self._name = self._next_name()
        self._fd = os.open(
            self._directory / self._name, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o644
        )
        self._file_rows = self._crc = 0

    def _end(self) -> None:
        from crc32c import crc32c

        assert self._fd is not None
        header = rows_header(DATASET_ROW_DTYPE, self._file_rows, HEADER_BYTES)
        write_all(self._fd, header, 0)
        os.fsync(self._fd)
        self.close()
        size = self._file_rows * ROW_BYTES
        entry = FileEntry(HEADER_BYTES + size, crc32c_combine(crc32c(header), self._crc, size))
        self.files[self._name] = entry
