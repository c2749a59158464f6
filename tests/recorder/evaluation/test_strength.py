"""Evaluation: the same results of a seed on any number of threads."""

from __future__ import annotations

import math
import threading
import time
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests import reference
from tests.recorder.choosing import outcomes

from tape2048.session.run_table import REACH_TILES
from tape2048_recorder.evaluation import strength
from tape2048_recorder.evaluation.strength import Evaluation, evaluate, match
from tape2048_recorder.game import rng
from tape2048_recorder.game.loop import Buffer, play_into
from tape2048_recorder.players import registry


def facts(result: Evaluation) -> tuple[Any, ...]:
    """The results that do not depend on the clock."""
    return (
        result.games,
        result.moves,
        result.mean_score,
        result.mean_score_error,
        result.score_max,
        result.reach,
    )


def of_random(games: int, *, seed: int = 5, threads: int = 1) -> Evaluation:
    return evaluate(registry.make_player("random", {}), games=games, seed=seed, threads=threads)


def test_it_sums_up_the_games_of_the_seed() -> None:
    result = of_random(101)
    seeds = rng.game_seeds(5, np.arange(101, dtype=np.uint64))
    scores, _, moves = outcomes(registry.make_player("random", {}), seeds)
    assert (result.games, result.moves) == (101, moves)
    assert result.mean_score == pytest.approx(scores.mean())
    assert result.score_max == scores.max()
    low, high = stats.norm.interval(0.95, scores.mean(), stats.sem(scores))
    assert result.mean_score_error == pytest.approx((high - low) / 2, rel=1e-5)
    assert tuple(result.reach) == REACH_TILES
    assert {share.share for share in result.reach.values()} == {0.0}
    assert result.moves_per_cpu_s > 0
    assert result.moves_per_s > 0


@pytest.mark.parametrize("threads", [2, 3, 64])
def test_threads_change_nothing_but_the_speed(threads: int) -> None:
    assert facts(of_random(50, threads=threads)) == facts(of_random(50))


def test_other_seeds_are_other_games() -> None:
    assert facts(of_random(50, seed=6)) != facts(of_random(50))


def test_more_games_begin_with_the_same_ones() -> None:
    assert of_random(1).score_max <= of_random(9).score_max
    assert of_random(9).moves > of_random(8).moves > of_random(1).moves


def test_each_thread_has_its_own_cache() -> None:
    expectimax = registry.make_player("expectimax", {"depth": 1})
    results = [evaluate(expectimax, games=9, seed=2, threads=threads) for threads in (1, 3)]
    assert facts(results[0]) == facts(results[1])
    assert results[0].reach[2048].share > 0


@pytest.mark.parametrize(("games", "threads"), [(0, 1), (-1, 1), (1, 0)])
def test_no_games_and_no_threads_are_refused(games: int, threads: int) -> None:
    with pytest.raises(ValueError, match=f"games={games}, threads={threads}; expected at least 1"):
        of_random(games, threads=threads)


def test_one_game_has_no_interval() -> None:
    result = of_random(1)
    assert result.games == 1
    assert math.isnan(result.mean_score_error)


def test_reach_counts_the_highest_tiles(monkeypatch: pytest.MonkeyPatch) -> None:
    def play(_player: Any, _boards: Any, seeds: Any, scores: Any, highest: Any) -> int:
        scores[:] = 7
        highest[:] = np.where(seeds % np.uint64(2), 13, 10)
        return len(seeds)

    monkeypatch.setattr(strength, "play_unrecorded", play)
    result = of_random(200)
    odd = np.count_nonzero(rng.game_seeds(5, np.arange(200, dtype=np.uint64)) % np.uint64(2))
    shares = [result.reach[tile].share for tile in REACH_TILES]
    assert shares == [odd / 200, odd / 200, odd / 200, 0, 0]
    assert result.mean_score_error == 0


def test_progress_is_told_and_never_beyond_all() -> None:
    told: list[tuple[int, int]] = []
    player = registry.make_player("random", {})
    evaluate(player, games=30, seed=1, threads=2, progress=lambda *now: told.append(now))
    assert told[-1] == (30, 30)
    assert all(0 <= done <= games == 30 for done, games in told)
    assert told == sorted(told)


def test_waiting_for_threads_takes_no_cpu_time(monkeypatch: pytest.MonkeyPatch) -> None:
    begun = threading.Event()

    def play(*_: Any) -> int:
        if threading.current_thread() is not threading.main_thread() and not begun.is_set():
            begun.set()
            time.sleep(0.5)  # the other one has nothing left to do
        return 1

    monkeypatch.setattr(strength, "play_unrecorded", play)
    told: list[tuple[int, int]] = []
    player = registry.make_player("random", {})
    evaluate(player, games=16, seed=1, threads=2, progress=lambda *now: told.append(now))
    assert len(told) < 20


