"""Numbers, shares and boards as people read them."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence

    from rich.text import Text

__all__ = ["board", "number", "share", "size"]

# Background and text of each tile by its exponent, as the game of 2014 has them; past 2048, further
# from grey with each step.
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


def number(value: float | None) -> str:
    """A whole number with thousands apart: ``12,345``; ``-`` for none."""
    return "-" if value is None else f"{value:,.0f}"


def share(value: float | None) -> str:
    """A share in percent: ``83%``, ``4.2%``, ``0.03%``; never rounded to none (``0``) or all (``100%``)."""
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


def size(count: int) -> str:
    """Bytes with a decimal unit: ``280 MB``."""
    value = float(count)
    for unit in ("B", "kB", "MB", "GB"):
        if value < 999.5:
            return f"{value:.0f} {unit}" if value >= 9.95 or unit == "B" else f"{value:.1f} {unit}"
        value /= 1000
    return f"{value:,.1f} TB"


def board(exps: Sequence[int]) -> Text:
    """A board in the colours of its tiles; without colours, numbers in columns and dots.

    Args:
        exps: 16 exponents, row-major.
    """
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
