"""Compiled gather: fills all fields of a batch from places in a view.

:func:`fill` pipelines two chunks of rows. It makes the places of one chunk (by the shuffle's bijection, or
from the caller's list), looks them up, and prefetches the cache lines of its rows. Then it writes the outputs
of the previous chunk, whose lines have arrived. All tables except the rows are small and stay in the caches.

Each step of the look-up (the cap's draw, the mask's selection, the guide) is a separate loop over a chunk of
rows, which runs only if the view needs it. Steps that few batches need are routines: kernels that are
compiled once a batch needs them, and called by address for each chunk. Tables are addresses: passing an array
to a function costs two atomic updates of its reference count, and each row takes look-ups in four tables.

Every number is compared with the number of rows before it is used, so an invalid one is an error and not a
crash.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.lazy import load_named
from tape2048.jit.compiler import helper, kernel, routine
from tape2048.jit.intrinsics import high64, mix, popcount, select_bit
from tape2048.jit.memory import (
    call_at,
    copy_symmetry,
    find,
    keep,
    load8,
    load32,
    load64,
    load_word,
    load_words,
    prefetch,
    prefetch_many,
    store8_at,
    store32_at,
    store64_at,
    store_words,
    unpack_symmetry,
    word,
)
from tape2048.loader.batch import Outputs
from tape2048.loader.boards import (
    EXPS,
    TOO_LARGE,
    board_of,
    is_impossible,
    line_of,
    run_of,
    stride_of,
)
from tape2048.loader.column_kernel import (
    CHUNK,
    locate,
    prefetch_last_line,
    turn_of,
)
from tape2048.loader.order import LISTED, SHUFFLED, OrderEntries
from tape2048.loader.plan import PLAN_WORDS, read_plan
from tape2048.loader.row_map import BOARD_BYTES, LABEL_BOUNDARY, LABEL_EXPONENT_MAX, LABEL_LATER, LABEL_WALK
from tape2048.loader.shuffle import fill_of
from tape2048.session.layout import ACTION_STEP_DTYPE

if TYPE_CHECKING:
    from numpy.typing import NDArray

U64 = np.uint64

#: Words of memory for the rows of a chunk that are made: their order, their boards, and the rows.
SCRATCH_WORDS = 6 * CHUNK

_ROW_BYTES_MAX = U64(ACTION_STEP_DTYPE.itemsize)


# LLVM prefers to inline functions of many arguments, such as a plan, and these functions take few.
always_inlined: Callable[[Callable[..., Any]], Any] = helper(forceinline=True)


class Chunk(NamedTuple):
    """Addresses of the tables of a chunk, ``u64[CHUNK]`` each.

    ``number`` has places, and after the look-up the numbers in the view; ``base`` has the numbers in the map
    (without a mask, the table ``number``). ``source`` is for rows on tape: the bytes to decode from the board
    at ``board`` on; 0 for a row that follows the row before it in the chunk. ``line`` is the table
    ``segment`` if each segment is a line. ``turned_by`` draws the symmetries: ``base``, or a table of the
    order.
    """

    number: Any
    base: Any
    segment: Any
    exponent: Any
    row: Any
    board: Any
    source: Any
    line: Any
    turned_by: Any
    columns: Any


class Wants(NamedTuple):
    """The parts of a row that outputs need. ``taped``: rows or boards of the view are decoded from tape."""

    segments: Any
    labels: Any
    rows: Any
    lead: Any
    last: Any
    boards: Any
    taped: Any


class Frame(NamedTuple):
    """What a routine reads of a chunk: ``count`` rows, of which the first is ``first`` in the batch."""

    chunk: Chunk
    wants: Wants
    first: Any
    count: Any
    key: Any
    scratch: Any


class Routines(NamedTuple):
    """The addresses of the shuffle and of ``gather_routines``; 0 for those that a batch does not need.

    Most batches need one or none, so the others are compiled with the first batch that needs them.
    """

    permute: Any
    made: Any
    columns: Any
    fields: Any
    moves: Any


@always_inlined
def address_at(base: Any, segment: Any, rows: Any) -> Any:
    return word(rows.address, line_of(rows, segment)) + base * stride_of(rows, segment)


@always_inlined
def segment_of(number: Any, guide: Any) -> Any:
    return find(number, guide.entries, guide.starts, guide.shift)


@always_inlined
def _draw(number: Any, share: Any, cap: Any, cap_key: Any) -> Any:
    """Return the row of a capped number, which is of a range, in this epoch; see ``tape2048.Capped``."""
    begin = word(cap.guide.starts, share)
    slot = number - begin
    taken = word(cap.guide.starts, share + U64(1)) - begin
    first = word(cap.firsts, share)
    rows = word(cap.firsts, share + U64(1)) - first
    if rows == taken:
        return first + slot
    key = mix(cap_key + share)
    turn = high64(key, rows)
    if cap.evenly:
        return first + (slot * rows + turn) // taken
    low = slot * rows // taken
    size = (slot + U64(1)) * rows // taken - low
    row = low + high64(mix(key + slot + U64(1)), size) + turn
    return first + (row - rows if row >= rows else row)


@always_inlined
def _unmask(number: Any, mask: Any) -> Any:
    """Return the ``number``-th row (from 0) of the map with its bit set."""
    sample = number >> U64(9)
    low, high = word(mask.samples, sample), word(mask.samples, sample + U64(1))
    while low < high:  # the last block with at most `number` bits set before it
        middle = (low + high + U64(1)) >> U64(1)
        if word(mask.ranks, middle) <= number:
            low = middle
        else:
            high = middle - U64(1)
    rest = number - word(mask.ranks, low)
    at = low << U64(3)
    bits = word(mask.words, at)
    count = popcount(bits)
    while rest >= count:
        rest -= count
        at += U64(1)
        bits = word(mask.words, at)
        count = popcount(bits)
    return (at << U64(6)) + popcount(select_bit(bits, rest) - U64(1))


@helper
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


@helper
def _take_from_pool(chunk: Any, count: Any, plan: Any) -> Any:
    """Turn slots of a pool into row addresses and numbers; return how many slots are in the pool."""
    pool = plan.pool
    count = _within(chunk.number, count, pool.count)
    for k in range(count):
        slot = word(chunk.number, k)
        keep(chunk.board if plan.packed else chunk.row, k, pool.rows + slot * pool.stride)
        within = slot & ((U64(1) << pool.shift) - U64(1))
        keep(chunk.number, k, word(pool.firsts, slot >> pool.shift) + within)
    return count


@helper
def _exponent(base: Any, plan: Any) -> Any:
    return load8(plan.labels.exponents + segment_of(base, plan.rows.guide))


@helper
def _label(chunk: Any, count: Any, plan: Any) -> None:
    """Look up the exponents of the rows' games; see ``row_map`` for the label guide."""
    shift = plan.rows.guide.shift
    if not plan.labels.guide:
        for k in range(count):
            keep(chunk.exponent, k, _exponent(word(chunk.base, k), plan))
        return
    for k in range(count):
        base = word(chunk.base, k)
        entry = load32(plan.labels.guide + ((base >> shift) << U64(2)))
        later = base & ((U64(1) << shift) - U64(1)) >= entry >> LABEL_BOUNDARY
        exponent = (entry >> LABEL_LATER if later else entry) & LABEL_EXPONENT_MAX
        if (entry >> LABEL_WALK) & U64(1):
            exponent = _exponent(base, plan)
        keep(chunk.exponent, k, exponent)


