"""Baselines for critics: predictors without training, and their calibration.

A baseline gives each board one score; higher scores mean that the game is likelier to get far. The same score
ranks rows for every threshold. :func:`calibrate` turns scores into probabilities with the best monotone map
on the training games.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeAlias

import numpy as np

from tape2048.errors import MissingPackageError

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Function from boards ``u64[n]`` and their step numbers ``u32[n]`` (0: the first board) to scores ``[n]``.
Baseline: TypeAlias = Callable[["NDArray[np.uint64]", "NDArray[np.uint32]"], "NDArray[Any]"]


def nothing(boards: NDArray[np.uint64], steps: NDArray[np.uint32]) -> NDArray[np.float64]:  # noqa: ARG001
    """Give all boards the same score, which calibration turns into the prevalence."""
    return np.zeros(len(boards))


def highest_tile(boards: NDArray[np.uint64], steps: NDArray[np.uint32]) -> NDArray[np.uint8]:  # noqa: ARG001
    """Give each board the exponent of its highest tile."""
    from tape2048.game.rules import boards_to_exps

    highest: NDArray[np.uint8] = boards_to_exps(boards).max(axis=1, initial=0)
    return highest


def score_so_far(boards: NDArray[np.uint64], steps: NDArray[np.uint32]) -> NDArray[np.int64]:
    """Give each board the game's score so far, computed from the board and its step number.

    Merges keep the sum S of the tiles' values, so with a spawned twos and b spawned fours, ``S = 2 a + 4 b``.
    By step t, ``a + b = t + 2``; hence ``b = S / 2 - (t + 2)``. Building each tile from twos scores
    ``sum (e - 1) 2^e``, and each spawned four saves a merge worth 4.

    Args:
        boards: ``u64[n]``.
        steps: moves made before each, ``u32[n]``, in a game that began with two spawned tiles.

    Returns:
        ``i64[n]``.
    """
    from tape2048.game.rules import boards_to_exps

    exps = boards_to_exps(boards).astype(np.int64)
    values = np.where(exps > 0, np.int64(1) << exps, 0)
    fours = values.sum(axis=1) // 2 - (steps.astype(np.int64) + 2)
    score: NDArray[np.int64] = ((exps - 1) * values).sum(axis=1) - 4 * fours
    return score


def calibrate(
    scores: NDArray[Any],
    labels: NDArray[np.bool_],
    of: NDArray[Any],
    weights: NDArray[np.floating[Any]] | None = None,
) -> NDArray[np.float64]:
    """Turn scores into probabilities by isotonic regression (Zadrozny and Elkan 2002).

    Args:
        scores: of training rows, ``[n]``.
        labels: of training rows, ``bool[n]``.
        of: the scores to turn into probabilities, ``[m]``.
        weights: of training rows, ``[n]``; None: 1 each.

    Returns:
        ``f64[m]``. A constant score gives the weighted share of true labels in training.

    Raises:
        MissingPackageError: scikit-learn is not installed.
    """
    fitted = load_isotonic()(y_min=0.0, y_max=1.0, out_of_bounds="clip")
    fitted.fit(scores.astype(np.float64), labels.astype(np.float64), sample_weight=weights)
    probabilities: NDArray[np.float64] = fitted.predict(of.astype(np.float64))
    return probabilities


def load_isotonic() -> Any:
    """Return scikit-learn's isotonic regression; MissingPackageError if it is not installed."""
    try:
        from sklearn.isotonic import IsotonicRegression
    except ImportError as error:
        raise MissingPackageError(
            f"the calibration of baselines needs scikit-learn, which cannot be imported ({error})",
            hint="pip install scikit-learn; the extra has it, too: pip install 'tape2048[critic]'",
        ) from error
    return IsotonicRegression
