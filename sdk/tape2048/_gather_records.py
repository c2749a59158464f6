"""Random records of 32 bytes, gathered in compiled code; and which record a row of a view is.

A gather of random rows waits for memory and for little else: the cache line of a record is asked for
:data:`PREFETCH_AHEAD` records before it is copied, into the second level of cache, where more lines can be on
their way, then brought near; and a record is copied whole, as one vector. Every number is checked before its
record is touched.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048._bits import copy_record, prefetch_in, prefetch_many_in
from tape2048._jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["RECORD_BYTES", "Locator", "gather", "gather_scattered", "locate", "make_locator"]

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


class Locator(NamedTuple):
    """Stretches of consecutive numbers, laid end to end, and a table to find the one that holds a number.

    Attributes:
        begins: ``i8[S + 1]``: where each stretch begins in the sequence; last, the length of it all.
        targets: ``i8[S]``: the number that the first of each stretch stands for.
        buckets: ``i8[B + 1]``: the stretch that holds the number ``b << shift``.
        shift: a number's bucket is its value shifted right by this.
    """

    begins: NDArray[np.int64]
    targets: NDArray[np.int64]
    buckets: NDArray[np.int64]
    shift: int


def make_locator(lengths: NDArray[np.int64], targets: NDArray[np.int64]) -> Locator:
    """A locator of stretches with these lengths (each > 0) and targets.

    A binary search over 85,000 runs costs 0.36 ms a batch of 4,096; a table with a bucket or two for
    each stretch leaves one or two comparisons. Memory: about 50 bytes a stretch.
    """
    begins = np.concatenate(([0], np.cumsum(lengths, dtype=np.int64)))
    total = int(begins[-1])
    shift = max(0, (total // max(1, 2 * len(lengths))).bit_length() - 1)
    heads = np.arange((total >> shift) + 1, dtype=np.int64) << shift
    found = np.searchsorted(begins[1:], heads, side="right")
    buckets = np.append(np.minimum(found, max(0, len(lengths) - 1)), max(0, len(lengths) - 1))
    return Locator(begins, targets.astype(np.int64), buckets.astype(np.int64), shift)


@kernel
def _locate(rows: Any, locator: Any, stretch: Any, out: Any) -> int:
    begins = locator.begins
    total = U64(begins[-1])
    shift = U64(locator.shift)
    for i in range(len(rows)):
        row = rows[i]
        if U64(row) >= total:
            return i
        bucket = U64(row) >> shift
        low = locator.buckets[bucket]
        high = locator.buckets[bucket + U64(1)]
        while low < high:
            middle = (low + high + 1) >> 1
            if begins[middle] <= row:
                low = middle
            else:
                high = middle - 1
        stretch[i] = low
        out[i] = locator.targets[low] + (row - begins[low])
    return -1


def locate(rows: NDArray[np.int64], locator: Locator) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """What numbers of the sequence stand for.

    Returns:
        ``(stretches, targets, bad)``: for each number its stretch and what it stands for, both
        ``i8[n]``; ``bad`` is -1, or the position of a number outside the sequence.
    """
    stretches = np.empty(len(rows), np.int64)
    targets = np.empty(len(rows), np.int64)
    return stretches, targets, int(_locate(rows, locator, stretches, targets))
