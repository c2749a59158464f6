"""Data frames and drawings for notebooks, with pandas and matplotlib."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.drawing import TILES, WELL, cells_of
from tape2048.errors import MissingPackageError

if TYPE_CHECKING:
    from collections.abc import Mapping

    from matplotlib.axes import Axes
    from numpy.typing import ArrayLike, NDArray


def frame_of(arrays: Mapping[str, NDArray[Any]]) -> Any:
    """Return arrays of n rows as a pandas ``DataFrame``; ``name[n, D]`` becomes ``name_0`` to ``name_{D-1}``.

    Raises:
        MissingPackageError: pandas is not installed.
    """
    try:
        import pandas as pd
    except ImportError as error:
        text = f"a DataFrame needs pandas, which cannot be imported ({error})"
        raise MissingPackageError(text, hint="pip install pandas") from error
    columns: dict[str, NDArray[Any]] = {}
    for name, array in arrays.items():
        flat = array.reshape(len(array), int(np.prod(array.shape[1:])))
        columns |= (
            {name: array} if array.ndim == 1 else {f"{name}_{i}": part for i, part in enumerate(flat.T)}
        )
    return pd.DataFrame(columns)


def axes_for(ax: Axes | None) -> Any:
    """Return the given axes of matplotlib, or those of a new figure; MissingPackageError without it."""
    if ax is not None:
        return ax
    try:
        import matplotlib.pyplot as plt
    except ImportError as error:
        raise MissingPackageError(
            f"a plot needs matplotlib, which cannot be imported ({error})",
            hint="pip install 'tape2048[plot]'",
        ) from error
    return plt.subplots()[1]


def plot_board(board: ArrayLike, ax: Axes | None = None) -> Axes:
    """Draw a board with matplotlib.

    Args:
        board: its exponents, ``[4, 4]`` or 16 of them in row-major order, or a packed board.
        ax: the axes to draw on; None: a new figure.

    Returns:
        The axes. ``ax.figure.savefig`` writes the figure.

    Raises:
        MissingPackageError: matplotlib is not installed.
        ValueError: this is no board.

    Example:
        >>> from tape2048 import Corpus, plot_board
        >>> ax = plot_board(Corpus("selfplay").game(0).boards[-1])
        >>> ax.figure.savefig("board.svg")
    """
    cells, ax = cells_of(board), axes_for(ax)
    ax.set(xlim=(0, 4), ylim=(4, 0), aspect="equal", facecolor=f"#{WELL}", xticks=[], yticks=[])
    for cell, exp in enumerate(cells):
        fill, ink = (f"#{colour}" for colour in TILES[exp].split())
        x, y, text = cell % 4, cell // 4, str(1 << exp) if exp else ""
        ax.fill([x + 0.05, x + 0.95, x + 0.95, x + 0.05], [y + 0.05, y + 0.05, y + 0.95, y + 0.95], fill)
        size = 18 - 2 * max(0, len(text) - 2)
        ax.text(x + 0.5, y + 0.5, text, color=ink, size=size, ha="center", va="center", weight="bold")
    return ax
