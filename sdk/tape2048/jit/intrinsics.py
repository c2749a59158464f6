"""Machine instructions without a Python equivalent, as numba intrinsics.

Each is one LLVM instruction or intrinsic, so it works on every processor that numba compiles for. Two
functions, :func:`select_bit` and :func:`extract_nibbles`, have two implementations with equal results: BMI2's
``pdep`` and ``pext`` if the processor has them, and loops otherwise.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numba
import numpy as np
from llvmlite import binding as llvm, ir
from numba import types
from numba.extending import intrinsic, register_jitable

from tape2048.jit.mix import mix64

U64 = np.uint64
#: :func:`tape2048.jit.mix.mix64` for compiled code.
mix: Any = register_jitable(mix64)

# AMD processors before Zen 3 have pdep and pext in microcode: a hundred cycles and more.
_SLOW_PDEP = ("bdver4", "znver1", "znver2")


def _has_pdep() -> bool:
    """Check whether the processor that numba compiles for has ``pdep`` as one instruction.

    That is this processor, unless ``NUMBA_CPU_NAME`` or ``NUMBA_CPU_FEATURES`` name another. LLVM aborts the
    process at an instruction that its target lacks.
    """
    config: Any = numba.config
    if (config.CPU_NAME or llvm.get_host_cpu_name()) in _SLOW_PDEP:
        return False
    if config.CPU_FEATURES is not None:
        return "+bmi2" in config.CPU_FEATURES.split(",")
    return bool(llvm.get_host_cpu_features().get("bmi2"))


#: Whether ``pdep`` and ``pext`` are fast instructions here.
HAS_PDEP = _has_pdep()

_I32 = ir.IntType(32)
_I64 = ir.IntType(64)
_I128 = ir.IntType(128)
_BYTE = ir.IntType(8)
_U64 = types.uint64

# An intrinsic is called without its first parameter, the typing context, which type checkers cannot see.
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic


def _emits(result: Any, *kinds: Any) -> Callable[[Callable[..., Any]], Any]:
    """Make an intrinsic from a function that emits its instructions, given the builder and the arguments."""

    def decorate(emit: Callable[..., Any]) -> Any:
        @functools.wraps(emit)  # numba reads the parameters of `emit`
        def typed(_typing_context: Any, *found: Any) -> Any:
            arguments = [kind or own for kind, own in zip(kinds, found, strict=True)]

            def codegen(context: Any, builder: Any, _signature: Any, args: Any) -> Any:
                given = [
                    context.make_array(kind)(context, builder, value).data
                    if isinstance(kind, types.Array)
                    else value
                    for kind, value in zip(arguments, args, strict=True)
                ]
                emitted = emit(builder, *given)
                return context.get_dummy_value() if result is types.void else emitted

            return (result or arguments[0])(*arguments), codegen

        return _intrinsic(typed)

    return decorate


def _llvm_unary(name: str) -> Any:
    @_emits(_U64, _U64)
    def call(builder: Any, value: Any) -> Any:
        return builder.call(builder.module.declare_intrinsic(name, [_I64]), [value])

    return call


popcount = _llvm_unary("llvm.ctpop")
bswap64 = _llvm_unary("llvm.bswap")


@_emits(_U64, _U64)
def leading_zeros(builder: Any, value: Any) -> Any:
    """Count the zeros above the highest set bit; 64 for 0."""
    return builder.ctlz(value, ir.Constant(ir.IntType(1), 0))


@_emits(types.int64, types.float32)
def float_bits(builder: Any, value: Any) -> Any:
    """Return the 32 bits of an ``f32`` as a signed integer, sign-extended to ``i64``."""
    return builder.sext(builder.bitcast(value, _I32), _I64)


@_emits(_U64, _U64, _U64)
def high64(builder: Any, a: Any, b: Any) -> Any:
    """Return the high 64 bits of the 128-bit product of two ``u64``."""
    product = builder.mul(builder.zext(a, _I128), builder.zext(b, _I128))
    return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)


# Numba widens integers to 64 bits, so its vector loops have lanes of 64 bits. These two functions keep the
# width of their arguments, ``u16`` or ``u32``.


@_emits(None, None)
def fold(builder: Any, x: Any) -> Any:
    """Return ``x ^ x >> w/2`` of an integer of w bits."""
    return builder.xor(x, builder.lshr(x, ir.Constant(x.type, x.type.width // 2)))


@_emits(None, None, None, None)
def add_below(builder: Any, x: Any, y: Any, size: Any) -> Any:
    """Return ``(x + (y * size >> w)) % size`` of three integers of w bits, ``x < size <= 2**(w - 1)``."""
    bits = x.type.width
    wide = ir.IntType(2 * bits)
    product = builder.mul(builder.zext(y, wide), builder.zext(size, wide))
    offset = builder.trunc(builder.lshr(product, ir.Constant(wide, bits)), x.type)
    added = builder.add(x, offset)
    reduced = builder.sub(added, size)
    return builder.select(builder.icmp_unsigned("<", added, reduced), added, reduced)


def _bmi2(name: str) -> Any:
    @_emits(_U64, _U64, _U64)
    def call(builder: Any, value: Any, mask: Any) -> Any:
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(_I64, [_I64, _I64]), name=name)
        return builder.call(function, [value, mask])

    return call


#: Moves the low bits of a value to the set bits of a mask; `pext` moves them back. Only if :data:`HAS_PDEP`.
pdep = _bmi2("llvm.x86.bmi.pdep.64")
pext = _bmi2("llvm.x86.bmi.pext.64")


@register_jitable
def select_bit_loop(mask: Any, n: Any) -> Any:
    """Isolate the ``n``-th set bit of ``mask``, counted from 0 at the lowest; the portable implementation."""
    one = np.uint64(1)
    for _ in range(n):
        mask &= mask - one
    return mask & (~mask + one)


@register_jitable
def _select_bit_pdep(mask: Any, n: Any) -> Any:
    return pdep(np.uint64(1) << n, mask)


select_bit: Callable[[Any, Any], Any] = _select_bit_pdep if HAS_PDEP else select_bit_loop


@register_jitable
def extract_nibbles_loop(board: Any, mask: Any) -> Any:
    """Pack the nibbles of ``board`` that ``mask`` selects; the portable implementation."""
    out = shift = np.uint64(0)
    for i in range(16):
        at = np.uint64(4 * i)
        if (mask >> at) & np.uint64(1):
            out |= ((board >> at) & np.uint64(15)) << shift
            shift += np.uint64(4)
    return out


extract_nibbles: Callable[[Any, Any], Any] = pext if HAS_PDEP else extract_nibbles_loop


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


# ------------------------------------------------------------------------------- memory by address
# The following functions take addresses as ``u64`` and check nothing. The caller must check that the bytes
# exist, and keep their owner alive.


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
    """Return an entry of the table of ``f32`` at an address."""
    return builder.load(builder.gep(_pointer(builder, table, ir.FloatType()), [index]))


@_emits(types.void, _U64, _U64, types.float32)
def store_f32_at(builder: Any, table: Any, index: Any, value: Any) -> None:
    """Set an entry of the table of ``f32`` at an address."""
    builder.store(value, builder.gep(_pointer(builder, table, ir.FloatType()), [index]))


def stack_words(count: int) -> Any:
    """Make an intrinsic that reserves ``count`` words of 64 bits on the stack and returns their address.

    The words are undefined at first, and valid until the calling function returns.
    """

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


@register_jitable
def word(table: Any, index: Any) -> Any:
    """Return an entry of a table of ``u64``."""
    return load64(table + (index << U64(3)))


@register_jitable
def keep(table: Any, index: Any, value: Any) -> None:
    """Set an entry of a table of ``u64``."""
    store64_at(table + (index << U64(3)), value)


@register_jitable
def find(number: Any, entries: Any, starts: Any, shift: Any) -> Any:
    """Return the range that a number is in, given the tables of a ``tape2048.base.guide.Guide``."""
    entry = word(entries, number >> shift)
    within = number & ((U64(1) << shift) - U64(1))
    place = (entry & U64(0xFFFFFFFF)) + U64(within >= ((entry >> U64(32)) & U64(0x7FFFFFFF)))
    if entry >> U64(63):
        while word(starts, place + U64(1)) <= number:
            place += U64(1)
    return place
