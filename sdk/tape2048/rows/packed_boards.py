"""Packed boards: the boards of many rows at 4 bits a cell, 8 bytes a row instead of 28.

Batches of boards and labels need nothing else, so 1e9 rows take 8 GB. A random board touches one cache line,
a random row of 28 bytes often two.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from tape2048.errors import CorpusError
from tape2048.formats.session import EXPS_OFFSET
from tape2048.io.bulk_read import READ_BYTES, THREADS, Reader, Stretch, allocate, check_lengths
from tape2048.io.reading import read_exactly
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import bswap64, load64
from tape2048.rows.row_map import BOARD_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from numpy.typing import NDArray

U64 = np.uint64
EXPS = U64(EXPS_OFFSET)
_LOW32 = U64(0xFFFFFFFF)
_NIBBLES = U64(0x0F0F0F0F0F0F0F0F)
_TOO_LARGE = U64(0xF0F0F0F0F0F0F0F0)


@register_jitable
def _pack_half(address: Any) -> Any:
    """Pack eight exponents into 32 bits, the first one in the highest nibble."""
    half = bswap64(load64(address)) & _NIBBLES
    half = (half | half >> U64(4)) & U64(0x00FF00FF00FF00FF)
    half = (half | half >> U64(8)) & U64(0x0000FFFF0000FFFF)
    return (half | half >> U64(16)) & _LOW32


@register_jitable
def board_of(row: Any) -> Any:
    """Pack the board of the row at an address, 4 bits a cell; of exponents above 15, the low 4 bits."""
    return _pack_half(row + EXPS) << U64(32) | _pack_half(row + EXPS + U64(8))


@kernel
def _pack_rows(rows: Any, row_bytes: Any, boards: Any) -> Any:
    """Pack each row's board; return the first row with an exponent above 15, or -1."""
    address = U64(rows.ctypes.data)
    for i in range(boards.shape[0]):
        row = address + U64(i) * row_bytes
        if (load64(row + EXPS) | load64(row + EXPS + U64(8))) & _TOO_LARGE:
            return i
        boards[i] = board_of(row)
    return -1


def pack_rows(
    rows: NDArray[np.uint8],
    boards: NDArray[np.uint64],
    path: str | os.PathLike[str],
    offset: int | None = None,
) -> None:
    """Pack the boards of rows in memory."""
    bad = int(_pack_rows(rows, U64(rows.shape[1]), boards))
    if bad >= 0:
        exps = rows[bad, EXPS_OFFSET : EXPS_OFFSET + 16].tolist()
        raise CorpusError(
            f"a row has exponents {exps}; 4 bits a cell hold at most 15",
            path=path,
            offset=None if offset is None else offset + bad * rows.shape[1] + EXPS_OFFSET,
            hint='load="ram" or "mmap" takes any exponents; tape2048 validate says which rows have them',
        )


def read_boards(
    parts: Sequence[Stretch],
    row_bytes: int,
    *,
    threads: int = THREADS,
    progress: Callable[[int], object] | None = None,
) -> NDArray[np.uint64]:
    """Read stretches of whole rows, in the given order, and keep only their boards.

    Returns ``u64[rows]`` on huge pages, read-only. The calling thread calls ``progress`` with the bytes of
    each step that was read. Errors as for :func:`pack_rows` and ``io.bulk_read.read_rows``.
    """
    check_lengths(parts)
    rows = sum(part.bytes for part in parts) // row_bytes
    boards = allocate(rows * BOARD_BYTES).view(np.uint64)
    with _PackingReader(boards, parts, row_bytes, threads) as reader:
        reader.finish(progress)
    boards.flags.writeable = False
    return boards


class _PackingReader(Reader):
    """A parallel reader of rows that keeps only their packed boards."""

    def __init__(
        self, boards: NDArray[np.uint64], parts: Sequence[Stretch], row_bytes: int, threads: int
    ) -> None:
        self._boards = boards
        self._row_bytes = row_bytes
        self._scratch = threading.local()
        super().__init__(parts, threads=threads, unit=row_bytes)

    def _read_step(self, fd: int, part: Stretch, begin: int) -> None:
        size = self._row_bytes
        piece_rows = READ_BYTES // size
        if not hasattr(self._scratch, "rows"):
            self._scratch.rows = np.empty((piece_rows, size), np.uint8)
        for first in range(0, part.bytes // size, piece_rows):
            rows = self._scratch.rows[: min(piece_rows, part.bytes // size - first)]
            offset = part.offset + first * size
            read_exactly(fd, rows.reshape(-1), offset, part.path)
            at = begin // size + first
            pack_rows(rows, self._boards[at : at + len(rows)], part.path, offset)
