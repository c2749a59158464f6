"""Tables of the addresses of a view's rows, which grow with its runs; read by ``gather_kernel``.

A **segment** is a stretch of rows of one run that are adjacent in memory. A run is one segment, except in
foreign sessions that interleave their runs. A view numbers its rows run after run, in step order, so a
segment is a range of these numbers and an address. The address of a row is

    segment's address + row x segment's stride

(the segment's first number is subtracted beforehand, modulo 2**64). The stride is the size of a row in its
file: 29 bytes with the action, 28 without, 1 on tape, any in a file of another program. A guide
(``base.guide``) finds the segment of a number.

A row on tape is a byte, and the row's address is the byte's address. Two more tables lead to the anchor from
which its board is decoded (:class:`TapeMap`). Rows of another layout are made the same way, from their
fields.

A selection of rows or a condition on the board makes a mask over these numbers: one bit a row, and one count
every 512 (``boards``).
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.guide import Guide, make_guide

if TYPE_CHECKING:
    from numpy.typing import NDArray


_U64 = np.uint64
_NONE = np.empty(0, np.uint64)

#: A packed board: 4 bits a cell.
BOARD_BYTES = 8

#: Bytes from a row on tape to the next one. No other row is as short.
TAPE_STRIDE = 1

# An entry of a label guide: from bit 0 the exponent of the bucket's first segment, from LABEL_LATER that of
# the next one, at LABEL_WALK whether a walk has to follow, and from LABEL_BOUNDARY the next segment's first
# place in the bucket.
LABEL_LATER, LABEL_WALK, LABEL_BOUNDARY = np.uint64(5), np.uint64(10), np.uint64(11)
LABEL_EXPONENT_MAX = np.uint64(31)
#: The boundary has 21 bits, so a bucket has at most ``2**20`` rows.
LABEL_SHIFT_MAX = 20
NO_LABELS = np.empty(0, np.uint32)


class RowMask(NamedTuple):
    """The rows of a map that are in a view: a bit for each, and counts to find the k-th one.

    Attributes:
        words: bit ``i % 64`` of word ``i // 64`` is row i, ``u64[W]``, W a multiple of 8.
        ranks: bits set before each block of 8 words, and in all, ``u64[W / 8 + 1]``.
        samples: the block with set bit 512 x k, and the last block, ``u64[ceil(bits set / 512) + 1]``.
    """

    words: NDArray[np.uint64]
    ranks: NDArray[np.uint64]
    samples: NDArray[np.uint64]


#: Every row is in the view.
NO_MASK = RowMask(_NONE, _NONE, _NONE)


class Segments(NamedTuple):
    """The S segments of a view, by run, before its rows are numbered."""

    address: NDArray[np.uint64]  #: of the first row
    rows: NDArray[np.int64]  #: number of rows, at least 1
    run: NDArray[np.int64]  #: ordinal of the run in the view, ascending
    end: NDArray[np.uint64]  #: end address of the memory that holds the segment
    place: NDArray[np.int64]  #: number of the first row within the session
    session: NDArray[np.int64]  #: ordinal of the session
    stride: NDArray[np.int64]  #: bytes from a row to the next one
    layout: NDArray[np.uint64]  #: address of the words of ``foreign.Layout``; 0 for a recorder's rows

    def take(self, chosen: NDArray[Any]) -> Segments:
        """Return the segments of a mask or of indices, in that order."""
        return Segments(*(column[chosen] for column in self))

    @property
    def places(self) -> NDArray[np.int64]:
        """Numbers of the segments in the order of the sessions and of their rows."""
        places: NDArray[np.int64] = (self.session << 40) + self.place
        return places

    @property
    def on_tape(self) -> NDArray[np.bool_]:
        """The segments on tape, ``bool[S]``."""
        found: NDArray[np.bool_] = self.stride == TAPE_STRIDE
        return found

    def in_file_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the segments' order in their files, and the places in it where adjacent ones start."""
        places = self.places
        order = np.argsort(places, kind="stable")
        begins = places[order]
        apart = begins[1:] != (begins + self.rows[order])[:-1]
        return order, np.flatnonzero(np.concatenate(([True], apart)))


