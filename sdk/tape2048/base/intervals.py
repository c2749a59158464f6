"""Confidence intervals of shares and means, and p-values."""

from __future__ import annotations

import functools
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
    # Rounding would turn a bound of 0 into 1e-19, which pages would show as "<0.01%".
    low, high = (centre - half) / scale if count else 0.0, (centre + half) / scale if count < of else 1.0
    return Share(p, low, high)


def mean_error(count: int, total: float, squares: float) -> float:
    """Return half the width of a mean's 95% interval (Student's t) from sums; NaN for a single value."""
    if count < 2:
        return math.nan
    variance = max(squares - total * total / count, 0.0) / (count - 1)
    return student95(count - 1) * math.sqrt(variance / count)


@functools.lru_cache(256)
def student95(df: float) -> float:
    """Return the two-sided 95% point of Student's t, for 1 degree of freedom or more."""
    scale = math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi * df)
    t = Z95
    for _ in range(12):  # Newton's method: from below, the distribution is concave
        t += (0.975 - student_below(t, df)) / scale * math.pow(1 + t * t / df, (df + 1) / 2)
    return t


def student_below(t: float, df: float) -> float:
    """Return the probability that Student's t is below a value, by Simpson's rule over the angle."""
    steps, end = 400, math.atan(t / math.sqrt(df))
    heights = [math.pow(math.cos(end * i / steps), df - 1) for i in range(steps + 1)]
    area = (heights[0] + 4 * sum(heights[1:-1:2]) + 2 * sum(heights[2:-1:2]) + heights[-1]) * end / steps / 3
    return 0.5 + area * math.exp(math.lgamma((df + 1) / 2) - math.lgamma(df / 2)) / math.sqrt(math.pi)


def chi_square_p(statistic: float, df: int) -> float:
    """Return the p-value of a chi-square statistic: a finite sum for whole degrees of freedom."""
    half = statistic / 2
    total = math.erfc(math.sqrt(half)) if df % 2 else 0.0
    for k in range(2 + df % 2, df + 1, 2) if half else ():  # Abramowitz and Stegun, 26.4.4 and 26.4.5
        total += math.exp((k / 2 - 1) * math.log(half) - half - math.lgamma(k / 2))
    return min(total, 1.0) if half else 1.0
