"""Labels of runs: thresholds, exponents of tiles, and the balance of labels over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: The tiles that a critic predicts by default.
DEFAULT_THRESHOLDS = (8192, 16384, 32768)
#: The tiles whose reach (the share of games that made one) is reported.
REACH_TILES = (2048, 4096, 8192, 16384, 32768)


def check_thresholds(thresholds: Sequence[int]) -> NDArray[np.int64]:
    """Return the tiles as ``i64[T]``; ValueError unless they are different powers of two, 2 to 2**62."""
    given = np.asarray(thresholds)
    # A u64 of 2**63 becomes negative. Values other than integers cannot always be converted.
    tiles = given.astype(np.int64) if given.dtype.kind in "iu" else np.empty(0, np.int64)
    valid = tiles.ndim == 1 and tiles.size > 0 and len(np.unique(tiles)) == len(tiles)
    if not valid or not ((tiles >= 2) & (tiles & (tiles - 1) == 0)).all():
        raise ValueError(
            f"thresholds {thresholds!r}; expected different powers of two, at least one, each from 2 to 2**62"
        )
    return tiles


def run_labels(runs: NDArray[np.void], thresholds: Sequence[int]) -> NDArray[np.bool_]:
    """Compare the highest tile of each run with each threshold: ``bool[R, T]``."""
    reached: NDArray[np.bool_] = runs["highest_tile"][:, None] >= check_thresholds(thresholds)
    return reached


def exponents_of(tiles: NDArray[Any]) -> NDArray[np.uint8]:
    """Return ``floor(log2(tile))`` of each tile, 0 for 0; exact, since a double holds the leading bit."""
    exponents: NDArray[np.uint8] = np.maximum(np.frexp(tiles.astype(np.float64))[1] - 1, 0).astype(np.uint8)
    return exponents


def prevalence(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute the share of rows with a true label, ``f64[T]``, from runs' labels ``bool[R, T]`` and rows."""
    shares: NDArray[np.float64] = _true_rows(run_labels, row_counts) / row_counts.sum()
    return shares


def positive_weights(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Compute false rows per true row, 1 if all are the same: ``f64[T]``; see :func:`prevalence`."""
    true = _true_rows(run_labels, row_counts)
    false = row_counts.sum() - true
    one_kind = (true == 0) | (false == 0)
    return np.where(one_kind, 1.0, false / np.where(one_kind, 1, true))


def _true_rows(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    # Not a matrix product: NumPy has no fast one for integers.
    return np.array([row_counts[column].sum() for column in run_labels.T], np.int64)


def game_facts(runs: NDArray[np.void]) -> tuple[dict[str, object], dict[str, float]]:
    """Return facts of the games of a run table, and the share of games by highest tile."""
    tiles, counts = np.unique(runs["highest_tile"], return_counts=True)
    facts: dict[str, object] = {"games": len(runs)}
    if len(runs):
        facts["mean score"] = f"{runs['max_score'].mean():,.0f}"
        facts["best score"] = int(runs["max_score"].max())
    shares = counts / max(len(runs), 1)
    return facts, {f"highest tile {tile}": float(share) for tile, share in zip(tiles, shares, strict=True)}