class TapeMap(NamedTuple):
    """The tables that make rows from tape, or from rows of another layout; empty where no row is made.

    Attributes:
        segments: for each segment the addresses of its game's first byte (0: no row is made) and of the end
            of its last one, the game's first board, and the address of its span's entry, ``u64[S, 4]``. Of
            another layout, the segment's address, 0, 0, and the address of the layout's words.
        spans: for each span of adjacent rows the addresses of its first byte, which has an anchor, and of
            that anchor, and the bits of the rows between two anchors, ``u64[n, 3]`` by address.
        runs: the view's run table, for the ids in its rows.
        alone: whether all rows are made.
    """

    segments: NDArray[np.uint64]
    spans: NDArray[np.uint64]
    runs: NDArray[np.void]
    alone: bool

    @classmethod
    def of(
        cls, segments: Segments, runs: NDArray[np.void], starts: NDArray[np.uint64], spans: NDArray[np.uint64]
    ) -> TapeMap:
        """Make the tables of a view's segments and runs; ``starts``: the runs' first boards, ``u64[R]``."""
        on_tape, made = segments.on_tape, segments.on_tape | (segments.layout != 0)
        if not made.any():
            return NO_TAPE
        span = np.searchsorted(spans[:, 0], segments.address, "right") - 1
        entries = np.empty((len(on_tape), 4), np.uint64)
        entries[:, 0] = segments.address - segments.place.astype(np.uint64) + runs["first_row"][segments.run]
        entries[:, 1] = entries[:, 0] + runs["rows"][segments.run]
        entries[:, 2] = starts[segments.run]
        entries[:, 3] = spans.ctypes.data + span * spans.strides[0]
        other = made & ~on_tape
        entries[~on_tape] = 0
        entries[other, 0], entries[other, 3] = segments.address[other], segments.layout[other]
        return cls(entries, spans, runs, bool(made.all()))


#: No row is made.
NO_TAPE = TapeMap(_NONE, _NONE, np.empty(0, np.void), alone=False)


class RowMap(NamedTuple):
    """The tables that locate the rows of a view."""

    rows: int  #: number of rows in the map, before the mask
    row_bytes: int  #: of a row of the view, 28 or 29; longer rows are cut, and rows on tape are made
    guide: Guide  #: over the segments
    address: NDArray[np.uint64]  #: address that row 0 would have in each segment, [S]
    run: NDArray[np.uint32]  #: ordinal of each segment's run, [S]
    end: NDArray[np.uint64]  #: ``Segments.end``
    strides: NDArray[np.uint64]  #: ``Segments.stride`` if a stride is not ``row_bytes``. Otherwise, empty
    run_starts: NDArray[np.uint64]  #: first row of each run in the view, and the number of rows, [R + 1]
    mask: RowMask
    board: NDArray[np.uint64]  #: address that packed board 0 would have in each segment, or empty
    tape: TapeMap
    line: int  #: address of row 0 if it is equal in all segments, and every stride is ``row_bytes``; else 0
    board_line: int  #: address of packed board 0 if it is equal in all segments, else 0

    @classmethod
    def of(
        cls,
        segments: Segments,
        runs: int,
        row_bytes: int,
        boards: NDArray[np.uint64] | None = None,
        tape: TapeMap = NO_TAPE,
    ) -> RowMap:
        """Make the map of all rows of some segments.

        ``runs`` counts those without rows too; ``boards``: address of each segment's first packed board,
        ``u64[S]``; ``tape``: of the same segments.
        """
        starts = np.append(0, np.cumsum(segments.rows))
        firsts = starts[:-1].astype(np.uint64)
        run_starts = starts[np.searchsorted(segments.run, np.arange(runs + 1))].astype(np.uint64)
        strides = segments.stride.astype(np.uint64)
        address = segments.address - firsts * strides  # modulo 2**64, as the kernel adds it again
        board = _NONE if boards is None else boards - firsts * _U64(BOARD_BYTES)
        uneven = bool((strides != row_bytes).any() or len(tape.segments))
        return cls(
            rows=int(starts[-1]),
            row_bytes=row_bytes,
            guide=make_guide(starts),
            address=address,
            run=segments.run.astype(np.uint32),
            end=segments.end,
            strides=strides if uneven else _NONE,
            run_starts=run_starts,
            mask=NO_MASK,
            board=board,
            tape=tape,
            line=0 if uneven else line_of(address),
            board_line=line_of(board),
        )


def address_of(array: NDArray[Any]) -> int:
    """Return the address of the first element; 0 for an empty array."""
    return int(array.__array_interface__["data"][0]) if array.size else 0


def line_of(addresses: NDArray[np.uint64]) -> int:
    """Return the address of row 0 if all segments have the same one, and so need no look-up, else 0."""
    in_line = len(addresses) > 0 and bool((addresses == addresses[0]).all())
    return int(addresses[0]) if in_line else 0


def make_label_guide(guide: Guide, exponents: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Make a guide from rows to the exponents of their labels, half the size of the guide to segments.

    For 200M rows that guide has 3 MB, and a random entry is rarely in the core's private caches.
    ``exponents`` are of the highest tile of each segment's game, ``u8[S]``. The result has an entry for each
    bucket, ``u32[G]``, or none if the buckets are too large.
    """
    if not len(exponents) or guide.shift > LABEL_SHIFT_MAX:
        return NO_LABELS
    place = (guide.entries & np.uint64(0xFFFFFFFF)).astype(np.int64)
    small = np.minimum(exponents, LABEL_EXPONENT_MAX).astype(np.uint64)
    labels = small[place] | small[np.minimum(place + 1, len(small) - 1)] << LABEL_LATER
    labels |= guide.entries >> np.uint64(63) << LABEL_WALK
    labels |= (guide.entries >> np.uint64(32) & np.uint64(0x7FFFFFFF)) << LABEL_BOUNDARY
    return labels.astype(np.uint32)
