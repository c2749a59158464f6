"""The one compiled gather: from places in a view to rows, boards, labels and all else of a batch.

:func:`fill` works in chunks of :data:`CHUNK` rows, three of which are under way. While the places of one are
turned into addresses (the shuffle's bijection, the cap's draw, the mask's selection, the guide, each left
out where there is none), the cache lines of the one before are asked for, a row at a time; then the
outputs of the one before that are written, whose lines have arrived. All tables but the rows themselves are
small, and sit in the caches.

Inside, tables and outputs are addresses and not arrays: an array that is handed from one function to
another costs two atomic counts of its references, and there are look-ups in four tables for each row.
Nothing is read unless its number was compared with the view's, so a wrong number costs an error and not
the process.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numba.np.unsafe.ndarray import to_fixed_tuple

from tape2048._bits import (
    bswap64,
    copy_symmetry,
    high64,
    load8,
    load32,
    load64,
    popcount,
    prefetch,
    select_bit,
    store8_at,
    store32_at,
    store64_at,
)
from tape2048._jit import kernel
from tape2048._mix import mix64
from tape2048._plan import Order, Outputs, Tables
from tape2048.formats.session import STEP_DTYPE
from tape2048.moves import UNKNOWN, recover_move
from tape2048.rules import SYMMETRY_MOVES, legal_mask
from tape2048.shuffle import fill_permuted

__all__ = ["LISTED", "SHUFFLED", "STRAIGHT", "copy_records", "copy_rows", "fill"]

U64 = np.uint64

#: Rows of a chunk. Looking all rows up before the first line is asked for took 5 to 10% more in all, a
#: look-up and its own row's lines in turns a third more: look-ups then stand in line behind what comes
#: from memory.
CHUNK = 64

#: Where a batch's places come from: they follow one another, ...
STRAIGHT = U64(0)
#: ... or the permutation of the epoch says, ...
SHUFFLED = U64(1)
#: ... or the caller.
LISTED = U64(2)

_STEP = U64(STEP_DTYPE.fields["step_idx"][1])  # type: ignore[index]
_EXPS = U64(STEP_DTYPE.fields["exps"][1])  # type: ignore[index]
_ACTION = U64(STEP_DTYPE.itemsize)
_EXPS_LAST = _EXPS + U64(15)
_LOW32 = U64(0xFFFFFFFF)
_BOUNDARY = U64(0x7FFFFFFF)
_NIBBLES = U64(0x0F0F0F0F0F0F0F0F)

_TABLE_ENTRIES = len(Tables._fields)
_ORDER_ENTRIES = len(Order._fields)
_OUTPUT_ENTRIES = len(Outputs._fields)

_mix: Any = register_jitable(mix64)
_entries: Any = to_fixed_tuple  # an intrinsic, called without the typing context that its signature names


class _Chunk(NamedTuple):
    """Addresses of four scratch tables of CHUNK ``u64`` each.

    ``row`` has each row's address, ``number`` its number in the view, ``base`` its number in the map, and
    ``segment`` its segment.
    """

    number: Any
    row: Any
    base: Any
    segment: Any


@register_jitable
def _tables(plan: Any) -> Any:
    return Tables(*_entries(plan, _TABLE_ENTRIES))


@register_jitable
def _run(tables: Any, segment: Any) -> Any:
    return load32(tables.run + (segment << U64(2)))


@register_jitable
def _word(table: Any, index: Any) -> Any:
    return load64(table + (index << U64(3)))


@register_jitable
def _keep(table: Any, index: Any, value: Any) -> None:
    store64_at(table + (index << U64(3)), value)


# ------------------------------------------------------------------------------- places to addresses


@register_jitable
def find(number: Any, entries: Any, starts: Any, shift: Any) -> Any:
    """The range that a number lies in, by a guide's tables; see ``_rowmap``."""
    entry = _word(entries, number >> shift)
    within = number & ((U64(1) << shift) - U64(1))
    place = (entry & _LOW32) + U64(within >= ((entry >> U64(32)) & _BOUNDARY))
    if entry >> U64(63):
        while _word(starts, place + U64(1)) <= number:
            place += U64(1)
    return place


@register_jitable
def _draw(number: Any, tables: Any, cap_key: Any) -> Any:
    """The row that a capped number stands for in this epoch; see ``tape2048.corpus.Capped``."""
    run = find(number, tables.cap_entries, tables.cap_starts, tables.cap_shift)
    begin = _word(tables.cap_starts, run)
    slot = number - begin
    taken = _word(tables.cap_starts, run + U64(1)) - begin
    first = _word(tables.run_starts, run)
    rows = _word(tables.run_starts, run + U64(1)) - first
    if rows == taken:
        return first + slot
    key = _mix(cap_key + run)
    turn = high64(key, rows)
    if tables.cap_evenly:
        return first + (slot * rows + turn) // taken
    low = slot * rows // taken
    size = (slot + U64(1)) * rows // taken - low
    row = low + high64(_mix(key + slot + U64(1)), size) + turn
    return first + (row - rows if row >= rows else row)


