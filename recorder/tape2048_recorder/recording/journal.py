"""The journal of a partial session: its confirmed blocks, and their runs.

A block is **confirmed** when its record is in the journal. The record is appended with one ``write`` after
the block's rows, and carries all of their metadata; so a killed daemon loses no confirmed block, and
``metadata.db`` is built once, at rotation. Nothing is flushed to stable storage before rotation: after a
power failure, a record counts if its own checksum and its block's checksum hold.

========  ===============================================================
bytes     header
========  ===============================================================
0..8      magic ``T2KJRNL1``
8..16     ``u64`` bytes of a row
========  ===============================================================

then, for each block:

========  ===============================================================
bytes     record
========  ===============================================================
0..4      magic ``BLCK``
4..8      ``u32`` runs
8..16     ``u64`` first row
16..20    ``u32`` rows
20..24    ``u32`` CRC-32C of the rows
24..      runs, ``RUN_DTYPE``, 40 bytes each, ``first_row`` counted from the file's first row
last 4    ``u32`` CRC-32C of the record before it
========  ===============================================================
"""

from __future__ import annotations

import contextlib
import itertools
import os
import struct
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tape2048.base.text import counted
from tape2048.errors import FormatError
from tape2048.formats.session import RUN_DTYPE
from tape2048_recorder.recording.world import REAL, World

if TYPE_CHECKING:
    from pathlib import Path

JOURNAL = "journal"
JOURNAL_HEADER_BYTES = 16

_HEADER = struct.Struct("<8sQ")
_RECORD = struct.Struct("<4sIQII")
_CHECK = struct.Struct("<I")
_MAGIC = b"T2KJRNL1"
_RECORD_MAGIC = b"BLCK"
assert _HEADER.size == JOURNAL_HEADER_BYTES
assert _RECORD.size == 24


class Block(NamedTuple):
    """A confirmed block and the runs whose rows it holds."""

    first_row: int
    rows: int
    crc32c: int
    runs: npt.NDArray[np.void]


class Journal:
    """The writer. A failed append leaves the journal unchanged."""

    def __init__(self, path: Path, row_bytes: int, world: World = REAL) -> None:
        self._world = world
        flags = os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
        self._fd = world.os.open(path, flags, 0o644)
        try:
            world.files.write_all(self._fd, _HEADER.pack(_MAGIC, row_bytes))
            world.os.fsync(self._fd)  # records without it could not be read
        except OSError:
            world.os.close(self._fd)
            raise
        self._bytes = _HEADER.size

    def append(self, block: Block) -> None:
        """Confirm a block."""
        head = _RECORD.pack(_RECORD_MAGIC, len(block.runs), block.first_row, block.rows, block.crc32c)
        body = head + block.runs.tobytes()
        record = body + _CHECK.pack(crc32c(body))
        try:
            # At the end of the last whole record, also after a failed write: a torn record in the middle
            # would hide all later ones.
            self._world.files.write_all(self._fd, record, self._bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._world.os.ftruncate(self._fd, self._bytes)
            raise
        self._bytes += len(record)

    def close(self) -> None:
        """Close the file."""
        self._world.os.close(self._fd)


def read_journal(path: Path, row_bytes: int, world: World = REAL) -> list[Block]:
    """Read the confirmed blocks of a session that its daemon left behind.

    Reading stops at a record that the daemon's death truncated.
    """
    data = world.load_path(path).data  # not into memory: a crafted one may be of any size
    if len(data) < _HEADER.size:
        return []
    magic, found_row_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or found_row_bytes != row_bytes:
        raise FormatError(
            f"not a journal: the magic {_MAGIC!r} is missing"
            if magic != _MAGIC
            else f"found rows of {found_row_bytes} bytes, expected {row_bytes}",
            path=path,
            offset=0,
        )
    blocks: list[Block] = []
    at = _HEADER.size
    while at + _RECORD.size <= len(data):
        record_magic, run_count, first_row, rows, checksum = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + run_count * RUN_DTYPE.itemsize
        if record_magic != _RECORD_MAGIC or end + _CHECK.size > len(data):
            break
        if _CHECK.unpack_from(data, end)[0] != crc32c(data[at:end]):
            break
        runs = np.frombuffer(data, dtype=RUN_DTYPE, count=run_count, offset=at + _RECORD.size)
        if not runs["rows"].all() or int(runs["rows"].sum()) != rows or not rows:
            found = f"found a block of {counted(rows, 'row')} with {counted(run_count, 'run')}"
            raise FormatError(f"{found}, expected the sum of their rows", path=path, offset=at)
        blocks.append(Block(first_row, rows, checksum, runs.copy()))
        at = end + _CHECK.size
    ordered = sorted(blocks, key=lambda block: block.first_row)
    for before, block in itertools.pairwise(ordered):
        end = before.first_row + before.rows
        if block.first_row < end:
            msg = f"found a block at row {block.first_row}, expected none before row {end}"
            raise FormatError(msg, path=path)
    return blocks
