"""How many games an n-tuple critic needs: the outcomes that it explains, by the games it learned from.

::

    python -m tests.bench.learning_curve DIRECTORY [--games 100 1000 ...] [--sets 2]

The directory keeps the games, which are recorded if it is empty. A critic learns with the settings of
``tape2048 critic train --kind ntuple``. Critics of a size learn from different games, at most ``--sets``
times. All critics are measured on 2,000 games that no critic learned from: the share of the variance of the
outcomes that a critic explains, 1 - Brier score / (prevalence (1 - prevalence)), and AUROC. The figures are
means over the sets. The interval adds two errors in quadrature: that of the evaluated games, by bootstrap,
and that of the sets, by Student's t. With one set, there is only the first error.
"""

import argparse
import subprocess
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.base.resources import available_cores
from tape2048.critic import Estimate, evaluate
from tape2048.critic.config import NTupleCriticConfig
from tape2048.critic.ntuple.critic import (
    GameBoards,
    learn,
    new_scratch,
    predict_all,
    read_games,
    tables_of,
    width_of,
)
from tape2048_tools.critic_report import estimate_text

PLAYER = "ntuple:weights=small,look_below=0"
TILES = (8192, 16384)
TEST_GAMES = 2000
CELLS = [(tile, stage) for tile in TILES for stage in ("all", "undecided")]
CONFIG = NTupleCriticConfig(thresholds=" ".join(map(str, TILES)))
ROUND_GAMES = 256


def learned(games: GameBoards) -> Callable[[NDArray[np.uint64]], NDArray[np.float32]]:
    """Learn from games on all cores, as a training does, and return the critic."""
    records = np.zeros((CONFIG.layout.entries, 2 * width_of(list(TILES))), np.float32)
    tables, threads = tables_of(CONFIG.layout, list(TILES), records), available_cores()
    scratches = [new_scratch(tables) for _ in range(threads)]
    with ThreadPoolExecutor(threads) as pool:
        for epoch in range(CONFIG.epochs):
            order = np.random.default_rng([1, epoch]).permutation(len(games))
            for first in range(0, len(games), ROUND_GAMES * threads):
                done = epoch + first / len(games)
                rate = CONFIG.learning_rate * (1 - done / CONFIG.epochs)
                shares = np.array_split(order[first : first + ROUND_GAMES * threads], threads)
                jobs = [
                    pool.submit(learn, tables, *games, share, CONFIG.decay, rate, scratch)
                    for share, scratch in zip(shares, scratches, strict=True)
                ]
                for job in jobs:
                    job.result()
    return lambda boards: predict_all(tables, 1.0, np.ascontiguousarray(boards), len(TILES))


def mean_of(found: list[Estimate]) -> Estimate:
    """Return the mean over the sets, with the errors of the positions and of the sets."""
    from scipy.stats import t

    values, lows, highs = np.array([(one.value, one.low, one.high) for one in found]).T
    mean, sets = values.mean(), len(values)
    spread = t.ppf(0.975, sets - 1) * values.std(ddof=1) / np.sqrt(sets) if sets > 1 else 0.0
    low, high = (np.hypot(each.mean() - mean, spread) for each in (lows, highs))
    return Estimate(float(mean), float(mean - low), float(mean + high))


def main() -> None:
    """Record, learn, evaluate, and print the table."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--games", type=int, nargs="+", default=[100, 300, 1000, 3000, 10_000])
    parser.add_argument("--sets", type=int, default=2)
    args = parser.parse_args()
    root = args.directory / "games"
    if not root.exists():
        count = TEST_GAMES + args.sets * max(args.games)
        flags = f"--max-games {count} --seed 7 --sample-rate {CONFIG.stride} --max-steps off --out {root}"
        record = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", PLAYER, *flags.split()]
        subprocess.run(record, check=True)
    recorded = int(Corpus.open(root).runs["id"].max()) + 1 - TEST_GAMES
    test = Corpus.open(root, f"id < {TEST_GAMES}")
    print("| games | sets |", " | ".join(f"{tile} {stage}: explained | AUROC" for tile, stage in CELLS), "|")
    for size in sorted(args.games):
        found: list[list[Estimate]] = []
        for first in range(TEST_GAMES, TEST_GAMES + recorded - size + 1, size)[: args.sets]:
            games = read_games(Corpus.open(root, f"id >= {first} AND id < {first + size}"), 1)
            result = evaluate(learned(games), test, thresholds=TILES, per_run=64, replicates=300)
            found.append([])
            for tile, stage in CELLS:
                cell = result.cell(stage, tile)
                scores = cell.scores["critic"]
                assert cell.prevalence is not None
                assert scores.brier is not None
                assert scores.auroc is not None
                variance = cell.prevalence * (1 - cell.prevalence)
                high, low = (1 - end / variance for end in (scores.brier.low, scores.brier.high))
                found[-1] += [Estimate(1 - scores.brier.value / variance, low, high), scores.auroc]
        cells = [estimate_text(mean_of(list(values))) for values in zip(*found, strict=True)]
        print(f"| {size:,} | {len(found)} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
