"""Labels of runs: thresholds, exponents of tiles, and how labels are balanced over rows."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Tiles that a critic predicts, unless told otherwise.
DEFAULT_THRESHOLDS = (8192, 16384, 32768)


def check_thresholds(thresholds: Sequence[int]) -> NDArray[np.int64]:
    """The tiles as ``i64[T]``; ValueError unless they are one or more different powers of two, 2 to 2**62."""
    given = np.asarray(thresholds)
    # A u64 of 2**63 becomes negative. What is no integer cannot always be converted.
    tiles = given.astype(np.int64) if given.dtype.kind in "iu" else np.empty(0, np.int64)
    is_tiles = (
        tiles.ndim == 1
        and tiles.size > 0
        and bool((tiles >= 2).all() and (tiles & (tiles - 1) == 0).all())
        and len(np.unique(tiles)) == len(tiles)
    )
    if not is_tiles:
        raise ValueError(
            f"thresholds {thresholds!r}; expected different powers of two, at least one, each from 2 to 2**62"
        )
    return tiles


def exponents_of(tiles: NDArray[Any]) -> NDArray[np.uint8]:
    """``floor(log2(tile))`` of each tile, 0 for none; exact, since a double holds a tile's leading bit."""
    exponents: NDArray[np.uint8] = np.maximum(np.frexp(tiles.astype(np.float64))[1] - 1, 0).astype(np.uint8)
    return exponents


def prevalence(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """The share of rows whose label is true: ``f64[T]``.

    Args:
        run_labels: ``bool[R, T]``.
        row_counts: rows of each run, ``i64[R]``, not all 0.
    """
    shares: NDArray[np.float64] = _true_rows(run_labels, row_counts) / row_counts.sum()
    return shares


def positive_weights(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """False rows for each true one, 1 where all are the same: ``f64[T]``; arguments as :func:`prevalence`."""
    true = _true_rows(run_labels, row_counts)
    false = row_counts.sum() - true
    one_kind = (true == 0) | (false == 0)
    return np.where(one_kind, 1.0, false / np.where(one_kind, 1, true))


def _true_rows(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    # Not a matrix product, which for integers has no fast form in NumPy.
    return np.array([row_counts[column].sum() for column in run_labels.T], np.int64)
