"""Our n-tuple player and trainer, beside a plain version of them (``tests/bench/sketch.py``).

::

    python -m tests.bench.players [--rounds 9]

Each round plays, or learns, with both in turns, on one core, games that were not played before. The sketch
has the first stage of our network, so it plays nearly as well up to 8192. With look-ahead it looks at all
moves of boards with at most two empty cells, or of all; ours looks where it does by default, or always.
"""

from collections.abc import Callable
from pathlib import Path

import numpy as np

from tape2048.ntuple.network import load_network
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.trainer import Trainer
from tape2048_recorder.ntuple_training.training_config import TrainingConfig

from . import sketch
from .figures import Benchmark, Figure, alternate, cpu_rate, median_of
from .games import Games

#: Ours, the sketch's ``look_below``, and games of each a round.
PLAYERS = (
    ("ntuple:look=0", 0, 40),
    ("ntuple", 3, 6),
    ("ntuple:look=16,look_margin=0", 16, 1),
)


def _compared(ours: Callable[[], int], theirs: Callable[[], int], name: str, rounds: int) -> list[Figure]:
    one, other, ratio = alternate(lambda: cpu_rate(ours), lambda: cpu_rate(theirs), rounds)
    group = "four 5-tuples, one core"
    return [
        median_of(ratio, group=group, name=f"{name}, of the sketch", unit="ratio"),
        median_of(one, group=group, name=name, unit="moves/s"),
        median_of(other, group=group, name=f"{name}: the sketch", unit="moves/s"),
    ]


def playing(rounds: int, *, games: int | None = None) -> list[Figure]:
    """Moves per second of CPU, with both players; ``games`` a round in place of the usual ones."""
    table = sketch.table_of(load_network("default"))
    found: list[Figure] = []
    for name, look_below, count in PLAYERS:
        ours = Games(name, games or count)
        theirs = Games(name, games or count)

        def sketched(theirs: Games = theirs, look_below: int = look_below) -> int:
            seeds = game_seeds(2, theirs.next_ids(theirs.count))
            return int(sketch.play(table, seeds, np.uint64(look_below)))

        ours.play_unrecorded()
        sketched()
        found += _compared(ours.play_unrecorded, sketched, name, rounds)
    return found


def learning(rounds: int, *, moves: int, **network: str) -> list[Figure]:
    """Moves per second of CPU that both trainers learn from, one thread each, after a first round unseen."""
    most = (rounds + 1) * 2 * moves
    config = TrainingConfig(
        moves=most, split_moves=most // 8, anneal_moves=most // 4, seed=1, threads=1, **network
    )
    trainer = Trainer(config)
    learner = sketch.Learner.empty(1)

    def ours() -> int:
        before = trainer.moves
        trainer.learn(moves)
        return trainer.moves - before

    def theirs() -> int:
        return int(sketch.learn(learner, moves))

    ours()
    theirs()
    return _compared(ours, theirs, "training", rounds)


def measure(_directory: Path, *, rounds: int, games: int, moves: int, **network: str) -> list[Figure]:
    """Both; ``games`` a round, or 0 for the usual ones."""
    return playing(rounds, games=games or None) + learning(rounds, moves=moves, **network)


BENCHMARK = Benchmark(
    measure,
    sizes={"rounds": 9, "games": 0, "moves": 5_000_000},
    smallest={"rounds": 1, "games": 1, "moves": 10_000, "stages": "128"},
)

if __name__ == "__main__":
    BENCHMARK.main("players", __doc__)
