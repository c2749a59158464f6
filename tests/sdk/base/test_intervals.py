"""Confidence intervals of shares, beside SciPy's."""

from __future__ import annotations

import math

import pytest
from scipy import stats

from tape2048.base.intervals import wilson


@pytest.mark.parametrize(("count", "of"), [(0, 10), (3, 10), (10, 10), (1, 1000), (500, 1000), (0, 1)])
def test_shares_have_wilsons_interval(count: int, of: int) -> None:
    interval = stats.binomtest(count, of).proportion_ci(0.95, method="wilson")
    found = wilson(count, of)
    assert found.share == count / of
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-6)


def test_a_share_of_nothing_is_anything() -> None:
    found = wilson(0, 0)
    assert math.isnan(found.share)
    assert (found.low, found.high) == (0, 1)
