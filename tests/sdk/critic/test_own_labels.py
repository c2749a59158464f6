"""Evaluation against labels of one's own, against slow formulas and scikit-learn."""

from typing import Any

import numpy as np
import pytest
import torch
from sklearn import metrics
from tests.sdk.critics import make_uneven

from tape2048 import Corpus
from tape2048.critic import NTupleCritic, evaluate
from tape2048.critic.own_labels import LabelEvaluation
from tape2048.errors import ColumnError


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(make_uneven(tmp_path_factory.mktemp("own-labels")))


def share(tokens: Any) -> Any:
    """A prediction of little value, in 0..1."""
    return tokens.sum(axis=1) % 97 / 96


def measure(corpus: Corpus, labels: Any, predict: Any = share, **how: Any) -> LabelEvaluation:
    return evaluate(predict, corpus, labels=labels, **{"per_run": None, "replicates": 0, **how})


def test_labels_of_games(corpus: Corpus) -> None:
    """0/1 labels have the figures of scikit-learn, over all rows and in each stage."""
    labels = corpus.runs["score"] > np.median(corpus.runs["score"])
    found = measure(corpus, labels | (np.arange(len(labels)) % 3 == 0))
    rows = corpus.fetch(slice(None), ("tokens", "run", "step"))
    y = (labels | (np.arange(len(labels)) % 3 == 0))[rows["run"]]
    p, step = share(rows["tokens"].astype(int)), rows["step"]
    ends = np.quantile(step, [1 / 3, 2 / 3], method="inverted_cdf")
    third = np.searchsorted(ends, step, "left")
    parts = {"all": step >= 0, "early": third == 0, "middle": third == 1, "late": third == 2}
    assert [one.name for one in found.stages] == list(parts)
    assert found.is_binary
    for name, chosen in parts.items():
        one, loss = found.stage(name), metrics.log_loss(y[chosen], np.clip(p[chosen], 1e-6, 1 - 1e-6))
        base = metrics.log_loss(y[chosen], np.full(chosen.sum(), y[chosen].mean()))
        expected = {
            "mean": y[chosen].mean(), "auroc": metrics.roc_auc_score(y[chosen], p[chosen]), "log_loss": loss,
            "base_log_loss": base, "skill": 1 - loss / base,
            "brier": metrics.brier_score_loss(y[chosen], p[chosen]),
        }  # fmt: skip
        assert {key: getattr(one, key).value for key in expected} == pytest.approx(expected, abs=1e-5)
        assert (one.rows, one.runs) == (chosen.sum(), len(np.unique(rows["run"][chosen])))
        assert (one.ece.value > 0, one.r2) == (True, None)
    assert len(found.reliability) == 15
    assert "AUROC" in str(found)


@pytest.mark.parametrize("given", ["array", "field"])
def test_real_labels_of_rows(corpus: Corpus, given: str) -> None:
    """An array and a field with the same values have the R2, RMSE and bias of scikit-learn."""
    rows = corpus.fetch(slice(None), ("tokens", "steps_left"))
    y = rows["steps_left"].astype(float)
    labels = y if given == "array" else "steps_left"
    found = measure(corpus, labels, lambda tokens: 100 * share(tokens)).stage("all")
    p = 100 * share(rows["tokens"].astype(int))
    expected = {
        "mean": y.mean(), "r2": metrics.r2_score(y, p), "rmse": np.sqrt(metrics.mean_squared_error(y, p)),
        "deviation": y.std(), "bias": (p - y).mean(),
    }  # fmt: skip
    assert {key: getattr(found, key).value for key in expected} == pytest.approx(expected, rel=1e-5)
    assert (found.auroc, found.log_loss) == (None, None)


def test_intervals_resample_games(corpus: Corpus) -> None:
    """A label that is equal in all rows of a game has an interval as wide as that of games."""
    labels = np.arange(len(corpus.runs)) % 2
    found = measure(corpus, labels, replicates=400, per_run=4).stage("all")
    steps = corpus.runs["steps"]
    rng = np.random.default_rng(0)
    draws = [rng.integers(0, len(steps), len(steps)) for _ in range(4000)]
    shares = [np.average(labels[each], weights=steps[each]) for each in draws]
    low, high = np.quantile(shares, [0.025, 0.975])
    assert found.rows == 4 * len(steps)
    assert found.mean.value == pytest.approx(np.average(labels, weights=steps))
    assert [found.mean.low, found.mean.high] == pytest.approx([low, high], abs=0.03)


def test_rows_without_a_label_are_left_out(corpus: Corpus) -> None:
    labels = np.where(np.arange(len(corpus)) % 2, np.nan, 1.5)
    found = measure(corpus, labels)
    assert (found.rows, found.rows_left_out, found.is_binary) == (len(corpus) // 2, len(corpus) // 2, False)
    assert found.stage("all").r2 is None
    assert f"{found.rows_left_out:,} rows without a label" in str(found)


def test_a_module_has_logits_for_0_and_1_and_numbers_else(corpus: Corpus) -> None:
    class Constant(torch.nn.Module):
        def forward(self, tokens: torch.Tensor) -> torch.Tensor:
            return torch.zeros(len(tokens), 1)

    games = len(corpus.runs)
    assert measure(corpus, np.arange(games) % 2, Constant()).stage("all").brier.value == pytest.approx(0.25)
    mean = measure(corpus, np.arange(games), Constant()).stage("all")
    assert mean.bias.value == pytest.approx(-mean.mean.value)


@pytest.mark.parametrize(
    ("labels", "how", "said"),
    [
        (np.zeros(3), {}, r"shape \(3,\), expected \(80,\), a value for each game, or \(\d+,\)"),
        ("tokens", {}, "one number for each row"),
        (np.full(80, np.nan), {}, "every label is NaN"),
        (np.zeros(80), {"predict": lambda tokens: tokens}, r"expected probabilities of shape"),
        (np.zeros(80), {"predict": lambda tokens: np.full(len(tokens), 2.0)}, "values from 2.0 to 2.0"),
        (
            np.arange(80),
            {"predict": lambda tokens: np.full(len(tokens), np.nan)},
            "numbers of shape",
        ),
        ("no_such_field", {}, "no_such_field"),
    ],
)
def test_wrong_labels_and_predictions(corpus: Corpus, labels: Any, how: Any, said: str) -> None:
    with pytest.raises((ValueError, ColumnError), match=said):
        measure(corpus, labels, **how)


def test_arguments_of_tiles_do_not_apply(corpus: Corpus) -> None:
    """A critic of tiles, and baselines, are rejected."""
    with pytest.raises(TypeError, match="expected a module or function"):
        measure(corpus, "steps_left", NTupleCritic.load("default"))
    with pytest.raises(TypeError, match="no train, baselines or oracle"):
        measure(corpus, "steps_left", train=corpus)
