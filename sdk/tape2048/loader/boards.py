"""Compiled functions for the boards of rows, packed or decoded from tape, and for masks of rows.

**Packed boards** take 4 bits for each cell: 8 bytes for each row instead of 28. Batches of boards and labels
need no other part of the rows, so 1e9 rows take 8 GB. A random packed board is in one cache line, a random
row of 28 bytes often in two.

**Boards on tape** are decoded from the nearest known board before them: an anchor, or the game's start. A row
on tape is one byte long, and the kernels find its address as they find a row of ``steps.npy`` (see
``row_map``). The tables of a ``row_map.TapeMap`` lead to the known board.

**Masks** have a bit for each row of a view's map or, for the selected rows of a corpus, for each row of the
store, which all views share.
"""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.np.unsafe.ndarray import to_fixed_tuple

from tape2048.base.resources import available_cores
from tape2048.base.threads import map_ordered
from tape2048.files.bulk_read import (
    READ_BYTES,
    THREADS,
    FileRange,
    OnRead,
    Reader,
    allocate,
    check_lengths,
)
from tape2048.files.reading import read_exactly
from tape2048.files.row_source import row_numbers
from tape2048.game.rules import count_empty
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import bswap64, popcount
from tape2048.jit.memory import find, load8, load32, load64, word
from tape2048.loader.row_map import BOARD_BYTES, ROWS_WORDS, RowMap, RowMask, leaves, read_rows
from tape2048.session.blocks import board_error
from tape2048.session.layout import EXPS_OFFSET
from tape2048.session.tape_codec import step_checked, step_forward

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Sequence

    from numpy.typing import ArrayLike, NDArray


U64 = np.uint64
EXPS = U64(EXPS_OFFSET)
_LOW32 = U64(0xFFFFFFFF)
_NIBBLES = U64(0x0F0F0F0F0F0F0F0F)
TOO_LARGE = U64(0xF0F0F0F0F0F0F0F0)


@helper
def _pack_half(address: Any) -> Any:
    """Pack eight exponents into 32 bits, the first in the highest nibble."""
    half = bswap64(load64(address)) & _NIBBLES
    half = (half | half >> U64(4)) & U64(0x00FF00FF00FF00FF)
    half = (half | half >> U64(8)) & U64(0x0000FFFF0000FFFF)
    return (half | half >> U64(16)) & _LOW32


@helper
def pack(cells: Any) -> Any:
    """Pack the 16 exponents at an address, 4 bits for each cell: the low 4 bits of exponents above 15."""
    return _pack_half(cells) << U64(32) | _pack_half(cells + U64(8))


@helper
def board_of(row: Any) -> Any:
    return pack(row + EXPS)


@helper
def is_impossible(row: Any) -> Any:
    """Check whether a row's board has no tile, or an exponent above 15."""
    cells = load64(row + EXPS) | load64(row + EXPS + U64(8))
    return cells & TOO_LARGE != U64(0) or cells == U64(0)


@kernel
def _pack_rows(rows: Any, row_bytes: Any, boards: Any) -> Any:
    """Pack each row's board; return the first row without a tile or with an exponent above 15, or -1."""
    address = U64(rows.ctypes.data)
    for i in range(boards.shape[0]):
        row = address + U64(i) * row_bytes
        if is_impossible(row):
            return i
        boards[i] = board_of(row)
    return -1


def pack_rows(
    rows: NDArray[np.uint8],
    boards: NDArray[np.uint64],
    path: str | os.PathLike[str],
    offset: int | None = None,
) -> None:
    """Pack boards into ``u64[n]``; FieldError with ``path`` and offset for a board that no game has."""
    bad = int(_pack_rows(rows, U64(rows.shape[1]), boards))
    if bad >= 0:
        at = None if offset is None else offset + bad * rows.shape[1]
        raise board_error(rows[bad, EXPS_OFFSET : EXPS_OFFSET + 16].tolist(), "a row", path, at)


