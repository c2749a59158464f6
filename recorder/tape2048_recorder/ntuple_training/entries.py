"""The entries of a network that learns, and the update of a value's entries in vector registers.

An entry is a record of 16 bytes, so that all that learning reads and writes of it is in one cache line: its
weight, E and A (see :mod:`tape2048_recorder.ntuple_training.learning`), and nothing. Four entries are in a
register of 512 bits, or in as many narrower ones as the processor has.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from llvmlite import ir
from numba.core import types
from numba.extending import intrinsic

from tape2048.ntuple.lookup import SYMMETRIES

if TYPE_CHECKING:
    from collections.abc import Callable

#: Columns of a record, ``f32[4]``.
WEIGHT, E, A = range(3)
ENTRY_BYTES = 16

# An intrinsic is called without its first parameter, the typing context, which type checkers cannot see.
_intrinsic: Callable[[Callable[..., Any]], Any] = intrinsic

_COLUMNS = 4
_TOGETHER = 4  # entries in a vector
_I32, _I64, _F32 = ir.IntType(32), ir.IntType(64), ir.FloatType()
_ENTRY = ir.VectorType(_F32, _COLUMNS)
_ENTRIES = ir.VectorType(_F32, _COLUMNS * _TOGETHER)


def _shuffled(builder: Any, a: Any, b: Any, order: list[int]) -> Any:
    return builder.shuffle_vector(a, b, ir.Constant(ir.VectorType(_I32, len(order)), order))


def _undefined(kind: Any) -> Any:
    return ir.Constant(kind, ir.Undefined)


def _everywhere(builder: Any, value: Any) -> Any:
    one = builder.insert_element(_undefined(_ENTRIES), value, ir.Constant(_I32, 0))
    return _shuffled(builder, one, _undefined(_ENTRIES), [0] * _ENTRIES.count)


def _size(builder: Any, value: Any) -> Any:
    name = "llvm.fabs." + (f"v{value.type.count}f32" if isinstance(value.type, ir.VectorType) else "f32")
    function = builder.module.globals.get(name)
    if function is None:
        function = ir.Function(builder.module, ir.FunctionType(value.type, [value.type]), name)
    return builder.call(function, [value])


def _column(builder: Any, entries: Any, column: int) -> Any:
    """Give each record's value in a column to all of its columns."""
    order = [_COLUMNS * (i // _COLUMNS) + column for i in range(_ENTRIES.count)]
    return _shuffled(builder, entries, _undefined(_ENTRIES), order)


def _mask(*columns: int) -> Any:
    bits = [int(i % _COLUMNS in columns) for i in range(_ENTRIES.count)]
    return ir.Constant(ir.VectorType(ir.IntType(1), _ENTRIES.count), bits)


def _value(builder: Any, vectors: list[Any]) -> Any:
    """Add up the weights of all entries, neighbouring vectors first."""
    while len(vectors) > 1:
        vectors = [
            builder.fadd(vectors[i], vectors[i + 1]) if i + 1 < len(vectors) else vectors[i]
            for i in range(0, len(vectors), 2)
        ]
    places = [ir.Constant(_I32, _COLUMNS * i + WEIGHT) for i in range(_TOGETHER)]
    a, b, c, d = (builder.extract_element(vectors[0], place) for place in places)
    return builder.fadd(builder.fadd(a, b), builder.fadd(c, d))


@_intrinsic
def learn_entries(
    typing_context: Any, singles: Any, addresses: Any, target: Any, rate: Any, coherent: Any
) -> Any:
    """Move a board's entries towards a target, each at its own rate: ``(delta, value)``.

    Returns:
        The target minus the value before, and the value after, ``f32``.
    """

    def codegen(context: Any, builder: Any, signature: Any, args: Any) -> Any:
        _, addresses_, target_, rate_, coherent_ = args
        data = context.make_array(signature.args[1])(context, builder, addresses_).data
        nothing = ir.Constant(_F32, 0.0)
        zero = ir.Constant(_ENTRIES, [0.0] * _ENTRIES.count)
        one = ir.Constant(_ENTRIES, [1.0] * _ENTRIES.count)
        pointers: list[list[Any]] = []
        before: list[Any] = []
        for first in range(0, SYMMETRIES * singles.count, _TOGETHER):
            four = [
                builder.inttoptr(
                    builder.load(builder.gep(data, [ir.Constant(_I32, first + i)])), _ENTRY.as_pointer()
                )
                for i in range(_TOGETHER)
            ]
            pointers.append(four)
            a, b, c, d = (builder.load(pointer, align=_COLUMNS) for pointer in four)
            low, high = (_shuffled(builder, *pair, list(range(8))) for pair in ((a, b), (c, d)))
            before.append(_shuffled(builder, low, high, list(range(_ENTRIES.count))))
        delta = builder.fsub(target_, _value(builder, before))
        size = _size(builder, delta)
        kept = builder.select(coherent_, ir.Constant(_F32, 1.0), nothing)
        # By column: the step of a weight that moves at the full rate; delta; its size; nothing.
        moves = _everywhere(builder, builder.fmul(rate_, delta))
        for column, value in (
            (E, builder.fmul(kept, delta)),
            (A, builder.fmul(kept, size)),
            (A + 1, nothing),
        ):
            moves = builder.select(_mask(column), _everywhere(builder, value), moves)
        after = []
        for four, entries in zip(pointers, before, strict=True):
            total = _column(builder, entries, A)
            ratio = builder.fdiv(_size(builder, _column(builder, entries, E)), total)
            is_full = builder.fcmp_ordered("==", total, zero)
            ratio = builder.select(is_full, one, ratio)
            ratio = builder.select(_mask(WEIGHT), ratio, one)
            moved = builder.fadd(entries, builder.fmul(ratio, moves))
            after.append(moved)
            for i, pointer in enumerate(four):
                part = _shuffled(
                    builder, moved, _undefined(_ENTRIES), list(range(_COLUMNS * i, _COLUMNS * (i + 1)))
                )
                builder.store(part, pointer, align=_COLUMNS)
        results = [delta, _value(builder, after)]
        return context.make_tuple(builder, signature.return_type, results)

    pair: Any = types.UniTuple(types.float32, 2)  # type: ignore[no-untyped-call]
    return pair(singles, addresses, types.float32, types.float32, types.boolean), codegen
