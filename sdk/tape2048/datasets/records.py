"""Compiled kernels over records of 32 bytes, the rows of pack.dat and of the data set directory.

Runs become records and back, records are gathered by number. Branch values are within [0, 1] in records:
``within_one`` below keeps a step's values that are, and normalises others. The chosen move's value becomes 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from tape2048.errors import FieldError
from tape2048.game.rules import legal_mask
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import (
    copy_record,
    find,
    prefetch_in,
    prefetch_many_in,
    store8,
    store16,
    store32,
    store64,
)

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.base.guide import Guide
    from tape2048.runs.run import Run

U64 = np.uint64

#: Records between a prefetch and its copy: enough to hide the memory's latency, and few enough that none
#: is evicted before its turn. And between the prefetch into the first level of cache and the copy.
_FAR_AHEAD = 48
_NEAR_AHEAD = 8

#: The largest normalised value: the float32 below 1.
ALMOST_ONE = np.float32(1 - 2**-23)
_HALF = np.float32(0.5)
_ZERO = np.float32(0)
_ONE = np.float32(1)
_LEVELS = np.float32(65535)

# Offsets within a record of 32 bytes: data set directory, pack.dat.
_SET_MOVE, _SET_LEGAL, _SET_VALUES, _SET_RUN, _SET_STEP = U64(8), U64(9), U64(10), U64(26), U64(30)
_DAT_RUN, _DAT_STEP, _DAT_MOVE, _DAT_MASK, _DAT_VALUES = U64(8), U64(12), U64(16), U64(17), U64(18)
_RECORD = U64(32)

# Defects of a run, above every count of its steps; the step's number is added.
_ILLEGAL_MOVE = 1 << 40
_NOT_FINITE = 2 << 40
_STEP_BITS = (1 << 40) - 1


# Results of within_one.
_NO_NUMBERS, _KEPT, _NORMALISED = -1, 0, 1


@register_jitable
def within_one(values: Any, mask: Any, out: Any) -> int:
    """Copy one step's values of the moves of ``mask`` if all are in [0, 1]; else normalise them.

    Normalised values: of one move ``1 - 2**-23``; all equal, 0.5 each; otherwise ``(ev - min) / (max - min)``
    in float32, at most ``1 - 2**-23``. Moves outside the mask become 0.

    Returns:
        ``_KEPT`` or ``_NORMALISED``; ``_NO_NUMBERS`` where a value is not finite, or no float32 holds the
        difference of two.
    """
    count = 0
    low = np.float32(np.inf)
    high = np.float32(-np.inf)
    for m in range(4):
        out[m] = _ZERO
        if mask >> U64(m) & U64(1):
            if not np.isfinite(values[m]):
                return _NO_NUMBERS
            count += 1
            low = min(low, values[m])
            high = max(high, values[m])
    keeps = low >= _ZERO and high <= _ONE
    if count and not np.isfinite(high - low):
        return _NO_NUMBERS
    for m in range(4):
        if mask >> U64(m) & U64(1):
            if keeps:
                out[m] = values[m]
            elif count == 1:
                out[m] = ALMOST_ONE
            elif low == high:
                out[m] = _HALF
            else:
                out[m] = min((values[m] - low) / (high - low), ALMOST_ONE)
    return _KEPT if keeps or not count else _NORMALISED


@kernel
def _fill_dataset(run: Any, run_id: Any, out: Any) -> int:
    states, moves, values, legal, has = run
    scratch = np.empty(4, np.float32)
    bits = scratch.view(np.uint32)
    changed = 0
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
        if filled:
            result = within_one(values[i], mask & U64(legal[i]), scratch)
            if result == _NO_NUMBERS:
                return _NOT_FINITE + i
            changed += result
            scratch[move] = _ONE
        else:
            scratch[:] = _ZERO
        for m in range(4):
            store32(out, at + _SET_VALUES + U64(4 * m), U64(bits[m]))
        store32(out, at + _SET_RUN, U64(run_id))
        store16(out, at + _SET_STEP, U64(i))
    return changed


@kernel
def _fill_packdat(run: Any, run_id: Any, out: Any) -> int:
    states, moves, values, legal, has = run
    scratch = np.empty(4, np.float32)
    changed = 0
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
            result = within_one(values[i], mask, scratch)
            if result == _NO_NUMBERS:
                return _NOT_FINITE + i
            changed += result
            if mask >> U64(move) & U64(1):
                scratch[move] = _ONE
        store64(out, at, board)
        store32(out, at + _DAT_RUN, U64(run_id))
        store32(out, at + _DAT_STEP, U64(i))
        store8(out, at + _DAT_MOVE, U64(move))
        store8(out, at + _DAT_MASK, mask if filled else U64(0))
        for m in range(4):
            level = U64(0)
            if filled:
                level = U64(scratch[m] * _LEVELS + _HALF)  # in float32, as the format's first writer rounds
            store16(out, at + _DAT_VALUES + U64(2 * m), level)
        store16(out, at + U64(26), U64(0))
        store32(out, at + U64(28), U64(0))
    return changed


_NO_VALUES = (np.empty((0, 4), np.float32), np.empty(0, np.uint8), np.empty(0, np.bool_))


def _plain(array: NDArray[Any]) -> NDArray[Any]:
    """Make an array contiguous, aligned and read-only: numba compiles a kernel for each type of array."""
    plain = np.ascontiguousarray(array) if array.flags.aligned else array.copy()
    plain = plain.view()
    plain.flags.writeable = False
    return plain


def _records(fill: Any, run: Run, run_id: int, out: NDArray[np.uint8]) -> int:
    values: tuple[Any, ...] = _NO_VALUES
    if run.has_branches is not None and run.has_branches.any():
        values = (run.branch_values, run.branch_legal, run.has_branches)
    defect = int(fill(tuple(map(_plain, (run.states, run.moves, *values))), run_id, out))
    step = defect & _STEP_BITS
    if step == defect:
        return step
    if defect - step == _ILLEGAL_MOVE:
        raise FieldError(
            f"step {step}: move {run.moves[step]} is not legal on board {int(run.states[step]):#018x}",
            hint="the run's writer has other rules, or the file is damaged",
        )
    raise FieldError(
        f"step {step}: branch values {values[0][step].tolist()}; expected finite ones with a difference "
        "that a float32 holds"
    )


def dataset_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> int:
    """Write the rows of a run, of at most 65,536 steps, to ``out``, ``u8[32 * steps]``, as in a data set.

    Returns:
        The number of steps whose branch values were normalised, since some lay outside [0, 1].

    Raises:
        FieldError: a move that is not legal on its board, or a branch value that is not finite.
    """
    return _records(_fill_dataset, run, run_id, out)


def packdat_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> int:
    """Write the rows of a run as in a pack.dat; see :func:`dataset_records`."""
    return _records(_fill_packdat, run, run_id, out)


@kernel
def shift_ids(records: Any, shift: Any) -> None:
    """Add to the ``run_id`` of each record of a data set, ``u8[32 * n]``, in place."""
    for i in range(len(records) // 32):
        at = U64(i) * _RECORD + _SET_RUN
        run_id = U64(0)
        for byte in range(4):
            run_id |= U64(records[at + U64(byte)]) << U64(8 * byte)
        store32(records, at, run_id + U64(shift))


@kernel
def _restore(values: Any, legal: Any, moves: Any, has: Any, half: Any) -> int:
    replaced = 0
    lost = 0
    normal = True
    for i in range(len(moves)):
        chosen = moves[i]
        if not has[i] or values[i, chosen] < ALMOST_ONE:
            continue
        replaced += 1
        lowest = False
        highest = False
        others = 0
        halves = 0
        for m in range(4):
            if m != chosen and legal[i] >> m & 1:
                others += 1
                halves += values[i, m] == half
                lowest |= values[i, m] == _ZERO
                highest |= values[i, m] == ALMOST_ONE
                normal &= values[i, m] <= ALMOST_ONE
        normal &= lowest or highest or halves == others
        if others and halves == others:
            values[i, chosen] = half
        elif others and highest and not lowest:
            values[i, chosen] = _ZERO
        else:
            values[i, chosen] = ALMOST_ONE
            # With both ends among the others, the chosen value may have been anything.
            lost += highest and lowest
    return lost if normal else replaced


def restore_values(
    values: NDArray[np.float32],
    legal: NDArray[np.uint8],
    moves: NDArray[np.uint8],
    has: NDArray[np.bool_] | None = None,
    half: np.float32 = _HALF,
) -> tuple[NDArray[np.bool_], int]:
    """Restore, in place, the chosen moves' values, which records replace by 1.0.

    The others determine the value in a run whose values are normalised: they contain a 0 and a
    ``1 - 2**-23``, or are all 0.5. It is lost where both ends are among the moves that were not chosen (the
    player did not take a best move), and in every step of a run with values in another form. A lost one
    becomes ``1 - 2**-23``.

    Args:
        values: ``f32[n, 4]``, contiguous.
        legal: ``u8[n]``, the moves with values; without ``has``, becomes 0 at steps without values.
        moves: ``u8[n]``.
        has: ``bool[n]``, whether each step has values; None: where the chosen one is not 0.
        half: the value 0.5 as the records hold it.

    Returns:
        Whether each step has values, and the number of steps whose chosen value is lost.
    """
    if has is None:
        has = values[np.arange(len(moves)), moves] != 0
        legal[~has] = 0
    return has, int(_restore(values, legal, moves, has, half))


@kernel
def gather(records: Any, rows: Any, count: Any, out: Any) -> int:
    """Copy records by number.

    Random records wait for memory: a record's cache line is prefetched into the second level of cache
    ``_FAR_AHEAD`` records before the copy, then into the first; a record is copied as one vector. Every
    number is checked before its record is touched.

    Args:
        records: ``u8[32 * count]``, of any alignment.
        rows: ``i64[n]``, record numbers.
        count: number of records.
        out: ``u8[32 * n]``.

    Returns:
        -1, or the position in ``rows`` of a number outside [0, count); ``out`` is then not valid.
    """
    n = len(rows)
    limit = U64(count)
    for i in range(min(_FAR_AHEAD, n)):
        if U64(rows[i]) >= limit:
            return i
        prefetch_many_in(records, U64(rows[i]) * _RECORD)
    for i in range(n - _FAR_AHEAD):
        ahead = U64(rows[i + _FAR_AHEAD])
        if ahead >= limit:
            return i + _FAR_AHEAD
        prefetch_many_in(records, ahead * _RECORD)
        prefetch_in(records, U64(rows[i + _NEAR_AHEAD]) * _RECORD)
        copy_record(out, U64(i) * _RECORD, records, U64(rows[i]) * _RECORD)
    for i in range(max(0, n - _FAR_AHEAD), n):
        copy_record(out, U64(i) * _RECORD, records, U64(rows[i]) * _RECORD)
    return -1


@kernel
def gather_scattered(records: Any, rows: Any, first: Any, count: Any, out: Any) -> int:
    """Copy the records of one of several parts to their numbers' positions in ``rows``; return their count.

    ``records`` are the rows ``first`` to ``first + count - 1``, ``rows`` are numbers over all parts; see
    :func:`gather` for their shapes.
    """
    copied = 0
    limit = U64(count)
    for i in range(len(rows)):
        row = U64(rows[i]) - U64(first)  # below first: wraps past the limit
        if row < limit:
            copy_record(out, U64(i) * _RECORD, records, row * _RECORD)
            copied += 1
    return copied


@kernel
def _locate(rows: Any, guide: Any, offsets: Any, runs: Any, out: Any) -> int:
    entries, starts = U64(guide.entries.ctypes.data), U64(guide.starts.ctypes.data)
    total = guide.starts[-1]
    for i in range(len(rows)):
        row = U64(rows[i])
        if row >= total:
            return i
        run = find(row, entries, starts, guide.shift)
        runs[i] = run
        out[i] = rows[i] + offsets[run]
    return -1


def locate(
    rows: NDArray[np.int64], guide: Guide, offsets: NDArray[np.int64]
) -> tuple[NDArray[np.int64], NDArray[np.int64], int]:
    """Locate the rows of a view, ``i64[n]``, in its source.

    Args:
        rows: numbers in the view.
        guide: over the rows of each run of the view.
        offsets: ``i64[R]``, from the view's row numbers to the source's, for each run.

    Returns:
        ``(runs, source, bad)``: for each row the ordinal of its run and its number in the source, both
        ``i64[n]``; ``bad`` is -1, or the position of a number outside the view.
    """
    runs, source = np.empty(len(rows), np.int64), np.empty(len(rows), np.int64)
    return runs, source, int(_locate(rows, guide, offsets, runs, source))
