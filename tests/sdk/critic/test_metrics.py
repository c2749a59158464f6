"""Metrics of probabilities against scikit-learn and plain definitions; intervals that draw whole games."""

from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from sklearn.metrics import average_precision_score, brier_score_loss, roc_auc_score

from tape2048.critic.metrics import (
    Estimate,
    RunBootstrap,
    brier_score,
    calibration_error,
    estimate,
    ranking,
    reliability,
)

from ..builders import memory_below

#: Weightings that are compared: of both blocks that go along together, the first and last ones.
COLUMNS = (0, 1, 63, 64, 69)


@st.composite
def weighted_rows(draw: st.DrawFn) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]]:
    """Scores with many ties, labels of both kinds by row, runs, and 70 weightings of these (two blocks).

    A weighting is a multiplicity times the weight of the run's rows.
    """
    count = draw(st.integers(2, 60))
    runs = draw(st.integers(1, 7))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    scores = rng.integers(0, draw(st.integers(1, 40)), count) / draw(st.sampled_from([1, 3, 40]))
    labels = rng.random(count) < draw(st.sampled_from([0.1, 0.5, 0.9]))
    weights = rng.integers(0, draw(st.sampled_from([2, 4])), (runs, 70)).astype(np.float32)
    weights[:, 0] = 1
    weights *= rng.integers(1, draw(st.sampled_from([2, 9])), (runs, 1))
    return scores, labels, rng.integers(0, runs, count), weights


@settings(max_examples=50)
@given(weighted_rows())
def test_ranking_is_scikit_learns(
    rows: tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]],
) -> None:
    scores, labels, runs, weights = rows
    found = ranking(scores, labels, runs, weights)
    for column in COLUMNS:
        weight = weights[runs, column]
        true, false = weight[labels].sum(), weight[~labels].sum()
        if not true or not false:
            assert np.isnan(found.auroc[column])
        else:
            expected = roc_auc_score(labels, scores, sample_weight=weight)
            assert found.auroc[column] == pytest.approx(expected, abs=1e-12)
        if not true:
            assert np.isnan(found.average_precision[column])
        else:
            expected = average_precision_score(labels, scores, sample_weight=weight)
            assert found.average_precision[column] == pytest.approx(expected, abs=1e-12)


@settings(max_examples=50)
@given(weighted_rows())
def test_brier_score_is_scikit_learns(
    rows: tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]],
) -> None:
    scores, labels, runs, weights = rows
    p = scores / max(1.0, float(scores.max()))
    found = brier_score(p, labels, runs, weights)
    for column in COLUMNS:
        weight = weights[runs, column]
        if weight.sum() == 0:
            assert np.isnan(found[column])
        else:
            expected = brier_score_loss(labels, p, sample_weight=weight, labels=[False, True])
            assert found[column] == pytest.approx(expected, abs=1e-6)


