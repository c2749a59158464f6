"""First half of the gather: look-up of the addresses of rows in a view, and decoding of rows on tape.

Each step (the cap's draw, the mask's selection, the guide) is a separate loop over a chunk of rows, which
runs only if the view needs it. Tables are addresses and not arrays: passing an array to a function costs two
atomic updates of its reference count, and each row takes look-ups in four tables.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from tape2048.formats.session import EXPS_OFFSET, STEP_DTYPE
from tape2048.jit.intrinsics import (
    find,
    high64,
    keep,
    load8,
    load32,
    load64,
    mix,
    popcount,
    prefetch_many,
    select_bit,
    store8_at,
    store32_at,
    store64_at,
    unpack_symmetry,
    word,
)
from tape2048.rows.row_map import BOARD_BYTES, LABEL_BOUNDARY, LABEL_EXPONENT_MAX, LABEL_LATER, LABEL_WALK
from tape2048.rows.tape_rows import FIRST, entry_of, nearest
from tape2048.tape.codec import step_checked

U64 = np.uint64

#: Rows of a chunk, a power of two: 64 took 5 to 8% longer, and 256 as long; two chunks fit the L1 cache.
CHUNK = 128

#: Rows of a part of a chunk: consecutive rows on tape are decoded one after the other within it.
PART = 32

#: Words of memory for the rows of a chunk that are made: their order, their boards, and the rows.
SCRATCH_WORDS = 6 * CHUNK

_BOARDS, _ROWS = U64(8 * CHUNK), U64(16 * CHUNK)
_ROW_SHIFT = U64(5)
_STEP = U64(STEP_DTYPE.fields["step_idx"][1])  # type: ignore[index]
_EXPS, _ACTION = U64(EXPS_OFFSET), U64(STEP_DTYPE.itemsize)

_LINE = U64(64)
_BOARD_BYTES = U64(BOARD_BYTES)


class Chunk(NamedTuple):
    """Addresses of the tables of a chunk, ``u64[CHUNK]`` each.

    ``number`` has each row's place in the view, and after the look-up its number in the view; ``base`` its
    number in the map (the same table without a mask); ``segment`` its segment; ``exponent`` that of its
    game's highest tile; ``row`` its address; ``board`` the address of its packed board; ``source``, of a row
    on tape, the address of the byte from which it is decoded, on the board at ``board``, or 0 where the row
    follows on the one before it in the chunk.
    """

    number: Any
    base: Any
    segment: Any
    exponent: Any
    row: Any
    board: Any
    source: Any


class Wants(NamedTuple):
    """The parts of a row that the outputs need: segment, label, bytes ``lead`` to ``last``, packed board.

    ``taped``: rows or boards of the view are decoded from tape.
    """

    segments: Any
    labels: Any
    rows: Any
    lead: Any
    last: Any
    boards: Any
    taped: Any


@register_jitable
def run_of(tables: Any, segment: Any) -> Any:
    """Return the ordinal of a segment's run."""
    return load32(tables.run + (segment << U64(2)))


@register_jitable
def stride_of(tables: Any, segment: Any) -> Any:
    """Return the bytes from a segment's row to the next one."""
    return word(tables.strides, segment) if tables.strides else tables.row_bytes


@register_jitable
def _draw(number: Any, tables: Any, cap_key: Any) -> Any:
    """Return the row of a capped number in this epoch; see ``tape2048.Capped``."""
    run = find(number, tables.cap_entries, tables.cap_starts, tables.cap_shift)
    begin = word(tables.cap_starts, run)
    slot = number - begin
    taken = word(tables.cap_starts, run + U64(1)) - begin
    first = word(tables.run_starts, run)
    rows = word(tables.run_starts, run + U64(1)) - first
    if rows == taken:
        return first + slot
    key = mix(cap_key + run)
    turn = high64(key, rows)
    if tables.cap_evenly:
        return first + (slot * rows + turn) // taken
    low = slot * rows // taken
    size = (slot + U64(1)) * rows // taken - low
    row = low + high64(mix(key + slot + U64(1)), size) + turn
    return first + (row - rows if row >= rows else row)


@register_jitable
def _unmask(number: Any, tables: Any) -> Any:
    """Return the ``number``-th row (from 0) of the map with its bit set."""
    sample = number >> U64(9)
    low, high = word(tables.samples, sample), word(tables.samples, sample + U64(1))
    while low < high:  # the last block with at most `number` bits set before it
        middle = (low + high + U64(1)) >> U64(1)
        if word(tables.ranks, middle) <= number:
            low = middle
        else:
            high = middle - U64(1)
    rest = number - word(tables.ranks, low)
    at = low << U64(3)
    bits = word(tables.words, at)
    count = popcount(bits)
    while rest >= count:
        rest -= count
        at += U64(1)
        bits = word(tables.words, at)
        count = popcount(bits)
    return (at << U64(6)) + popcount(select_bit(bits, rest) - U64(1))


