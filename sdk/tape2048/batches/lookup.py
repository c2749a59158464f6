"""The first half of the gather: from places in a view to the addresses of their rows.

Each step is a loop of its own over a chunk of rows, and none is run that the view does not need: the cap's
draw, the mask's selection, the guide. Tables are addresses and not arrays: an array that is handed from one
function to another costs two atomic counts of its references, and there are look-ups in four tables for each
row.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable

from tape2048.jit.intrinsics import (
    find,
    high64,
    keep,
    load8,
    load32,
    mix,
    popcount,
    prefetch_many,
    select_bit,
    word,
)
from tape2048.store.row_map import BOARD_BYTES, LABEL_BOUNDARY, LABEL_EXPONENT_MAX, LABEL_LATER, LABEL_WALK

U64 = np.uint64

#: Rows of a chunk, a power of two: 64 took 5 to 8% more, and 256 no less; the lines of two chunks fit the
#: L1 cache.
CHUNK = 128

_LINE = U64(64)
_BOARD_BYTES = U64(BOARD_BYTES)


class Chunk(NamedTuple):
    """Addresses of tables of CHUNK ``u64`` each.

    ``number`` has each row's place in the view, and once it is looked up, its number in the view; ``base``
    its number in the map (the same table where no mask parts the two), ``segment`` its segment, ``exponent``
    that of its game's highest tile, ``row`` its address, and ``board`` that of its packed board.
    """

    number: Any
    base: Any
    segment: Any
    exponent: Any
    row: Any
    board: Any


class Wants(NamedTuple):
    """What of a row the outputs need: segment, label, bytes ``lead`` to ``last``, packed board."""

    segments: Any
    labels: Any
    rows: Any
    lead: Any
    last: Any
    boards: Any


@register_jitable
def run_of(tables: Any, segment: Any) -> Any:
    """The ordinal of a segment's run."""
    return load32(tables.run + (segment << U64(2)))


@register_jitable
def _draw(number: Any, tables: Any, cap_key: Any) -> Any:
    """The row that a capped number stands for in this epoch; see ``tape2048.Capped``."""
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
    """The row of the map that is the ``number``-th (from 0) with its bit set."""
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
    """How many of the numbers, from the first on, are below the limit."""
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
    """Rows and numbers of slots in a pool; returns how many there are."""
    count = _within(chunk.number, count, tables.pool_rows)
    for k in range(count):
        slot = word(chunk.number, k)
        keep(chunk.row, k, tables.pool + slot * tables.row_bytes)
        within = slot & ((U64(1) << tables.pool_shift) - U64(1))
        keep(chunk.number, k, word(tables.pool_firsts, slot >> tables.pool_shift) + within)
    return count


@register_jitable
def _locate(chunk: Any, count: Any, where: Any, out: Any) -> None:
    """Addresses by numbers in the map.

    ``where``: address of number 0 where all stand in one line, else 0 and a table of it for each segment; and
    bytes of one.
    """
    line, origins, size = where
    if line:
        for k in range(count):
            keep(out, k, line + word(chunk.base, k) * size)
        return
    for k in range(count):
        keep(out, k, word(origins, word(chunk.segment, k)) + word(chunk.base, k) * size)


@register_jitable
def _exponent(base: Any, tables: Any) -> Any:
    """The exponent of the highest tile of a row's game, by the row's segment."""
    return load8(tables.exponents + find(base, tables.entries, tables.starts, tables.shift))


@register_jitable
def _label(chunk: Any, count: Any, tables: Any) -> None:
    """The exponents of the rows' games; see ``plan`` for the table of them."""
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
    """Numbers in the view and in the map, from places; returns how many of these are within the view."""
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
def look_up(chunk: Any, count: Any, tables: Any, cap_key: Any, wants: Any) -> Any:
    """Fill the tables of a chunk from its places, as far as they are wanted.

    Returns:
        How many of the places are within the view.
    """
    count = _resolve(chunk, count, tables, cap_key)
    if wants.segments:
        for k in range(count):
            segment = find(word(chunk.base, k), tables.entries, tables.starts, tables.shift)
            keep(chunk.segment, k, segment)
    if wants.labels:
        _label(chunk, count, tables)
    if wants.rows and not tables.pool:
        _locate(chunk, count, (tables.line, tables.address, tables.row_bytes), chunk.row)
    if wants.boards:
        _locate(chunk, count, (tables.board_line, tables.board, _BOARD_BYTES), chunk.board)
    return count


@register_jitable
def ask_for_rest(first: Any, last: Any, near: Any) -> None:
    """Ask for the cache line of the last byte of what takes no more than 64, if the first is in another.

    Else the request goes to ``near``, which is in the cache: a line that is asked for while it is on its way
    takes up a place among the requests again (an eighth of the time, with rows of 28 bytes), and a branch
    would be guessed wrong for each third row.
    """
    prefetch_many(last if (first ^ last) & _LINE else near)


@register_jitable
def ask_for_row(chunk: Any, k: Any, other: Any, wants: Any) -> None:
    """Ask for the first cache line of what is wanted of a chunk's row ``k``, and the second one of ``other``.

    In a loop over a whole chunk, ``other`` is some rows behind: asked for at once, before the page of the
    first is found, second lines made batches of tokens take 2 to 4% more.
    """
    prefetch_many(word(chunk.row, k) + wants.lead)
    row = word(chunk.row, other)
    ask_for_rest(row + wants.lead, row + wants.last, chunk.row)


@register_jitable
def ask_for_rows(chunk: Any, count: Any, wants: Any) -> None:
    """Ask for the cache lines of what is wanted of a chunk's rows."""
    if wants.rows:
        for k in range(count):
            ask_for_row(chunk, k, k, wants)


@register_jitable
def ask_for_boards(chunk: Any, count: Any, wants: Any) -> None:
    """Ask for the cache lines of a chunk's packed boards, if they are wanted."""
    if wants.boards:
        for k in range(count):
            prefetch_many(word(chunk.board, k))
