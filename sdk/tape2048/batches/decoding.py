"""Decoding of a chunk's rows on tape, between the look-up and the writing of the outputs.

A random row is up to 15 steps from a board that is known. A step waits for the one before it in the row, so
the rows of a chunk take steps in turns: the processor works on as many rows at once as it can hold, and rows
that have arrived drop out.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048.batches.lookup import CHUNK, PART, run_of
from tape2048.formats.session import EXPS_OFFSET, STEP_DTYPE
from tape2048.jit.intrinsics import (
    keep,
    load8,
    load64,
    store8_at,
    store32_at,
    store64_at,
    unpack_symmetry,
    word,
)
from tape2048.rows.tape_rows import FIRST, entry_of
from tape2048.tape.codec import step_checked

U64 = np.uint64

#: Words of memory for the rows of a chunk that are made: their order, their boards, and the rows.
SCRATCH_WORDS = 6 * CHUNK

_BOARDS, _ROWS = U64(8 * CHUNK), U64(16 * CHUNK)
_ROW_SHIFT = U64(5)
_STEP = U64(STEP_DTYPE.fields["step_idx"][1])  # type: ignore[index]
_EXPS, _ACTION = U64(EXPS_OFFSET), U64(STEP_DTYPE.itemsize)


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
