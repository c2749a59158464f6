"""Records of 32 bytes, the rows of pack.dat and of the data set directory.

Runs become records and back. Branch values in records are within [0, 1]. If a step has a value outside, its
values are normalised. The value of the chosen move becomes 1.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE, LEVELS, PACKDAT_STEP_DTYPE
from tape2048.game.rules import legal_masks
from tape2048.runs.a2run2 import VALUE_MAX, legal_bits, normalize

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.runs.run import Run

_HALF = np.float32(0.5)


def _within_one(run: Run) -> tuple[NDArray[np.uint8], NDArray[np.float32], NDArray[np.uint8], int]:
    """Return legal moves, values in [0, 1], moves with a value, and the number of normalised steps."""
    masks = legal_masks(run.boards)
    if run.has_branches is None or run.branch_values is None or run.branch_legal is None:
        return masks, np.zeros((len(run), 4), np.float32), np.zeros(len(run), np.uint8), 0
    legal = np.where(run.has_branches, masks & run.branch_legal, 0).astype(np.uint8)
    values = np.where(legal_bits(legal), run.branch_values, np.float32(0))
    outside: NDArray[np.bool_] = np.logical_or.reduce(~((values >= 0) & (values <= 1)), axis=1)
    if outside.any():
        values[outside] = normalize(np.where(outside[:, None], values, 0), legal)[outside]
    return masks, values, legal, int(outside.sum())


def dataset_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> int:
    """Write the rows of a run, of at most 65,536 steps, to ``out``, ``u8[32 * steps]``, as in a data set.

    The rules must allow the run. Return the number of steps whose branch values were normalised, since some
    were outside [0, 1]; raise FieldError for a branch value that is not finite.
    """
    masks, values, _, normalised = _within_one(run)
    if run.has_branches is not None:
        steps = np.flatnonzero(run.has_branches)
        values[steps, run.moves[steps]] = 1
    rows = out.view(DATASET_ROW_DTYPE)
    rows["board"], rows["move"], rows["ev_legal"], rows["ev_values"] = run.boards, run.moves, masks, values
    rows["run_id"], rows["step_index"] = run_id, np.arange(len(run))
    return normalised


def packdat_records(run: Run, run_id: int, out: NDArray[np.uint8]) -> int:
    _, values, legal, normalised = _within_one(run)
    steps = np.flatnonzero(legal >> run.moves & 1)
    values[steps, run.moves[steps]] = 1
    rows = out.view(PACKDAT_STEP_DTYPE)
    rows["board"], rows["run_id"], rows["index_in_run"] = run.boards, run_id, np.arange(len(run))
    rows["move_dir"], rows["ev_mask"], rows["padding"] = run.moves, legal, 0
    # In float32, as the format's first writer rounds; moves without a value are 0.
    rows["ev_q"] = (values * LEVELS + _HALF).astype(np.uint16)
    return normalised


def restore_values(
    values: NDArray[np.float32],
    legal: NDArray[np.uint8],
    moves: NDArray[np.uint8],
    has: NDArray[np.bool_] | None = None,
    half: np.float32 = _HALF,
) -> tuple[NDArray[np.bool_], int]:
    """Restore, in place, the values of the chosen moves, which records replace by 1.0.

    The normalised values of a step contain a 0 and a ``1 - 2**-23``, or are all 0.5. In a run with such
    values, the values of the other moves therefore determine the chosen value. It is lost if both ends are
    among the other moves (the player did not take a best move), and in every step of a run with values in
    another form. A lost value becomes ``1 - 2**-23``.

    ``legal``, ``u8[n]``, are the moves with values; without ``has``, it becomes 0 at steps without values.
    ``has`` is whether each step has values; None: where the chosen value is not 0. ``half`` is 0.5 as the
    records hold it. Return ``has``, and the number of steps whose chosen value is lost.
    """
    chosen = values[np.arange(len(moves)), moves]
    if has is None:
        has = chosen != 0
        legal[~has] = 0
    steps = np.flatnonzero(has & (chosen >= VALUE_MAX))
    kept, chosen_move = values[steps], moves[steps]
    others = legal_bits(legal[steps]) & (chosen_move[:, None] != np.arange(4))
    lowest = (others & (kept == 0)).any(axis=1)
    highest = (others & (kept == VALUE_MAX)).any(axis=1)
    halves = (others <= (kept == half)).all(axis=1)  # all of them
    some = others.any(axis=1)
    values[steps, chosen_move] = np.where(
        some & halves, half, np.where(some & highest & ~lowest, np.float32(0), VALUE_MAX)
    )
    normal = (others <= (kept <= VALUE_MAX)).all() and (lowest | highest | halves).all()
    # With both ends among the others, the chosen value may have been anything.
    return has, int((highest & lowest & ~(some & halves)).sum()) if normal else len(steps)
