"""Confidence intervals of shares and p-values, beside SciPy's."""

import math

import pytest
from scipy import stats

from tape2048.base.intervals import chi_square_p, mean_error, student95, student_below, wilson


@pytest.mark.parametrize(("count", "of"), [(0, 10), (3, 10), (10, 10), (1, 1000), (500, 1000), (0, 1)])
def test_shares_have_wilsons_interval(count: int, of: int) -> None:
    interval = stats.binomtest(count, of).proportion_ci(0.95, method="wilson")
    found = wilson(count, of)
    assert found.share == count / of
    assert (found.low, found.high) == pytest.approx((interval.low, interval.high), abs=1e-6)
    assert (found.low == 0, found.high == 1) == (count == 0, count == of), "pages show 1e-19 as <0.01%"


def test_a_share_of_nothing_is_anything() -> None:
    found = wilson(0, 0)
    assert math.isnan(found.share)
    assert (found.low, found.high) == (0, 1)


@pytest.mark.parametrize("df", [1.0, 1.5, 2.0, 27.0, 183.2, 1e7])
def test_few_values_have_students_interval(df: float) -> None:
    assert student95(df) == pytest.approx(stats.t.ppf(0.975, df), abs=1e-6)
    for t in (-40.0, -1.0, 0.0, 0.3, 2.0, 12.0):
        assert student_below(t, df) == pytest.approx(stats.t.cdf(t, df), abs=1e-6)


def test_a_mean_has_the_error_of_its_sums() -> None:
    values = [3.0, 9.0, 4.0]
    interval = stats.ttest_1samp(values, 0).confidence_interval()
    found = mean_error(3, sum(values), sum(value**2 for value in values))
    assert found == pytest.approx((interval.high - interval.low) / 2)
    assert math.isnan(mean_error(1, 5.0, 25.0))


@pytest.mark.parametrize("df", [1, 2, 3, 4, 13, 14, 15])
def test_p_values_are_those_of_chi_square(df: int) -> None:
    for statistic in (0.0, 1e-9, 0.5, 3.84, 17.0, 80.0, 600.0):
        assert chi_square_p(statistic, df) == pytest.approx(stats.chi2.sf(statistic, df), rel=1e-12)
    assert chi_square_p(1e6, df) == 0
