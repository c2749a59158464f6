"""Tables of the addresses of a view's rows, which grow with its runs; read by ``gather_kernel``.

A **segment** is a stretch of rows of one run that are adjacent in memory. A run is one segment, except in
foreign sessions that interleave their runs. A view numbers its rows run after run, in step order, so a
segment is a range of these numbers. A guide (``base.guide``) finds the segment of a number.

A **line** is a stretch of segments that are adjacent in memory, such as all games of a session. The address
of a row is

    line's address + row x line's stride

(the line's first number is subtracted beforehand, modulo 2**64). The stride is the size of a row in its
file: 29 bytes with the action, 28 without, 1 on tape, any in a file of another program. A view of whole
sessions has as many lines as sessions. So a game takes 8 bytes for its first number, 4 for its line, 8 for
its first board if it is on tape, and a few for the guide.

A row on tape is a byte, and the row's address is the byte's address. More tables lead to the anchor from
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
    from collections.abc import Iterable, Iterator, Sequence

    from numpy.typing import NDArray


_U64 = np.uint64
_NONE = np.empty(0, np.uint64)
_NO_ORDINALS = np.empty(0, np.uint32)

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
        span: address of the entry of each line's span, ``u64[L]``; 0 where it is not on tape.
        layout: address of the words of each line's layout, ``u64[L]``; 0 for a recorder's rows or tape.
        spans: for each span of adjacent rows the addresses of its first byte, which has an anchor, and of
            that anchor, and the bits of the rows between two anchors, ``u64[n, 3]`` by address.
        starts: the first board of each run, ``u64[R]``.
        cuts: rows of each segment's game before the segment, and of the whole game, ``u32[S, 2]``; empty if
            all segments are whole games.
        ids: the runs' ids, ``u64[R]``, for the rows that are made; empty: 0.
        alone: whether all rows are made.
    """

    span: NDArray[np.uint64]
    layout: NDArray[np.uint64]
    spans: NDArray[np.uint64]
    starts: NDArray[np.uint64]
    cuts: NDArray[np.uint32]
    ids: NDArray[np.uint64]
    alone: Any


#: No row is made.
NO_TAPE = TapeMap(_NONE, _NONE, _NONE, _NONE, np.empty((0, 2), np.uint32), _NONE, 0)


