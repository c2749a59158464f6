"""How many games a critic needs: R2 and log loss against rollouts, by the games that it learned from.

::

    python -m tests.bench.learning_curve DIRECTORY [--kinds ntuple transformer] [--games 100 1000 ...]

The directory keeps games and critics: what exists is not made again. Critics train as with ``tape2048 critic
train``, on the games of one player, and validate on a tenth of them. Critics of a size learn from different
games, at most ``--sets`` times. All are measured on the same positions of 2,000 games that no critic learned
from, and from which the player plays on 24 times. The figures are means over the sets. The interval adds two
errors in quadrature: that of the evaluated games, by bootstrap, and that of the sets, by Student's t. With
one set, there is only the first error.
"""

import argparse
import subprocess
import sys
from pathlib import Path

import numpy as np

from tape2048 import Corpus
from tape2048.critic import CriticConfig, Estimate, evaluate
from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games, train_ntuple_critic
from tape2048.torch.training import train_critic
from tape2048_tools.critic_report import estimate_text, rollouts_of
from tape2048_tools.options.critic_options import open_critic

PLAYER = "ntuple:weights=small,look_below=0"
TILES = (8192, 16384)
TEST_GAMES = 2000
POSITIONS, ROLLOUTS = 1500, 24
CELLS = [(tile, stage) for tile in TILES for stage in ("all", "undecided")]
STRIDE = NTupleCriticConfig().stride


def trained(kind: str, root: Path, where: str, out: Path, steps: int) -> Path:
    """Train a critic of a kind on the games that a filter selects, if ``out`` has none; return its path."""
    common = {"data": str(root), "where": where, "out": str(out), "test_share": 0.0}
    tiles = " ".join(map(str, TILES))
    if kind == "ntuple":
        config = NTupleCriticConfig(stride=1, thresholds=tiles, **common)  # type: ignore[arg-type]
        best = train_ntuple_critic(config, corpus_games(config), out).best
    else:
        best = train_critic(
            CriticConfig(
                tower_dim=64, tower_ffn=128, learning_rate=0.003, per_run=128, steps_max=steps, epochs=10**6,
                thresholds=tiles, **common,  # type: ignore[arg-type]
            )
        ).best  # fmt: skip
    assert best is not None
    return best


def mean_of(found: list[Estimate], most: float) -> Estimate:
    """Return the mean over the sets, with the errors of the positions and of the sets."""
    from scipy.stats import t

    values, lows, highs = np.array([(one.value, one.low, one.high) for one in found]).T
    mean, sets = values.mean(), len(values)
    spread = t.ppf(0.975, sets - 1) * values.std(ddof=1) / np.sqrt(sets) if sets > 1 else 0.0
    low, high = (np.hypot(each.mean() - mean, spread) for each in (lows, highs))
    return Estimate(float(mean), float(mean - low), min(float(mean + high), most))


def main() -> None:
    """Record, learn, evaluate, and print the table."""
    how = argparse.RawDescriptionHelpFormatter
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=how)
    parser.add_argument("directory", type=Path)
    parser.add_argument("--kinds", nargs="+", default=["ntuple", "transformer"])
    parser.add_argument("--games", type=int, nargs="+", default=[100, 1000, 10_000])
    parser.add_argument("--sets", type=int, default=5)
    parser.add_argument("--steps", type=int, default=1500, help="of a transformer (default: 1500)")
    args = parser.parse_args()
    root = args.directory / "games"
    if not root.exists():
        flags = f"--max-games {TEST_GAMES + max(args.games)} --seed 7 --sample-rate {STRIDE} --max-steps off"
        record = [sys.executable, "-m", "tape2048_tools.cli", "record", "--player", PLAYER, *flags.split()]
        subprocess.run([*record, "--out", str(root)], check=True)
    recorded = int(Corpus.open(root).runs["id"].max()) + 1
    test = Corpus.open(root, f"id < {TEST_GAMES}")
    oracle = rollouts_of(test, ROLLOUTS, 0)
    print(
        "| kind | games | sets |", " | ".join(f"{tile} {stage}: R2 | log loss" for tile, stage in CELLS), "|"
    )
    for kind in args.kinds:
        for size in sorted(args.games):
            found: list[list[Estimate]] = []
            for first in range(TEST_GAMES, recorded - size + 1, size)[: args.sets]:
                where = f"id >= {first} AND id < {first + size}"
                out = args.directory / f"{kind}-{size}-{first}"
                critic = open_critic(trained(kind, root, where, out, args.steps))
                result = evaluate(
                    critic, test, per_run=64, replicates=100, oracle=oracle, positions=POSITIONS
                )
                scores = [result.cell(stage, tile).scores["critic"].oracle for tile, stage in CELLS]
                assert all(one is not None and one.r2 is not None for one in scores)
                found.append([each for one in scores for each in (one.r2, one.log_loss)])  # type: ignore[union-attr, misc]
            ends = [1.0, np.inf] * len(CELLS)  # R2 ends at 1
            values = zip(zip(*found, strict=True), ends, strict=True)
            cells = [estimate_text(mean_of(list(each), end)) for each, end in values]
            print(f"| {kind} | {size:,} | {len(found)} |", " | ".join(cells), "|", flush=True)


if __name__ == "__main__":
    main()
