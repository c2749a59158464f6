r"""Compiled functions that look up the value of an afterstate in an n-tuple network.

.. math::

    V(s) = \sum_{t} \sum_{k=0}^{7} w_t[\,\iota_t(\sigma_k(s))\,]

over the tuples :math:`t` and the 8 symmetries :math:`\sigma_k` of the square, where :math:`\iota_t(b)` is the
number whose hexadecimal digits are the exponents of ``b`` in the tuple's cells (cell 0 first). Source:
Szubert and Jaskowski, "Temporal difference learning of n-tuple networks for the game 2048", CIG 2014,
section III. Each stage has its own tables, and the large tiles of a board determine its stage: Wu et al.,
"Multi-stage temporal difference learning for 2048", TAAI 2014; Yeh et al., IEEE TCIAIG 2016. Here, all large
tiles count, not only the highest: Jaskowski, "Mastering 2048 with delayed temporal coherence learning", 2018.

The eight boards, the offsets of their entries and the entries are side by side in vector registers. Nothing
branches on a value, so a processor requests the entries of all compared boards before the first entries
arrive. :mod:`tape2048.ntuple.network` lays out the entries.

Each of the 8 symmetries has a lane of 64 bits. The images of a board differ only in the order of their bytes
and nibbles, so one shuffle of bytes and one exchange of nibbles make all eight. The offset of a table entry
is the union of **fields**. A field is the lane, rotated right and masked, which moves adjacent cells to their
digits in the offset. One gather then loads eight entries. LLVM maps these vectors to the registers of the
processor, and the gather to its instructions.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tape2048.game.rules import flip, mirror, transpose
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import extract_nibbles
from tape2048.jit.memory import prefetch_at

#: Number of images of a board.
SYMMETRIES = 8

# An intrinsic is called without its first parameter, the typing context, which type checkers cannot see.
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic

_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_WORDS = ir.VectorType(_I64, SYMMETRIES)
_BYTES = ir.VectorType(ir.IntType(8), 8 * SYMMETRIES)
_BOOLS = ir.VectorType(ir.IntType(1), SYMMETRIES)
_HALF_WORD_BITS = 16


def _every(vector: ir.VectorType, value: int) -> ir.Constant:
    return ir.Constant(vector, [value] * vector.count)


def _call(builder: Any, name: str, result: Any, args: list[Any]) -> Any:
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(result, [arg.type for arg in args]), name)
    return builder.call(function, args)


def _shuffled(builder: Any, vector: Any, order: list[int]) -> Any:
    lanes = ir.Constant(ir.VectorType(_I32, len(order)), order)
    return builder.shuffle_vector(vector, ir.Constant(vector.type, ir.Undefined), lanes)


def _broadcast(builder: Any, value: Any) -> Any:
    one = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), value, ir.Constant(_I32, 0))
    return _shuffled(builder, one, [0] * SYMMETRIES)


def _images(builder: Any, board: Any, turned: Any) -> Any:
    """Make the images of a board, then of its transpose ``turned``: unchanged, mirrored, flipped, both."""
    pair = builder.insert_element(ir.Constant(_WORDS, ir.Undefined), board, ir.Constant(_I32, 0))
    pair = builder.insert_element(pair, turned, ir.Constant(_I32, 1))
    lanes = builder.bitcast(_shuffled(builder, pair, [0] * 4 + [1] * 4), _BYTES)
    order = []
    for lane in range(SYMMETRIES):
        mirrored, flipped = lane & 1, lane >> 1 & 1
        # A row is two bytes. Flipping reverses the rows; mirroring reverses a row's bytes, and then nibbles.
        order += [8 * lane + (byte ^ (6 * flipped) ^ mirrored) for byte in range(8)]
    lanes = builder.bitcast(_shuffled(builder, lanes, order), _WORDS)
    low, four = _every(_WORDS, 0x0F0F0F0F0F0F0F0F), _every(_WORDS, 4)
    exchanged = builder.or_(
        builder.shl(builder.and_(lanes, low), four), builder.and_(builder.lshr(lanes, four), low)
    )
    return builder.select(ir.Constant(_BOOLS, [0, 1] * (SYMMETRIES // 2)), exchanged, lanes)


def _field(builder: Any, images: Any, rotation: Any, mask: Any) -> Any:
    rotated = _call(builder, "llvm.fshr.v8i64", _WORDS, [images, images, _broadcast(builder, rotation)])
    return builder.and_(rotated, _broadcast(builder, mask))


def _fields(builder: Any, images: Any, parts: Sequence[Any]) -> Any:
    joined = _field(builder, images, parts[0], parts[1])
    for i in range(2, len(parts), 2):
        joined = builder.or_(joined, _field(builder, images, parts[i], parts[i + 1]))
    return joined


def _gathered(builder: Any, addresses: Any, element: Any) -> Any:
    found, kind = ir.VectorType(element, SYMMETRIES), "f32" if element == _F32 else "i32"
    args = [
        builder.inttoptr(addresses, ir.VectorType(element.as_pointer(), SYMMETRIES)),
        ir.Constant(_I32, 1),  # aligned to a byte
        _every(_BOOLS, 1),
        ir.Constant(found, ir.Undefined),
    ]
    return _call(builder, f"llvm.masked.gather.v8{kind}.v8p0", found, args)


def _half_sum(builder: Any, words: Any, *, high: bool) -> Any:
    bits = _every(words.type, _HALF_WORD_BITS)
    values = builder.ashr(words if high else builder.shl(words, bits), bits)
    return _call(builder, "llvm.vector.reduce.add.v8i32", _I32, [values])


def _float_sum(builder: Any, values: Any) -> Any:
    while values.type.count > 1:
        count = values.type.count
        even, odd = (_shuffled(builder, values, list(range(first, count, 2))) for first in (0, 1))
        values = builder.fadd(even, odd)
    return builder.extract_element(values, ir.Constant(_I32, 0))


def _numbers(builder: Any, tuples: Any, kind: Any) -> list[list[Any]]:
    whole = [builder.extract_value(tuples, i) for i in range(kind.count)]
    return [[builder.extract_value(one, i) for i in range(kind[0].count)] for one in whole]


@_intrinsic
def stage_of(typing_context: Any, begins: Any, board: Any) -> Any:
    """Return the stage of a board, ``u64``: the number of sums in ``begins`` that its tiles reach."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        stage = ir.Constant(_I64, 0)
        if not begins.count:
            return stage
        shifts = ir.Constant(_WORDS, list(range(0, 64, 8)))
        board_ = _broadcast(builder, args[1])
        present = None
        for nibble in range(2):  # of each byte
            moved = builder.lshr(board_, builder.add(shifts, _every(_WORDS, 4 * nibble)))
            tiles = builder.shl(_every(_WORDS, 1), builder.and_(moved, _every(_WORDS, 15)))
            present = tiles if present is None else builder.or_(present, tiles)
        total = _call(builder, "llvm.vector.reduce.or.v8i64", _I64, [present])
        for i in range(begins.count):
            reached = builder.icmp_unsigned(">=", total, builder.extract_value(args[0], i))
            stage = builder.add(stage, builder.zext(reached, _I64))
        return stage

    return types.uint64(begins, board), codegen


