"""Unrecorded games: for a critic, and as rollouts beside reference games."""

import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference

from tape2048 import Corpus
from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games
from tape2048.critic.ntuple.ntuple_critic import GameBoards, read_games
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.loader.row_view import tables_of
from tape2048_recorder.evaluation import evaluated_games as playing
from tape2048_recorder.evaluation.evaluated_games import (
    play_games,
    play_rollouts,
    played_games,
    rollout_seeds,
)
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player

SEED, RECORDED = 11, 60


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A session of every fourth row of games, by several workers."""
    root = tmp_path_factory.mktemp("recorded")
    flags = f"--player greedy --max-games {RECORDED} --seed {SEED} --sample-rate 4 --out {root}"
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", *flags.split()]
    subprocess.run(command, check=True, capture_output=True, timeout=120)
    return root


def seeds(count: int) -> Any:
    return game_seeds(SEED, np.arange(count, dtype=np.uint64))


def played(count: int, **how: Any) -> GameBoards:
    return play_games(make_player("greedy", {}), seeds(count), **{"stride": 4, "threads": 2, **how})


def same(found: GameBoards, expected: GameBoards) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(one.dtype == other.dtype and np.array_equal(one, other) for one, other in pairs)


def test_games_are_those_that_a_recorder_records(root: Path) -> None:
    corpus = Corpus.open(root)
    assert len(corpus.runs) == RECORDED
    recorded = read_games(corpus, 1)
    found = played(RECORDED)
    for at, run in enumerate(corpus.runs["run_id"].tolist()):
        first, last = recorded.starts[at : at + 2]
        mine = slice(*found.starts[run : run + 2])
        assert (found.boards[mine] == recorded.boards[first:last]).all()
        assert found.highest[run] == recorded.highest[at]


def test_threads_and_buffers_do_not_count(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = played(50, threads=1)
    assert same(played(50, threads=3), expected)
    monkeypatch.setattr(playing, "_ROWS", 16)
    assert same(played(50), expected)
    every = played(50, stride=1)
    for game in range(50):
        mine, few = (one.boards[slice(*one.starts[game : game + 2])] for one in (every, expected))
        assert (mine[::4] == few).all()


def test_played_games_are_the_recorded_ones(root: Path) -> None:
    """The same parts of the same player, and in each the same games."""
    settings = NTupleCriticConfig(seed=SEED, stride=4, data=str(root), threads=2)
    found = played_games(settings, "greedy", {}, RECORDED)
    whole = Corpus.open(root)
    assert found.players == tables_of(whole).runs.players()
    corpus = corpus_games(NTupleCriticConfig(stride=1, data=str(root)))
    for one, other in ((next(found.chunks(0)), next(corpus.chunks(0))), (found.val, corpus.val)):
        assert len(one) == len(other) > 0
        assert sorted(one.boards.tolist()) == sorted(other.boards.tolist())
    assert found.train_games == corpus.train_games


def test_players_that_cannot_play_are_refused(tmp_path: Path) -> None:
    settings = NTupleCriticConfig()
    with pytest.raises(ConfigError, match="gredy"):
        played_games(settings, "gredy", {}, 10)
    with pytest.raises(ConfigError, match="depht"):
        played_games(settings, "expectimax", {"depht": 1}, 10)
    with pytest.raises(ConfigError):
        played_games(settings, "python", {"factory": "no.such:module"}, 10)
    with pytest.raises(EmptyCorpusError, match="games to learn from"):
        played_games(settings, "greedy", {}, 1)


def test_games_that_do_not_fit_into_memory_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(ConfigError, match=r"at least 128,000\.0 GB for 1,000,000,000,000 games") as caught:
        played_games(NTupleCriticConfig(), "greedy", {}, 10**12)
    assert "--stride" in (caught.value.hint or "")
    monkeypatch.setattr(playing, "ram_available", lambda: 20_000)
    with pytest.raises(ConfigError, match="for 500 games"):
        played(500)
    assert len(played(20)) == 20


def positions(count: int) -> npt.NDArray[np.uint64]:
    """Boards of many kinds: nearly lost ones, early ones, ones with large tiles, and one without a move."""
    draw = random.Random(3)
    cells = [
        draw.choices(range(12), weights=[draw.choice([1, 6])] + [1] * 11, k=16) for _ in range(count - 1)
    ]
    return np.array([reference.pack(one) for one in [*cells, [1, 2, 1, 2, 2, 1, 2, 1] * 2]], np.uint64)


def rolled(boards: npt.NDArray[np.uint64], rollouts: int, **how: Any) -> npt.NDArray[np.uint16]:
    how = {"seed": SEED, "threads": 1, **how}
    return play_rollouts(make_player("random", {}), boards, rollouts=rollouts, **how)


def test_a_rollout_is_the_game_of_its_seed() -> None:
    boards, rollouts = positions(12), 5
    seeds = rollout_seeds(SEED, len(boards), rollouts)
    expected = np.zeros((len(boards), 16), np.uint16)
    for at, board in enumerate(boards.tolist()):
        for seed in seeds[at].tolist():
            cells, generator = reference.unpack(board), reference.Generator.of_game(seed)
            while (move := reference.random_move(cells, generator)) is not None:
                cells, _ = reference.spawn(reference.slide(cells, move)[0], generator)
            expected[at, : max(cells) + 1] += 1
    found = rolled(boards, rollouts)
    assert found.dtype == np.uint16
    assert found.tolist() == expected.tolist()
    assert found[-1].tolist() == [5, 5, 5] + [0] * 13


def test_no_rollout_is_a_recorded_game() -> None:
    """Not even under the recorder's seed: their ids differ, and ids make seeds one to one."""
    seeds = np.concatenate(
        [rollout_seeds(SEED, 200, 48).ravel(), rollout_seeds(SEED, 10, 48, first=2**40).ravel()]
    )
    recorded = game_seeds(SEED, np.arange(100_000, dtype=np.uint64))
    assert len(np.unique(np.concatenate([seeds, recorded]))) == len(seeds) + len(recorded)
    # Nor does one draw what a game draws: neither its first state nor its increment is that of any game.
    generators = [reference.Generator.of_game(seed) for seed in seeds[:2_000].tolist()]
    games = [reference.Generator.of_game(seed) for seed in recorded[:2_000].tolist()]
    assert {one.gamma for one in generators}.isdisjoint(one.gamma for one in games)


@pytest.mark.parametrize("wrong", [{"rollouts": 0}, {"rollouts": 65_536}, {"threads": 0}, {"first": -1}])
def test_numbers_out_of_range_are_refused(wrong: dict[str, int]) -> None:
    with pytest.raises(ValueError, match=f"{next(iter(wrong))}={next(iter(wrong.values()))}"):
        rolled(positions(2), **{"rollouts": 1, **wrong})
