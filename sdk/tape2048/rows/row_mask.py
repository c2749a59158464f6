"""Masks of the rows whose board has a given number of empty cells; see ``row_map``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from tape2048.base.resources import available_cores
from tape2048.base.threads import map_ordered
from tape2048.formats.session import EXPS_OFFSET
from tape2048.game.rules import count_empty
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import load8, load64, popcount, word
from tape2048.rows.row_map import TAPE_STRIDE, RowMask
from tape2048.rows.tape_rows import FIRST, board_at, entry_of
from tape2048.tape.codec import step_checked

if TYPE_CHECKING:
    from tape2048.rows.buffers import RowBuffers
    from tape2048.rows.row_map import RowMap

U64 = np.uint64
_EXPS = U64(EXPS_OFFSET)
_SEVENS = U64(0x7F7F7F7F7F7F7F7F)

BLOCK_WORDS = 8
#: Parts of a core's rows on tape that are decoded side by side: a step waits for the one before it.
LANES = 4
#: Rows of a view from one sampled block to the next: as many as a block has bits.
SAMPLE_ROWS = 64 * BLOCK_WORDS


@kernel
def _mark(address: Any, starts: Any, strides: Any, low: Any, high: Any, words: Any) -> None:  # noqa: PLR0917
    """Set the bits of rows of files with ``low <= empty cells < high``."""
    for segment in range(address.shape[0]):
        if strides[segment] == U64(TAPE_STRIDE):
            continue
        for row in range(starts[segment], starts[segment + 1]):
            cells = address[segment] + row * strides[segment] + _EXPS
            filled = U64(0)
            for half in range(2):
                bytes_ = load64(cells + U64(8 * half))
                # The high bit of each byte that is not 0 (Hacker's Delight, 6-1).
                filled += popcount((((bytes_ & _SEVENS) + _SEVENS) | bytes_) & ~_SEVENS)
            empty = U64(16) - filled
            words[row >> U64(6)] |= U64(low <= empty < high) << (row & U64(63))


@kernel
def _mark_packed(address: Any, starts: Any, low: Any, high: Any, words: Any) -> None:
    """As :func:`_mark`, for packed boards."""
    for segment in range(address.shape[0]):
        for row in range(starts[segment], starts[segment + 1]):
            empty = count_empty(load64(address[segment] + (row << U64(3))))
            words[row >> U64(6)] |= U64(low <= empty < high) << (row & U64(63))


@kernel
def _mark_tape(  # noqa: PLR0917
    address: Any, starts: Any, entries: Any, bounds: Any, low: Any, high: Any, words: Any
) -> Any:
    """As :func:`_mark`, for rows on tape: those between each two of ``bounds``, u64[lanes + 1], side by side.

    The bounds are multiples of 64, so that several threads may mark at once.

    Returns:
        -1; or the number of a row after which the rules do not allow a step.
    """
    bad, start = U64(0), U64(entries.ctypes.data)
    lanes = bounds.shape[0] - 1
    row, left, board = bounds[:lanes].copy(), np.zeros(lanes, np.uint64), np.zeros(lanes, np.uint64)
    at, segment = np.zeros(lanes, np.uint64), np.zeros(lanes, np.int64)
    for lane in range(lanes):
        segment[lane] = np.searchsorted(starts, row[lane], "right") - 1
    live = np.arange(lanes)
    while True:
        count, lanes = ~U64(0), 0
        for lane in range(live.shape[0]):
            while left[lane] == U64(0) and row[lane] < bounds[lane + 1]:
                entry = entry_of(start, U64(segment[lane]))
                rows = min(starts[segment[lane] + 1], bounds[lane + 1]) - row[lane]
                if word(entry, FIRST):
                    at[lane] = address[segment[lane]] + row[lane]
                    board[lane], left[lane] = board_at(at[lane], entry), rows
                else:
                    row[lane] += rows
                segment[lane] += 1
            if left[lane]:
                live[lanes] = lane
                lanes += 1
                count = min(count, left[lane])
        if lanes == 0:
            return np.int64(bad) - 1
        bad = max(bad, _mark_some(live[:lanes], count, row, at, board, low, high, words))
        for i in range(lanes):
            left[live[i]] -= count


@register_jitable
def _mark_some(  # noqa: PLR0917
    lanes: Any, count: Any, row: Any, at: Any, board: Any, low: Any, high: Any, words: Any
) -> Any:
    """Mark the next rows of some lanes; return 0, or 1 + the number of a row with a wrong step."""
    bad = U64(0)
    for _ in range(count):
        for lane in lanes:
            is_in = U64(low <= count_empty(board[lane]) < high)
            words[row[lane] >> U64(6)] |= is_in << (row[lane] & U64(63))
            board[lane], wrong = step_checked(board[lane], load8(at[lane]))
            if wrong:
                bad = row[lane] + U64(1)
            at[lane] += U64(1)
            row[lane] += U64(1)
    return bad


@kernel
def _count_below(numbers: Any, words: Any, ranks: Any, counts: Any) -> None:
    """Count the bits set below each number."""
    for i in range(numbers.shape[0]):
        place, bits = numbers[i] >> U64(6), numbers[i] & U64(63)
        count = ranks[place // U64(BLOCK_WORDS)]
        for before in range(place // U64(BLOCK_WORDS) * U64(BLOCK_WORDS), place):
            count += popcount(words[before])
        if bits:
            count += popcount(words[place] & ((U64(1) << bits) - U64(1)))
        counts[i] = count


def mask_empties(rows: RowMap, low: int, high: int, store: RowBuffers) -> RowMap:
    """Restrict a map to the rows whose board has ``low <= empty cells < high``.

    Reads every row's board once, in order: 28 GB for 1e9 rows, 8 GB of packed boards, or 1 GB of tape, which
    all cores decode.
    """
    blocks = -(-rows.rows // (64 * BLOCK_WORDS))
    words = np.zeros(blocks * BLOCK_WORDS, np.uint64)
    starts, bounds = rows.guide.starts, (U64(max(0, low)), U64(max(0, high)))
    if len(rows.board):
        _mark_packed(rows.board, starts, *bounds, words)
    else:
        strides = rows.strides if len(rows.strides) else np.full(len(rows.address), rows.row_bytes, U64)
        _mark(rows.address, starts, strides, *bounds, words)
        if len(rows.tape.segments):
            parts = LANES * available_cores()
            edges = np.minimum(np.arange(parts + 1) * (-(-rows.rows // (64 * parts)) * 64), rows.rows)
            shares = [edges[i : i + LANES + 1].astype(U64) for i in range(0, parts, LANES)]
            tables = rows.address, starts, rows.tape.segments
            for bad in map_ordered(lambda share: _mark_tape(*tables, share, *bounds, words), shares):
                if bad >= 0:
                    store.raise_defect(rows, bad)
    # By blocks, since counts of words would take as much memory again.
    ranks = np.zeros(blocks + 1, U64)
    np.cumsum(np.bitwise_count(words).reshape(blocks, BLOCK_WORDS).sum(axis=1, dtype=U64), out=ranks[1:])
    samples = np.searchsorted(ranks, np.arange(0, int(ranks[-1]), SAMPLE_ROWS, dtype=U64), "right") - 1
    mask = RowMask(words, ranks, np.append(samples, max(0, blocks - 1)).astype(U64))
    run_starts = np.empty_like(rows.run_starts)
    _count_below(rows.run_starts, words, ranks, run_starts)
    return rows._replace(mask=mask, run_starts=run_starts)
