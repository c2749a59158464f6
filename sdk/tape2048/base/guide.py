"""Guides: constant-time look-up of the range, among many adjacent ranges, that contains a number.

A binary search takes 0.36 ms for 4,096 numbers and a few thousand ranges. A guide cuts the numbers into
buckets of a power of two, about a quarter of a mean range, and has one ``u64`` for each bucket:

    bits 0..31   range of the bucket's first number
    bits 32..62  offset in the bucket where the next range starts (the bucket's size: beyond it)
    bit 63       whether a third range starts in the bucket, so that a walk has to follow

Compiled code looks numbers up with ``intrinsics.find``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_U64 = np.uint64

#: Minimum number of buckets for each range; there are at most twice as many. The buckets of 20M rows in runs
#: of 2,500 take 312 KB. Most contain no boundary, few contain two, and only those need the walk.
BUCKETS_PER_RANGE = 4
#: With more ranges, a bucket covers about eight, so that a range takes 2 bytes instead of 40; look-ups walk.
_MANY_RANGES, _RANGES_PER_BUCKET = 1 << 22, 8
_MADE_BUCKETS = 1 << 20  # buckets that are made together, at 60 bytes each
#: The 31 bits of an entry's offset suffice for buckets of ``2**30`` numbers.
_SHIFT_MAX = 30


class Guide(NamedTuple):
    """Starts ``u64[S + 1]`` of ranges, which may be empty, and an entry for each ``2**shift`` numbers."""

    starts: NDArray[np.uint64]
    entries: NDArray[np.uint64]
    shift: np.uint64


#: The guide of no ranges.
NO_GUIDE = Guide(np.empty(0, _U64), np.empty(0, _U64), _U64(0))


def make_guide(starts: NDArray[np.integer[Any]]) -> Guide:
    """Make the guide of adjacent ranges from :attr:`Guide.starts`. The first is 0, and S < 2**32."""
    total, count = int(starts[-1]), len(starts) - 1
    buckets = max(1, count * BUCKETS_PER_RANGE if count <= _MANY_RANGES else count // _RANGES_PER_BUCKET)
    shift = min(_SHIFT_MAX, max(0, (total // buckets).bit_length() - 1))
    size = 1 << shift
    padded = np.append(starts[-1:], [total + size, total + size]).astype(starts.dtype)
    entries = np.empty(-(-total // size), _U64)
    for first in range(0, len(entries), _MADE_BUCKETS):
        begins = np.arange(first, min(first + _MADE_BUCKETS, len(entries)), dtype=starts.dtype) * size
        place = np.searchsorted(starts, begins, "right") - 1
        boundary, walks = (_later(starts, padded, place + ahead) - begins for ahead in (1, 2))
        boundary = np.minimum(boundary, size).astype(_U64) << _U64(32)
        entries[first : first + len(begins)] = (
            place.astype(_U64) | boundary | (walks < size).astype(_U64) << _U64(63)
        )
    return Guide(starts.astype(_U64, copy=False), entries, _U64(shift))


def _later(starts: NDArray[Any], padded: NDArray[Any], places: NDArray[np.int64]) -> NDArray[Any]:
    """Return the starts at some places, which may be beyond the end; avoids a padded copy of all starts."""
    beyond = places - (len(starts) - 1)
    return np.where(beyond > 0, padded[np.maximum(beyond, 0)], starts[np.minimum(places, len(starts) - 1)])
