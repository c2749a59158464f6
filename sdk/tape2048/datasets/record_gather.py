"""Random records of 32 bytes, gathered in compiled code; and which record a row of a view is.

A gather of random rows waits for memory and for little else: the cache line of a record is asked for
:data:`PREFETCH_AHEAD` records before it is copied, into the second level of cache, where more lines can be on
their way, then brought near; and a record is copied whole, as one vector. Every number is checked before its
record is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import copy_record, find, prefetch_in, prefetch_many_in

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.base.guide import Guide

RECORD_BYTES = 32

#: Records between the one that is asked for and the one that is copied: enough for memory, and few enough
#: that none is pushed out of the cache before its turn.
PREFETCH_AHEAD = 48
#: And between the one that is brought near and the one that is copied.
NEAR_AHEAD = 8

U64 = np.uint64
_AHEAD = PREFETCH_AHEAD
_NEAR = NEAR_AHEAD
_SIZE = U64(RECORD_BYTES)


@kernel
def gather(records: Any, rows: Any, count: Any, out: Any) -> int:
    """Copy records by number.

    Args:
        records: ``u8[32 * count]``, of any alignment.
        rows: ``i8[n]``, record numbers.
        count: number of records.
        out: ``u8[32 * n]``.

    Returns:
        -1, or the position in ``rows`` of a number outside [0, count); what stands in ``out`` is then
        not to be used.
    """
    n = len(rows)
    limit = U64(count)
    for i in range(min(_AHEAD, n)):
        if U64(rows[i]) >= limit:
            return i
        prefetch_many_in(records, U64(rows[i]) * _SIZE)
    for i in range(n - _AHEAD):
        ahead = U64(rows[i + _AHEAD])
        if ahead >= limit:
            return i + _AHEAD
        prefetch_many_in(records, ahead * _SIZE)
        prefetch_in(records, U64(rows[i + _NEAR]) * _SIZE)
        copy_record(out, U64(i) * _SIZE, records, U64(rows[i]) * _SIZE)
    for i in range(max(0, n - _AHEAD), n):
        copy_record(out, U64(i) * _SIZE, records, U64(rows[i]) * _SIZE)
    return -1


@kernel
def gather_scattered(records: Any, rows: Any, first: Any, count: Any, out: Any) -> int:
    """Copy the records that lie in one part of several, each to the place that its number has in ``rows``.

    Args:
        records: ``u8[32 * count]``: the rows ``first`` to ``first + count - 1``.
        rows: ``i8[n]``, row numbers over all parts.
        first: number of the part's first row.
        count: number of its rows.
        out: ``u8[32 * n]``.

    Returns:
        How many records were copied.
    """
    copied = 0
    limit = U64(count)
    for i in range(len(rows)):
        row = U64(rows[i]) - U64(first)  # below first: wraps, and is past the limit
        if row < limit:
            copy_record(out, U64(i) * _SIZE, records, row * _SIZE)
            copied += 1
    return copied


@kernel
def _locate(rows: Any, guide: Any, offsets: Any, runs: Any, out: Any) -> int:
    entries, starts = U64(guide.entries.ctypes.data), U64(guide.starts.ctypes.data)
    total = guide.starts[-1]
    for i in range(len(rows)):
        row = U64(rows[i])
        if row >= total:
            return i
        run = find(row, entries, starts, guide.shift)
        runs[i] = run
        out[i] = rows[i] + offsets[run]
    return -1


def locate(
    rows: NDArray[np.int64], guide: Guide, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Rows of a view in its source.

    Args:
        rows: numbers in the view, ``i64[n]``.
        guide: over the rows of each run of the view.
        offsets: what each run's rows have to be moved by, ``i64[R]``.

    Returns:
        ``(runs, source, bad)``: for each row the ordinal of its run and its number in the source, both
        ``i64[n]``; ``bad`` is -1, or the position of a number outside the view.
    """
    runs, source = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    return runs, source, int(_locate(rows, guide, offsets, runs, source))