@register_jitable
def _within(numbers: Any, count: Any, limit: Any) -> Any:
    """Count the leading numbers that are below the limit."""
    highest = U64(0)
    for k in range(count):
        highest = max(highest, word(numbers, k))
    if highest < limit:
        return count
    within = U64(0)
    while within < count and word(numbers, within) < limit:
        within += U64(1)
    return within


@register_jitable
def _take_from_pool(chunk: Any, count: Any, tables: Any) -> Any:
    """Turn slots of a pool into row addresses and numbers; return how many slots are in the pool."""
    count = _within(chunk.number, count, tables.pool_rows)
    for k in range(count):
        slot = word(chunk.number, k)
        if tables.packed:
            keep(chunk.board, k, tables.pool + slot * _BOARD_BYTES)
        else:
            keep(chunk.row, k, tables.pool + slot * tables.row_bytes)
        within = slot & ((U64(1) << tables.pool_shift) - U64(1))
        keep(chunk.number, k, word(tables.pool_firsts, slot >> tables.pool_shift) + within)
    return count


@register_jitable
def _locate(chunk: Any, count: Any, where: Any, out: Any) -> None:
    """Compute addresses from numbers in the map.

    ``where``: address of number 0 if all are adjacent, else 0; a table of that address for each segment; a
    table of the bytes of an element in each segment, or 0; and these bytes without that table.
    """
    line, origins, sizes, size = where
    if line:
        for k in range(count):
            keep(out, k, line + word(chunk.base, k) * size)
        return
    if sizes:
        for k in range(count):
            segment = word(chunk.segment, k)
            keep(out, k, word(origins, segment) + word(chunk.base, k) * word(sizes, segment))
        return
    for k in range(count):
        keep(out, k, word(origins, word(chunk.segment, k)) + word(chunk.base, k) * size)


@register_jitable
def _exponent(base: Any, tables: Any) -> Any:
    """Return the exponent of the highest tile of a row's game, by the row's segment."""
    return load8(tables.exponents + find(base, tables.entries, tables.starts, tables.shift))


@register_jitable
def _label(chunk: Any, count: Any, tables: Any) -> None:
    """Look up the exponents of the rows' games; see ``row_map`` for the label guide."""
    shift = tables.shift
    if not tables.labels:
        for k in range(count):
            keep(chunk.exponent, k, _exponent(word(chunk.base, k), tables))
        return
    for k in range(count):
        base = word(chunk.base, k)
        entry = load32(tables.labels + ((base >> shift) << U64(2)))
        later = base & ((U64(1) << shift) - U64(1)) >= entry >> LABEL_BOUNDARY
        exponent = (entry >> LABEL_LATER if later else entry) & LABEL_EXPONENT_MAX
        if (entry >> LABEL_WALK) & U64(1):
            exponent = _exponent(base, tables)
        keep(chunk.exponent, k, exponent)


@register_jitable
def _resolve(chunk: Any, count: Any, tables: Any, cap_key: Any) -> Any:
    """Turn places into numbers in the view and in the map; return how many are within the view."""
    if tables.pool:
        count = _take_from_pool(chunk, count, tables)
    count = _within(chunk.number, count, tables.limit)
    if tables.cap_entries:
        for k in range(count):
            keep(chunk.number, k, _draw(word(chunk.number, k), tables, cap_key))
    if tables.words:
        for k in range(count):
            keep(chunk.base, k, _unmask(word(chunk.number, k), tables))
    return count


@register_jitable
def _find_sources(chunk: Any, count: Any, tables: Any) -> None:
    """Find from where rows on tape are decoded, and prefetch it.

    A row that follows on the one before it in the chunk needs only that one's board. But every 32nd row is
    decoded by itself, so that the chunk's parts do not wait for each other.
    """
    before = U64(0)
    for k in range(count):
        row, entry = word(chunk.row, k), entry_of(tables.tape, word(chunk.segment, k))
        if not word(entry, FIRST):
            before = U64(0)
            continue
        if row == before + U64(1) and row != word(entry, FIRST) and k % PART:
            keep(chunk.source, k, U64(0))
        else:
            known, source = nearest(row, entry)
            keep(chunk.board, k, known)
            keep(chunk.source, k, source)
            prefetch_many(known)
            prefetch_many(source)
        before = row


@register_jitable
def look_up(chunk: Any, count: Any, tables: Any, cap_key: Any, wants: Any) -> Any:
    """Fill the wanted tables of a chunk from its places.

    Returns:
        The number of leading places within the view.
    """
    count = _resolve(chunk, count, tables, cap_key)
    if wants.segments:
        for k in range(count):
            segment = find(word(chunk.base, k), tables.entries, tables.starts, tables.shift)
            keep(chunk.segment, k, segment)
    if wants.labels:
        _label(chunk, count, tables)
    if (wants.rows or wants.taped) and not tables.pool:
        _locate(chunk, count, (tables.line, tables.address, tables.strides, tables.row_bytes), chunk.row)
    if wants.boards and tables.board:
        _locate(chunk, count, (tables.board_line, tables.board, U64(0), _BOARD_BYTES), chunk.board)
    if wants.taped:
        _find_sources(chunk, count, tables)
    return count


