"""Compiled gather: fills all fields of a batch from places in a view.

:func:`fill` pipelines two chunks of rows. It makes the places of one chunk (by the shuffle's bijection, or
from the caller's list), looks them up (``lookup``), and prefetches the cache lines of its rows; meanwhile it
writes the outputs of the previous chunk, whose lines have arrived. All tables except the rows are small and
stay in the caches.

Every number is compared with the number of rows before it is used, so an invalid one is an error and not a
crash.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable
from numba.np.unsafe.ndarray import to_fixed_tuple

from tape2048.batches.lookup import (
    CHUNK,
    SCRATCH_WORDS,
    Chunk,
    Wants,
    decode_chunk,
    look_up,
    prefetch_boards,
    prefetch_last_line,
    prefetch_row,
    prefetch_rows,
    run_of,
    stride_of,
)
from tape2048.batches.plan import Order, Outputs, PlanEntries
from tape2048.batches.shuffle import fill_permuted
from tape2048.formats.session import STEP_DTYPE
from tape2048.game.moves import UNKNOWN, recover_move
from tape2048.game.rules import SYMMETRY_MOVES, legal_mask
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import (
    copy_symmetry,
    find,
    keep,
    load8,
    load32,
    load64,
    mix,
    prefetch,
    prefetch_many,
    store8_at,
    store32_at,
    store64_at,
    unpack_symmetry,
    word,
)
from tape2048.rows.packed_boards import EXPS, board_of
from tape2048.rows.tape_rows import END, FIRST, entry_of
from tape2048.tape.codec import step_forward

U64 = np.uint64

#: Sources of a batch's places: consecutive places, the epoch's permutation, or the caller's list.
STRAIGHT, SHUFFLED, LISTED = U64(0), U64(1), U64(2)

#: The bits of the float 1.
_ONE = U64(0x3F800000)

_STEP = U64(STEP_DTYPE.fields["step_idx"][1])  # type: ignore[index]
_ACTION = U64(STEP_DTYPE.itemsize)
_EXPS_LAST = EXPS + U64(15)

#: Rows from the prefetch of a row's first cache line to that of its second; the last rows' wrap to the
#: beginning.
_LATER = U64(8)
_WITHIN = U64(CHUNK - 1)

_TABLE_ENTRIES = len(PlanEntries._fields)
_ORDER_ENTRIES = len(Order._fields)
_OUTPUT_ENTRIES = len(Outputs._fields)

_CHUNKS = 2
_CHUNK_WORDS = len(Chunk._fields) * CHUNK

_entries: Any = to_fixed_tuple  # an intrinsic, called without the typing context that its signature names


@register_jitable
def _tables(plan: Any) -> Any:
    return PlanEntries(*_entries(plan, _TABLE_ENTRIES))


@register_jitable
def _chunk(scratch: Any, ordinal: Any, tables: Any) -> Any:
    """Return one of the chunks in the scratch memory, in turns."""
    table = U64(8 * CHUNK)
    number = scratch + (ordinal % U64(_CHUNKS)) * U64(8 * _CHUNK_WORDS)
    base = number + table
    segment = base + table
    exponent = segment + table
    row = exponent + table
    board = row + table
    return Chunk(number, base if tables.words else number, segment, exponent, row, board, board + table)


@register_jitable
def _wants(tables: Any, out: Any) -> Any:
    """Find the parts of a row that the outputs need."""
    of_board = out.tokens or out.legal
    boards = out.boards or (of_board and tables.packed)
    rows = out.records or out.step or out.action or out.move or (of_board and not tables.packed)
    taped = tables.tape and not tables.pool and (rows or (boards and not tables.board))
    away = (rows and not (tables.line or tables.pool)) or (boards and not (tables.board_line or tables.pool))
    segments = away or taped or out.run or out.segment or (out.weight and tables.weights)
    labels = out.flags or out.targets
    # Few outputs need a row's first twelve bytes, which may be in another line. A move needs the next row
    # too.
    lead = U64(0) if out.records or out.step or out.move else EXPS
    last = _EXPS_LAST + (tables.row_bytes if out.move else U64(0))
    return Wants(segments, labels, rows, lead, last, boards, taped)


@register_jitable
def _turn(key: Any, base: Any) -> Any:
    """Return the symmetry of a row in this epoch; 0, the identity, without augmentation."""
    return mix(key + base) & U64(7) if key else U64(0)


@register_jitable
def _turned_mask(mask: Any, k: Any) -> Any:
    turned = U64(0)
    for move in range(4):
        turned |= ((mask >> U64(move)) & U64(1)) << U64(SYMMETRY_MOVES[k, move])
    return turned


@register_jitable
def _write_records(chunk: Any, count: Any, row_bytes: Any, target: Any) -> None:
    """Copy rows without what follows their ``row_bytes``, eight bytes at a time; the last eight overlap."""
    for k in range(count):
        source = word(chunk.row, k)
        at = U64(0)
        while at + U64(8) < row_bytes:
            store64_at(target + at, load64(source + at))
            at += U64(8)
        at = row_bytes - U64(8)
        store64_at(target + at, load64(source + at))
        target += row_bytes


@register_jitable
def _write_tokens(chunks: Any, count: Any, key: Any, target: Any) -> None:
    """Write boards as bytes; each case has its loop, since a constant symmetry of 0 costs nothing.

    The loops prefetch the second chunk on the way: all requests at once would exceed the slots for lines in
    flight, and the processor would stall.
    """
    chunk, coming, wants = chunks
    packed = wants.boards
    nothing = U64(0)
    if packed and key:
        for k in range(count):
            prefetch_many(word(coming.board, k))
            board = load64(word(chunk.board, k))
            unpack_symmetry(board, target + (k << U64(4)), _turn(key, word(chunk.base, k)))
    elif packed:
        for k in range(count):
            prefetch_many(word(coming.board, k))
            unpack_symmetry(load64(word(chunk.board, k)), target + (k << U64(4)), nothing)
    elif key:
        for k in range(count):
            prefetch_row(coming, k, (k - _LATER) & _WITHIN, wants)
            source = word(chunk.row, k) + EXPS
            copy_symmetry(source, target + (k << U64(4)), _turn(key, word(chunk.base, k)))
    else:
        for k in range(count):
            prefetch_row(coming, k, (k - _LATER) & _WITHIN, wants)
            copy_symmetry(word(chunk.row, k) + EXPS, target + (k << U64(4)), nothing)


@register_jitable
def _write_labels(chunk: Any, count: Any, tables: Any, target: Any) -> None:
    """Write a byte for each threshold: a row's bytes as one word, of which the next rows overwrite the rest.

    The last rows, and more than eight thresholds, go one threshold at a time: an inner loop over few is slow.
    """
    width = tables.threshold_count
    rest = U64(0)
    if tables.patterns and count > U64(8):
        rest = count - U64(8)
        for k in range(rest):
            store64_at(target + k * width, word(tables.patterns, word(chunk.exponent, k)))
    for t in range(width):
        threshold = load8(tables.thresholds + t)
        for k in range(rest, count):
            store8_at(target + k * width + t, U64(word(chunk.exponent, k) >= threshold))


@register_jitable
def _write_targets(chunk: Any, count: Any, tables: Any, target: Any) -> None:
    """Write a float32 for each threshold."""
    width = tables.threshold_count
    for t in range(width):
        threshold = load8(tables.thresholds + t)
        for k in range(count):
            at = target + ((k * width + t) << U64(2))
            store32_at(at, _ONE if word(chunk.exponent, k) >= threshold else U64(0))


@register_jitable
def _following(base: Any, segment: Any, address: Any, tables: Any) -> Any:
    """Return the address of the row one step after a row of a file, 0 if that was not recorded.

    It is the next row in the view, or else in memory: a view may end in the middle of a run.
    """
    step = load32(address + _STEP) + U64(1)
    if base + U64(1) < tables.rows:
        after = find(base + U64(1), tables.entries, tables.starts, tables.shift)
        there = word(tables.address, after) + (base + U64(1)) * stride_of(tables, after)
        same = run_of(tables, after) == run_of(tables, segment)
        if same and load32(there + _STEP) == step:
            return there
    there = address + stride_of(tables, segment)
    inside = there < word(tables.end, segment)
    if inside and load64(there) == load64(address) and load32(there + _STEP) == step:
        return there
    return U64(0)


@register_jitable
def _write_moves(chunk: Any, count: Any, tables: Any, key: Any, target: Any) -> None:
    for k in range(count):
        base = word(chunk.base, k)
        segment = find(base, tables.entries, tables.starts, tables.shift)
        # Not the chunk's address: a pool has the row, but not the next one.
        address = word(tables.address, segment) + base * stride_of(tables, segment)
        move = U64(UNKNOWN)
        if tables.tape and word(entry_of(tables.tape, segment), FIRST):
            if address + U64(1) < word(entry_of(tables.tape, segment), END):
                board = load64(word(chunk.board, k)) if not tables.pool else board_of(word(chunk.row, k))
                move = recover_move(board, step_forward(board, load8(address)))
        else:
            there = _following(base, segment, address, tables)
            if there:
                move = recover_move(board_of(address), board_of(there))
        if move < U64(4):
            move = U64(SYMMETRY_MOVES[_turn(key, base), move])
        store8_at(target + k, move)


@register_jitable
def _write_legal(chunk: Any, count: Any, key: Any, packed: Any, target: Any) -> None:
    """Write a mask of legal moves for each board."""
    for k in range(count):
        board = load64(word(chunk.board, k)) if packed else board_of(word(chunk.row, k))
        store8_at(target + k, _turned_mask(legal_mask(board), _turn(key, word(chunk.base, k))))


@register_jitable
def _write_by_row(chunk: Any, count: Any, first: Any, key: Any, out: Any) -> None:
    """Write the outputs that need a row's bytes beside its board."""
    for k in range(count):
        turn = _turn(key, word(chunk.base, k))
        at = first + k
        if out.step:
            store32_at(out.step + (at << U64(2)), load32(word(chunk.row, k) + _STEP))
        if out.action:
            action = load8(word(chunk.row, k) + _ACTION) & U64(3)
            store8_at(out.action + at, U64(SYMMETRY_MOVES[turn, action]))
        if out.symmetry:
            store8_at(out.symmetry + at, turn)


