"""Compiled decoder and encoder of the list of steps in a2run2 files.

Floats are copied as their 32 bits, so that no value changes, such as a NaN with a payload.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tape2048.jit.compiler import helper, kernel

U8 = np.uint8
U64 = np.uint64

#: Status of :func:`decode_steps`.
OK, SHORT, BAD_VARINT, BAD_MOVE, BAD_OPTION, BAD_VARIANT = range(6)

#: Bytes of the longest step: a board as a varint, the move, the option, and four branches of a variant and a
#: float.
STEP_BYTES_MAX = 10 + 1 + 1 + 4 * 5


@helper
def _read_f32_bits(data: Any, at: Any) -> Any:
    """Read four little-endian bytes, which LLVM turns into one load."""
    return (
        np.uint32(data[at])
        | np.uint32(data[at + 1]) << np.uint32(8)
        | np.uint32(data[at + 2]) << np.uint32(16)
        | np.uint32(data[at + 3]) << np.uint32(24)
    )


@kernel
def decode_steps(
    data: Any, begin: Any, boards: Any, moves: Any, value_bits: Any, legal: Any, has_branches: Any
) -> Any:
    """Decode ``len(moves)`` steps from ``data[begin:]`` into the arrays.

    ``data`` is ``u8[bytes]``, the whole file. ``boards`` is ``u64[n]`` or longer. ``value_bits`` are the bits
    of the values, ``u32[n, 4]``, 0 for no value. Returns ``(status, offset)``: OK and the offset after the
    last step, or the defect and its offset.
    """
    size = data.shape[0]
    at = begin
    for step in range(moves.shape[0]):
        board = U64(0)
        shift = U64(0)
        while True:
            if at >= size:
                return SHORT, at
            byte = U64(data[at])
            # Only one bit is left for the tenth byte. A last byte of 0 is not the shortest form.
            if shift == U64(63) and byte > U64(1):
                return BAD_VARINT, at
            board |= (byte & U64(0x7F)) << shift
            at += 1
            if byte < U64(0x80):
                if byte == U64(0) and shift > U64(0):
                    return BAD_VARINT, at - 1
                break
            shift += U64(7)
        boards[step] = board

        if at + 2 > size:
            return SHORT, size
        if data[at] > U8(3):
            return BAD_MOVE, at
        moves[step] = data[at]
        option = data[at + 1]
        if option > U8(1):
            return BAD_OPTION, at + 1
        at += 2
        has_branches[step] = option == U8(1)
        mask = U8(0)
        for move in range(4):
            bits = np.uint32(0)
            if option == U8(1):
                if at >= size:
                    return SHORT, size
                variant = data[at]
                if variant > U8(1):
                    return BAD_VARIANT, at
                at += 1
                if variant == U8(0):
                    if at + 4 > size:
                        return SHORT, size
                    bits = _read_f32_bits(data, at)
                    at += 4
                    mask |= U8(1 << move)
            value_bits[step, move] = bits
        legal[step] = mask
    return OK, at


@kernel
def encode_steps(boards: Any, moves: Any, value_bits: Any, legal: Any, has_branches: Any, out: Any) -> Any:
    """Encode steps into ``out``, ``STEP_BYTES_MAX`` each; values of illegal moves are left out."""
    at = 0
    for step in range(moves.shape[0]):
        board = boards[step]
        while board >= U64(0x80):
            out[at] = U8(board & U64(0x7F) | U64(0x80))
            board >>= U64(7)
            at += 1
        out[at] = U8(board)
        out[at + 1] = moves[step]
        out[at + 2] = U8(has_branches[step])
        at += 3
        if not has_branches[step]:
            continue
        for move in range(4):
            if not legal[step] >> U8(move) & U8(1):
                out[at] = U8(1)
                at += 1
                continue
            bits = value_bits[step, move]
            out[at] = U8(0)
            out[at + 1] = U8(bits & np.uint32(0xFF))
            out[at + 2] = U8(bits >> np.uint32(8) & np.uint32(0xFF))
            out[at + 3] = U8(bits >> np.uint32(16) & np.uint32(0xFF))
            out[at + 4] = U8(bits >> np.uint32(24))
            at += 5
    return at
