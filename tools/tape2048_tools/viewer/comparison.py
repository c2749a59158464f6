"""The comparison of two selections of games: which scores more, and what the difference consists of."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.intervals import student95, student_below, wilson
from tape2048.session.run_table import exponents_of

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from numpy.typing import NDArray

    # A selection's columns of the run table.
    _Columns = Mapping[str, NDArray[Any]]

#: Exponents of tiles in a run table of 32-bit numbers.
_EXPONENTS = 32

#: A tile that more games than this reach or miss, in both selections, divides no range.
_DIVIDES = 0.02


def compare(first: _Columns, second: _Columns, shared: int) -> dict[str, Any] | None:
    """Compare ``score`` and ``highest_tile`` of two selections; None if one of them is empty.

    Games are paired if the selections have the same seeds. If not, they are independent, and the intervals
    are Welch's. ``shared`` is the number of games in both selections.
    """
    both = first, second
    if not all(len(one["seed"]) for one in both):
        return None
    scores = [one["score"].astype(np.float64) for one in both]
    paired = not shared and len(scores[0]) == len(scores[1]) and first["seed"].sum() == second["seed"].sum()
    if paired:  # probably: sorting ten million seeds would take a second
        orders = [np.argsort(one["seed"]) for one in both]
        seeds = [one["seed"][order] for one, order in zip(both, orders, strict=True)]
        paired = np.array_equal(seeds[0], seeds[1]) and bool((seeds[0][1:] > seeds[0][:-1]).all())
        scores = [one[order] for one, order in zip(scores, orders, strict=True)]
    counts = [np.bincount(exponents_of(one["highest_tile"]), minlength=_EXPONENTS) for one in both]
    at_least = [one[::-1].cumsum()[::-1].tolist() for one in counts]
    reached = {
        1 << exp: [one[exp] for one in at_least]
        for exp in range(1, _EXPONENTS)
        if any(one[exp] for one in at_least)
    }
    shares = {
        tile: [wilson(count, len(one)) for count, one in zip(reach, scores, strict=True)]
        for tile, reach in reached.items()
    }
    return {
        "paired": paired,
        "shared": shared,
        "games": [len(one) for one in scores],
        "score": _difference(scores, paired=paired),
        "ranges": _ranges(scores, shares, reached, paired=paired),
        "tiles": [
            {"tile": tile, "shares": [one._asdict() for one in each], **_newcombe(*each)}
            for tile, each in shares.items()
            if {one.share for one in each} not in ({0.0}, {1.0})
        ],
    }


def _difference(values: Sequence[NDArray[np.float64]], *, paired: bool) -> dict[str, float]:
    """Return the first mean minus the second, its 95% interval, and the probability that it is above 0."""
    a, b = values
    found = {"difference": float(a.mean() - b.mean())}
    if min(len(a), len(b)) < 2:
        return found
    if paired:
        squares, df = float((a - b).var(ddof=1)) / len(a), float(len(a) - 1)
    else:
        own, other = (float(one.var(ddof=1)) / len(one) for one in values)
        squares = own + other
        df = squares**2 / (own**2 / (len(a) - 1) + other**2 / (len(b) - 1)) if squares else 1.0
    half = student95(df) * math.sqrt(squares)
    t = found["difference"] / math.sqrt(squares) if squares else math.copysign(math.inf, found["difference"])
    above = student_below(t, df) if found["difference"] else 0.5
    return found | {"low": found["difference"] - half, "high": found["difference"] + half, "above": above}


def _newcombe(a: Any, b: Any) -> dict[str, float]:
    """Return the difference of two shares with its 95% interval (Newcombe's, from Wilson's intervals)."""
    more = a.share - b.share
    return {
        "difference": more,
        "low": more - math.hypot(a.share - a.low, b.high - b.share),
        "high": more + math.hypot(a.high - a.share, b.share - b.low),
    }


def _ranges(
    scores: Sequence[NDArray[np.float64]],
    shares: Mapping[int, Sequence[Any]],
    reached: Mapping[int, Sequence[int]],
    *,
    paired: bool,
) -> list[dict[str, Any]]:
    """Divide the difference of the mean scores by the tiles that only some games reach; the parts add up.

    A range has the points that games score in it, and the share of the games in it that end there.
    """
    tiles = [
        tile for tile, each in shares.items() if any(_DIVIDES <= one.share <= 1 - _DIVIDES for one in each)
    ]
    found = []
    for tile, after in zip([0, *tiles], [*tiles, 0], strict=True):
        low, high = _score_of(tile), _score_of(after) if after else math.inf
        parts = [np.clip(one, low, high) - low for one in scores]
        entered = reached[tile] if tile else [len(one) for one in scores]
        left = reached[after] if after else (0, 0)
        ends = [wilson(of - on, of)._asdict() if of else None for of, on in zip(entered, left, strict=True)]
        found.append({"tile": tile, "after": after, "ends": ends, **_difference(parts, paired=paired)})
    return found


def _score_of(tile: int) -> float:
    """Return the score of a game when a tile appears: a 4 instead of two 2s saves 4 points."""
    return tile * (math.log2(tile) - 1 - 2 / 11) if tile else 0.0