@register_jitable
def _write_words(chunk: Any, count: Any, first: Any, tables: Any, out: Any) -> None:
    """Write the outputs that need no row, and packed boards."""
    for k in range(count):
        at = first + k
        if out.boards:
            keep(out.boards, at, load64(word(chunk.board, k)))
        if out.row:
            keep(out.row, at, word(chunk.number, k))
        if out.base:
            keep(out.base, at, word(chunk.base, k))
        if out.run:
            store32_at(out.run + (at << U64(2)), run_of(tables, word(chunk.segment, k)))
        if out.segment:
            store32_at(out.segment + (at << U64(2)), word(chunk.segment, k))
        if out.weight:
            weights = tables.weights
            weight = load32(weights + (word(chunk.segment, k) << U64(2))) if weights else _ONE
            store32_at(out.weight + (at << U64(2)), weight)


@register_jitable
def _write(chunks: Any, rows: Any, tables: Any, key: Any, out: Any) -> None:
    """Write the outputs of the first of two chunks; ``rows``: its first index in the batch, and its count."""
    chunk, _, wants = chunks
    first, count = rows
    if out.tokens:
        _write_tokens(chunks, count, key, out.tokens + (first << U64(4)))
    if out.flags:
        _write_labels(chunk, count, tables, out.flags + first * tables.threshold_count)
    if out.targets:
        _write_targets(chunk, count, tables, out.targets + first * tables.threshold_count * U64(4))
    if out.records:
        _write_records(chunk, count, tables.row_bytes, out.records + first * tables.row_bytes)
    if out.row or out.base or out.run or out.segment or out.weight or out.boards:
        _write_words(chunk, count, first, tables, out)
    if out.legal:
        _write_legal(chunk, count, key, wants.boards, out.legal + first)
    if out.step or out.action or out.symmetry:
        _write_by_row(chunk, count, first, key, out)
    if out.move:
        _write_moves(chunk, count, tables, key, out.move + first)