@register_jitable
def _unmask(number: Any, tables: Any) -> Any:
    """The row of the map that is the ``number``-th (from 0) with its bit set."""
    sample = number >> U64(9)
    low, high = _word(tables.samples, sample), _word(tables.samples, sample + U64(1))
    while low < high:  # the last block with at most `number` bits set before it
        middle = (low + high + U64(1)) >> U64(1)
        if _word(tables.ranks, middle) <= number:
            low = middle
        else:
            high = middle - U64(1)
    rest = number - _word(tables.ranks, low)
    at = low << U64(3)
    word = _word(tables.words, at)
    count = popcount(word)
    while rest >= count:
        rest -= count
        at += U64(1)
        word = _word(tables.words, at)
        count = popcount(word)
    return (at << U64(6)) + popcount(select_bit(word, rest) - U64(1))


@register_jitable
def _look_up(  # noqa: PLR0917
    chunk: Any, count: Any, tables: Any, cap_key: Any, with_segments: Any, before: Any, lead: Any
) -> Any:
    """Turn numbers (in ``chunk.number``) into rows; returns how many of them are within the view.

    Between any two, it asks for the lines of a row of the chunk ``before``: look-ups are work for the
    processor, lines for the memory, and a burst of either would keep the other waiting.
    """
    for k in range(count):
        row = _word(before.row, k)
        prefetch(row + lead)
        prefetch(row + _EXPS_LAST)
        number = _word(chunk.number, k)
        slot = number
        if tables.pool:
            if slot >= tables.pool_rows:
                return k
            within = slot & ((U64(1) << tables.pool_shift) - U64(1))
            number = _word(tables.pool_firsts, slot >> tables.pool_shift) + within
        if number >= tables.limit:
            return k
        if tables.cap_entries:
            number = _draw(number, tables, cap_key)
        base = number
        if tables.words:
            base = _unmask(number, tables)
        address = tables.line + base * tables.row_bytes
        if with_segments:
            segment = find(base, tables.entries, tables.starts, tables.shift)
            _keep(chunk.segment, k, segment)
            if not tables.line:
                address = _word(tables.address, segment) + base * tables.row_bytes
        if tables.pool:
            address = tables.pool + slot * tables.row_bytes
        _keep(chunk.row, k, address)
        _keep(chunk.number, k, number)
        _keep(chunk.base, k, base)
    return count


@register_jitable
def _ask_for(chunk: Any, begin: Any, count: Any, lead: Any) -> None:
    for k in range(begin, count):
        row = _word(chunk.row, k)
        prefetch(row + lead)
        prefetch(row + _EXPS_LAST)


@register_jitable
def _chunk(scratch: Any, ordinal: Any) -> Any:
    """One of the three chunks in the scratch memory, in turns."""
    table = U64(8 * CHUNK)
    begin = scratch + (ordinal % U64(3)) * (U64(4) * table)
    return _Chunk(begin, begin + table, begin + U64(2) * table, begin + U64(3) * table)


# ------------------------------------------------------------------------------- rows to outputs


@register_jitable
def _pack(address: Any) -> Any:
    """Eight exponents as the low 32 bits of a board, the first one in the highest nibble."""
    half = bswap64(load64(address)) & _NIBBLES
    half = (half | half >> U64(4)) & U64(0x00FF00FF00FF00FF)
    half = (half | half >> U64(8)) & U64(0x0000FFFF0000FFFF)
    return (half | half >> U64(16)) & _LOW32


@register_jitable
def _board(row: Any) -> Any:
    return _pack(row + _EXPS) << U64(32) | _pack(row + _EXPS + U64(8))


@register_jitable
def _turn(key: Any, base: Any) -> Any:
    """The symmetry of a row in this epoch; 0, the board as it is, where none are asked for."""
    return _mix(key + base) & U64(7) if key else U64(0)


@register_jitable
def _turned_mask(mask: Any, k: Any) -> Any:
    turned = U64(0)
    for move in range(4):
        turned |= ((mask >> U64(move)) & U64(1)) << U64(SYMMETRY_MOVES[k, move])
    return turned


@register_jitable
def _write_records(chunk: Any, count: Any, row_bytes: Any, target: Any) -> None:
    """Copy rows, eight bytes at a time; the last eight overlap those before."""
    for k in range(count):
        source = _word(chunk.row, k)
        at = U64(0)
        while at + U64(8) < row_bytes:
            store64_at(target + at, load64(source + at))
            at += U64(8)
        at = row_bytes - U64(8)
        store64_at(target + at, load64(source + at))
        target += row_bytes


