"""Loads, stores and prefetches in compiled code, and tables of words.

Functions that take addresses as ``u64`` check nothing. The caller must check that the bytes exist, and keep
their owner alive.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from llvmlite import ir
from numba import types

from tape2048.jit.compiler import helper
from tape2048.jit.intrinsics import _BYTE, _I32, _I64, _U64, _emits

U64 = np.uint64


def _store_bits(builder: Any, value: Any, pointer: Any, bits: int) -> None:
    word = ir.IntType(bits)
    value = value if bits == 64 else builder.trunc(value, word)
    builder.store(value, builder.bitcast(pointer, word.as_pointer()), align=1)


def _store(bits: int) -> Any:
    """Make a store of the low ``bits`` of a ``u64`` at a byte offset of an array."""

    @_emits(types.void, None, _U64, _U64)
    def store(builder: Any, buffer: Any, offset: Any, value: Any) -> None:
        _store_bits(builder, value, builder.gep(buffer, [offset]), bits)

    return store


store8 = _store(8)

store32 = _store(32)

store64 = _store(64)


def _pointer(builder: Any, address: Any, kind: Any = _BYTE) -> Any:
    return builder.inttoptr(address, kind.as_pointer())


def _load(bits: int) -> Any:
    """Make a load of ``bits`` at an address of any alignment, as a ``u64``."""

    @_emits(_U64, _U64)
    def load(builder: Any, address: Any) -> Any:
        value = builder.load(_pointer(builder, address, ir.IntType(bits)), align=1)
        return value if bits == 64 else builder.zext(value, _I64)

    return load


load8 = _load(8)

load32 = _load(32)

load64 = _load(64)


def _store_at(bits: int) -> Any:
    @_emits(types.void, _U64, _U64)
    def store(builder: Any, address: Any, value: Any) -> None:
        _store_bits(builder, value, _pointer(builder, address, ir.IntType(bits)), bits)

    return store


store8_at = _store_at(8)

store32_at = _store_at(32)

store64_at = _store_at(64)


@_emits(types.float32, _U64, _U64)
def load_f32(builder: Any, table: Any, index: Any) -> Any:
    return builder.load(builder.gep(_pointer(builder, table, ir.FloatType()), [index]))


@_emits(_U64, _U64, _U64)
def load_word(builder: Any, table: Any, index: Any) -> Any:
    """As :func:`word`; LLVM can make vectors of it."""
    return builder.load(builder.gep(_pointer(builder, table, _I64), [index]), align=1)


@_emits(types.void, _U64, _U64, types.float32)
def store_f32_at(builder: Any, table: Any, index: Any, value: Any) -> None:
    builder.store(value, builder.gep(_pointer(builder, table, ir.FloatType()), [index]))


def load_words(count: int) -> Any:
    """Make an intrinsic that loads words from an address, as a tuple."""
    words: Any = types.UniTuple(_U64, count)  # type: ignore[no-untyped-call]

    @_emits(words, _U64)
    def load(builder: Any, address: Any) -> Any:
        pointer, loaded = (
            _pointer(builder, address, _I64),
            ir.Constant(ir.ArrayType(_I64, count), ir.Undefined),
        )
        for i in range(count):
            value = builder.load(builder.gep(pointer, [ir.Constant(_I32, i)]))
            loaded = builder.insert_value(loaded, value, i)
        return loaded

    return load


@_emits(types.void, _U64, None)
def store_words(builder: Any, address: Any, words: Any) -> None:
    """Store a tuple of words at an address."""
    pointer = _pointer(builder, address, _I64)
    for i in range(words.type.count):
        builder.store(builder.extract_value(words, i), builder.gep(pointer, [ir.Constant(_I32, i)]))


def pointer_to(kind: Any) -> Any:
    """Make an intrinsic that turns an address into a pointer to a number type of numba."""
    target: Any = types.CPointer(kind)  # type: ignore[no-untyped-call]

    @_emits(target, _U64)
    def pointer(builder: Any, address: Any) -> Any:
        return _pointer(builder, address, ir.IntType(kind.bitwidth))

    return pointer


@_emits(_U64, _U64, None)
def call_at(builder: Any, address: Any, words: Any) -> Any:
    """Call a :func:`tape2048.jit.compiler.routine` with a tuple of words, given its address."""
    count = words.type.count
    kind = ir.FunctionType(_I64, [_I64] * count)
    return builder.call(
        builder.inttoptr(address, kind.as_pointer()), [builder.extract_value(words, i) for i in range(count)]
    )


def stack_words(count: int) -> Any:
    """Make an intrinsic for words of 64 bits on the stack, undefined at first, valid until the return."""

    @_emits(_U64)
    def reserve(builder: Any) -> Any:
        with builder.goto_entry_block():  # once, also for a call in a loop
            return builder.ptrtoint(builder.alloca(_I64, ir.Constant(_I32, count)), _I64)

    return reserve


def _emit_prefetch(builder: Any, pointer: Any, locality: int, *, to_write: bool = False) -> None:
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, _I32, _I32, _I32])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    data = 1
    builder.call(function, [pointer, *(ir.Constant(_I32, int(n)) for n in (to_write, locality, data))])


def prefetch_at(builder: Any, address: Any, *, to_write: bool) -> None:
    """Emit a prefetch of the cache line at an address, ``i64``, into all levels of cache."""
    _emit_prefetch(builder, _pointer(builder, address), 3, to_write=to_write)


def _prefetch(locality: int) -> Any:
    @_emits(types.void, _U64)
    def prefetch(builder: Any, address: Any) -> None:
        _emit_prefetch(builder, _pointer(builder, address), locality)

    return prefetch


#: Prefetch a cache line into all levels of cache.
prefetch = _prefetch(3)

#: Prefetch a cache line into the second level, which has room for more lines in flight than the first.
prefetch_many = _prefetch(2)

# For the three generators of the square's symmetries, the source cell of each of the 16 cells.
_MIRROR = [4 * (cell // 4) + 3 - cell % 4 for cell in range(16)]

_FLIP = [4 * (3 - cell // 4) + cell % 4 for cell in range(16)]

_TRANSPOSE = [4 * (cell % 4) + cell // 4 for cell in range(16)]

_CELLS = ir.VectorType(_BYTE, 16)


def _shuffled(builder: Any, cells: Any, order: list[int]) -> Any:
    lanes = ir.VectorType(_I32, len(order))
    return builder.shuffle_vector(cells, ir.Constant(cells.type, ir.Undefined), ir.Constant(lanes, order))


def _turned(builder: Any, cells: Any, k: Any) -> Any:
    """Emit ``tape2048.game.rules.symmetry(board, k)`` of a board of 16 bytes.

    Each bit of ``k`` selects one of three shuffles with constant masks. There is no table and no branch: with
    a random ``k``, the processor would mispredict every other branch.
    """
    undefined = ir.Constant(_CELLS, ir.Undefined)
    for bit, order in enumerate((_MIRROR, _FLIP, _TRANSPOSE)):
        chosen = builder.trunc(builder.lshr(k, ir.Constant(_I64, bit)), ir.IntType(1))
        first = builder.insert_element(undefined, builder.sext(chosen, _BYTE), ir.Constant(_I32, 0))
        mask = _shuffled(builder, first, [0] * 16)
        cells = builder.xor(cells, builder.and_(builder.xor(cells, _shuffled(builder, cells, order)), mask))
    return cells


@_emits(types.void, _U64, _U64, _U64)
def copy_symmetry(builder: Any, source: Any, target: Any, k: Any) -> None:
    """Copy a board of 16 bytes between two addresses, turned by ``tape2048.game.rules.symmetry``."""
    cells = builder.load(_pointer(builder, source, _CELLS), align=1)
    builder.store(_turned(builder, cells, k), _pointer(builder, target, _CELLS), align=1)


# In memory, the first byte of a packed board has cells 14 and 15. Of two cells, the higher is the low nibble.
_FROM_NIBBLES = [7 - cell // 2 + (8 if cell % 2 == 0 else 0) for cell in range(16)]


@_emits(types.void, _U64, _U64, _U64)
def unpack_symmetry(builder: Any, board: Any, target: Any, k: Any) -> None:
    """Write a packed board as 16 bytes at an address, turned as by :func:`copy_symmetry`."""
    half = ir.VectorType(_BYTE, 8)
    pairs = builder.bitcast(board, half)
    low = builder.and_(pairs, ir.Constant(half, [15] * 8))
    high = builder.lshr(pairs, ir.Constant(half, [4] * 8))
    order = ir.Constant(ir.VectorType(_I32, 16), _FROM_NIBBLES)
    cells = _turned(builder, builder.shuffle_vector(low, high, order), k)
    builder.store(cells, _pointer(builder, target, _CELLS), align=1)


@_emits(types.void, None, _U64)
def claim_in(builder: Any, buffer: Any, offset: Any) -> None:
    """Prefetch bytes that will be written soon: a store that waits for its line delays all later stores."""
    _emit_prefetch(builder, builder.gep(buffer, [offset]), 3, to_write=True)


@helper
def word(table: Any, index: Any) -> Any:
    return load64(table + (index << U64(3)))


@helper
def keep(table: Any, index: Any, value: Any) -> None:
    store64_at(table + (index << U64(3)), value)


@helper
def find(number: Any, entries: Any, starts: Any, shift: Any) -> Any:
    """Return the range that a number is in, given the tables of a ``tape2048.base.guide.Guide``."""
    entry = word(entries, number >> shift)
    within = number & ((U64(1) << shift) - U64(1))
    place = (entry & U64(0xFFFFFFFF)) + U64(within >= ((entry >> U64(32)) & U64(0x7FFFFFFF)))
    if entry >> U64(63):
        while word(starts, place + U64(1)) <= number:
            place += U64(1)
    return place