@helper
def _resolve(chunk: Any, count: Any, plan: Any, cap: Any) -> Any:
    """Turn places into numbers in view and map; return how many are within. ``cap``: key, weights or 0."""
    cap_key, weight = cap
    if plan.pool.count:
        count = _take_from_pool(chunk, count, plan)
    count = _within(chunk.number, count, plan.limit)
    if plan.cap.guide.entries:
        for k in range(count):
            keep(chunk.segment, k, segment_of(word(chunk.number, k), plan.cap.guide))
        for k in range(count):
            keep(chunk.number, k, _draw(word(chunk.number, k), word(chunk.segment, k), plan.cap, cap_key))
        if weight:
            for k in range(count):
                stands_for = load32(plan.cap.weights + (word(chunk.segment, k) << U64(2)))
                store32_at(weight + (k << U64(2)), stands_for)
    if plan.rows.mask.words:
        for k in range(count):
            keep(chunk.base, k, _unmask(word(chunk.number, k), plan.rows.mask))
    return count


@helper
def look_up(chunk: Any, count: Any, plan: Any, wants: Any) -> None:
    """Fill the wanted tables of a chunk."""
    rows = plan.rows
    if wants.segments:
        for k in range(count):
            keep(chunk.segment, k, segment_of(word(chunk.base, k), plan.rows.guide))
        if rows.line:
            for k in range(count):
                keep(chunk.line, k, line_of(rows, word(chunk.segment, k)))
    if wants.labels:
        _label(chunk, count, plan)
    if (wants.rows or wants.taped) and not plan.pool.count:
        where = rows.row_line, rows.address, rows.strides, rows.row_bytes
        locate(chunk.base, chunk.line, count, where, chunk.row)
    if wants.boards and rows.board and not plan.pool.count:
        where = rows.board_line, rows.board, U64(0), U64(BOARD_BYTES)
        locate(chunk.base, chunk.line, count, where, chunk.board)