@register_jitable
def prefetch_last_line(first: Any, last: Any, near: Any) -> None:
    """Prefetch the cache line of the last of at most 64 bytes, if the first byte is in another line.

    Otherwise prefetch ``near``, which is in the cache: a second request for a line in flight takes another
    slot (an eighth of the time, with rows of 28 bytes), and a branch would be mispredicted for every third
    row.
    """
    prefetch_many(last if (first ^ last) & _LINE else near)


@register_jitable
def prefetch_row(chunk: Any, k: Any, other: Any, wants: Any) -> None:
    """Prefetch the first wanted cache line of a chunk's row ``k``, and the second one of row ``other``.

    In a loop over a chunk, ``other`` is some rows behind: requested at once, before the page walk of the
    first line, second lines slowed batches of tokens by 2 to 4%.
    """
    prefetch_many(word(chunk.row, k) + wants.lead)
    row = word(chunk.row, other)
    prefetch_last_line(row + wants.lead, row + wants.last, chunk.row)


@register_jitable
def prefetch_rows(chunk: Any, count: Any, wants: Any) -> None:
    """Prefetch the wanted cache lines of a chunk's rows."""
    if wants.rows:
        for k in range(count):
            prefetch_row(chunk, k, k, wants)


@register_jitable
def prefetch_boards(chunk: Any, count: Any, wants: Any) -> None:
    """Prefetch the cache lines of a chunk's packed boards, if wanted."""
    if wants.boards:
        for k in range(count):
            prefetch_many(word(chunk.board, k))


# --- Rows on tape. A random row is up to 15 steps from a board that is known. A step waits for the one before
# it in the row, so the rows of a chunk take steps in turns, and rows that have arrived drop out.


@register_jitable
def decode_chunk(chunk: Any, count: Any, tables: Any, wants: Any, scratch: Any) -> Any:
    """Decode the rows of a chunk that are on tape.

    Afterwards, ``chunk.source`` of such a row is the address of its own byte, ``chunk.board`` that of its
    board, and, if rows are wanted, ``chunk.row`` that of a row made of it, all in ``scratch``.

    Returns:
        0; or 1 + the number in the map of a row before which the rules do not allow a step.
    """
    boards = scratch + _BOARDS
    left = bad = U64(0)
    for k in range(count):
        if word(entry_of(tables.tape, word(chunk.segment, k)), FIRST) and word(chunk.source, k):
            keep(boards, k, load64(word(chunk.board, k)))
            keep(scratch, left, k)
            left += U64(word(chunk.source, k) != word(chunk.row, k))
    while left:
        kept = U64(0)
        for i in range(left):
            k = word(scratch, i)
            source = word(chunk.source, k)
            board, wrong = step_checked(word(boards, k), load8(source))
            if wrong:
                bad = word(chunk.base, k) + U64(1)
            keep(boards, k, board)
            source += U64(1)
            keep(chunk.source, k, source)
            keep(scratch, kept, k)
            kept += U64(source != word(chunk.row, k))
        left = kept
    following = _follow(chunk, count, tables, boards)
    for k in range(count):
        entry = entry_of(tables.tape, word(chunk.segment, k))
        if word(entry, FIRST):
            keep(chunk.board, k, boards + (U64(k) << U64(3)))
            if wants.rows:
                row = scratch + _ROWS + (U64(k) << _ROW_SHIFT)
                _make_row(chunk, k, tables, entry, row)
                keep(chunk.row, k, row)
    return bad or following


@register_jitable
def _follow(chunk: Any, count: Any, tables: Any, boards: Any) -> Any:
    """Decode the rows that follow on the one before them, in all parts of the chunk by turns.

    Returns as :func:`decode_chunk`.
    """
    bad = U64(0)
    for within in range(U64(1), U64(PART)):
        for k in range(within, count, U64(PART)):
            if word(entry_of(tables.tape, word(chunk.segment, k)), FIRST) and not word(chunk.source, k):
                row = word(chunk.row, k)
                board, wrong = step_checked(word(boards, k - U64(1)), load8(row - U64(1)))
                if wrong:
                    bad = word(chunk.base, k) + U64(1)
                keep(boards, k, board)
                keep(chunk.source, k, row)
    return bad


@register_jitable
def _make_row(chunk: Any, k: Any, tables: Any, entry: Any, row: Any) -> None:
    """Write a row of ``ACTION_STEP_DTYPE``."""
    at = word(chunk.source, k)
    store64_at(row, load64(tables.runs + run_of(tables, word(chunk.segment, k)) * tables.run_bytes))
    store32_at(row + _STEP, at - word(entry, FIRST))
    unpack_symmetry(load64(word(chunk.board, k)), row + _EXPS, U64(0))
    store8_at(row + _ACTION, load8(at) & U64(3))
