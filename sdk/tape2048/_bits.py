"""Machine instructions that Python has no word for, as numba intrinsics.

Each is one LLVM instruction or intrinsic, so it works on every processor that numba compiles for.
Only the selection of a set bit has two forms: BMI2's ``pdep`` where the processor has it, else a
loop. Both give the same answers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numba
import numpy as np
from llvmlite import binding as llvm
from llvmlite import ir
from numba import types
from numba.extending import intrinsic, register_jitable

if TYPE_CHECKING:
    from collections.abc import Callable

__all__ = [
    "HAS_PDEP",
    "bswap64",
    "copy_record",
    "high64",
    "popcount",
    "prefetch",
    "select_bit",
    "select_bit_loop",
    "store8",
    "store16",
    "store32",
    "store64",
]

# AMD before Zen 3 has pdep in microcode: a hundred cycles and more.
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
def high64(typing_context: Any, a: Any, b: Any) -> Any:
    """The high 64 bits of the 128-bit product of two ``u64``."""

    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        product = builder.mul(builder.zext(args[0], _I128), builder.zext(args[1], _I128))
        return builder.trunc(builder.lshr(product, ir.Constant(_I128, 64)), _I64)

    return types.uint64(types.uint64, types.uint64), codegen


@_intrinsic
def _pdep(typing_context: Any, value: Any, mask: Any) -> Any:
    def codegen(_context: Any, builder: Any, _signature: Any, args: Any) -> Any:
        name = "llvm.x86.bmi.pdep.64"
        function = builder.module.globals.get(name)
        if function is None:
            function = ir.Function(builder.module, ir.FunctionType(_I64, [_I64, _I64]), name=name)
        return builder.call(function, args)

    return types.uint64(types.uint64, types.uint64), codegen


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


def _byte_address(context: Any, builder: Any, array_type: Any, array: Any, offset: Any) -> Any:
    """The address of a byte of a one-dimensional ``u8`` array."""
    return builder.gep(context.make_array(array_type)(context, builder, array).data, [offset])


_RECORD = ir.VectorType(ir.IntType(8), 32)


@_intrinsic
def copy_record(typing_context: Any, target: Any, to: Any, source: Any, at: Any) -> Any:
    """32 bytes from ``source[at:]`` to ``target[to:]``, both ``u8`` arrays, whatever their alignment."""

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        types_ = signature.args
        read = builder.bitcast(
            _byte_address(context, builder, types_[2], args[2], args[3]), _RECORD.as_pointer()
        )
        write = builder.bitcast(
            _byte_address(context, builder, types_[0], args[0], args[1]), _RECORD.as_pointer()
        )
        builder.store(builder.load(read, align=1), write, align=1)
        return context.get_dummy_value()

    return types.void(target, types.uint64, source, types.uint64), codegen


@_intrinsic
def prefetch(typing_context: Any, buffer: Any, offset: Any) -> Any:
    """Ask for the cache line of ``buffer[offset]`` (a ``u8`` array) to be read soon; never a fault."""
    word = ir.IntType(32)

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        place = _byte_address(context, builder, signature.args[0], args[0], args[1])
        kind = ir.FunctionType(ir.VoidType(), [place.type, word, word, word])
        function = builder.module.declare_intrinsic("llvm.prefetch", [place.type], kind)
        read, keep, data = (ir.Constant(word, value) for value in (0, 3, 1))
        builder.call(function, [place, read, keep, data])
        return context.get_dummy_value()

    return types.void(buffer, types.uint64), codegen
