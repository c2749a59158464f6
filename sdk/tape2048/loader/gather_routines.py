"""Routines of ``gather_kernel``: what few batches need, compiled and imported once a batch needs it.

Each is called for a chunk of rows, with the addresses of the chunk's frame, of the plan's words and of the
outputs, and a stage.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tape2048.game.moves import UNKNOWN, recover_move
from tape2048.game.rules import SYMMETRY_MOVES, legal_mask
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.memory import (
    keep,
    load8,
    load32,
    load64,
    load_words,
    prefetch_many,
    store8_at,
    store32_at,
    store64_at,
    unpack_symmetry,
    word,
)
from tape2048.loader.batch import Outputs
from tape2048.loader.boards import (
    BOARD,
    EXPS,
    LACKS,
    MOVE,
    RUN,
    board_in,
    board_of,
    end_of,
    first_of,
    layout_of,
    line_of,
    nearest,
    run_of,
    span_of,
    step_in,
    stride_of,
)
from tape2048.loader.column_kernel import CHUNK, locate_columns, prefetch_columns, turn_of, write_columns
from tape2048.loader.gather_kernel import (
    FRAME_WORDS,
    LOCATE,
    OUTPUT_ENTRIES,
    PREFETCH,
    WRITE,
    Chunk,
    Frame,
    Wants,
    address_at,
    always_inlined,
    output_words,
    read_plan_at,
    segment_of,
)
from tape2048.session.layout import STEP_DTYPE
from tape2048.session.tape_codec import step_checked, step_forward

U64 = np.uint64

#: Rows of a part of a chunk: consecutive rows on tape are decoded one after the other within it.
PART = 32

_BOARDS, _ROWS = U64(8 * CHUNK), U64(16 * CHUNK)
_ROW_SHIFT = U64(5)
_STEP = U64(STEP_DTYPE.fields["step_idx"][1])  # type: ignore[index]
_ACTION = U64(STEP_DTYPE.itemsize)
_frame_words = load_words(FRAME_WORDS)


@helper
def _read_frame(at: Any) -> Any:
    words = _frame_words(at)
    return Frame(Chunk(*words[:10]), Wants(*words[10:17]), words[17], words[18], words[19], words[20])


@helper
def _find_sources(chunk: Any, count: Any, plan: Any) -> None:
    """Find from where rows on tape are decoded, and prefetch it.

    A row that follows on the one before it in the chunk needs only that row's board. Every 32nd row is
    decoded by itself, so that the chunk's parts do not wait for each other.
    """
    before = U64(0)
    for k in range(count):
        row, segment = word(chunk.row, k), word(chunk.segment, k)
        layout = layout_of(plan.rows, segment)
        if layout:
            keep(chunk.board, k, row + word(layout, BOARD))
            keep(chunk.source, k, row)
            prefetch_many(word(chunk.board, k))
        if layout or not span_of(plan.rows, segment):
            before = U64(0)
            continue
        if row == before + U64(1) and row != first_of(plan.rows, segment) and k % PART:
            keep(chunk.source, k, U64(0))
        else:
            known, source = nearest(row, plan.rows, segment)
            keep(chunk.board, k, known)
            keep(chunk.source, k, source)
            prefetch_many(known)
            prefetch_many(source)
        before = row


# --- Rows on tape. A random row is up to 15 steps from a board that is known. A step waits for the one before
# it in the row, so the rows of a chunk take steps in turns, and rows that have arrived drop out.


@helper
def _is_made(rows: Any, segment: Any) -> Any:
    return (span_of(rows, segment) | layout_of(rows, segment)) != U64(0)


@helper
def _known_board(chunk: Any, k: Any, layout: Any) -> Any:
    """Return the board that a row is made from, and whether it has a tile above 32768."""
    return board_in(word(chunk.row, k), layout) if layout else (load64(word(chunk.board, k)), False)


@helper
def decode_chunk(chunk: Any, count: Any, plan: Any, wants: Any, scratch: Any) -> Any:
    """Decode the rows of a chunk that are on tape, or of another layout.

    Afterwards, ``chunk.source`` of these rows is the address of the row's byte, ``chunk.board`` that of its
    board, and, if rows are wanted, ``chunk.row`` that of a row made of it, all in ``scratch``.

    Returns:
        0; or 1 + the number in the map of a row before which the rules do not allow a step, or that has a
        tile above 32768.
    """
    boards = scratch + _BOARDS
    left = bad = U64(0)
    for k in range(count):
        segment = word(chunk.segment, k)
        if _is_made(plan.rows, segment) and word(chunk.source, k):
            board, wrong = _known_board(chunk, k, layout_of(plan.rows, segment))
            bad = max(bad, U64(wrong) * (word(chunk.base, k) + U64(1)))
            keep(boards, k, board)
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
    following = _follow(chunk, count, plan, boards)
    for k in range(count):
        segment = word(chunk.segment, k)
        if _is_made(plan.rows, segment):
            keep(chunk.board, k, boards + (U64(k) << U64(3)))
            if wants.rows:
                row = scratch + _ROWS + (U64(k) << _ROW_SHIFT)
                _make_row(chunk, k, plan, segment, row)
                keep(chunk.row, k, row)
    return bad or following


@helper
def _follow(chunk: Any, count: Any, plan: Any, boards: Any) -> Any:
    """Decode rows that follow on the row before, the chunk's parts by turns; see :func:`decode_chunk`."""
    bad = U64(0)
    for within in range(U64(1), U64(PART)):
        for k in range(within, count, U64(PART)):
            if _is_made(plan.rows, word(chunk.segment, k)) and not word(chunk.source, k):
                row = word(chunk.row, k)
                board, wrong = step_checked(word(boards, k - U64(1)), load8(row - U64(1)))
                if wrong:
                    bad = word(chunk.base, k) + U64(1)
                keep(boards, k, board)
                keep(chunk.source, k, row)
    return bad


