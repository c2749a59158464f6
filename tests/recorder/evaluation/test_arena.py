"""Seeded games of players of all kinds: the same games on any threads, strengths, paired differences."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from scipy import stats
from tests import reference
from tests.recorder.choosing import outcomes
from tests.recorder.lanes import batched

from tape2048.errors import PlayerError
from tape2048.session.run_table import REACH_TILES
from tape2048_recorder.evaluation import evaluated_games as playing, lockstep
from tape2048_recorder.evaluation.evaluated_games import make_contestant, play_games, play_rollouts
from tape2048_recorder.evaluation.paired_games import Results, Strength, play
from tape2048_recorder.game.game_loop import Buffer, play_into
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player

FILE = f"python:{batched.__file__}"


def facts(result: Strength) -> tuple[Any, ...]:
    """The results that do not depend on the clock."""
    return (
        result.games, result.moves, result.mean_score, result.mean_score_error, result.score_max,
        result.reach,
    )  # fmt: skip


def of_random(games: int, *, seed: int = 5, threads: int = 1) -> Strength:
    return play(make_player("random", {}), games=games, seed=seed, threads=threads).strength()


def test_it_sums_up_the_games_of_the_seed() -> None:
    result = of_random(101)
    seeds = game_seeds(5, np.arange(101, dtype=np.uint64))
    scores, _, moves = outcomes(make_player("random", {}), seeds)
    assert (result.games, result.moves) == (101, moves)
    assert result.mean_score == pytest.approx(scores.mean())
    assert result.score_max == scores.max()
    low, high = stats.t.interval(0.95, len(scores) - 1, scores.mean(), stats.sem(scores))
    assert result.mean_score_error == pytest.approx((high - low) / 2, rel=1e-5)
    assert tuple(result.reach) == REACH_TILES
    assert {share.share for tile, share in result.reach.items() if tile >= 2048} == {0.0}
    assert result.moves_per_cpu_s > 0
    assert result.moves_per_s > 0


@pytest.mark.parametrize("threads", [3])
def test_threads_change_nothing_but_the_speed(threads: int) -> None:
    assert facts(of_random(50, threads=threads)) == facts(of_random(50)) != facts(of_random(50, seed=6))


@pytest.mark.parametrize(("games", "threads"), [(0, 1), (-1, 1), (1, 0)])
def test_no_games_and_no_threads_are_refused(games: int, threads: int) -> None:
    with pytest.raises(ValueError, match=f"games={games}, threads={threads}; expected at least 1"):
        of_random(games, threads=threads)


def test_an_error_in_a_thread_is_raised(monkeypatch: pytest.MonkeyPatch) -> None:
    calls = 0

    def play_some(*_: Any) -> int:
        nonlocal calls
        calls += 1
        if calls > 2:
            raise MemoryError
        return 1

    monkeypatch.setattr(playing, "play_unrecorded", play_some)
    with pytest.raises(MemoryError):
        of_random(1000, threads=2)


def boards_of(*cells: list[int]) -> np.ndarray:
    return np.array([reference.pack(each) for each in cells], np.uint64)


STARTS = boards_of([1, 2, 3, 4] + [0] * 12, [1, 8, 7, 6, 1, 2, 3, 4] + [0] * 8, [1] * 16)


def test_games_begin_at_given_boards_in_turn() -> None:
    player = make_player("greedy", {})
    result = play(player, games=7, seed=3, threads=1, starts=STARTS).strength()
    seeds = game_seeds(3, np.arange(7, dtype=np.uint64))
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
    again = play(player, games=7, seed=3, threads=3, starts=STARTS)
    assert facts(again.strength()) == facts(result)
    won = play(player, games=1, seed=3, threads=1, starts=boards_of([11, 1] + [1] * 14))
    assert won.strength().reach[2048].share


@pytest.mark.parametrize("starts", [None, STARTS])
def test_a_difference_has_the_interval_of_paired_games(starts: np.ndarray | None) -> None:
    players = [make_player(name, {}) for name in ("greedy", "random")]
    how: dict[str, Any] = {"games": 40, "seed": 4, "starts": starts}
    done: list[tuple[int, int]] = []
    how |= {"threads": 2, "progress": lambda *each: done.append(each)}
    one, other = (play(player, **how) for player in players)
    assert done.count((40, 40)) == 2
    seeds = game_seeds(4, np.arange(40, dtype=np.uint64))
    boards = np.empty(0, np.uint64) if starts is None else np.resize(starts, 40)
    scores = [outcomes(player, seeds, boards).scores for player in players]
    differences = scores[0].astype(float) - scores[1]
    found = one.minus(other)
    low, high = stats.t.interval(0.95, len(differences) - 1, differences.mean(), stats.sem(differences))
    assert found.difference == pytest.approx(differences.mean())
    assert found.difference_error == pytest.approx((high - low) / 2, rel=1e-5)
    assert found.a_ahead.share == (differences > 0).mean()
    itself = one.minus(one)
    assert (itself.difference, itself.difference_error, itself.a_ahead.share) == (0, 0, 0)


def test_a_difference_is_of_the_games_that_both_played() -> None:
    one, other = Results(4), Results(4)
    one.add(playing.Played(*np.array([[0, 1, 2], [900, 20, 90], [6, 6, 6]]), 9, 1.0))
    other.add(playing.Played(*np.array([[1, 2, 3], [5, 60, 700], [6, 6, 6]]), 9, 1.0))
    found = one.minus(other)
    assert (found.difference, found.a_ahead.share) == (22.5, 1.0)


@pytest.mark.parametrize("starts", [None, STARTS])
def test_only_missing_games_are_played(starts: np.ndarray | None) -> None:
    """Games of a run that ended early count, whichever they are."""
    player = make_player("random", {})
    how: dict[str, Any] = {"games": 40, "seed": 4, "threads": 1, "starts": starts}
    whole = play(player, **how)
    results, played, some = Results(40), list[int](), np.arange(2, 30, dtype=np.uint64)
    results.add(playing.Played(some, whole.scores[some], whole.highest[some], 9, 1.0))

    def take(part: playing.Played) -> None:
        played.extend(part.numbers.tolist())

    again = play(player, **how, results=results, take=take)
    assert sorted(played) == [0, 1, *range(30, 40)]
    assert again is results
    assert (again.scores == whole.scores).all()
    assert (again.highest == whole.highest).all()


def first_legal(cells: Any) -> int:
    return reference.legal_moves(cells.reshape(16).tolist())[0]


def one_board(**_: Any) -> Any:
    return first_legal


@pytest.mark.parametrize("starts", [None, STARTS])
def test_players_of_all_kinds_play_the_games_of_the_reference(
    starts: np.ndarray | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The same moves are the same games, for one board at a time and for batches; also from given boards."""
    monkeypatch.setattr(batched, "one_board", one_board, raising=False)
    expected = []
    for number, seed in enumerate(game_seeds(9, np.arange(25, dtype=np.uint64)).tolist()):
        cells, _, generator = reference.new_game(seed)
        if starts is not None:
            cells, generator = reference.unpack(int(starts[number % 3])), reference.Generator.of_game(seed)
        score = 0
        while legal := reference.legal_moves(cells):
            after, gained = reference.slide(cells, legal[0])
            cells, _ = reference.spawn(after, generator)
            score += gained
        expected.append((score, max(cells)))
    for factory in ("lowest", "one_board"):
        player = lockstep.Batched(factory, make_contestant(f"python:{batched.__name__}:{factory}", {}).player)
        found = play(player, games=25, seed=9, threads=2, starts=starts)
        assert list(zip(found.scores.tolist(), found.highest.tolist(), strict=True)) == expected, factory