@settings(max_examples=50)
@given(weighted_rows(), st.integers(1, 20))
def test_bins_are_those_of_the_definition(
    rows: tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]], bins: int
) -> None:
    scores, labels, runs, weights = rows
    p = scores / max(1.0, float(scores.max()))
    found = reliability(p, labels, runs, weights, bins)
    ordered = np.repeat(np.sort(p), weights[runs, 0].astype(int)[np.argsort(p)])
    edges = sorted({ordered[max(0, -(-i * len(ordered) // bins) - 1)] for i in range(1, bins)})
    members = [(p > low) & (p <= high) for low, high in zip([-np.inf, *edges], [*edges, np.inf], strict=True)]
    members = [chosen for chosen in members if chosen.any()]
    assert found.rows.tolist() == [int(chosen.sum()) for chosen in members]
    for column in (0, 3, 69):
        weight = weights[runs, column].astype(np.float64)
        if weight.sum() == 0:
            continue
        error = sum(abs((weight * (p - labels))[chosen].sum()) for chosen in members) / weight.sum()
        assert calibration_error(found)[column] == pytest.approx(error, abs=1e-9)


@settings(max_examples=50)
@given(weighted_rows(), st.integers(1, 20))
def test_a_row_of_weight_w_is_w_rows(
    rows: tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]], bins: int
) -> None:
    scores, labels, runs, weights = rows
    p = scores / max(1.0, float(scores.max()))
    once = np.ones((len(weights), 1), np.float32)
    repeated = [np.repeat(each, weights[runs, 0].astype(int)) for each in (p, labels, runs)]
    for metric in (
        lambda *rows: ranking(*rows).auroc, lambda *rows: ranking(*rows).average_precision, brier_score,
        lambda *rows: calibration_error(reliability(*rows, bins)),
        lambda *rows: reliability(*rows, bins).observed[:, 0],
        lambda *rows: reliability(*rows, bins).share[:, 0],
    ):  # fmt: skip
        found = metric(p, labels, runs, weights[:, :1])
        np.testing.assert_allclose(found, metric(*repeated, once), atol=1e-12)


@settings(max_examples=50)
@given(weighted_rows(), st.data())
def test_an_order_chooses_rows(
    rows: tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any], NDArray[Any]], data: st.DataObject
) -> None:
    scores, labels, runs, weights = rows
    chosen = np.array(data.draw(st.lists(st.booleans(), min_size=len(scores), max_size=len(scores))))
    order = np.argsort(scores)[::-1]
    some = ranking(scores, labels, runs, weights, order=order[chosen[order]])
    alone = ranking(scores[chosen], labels[chosen], runs[chosen], weights)
    np.testing.assert_array_equal(some.auroc, alone.auroc)
    np.testing.assert_array_equal(some.average_precision, alone.average_precision)


@pytest.mark.parametrize("count", [1, 63, 64, 130, 300])
def test_weights_are_converted_some_at_a_time(count: int) -> None:
    rng = np.random.default_rng(7)
    # Sums of these are exact, in whatever order they are added up.
    p, labels = rng.integers(0, 65, 15_000) / 64, rng.random(15_000) < 0.3
    runs, weights = rng.integers(0, 10_000, 15_000), RunBootstrap(10_000, count - 1).weights
    with memory_below(10_000 * 8 * (127 + 40)):  # all of 300 columns would be more
        found = brier_score(p, labels, runs, weights), reliability(p, labels, runs, weights, 3)
    for column in range(count):
        alone = weights[:, [0, column]]  # the first one decides the bins
        np.testing.assert_array_equal(found[0][column], brier_score(p, labels, runs, alone)[1])
        for bins, bin_ in zip(found[1][1:4], reliability(p, labels, runs, alone, 3)[1:4], strict=True):
            np.testing.assert_array_equal(bins[:, column], bin_[:, 1])


def test_bootstrap_weights() -> None:
    drawn = RunBootstrap(50, 200, seed=3)
    assert drawn.weights.shape == (50, 201)
    assert drawn.replicates == 200
    assert (drawn.weights[:, 0] == 1).all()
    np.testing.assert_array_equal(drawn.weights.sum(axis=0), np.full(201, 50))
    np.testing.assert_array_equal(drawn.weights, RunBootstrap(50, 200, seed=3).weights)
    assert (drawn.weights != RunBootstrap(50, 200, seed=4).weights).any()
    # In each replicate a run comes up twice; of one run there is nothing to draw.
    assert (drawn.weights[:, 1:].max(axis=0) > 1).all()
    assert RunBootstrap(1, 2).weights.tolist() == [[1, 1, 1]]
    # P(a run is not drawn) is 1/e
    assert (drawn.weights[:, 1:] == 0).mean() == pytest.approx(0.364, abs=0.02)


def test_copies_of_rows_do_not_narrow_intervals() -> None:
    rng = np.random.default_rng(5)
    labels = rng.random(60) < 0.4
    scores = rng.normal(size=60) + labels
    once = ranking(scores, labels, np.arange(60), RunBootstrap(60, 400).weights)
    copied = ranking(
        np.repeat(scores, 50), np.repeat(labels, 50), np.repeat(np.arange(60), 50),
        RunBootstrap(60, 400).weights,
    )  # fmt: skip
    np.testing.assert_allclose(copied.auroc, once.auroc, atol=1e-12)
    by_row = ranking(
        np.repeat(scores, 50), np.repeat(labels, 50), np.arange(3000), RunBootstrap(3000, 400).weights
    )
    wide, narrow = estimate(once.auroc), estimate(by_row.auroc)
    assert (wide.high or 0) - (wide.low or 0) > 4 * ((narrow.high or 0) - (narrow.low or 0))


def test_intervals_hold_the_truth_as_often_as_they_say() -> None:
    # 150 samples of 40 runs; a score of unit variance whose AUROC is 0.7602 (d' = 1).
    rng = np.random.default_rng(11)
    held = 0
    for _ in range(150):
        labels = np.arange(40) < 20
        scores = rng.normal(size=40) + labels
        found = estimate(ranking(scores, labels, np.arange(40), RunBootstrap(40, 200).weights).auroc)
        held += (found.low or 0) <= 0.7602 <= (found.high or 0)
    assert 0.87 <= held / 150 <= 0.99


def test_estimates_skip_replicates_of_one_class() -> None:
    assert estimate(np.array([0.5, np.nan, 0.4, 0.6])) == Estimate(
        0.5, pytest.approx(0.405), pytest.approx(0.595)
    )
    assert estimate(np.array([np.nan, 0.4])) is None
    assert estimate(np.array([0.5, np.nan])) == Estimate(0.5)
    assert estimate(np.array([0.5, 0.4, 0.6]), interval=False) == Estimate(0.5)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"scores": np.array([0.1, np.nan, 0.3])}, "score 1 is NaN"),
        ({"labels": np.array([1, 0, 1])}, "labels of int64"),
        ({"runs": np.array([0, 1, 2])}, "runs from 0 to 2; expected 0 to 1"),
        ({"runs": np.array([0, -1, 1])}, "runs from -1"),
        ({"scores": np.zeros(4)}, "expected \\[N\\]"),
        ({"order": np.array([3])}, "rows 3 to 3; expected 0 to 2"),
    ],
)
def test_what_does_not_fit_is_refused(change: dict[str, Any], message: str) -> None:
    given = {
        "scores": np.array([0.1, 0.2, 0.3]), "labels": np.array([True, False, True]),
        "runs": np.array([0, 1, 1]), "weights": np.ones((2, 1), np.float32), **change,
    }  # fmt: skip
    with pytest.raises(ValueError, match=message):
        ranking(**given)


def test_no_bins() -> None:
    bins: Any
    for bins in (0, -3, 1.5):
        with pytest.raises(ValueError, match=f"bins={bins}; expected"):
            reliability([0.1], np.array([True]), np.array([0]), np.ones((1, 1)), bins)


def test_no_runs_and_no_rows() -> None:
    with pytest.raises(ValueError, match="runs=0"):
        RunBootstrap(0)
    nothing = np.empty(0), np.empty(0, np.bool_), np.empty(0, np.int64), np.ones((2, 3), np.float32)
    assert np.isnan(ranking(*nothing).auroc).all()
    assert np.isnan(brier_score(*nothing)).all()
    assert reliability(*nothing).rows.tolist() == []