def read_boards(
    ranges: Sequence[FileRange],
    row_bytes: int,
    *,
    threads: int = THREADS,
    progress: Callable[[int], object] | None = None,
    on_read: OnRead | None = None,
) -> NDArray[np.uint64]:
    """Read ranges of whole rows as boards; the functions are called as by ``bulk_read.read_rows``."""
    check_lengths(ranges)
    boards = allocate(sum(one.bytes for one in ranges) // row_bytes * BOARD_BYTES).view(np.uint64)
    piece_rows, scratch = READ_BYTES // row_bytes, threading.local()

    def read_step(fd: int, one: FileRange, begin: int) -> None:
        if not hasattr(scratch, "rows"):
            scratch.rows = np.empty((piece_rows, row_bytes), np.uint8)
        for first in range(0, one.bytes // row_bytes, piece_rows):
            rows = scratch.rows[: min(piece_rows, one.bytes // row_bytes - first)]
            offset = one.offset + first * row_bytes
            read_exactly(fd, rows.reshape(-1), offset, one.path)
            if on_read is not None:
                on_read(one._replace(offset=offset), rows.reshape(-1))
            at = begin // row_bytes + first
            pack_rows(rows, boards[at : at + len(rows)], one.path, offset)

    with Reader(ranges, read_step, threads=threads, unit=row_bytes) as reader:
        reader.finish(progress)
    boards.flags.writeable = False
    return boards


#: Words of a span's entry: the addresses of its first byte and of its first anchor, and the binary logarithm
#: of the rows between two anchors.
BEGIN, ANCHORS, SHIFT = (U64(i) for i in range(3))
#: Words of a layout: the offsets of run id, step, board, move and mask in a row, 1 if boards are packed, and
#: 1 if steps have 2 bytes.
RUN, STEP, BOARD, MOVE, MASK, PACKED, SHORT = (U64(i) for i in range(7))
#: The offset of a field that a layout lacks.
LACKS = ~U64(0)


@helper
def line_of(rows: Any, segment: Any) -> Any:
    return load32(rows.line + (segment << U64(2))) if rows.line else segment


@helper
def run_of(rows: Any, segment: Any) -> Any:
    return load32(rows.run + (segment << U64(2))) if rows.run else segment


@helper
def stride_of(rows: Any, segment: Any) -> Any:
    return word(rows.strides, line_of(rows, segment)) if rows.strides else rows.row_bytes


@helper
def span_of(rows: Any, segment: Any) -> Any:
    """Return the address of the entry of a segment's span; 0 for rows that are not on tape."""
    return word(rows.tape.span, line_of(rows, segment))


@helper
def layout_of(rows: Any, segment: Any) -> Any:
    """Return the address of the words of a segment's layout; 0 for a recorder's rows or tape."""
    return word(rows.tape.layout, line_of(rows, segment))


@helper
def first_of(rows: Any, segment: Any) -> Any:
    first = word(rows.address, line_of(rows, segment)) + word(rows.guide.starts, segment)
    return first - load32(rows.tape.cuts + (segment << U64(3))) if rows.tape.cuts else first


@helper
def end_of(rows: Any, segment: Any) -> Any:
    if rows.tape.cuts:
        return first_of(rows, segment) + load32(rows.tape.cuts + (segment << U64(3)) + U64(4))
    return word(rows.address, line_of(rows, segment)) + word(rows.guide.starts, segment + U64(1))


@helper
def nearest(row: Any, rows: Any, segment: Any) -> Any:
    """Return the address of the nearest known board before a row on tape, and of the byte that follows it."""
    span, first = span_of(rows, segment), first_of(rows, segment)
    begin, shift = word(span, BEGIN), word(span, SHIFT)
    anchor = (row - begin) >> shift
    source = begin + (anchor << shift)
    if source < first:  # the anchor belongs to another game
        return rows.tape.starts + (run_of(rows, segment) << U64(3)), first
    return word(span, ANCHORS) + (anchor << U64(3)), source


@helper
def board_at(row: Any, rows: Any, segment: Any) -> Any:
    """Return the board of the row on tape whose byte is at an address."""
    known, source = nearest(row, rows, segment)
    board = load64(known)
    while source < row:
        board = step_forward(board, load8(source))
        source += U64(1)
    return board


@helper
def step_in(row: Any, layout: Any) -> Any:
    """Return the step of a row of a layout, without reading a byte behind it: the file may end there."""
    at = row + word(layout, STEP)
    return load8(at) | load8(at + U64(1)) << U64(8) if word(layout, SHORT) else load32(at)


@helper
def board_in(row: Any, layout: Any) -> Any:
    """Return the packed board of a row of a layout, and whether a tile is above 32768."""
    cells, mask = row + word(layout, BOARD), word(layout, MASK)
    if not word(layout, PACKED):
        return pack(cells), (load64(cells) | load64(cells + U64(8))) & TOO_LARGE != U64(0)
    high = U64(0) if mask == LACKS else load8(row + mask) | load8(row + mask + U64(1))
    return load64(cells), high != U64(0)


_SEVENS = U64(0x7F7F7F7F7F7F7F7F)

#: Number of ranges for each core into which a scan of rows is divided.
_SHARES = 4

BLOCK_WORDS = 8
#: Rows of a view from one sampled block to the next: the number of bits of a block.
SAMPLE_ROWS = 64 * BLOCK_WORDS


_read_rows: Any = helper(read_rows)
_entries: Any = to_fixed_tuple


@helper
def _empty_at(row: Any, layout: Any, packed: Any) -> Any:
    """Return the empty cells of a row, or of a packed board, and whether a tile is above 32768."""
    if packed:
        return count_empty(load64(row)), False
    if layout:
        board, wrong = board_in(row, layout)
        return count_empty(board), wrong
    return U64(16) - _filled(load64(row + EXPS)) - _filled(load64(row + EXPS + U64(8))), False


@kernel
def _mark(bounds: Any, map_words: Any, low: Any, high: Any, words: Any) -> Any:
    """Set bits of rows by empty cells; ``bounds`` are multiples of 64.

    Return a row against the rules, or -1.
    """
    rows = _read_rows(_entries(map_words, ROWS_WORDS))
    bad, at, board, layout, on_tape = U64(0), U64(0), U64(0), U64(0), False
    row, end = bounds
    if row >= end:
        return np.int64(-1)
    segment = find(row, rows.guide.entries, rows.guide.starts, rows.guide.shift)
    while row < end:
        line = line_of(rows, segment)
        if rows.tape.span and not rows.board:
            layout = layout_of(rows, segment)
            on_tape = span_of(rows, segment) != U64(0)
        stop = min(word(rows.guide.starts, segment + U64(1)), end)
        origin = word(rows.board or rows.address, line)
        stride = U64(BOARD_BYTES) if rows.board else stride_of(rows, segment)
        if on_tape and row < stop:
            at = origin + row
            board = board_at(at, rows, segment)
        while row < stop:
            if on_tape:
                empty = count_empty(board)
                board, wrong = step_checked(board, load8(at))
                if wrong and row + U64(1) < stop:
                    bad = row + U64(1)
                at += U64(1)
            else:
                empty, wrong = _empty_at(origin + row * stride, layout, rows.board)
                if wrong:
                    bad = row + U64(1)
            words[row >> U64(6)] |= U64(low <= empty < high) << (row & U64(63))
            row += U64(1)
        segment += U64(1)
    return np.int64(bad) - 1


@helper
def _filled(cells: Any) -> Any:
    """Count the bytes that are not 0, by their high bits (Hacker's Delight, 6-1)."""
    return popcount((((cells & _SEVENS) + _SEVENS) | cells) & ~_SEVENS)


def mark_empties(
    rows: RowMap, low: int, high: int, report: Callable[[RowMap, int], object]
) -> NDArray[np.uint64]:
    """Return a mask of the rows of a map whose board has ``low <= empty cells < high``.

    Reads the board of every row once, on all cores: for 1e9 rows, 28 GB of rows, 8 GB of packed boards, or 1
    GB of tape. ``report`` raises the error of a row that breaks the rules.
    """
    words = no_bits(rows.rows)
    where = np.array([*leaves(rows)], U64)
    edges = np.linspace(0, len(words), available_cores() * _SHARES + 1).astype(np.int64) * 64
    edges = np.minimum(edges, rows.rows).astype(U64)
    limits = U64(max(0, low)), U64(max(0, high))
    shares = [(edges[i], edges[i + 1]) for i in range(len(edges) - 1)]
    for bad in map_ordered(lambda share: _mark(share, where, *limits, words), shares):
        if bad >= 0:
            report(rows, bad)  # which raises the error of the tape
    return words


def no_bits(rows: int) -> NDArray[np.uint64]:
    """Return the words of a mask of ``rows`` rows, in whole blocks, with no bit set."""
    return np.zeros(-(-rows // SAMPLE_ROWS) * BLOCK_WORDS, U64)


def bits_of(rows: ArrayLike, count: int) -> NDArray[np.uint64]:
    """Return the words of a mask, given as ``bool[count]`` or as row numbers; errors as ``Corpus.select``."""
    given, words = np.asarray(rows), no_bits(count)
    octets = words.view(np.uint8)
    if given.dtype == np.bool_:
        if given.shape != (count,):
            raise ValueError(f"found a mask of shape {given.shape}, expected ({count},), one entry a row")
        octets[: -(-count // 8)] = np.packbits(given, bitorder="little")
        return words
    numbers = row_numbers(given, count)
    # Different powers of two add up without a carry. A row that is given twice changes the count.
    np.add.at(octets, numbers >> 3, np.left_shift(1, numbers & 7).astype(np.uint8))
    if int(np.bitwise_count(words).sum(dtype=np.int64)) < len(numbers):
        found, times = np.unique(numbers, return_counts=True)
        at = int(times.argmax())
        raise ValueError(f"row {found[at]} comes {times[at]} times; expected each row at most once")
    return words


@kernel
def copy_bits(source: Any, begins: Any, target: Any, targets: Any, counts: Any) -> None:
    """Copy ``counts[i]`` bits from ``begins[i]`` of the source to ``targets[i]`` of the target."""
    for i in range(counts.shape[0]):
        begin, to, left = U64(begins[i]), U64(targets[i]), U64(counts[i])
        while left:
            some = min(left, U64(64) - (begin & U64(63)), U64(64) - (to & U64(63)))
            bits = source[begin >> U64(6)] >> (begin & U64(63)) & (~U64(0) >> (U64(64) - some))
            target[to >> U64(6)] |= bits << (to & U64(63))
            begin, to, left = begin + some, to + some, left - some


@kernel(allocates=True)
def spread_bits(source: Any, words: Any) -> Any:
    """Return a mask with its k-th set bit replaced by bit k of the source."""
    target, k = np.empty_like(words), U64(0)
    for i in range(words.shape[0]):
        left, found = words[i], U64(0)
        while left:
            lowest = left & (~left + U64(1))
            found |= lowest * (source[k >> U64(6)] >> (k & U64(63)) & U64(1))
            left ^= lowest
            k += U64(1)
        target[i] = found
    return target


@kernel
def _count_below(numbers: Any, words: Any, ranks: Any, counts: Any) -> None:
    for i in range(numbers.shape[0]):
        word, bits = numbers[i] >> U64(6), numbers[i] & U64(63)
        count = ranks[word // U64(BLOCK_WORDS)]
        for before in range(word // U64(BLOCK_WORDS) * U64(BLOCK_WORDS), word):
            count += popcount(words[before])
        if bits:
            count += popcount(words[word] & ((U64(1) << bits) - U64(1)))
        counts[i] = count


def masked(rows: RowMap, words: NDArray[np.uint64]) -> RowMap:
    # Counts for each block: counts for each word would take as much memory as the mask.
    ranks = np.zeros(len(words) // BLOCK_WORDS + 1, U64)
    np.cumsum(np.bitwise_count(words).reshape(-1, BLOCK_WORDS).sum(axis=1, dtype=U64), out=ranks[1:])
    samples = np.searchsorted(ranks, np.arange(0, int(ranks[-1]), SAMPLE_ROWS, dtype=U64), "right") - 1
    mask = RowMask(words, ranks, np.append(samples, max(0, len(ranks) - 2)).astype(U64))
    run_starts = np.empty_like(rows.run_starts)
    _count_below(rows.run_starts, words, ranks, run_starts)
    return rows._replace(mask=mask, run_starts=run_starts)