def test_a_thread_that_cannot_start_ends_the_others(monkeypatch: pytest.MonkeyPatch) -> None:
    start, started = threading.Thread.start, []

    def refuse(thread: threading.Thread) -> None:
        if started:
            raise RuntimeError("can't start new thread")
        started.append(thread)
        start(thread)

    monkeypatch.setattr(threading.Thread, "start", refuse)
    player = registry.make_player("random", {})
    with pytest.raises(RuntimeError, match="can't start new thread"):
        evaluate(player, games=10**7, seed=1, threads=2)
    assert not started[0].is_alive()


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def play(*_: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise MemoryError
        return 1

    monkeypatch.setattr(strength, "play_unrecorded", play)
    with pytest.raises(MemoryError):
        of_random(1000, threads=2)


def test_an_interrupt_ends_the_threads() -> None:
    def interrupt(_done: int, _games: int) -> None:
        raise KeyboardInterrupt

    before = threading.active_count()
    player = registry.make_player("random", {})
    with pytest.raises(KeyboardInterrupt):
        evaluate(player, games=10**7, seed=1, threads=2, progress=interrupt)
    assert threading.active_count() == before


# --- from boards, and two players


def boards_of(*cells: list[int]) -> np.ndarray:
    return np.array([reference.pack(each) for each in cells], np.uint64)


STARTS = boards_of([1, 2, 3, 4] + [0] * 12, [1, 8, 7, 6, 1, 2, 3, 4] + [0] * 8, [1] * 16)


def test_games_begin_at_given_boards_in_turn() -> None:
    player = registry.make_player("greedy", {})
    result = evaluate(player, games=7, seed=3, threads=1, starts=STARTS)
    seeds = rng.game_seeds(3, np.arange(7, dtype=np.uint64))
    points, moves = [], 0
    for number, seed in enumerate(seeds.tolist()):
        buffer = Buffer(rows_max=5000, runs_max=1, record_action=True, sample_rate=1)
        buffer.begin_at(int(STARTS[number % 3]), seed)
        play_into(buffer, player, steps_max=1 << 30)
        boards, made = buffer.boards_and_moves()
        cells = [reference.unpack(int(board)) for board in boards[:-1]]
        points.append(sum(reference.slide(*each)[1] for each in zip(cells, made.tolist(), strict=True)))
        moves += len(made)
    assert (result.games, result.moves, result.score_max) == (7, moves, max(points))
    assert result.mean_score == pytest.approx(sum(points) / 7)
    again = evaluate(player, games=7, seed=3, threads=3, starts=STARTS)
    assert facts(again) == facts(result)
    assert (
        evaluate(player, games=1, seed=3, threads=1, starts=boards_of([11, 1] + [1] * 14)).reach[2048].share
    )


@pytest.mark.parametrize("starts", [None, STARTS])
def test_a_match_is_of_the_games_that_each_plays_alone(starts: np.ndarray | None) -> None:
    players = [registry.make_player(name, {}) for name in ("greedy", "random")]
    how: dict[str, Any] = {"games": 60, "seed": 4, "starts": starts}
    done: list[tuple[int, int]] = []
    found = match(*players, **how, threads=2, progress=lambda *each: done.append(each))
    alone = [evaluate(player, **how, threads=1) for player in players]
    assert facts(found.a) == facts(alone[0])
    assert facts(found.b) == facts(alone[1])
    assert found.difference == pytest.approx(found.a.mean_score - found.b.mean_score)
    assert done[-1] == (120, 120)
    assert sorted(done) == done


def test_a_match_has_the_interval_of_paired_games() -> None:
    players = [registry.make_player(name, {}) for name in ("greedy", "random")]
    found = match(*players, games=40, seed=4, threads=1)
    seeds = rng.game_seeds(4, np.arange(40, dtype=np.uint64))
    scores = [outcomes(player, seeds).scores for player in players]
    differences = scores[0].astype(float) - scores[1]
    low, high = stats.norm.interval(0.95, differences.mean(), stats.sem(differences))
    assert found.difference_error == pytest.approx((high - low) / 2, rel=1e-5)
    assert found.a_ahead.share == (differences > 0).mean()


def test_a_player_matched_with_itself_is_as_strong() -> None:
    player = registry.make_player("greedy", {})
    found = match(player, player, games=9, seed=1, threads=2)
    assert (found.difference, found.difference_error, found.a_ahead.share) == (0, 0, 0)
