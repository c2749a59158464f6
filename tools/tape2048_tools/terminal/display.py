"""Formatting of numbers, shares, durations, paths and boards for people."""

from __future__ import annotations

import math
import os
from typing import TYPE_CHECKING, Any

from tape2048.session.tiles_shown import tiles_shown

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray
    from rich.text import Text

# Background and text colour of each tile by its exponent: up to 2048 as in the original game.
_TILE_COLOURS = (
    ("#cdc1b4", "#cdc1b4"),
    ("#eee4da", "#776e65"),
    ("#ede0c8", "#776e65"),
    ("#f2b179", "#f9f6f2"),
    ("#f59563", "#f9f6f2"),
    ("#f67c5f", "#f9f6f2"),
    ("#f65e3b", "#f9f6f2"),
    ("#edcf72", "#776e65"),
    ("#edcc61", "#776e65"),
    ("#edc850", "#776e65"),
    ("#edc53f", "#776e65"),
    ("#edc22e", "#776e65"),
    ("#7ac77a", "#f9f6f2"),
    ("#3fa34d", "#f9f6f2"),
    ("#2a7fb8", "#f9f6f2"),
    ("#5b3fa3", "#f9f6f2"),
)
_CELL_WIDTH = 7

#: Tiles whose reach rates are always shown, and a tile that is shown only if a game reached it.


def number(value: float | None) -> str:
    """Format a whole number with separators: ``12,345``; ``-`` for None."""
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """Format a share in percent: ``83%``, ``4.2%``, ``0.03%``; never round to ``0`` or ``100%``."""
    if value is None:
        return "-"
    percent = 100 * value
    if percent in (0, 100):
        return "0" if percent == 0 else "100%"
    if percent < 0.01:
        return "<0.01%"
    if percent >= 99.5:
        return f"{min(percent, 99.9):.1f}%"
    digits = 0 if percent >= 10 else 1 if percent >= 1 else 2
    return f"{percent:.{digits}f}%"


def share_between(value: float, low: float, high: float) -> str:
    """Format a share with its interval: ``83% (81.2-84.6)``."""
    return f"{share(value)} ({100 * low:.1f}-{100 * high:.1f})"


def size(count: int) -> str:
    """Format bytes with a decimal unit: ``280 MB``."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def duration(seconds: float) -> str:
    """Format seconds as ``0:42``, ``1:02:03`` or ``3 days 4 h``."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(per_s: float) -> str:
    """Format a rate as ``8G``, ``1.42M``, ``40.1k`` or ``312``."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= 0.9995 * factor:  # so that three digits never round to a thousand
            return f"{per_s / factor:.3g}{unit}"
    return f"{per_s:.0f}"


def reach_words(reach: Mapping[int, float]) -> str:
    """Format reach rates as ``2048 92%, 4096 83%``, of the tiles of :func:`tiles_shown`."""
    return ", ".join(f"{tile} {share(reach[tile])}" for tile in tiles_shown([reach]))


def with_error(value: float | None, error: float | None, between: str = " ") -> str:
    """Format a mean and half the width of its interval: ``2,008 ±13``; without an interval, only the mean."""
    return number(value) + ("" if error is None or math.isnan(error) else f"{between}±{number(error)}")


def near(path: str) -> str:
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def nearest(values: NDArray[Any]) -> NDArray[Any]:
    """Round to whole numbers, halves away from 0, as browsers do."""
    import numpy as np

    rounded: NDArray[Any] = np.copysign(np.floor(np.abs(values) + 0.5), values)
    return rounded


def board(exps: Sequence[int]) -> Text:
    from rich.text import Text

    text = Text()
    for row in range(4):
        cells = [int(exp) for exp in exps[4 * row : 4 * row + 4]]
        for exp in cells:
            background, foreground = _TILE_COLOURS[min(exp, 15)]
            shown = str(1 << exp) if exp else "."
            text.append(shown.center(_CELL_WIDTH), style=f"bold {foreground} on {background}")
        text.append("\n" if row < 3 else "")
    return text
