"""Machine instructions that Python has no word for, as numba intrinsics.

Each is one LLVM instruction or intrinsic, so it works on every processor that numba compiles for.
Only the selection of a set bit and of masked nibbles have two forms: BMI2's ``pdep`` and ``pext`` where
the processor has them, else loops. Both give the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

from tape2048.jit.mix import mix64

if TYPE_CHECKING:
    from collections.abc import Callable

U64 = np.uint64
#: :func:`tape2048.jit.mix.mix64` for compiled code.
mix: Any = register_jitable(mix64)

# AMD before Zen 3 has pdep and pext in microcode: a hundred cycles and more.
_SLOW_PDEP = ("bdver4", "znver1", "znver2")


def _has_pdep() -> bool:
    """Whether ``pdep`` is there and is one instruction, on the processor that numba compiles for.

    That is this one, unless ``NUMBA_CPU_NAME`` or ``NUMBA_CPU_FEATURES`` name another: LLVM aborts the
    process at an instruction that its target lacks. (Numba's cache keeps them apart.)
    """
    config: Any = numba.config
    if (config.CPU_NAME or llvm.get_host_cpu_name()) in _SLOW_PDEP:
        return False
    if config.CPU_FEATURES is not None:
        return "+bmi2" in config.CPU_FEATURES.split(",")
    return bool(llvm.get_host_cpu_features().get("bmi2"))


#: Whether :func:`select_bit` may use ``pdep``.
HAS_PDEP = _has_pdep()

# An intrinsic is called without its first parameter, the typing context, which type checkers cannot see.
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic

_I64 = ir.IntType(64)
_I128 = ir.IntType(128)


def _llvm_unary(name: str) -> Any:
    @_intrinsic
    def call(typing_context: Any, value: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            return builder.call(builder.module.declare_intrinsic(name, [_I64]), args)

        return types.uint64(types.uint64), codegen

    return call


popcount = _llvm_unary("llvm.ctpop")
bswap64 = _llvm_unary("llvm.bswap")


@_intrinsic
def float_bits(typing_context: Any, value: Any) -> Any:
    """The 32 bits of an ``f32`` as a signed integer, sign-extended to ``i64``."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.sext(builder.bitcast(args[0], ir.IntType(32)), _I64)

    return types.int64(types.float32), codegen


@_intrinsic
def high64(typing_context: Any, a: Any, b: Any) -> Any:
    """The high 64 bits of the 128-bit product of two ``u64``."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), codegen


# Numba's own arithmetic widens to 64 bits, and a loop of it becomes a vector loop of lanes of 64 bits. These
# two stay as wide as their arguments.
_LANE_BITS: dict[Any, int] = {types.uint16: 16, types.uint32: 32}


@_intrinsic
def fold(typing_context: Any, x: Any) -> Any:
    """``x ^ x >> w/2`` of a ``u16`` or ``u32`` of w bits."""
    bits = _LANE_BITS[x]

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        return builder.xor(args[0], builder.lshr(args[0], ir.Constant(ir.IntType(bits), bits // 2)))

    return x(x), codegen


@_intrinsic
def add_below(typing_context: Any, x: Any, y: Any, size: Any) -> Any:
    """``(x + (y * size >> w)) % size`` of three ``u16`` or ``u32`` of w bits, ``x < size <= 2**(w - 1)``."""
    bits = _LANE_BITS[x]

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        lane, wide = ir.IntType(bits), ir.IntType(2 * bits)
        number, scaled, limit = args
        product = builder.mul(builder.zext(scaled, wide), builder.zext(limit, wide))
        offset = builder.trunc(builder.lshr(product, ir.Constant(wide, bits)), lane)
        added = builder.add(number, offset)
        reduced = builder.sub(added, limit)
        return builder.select(builder.icmp_unsigned("<", added, reduced), added, reduced)

    return x(x, x, x), codegen


def _bmi2(name: str) -> Any:
    @_intrinsic
    def call(typing_context: Any, value: Any, mask: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            function = builder.module.globals.get(name)
            if function is None:
                function = ir.Function(builder.module, ir.FunctionType(_I64, [_I64, _I64]), name=name)
            return builder.call(function, args)

        return types.uint64(types.uint64, types.uint64), codegen

    return call


_pdep = _bmi2("llvm.x86.bmi.pdep.64")
_pext = _bmi2("llvm.x86.bmi.pext.64")


@register_jitable
def select_bit_loop(mask: Any, n: Any) -> Any:
    """The ``n``-th set bit of ``mask`` (from the lowest, 0-based), alone in a ``u64``; portable form."""
    one = np.uint64(1)
    for _ in range(n):
        mask &= mask - one
    return mask & (~mask + one)


@register_jitable
def _select_bit_pdep(mask: Any, n: Any) -> Any:
    return _pdep(np.uint64(1) << n, mask)


select_bit: Callable[[Any, Any], Any] = _select_bit_pdep if HAS_PDEP else select_bit_loop


@register_jitable
def extract_nibbles_loop(board: Any, mask: Any) -> Any:
    """The nibbles of ``board`` under ``mask`` (whole nibbles), moved together; portable form."""
    out = shift = np.uint64(0)
    for i in range(16):
        at = np.uint64(4 * i)
        if (mask >> at) & np.uint64(1):
            out |= ((board >> at) & np.uint64(15)) << shift
            shift += np.uint64(4)
    return out


@register_jitable
def _extract_nibbles_pext(board: Any, mask: Any) -> Any:
    return _pext(board, mask)


extract_nibbles: Callable[[Any, Any], Any] = _extract_nibbles_pext if HAS_PDEP else extract_nibbles_loop


def _store(bits: int) -> Any:
    """A store of the low ``bits`` of a ``u64`` at a byte offset, whatever its alignment."""
    width = ir.IntType(bits)

    @_intrinsic
    def store(typing_context: Any, buffer: Any, offset: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            array = context.make_array(signature.args[0])(context, builder, args[0])
            place = builder.gep(array.data, [args[1]])
            value = args[2] if bits == 64 else builder.trunc(args[2], width)
            builder.store(value, builder.bitcast(place, width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(buffer, types.uint64, types.uint64), codegen

    return store


store8 = _store(8)
store16 = _store(16)
store32 = _store(32)
store64 = _store(64)


# ------------------------------------------------------------------------------- memory by address
# What follows takes addresses as ``u64``, and checks nothing: whoever calls it has checked that the bytes
# are there, and keeps alive what they belong to.


def _load(bits: int) -> Any:
    """The ``bits`` at an address, whatever its alignment, as a ``u64``."""
    width = ir.IntType(bits)

    @_intrinsic
    def load(typing_context: Any, address: Any) -> Any:
        def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = builder.load(builder.inttoptr(args[0], width.as_pointer()), align=1)
            return value if bits == 64 else builder.zext(value, _I64)

        return types.uint64(types.uint64), codegen

    return load


load8 = _load(8)
load32 = _load(32)
load64 = _load(64)


def _store_at(bits: int) -> Any:
    """A store of the low ``bits`` of a ``u64`` at an address, whatever its alignment."""
    width = ir.IntType(bits)

    @_intrinsic
    def store(typing_context: Any, address: Any, value: Any) -> Any:
        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            value = args[1] if bits == 64 else builder.trunc(args[1], width)
            builder.store(value, builder.inttoptr(args[0], width.as_pointer()), align=1)
            return context.get_dummy_value()

        return types.void(types.uint64, types.uint64), codegen

    return store


store8_at = _store_at(8)
store32_at = _store_at(32)
store64_at = _store_at(64)


def _ask_for(builder: Any, pointer: Any, locality: int, *, to_write: bool = False) -> None:
    """LLVM's prefetch of the line that a pointer is in, of data."""
    word = ir.IntType(32)
    kind = ir.FunctionType(ir.VoidType(), [pointer.type, word, word, word])
    function = builder.module.declare_intrinsic("llvm.prefetch", [pointer.type], kind)
    data = 1
    builder.call(function, [pointer, *(ir.Constant(word, int(n)) for n in (to_write, locality, data))])


def _prefetch(locality: int) -> Any:
    """A request for the cache line at an address, for one read; any address is harmless."""

    @_intrinsic
    def prefetch(typing_context: Any, address: Any) -> Any:
        def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
            _ask_for(builder, builder.inttoptr(args[0], ir.IntType(8).as_pointer()), locality)
            return context.get_dummy_value()

        return types.void(types.uint64), codegen

    return prefetch


#: Into all levels of cache.
prefetch = _prefetch(3)
#: Into the second level: more lines can be under way than the first has places for.
prefetch_many = _prefetch(2)


# Where each of the 16 cells comes from, for the three generators of the square's symmetries.
_MIRROR = [4 * (cell // 4) + 3 - cell % 4 for cell in range(16)]
_FLIP = [4 * (3 - cell // 4) + cell % 4 for cell in range(16)]
_TRANSPOSE = [4 * (cell % 4) + cell // 4 for cell in range(16)]


_BYTE = ir.IntType(8)
_CELLS = ir.VectorType(_BYTE, 16)


def _shuffled(builder: Any, cells: Any, order: list[int]) -> Any:
    """The bytes of a vector in an order that is known when it is compiled."""
    lanes = ir.VectorType(ir.IntType(32), len(order))
    return builder.shuffle_vector(cells, ir.Constant(cells.type, ir.Undefined), ir.Constant(lanes, order))


def _turned(builder: Any, cells: Any, k: Any) -> Any:
    """A board of 16 bytes, turned by ``tape2048.game.rules.symmetry(board, k)``.

    Three shuffles with constant masks, each blended in or not by a bit of ``k``: no table, and no branch,
    which on a random ``k`` the processor would guess wrong every other time.
    """
    undefined = ir.Constant(_CELLS, ir.Undefined)
    for bit, order in enumerate((_MIRROR, _FLIP, _TRANSPOSE)):
        chosen = builder.trunc(builder.lshr(k, ir.Constant(_I64, bit)), ir.IntType(1))
        first = builder.insert_element(undefined, builder.sext(chosen, _BYTE), ir.Constant(ir.IntType(32), 0))
        mask = _shuffled(builder, first, [0] * 16)
        cells = builder.xor(cells, builder.and_(builder.xor(cells, _shuffled(builder, cells, order)), mask))
    return cells


@_intrinsic
def copy_symmetry(typing_context: Any, source: Any, target: Any, k: Any) -> Any:
    """Copy a board of 16 bytes from one address to another, turned by ``tape2048.game.rules.symmetry``."""

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        cells = builder.load(builder.inttoptr(args[0], _CELLS.as_pointer()), align=1)
        cells = _turned(builder, cells, args[2])
        builder.store(cells, builder.inttoptr(args[1], _CELLS.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), codegen


# A board's bytes as they lie in memory have cells 14 and 15 first, the higher one of two in the lower nibble.
_FROM_NIBBLES = [7 - cell // 2 + (8 if cell % 2 == 0 else 0) for cell in range(16)]


@_intrinsic
def unpack_symmetry(typing_context: Any, board: Any, target: Any, k: Any) -> Any:
    """Write a board of 4 bits a cell as 16 bytes, turned as by :func:`copy_symmetry`."""
    half = ir.VectorType(_BYTE, 8)

    def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        pairs = builder.bitcast(args[0], half)
        low = builder.and_(pairs, ir.Constant(half, [15] * 8))
        high = builder.lshr(pairs, ir.Constant(half, [4] * 8))
        order = ir.Constant(ir.VectorType(ir.IntType(32), 16), _FROM_NIBBLES)
        cells = _turned(builder, builder.shuffle_vector(low, high, order), args[2])
        builder.store(cells, builder.inttoptr(args[1], _CELLS.as_pointer()), align=1)
        return context.get_dummy_value()

    return types.void(types.uint64, types.uint64, types.uint64), codegen


def _element_address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """The address of an element of a one-dimensional array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


_RECORD = ir.VectorType(ir.IntType(8), 32)


@_intrinsic
def copy_record(typing_context: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """32 bytes from ``source[at:]`` to ``target[to:]``, both ``u8`` arrays, whatever their alignment."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        types_ = signature.args
        read = builder.bitcast(
            _element_address(context, builder, types_[2], args[2], args[3]), _RECORD.as_pointer()
        )
        write = builder.bitcast(
            _element_address(context, builder, types_[0], args[0], args[1]), _RECORD.as_pointer()
        )
        builder.store(builder.load(read, align=1), write, align=1)
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64), codegen


def _prefetch_in(locality: int = 3, *, to_write: bool = False) -> Any:
    """A request for the cache line of ``buffer[offset]`` (one dimension); never a fault."""

    @_intrinsic
    def prefetch_in(typing_context: Any, buffer: Any, offset: Any) -> Any:
        def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
            place = _element_address(context, builder, signature.args[0], args[0], args[1])
            _ask_for(builder, place, locality, to_write=to_write)
            return context.get_dummy_value()

        return types.void(buffer, types.uint64), codegen

    return prefetch_in


#: To be read soon.
prefetch_in = _prefetch_in()
#: Into the second level of cache, as :data:`prefetch_many`.
prefetch_many_in = _prefetch_in(2)
#: To be written soon: a store whose line comes late holds up all stores behind it.
claim_in = _prefetch_in(to_write=True)


# ---------------------------------------------------------------- tables of words, by address


@register_jitable
def word(table: Any, index: Any) -> Any:
    """An entry of a table of ``u64``."""
    return load64(table + (index << U64(3)))


@register_jitable
def keep(table: Any, index: Any, value: Any) -> None:
    """Set an entry of a table of ``u64``."""
    store64_at(table + (index << U64(3)), value)


@register_jitable
def find(number: Any, entries: Any, starts: Any, shift: Any) -> Any:
    """The range that a number lies in, by a guide's tables; see ``guide``."""
    entry = word(entries, number >> shift)
    within = number & ((U64(1) << shift) - U64(1))
    place = (entry & U64(0xFFFFFFFF)) + U64(within >= ((entry >> U64(32)) & U64(0x7FFFFFFF)))
    if entry >> U64(63):
        while word(starts, place + U64(1)) <= number:
            place += U64(1)
    return place
