"""Confidence intervals of shares."""

from __future__ import annotations

import math
from typing import NamedTuple

#: Two-sided 95% of the normal distribution.
Z95 = 1.959964


class Share(NamedTuple):
    """A share of games with its 95% interval, all in 0..1."""

    share: float
    low: float
    high: float


def wilson(count: int, of: int) -> Share:
    """Return a share and its 95% score interval (Wilson, JASA 1927)."""
    if of == 0:
        return Share(math.nan, 0.0, 1.0)
    p = count / of
    centre = p + Z95 * Z95 / (2 * of)
    half = Z95 * math.sqrt(p * (1 - p) / of + Z95 * Z95 / (4 * of * of))
    scale = 1 + Z95 * Z95 / of
    return Share(p, max(0.0, (centre - half) / scale), min(1.0, (centre + half) / scale))