@helper
def _make_row(chunk: Any, k: Any, plan: Any, segment: Any, row: Any) -> None:
    at, layout, ids = word(chunk.source, k), layout_of(plan.rows, segment), plan.rows.tape.ids
    store64_at(row, word(ids, run_of(plan.rows, segment)) if ids else U64(0))
    step, move = at - first_of(plan.rows, segment), U64(0)
    if layout:
        step, move = step_in(at, layout), word(layout, MOVE)
    store32_at(row + _STEP, step)
    unpack_symmetry(load64(word(chunk.board, k)), row + EXPS, U64(0))
    store8_at(row + _ACTION, load8(at + move) & U64(3) if move != LACKS else U64(0))


@helper
def _turned_mask(mask: Any, k: Any) -> Any:
    turned = U64(0)
    for move in range(4):
        turned |= ((mask >> U64(move)) & U64(1)) << U64(SYMMETRY_MOVES[k, move])
    return turned


@helper
def _step_of(row: Any, layout: Any) -> Any:
    return step_in(row, layout) if layout else load32(row + _STEP)


@always_inlined
def _following(base: Any, segment: Any, address: Any, rows: Any, layout: Any) -> Any:
    """Return the address of the row one step after a row of a file, 0 if that was not recorded.

    It is the next row in the view, or else in memory: a view may end in the middle of a run.
    """
    run_at = word(layout, RUN) if layout else U64(0)
    step = _step_of(address, layout) + U64(1)
    if base + U64(1) < rows.rows:
        after = segment_of(base + U64(1), rows.guide)
        there = address_at(base + U64(1), after, rows)
        same = run_of(rows, after) == run_of(rows, segment)
        if same and _step_of(there, layout) == step:
            return there
    there = address + stride_of(rows, segment)
    inside = there < word(rows.end, line_of(rows, segment))
    if inside and load32(there + run_at) == load32(address + run_at) and _step_of(there, layout) == step:
        return there
    return U64(0)


