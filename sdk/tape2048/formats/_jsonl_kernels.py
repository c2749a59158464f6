"""Steps and boards as JSON text, in compiled code; see :mod:`tape2048.formats.jsonl`."""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048._jit import kernel
from tape2048.formats._float_text import FLOAT_TEXT_BYTES_MAX, write_digits, write_float

__all__ = ["STEP_LINE_BYTES_MAX", "float_text", "write_boards", "write_moves", "write_steps"]

U32 = np.uint32
U64 = np.uint64

_COMMA, _ZERO, _ONE, _CLOSE, _CURLY, _NEWLINE = (U64(ord(char)) for char in ",01]}\n")


def _text(text: str) -> Any:
    return np.frombuffer(text.encode(), np.uint8)


_RUN = _text('{"run_idx":')
_STEP = _text(',"step_idx":')
_BOARD = _text(',"pre_board":[')
_CHOSEN = _text('],"chosen":"')
_BRANCHES = _text('","branches":')
_NULL = _text("null")
_LEGAL = _text('{"legal":true,"value":')
_ILLEGAL = _text('{"legal":false,"value":null}')
_NAMES = _text("UP   DOWN LEFT RIGHT")  # five bytes each
_NAME_SIZES = np.array([2, 4, 4, 5], dtype=np.int64)

#: The longest line of a step: numbers of 20 and 10 digits, 16 exponents of two, four legal branches.
STEP_LINE_BYTES_MAX = (
    len(_RUN) + 20 + len(_STEP) + 10 + len(_BOARD) + 16 * 3 + len(_CHOSEN) + 5 + len(_BRANCHES)
    + 2 + 4 * (len(_LEGAL) + FLOAT_TEXT_BYTES_MAX + 2) + 2
)  # fmt: skip


@register_jitable
def _put(out: Any, at: Any, text: Any) -> Any:
    for i in range(text.shape[0]):
        out[at + i] = text[i]
    return at + text.shape[0]


@register_jitable
def _put_move(out: Any, at: Any, move: Any) -> Any:
    size = _NAME_SIZES[move]
    for i in range(size):
        out[at + i] = _NAMES[5 * move + i]
    return at + size


@register_jitable
def _put_branches(out: Any, at: Any, value_bits: Any, legal: Any) -> Any:
    for move in range(4):
        out[at] = _COMMA if move else U64(ord("["))
        at += 1
        if legal >> np.uint8(move) & np.uint8(1):
            at = _put(out, at, _LEGAL)
            at = write_float(out, at, value_bits[move])
            out[at] = _CURLY
            at += 1
        else:
            at = _put(out, at, _ILLEGAL)
    out[at] = _CLOSE
    return at + 1


@kernel
def write_steps(
    run: Any, boards: Any, moves: Any, value_bits: Any, legal: Any, has_branches: Any, out: Any
) -> Any:
    """One line for each step; ``out`` has ``STEP_LINE_BYTES_MAX`` for each. Returns the bytes used."""
    at = 0
    for step in range(moves.shape[0]):
        at = _put(out, at, _RUN)
        at = write_digits(out, at, U64(run))
        at = _put(out, at, _STEP)
        at = write_digits(out, at, U64(step))
        at = _put(out, at, _BOARD)
        board = boards[step]
        for cell in range(16):
            exponent = board >> U64(60 - 4 * cell) & U64(15)
            if exponent >= U64(10):
                out[at] = _ONE
                at += 1
                exponent -= U64(10)
            out[at] = _ZERO + exponent
            out[at + 1] = _COMMA
            at += 2
        at = _put(out, at - 1, _CHOSEN)
        at = _put_move(out, at, np.int64(moves[step]))
        at = _put(out, at, _BRANCHES)
        at = (
            _put_branches(out, at, value_bits[step], legal[step])
            if has_branches[step]
            else _put(out, at, _NULL)
        )
        out[at], out[at + 1] = _CURLY, _NEWLINE
        at += 2
    return at


@kernel
def write_boards(boards: Any, out: Any) -> Any:
    """Boards as decimal numbers with commas between; 21 bytes each are enough. Returns the bytes used."""
    at = 0
    for i in range(boards.shape[0]):
        if i:
            out[at] = _COMMA
            at += 1
        at = write_digits(out, at, boards[i])
    return at


@kernel
def write_moves(moves: Any, out: Any) -> Any:
    """Moves as quoted names with commas between; 8 bytes each are enough. Returns the bytes used."""
    at = 0
    for i in range(moves.shape[0]):
        if i:
            out[at] = _COMMA
            at += 1
        out[at] = U64(ord('"'))
        at = _put_move(out, at + 1, np.int64(moves[i]))
        out[at] = U64(ord('"'))
        at += 1
    return at


@kernel
def float_text(bits: Any, out: Any) -> Any:
    """The JSON text of one float32's bits, for tests and metadata; returns the bytes used."""
    return write_float(out, 0, bits)
