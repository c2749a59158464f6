"""What an n-tuple critic costs: boards learned from and boards judged, a second.

::

    python -m tests.bench.ntuple_critic [--games 2000] [--rounds 5]

Games of the default player, without look-ahead, are played for it and held in memory. In each round one
thread and two learn from all of them, from nothing; and one thread judges a million of their boards in random
order, and values them by the default player's network, as what a look-up costs at least.
"""

from __future__ import annotations

import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.resources import available_cores
from tape2048.critic.critic_config import NTupleCriticConfig
from tape2048.critic.ntuple.ntuple_critic import learn, new_scratch, predict_all, tables_of, width_of
from tape2048.ntuple import load_network
from tape2048_recorder.evaluation.evaluated_games import play_games
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player

from .figures import Benchmark, Figure, median_of, ratios

if TYPE_CHECKING:
    from tape2048.critic.ntuple.ntuple_critic import CriticTables, GameBoards

LEARNED_TARGET, JUDGED_TARGET = 2e6, 3e6


def _games(count: int) -> GameBoards:
    seeds = game_seeds(1, np.arange(count, dtype=np.uint64))
    player = make_player("ntuple", {"look_below": 0})
    return play_games(player, seeds, stride=NTupleCriticConfig().stride, threads=available_cores())


def _learned_per_s(games: GameBoards, threads: int) -> tuple[float, CriticTables]:
    config = NTupleCriticConfig()
    tiles = list(config.tiles)
    records = np.zeros((config.layout.entries, 2 * width_of(tiles)), np.float32)
    tables = tables_of(config.layout, tiles, records)
    shares = np.array_split(np.arange(len(games)), threads)
    scratches = [new_scratch(tables) for _ in shares]
    learn(tables, *games, shares[0][:0], config.decay, config.learning_rate, scratches[0])  # compiles

    def one(share: np.ndarray, scratch: object) -> int:
        return int(learn(tables, *games, share, config.decay, config.learning_rate, scratch))

    begin = time.perf_counter()
    with ThreadPoolExecutor(threads) as pool:
        rows = sum(pool.map(one, shares, scratches))
    return rows / (time.perf_counter() - begin), tables


def critic_figures(_directory: Path, *, games: int, rounds: int, judged: int) -> list[Figure]:
    """Boards a second: learned from by one thread and by two; judged by one."""
    played, network = _games(games), load_network("default")
    boards = np.random.default_rng(0).choice(played.boards, judged)
    ones, twos, judgements, values = [], [], [], []
    for number in range(rounds):
        for threads in (1, 2) if number % 2 else (2, 1):
            per_s, tables = _learned_per_s(played, threads)
            (ones if threads == 1 else twos).append(per_s)
        weights = tables._replace(records=(tables.records[:, : len(tables.exponents)] * 32).astype(np.int16))
        predict_all(weights, 1 / 32, boards[:1], 3, 1)
        begin = time.perf_counter()
        predict_all(weights, 1 / 32, boards, 3, 1)
        judgements.append(judged / (time.perf_counter() - begin))
        network.values(boards[:1])
        begin = time.perf_counter()
        network.values(boards)
        values.append(judged / (time.perf_counter() - begin))
    group = f"{len(played.boards):,} boards of {games:,} games, three tiles"
    return [
        median_of(ones, group=group, name="learned, one thread", unit="boards/s"),
        median_of(twos, group=group, name="learned, two threads", unit="boards/s", target=LEARNED_TARGET),
        median_of(ratios(twos, ones), group=group, name="two threads, of one", unit="ratio"),
        median_of(judgements, group=group, name="judged, one thread", unit="boards/s", target=JUDGED_TARGET),
        median_of(
            ratios(judgements, values), group=group, name="judged, of a network's values", unit="ratio"
        ),
    ]


BENCHMARK = Benchmark(
    critic_figures,
    sizes={"games": 2000, "judged": 1_000_000, "rounds": 5},
    smallest={"games": 4, "judged": 1000, "rounds": 1},
)

if __name__ == "__main__":
    BENCHMARK.main("ntuple_critic", __doc__)
