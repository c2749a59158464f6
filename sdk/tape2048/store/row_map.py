"""Where the rows of a corpus stand: tables that grow with its runs, for the kernels of ``gather_kernel``.

A **segment** is a stretch of rows of one run that stand next to each other in memory; a run is one
segment, but for sessions of others that interleave their runs. A view numbers its rows run after run,
in step order; a segment is then a range of these numbers and an address, and the address of a row is

    segment's address + row x row bytes

(with the segment's first number subtracted beforehand, modulo 2**64). Which segment a number belongs to, a
guide tells (see ``guide``).

Rows that a condition on the board leaves out are bits of a mask over these numbers (one bit a row, and
one count every 512); see ``row_mask``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.guide import make_guide

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.base.guide import Guide

_U64 = np.uint64
_NONE = np.empty(0, np.uint64)

#: A packed board: 4 bits a cell.
BOARD_BYTES = 8

# The parts of a label guide's entry: from bit 0 on the exponent of the bucket's first segment, from
# LABEL_LATER on that of the next one, at LABEL_WALK whether a walk has to follow, and from LABEL_BOUNDARY on
# where in the bucket the next segment begins.
LABEL_LATER, LABEL_WALK, LABEL_BOUNDARY = np.uint64(5), np.uint64(10), np.uint64(11)
LABEL_EXPONENT_MAX = np.uint64(31)
#: Buckets of at most ``2**20`` rows: a boundary of 21 bits.
LABEL_SHIFT_MAX = 20
#: No label guide.
NO_LABELS = np.empty(0, np.uint32)


class RowMask(NamedTuple):
    """Which rows of a map are in a view: a bit for each, and counts to find the k-th that is.

    Attributes:
        words: bit ``i % 64`` of word ``i // 64`` is row i, ``u64[W]``, W a multiple of 8.
        ranks: bits set before each block of 8 words, and in all, ``u64[W / 8 + 1]``.
        samples: the block with set bit 512 x k, and the last block, ``u64[ceil(bits set / 512) + 1]``.
    """

    words: NDArray[np.uint64]
    ranks: NDArray[np.uint64]
    samples: NDArray[np.uint64]


#: Every row is in.
NO_MASK = RowMask(_NONE, _NONE, _NONE)


class Segments(NamedTuple):
    """The segments of a map before their numbers are given; S of them, by run.

    Attributes:
        address: of each one's first row, ``u64[S]``.
        rows: ``i64[S]``, each at least 1.
        run: ordinal of its run in the view, ``i64[S]``, ascending.
        end: address behind the last row of the memory that it lies in, ``u64[S]``.
        place: number of its first row among all rows of its session, ``i64[S]``.
        session: ordinal of its session, ``i64[S]``.
    """

    address: NDArray[np.uint64]
    rows: NDArray[np.int64]
    run: NDArray[np.int64]
    end: NDArray[np.uint64]
    place: NDArray[np.int64]
    session: NDArray[np.int64]

    def take(self, chosen: NDArray[Any]) -> Segments:
        """The segments of a mask or of indices, in that order."""
        return Segments(*(column[chosen] for column in self))


class RowMap(NamedTuple):
    """All that it takes to find the rows of a view.

    Attributes:
        rows: number of rows in the map (before the mask).
        row_bytes: 28 or 29.
        guide: over the segments.
        address: of each segment's (imagined) row 0, ``u64[S]``.
        run: ordinal of each segment's run, ``u4[S]``.
        end: ``Segments.end``.
        run_starts: first row of each run among the rows of the view, and their number: ``u64[R + 1]``.
        mask: the rows that are in the view.
        board: address of each segment's (imagined) packed board 0, ``u64[S]``; empty where none are packed.
    """

    rows: int
    row_bytes: int
    guide: Guide
    address: NDArray[np.uint64]
    run: NDArray[np.uint32]
    end: NDArray[np.uint64]
    run_starts: NDArray[np.uint64]
    mask: RowMask
    board: NDArray[np.uint64] = _NONE

    @classmethod
    def of(
        cls, segments: Segments, runs: int, row_bytes: int, boards: NDArray[np.uint64] | None = None
    ) -> RowMap:
        """The map of all rows of some segments.

        Args:
            segments: by run.
            runs: of the view, also those without rows.
            row_bytes: 28 or 29.
            boards: address of the packed board of each segment's first row, ``u64[S]``.
        """
        starts = np.zeros(len(segments.rows) + 1, np.int64)
        np.cumsum(segments.rows, out=starts[1:])
        # Modulo 2**64, as the kernel adds it again.
        address = segments.address - starts[:-1].astype(np.uint64) * _U64(row_bytes)
        run_starts = starts[np.searchsorted(segments.run, np.arange(runs + 1))].astype(np.uint64)
        run = segments.run.astype(np.uint32)
        guide = make_guide(starts)
        board = _NONE if boards is None else boards - starts[:-1].astype(np.uint64) * _U64(BOARD_BYTES)
        rows = int(starts[-1])
        return cls(rows, row_bytes, guide, address, run, segments.end, run_starts, NO_MASK, board)

    @property
    def line(self) -> int:
        """Address of row 0 where all rows stand in one line in memory, else 0: no look-up is needed then."""
        return _line(self.address)

    @property
    def board_line(self) -> int:
        """As :attr:`line`, of packed boards."""
        return _line(self.board)

    @property
    def view_rows(self) -> int:
        """Number of rows in the view, behind the mask."""
        return int(self.run_starts[-1])


def _line(addresses: NDArray[np.uint64]) -> int:
    in_line = len(addresses) > 0 and bool((addresses == addresses[0]).all())
    return int(addresses[0]) if in_line else 0


def make_label_guide(guide: Guide, exponents: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """What a row's label takes, at half the size of the guide and without the segment: ``u32[G]``.

    Of 200M rows, the guide is 3 MB, and a random entry of it is mostly in no cache of the core's own.

    Args:
        guide: over the segments.
        exponents: of each segment's game, ``u8[S]``.

    Returns:
        An entry for each bucket; none where buckets are too large.
    """
    if not len(exponents) or guide.shift > LABEL_SHIFT_MAX:
        return NO_LABELS
    place = (guide.entries & np.uint64(0xFFFFFFFF)).astype(np.int64)
    small = np.minimum(exponents, LABEL_EXPONENT_MAX).astype(np.uint64)
    labels = small[place] | small[np.minimum(place + 1, len(small) - 1)] << LABEL_LATER
    labels |= guide.entries >> np.uint64(63) << LABEL_WALK
    labels |= (guide.entries >> np.uint64(32) & np.uint64(0x7FFFFFFF)) << LABEL_BOUNDARY
    return labels.astype(np.uint32)