@register_jitable
def _number(order: Any, first: Any, begin: Any, target: Any, count: Any) -> None:
    """Write consecutive or listed places."""
    for k in range(count):
        at = begin + k
        keep(target, k, word(order.listed, at) if order.kind == LISTED else first + at)


@kernel
def fill(plan: Any, order_words: Any, places: Any, keys: Any, out_words: Any) -> Any:
    """Write a batch.

    Returns:
        The number of rows written: all, or the index of the first place outside the view. Or a negative
        number, -1 - the number in the map of a row before which its tape has a step that the rules do not
        allow.
    """
    tables = _tables(plan)
    order = Order(*_entries(order_words, _ORDER_ENTRIES))
    out = Outputs(*_entries(out_words, _OUTPUT_ENTRIES))
    key = order.symmetry_key
    wants = _wants(tables, out)
    memory = np.empty(_CHUNKS * _CHUNK_WORDS + CHUNK + SCRATCH_WORDS, np.uint64)
    lanes = memory[_CHUNKS * _CHUNK_WORDS :][:CHUNK]
    scratch = U64(memory.ctypes.data)
    decoded = scratch + U64(8 * (_CHUNKS * _CHUNK_WORDS + CHUNK))
    looked_up = U64(0)  # rows of the chunk before
    place, total = U64(places[0]), U64(places[1])
    begin, ordinal = U64(0), U64(0)
    while begin < total or looked_up:
        chunk, before = _chunk(scratch, ordinal, tables), _chunk(scratch, ordinal + U64(1), tables)
        wanted = min(U64(CHUNK), total - begin)
        if order.kind == SHUFFLED:
            at = np.int64(ordinal % U64(_CHUNKS)) * _CHUNK_WORDS
            fill_permuted(place + begin, keys, lanes, memory[at : at + np.int64(wanted)])
        else:
            _number(order, place, begin, chunk.number, wanted)
        within = look_up(chunk, wanted, tables, order.cap_key, wants)
        # The loops that write tokens prefetch the next chunk's.
        spread = out.tokens and looked_up
        if not spread:
            prefetch_boards(chunk, within, wants)
        if tables.packed or not spread:
            prefetch_rows(chunk, within, wants)
        if within < wanted:
            total = begin + within
        if looked_up and wants.taped:
            bad = decode_chunk(before, looked_up, tables, wants, decoded)
            if bad:
                total = U64(0) - bad
                break
        if looked_up:
            _write((before, chunk, wants), (begin - looked_up, looked_up), tables, key, out)
        begin += within
        looked_up = within
        ordinal += U64(1)
    memory[0] = total  # keeps the array alive, whose address is in use
    return np.int64(total)