@helper
def prefetch_row(chunk: Any, k: Any, other: Any, wants: Any) -> None:
    """Prefetch the first cache line of a chunk's row ``k``, and the second cache line of row ``other``.

    In a loop over a chunk, ``other`` is some rows behind: requested at once, before the page walk of the
    first line, second lines slowed batches of tokens by 2 to 4%.
    """
    prefetch_many(word(chunk.row, k) + wants.lead)
    row = word(chunk.row, other)
    prefetch_last_line(row + wants.lead, row + wants.last, chunk.row)


@helper
def _prefetch(chunk: Any, count: Any, wants: Any, boards: Any, rows: Any) -> None:
    if wants.boards and boards:
        for k in range(count):
            prefetch_many(word(chunk.board, k))
    if wants.rows and rows:
        for k in range(count):
            prefetch_row(chunk, k, k, wants)


_ONE = U64(0x3F800000)  # the bits of the float 1

_EXPS_LAST = EXPS + U64(15)

#: Rows from the prefetch of a row's first cache line to that of its second. The last rows' wrap to the
#: start.
_LATER = U64(8)
_WITHIN = U64(CHUNK - 1)

_ORDER_ENTRIES = len(OrderEntries._fields)
OUTPUT_ENTRIES = len(Outputs._fields)

_CHUNKS = 2
_CHUNK_WORDS = (len(Chunk._fields) - 2) * CHUNK

FRAME_WORDS = len(Chunk._fields) + len(Wants._fields) + 4

_read_plan: Any = helper(read_plan)
_order_words = load_words(_ORDER_ENTRIES)
_plan_words, output_words = load_words(PLAN_WORDS), load_words(OUTPUT_ENTRIES)

#: The last argument of a routine.
LOCATE, PREFETCH, WRITE = (U64(i) for i in range(3))


@helper
def read_plan_at(words: Any) -> Any:
    return _read_plan(_plan_words(words))


@helper
def _keep_frame(at: Any, chunk: Any, wants: Any, rows: Any) -> None:
    store_words(at, chunk)
    store_words(at + U64(80), wants)
    store_words(at + U64(136), rows)


@helper
def _chunk(scratch: Any, ordinal: Any, plan: Any, columns: Any, turned_by: Any) -> Any:
    table = U64(8 * CHUNK)
    turn = ordinal % U64(_CHUNKS)
    number = scratch + turn * U64(8 * _CHUNK_WORDS)
    base = number + table
    segment = base + table
    exponent = segment + table
    row = exponent + table
    board = row + table
    source = board + table
    line = source + table if plan.rows.line else segment
    columns += turn * plan.column_count * table
    base = base if plan.rows.mask.words else number
    turned_by = turned_by or base
    return Chunk(number, base, segment, exponent, row, board, source, line, turned_by, columns)