def test_few_lanes_and_reports_change_no_game(monkeypatch: pytest.MonkeyPatch) -> None:
    player = make_contestant(f"{FILE}:hashed", {})
    expected = play(player, games=60, seed=2, threads=1)
    for name, value in (("LANES_MAX", 7), ("_RUNS_MAX", 2), ("_REPORT_S", 0.0)):
        monkeypatch.setattr(lockstep, name, value)
        begin = time.process_time()
        found = play(player, games=60, seed=2, threads=1)
        assert 0 < found.cpu_s <= time.process_time() - begin
        assert (found.scores == expected.scores).all()
        assert found.moves == expected.moves


def test_boards_of_a_batched_player_are_kept() -> None:
    """As those of a compiled player with the same moves: its values are the scores of a batch."""
    seeds = game_seeds(3, np.arange(30, dtype=np.uint64))
    lowest = make_contestant(f"{FILE}:lowest", {})
    every, few = (play_games(lowest, seeds, stride=stride, threads=1) for stride in (1, 4))
    assert len(every.starts) == 31
    found = play(lowest, games=30, seed=3, threads=1)
    assert every.highest.tolist() == found.highest.tolist()
    assert len(every.boards) == found.moves
    for game in range(30):
        mine, other = (one.boards[slice(*one.starts[game : game + 2])] for one in (every, few))
        assert (mine[::4] == other).all()


def test_rollouts_of_a_batched_player_are_its_games() -> None:
    found = play_rollouts(make_contestant(f"{FILE}:lowest", {}), STARTS, rollouts=3, seed=1, threads=1)
    assert found[:, 0].tolist() == [3, 3, 3]
    assert (np.diff(found.astype(int), axis=1) <= 0).all()


@pytest.mark.parametrize(
    ("answer", "says"),
    [
        (None, "found None for the board"),
        (4, "found 4"),
        ("left", "found 'left'"),
        ([1, 2, 3], r"found \[1, 2, 3\]"),
        (2.5, r"expected a move from 0 to 3, or four scores"),
    ],
)
def test_an_answer_for_one_board_is_held_to_the_contract(tmp_path: Path, answer: Any, says: str) -> None:
    (tmp_path / "one.py").write_text(f"def make():\n    return lambda board: {answer!r}\n")
    with pytest.raises(PlayerError, match=says) as caught:
        play(make_contestant(f"python:{tmp_path}/one.py:make", {}), games=3, seed=1, threads=1)
    assert "one.py:make" in str(caught.value)


def test_a_player_that_raises_ends_the_games() -> None:
    with pytest.raises(PlayerError, match="ZeroDivisionError: no more"):
        play(make_contestant(f"{FILE}:failing", {"after": 500}), games=30, seed=1, threads=2)