@always_inlined
def _write_moves(chunk: Any, count: Any, plan: Any, key: Any, target: Any) -> None:
    rows, tape = plan.rows, plan.rows.tape.span
    for k in range(count):
        base = word(chunk.base, k)
        segment = segment_of(base, rows.guide)
        # Not the chunk's address: a pool has the row, but not the next one.
        address = address_at(base, segment, rows)
        move, layout = U64(UNKNOWN), U64(0)
        if tape:
            layout = layout_of(rows, segment)
        if layout and word(layout, MOVE) != LACKS:
            move = load8(address + word(layout, MOVE))
        elif tape and not layout and span_of(rows, segment):
            if address + U64(1) < end_of(rows, segment):
                board = load64(word(chunk.board, k)) if not plan.pool.count else board_of(word(chunk.row, k))
                move = recover_move(board, step_forward(board, load8(address)))
        else:
            there = _following(base, segment, address, rows, layout)
            if there and layout:
                move = recover_move(board_in(address, layout)[0], board_in(there, layout)[0])
            elif there:
                move = recover_move(board_of(address), board_of(there))
        if move < U64(4):
            move = U64(SYMMETRY_MOVES[turn_of(key, word(chunk.turned_by, k)), move])
        store8_at(target + k, move)


@helper
def _write_legal(chunk: Any, count: Any, key: Any, packed: Any, target: Any) -> None:
    for k in range(count):
        board = load64(word(chunk.board, k)) if packed else board_of(word(chunk.row, k))
        store8_at(target + k, _turned_mask(legal_mask(board), turn_of(key, word(chunk.turned_by, k))))


@helper
def _write_by_row(chunk: Any, count: Any, first: Any, key: Any, out: Any) -> None:
    """Write the outputs that need a row's bytes beside its board."""
    for k in range(count):
        turn = turn_of(key, word(chunk.turned_by, k))
        at = first + k
        if out.step:
            store32_at(out.step + (at << U64(2)), load32(word(chunk.row, k) + _STEP))
        if out.action:
            action = load8(word(chunk.row, k) + _ACTION) & U64(3)
            store8_at(out.action + at, U64(SYMMETRY_MOVES[turn, action]))
        if out.symmetry:
            store8_at(out.symmetry + at, turn)


@kernel
def make(frame_at: Any, words: Any, _outputs: Any, stage: Any) -> Any:
    """Rows that are made, of tape or of another layout."""
    frame, plan = _read_frame(frame_at), read_plan_at(words)
    if stage == WRITE:
        return decode_chunk(frame.chunk, frame.count, plan, frame.wants, frame.scratch)
    _find_sources(frame.chunk, frame.count, plan)
    return U64(0)


@kernel
def serve_columns(frame_at: Any, words: Any, outputs: Any, stage: Any) -> Any:
    frame, plan = _read_frame(frame_at), read_plan_at(words)
    if stage == LOCATE:
        locate_columns(frame.chunk, frame.count, plan)
    elif stage == PREFETCH:
        prefetch_columns(frame.chunk, frame.count, plan, frame.wants)
    else:
        outs = outputs + U64(8 * OUTPUT_ENTRIES)
        write_columns(frame.chunk, (frame.first, frame.count), plan, frame.key, outs)
    return U64(0)


@kernel
def serve_fields(frame_at: Any, words: Any, outputs: Any, _stage: Any) -> Any:
    frame, out = _read_frame(frame_at), Outputs(*output_words(outputs))
    first, count = frame.first, frame.count
    if out.legal:
        _write_legal(frame.chunk, count, frame.key, frame.wants.boards, out.legal + first)
    if out.step or out.action or out.symmetry:
        _write_by_row(frame.chunk, count, first, frame.key, out)
    return words


@kernel
def serve_moves(frame_at: Any, words: Any, outputs: Any, _stage: Any) -> Any:
    frame, plan = _read_frame(frame_at), read_plan_at(words)
    target = Outputs(*output_words(outputs)).move + frame.first
    _write_moves(frame.chunk, frame.count, plan, frame.key, target)
    return U64(0)