@helper
def _wants(plan: Any, out: Any) -> Any:
    pooled = plan.pool.count
    of_board = out.tokens or out.legal or out.boards
    boards = of_board and plan.packed
    rows = out.records or out.step or out.action or out.move or (of_board and not plan.packed)
    taped = plan.rows.tape.span and not pooled and (rows or (boards and not plan.rows.board))
    away = not pooled and ((rows and not plan.rows.row_line) or (boards and not plan.rows.board_line))
    segments = away or taped or out.run or (plan.column_count and not pooled)
    labels = out.flags or out.targets
    # Few outputs need a row's first twelve bytes, which may be in another line. A move needs the next row
    # too.
    lead = U64(0) if out.records or out.step or out.move else EXPS
    last = _EXPS_LAST + (plan.rows.row_bytes if out.move else U64(0))
    if pooled and plan.column_count:
        last = lead  # the columns request the rest
    return Wants(segments, labels, rows, lead, last, boards, taped)


@helper
def _write_records(chunk: Any, count: Any, row_bytes: Any, stride: Any, target: Any) -> None:
    """Copy the first ``row_bytes`` of each row, eight bytes at a time. The last eight overlap."""
    for k in range(count):
        source = word(chunk.row, k)
        at = U64(0)
        while at + U64(8) < row_bytes:
            store64_at(target + at, load64(source + at))
            at += U64(8)
        at = row_bytes - U64(8)
        store64_at(target + at, load64(source + at))
        target += stride


@helper
def _write_tokens(chunks: Any, count: Any, key: Any, target: Any) -> Any:
    """Write boards as bytes; return whether one is of no game.

    Each case has its loop, since a constant symmetry of 0 costs nothing.

    The loops prefetch the second chunk on the way: all requests at once would exceed the slots for lines in
    flight, and the processor would stall.
    """
    chunk, coming, wants = chunks
    packed = wants.boards
    nothing = U64(0)
    least = ~nothing
    if packed and key:
        for k in range(count):
            prefetch_many(word(coming.board, k))
            board = load64(word(chunk.board, k))
            least = min(least, board)
            unpack_symmetry(board, target + (k << U64(4)), turn_of(key, word(chunk.turned_by, k)))
    elif packed:
        for k in range(count):
            prefetch_many(word(coming.board, k))
            board = load64(word(chunk.board, k))
            least = min(least, board)
            unpack_symmetry(board, target + (k << U64(4)), nothing)
    elif key:
        for k in range(count):
            prefetch_row(coming, k, (k - _LATER) & _WITHIN, wants)
            source = word(chunk.row, k) + EXPS
            copy_symmetry(source, target + (k << U64(4)), turn_of(key, word(chunk.turned_by, k)))
    else:
        for k in range(count):
            prefetch_row(coming, k, (k - _LATER) & _WITHIN, wants)
            copy_symmetry(word(chunk.row, k) + EXPS, target + (k << U64(4)), nothing)
    return least == nothing if packed else _is_any_impossible(count, target)


@helper
def _is_any_impossible(count: Any, tokens: Any) -> Any:
    """Check boards of 16 bytes: eight at a time, in 2% of the time of a batch."""
    every, before = U64(0), U64(0)  # all cells; and all boards minus 1, with bit 63 for an empty board
    for k in range(count):
        cells = load_word(tokens, U64(2) * k) | load_word(tokens, U64(2) * k + U64(1))
        every |= cells
        before |= cells - U64(1)
    return every & TOO_LARGE != U64(0) or before >> U64(63) != U64(0)


@always_inlined
def _write_labels(chunk: Any, count: Any, labels: Any, target: Any) -> None:
    """Write a byte for each threshold: a row's bytes as one word, of which the next rows overwrite the rest.

    The last rows, and more than eight thresholds, go one threshold at a time: an inner loop over few is slow.
    """
    width = labels.count
    rest = U64(0)
    if labels.patterns and count > U64(8):
        rest = count - U64(8)
        for k in range(rest):
            store64_at(target + k * width, word(labels.patterns, word(chunk.exponent, k)))
    for t in range(width):
        threshold = load8(labels.thresholds + t)
        for k in range(rest, count):
            store8_at(target + k * width + t, U64(word(chunk.exponent, k) >= threshold))


@helper
def _write_targets(chunk: Any, count: Any, labels: Any, target: Any) -> None:
    width = labels.count
    for t in range(width):
        threshold = load8(labels.thresholds + t)
        for k in range(count):
            at = target + ((k * width + t) << U64(2))
            store32_at(at, _ONE if word(chunk.exponent, k) >= threshold else U64(0))


