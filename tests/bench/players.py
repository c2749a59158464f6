"""Our n-tuple player and trainer, beside a plain version of them (``tests/bench/sketch.py``).

::

    python -m tests.bench.players [--rounds 9]

Each round plays, or learns, with both in turns, on one core, games that were not played before. The sketch
has the first stage of our network, so it plays nearly as well up to 8192. With look-ahead it looks at all
moves of boards with at most two empty cells, or of all; ours looks where it does by default, or always.
"""

from collections.abc import Callable

import numpy as np

from tape2048.ntuple.network import load_network
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ntuple_training.trainer import Trainer

from . import sketch
from .figures import ROUNDS_MIN, Figure, alternate, cpu_rate, machine, median_of, options, report
from .games import Games
from .training import config_of

#: Ours, the sketch's ``look_below``, games of each a round, and what ours has to reach of the sketch.
PLAYERS = (
    ("ntuple:look_below=0", 0, 40, 0.88),
    ("ntuple", 3, 6, 0.92),
    ("ntuple:look_below=16,look_margin=0", 16, 1, 0.95),
)
TRAINING_TARGET = 1.0


def _compared(
    ours: Callable[[], int], theirs: Callable[[], int], name: str, rounds: int, target: float
) -> list[Figure]:
    one, other, ratio = alternate(lambda: cpu_rate(ours), lambda: cpu_rate(theirs), rounds)
    group = "four 5-tuples, one core"
    return [
        median_of(ratio, group=group, name=f"{name}, of the sketch", unit="ratio", target=target),
        median_of(one, group=group, name=name, unit="moves/s"),
        median_of(other, group=group, name=f"{name}: the sketch", unit="moves/s"),
    ]


def playing(rounds: int, *, games: int | None = None) -> list[Figure]:
    """Moves per second of CPU, with both players; ``games`` a round in place of the usual ones."""
    table = sketch.table_of(load_network("default"))
    found: list[Figure] = []
    for name, look_below, count, target in PLAYERS:
        ours = Games(name, games or count)
        theirs = Games(name, games or count)

        def sketched(theirs: Games = theirs, look_below: int = look_below) -> int:
            seeds = game_seeds(2, theirs.next_ids(theirs.count))
            return int(sketch.play(table, seeds, np.uint64(look_below)))

        ours.play_unrecorded()
        sketched()
        found += _compared(ours.play_unrecorded, sketched, name, rounds, target)
    return found


def learning(rounds: int, *, moves: int, **network: str) -> list[Figure]:
    """Moves per second of CPU that both trainers learn from, one thread each, after a first round unseen."""
    trainer = Trainer(config_of((rounds + 1) * 2 * moves, 1, 1, **network))
    learner = sketch.Learner.empty(1)

    def ours() -> int:
        before = trainer.moves
        trainer.learn(moves)
        return trainer.moves - before

    def theirs() -> int:
        return int(sketch.learn(learner, moves))

    ours()
    theirs()
    return _compared(ours, theirs, "training", rounds, TRAINING_TARGET)


def main() -> None:
    """Measure, print, write the table."""
    args = options(__doc__, rounds=9)
    before = machine()
    rounds = max(args.rounds, ROUNDS_MIN)
    report("players", playing(rounds) + learning(rounds, moves=5_000_000), before)


if __name__ == "__main__":
    main()
