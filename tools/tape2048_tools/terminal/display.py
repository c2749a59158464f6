"""Numbers, shares, durations, paths and boards as people read them."""

from __future__ import annotations

import os
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from rich.text import Text

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

#: Reach rates that are always shown. Hardly any game gets further: that is said where one did.
_TILES_SHOWN = (2048, 4096, 8192, 16384)
_TILE_WHERE_REACHED = 32768


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


def duration(seconds: float) -> str:
    """``0:42``, ``1:02:03`` or ``3 days 4 h``."""
    whole = int(seconds)
    days, hours, minutes = whole // 86400, whole // 3600 % 24, whole // 60 % 60
    if days:
        return f"{days} day{'s' if days > 1 else ''} {hours} h"
    return f"{hours}:{minutes:02}:{whole % 60:02}" if hours else f"{minutes}:{whole % 60:02}"


def rate(per_s: float) -> str:
    """``8G``, ``1.42M``, ``40.1k`` or ``312`` a second."""
    for factor, unit in ((1e9, "G"), (1e6, "M"), (1e3, "k")):
        if per_s >= 0.9995 * factor:  # so that three digits never round to a thousand
            return f"{per_s / factor:.3g}{unit}"
    return f"{per_s:.0f}"


def reach_words(reach: Mapping[int, float]) -> list[str]:
    """``2048 92%`` for each tile that fits a line; 32768 only where a game reached it."""
    shown = [tile for tile in _TILES_SHOWN if tile in reach]
    if reach.get(_TILE_WHERE_REACHED):
        shown.append(_TILE_WHERE_REACHED)
    return [f"{tile} {share(reach[tile])}" for tile in shown]


def near(path: str) -> str:
    """A path from here, where that is the shorter way to say it."""
    relative = os.path.relpath(path)
    return path if relative.startswith("..") else relative


def runnable(name: str, path: str) -> str:
    """How to call a program that runs now: by its name if that finds it, else by its path."""
    found = shutil.which(name)
    same = found is not None and Path(found).parent == Path(path).parent
    return name if same or not Path(path).name.startswith(name) else shlex.quote(near(path))


def double_quoted(text: str) -> str:
    """Text with single quotes in it as one word of a shell's command, readable where it can be."""
    return shlex.quote(text) if any(char in text for char in '"$`\\!') else f'"{text}"'


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
