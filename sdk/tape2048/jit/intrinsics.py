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
from numba.extending import intrinsic

from tape2048.jit.compiler import helper
from tape2048.jit.mix import mix64

U64 = np.uint64
#: :func:`tape2048.jit.mix.mix64` for compiled code.
mix: Any = helper(mix64)

# AMD processors before Zen 3 have pdep and pext in microcode: a hundred cycles and more.
_SLOW_PDEP = ("bdver4", "znver1", "znver2")


def _has_pdep() -> bool:
    """Check whether the processor that numba compiles for has ``pdep``: without it, LLVM aborts."""
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


@helper
def select_bit_loop(mask: Any, n: Any) -> Any:
    """Isolate the ``n``-th set bit of ``mask``, counted from 0 at the lowest; the portable implementation."""
    one = np.uint64(1)
    for _ in range(n):
        mask &= mask - one
    return mask & (~mask + one)


@helper
def _select_bit_pdep(mask: Any, n: Any) -> Any:
    return pdep(np.uint64(1) << n, mask)


select_bit: Callable[[Any, Any], Any] = _select_bit_pdep if HAS_PDEP else select_bit_loop


@helper
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
