"""Rollouts beside games played by the reference's rules and generator."""

from __future__ import annotations

import random
import threading
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference

from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players import registry
from tape2048_recorder.players.rollouts import EXPONENTS, play_rollouts, rollout_seeds

SEED = 7


def positions(count: int) -> npt.NDArray[np.uint64]:
    """Boards of many kinds: nearly lost ones, early ones, ones with large tiles, and one without a move."""
    draw = random.Random(3)
    cells = [
        draw.choices(range(12), weights=[draw.choice([1, 6])] + [1] * 11, k=16) for _ in range(count - 1)
    ]
    return np.array([reference.pack(one) for one in [*cells, [1, 2, 1, 2, 2, 1, 2, 1] * 2]], np.uint64)


def played(boards: npt.NDArray[np.uint64], rollouts: int, **how: Any) -> npt.NDArray[np.uint16]:
    how = {"seed": SEED, "threads": 1, **how}
    return play_rollouts(registry.make_player("random", {}), boards, rollouts=rollouts, **how)


def test_a_rollout_is_the_game_of_its_seed_from_its_board_on() -> None:
    boards, rollouts = positions(12), 5
    seeds = rollout_seeds(SEED, len(boards), rollouts)
    expected = np.zeros((len(boards), EXPONENTS), np.uint16)
    for at, board in enumerate(boards.tolist()):
        for seed in seeds[at].tolist():
            cells, generator = reference.unpack(board), reference.Generator.of_game(seed)
            while (move := reference.random_move(cells, generator)) is not None:
                cells, _ = reference.spawn(reference.slide(cells, move)[0], generator)
            expected[at, : max(cells) + 1] += 1
    found = played(boards, rollouts)
    assert found.dtype == np.uint16
    assert found.tolist() == expected.tolist()
    assert found[-1].tolist() == [5, 5, 5] + [0] * 13


def test_threads_and_pieces_do_not_count() -> None:
    boards = positions(40)
    whole = played(boards, 9)
    assert (played(boards, 9, threads=3) == whole).all()
    pieces = [played(boards[begin : begin + 16], 9, first=begin, threads=2) for begin in (0, 16, 32)]
    assert (np.concatenate(pieces) == whole).all()
    assert (played(boards, 9, seed=8) != whole).any()
    assert (played(boards, 9, first=1) != whole).any()


def test_a_player_with_a_cache_gives_each_thread_its_own() -> None:
    player = registry.make_player("expectimax", {"depth": 1})
    one, three = (
        play_rollouts(player, positions(4), rollouts=2, seed=1, threads=threads) for threads in (1, 3)
    )
    assert (one == three).all()


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
        played(positions(2), **{"rollouts": 1, **wrong})


def test_progress_counts_games() -> None:
    told: list[tuple[int, int]] = []
    played(positions(5), 6, threads=2, progress=lambda *now: told.append(now))
    assert told[-1] == (30, 30)


def test_an_interrupt_ends_the_threads() -> None:
    def interrupt(_done: int, _games: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    with pytest.raises(KeyboardInterrupt):
        played(positions(1_000), 10_000, threads=2, progress=interrupt)
    assert threading.active_count() == before