@helper
def _write_words(chunk: Any, count: Any, first: Any, plan: Any, out: Any) -> None:
    """Write the outputs that need no row, and packed boards."""
    for k in range(count):
        at = first + k
        if out.boards:
            board = load64(word(chunk.board, k)) if plan.packed else board_of(word(chunk.row, k))
            store64_at(out.boards + at * out.stride, board)
        if out.row:
            keep(out.row, at, word(chunk.number, k))
        if out.base:
            keep(out.base, at, word(chunk.base, k))
        if out.run:
            store32_at(out.run + (at << U64(2)), run_of(plan.rows, word(chunk.segment, k)))
        if out.weight and not plan.cap.weights:  # else they were written when the rows were drawn
            store32_at(out.weight + (at << U64(2)), _ONE)


@helper
def _find_impossible(chunk: Any, count: Any, packed: Any, row_bytes: Any) -> Any:
    """Return 0; or 1 + the number in the map of a row whose board no game has."""
    raw = not packed and row_bytes > _ROW_BYTES_MAX  # rows of a data set, which start with a packed board
    for k in range(count):
        row = word(chunk.board if packed else chunk.row, k)
        if load64(row) == U64(0) if packed or raw else is_impossible(row):
            return word(chunk.base, k) + U64(1)
    return U64(0)


@helper
def _write(chunks: Any, rows: Any, plan: Any, key: Any, out: Any) -> Any:
    """Write the outputs of the first of two chunks; return whether a row has a board that no game has.

    ``rows``: its first index in the batch, and its count.
    """
    chunk, _, wants = chunks
    first, count = rows
    bad: Any = False
    if out.tokens:
        bad = _write_tokens(chunks, count, key, out.tokens + (first << U64(4)))
    elif wants.rows or wants.boards:
        bad = _find_impossible(chunk, count, wants.boards, plan.rows.row_bytes) != U64(0)
    if out.flags:
        _write_labels(chunk, count, plan.labels, out.flags + first * plan.labels.count)
    if out.targets:
        _write_targets(chunk, count, plan.labels, out.targets + first * plan.labels.count * U64(4))
    if out.records:
        _write_records(chunk, count, plan.rows.row_bytes, out.stride, out.records + first * out.stride)
    if out.row or out.base or out.run or out.weight or out.boards:
        _write_words(chunk, count, first, plan, out)
    return bad


@helper
def _number(order: Any, first: Any, begin: Any, target: Any, count: Any) -> None:
    for k in range(count):
        at = begin + k
        keep(target, k, word(order.listed, at) if order.kind == LISTED else first + at)


