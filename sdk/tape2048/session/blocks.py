"""Damage in a session's rows: the checksums of their blocks, and boards that no game has."""

from __future__ import annotations

import bisect
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import ChecksumError, FieldError, SchemaError
from tape2048.files.npy import open_rows, open_shards, peek_header
from tape2048.files.reading import crc32c, crc32c_combine, first_bytes
from tape2048.session.layout import BLOCK_DTYPE, EXPS_OFFSET
from tape2048.session.run_table import check_tiles

if TYPE_CHECKING:
    import os
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.files.bulk_read import FileRange
    from tape2048.files.npy import Load, Shards
    from tape2048.session.layout import FileEntry

_TOO_LARGE = np.uint64(0xF0F0F0F0F0F0F0F0)
_SCAN_ROWS = 1 << 16  # rows whose boards are checked together: 0.5 MB


def check_blocks(blocks: NDArray[np.void] | None, rows: int, path: Path) -> NDArray[np.void]:
    """Return the blocks of a recorder's session; SchemaError without, BookkeepingError for other rows."""
    if blocks is None:
        message = "no table blocks: without it, damaged rows cannot be found"
        raise SchemaError(message, path=path, hint="restore metadata.db from a copy")
    check_tiles(blocks, blocks["rows"], rows, path, "block")
    return blocks


class BlockSums:
    """The checksums of a session's blocks, from the bytes of its rows, in any order and by any threads.

    Bytes that follow each other should be added in order, since each other piece takes 0.2 ms.
    """

    def __init__(self, blocks: NDArray[np.void], row_bytes: int) -> None:
        self._blocks = blocks
        self._ends = (np.cumsum(blocks["rows"], dtype=np.int64) * row_bytes).tolist()
        # The first byte and the checksum of each piece, by its block and its end.
        self._pieces: dict[tuple[int, int], tuple[int, int]] = {}

    def __len__(self) -> int:
        return len(self._blocks)

    def add(self, begin: int, content: Any) -> None:
        """Add bytes of the rows, from byte ``begin`` of all rows on."""
        for at in range(bisect.bisect_right(self._ends, begin), len(self._ends)):
            piece = content[: self._ends[at] - begin]
            first, checksum = self._pieces.pop((at, begin), (begin, 0))
            begin += len(piece)
            self._pieces[at, begin] = first, crc32c(piece, checksum)
            content = content[len(piece) :]
            if not len(content):
                return

    def found(self) -> dict[int, int]:
        """Return the checksums of the blocks whose bytes have all been added."""
        found = dict.fromkeys(range(len(self)), 0)
        done = [0, *self._ends[:-1]]
        for (at, end), (begin, checksum) in sorted(self._pieces.items()):
            if begin == done[at]:
                total = found[at]
                found[at] = crc32c_combine(total, checksum, end - begin) if total else checksum
                done[at] = end
        return {at: checksum for at, checksum in found.items() if done[at] == self._ends[at]}

    def defects(self, path: Path, data_offset: int | None) -> Iterator[ChecksumError]:
        """Yield a ChecksumError for each changed block; ``data_offset`` is None for rows in several files."""
        for at, checksum in self.found().items():
            if checksum == int(self._blocks["crc32c"][at]):
                continue
            first, rows, expected = self._blocks[at].tolist()
            begin = self._ends[at - 1] if at else 0
            yield ChecksumError(
                f"block {at} (rows {first} to {first + rows - 1}) has CRC-32C {checksum:08x}; expected "
                f"{expected:08x}",
                path=path,
                offset=None if data_offset is None else data_offset + begin,
                hint="restore the session from a copy",
            )


def file_blocks(path: Path, entry: FileEntry) -> NDArray[np.void]:
    """Return the rows of a ``.npy`` file as one block, by the checksum of the whole file."""
    header = peek_header(path)
    size = entry.bytes - header.data_offset
    before = crc32c(first_bytes(path, header.data_offset))
    checksum = entry.crc32c ^ crc32c_combine(before, 0, size)
    return np.array([(0, size // header.dtype.itemsize, checksum)], BLOCK_DTYPE)


class FileSums:
    """The checksums of blocks of files that are read: of the blocks that are read completely."""

    def __init__(self, files: Iterable[tuple[Path, int, NDArray[np.void] | None, int]]) -> None:
        """Expect the blocks of files, each with its path, offset of the first row, and bytes of a row."""
        self._files = {
            path: (offset, BlockSums(blocks, row_bytes))
            for path, offset, blocks, row_bytes in files
            if blocks is not None
        }

    def add(self, one: FileRange, content: NDArray[np.uint8]) -> None:
        if isinstance(one.path, Path) and one.path in self._files:
            offset, sums = self._files[one.path]
            sums.add(one.offset - offset, content)

    def finish(self) -> None:
        """Raise ChecksumError for the first changed block."""
        for path, (offset, sums) in self._files.items():
            for defect in sums.defects(path, offset):
                raise defect


def open_checked(
    path: Path, dtypes: Sequence[np.dtype[Any]], load: Load, blocks: NDArray[np.void] | None
) -> NDArray[Any]:
    """Open rows as ``files.npy.open_rows``; if they are read, raise ChecksumError for a changed block."""
    if load == "mmap":
        return open_rows(path, dtypes, load)
    header = peek_header(path)
    sums = FileSums([(path, header.data_offset, blocks, header.dtype.itemsize)])
    rows = open_rows(path, dtypes, load, sums.add)
    sums.finish()
    return rows


def open_checked_shards(
    paths: Sequence[Path],
    dtypes: Sequence[np.dtype[Any]],
    files: Mapping[Path, FileEntry],
    load: Load = "ram",
) -> Shards:
    """Open files as ``files.npy.open_shards``; if they are read, raise ChecksumError for a changed file."""
    found = [(path, peek_header(path)) for path in paths if path in files and load == "ram"]
    sums = FileSums(
        (path, header.data_offset, file_blocks(path, files[path]), header.dtype.itemsize)
        for path, header in found
    )
    shards = open_shards(paths, dtypes, load, sums.add)
    sums.finish()
    return shards


def impossible_row(rows: NDArray[np.void]) -> int:
    """Return the index of the first record without a tile or with an exponent above 15; -1 without any."""
    for first in range(0, len(rows), _SCAN_ROWS):
        some = rows[first : first + _SCAN_ROWS]
        # Two words of each board. NumPy takes ten times as long for bytes of a field.
        cells = np.ndarray((2, len(some)), "<u8", some.data, EXPS_OFFSET, (8, some.itemsize))
        either = cells[0] | cells[1]
        if (bad := (either == 0) | (either & _TOO_LARGE != 0)).any():
            return first + int(bad.argmax())
    return -1


def board_error(
    exps: list[int], where: str, path: str | os.PathLike[str], offset: int | None = None
) -> FieldError:
    """Return the error for a board that no game has, of the row that ``where`` describes."""
    return FieldError(
        f"{where} has the exponents {exps}; expected at least one tile, and none above 2**15",
        path=path,
        offset=offset,
        hint="find all damage with tape2048 validate, and restore the file from a copy",
    )
