"""How many games a critic needs: R2 and log loss against rollouts, by the number of games it learned from.

::

    python -m tests.bench.learning_curve DIRECTORY [--games 100 1000 ...] [--sets 3] [--kinds ntuple]

The directory keeps the games, the critics and the rollouts: what is there is not made again. All critics of
a size learn from different games, as many sets as there are, at most ``--sets``. All critics are measured on
the same positions of 2,000 games that no critic learned from. R2 and log loss are means over the sets. Their
intervals are by game for the positions, and for the sets by Student's t; both are added as errors are. With
one set there is only the first.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np

from tape2048 import Corpus
from tape2048.critic import Estimate, NTupleCritic, evaluate
from tape2048_tools.critic_report import estimate_text, rollouts_of

PLAYER = "ntuple:weights=small,look_below=0"
TILES = (8192, 16384)
TEST_GAMES = 2000
VAL_GAMES = 1000  # at most, of a tenth: a transformer takes minutes to judge more
POSITIONS, ROLLOUTS = 1000, 16

#: Rows are recorded at the stride of n-tuple critics. The transformer is small and stops early, for a CPU.
SAMPLE_RATE = 16
SETTINGS = {
    "ntuple": ["--kind", "ntuple", "--stride", "1"],
    "transformer": [
        *("--tower-dim", "32", "--tower-layers", "1", "--tower-heads", "2", "--tower-ffn", "64"),
        *("--learning-rate", "0.003", "--per-run", "64", "--epochs", "10000", "--eval-steps", "250"),
        *("--steps-max", "3000", "--device", "cpu", "--threads", "1", "--test-share", "0"),
    ],
}  # fmt: skip


def command(*arguments: object) -> None:
    """Run a command of tape2048."""
    subprocess.run([sys.executable, "-m", "tape2048_tools.cli", *map(str, arguments)], check=True)


def train(directory: Path, kind: str, games: int, first: int) -> Path:
    """Train a critic on some games, or continue its training; return the directory of the critic."""
    out = directory / f"{kind}-{games}-{first}"
    if not (done := out / "done").exists():
        where = f"id >= {first} AND id < {first + games}"
        val = min(0.1, VAL_GAMES / games)
        command(
            *("critic", "train", directory / "games", "--where", where, "--out", out, "--val-share", val),
            *("--test-share", 0, "--thresholds", ",".join(map(str, TILES)), *SETTINGS[kind]),
        )
        done.touch()
    return out


def scores_of(directory: Path, critic: Path) -> dict[str, Any]:
    """Measure a critic on the games that none learned from; the result is kept beside it."""
    path = critic / "scores.json"
    if not path.exists():
        from tape2048.torch import TorchCritic

        found = critic / "best.critic"
        loaded = NTupleCritic.load(found) if found.exists() else TorchCritic.load(critic / "best")
        corpus = Corpus.open(directory / "games", f"id < {TEST_GAMES}")
        result = evaluate(
            loaded, corpus, per_run=64, oracle=rollouts_of(corpus, ROLLOUTS, 0), positions=POSITIONS
        )
        scores = {
            f"{tile} {stage}": result.cell(stage, tile).scores["critic"].oracle
            for tile in TILES
            for stage in ("all", "undecided")
        }
        document = {
            name: {metric: [one.value, one.low, one.high] for metric in ("r2", "log_loss")
                   if (one := getattr(oracle, metric)) is not None}
            for name, oracle in scores.items() if oracle is not None
        }  # fmt: skip
        path.write_text(json.dumps(document))
    found_scores: dict[str, Any] = json.loads(path.read_text())
    return found_scores


def mean_of(found: list[list[float]]) -> Estimate:
    """Return the mean over the sets: the errors of the positions, which the sets share, and of the sets."""
    from scipy.stats import t

    values, lows, highs = np.array(found).T
    mean, sets = values.mean(), len(values)
    spread = t.ppf(0.975, sets - 1) * values.std(ddof=1) / np.sqrt(sets) if sets > 1 else 0.0
    low, high = (np.hypot(each.mean() - mean, spread) for each in (lows, highs))
    return Estimate(float(mean), float(mean - low), float(mean + high))


def main() -> None:
    """Record, train, evaluate, and print the table."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("directory", type=Path)
    parser.add_argument(
        "--games", type=int, nargs="+", default=[100, 300, 1000, 3000, 10_000, 30_000, 100_000]
    )
    parser.add_argument("--sets", type=int, default=3)
    parser.add_argument("--kinds", nargs="+", choices=SETTINGS, default=list(SETTINGS))
    parser.add_argument("--recorded", type=int, default=100_000, help="games to learn from (%(default)s)")
    args = parser.parse_args()
    games = args.directory / "games"
    if not games.exists():
        command(
            *("record", "--player", PLAYER, "--max-games", TEST_GAMES + args.recorded, "--seed", 7),
            *("--sample-rate", SAMPLE_RATE, "--max-steps", "off", "--out", games),
        )
    print(
        "| critic | games | sets |",
        " | ".join(f"{tile} {stage}: R2, log loss" for tile in TILES for stage in ("all", "undecided")),
        "|",
    )
    for kind in args.kinds:
        for size in sorted(args.games):
            firsts = range(TEST_GAMES, TEST_GAMES + args.recorded - size + 1, size)[: args.sets]
            critics = [train(args.directory, kind, size, first) for first in firsts]
            found = [scores_of(args.directory, critic) for critic in critics]
            cells = [
                ", ".join(
                    estimate_text(mean_of([one[name][metric] for one in found]))
                    for metric in ("r2", "log_loss")
                    if all(metric in one[name] for one in found)
                )
                for name in found[0]
            ]
            print(f"| {kind} | {size:,} | {len(found)} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
