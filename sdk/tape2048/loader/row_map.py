"""Tables that locate the rows of a view in memory, for ``gather_kernel``. They grow with the runs.

A **segment** is a range of rows of one run that are adjacent in memory. A run is one segment, except in
sessions of other programs that interleave their runs. A view numbers its rows run after run, in step order,
so a segment is a range of these numbers. A guide (``base.guide``) finds the segment of a number.

A **line** is a range of segments that are adjacent in memory, such as all games of a session. The address of
a row is

    line's address + row number x line's stride

where the line's address is the address that row 0 would have, modulo 2**64. The stride is the size of a row
in its file: 29 bytes with the action, 28 without, 1 on tape, any size in a file of another program. A view of
whole sessions has one line for each session. A game takes 8 bytes for its first number, 4 for its line, 8 for
its first board if it is on tape, and a few for the guide.

A row on tape is a byte, and the row's address is the byte's address. More tables lead to the anchor from
which its board is decoded (:class:`TapeMap`). Rows of another program's layout are also made from the bytes
at their address.

A selection of rows, or a condition on the board, adds a mask over the numbers: one bit for each row, and one
count for every 512 rows (``boards``).
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

#: Bytes of a packed board: 4 bits for each cell.
BOARD_BYTES = 8

#: Bytes from a row on tape to the next. No other row is as short.
TAPE_STRIDE = 1

# Bits of an entry of a label guide. From bit 0: the exponent of the bucket's first segment. From LABEL_LATER:
# the exponent of the next segment. At LABEL_WALK: whether there may be more segments, so that the label must
# be looked up. From LABEL_BOUNDARY: the position in the bucket at which the next segment starts.
LABEL_LATER, LABEL_WALK, LABEL_BOUNDARY = np.uint64(5), np.uint64(10), np.uint64(11)
LABEL_EXPONENT_MAX = np.uint64(31)
#: The boundary has 21 bits, so a bucket has at most ``2**20`` rows.
LABEL_SHIFT_MAX = 20
NO_LABELS = np.empty(0, np.uint32)


class RowMask(NamedTuple):
    """A mask of the rows of a map that are in a view, with counts to find the k-th row of the view.

    ``words`` is ``u64[W]``, W a multiple of 8; bit ``i % 64`` of word ``i // 64`` is row i. ``ranks``
    (``u64[W / 8 + 1]``) counts bits before each block of 8 words. ``samples`` has the block with set bit 512
    x k for each k, and the last block.
    """

    words: NDArray[np.uint64]
    ranks: NDArray[np.uint64]
    samples: NDArray[np.uint64]


#: The mask of a view of all rows.
NO_MASK = RowMask(_NONE, _NONE, _NONE)


class Segments(NamedTuple):
    """The S segments of a view, by run, before its rows are numbered."""

    address: NDArray[np.uint64]  #: address of the first row
    rows: NDArray[np.int64]  #: number of rows, at least 1
    run: NDArray[np.int64]  #: ordinal of the run in the view, ascending
    end: NDArray[np.uint64]  #: end address of the array that holds the segment
    first_row: NDArray[np.int64]  #: number of the first row within the session
    session: NDArray[np.int64]  #: ordinal of the session
    stride: NDArray[np.int64]  #: bytes from a row to the next
    layout: NDArray[np.uint64]  #: address of the words of ``foreign.Layout``; 0 for a recorder's rows

    def take(self, chosen: NDArray[Any]) -> Segments:
        return Segments(*(column[chosen] for column in self))

    @property
    def keys(self) -> NDArray[np.int64]:
        """A number for each segment, ``i64[S]``, that sorts them by session and row."""
        keys: NDArray[np.int64] = (self.session << 40) + self.first_row
        return keys

    @property
    def on_tape(self) -> NDArray[np.bool_]:
        found: NDArray[np.bool_] = self.stride == TAPE_STRIDE
        return found

    def in_file_order(self) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Return the order of the segments in their files, and the starts of adjacent segments in it."""
        keys = self.keys
        order = np.argsort(keys, kind="stable")
        begins = keys[order]
        apart = begins[1:] != (begins + self.rows[order])[:-1]
        return order, np.flatnonzero(np.concatenate(([True], apart)))


class TapeMap(NamedTuple):
    """The tables that make rows from tape, or from rows of another program's layout; empty if not needed.

    ``span`` (``u64[L]``) is the address of the entry of each line's span; 0 for a line that is not on tape.
    ``layout`` (``u64[L]``) is 0 for a recorder's rows or tape. ``spans`` (``u64[n, 3]``, sorted by address)
    have the address of the first byte, which has an anchor; the address of this anchor; and the binary
    logarithm of the rows between two anchors. ``starts`` is the first board of each run. ``cuts`` (``u32[S,
    2]``) are rows of the game before the segment, and of the whole game; empty for whole games. ``ids`` is
    for rows that are made; if empty, their ids are 0. ``alone``: all rows are made.
    """

    span: NDArray[np.uint64]
    layout: NDArray[np.uint64]
    spans: NDArray[np.uint64]
    starts: NDArray[np.uint64]
    cuts: NDArray[np.uint32]
    ids: NDArray[np.uint64]
    alone: Any