class RowMap(NamedTuple):
    """The tables that locate the rows of a view."""

    rows: Any  #: number of rows in the map, before the mask
    row_bytes: Any  #: of a row of the view, 28 or 29; longer rows are cut, and rows on tape are made
    guide: Guide  #: over the segments
    line: NDArray[np.uint32]  #: line of each segment, [S]; empty if each segment is a line
    run: NDArray[np.uint32]  #: ordinal of each segment's run, [S]; empty if each run is a segment
    address: NDArray[np.uint64]  #: address that row 0 would have in each line, [L]
    end: NDArray[np.uint64]  #: ``Segments.end`` of each line
    strides: NDArray[np.uint64]  #: ``Segments.stride`` if a stride is not ``row_bytes``. Otherwise, empty
    board: NDArray[np.uint64]  #: address that packed board 0 would have in each line, or empty
    session: NDArray[np.int64]  #: ordinal of each line's session
    place: NDArray[np.int64]  #: number in its session that row 0 would have in each line
    run_starts: NDArray[np.uint64]  #: first row of each run in the view, and the number of rows, [R + 1]
    mask: RowMask
    tape: TapeMap
    row_line: Any  #: address of row 0 if it is equal in all lines, and every stride is ``row_bytes``; else 0
    board_line: Any  #: address of packed board 0 if it is equal in all lines, else 0

    @classmethod
    def of(
        cls,
        parts: Iterable[tuple[Segments, NDArray[np.uint64] | None, NDArray[np.uint32] | None]],
        runs: int,
        row_bytes: int,
        tapes: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None,
        scattered: Sequence[int] = (),
    ) -> RowMap:
        """Make the map of all rows of some segments.

        Args:
            parts: segments whose runs ascend; the address of each segment's first packed board, ``u64[S]``,
                or None; and rows as in :attr:`TapeMap.cuts`, or None for whole games.
            runs: number of runs, with those without rows.
            row_bytes: bytes of a row.
            tapes: spans, and first boards of the runs.
            scattered: ordinals of sessions whose columns may have gaps where the rows have none. Each of
                their segments is a line.
        """
        # Not lists of arrays, which the heap would keep: of 1e8 runs, they take 1.6 GB.
        starts, line = np.zeros(runs + 1, _U64), np.empty(runs, np.uint32)
        run: NDArray[np.uint32] | None = None  # while each run is a segment
        lines, cuts, done = [np.empty((8, 0), _U64)], [NO_TAPE.cuts], 0
        rows, count, has_boards = 0, 0, False
        for segments, boards, cut in parts:
            ends = (rows + np.cumsum(segments.rows)).astype(_U64)
            firsts, strides = ends - segments.rows.astype(_U64), segments.stride.astype(_U64)
            span = np.zeros(len(firsts), _U64)
            if tapes is not None and (on_tape := segments.on_tape).any():
                at = np.searchsorted(tapes[0][:, 0], segments.address[on_tape], "right") - 1
                span[on_tape] = (tapes[0].ctypes.data + at * tapes[0].strides[0]).astype(_U64)
            has_boards = boards is not None
            # Addresses modulo 2**64, as the kernel adds the number again.
            columns = np.stack([
                segments.address - firsts * strides, segments.end, strides,
                span if boards is None else boards - firsts * _U64(BOARD_BYTES),
                segments.session.astype(_U64), segments.place.astype(_U64) - firsts, span, segments.layout,
            ])  # fmt: skip
            apart = np.ones(len(firsts), np.bool_)
            apart[1:] = (columns[:, 1:] != columns[:, :-1]).any(axis=0)
            apart |= np.isin(segments.session, scattered)
            if (more := done + len(ends) - len(line)) > 0:  # a run may have many segments
                more += len(line)
                starts = np.append(starts, np.empty(more, _U64))
                line = np.append(line, np.empty(more, np.uint32))
                run = None if run is None else np.append(run, np.empty(more, np.uint32))
            here = slice(done, done + len(ends))
            starts[done + 1 : here.stop + 1], line[here] = ends, count + np.cumsum(apart) - 1
            if run is None and not np.array_equal(segments.run, np.arange(done, here.stop)):
                run = np.arange(len(line), dtype=np.uint32)
            if run is not None:
                run[here] = segments.run
            done = here.stop
            lines.append(columns[:, apart])
            cuts += [] if cut is None else [cut]
            rows, count = rows + int(segments.rows.sum()), count + int(apart.sum())
        address, end, strides, board, session, place, span, layout = np.concatenate(lines, axis=1)
        line, guide = line[:done], make_guide(starts[: done + 1])
        run_starts = guide.starts
        if run is not None or done != runs:
            run = np.arange(done, dtype=np.uint32) if run is None else run[:done]
            run_starts = guide.starts[np.append(np.searchsorted(run, np.arange(runs, dtype=np.uint32)), done)]
        tape = NO_TAPE
        if tapes is not None and (made := span | layout).any():
            tape = TapeMap(span, layout, *tapes, np.concatenate(cuts), _NONE, int(made.all()))
        uneven = bool((strides != row_bytes).any() or len(tape.span))
        return cls(
            rows=rows,
            row_bytes=row_bytes,
            guide=guide,
            line=_NO_ORDINALS if count == done else line,
            run=_NO_ORDINALS if run is None else run,
            address=address,
            end=end,
            strides=strides if uneven else _NONE,
            board=board if has_boards else _NONE,
            session=session.view(np.int64),
            place=place.view(np.int64),
            run_starts=run_starts,
            mask=NO_MASK,
            tape=tape,
            row_line=0 if uneven else line_of(address),
            board_line=line_of(board) if has_boards else 0,
        )

    def of_runs(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return the value of each segment's run, ``[S]`` from ``[R]``."""
        return values[self.run] if len(self.run) else values[: len(self.guide.starts) - 1]

    @property
    def line_firsts(self) -> NDArray[np.uint64]:
        """First row of each line, ``u64[L]``."""
        firsts = np.arange(len(self.address))
        return self.guide.starts[np.searchsorted(self.line, firsts) if len(self.line) else firsts]

    def line_at(self, number: int) -> int:
        """Return the line of a row of the map."""
        segment = int(np.searchsorted(self.guide.starts, _U64(number), "right")) - 1
        return int(self.line[segment]) if len(self.line) else segment


#: Number of a map's words.
ROWS_WORDS = 26


def leaves(part: Any) -> Iterator[Any]:
    """Yield the words of nested tables, as the kernels take them: numbers, and the addresses of arrays."""
    for each in part:
        if isinstance(each, tuple):
            yield from leaves(each)
        else:
            yield address_of(each) if isinstance(each, np.ndarray) else each


def read_rows(words: Any) -> RowMap:
    """Make a map of its words, a tuple; the kernels compile this."""
    return RowMap(
        words[0], words[1], Guide(words[2], words[3], words[4]), words[5], words[6], words[7], words[8],
        words[9], words[10], words[11], words[12], words[13], RowMask(words[14], words[15], words[16]),
        TapeMap(words[17], words[18], words[19], words[20], words[21], words[22], words[23]),
        words[24], words[25],
    )  # fmt: skip


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
    pair = (exponents[np.minimum(place + later, len(exponents) - 1)] for later in (0, 1))
    first, second = (np.minimum(each, np.uint8(LABEL_EXPONENT_MAX)).astype(np.uint64) for each in pair)
    labels = first | second << LABEL_LATER
    labels |= guide.entries >> np.uint64(63) << LABEL_WALK
    labels |= (guide.entries >> np.uint64(32) & np.uint64(0x7FFFFFFF)) << LABEL_BOUNDARY
    return labels.astype(np.uint32)
