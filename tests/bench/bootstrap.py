"""The time of a bootstrap by run: AUROC and average precision of 1,000 replicates over a million rows.

::

    python -m tests.bench.bootstrap --rows 1000000 --runs 200

Beside it, the same for a few replicates by scikit-learn with weights, measured alternately.
"""

from __future__ import annotations

import argparse
import statistics
import time
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.critic.metrics import RunBootstrap, ranking

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Times(NamedTuple):
    """Seconds of CPU for each 1,000 replicates, medians."""

    ours_s: float
    sklearn_s: float


def sample(rows: int, runs: int, seed: int = 0) -> tuple[NDArray[Any], NDArray[np.bool_], NDArray[Any]]:
    """Scores without ties, labels of whole runs, runs."""
    rng = np.random.default_rng(seed)
    owners = rng.integers(0, runs, rows)
    labels = (rng.random(runs) < 0.3)[owners]
    return rng.normal(size=rows) + labels, labels, owners


def measure(rows: int, runs: int, replicates: int, repeats: int) -> Times:
    """Both, alternately; scikit-learn with 3 of the replicates."""
    from sklearn.metrics import average_precision_score, roc_auc_score

    scores, labels, owners = sample(rows, runs)
    weights = RunBootstrap(runs, replicates).weights
    ranking(scores[:10], labels[:10], owners[:10], weights)  # compiles

    def theirs() -> None:
        for column in range(1, 4):
            weight = weights[owners, column]
            roc_auc_score(labels, scores, sample_weight=weight)
            average_precision_score(labels, scores, sample_weight=weight)

    ours: list[float] = []
    others: list[float] = []
    for _ in range(repeats):
        ours.append(_cpu_s(lambda: ranking(scores, labels, owners, weights)) * 1000 / weights.shape[1])
        others.append(_cpu_s(theirs) * 1000 / 3)
    return Times(statistics.median(ours), statistics.median(others))


def _cpu_s(action: Callable[[], object]) -> float:
    begin = time.process_time()
    action()
    return time.process_time() - begin


def main() -> None:
    parser = argparse.ArgumentParser(description="The time of a bootstrap by run.")
    parser.add_argument("--rows", type=int, default=1_000_000)
    parser.add_argument("--runs", type=int, default=200)
    parser.add_argument("--replicates", type=int, default=1000)
    parser.add_argument("--repeats", type=int, default=3)
    args = parser.parse_args()
    found = measure(args.rows, args.runs, args.replicates, args.repeats)
    print(
        f"{args.rows:,} rows of {args.runs:,} runs; AUROC and AUPRC of 1,000 replicates, s of CPU:\n"
        f"one sort and weighted passes {found.ours_s:.2f}; scikit-learn {found.sklearn_s:,.0f} "
        f"({found.sklearn_s / found.ours_s:,.0f} times as long)"
    )


if __name__ == "__main__":
    main()