@kernel(allocates=True)
def _fill(  # noqa: C901, PLR0912, PLR0915, PLR0917 - the loop that all batches share; a kernel takes arrays
    words_: Any, order_words: Any, places: Any, keys: Any, out_words: Any, routines_: Any
) -> Any:
    words, outputs = U64(words_.ctypes.data), U64(out_words.ctypes.data)
    plan = read_plan_at(words)
    order = OrderEntries(*_order_words(U64(order_words.ctypes.data)))
    out = Outputs(*output_words(outputs))
    routines = Routines(*routines_)
    key = order.symmetry_key
    wants = _wants(plan, out)
    own = _CHUNKS * (_CHUNK_WORDS + FRAME_WORDS) + CHUNK + SCRATCH_WORDS
    memory = np.empty(np.int64(own) + np.int64(plan.column_count * U64(_CHUNKS * CHUNK)), np.uint64)
    scratch = U64(memory.ctypes.data)
    columns = scratch + U64(8 * own)
    lanes = scratch + U64(8 * _CHUNKS * _CHUNK_WORDS)
    decoded = lanes + U64(8 * CHUNK)
    frames = decoded + U64(8 * SCRATCH_WORDS)
    looked_up = U64(0)  # rows of the chunk before
    place, total = U64(places[0]), U64(places[1])
    begin, ordinal = U64(0), U64(0)
    while begin < total or looked_up:
        at, last = begin << U64(3), (begin - looked_up) << U64(3)
        chunk = _chunk(scratch, ordinal, plan, columns, order.turned_by + at if order.turned_by else U64(0))
        before = _chunk(
            scratch, ordinal + U64(1), plan, columns, order.turned_by + last if order.turned_by else U64(0)
        )
        frame = frames + (ordinal & U64(1)) * U64(8 * FRAME_WORDS)
        frame_before = frames + (~ordinal & U64(1)) * U64(8 * FRAME_WORDS)
        wanted = min(U64(CHUNK), total - begin)
        if routines.permute:
            start, tile = place + begin, U64(CHUNK)
            keys_at = U64(keys.ctypes.data)
            call_at(U64(routines.permute), (start, keys_at, lanes, tile, chunk.number, wanted))
        else:
            _number(order, place, begin, chunk.number, wanted)
        weight = out.weight + (begin << U64(2)) if out.weight else U64(0)
        within = _resolve(chunk, wanted, plan, (order.cap_key, weight))
        look_up(chunk, within, plan, wants)
        _keep_frame(frame, chunk, wants, (begin, within, key, decoded))
        if wants.taped:
            call_at(U64(routines.made), (frame, words, outputs, LOCATE))
        if routines.columns and not plan.pool.count:
            call_at(U64(routines.columns), (frame, words, outputs, LOCATE))
        # The loops that write tokens prefetch the next chunk's.
        spread = out.tokens and looked_up
        _prefetch(chunk, within, wants, not spread, plan.packed or not spread)
        if within < wanted:
            total = begin + within
        bad = U64(0)
        if looked_up and wants.taped:
            bad = call_at(U64(routines.made), (frame_before, words, outputs, WRITE))
        if bad:
            total = U64(0) - bad
            break
        if routines.columns and out_words.shape[0] > OUTPUT_ENTRIES:
            call_at(U64(routines.columns), (frame, words, outputs, PREFETCH))
            if looked_up:
                call_at(U64(routines.columns), (frame_before, words, outputs, WRITE))
        if looked_up and _write((before, chunk, wants), (begin - looked_up, looked_up), plan, key, out):
            total = U64(0) - _find_impossible(before, looked_up, wants.boards, plan.rows.row_bytes)
            break
        if looked_up and routines.fields:
            call_at(U64(routines.fields), (frame_before, words, outputs, WRITE))
        if looked_up and routines.moves:
            call_at(U64(routines.moves), (frame_before, words, outputs, WRITE))
        begin += within
        looked_up = within
        ordinal += U64(1)
    memory[0] = total  # keeps the array alive, whose address is in use
    return np.int64(total)


_WORD: Any = read_plan(tuple(range(PLAN_WORDS)))  # the index of each word of a plan
_ENTRY: Any = Outputs(*range(OUTPUT_ENTRIES))


@functools.cache
def _routine(name: str) -> int:
    return routine(load_named(f"tape2048.loader.gather_routines:{name}"), 4)


def fill(
    words: NDArray[np.uint64],
    order_words: NDArray[np.uint64],
    places: tuple[int, int],
    keys: NDArray[np.uint64],
    out_words: NDArray[np.uint64],
) -> int:
    """Write a batch; return the number of rows written, the index of the first place outside the view.

    For a board that no game has, return -1 - the number in the map of its row; for a step on tape against the
    rules, that of the row after it.
    """
    fields = _ENTRY.legal, _ENTRY.step, _ENTRY.action, _ENTRY.symmetry
    routines = (
        routine(fill_of(keys), 6) if order_words[0] == SHUFFLED else 0,
        _routine("make") if words[_WORD.rows.tape.span] else 0,
        _routine("serve_columns") if words[_WORD.column_count] else 0,
        _routine("serve_fields") if any(out_words[at] for at in fields) else 0,
        _routine("serve_moves") if out_words[_ENTRY.move] else 0,
    )
    done: int = _fill(words, order_words, places, keys, out_words, routines)
    return done


@kernel
def copy_records(line: Any, limit: Any, row_bytes: Any, numbers: Any, records: Any) -> Any:
    """Copy whole rows of adjacent memory; return the number of rows before a number outside the view.

    For a board that no game has, return -1 - the number of its row.
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
            if is_impossible(source):
                return -1 - np.int64(number)
            to = target + U64(k) * row_bytes
            store64_at(to, load64(source))
            store64_at(to + U64(8), load64(source + U64(8)))
            store64_at(to + U64(16), load64(source + U64(16)))
            store64_at(to + last, load64(source + last))
    return count
