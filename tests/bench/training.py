"""What a second thread brings a training: moves a second, and what a move teaches.

::

    python -m tests.bench.training [--moves 150_000_000] [--rounds 4] [--games 1000] [--tuples "01234 ..."]

A round trains the default network's tuples, or others, from nothing, on as many moves with one thread and
with two, from one seed, and has both networks play the same games without look-ahead. Networks of different
seeds differ by more than the interval of their means says, and two threads make another network each time, so
it is the spread over rounds that tells whether one is better.
"""

import time
from pathlib import Path
from typing import NamedTuple

from tape2048.base.resources import available_cores
from tape2048_recorder.evaluation.paired_games import play
from tape2048_recorder.ntuple_training.trainer import Trainer
from tape2048_recorder.ntuple_training.training_config import TrainingConfig
from tape2048_recorder.players.ntuple import of_network

from .figures import Benchmark, Figure, median_of

RATE_TARGET = 1.5e6
SPEED_UP_TARGET = 1.7

TUPLES = TrainingConfig().tuples

#: Shares of the moves: before the stages part, and while the learning rate falls.
_SPLIT, _ANNEAL = 1 / 8, 1 / 4


class Trained(NamedTuple):
    """What came of a training."""

    moves_per_s: float
    mean_score: float


def config_of(moves: int, seed: int, threads: int, **network: str) -> TrainingConfig:
    """The default network's training in little."""
    return TrainingConfig(
        moves=moves, split_moves=int(moves * _SPLIT), anneal_moves=int(moves * _ANNEAL), seed=seed,
        threads=threads, **network,
    )  # fmt: skip


def trained(config: TrainingConfig, games: int) -> Trained:
    """Train, and play without look-ahead."""
    trainer = Trainer(config)
    begin = time.monotonic()
    trainer.learn(config.moves)
    moves_per_s = trainer.moves / (time.monotonic() - begin)
    found = play(of_network(trainer.network()), games=games, seed=1, threads=available_cores()).strength()
    return Trained(moves_per_s, found.mean_score)


def training_figures(
    _directory: Path, *, moves: int, games: int, rounds: int, **network: str
) -> list[Figure]:
    """Speed of one thread; of two, what they bring in speed and in strength for as many moves."""
    trained(config_of(min(moves, 10_000), 0, 2, **network), 2)  # compiled before the clock starts
    ones, twos = [], []
    for seed in range(1, rounds + 1):
        order = (1, 2) if seed % 2 else (2, 1)
        found = {threads: trained(config_of(moves, seed, threads, **network), games) for threads in order}
        ones.append(found[1])
        twos.append(found[2])
    group = f"{moves:,} moves of {network.get('tuples', TUPLES)}"
    both = list(zip(ones, twos, strict=True))
    return [
        median_of(
            [one.moves_per_s for one in ones],
            group=group, name="one thread", unit="moves/s", target=RATE_TARGET,
        ),
        median_of(
            [two.moves_per_s / one.moves_per_s for one, two in both],
            group=group, name="two threads, of one", unit="ratio", target=SPEED_UP_TARGET,
        ),
        median_of([one.mean_score for one in ones], group=group, name="mean score, one", unit="points"),
        median_of([two.mean_score for two in twos], group=group, name="mean score, two", unit="points"),
        median_of(
            [two.mean_score / one.mean_score for one, two in both],
            group=group, name="mean score, two threads of one", unit="ratio",
        ),
    ]  # fmt: skip


BENCHMARK = Benchmark(
    training_figures,
    sizes={"moves": 150_000_000, "rounds": 4, "games": 1000, "tuples": TUPLES},
    smallest={"moves": 20_000, "rounds": 1, "games": 2, "stages": "128"},
)

if __name__ == "__main__":
    BENCHMARK.main("training", __doc__)