@_intrinsic
def addresses_at(
    typing_context: Any, table: Any, singles: Any, base: Any, board: Any, turned: Any, out: Any
) -> Any:
    """Write the addresses of a board's entries into ``out``, ``u64[8 T]``, and prefetch them."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table_, singles_, from_, board_, turned_, out_ = args
        data, to = (
            context.make_array(signature.args[i])(context, builder, value).data
            for i, value in ((0, table_), (5, out_))
        )
        base_ = builder.add(builder.ptrtoint(data, _I64), from_)
        images = _images(builder, board_, turned_)
        to = builder.bitcast(to, _WORDS.as_pointer())
        for t, (offset, *parts) in enumerate(_numbers(builder, singles_, singles)):
            places = builder.add(
                _broadcast(builder, builder.add(base_, offset)), _fields(builder, images, parts)
            )
            builder.store(places, builder.gep(to, [ir.Constant(_I32, t)]), align=8)
            for lane in range(SYMMETRIES):
                address = builder.extract_element(places, ir.Constant(_I32, lane))
                prefetch_at(builder, address, to_write=True)
        return context.get_dummy_value()

    return types.void(table, singles, base, board, turned, out), codegen


@_intrinsic
def sums_at(
    typing_context: Any, table: Any, pairs: Any, singles: Any, base: Any, board: Any, turned: Any
) -> Any:
    """Sum tuples over the eight images: each pair's a, then each pair's b, then singles (i32 or f32)."""
    entry = types.float32 if table.dtype == types.float32 else types.int32

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        table_, pairs_, singles_, from_, board_, turned_ = args
        data = context.make_array(signature.args[0])(context, builder, table_).data
        base_ = builder.add(builder.ptrtoint(data, _I64), from_)
        images = _images(builder, board_, turned_)

        def places(offset: Any, parts: Sequence[Any]) -> Any:
            begin = _broadcast(builder, builder.add(base_, offset))
            return builder.add(begin, _fields(builder, images, parts))

        firsts: list[Any] = []
        seconds: list[Any] = []
        others: list[Any] = []
        for offset, *parts in _numbers(builder, pairs_, pairs) if pairs.count else []:
            line = places(offset, parts[4:])
            for found, own, high in ((firsts, parts[:2], False), (seconds, parts[2:4], True)):
                words = _gathered(builder, builder.or_(line, _field(builder, images, *own)), _I32)
                found.append(_half_sum(builder, words, high=high))
        for offset, *parts in _numbers(builder, singles_, singles) if singles.count else []:
            values = _gathered(builder, places(offset, parts), _F32 if entry == types.float32 else _I32)
            whole = entry == types.float32
            others.append(_float_sum(builder, values) if whole else _half_sum(builder, values, high=False))
        return context.make_tuple(builder, signature.return_type, firsts + seconds + others)

    count = 2 * pairs.count + singles.count
    sums_type: Any = types.UniTuple(entry, count)  # type: ignore[no-untyped-call]
    return sums_type(table, pairs, singles, base, board, turned), codegen


U64 = np.uint64


@helper
def highest_at_least(board: Any, exponent: Any) -> Any:
    return stage_of((U64(1) << exponent,), board) != U64(0)


@kernel
def downgraded(board: Any) -> Any:
    """Halve all tiles above the largest missing tile, which gives a smaller board with the same legal moves.

    Networks have seen few boards with the largest tiles, and value them badly: Guei, Chen and Wu, "Optimistic
    temporal difference learning for 2048", IEEE Transactions on Games 2021, section IV. If no tile is
    missing, returns the board unchanged.
    """
    present = U64(0)
    highest = U64(0)
    for i in range(16):
        exponent = (board >> U64(4 * i)) & U64(15)
        present |= U64(1) << exponent
        highest = max(highest, exponent)
    missing = highest
    while missing > U64(0) and (present >> missing) & U64(1):
        missing -= U64(1)
    if missing == U64(0):
        return board
    halved = U64(0)
    for i in range(16):
        exponent = (board >> U64(4 * i)) & U64(15)
        halved |= (exponent - U64(exponent > missing)) << U64(4 * i)
    return halved


@helper(forceinline=True)
def _symmetries(board: Any) -> Any:
    b1 = mirror(board)
    b4 = transpose(board)
    b5 = mirror(b4)
    return board, b1, flip(board), flip(b1), b4, b5, flip(b4), flip(b5)


@helper(forceinline=True)
def value_of(places: Any, table: Any, scales: Any, board: Any) -> Any:
    stage = stage_of(places.stage_begins, board)
    base = stage * places.stage_bytes
    sums = sums_at(table, places.pairs, places.singles, base, board, transpose(board))
    total = np.float32(0)
    for t in range(len(sums)):
        total += scales[stage, t] * np.float32(sums[t])
    return total


@helper
def indices_of(masks: Any, offsets: Any, base: Any, board: Any, out: Any) -> None:
    """Write the indices of a board's entries, in the order of the file, into ``out``, ``u64[8 T]``."""
    boards = _symmetries(board)
    for t in range(len(masks)):
        for k in range(SYMMETRIES):
            out[t * SYMMETRIES + k] = base + offsets[t] + extract_nibbles(boards[k], masks[t])


@kernel
def fill_values(places: Any, table: Any, scales: Any, boards: Any, out: Any) -> None:
    """Write the values of boards ``u64[n]`` into ``f32[n]``."""
    for i in range(boards.shape[0]):
        out[i] = value_of(places, table, scales, boards[i])
