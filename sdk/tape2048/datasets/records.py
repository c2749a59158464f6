"""Runs to 32-byte rows and back, compiled: the layouts of pack.dat and of the data set directory.

Branch values are normalised on the way in (``normalised`` below), whatever the source has done to
them before; values that are normalised already come out bit for bit as they went in.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from tape2048.errors import FieldError
from tape2048.game.rules import legal_mask
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import store8, store16, store32, store64

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.runs.run import Run

__all__ = ["ALMOST_ONE", "dataset_records", "packdat_records", "restore_values", "shift_ids"]

U64 = np.uint64

#: The largest normalised value: the float32 below 1.
ALMOST_ONE = np.float32(1 - 2**-23)
_HALF = np.float32(0.5)
_ZERO = np.float32(0)
_ONE = np.float32(1)

# Offsets within a record of 32 bytes: data set directory, pack.dat.
_SET_MOVE, _SET_LEGAL, _SET_VALUES, _SET_RUN, _SET_STEP = U64(8), U64(9), U64(10), U64(26), U64(30)
_DAT_RUN, _DAT_STEP, _DAT_MOVE, _DAT_MASK, _DAT_VALUES = U64(8), U64(12), U64(16), U64(17), U64(18)
_RECORD = U64(32)

# Why a run has no rows: the step is added to one of these.
_ILLEGAL_MOVE = 1 << 40
_NOT_FINITE = 2 << 40
_STEP_BITS = (1 << 40) - 1


@register_jitable
def normalised(values: Any, mask: Any, out: Any) -> bool:
    """Expected values of one step, normalised over the moves of ``mask``.

    False where one of them is not finite, or no float32 holds the difference of two.

    One move: ``1 - 2**-23``. All equal: 0.5 each. Otherwise ``(ev - min) / (max - min)`` in float32,
    and what is >= 1 becomes ``1 - 2**-23``. Moves outside the mask become 0.
    """
    count = 0
    low = np.float32(np.inf)
    high = np.float32(-np.inf)
    for m in range(4):
        out[m] = _ZERO
        if mask >> U64(m) & U64(1):
            if not np.isfinite(values[m]):
                return False
            count += 1
            low = min(low, values[m])
            high = max(high, values[m])
    if count and not np.isfinite(high - low):
        return False
    already = low == _ZERO and high == ALMOST_ONE  # dividing again would move the values in between
    for m in range(4):
        if mask >> U64(m) & U64(1):
            if count == 1:
                out[m] = ALMOST_ONE
            elif low == high:
                out[m] = _HALF
            elif already:
                out[m] = values[m]
            else:
                out[m] = min((values[m] - low) / (high - low), ALMOST_ONE)
    return True


@kernel
def _fill_dataset(run: Any, run_id: Any, out: Any) -> int:
    states, moves, values, legal, has = run
    scratch = np.empty(4, np.float32)
    bits = scratch.view(np.uint32)
    for i in range(len(moves)):
        at = U64(i) * _RECORD
        board = states[i]
        move = moves[i]
        mask = legal_mask(board)
        if move > 3 or not mask >> U64(move) & U64(1):
            return _ILLEGAL_MOVE + i
        store64(out, at, board)
        store8(out, at + _SET_MOVE, U64(move))
        store8(out, at + _SET_LEGAL, mask)
        filled = i < len(has) and has[i]
        if filled and not normalised(values[i], mask & U64(legal[i]), scratch):
            return _NOT_FINITE + i
        if filled:
            scratch[move] = _ONE
        else:
            scratch[:] = _ZERO
        for m in range(4):
            store32(out, at + _SET_VALUES + U64(4 * m), U64(bits[m]))
        store32(out, at + _SET_RUN, U64(run_id))
        store16(out, at + _SET_STEP, U64(i))
    return -1


@kernel
def _fill_packdat(run: Any, run_id: Any, out: Any) -> int:
    states, moves, values, legal, has = run
    scratch = np.empty(4, np.float32)
    for i in range(len(moves)):
        at = U64(i) * _RECORD
        board = states[i]
        move = moves[i]
        mask = legal_mask(board)
        if move > 3 or not mask >> U64(move) & U64(1):
            return _ILLEGAL_MOVE + i
        filled = i < len(has) and has[i] and mask & U64(legal[i]) != U64(0)
        if filled:
            mask &= U64(legal[i])
            if not normalised(values[i], mask, scratch):
                return _NOT_FINITE + i
        store64(out, at, board)
        store32(out, at + _DAT_RUN, U64(run_id))
        store32(out, at + _DAT_STEP, U64(i))
        store8(out, at + _DAT_MOVE, U64(move))
        store8(out, at + _DAT_MASK, mask if filled else U64(0))
        for m in range(4):
            level = U64(0)
            if filled:
                level = U64(np.rint(np.float64(scratch[m]) * 65535.0))
            store16(out, at + _DAT_VALUES + U64(2 * m), level)
        store16(out, at + U64(26), U64(0))
        store32(out, at + U64(28), U64(0))
    return -1


_NO_VALUES = (np.empty((0, 4), np.float32), np.empty(0, np.uint8), np.empty(0, np.bool_))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """The array as kernels take it: numba compiles for each kind of array, and one kind is enough."""
    # A map of a file at any byte: the kernels read whole words.
    plain = np.ascontiguousarray(array) if array.flags.aligned else array.copy()
    plain = plain.view()
    plain.flags.writeable = False
    return plain


def _records(fill: Any, run: Run, run_id: int, out: NDArray[np.uint8]) -> None:
    values: tuple[NDArray[Any], ...] = _NO_VALUES
    if run.has_branches is not None and run.has_branches.any():
        assert run.branch_values is not None
        assert run.branch_legal is not None
        values = (run.branch_values, run.branch_legal, run.has_branches)
    arrays: tuple[NDArray[Any], ...] = (run.states, run.moves, *values)
    parts = tuple(_plain(array) for array in arrays)
    why = int(fill(parts, run_id, out))
    if why < 0:
        return
    step = why & _STEP_BITS
    if why - step == _ILLEGAL_MOVE:
        raise FieldError(
            f"step {step}: move {run.moves[step]} is not legal on board {int(run.states[step]):#018x}",
            hint="whoever wrote the run has other rules, or the file is damaged",
        )
    raise FieldError(
        f"step {step}: branch values {values[0][step].tolist()}; expected finite ones, no further apart "
        "than a float32 holds"
    )


def dataset_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> None:
    """Write the rows of a run in the layout of the data set directory.

    Args:
        run: at most 65,536 steps.
        run_id: of the run.
        out: ``u8[32 * steps]``.

    Raises:
        FieldError: a move that is not legal on its board, or a branch value that is not finite.
    """
    _records(_fill_dataset, run, run_id, out)


def packdat_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> None:
    """Write the rows of a run in the layout of pack.dat; as :func:`dataset_records`."""
    _records(_fill_packdat, run, run_id, out)


@kernel
def _shift_ids(records: Any, ids_at: Any, shift: Any) -> None:
    for i in range(len(records) // 32):
        at = U64(i) * _RECORD + U64(ids_at)
        run_id = U64(0)
        for byte in range(4):
            run_id |= U64(records[at + U64(byte)]) << U64(8 * byte)
        store32(records, at, run_id + U64(shift))


def shift_ids(records: NDArray[np.uint8], ids_at: int, shift: int) -> None:
    """Add to the ``run_id`` of each record, in place.

    Args:
        records: ``u8[32 * n]``.
        ids_at: offset of ``run_id`` in a record.
        shift: what to add.
    """
    if shift:
        _shift_ids(records, ids_at, shift)


@kernel
def _restore(values: Any, legal: Any, moves: Any, has: Any) -> int:
    lost = 0
    for i in range(len(moves)):
        chosen = moves[i]
        has[i] = values[i, chosen] != _ZERO
        if not has[i]:
            legal[i] = 0
            continue
        lowest = False
        highest = False
        others = 0
        halves = 0
        for m in range(4):
            if m != chosen and legal[i] >> m & 1:
                others += 1
                halves += values[i, m] == _HALF
                lowest |= values[i, m] == _ZERO
                highest |= values[i, m] == ALMOST_ONE
        if others and halves == others:
            values[i, chosen] = _HALF
        elif others and highest and not lowest:
            values[i, chosen] = _ZERO
        else:
            values[i, chosen] = ALMOST_ONE
            # With both ends among the others, the chosen value may have been anything.
            lost += highest and lowest
    return lost


def restore_values(
    values: NDArray[np.float32], legal: NDArray[np.uint8], moves: NDArray[np.uint8]
) -> tuple[NDArray[np.bool_], int]:
    """Undo, in place, what the data set does to normalised values: the chosen move's is 1.0 there.

    The values that are left say what it was: normalised values have a 0 and a ``1 - 2**-23`` among
    them, or are all 0.5. Only where both ends stand among the moves that were not chosen is it lost (the
    player did not take a best move), and ``1 - 2**-23`` is put.

    Args:
        values: ``f32[n, 4]``, contiguous.
        legal: ``u8[n]``; 0 is put where a step has no values.
        moves: ``u8[n]``.

    Returns:
        Whether each step has values, ``bool[n]``, and the number of steps whose chosen value is lost.
    """
    has = np.zeros(len(moves), np.bool_)
    return has, int(_restore(values, legal, moves, has))