@register_jitable
def _write_tokens(chunk: Any, count: Any, key: Any, target: Any) -> None:
    if key:
        for k in range(count):
            turn = _mix(key + _word(chunk.base, k)) & U64(7)
            copy_symmetry(_word(chunk.row, k) + _EXPS, target + (k << U64(4)), turn)
    else:
        for k in range(count):
            copy_symmetry(_word(chunk.row, k) + _EXPS, target + (k << U64(4)), U64(0))


@register_jitable
def _write_labels(chunk: Any, count: Any, tables: Any, target: Any) -> None:
    """A byte for each threshold."""
    for k in range(count):
        exponent = load8(tables.exponents + _word(chunk.segment, k))
        for t in range(tables.threshold_count):
            store8_at(target, U64(exponent >= load8(tables.thresholds + t)))
            target += U64(1)


@register_jitable
def _write_targets(chunk: Any, count: Any, tables: Any, target: Any) -> None:
    """A float32 for each threshold."""
    one = U64(0x3F800000)
    for k in range(count):
        exponent = load8(tables.exponents + _word(chunk.segment, k))
        for t in range(tables.threshold_count):
            store32_at(target, one if exponent >= load8(tables.thresholds + t) else U64(0))
            target += U64(4)


@register_jitable
def _following(base: Any, tables: Any) -> Any:
    """Addresses of a row and of the row one step later, 0 where that one is not recorded beside it.

    It is the row's neighbour in the view, or else in memory: a view may end in the middle of a run.
    """
    segment = find(base, tables.entries, tables.starts, tables.shift)
    address = _word(tables.address, segment) + base * tables.row_bytes
    step = load32(address + _STEP) + U64(1)
    if base + U64(1) < tables.rows:
        after = find(base + U64(1), tables.entries, tables.starts, tables.shift)
        there = _word(tables.address, after) + (base + U64(1)) * tables.row_bytes
        same = _run(tables, after) == _run(tables, segment)
        if same and load32(there + _STEP) == step:
            return address, there
    there = address + tables.row_bytes
    inside = there < _word(tables.end, segment)
    if inside and load64(there) == load64(address) and load32(there + _STEP) == step:
        return address, there
    return address, U64(0)


@register_jitable
def _write_moves(chunk: Any, count: Any, tables: Any, key: Any, target: Any) -> None:
    for k in range(count):
        base = _word(chunk.base, k)
        # Not the chunk's own address: a pool has the row, but not what follows it.
        address, there = _following(base, tables)
        move = recover_move(_board(address), _board(there)) if there else U64(UNKNOWN)
        if move < U64(4):
            move = U64(SYMMETRY_MOVES[_turn(key, base), move])
        store8_at(target + k, move)


@register_jitable
def _write_by_row(chunk: Any, count: Any, first: Any, key: Any, out: Any) -> None:
    """What is read from the row itself, beside its board."""
    for k in range(count):
        row = _word(chunk.row, k)
        turn = _turn(key, _word(chunk.base, k))
        at = first + k
        if out.step:
            store32_at(out.step + (at << U64(2)), load32(row + _STEP))
        if out.action:
            store8_at(out.action + at, U64(SYMMETRY_MOVES[turn, load8(row + _ACTION) & U64(3)]))
        if out.legal:
            store8_at(out.legal + at, _turned_mask(legal_mask(_board(row)), turn))
        if out.symmetry:
            store8_at(out.symmetry + at, turn)


@register_jitable
def _write_numbers(chunk: Any, count: Any, first: Any, tables: Any, out: Any) -> None:
    """What is known without the row."""
    for k in range(count):
        at = first + k
        if out.row:
            _keep(out.row, at, _word(chunk.number, k))
        if out.base:
            _keep(out.base, at, _word(chunk.base, k))
        if out.run:
            store32_at(out.run + (at << U64(2)), _run(tables, _word(chunk.segment, k)))
        if out.segment:
            store32_at(out.segment + (at << U64(2)), _word(chunk.segment, k))


@register_jitable
def _write(chunk: Any, count: Any, first: Any, tables: Any, key: Any, out: Any) -> None:  # noqa: PLR0917
    """Write the outputs of some rows, the first of them at index ``first``."""
    if out.tokens:
        _write_tokens(chunk, count, key, out.tokens + (first << U64(4)))
    if out.flags:
        _write_labels(chunk, count, tables, out.flags + first * tables.threshold_count)
    if out.targets:
        _write_targets(chunk, count, tables, out.targets + first * tables.threshold_count * U64(4))
    if out.records:
        _write_records(chunk, count, tables.row_bytes, out.records + first * tables.row_bytes)
    if out.row or out.base or out.run or out.segment:
        _write_numbers(chunk, count, first, tables, out)
    if out.step or out.action or out.legal or out.symmetry:
        _write_by_row(chunk, count, first, key, out)
    if out.move:
        _write_moves(chunk, count, tables, key, out.move + first)