#: The tables of a view without such rows.
NO_TAPE = TapeMap(_NONE, _NONE, _NONE, _NONE, np.empty((0, 2), np.uint32), _NONE, 0)


class RowMap(NamedTuple):
    rows: Any  #: number of rows in the map, before the mask
    row_bytes: Any  #: bytes of a row of the view, 28 or 29; longer rows are cut, and rows on tape are made
    guide: Guide  #: guide from row numbers to segments
    line: NDArray[np.uint32]  #: line of each segment, [S]; empty if each segment is a line
    run: NDArray[np.uint32]  #: ordinal of each segment's run, [S]; empty if each run is a segment
    address: NDArray[np.uint64]  #: address that row 0 would have in each line, [L]
    end: NDArray[np.uint64]  #: ``Segments.end`` of each line
    strides: NDArray[np.uint64]  #: ``Segments.stride`` if a stride is not ``row_bytes``. Otherwise, empty
    board: NDArray[np.uint64]  #: address that packed board 0 would have in each line, or empty
    session: NDArray[np.int64]  #: ordinal of each line's session
    first_row: NDArray[np.int64]  #: number in its session that row 0 would have in each line
    run_starts: NDArray[np.uint64]  #: first row of each run in the view, and the number of rows, [R + 1]
    mask: RowMask
    tape: TapeMap
    row_line: Any  #: address of row 0 if all lines have the same, and every stride is ``row_bytes``; else 0
    board_line: Any  #: address of packed board 0 if all lines have the same, else 0

    @classmethod
    def of(
        cls,
        parts: Iterable[tuple[Segments, NDArray[np.uint64] | None, NDArray[np.uint32] | None]],
        runs: int,
        row_bytes: int,
        tapes: tuple[NDArray[np.uint64], NDArray[np.uint64]] | None = None,
        scattered: Sequence[int] = (),
    ) -> RowMap:
        """Make the map of all rows of some segments; ``parts`` have ascending runs.

        With each part come the address of each segment's first packed board, ``u64[S]``, or None; and
        :attr:`TapeMap.cuts`, or None for whole games. ``runs`` includes runs without rows. The ``scattered``
        sessions have columns with gaps between segments, so each of their segments becomes a line.
        """
        # Lists of arrays would stay on the heap: 1.6 GB for 1e8 runs.
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
                segments.session.astype(_U64), segments.first_row.astype(_U64) - firsts, span,
                segments.layout,
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
        address, end, strides, board, session, first_row, span, layout = np.concatenate(lines, axis=1)
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
            first_row=first_row.view(np.int64),
            run_starts=run_starts,
            mask=NO_MASK,
            tape=tape,
            row_line=0 if uneven else line_of(address),
            board_line=line_of(board) if has_boards else 0,
        )

    def of_runs(self, values: NDArray[Any]) -> NDArray[Any]:
        """Return, for each segment, the value of its run: ``[S]`` from ``[R]``."""
        return values[self.run] if len(self.run) else values[: len(self.guide.starts) - 1]

    @property
    def line_firsts(self) -> NDArray[np.uint64]:
        firsts = np.arange(len(self.address))
        return self.guide.starts[np.searchsorted(self.line, firsts) if len(self.line) else firsts]

    def line_at(self, number: int) -> int:
        segment = int(np.searchsorted(self.guide.starts, _U64(number), "right")) - 1
        return int(self.line[segment]) if len(self.line) else segment


#: Number of words of a map.
ROWS_WORDS = 26


def leaves(part: Any) -> Iterator[Any]:
    """Yield the words of nested tables for the kernels: numbers, and the addresses of arrays."""
    for each in part:
        if isinstance(each, tuple):
            yield from leaves(each)
        else:
            yield address_of(each) if isinstance(each, np.ndarray) else each


def read_rows(words: Any) -> RowMap:
    """Make a map from the tuple of its words. The kernels compile this function."""
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
    """Return the first address if all are equal, so that no look-up is needed; else 0."""
    in_line = len(addresses) > 0 and bool((addresses == addresses[0]).all())
    return int(addresses[0]) if in_line else 0


def make_label_guide(guide: Guide, exponents: NDArray[np.uint8]) -> NDArray[np.uint32]:
    """Make a guide from row numbers to the exponents of their labels; empty if buckets are too large.

    It has half the size of the guide to segments, whose 3 MB for 200M rows do not fit a core's private
    caches. ``exponents`` (``u8[S]``) are by segment.
    """
    if not len(exponents) or guide.shift > LABEL_SHIFT_MAX:
        return NO_LABELS
    slot = (guide.entries & np.uint64(0xFFFFFFFF)).astype(np.int64)
    pair = (exponents[np.minimum(slot + later, len(exponents) - 1)] for later in (0, 1))
    first, second = (np.minimum(each, np.uint8(LABEL_EXPONENT_MAX)).astype(np.uint64) for each in pair)
    labels = first | second << LABEL_LATER
    labels |= guide.entries >> np.uint64(63) << LABEL_WALK
    labels |= (guide.entries >> np.uint64(32) & np.uint64(0x7FFFFFFF)) << LABEL_BOUNDARY
    return labels.astype(np.uint32)
