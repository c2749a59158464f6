"""Compiled gather of columns: the part of ``gather_kernel`` that copies the values of a chunk's rows."""

from __future__ import annotations

from typing import Any

import numpy as np

from tape2048.game.rules import SYMMETRY_MOVES
from tape2048.jit.compiler import helper
from tape2048.jit.intrinsics import mix
from tape2048.jit.memory import (
    keep,
    load8,
    load32,
    load64,
    prefetch_many,
    store8_at,
    store32_at,
    store64_at,
    word,
)
from tape2048.loader.plan import ColumnEntries

U64 = np.uint64

#: Rows of a chunk, a power of two: 64 took 5 to 8% longer, and 256 as long; two chunks fit the L1 cache.
CHUNK = 128

#: ``ColumnEntries.moves`` of a column whose values are numbers of moves.
A_MOVE = U64(255)

_LINE = U64(64)
_COLUMN_BYTES = U64(8 * len(ColumnEntries._fields))
_LINE_AT, _ORIGINS, _STRIDE, _SIZE, _MOVES, _MAPPED = range(len(ColumnEntries._fields))


@helper
def turn_of(key: Any, base: Any) -> Any:
    """Return the symmetry of a row in this epoch; 0, the identity, without augmentation."""
    return mix(key + base) & U64(7) if key else U64(0)


@helper
def prefetch_last_line(first: Any, last: Any, near: Any) -> None:
    """Prefetch the cache line of the last of at most 64 bytes, if the first byte is in another line.

    Otherwise prefetch ``near``, which is in the cache: a second request for a line in flight takes another
    slot (an eighth of the time, with rows of 28 bytes), and a branch would be mispredicted for every third
    row.
    """
    prefetch_many(last if (first ^ last) & _LINE else near)


@helper
def locate(numbers: Any, lines: Any, count: Any, where: Any, out: Any) -> None:
    """Compute addresses of rows from their numbers, as ``origin + number * stride``.

    ``where``: the origin if it is equal in all lines, else 0; a table of the origin in each line; a table of
    the stride in each line, or 0; and the stride without that table.
    """
    line, origins, strides, stride = where
    if line:
        for k in range(count):
            keep(out, k, line + word(numbers, k) * stride)
        return
    if strides:
        for k in range(count):
            at = word(lines, k)
            keep(out, k, word(origins, at) + word(numbers, k) * word(strides, at))
        return
    for k in range(count):
        keep(out, k, word(origins, word(lines, k)) + word(numbers, k) * stride)


@helper
def locate_columns(chunk: Any, count: Any, plan: Any) -> None:
    for c in range(plan.column_count):
        at = plan.columns + c * _COLUMN_BYTES
        numbers = chunk.base if word(at, _MAPPED) else chunk.number
        where = word(at, _LINE_AT), word(at, _ORIGINS), U64(0), word(at, _STRIDE)
        locate(numbers, chunk.line, count, where, chunk.columns + c * U64(8 * CHUNK))


@helper
def prefetch_columns(chunk: Any, count: Any, plan: Any, wants: Any) -> None:
    """Prefetch rows' values in all columns; in a pool, the lines that the prefetch of rows leaves out."""
    if not plan.pool.count:
        for c in range(plan.column_count):
            _prefetch_spans(
                chunk.columns + c * U64(8 * CHUNK),
                U64(0),
                count,
                word(plan.columns + c * _COLUMN_BYTES, _SIZE),
            )
    elif _LINE % plan.pool.stride or not (wants.rows or wants.boards):
        lead = U64(0) if plan.packed else wants.lead
        _prefetch_spans(chunk.board if plan.packed else chunk.row, lead, count, plan.pool.stride - lead)


@helper
def _prefetch_spans(table: Any, lead: Any, count: Any, span: Any) -> None:
    last = span - U64(1)
    for k in range(count):
        source = word(table, k) + lead
        prefetch_many(source)
        for at in range(_LINE, span, _LINE):
            prefetch_many(source + at)
        prefetch_last_line(source + (last & ~(_LINE - U64(1))), source + last, table)


@helper
def _copy_turned(source: Any, target: Any, turn: Any, moves: Any) -> None:
    """Copy a value for each move to the move's place in the turned board, or the number of a move, turned."""
    if moves == A_MOVE:
        move = load8(source)
        store8_at(target, U64(SYMMETRY_MOVES[turn, move]) if move < U64(4) else move)
        return
    for move in range(4):
        to = target + U64(SYMMETRY_MOVES[turn, move]) * moves
        for at in range(moves):
            store8_at(to + at, load8(source + U64(move) * moves + at))


@helper
def _copy_values(table: Any, at: Any, count: Any, out: Any, size: Any) -> None:
    target, stride = out
    for k in range(count):
        source, to = word(table, k) + at, target + k * stride
        for i in range(U64(0), size & ~U64(7), U64(8)):
            store64_at(to + i, load64(source + i))
        if size & U64(4):
            i = size & ~U64(7)
            store32_at(to + i, load32(source + i))
        for i in range(size & ~U64(3), size):
            store8_at(to + i, load8(source + i))


@helper
def write_columns(chunk: Any, rows: Any, plan: Any, key: Any, outs: Any) -> None:
    """Copy the values of a chunk's rows. A loop of a constant size is faster."""
    first, count = rows
    for c in range(plan.column_count):
        entry = plan.columns + c * _COLUMN_BYTES
        size, moves = word(entry, _SIZE), word(entry, _MOVES)
        table, at = chunk.columns + c * U64(8 * CHUNK), U64(0)
        if plan.pool.count:
            table, at = chunk.board if plan.packed else chunk.row, word(entry, _LINE_AT)
        stride = word(outs, 2 * c + 1)
        out = word(outs, 2 * c) + first * stride, stride
        if key and moves:
            for k in range(count):
                turn = turn_of(key, word(chunk.turned_by, k))
                _copy_turned(word(table, k) + at, out[0] + k * stride, turn, moves)
        elif size == U64(4):
            _copy_values(table, at, count, out, U64(4))
        elif size == U64(16):
            _copy_values(table, at, count, out, U64(16))
        else:
            _copy_values(table, at, count, out, size)
