"""Why splits are by game: the same model and rows, split by game and by row, with true and shuffled outcomes.

::

    python -m tests.bench.critic_controls selfplay --threshold 8192

Four times the same trees learn from the exponents of boards, and are examined on rows that they did not see:

- split **by run**: no game stands on both sides. The AUROC is what the boards tell;
- split **by row**: neighbours of an examined board, of the same game and so of the same outcome, were
  learned. The trees recognise the game, and the AUROC says nothing about other games;
- each with the outcomes **shuffled** among the games, so that boards tell nothing. By run the AUROC is 0.5
  within its interval; what is above 0.5 by row is leakage and nothing else.
"""

import argparse
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.critic.metrics import Estimate, RunBootstrap, estimate, ranking

#: Share of runs, or of rows, that the trees are examined on.
TEST_SHARE = 0.3


class Control(NamedTuple):
    """One of the four."""

    split: str
    outcomes: str
    auroc: Estimate


class Rows(NamedTuple):
    """Boards ``u8[N, 16]``, runs ``i64[N]``, and whether each run reached the tile, ``bool[R]``."""

    tokens: NDArray[np.uint8]
    runs: NDArray[np.int64]
    reached: NDArray[np.bool_]


def read(root: Path, threshold: int, *, per_run: int, runs_max: int, seed: int) -> Rows:
    """Some rows of some games of each session."""
    corpus = Corpus.open(root)
    chosen = np.zeros(len(corpus.runs), np.bool_)
    rng = np.random.default_rng(seed)
    chosen[rng.permutation(len(chosen))[:runs_max]] = True
    some = corpus.where(chosen)
    batch_of_all = [
        (batch["tokens"].copy(), batch["run"].astype(np.int64))
        for batch in some.capped(per_run).batches(shuffle=False, seed=seed, fields=("tokens", "run"))
    ]
    tokens, runs = map(np.concatenate, zip(*batch_of_all, strict=True))
    return Rows(tokens, runs, some.run_labels([threshold])[:, 0])


def control(rows: Rows, split: str, outcomes: str, *, trees: int, seed: int) -> Control:
    """Learn on one side, examine on the other."""
    from sklearn.ensemble import ExtraTreesClassifier

    rng = np.random.default_rng(seed)
    reached = rows.reached if outcomes == "true" else rng.permutation(rows.reached)
    if split == "run":
        test = (rng.random(len(reached)) < TEST_SHARE)[rows.runs]
    else:
        test = rng.random(len(rows.runs)) < TEST_SHARE
    labels = reached[rows.runs]
    # Leaves of one row: trees that can remember, as large networks can.
    model = ExtraTreesClassifier(trees, n_jobs=-1, random_state=seed)
    model.fit(rows.tokens[~test], labels[~test])
    said = model.predict_proba(rows.tokens[test])[:, 1]
    _, owners = np.unique(rows.runs[test], return_inverse=True)
    drawn = RunBootstrap(int(owners.max()) + 1, 1000, seed)
    found = estimate(ranking(said, labels[test], owners, drawn.weights).auroc)
    if found is None:
        raise SystemExit("all examined games ended alike: choose another --threshold, or more games")
    return Control(split, outcomes, found)


def controls(rows: Rows, *, trees: int = 100, seed: int = 0) -> list[Control]:
    """All four."""
    return [
        control(rows, split, outcomes, trees=trees, seed=seed)
        for outcomes in ("true", "shuffled")
        for split in ("run", "row")
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description="Split by game and by row, with true and shuffled outcomes.")
    parser.add_argument("root", type=Path)
    parser.add_argument("--threshold", type=int, default=8192)
    parser.add_argument("--per-run", type=int, default=512)
    parser.add_argument("--runs-max", type=int, default=100)
    parser.add_argument("--trees", type=int, default=50)
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()
    rows = read(args.root, args.threshold, per_run=args.per_run, runs_max=args.runs_max, seed=args.seed)
    print(
        f"{len(rows.runs):,} rows of {len(rows.reached):,} games, "
        f"{rows.reached.sum():,} of which reached {args.threshold}\n"
    )
    print("| outcomes | split by | AUROC | 95% by run |\n|---|---|---|---|")
    for one in controls(rows, trees=args.trees, seed=args.seed):
        auroc = one.auroc
        print(f"| {one.outcomes} | {one.split} | {auroc.value:.3f} | {auroc.low:.3f} to {auroc.high:.3f} |")


if __name__ == "__main__":
    main()