@kernel
def fill(plan: Any, order_words: Any, keys: Any, out_words: Any) -> Any:
    """Write a batch.

    Args:
        plan: :attr:`tape2048._plan.Plan.words`; all that its addresses name must live.
        order_words: the entries of an ``Order``, ``u64``.
        keys: ``Permutation.keys`` where the order is SHUFFLED.
        out_words: the entries of an ``Outputs``, ``u64``; each array has room for the order's count.

    Returns:
        How many rows were written: the order's count, or the index of the first place outside the view.
    """
    tables = _tables(plan)
    order = Order(*_entries(order_words, _ORDER_ENTRIES))
    out = Outputs(*_entries(out_words, _OUTPUT_ENTRIES))
    key = order.symmetry_key
    # A row's first twelve bytes are mostly not asked for, and may be in a line of their own.
    lead = U64(0) if out.records or out.step else _EXPS
    with_segments = not tables.line or out.flags or out.targets or out.run or out.segment
    memory = np.zeros(12 * CHUNK, np.uint64)
    scratch = U64(memory.ctypes.data)
    asked_for, looked_up = U64(0), U64(0)  # rows of the two chunks before
    begin, total, ordinal = U64(0), order.count, U64(0)
    while begin < total or looked_up or asked_for:
        chunk, before = _chunk(scratch, ordinal), _chunk(scratch, ordinal + U64(2))
        count = U64(0)
        if begin < total:
            wanted = min(U64(CHUNK), total - begin)
            if order.kind == SHUFFLED:
                at = np.int64((ordinal % U64(3)) * U64(4 * CHUNK))
                fill_permuted(order.first + begin, keys, memory[at : at + np.int64(wanted)])
            elif order.kind == LISTED:
                for k in range(wanted):
                    _keep(chunk.number, k, _word(order.listed, begin + k))
            else:
                for k in range(wanted):
                    _keep(chunk.number, k, order.first + begin + k)
            count = _look_up(chunk, wanted, tables, order.cap_key, with_segments, before, lead)
            if count < wanted:
                total = begin + count
        _ask_for(before, count, looked_up, lead)
        if asked_for:
            first = begin - looked_up - asked_for
            _write(_chunk(scratch, ordinal + U64(1)), asked_for, first, tables, key, out)
        begin += count
        asked_for, looked_up = looked_up, count
        ordinal += U64(1)
    memory[0] = total  # or the array would be freed as soon as its address was taken
    return np.int64(total)


@kernel
def copy_records(line: Any, limit: Any, row_bytes: Any, numbers: Any, target: Any) -> Any:
    """Copy whole rows that stand in one line in memory: :func:`fill` without its look-ups.

    Args:
        line: address of row 0, ``u64``.
        limit: number of rows.
        row_bytes: of a row, 25 to 32.
        numbers: of the rows, ``i64[n]``.
        target: address of ``u8[n, row_bytes]``.

    Returns:
        How many rows were copied: n, or the index of the first number outside the view.
    """
    # Far enough for memory, and few enough that no line is pushed out before its turn.
    ahead = 24
    count = numbers.shape[0]
    last = row_bytes - U64(8)
    for k in range(-ahead, count):
        if k + ahead < count:
            later = line + U64(numbers[k + ahead]) * row_bytes
            prefetch(later)
            prefetch(later + last)
        if k >= 0:
            number = U64(numbers[k])
            if number >= limit:
                return k
            source = line + number * row_bytes
            to = target + U64(k) * row_bytes
            store64_at(to, load64(source))
            store64_at(to + U64(8), load64(source + U64(8)))
            store64_at(to + U64(16), load64(source + U64(16)))
            store64_at(to + last, load64(source + last))
    return count


@kernel
def copy_rows(addresses: Any, segment: Any, base: Any, row_bytes: Any, out: Any) -> None:
    """Copy rows that lie beside the view's own: row i from ``addresses[segment[i]] + base[i] * row_bytes``.

    Args:
        addresses: of row 0 of the map, for each segment, ``u64[S]``.
        segment: ``u4[B]``.
        base: numbers in the map, ``i64[B]``.
        row_bytes: ``u64``.
        out: ``u8[B, row_bytes]``.
    """
    ahead = 8
    for i in range(base.shape[0]):
        if i + ahead < base.shape[0]:
            later = addresses[segment[i + ahead]] + U64(base[i + ahead]) * row_bytes
            for line in range(U64(0), row_bytes, U64(64)):
                prefetch(later + line)
        source = addresses[segment[i]] + U64(base[i]) * row_bytes
        for at in range(row_bytes):
            out[i, at] = load8(source + at)
