"""What the product says of critics, beside the exact truth: 2048 on 3 x 3 cells, solved.

::

    python -m tests.bench.exact_truth [--games 20000] [--samples 200] [--rows 3 --columns 3]

The player is the best one. Its games are recorded, an n-tuple critic learns from them, and the probabilities
of all positions follow by dynamic programming. The first table compares labels and critic with the truth over
all rows of all games. The second table has the share of 95% intervals that hold the truth: of ``--samples``
samples of games, each with positions of a capped sample and binomial rollouts. ``R2 measured`` is the share
of the samples in which R2 is measurable. The share of its intervals is of these.
"""

import tempfile
import time
from pathlib import Path

import msgspec
import numpy as np

from tape2048 import Corpus
from tape2048.critic import RunBootstrap, oracle_scores
from tape2048.critic.evaluation import R2_RUNS_MIN, rarer
from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games, train_ntuple_critic
from tape2048.critic.ntuple.ntuple_critic import NTupleCritic
from tape2048.critic.oracle import OracleScores
from tape2048.game import boards_to_exps

from ..exact import capped_positions, recorded, solve, true_metrics
from .figures import options

METRICS = ("r2", "log_loss", "bias", "brier")
#: Games, rows of each, rollouts of each row.
DESIGNS = ((200, 10, 16), (1000, 3, 8), (1000, 3, 48))


class Coverage:
    """How many intervals of a predictor hold the truth, by metric."""

    def __init__(self, truth: dict[str, float]) -> None:
        self.truth = truth
        self.held = dict.fromkeys(METRICS, 0)
        self.widths: list[float] = []  # of R2's intervals

    def add(self, found: OracleScores) -> None:
        """Count the intervals of a sample."""
        for name in METRICS:
            one = getattr(found, name)
            self.held[name] += one is not None and one.low - 1e-9 <= self.truth[name] <= one.high + 1e-9
        if found.r2 is not None:
            self.widths.append(found.r2.high - found.r2.low)


def train(directory: Path, tiles: list[int]) -> NTupleCritic:
    """Train an n-tuple critic on the games of a directory."""
    config = NTupleCriticConfig(
        data=str(directory), stride=1, stages="", threads=1, thresholds=" ".join(map(str, tiles)),
        test_share=0.0,
    )  # fmt: skip
    best = train_ntuple_critic(config, corpus_games(config), directory / "critic").best
    assert best is not None
    return NTupleCritic.load(best)


def main() -> None:
    """Solve, record, train, compare, and print both tables."""
    args = options(__doc__, rows=3, columns=3, games=20_000, samples=200, replicates=400)
    begin = time.monotonic()
    solved = solve(args.rows, args.columns)
    print(
        f"{len(solved.boards):,} positions, {solved.images:,} with rotations and reflections, solved in "
        f"{time.monotonic() - begin:.0f} s; mean score of the best player {solved.mean_score:,.1f}"
    )
    # A tile that nearly every game reaches, one that some do, and one that few do.
    exponents = [args.rows * args.columns + shift for shift in (-1, 0, 1)]
    tiles, rows = [1 << e for e in exponents], solved.rows
    q, weights = solved.reach[:, exponents], solved.visits[rows]
    with tempfile.TemporaryDirectory() as name:
        corpus = Corpus.open(recorded(Path(name), solved, games=args.games, seed=1))
        critic = train(Path(name), tiles)
        p = critic(solved.boards).astype(np.float64)
        print(
            "| tile | of games | of rows | labels, weighted | ± | unweighted | R2 of the critic | log loss |"
        )
        (batch,) = corpus.capped(4).batches(
            len(corpus), shuffle=False, seed=0, rank=0, world_size=1, thresholds=tiles,
            fields=("labels", "run", "weight"),
        )  # fmt: skip
        ends = solved.visits * (solved.chosen == 0)
        for column, tile in enumerate(tiles):
            labels = batch["labels"][:, column]
            counts = [
                np.bincount(batch["run"], batch["weight"] * each) for each in (labels, np.ones(len(labels)))
            ]
            share = counts[0].sum() / counts[1].sum()
            error = np.sqrt(((counts[0] - share * counts[1]) ** 2).sum()) / counts[1].sum()
            truth = true_metrics(solved, p[rows, column], exponents[column])
            of_rows = np.average(q[rows, column], weights=weights)
            shown = [ends @ q[:, column], of_rows, share, 1.96 * error, labels.mean(), truth["r2"]]
            print(f"| {tile} |", " | ".join(f"{each:.4f}" for each in [*shown, truth["log_loss"]]), "|")
    highest = boards_to_exps(solved.boards).max(axis=1)
    counts = np.maximum(np.bincount(highest, solved.visits), 1e-300)
    of_tile = np.stack([np.bincount(highest, solved.visits * each) / counts for each in q.T], axis=1)
    predictors = {"exact": q, "critic": p, "highest tile": of_tile[highest]}
    print(
        "| games, rows of each, rollouts | tile | predictor | R2 measured | width |", " | ".join(METRICS), "|"
    )
    for games, per_run, rollouts in DESIGNS:
        found = {
            (column, name): Coverage(true_metrics(solved, each[rows, column], exponents[column]))
            for column in range(len(tiles))
            for name, each in predictors.items()
        }
        for seed in range(args.samples):
            drawn = capped_positions(solved, games=games, per_run=per_run, seed=seed)
            of_runs = RunBootstrap(games, args.replicates, seed).weights * drawn.weights[:, None]
            of_runs = of_runs.astype(np.float32)
            shares = np.random.default_rng(seed).binomial(rollouts, q[drawn.places]) / rollouts
            for (column, name), one in found.items():
                predicted = predictors[name][drawn.places, column]
                scores = oracle_scores(predicted, shares[:, column], rollouts, drawn.runs, of_runs)
                if rarer(drawn.highest >= exponents[column]) < R2_RUNS_MIN:
                    scores = msgspec.structs.replace(scores, r2=None)
                one.add(scores)
        for (column, name), one in found.items():
            measured = len(one.widths)
            shown = [
                one.held["r2"] / max(measured, 1),
                *(one.held[name] / args.samples for name in METRICS[1:]),
            ]
            print(
                f"| {games}, {per_run}, {rollouts} | {tiles[column]} | {name} |",
                f"{measured / args.samples:.3f} | {np.median(one.widths or [np.nan]):.3f} |",
                " | ".join(f"{each:.3f}" for each in shown),
                "|",
                flush=True,
            )


if __name__ == "__main__":
    main()
