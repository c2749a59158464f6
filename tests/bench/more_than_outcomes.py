"""R2 of the network in examples/train_on_columns.py against rollouts, with and without its columns.

    python -m tests.bench.more_than_outcomes selfplay     # sessions with the columns of `tape2048 annotate`

Half of the games are for testing. Each seed draws training games from the other half, and first parameters.
Differences are between networks of the same seed; intervals are 95% by Student's t over the seeds.
"""

import argparse
import importlib.util
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.critic import evaluate
from tape2048_tools.critic_report import rollouts_of

EXAMPLE = Path(__file__).parents[2] / "examples/train_on_columns.py"
#: Weights of the move values and of mistakes.
KINDS = {
    "outcomes": (0.0, 0.0),
    "outcomes, values": (1.0, 0.0),
    "outcomes, values, mistakes": (1.0, 4.0),
}


def interval(values: NDArray[np.float64]) -> str:
    """Return the mean of ``f64[seeds]`` and its interval."""
    from scipy.stats import t

    half = t.ppf(0.975, len(values) - 1) * values.std(ddof=1) / np.sqrt(len(values))
    return f"{values.mean():.3f} ± {half:.3f}"


def main() -> None:
    """Train, evaluate and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("sessions")
    parser.add_argument("--games", type=int, default=100, help="training games of each seed (%(default)s)")
    parser.add_argument("--seeds", type=int, default=5, help="networks of each kind (%(default)s)")
    parser.add_argument("--steps", type=int, default=2500, help="batches of a training (%(default)s)")
    args = parser.parse_args()
    spec = importlib.util.spec_from_file_location("train_on_columns", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    example: Any = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    parts = Corpus.open(args.sessions).split(train=0.5, test=0.5)
    oracle = rollouts_of(parts["test"], 32, 0)
    found = np.empty((len(KINDS), args.seeds, len(example.TILES)))
    for seed in range(args.seeds):
        chosen = np.zeros(len(parts["train"].runs), np.bool_)
        chosen[np.random.default_rng(seed).permutation(len(chosen))[: args.games]] = True
        for number, (values, mistakes) in enumerate(KINDS.values()):
            net = example.train(
                parts["train"].where(chosen), values=values, mistakes=mistakes, steps=args.steps, seed=seed
            )
            result = evaluate(
                example.predictor(net), parts["test"], thresholds=example.TILES, per_run=64, replicates=0,
                oracle=oracle, positions=2000,
            )  # fmt: skip
            for column, tile in enumerate(example.TILES):
                scores = result.cell("all", tile).scores["critic"].oracle
                assert scores is not None
                assert scores.r2 is not None
                found[number, seed, column] = scores.r2.value
            print(seed, list(KINDS)[number], found[number, seed].round(4).tolist(), flush=True)
    for column, tile in enumerate(example.TILES):
        for number, name in enumerate(KINDS):
            own, gain = found[number, :, column], found[number, :, column] - found[0, :, column]
            print(f"{tile} {name}: R2 {interval(own)}" + (f", gain {interval(gain)}" if number else ""))


if __name__ == "__main__":
    main()