@kernel
def copy_records(line: Any, limit: Any, row_bytes: Any, numbers: Any, records: Any) -> Any:
    """Copy whole rows of adjacent memory: :func:`fill` without its look-ups.

    Returns:
        The number of rows copied: n, or the index of the first number outside the view.
    """
    # Prefetch into the second-level cache first, which allows more lines in flight, then into the first. The
    # distance covers the latency of memory, and no line is evicted before its turn.
    ahead, near = 48, 8
    count = numbers.shape[0]
    target = U64(records.ctypes.data)
    last = row_bytes - U64(8)
    for k in range(-ahead, count):
        if k + ahead < count:
            later = line + U64(numbers[k + ahead]) * row_bytes
            prefetch_many(later)
            prefetch_last_line(later, later + row_bytes - U64(1), target)
        if 0 <= k + near < count:
            prefetch(line + U64(numbers[k + near]) * row_bytes)
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
    """Copy rows of another table of the view: row i from ``addresses[segment[i]] + base[i] * row_bytes``."""
    ahead = 8
    for i in range(base.shape[0]):
        if i + ahead < base.shape[0]:
            later = addresses[segment[i + ahead]] + U64(base[i + ahead]) * row_bytes
            for line in range(U64(0), row_bytes, U64(64)):
                prefetch_many(later + line)
        source = addresses[segment[i]] + U64(base[i]) * row_bytes
        for at in range(row_bytes):
            out[i, at] = load8(source + at)
