"""Temporal differences: updates against the formulas in float64, and the games."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference

from tape2048.ntuple.lookup import downgraded
from tape2048.ntuple.network import Network, NetworkLayout, place, places_of
from tape2048_recorder.ntuple_training.learning import (
    BEGINS_MAX,
    ENTRY_BYTES,
    GOALS,
    LENGTH_MAX,
    USES,
    WEIGHT,
    A,
    E,
    Lane,
    Plays,
    TrainingTables,
    learn_backwards,
    new_lane,
    train,
)

from . import slow

ENDLESS = 1 << 40


class Learner(NamedTuple):
    """The tables of a network, compiled and in 64-bit floats."""

    tables: TrainingTables
    weights: list[float]
    e: list[float]
    a: list[float]
    uses: list[float]


def tables_of(network: Network) -> TrainingTables:
    layout = network.layout
    entries = np.zeros((layout.entries, 4), dtype=np.float32)
    entries[:, WEIGHT] = network.table
    return TrainingTables(entries, places_of(layout, ENTRY_BYTES))


def plays_of(network: Network, *goals: int, guides: tuple[int, ...] = ()) -> Plays:
    """The player of a network of small whole weights, whose sums are exact."""
    placed = place(network.layout, network.table, network.scales)
    least = np.float32(min((goal & -goal for goal in goals), default=np.inf))
    return Plays(*placed, tuple(map(np.uint64, goals)), least, tuple(map(np.uint64, guides)))


def fill(lane: Lane, moves: list[reference.Move]) -> None:
    """Put a game into a lane."""
    for i, move in enumerate(moves):
        lane.boards[i] = reference.pack(move.cells)
        lane.afterstates[i] = reference.pack(move.afterstate)
        lane.rewards[i] = reference.slide(move.cells, move.move)[1]


def learn_slowly(
    layout: NetworkLayout, learner: Learner, moves: list[reference.Move], *, beta: float, decay: float
) -> float:
    """TC(lambda), backwards over a game (Jaskowski 2018, section IV; the docstring of learning.py)."""
    weights, e, a, uses = learner[1:]
    errors = 0.0
    target = next_value = 0.0
    for i in reversed(range(len(moves))):
        if i + 1 < len(moves):
            reward = reference.slide(moves[i + 1].cells, moves[i + 1].move)[1]
            target = reward + (1 - decay) * next_value + decay * target
        places = [at for tuple_ in slow.entries_of(layout, moves[i].afterstate) for at in tuple_]
        delta = target - sum(weights[at] for at in places)
        for at in set(places):
            rate = 1.0 if a[at] == 0 else abs(e[at]) / a[at]
            weights[at] += beta / len(places) * rate * delta
            e[at] += delta
            a[at] += abs(delta)
            uses[at] += 1
        next_value = sum(weights[at] for at in places)
        errors += abs(delta)
    return errors


@pytest.mark.slow
@pytest.mark.parametrize(("beta", "decay"), [(1.0, 0.0), (0.5, 0.5), (0.1, 1.0)])
def test_updates_follow_the_formulas(beta: float, decay: float) -> None:
    layout = NetworkLayout.of(["0123", "0145"], [64])
    tables = tables_of(Network.empty(layout, initial_value=100))
    zeros = [[0.0] * layout.entries for _ in range(3)]
    learner = Learner(tables, tables.entries[:, WEIGHT].tolist(), *zeros)
    lane = new_lane(np.uint64(1), layout)
    highest = 0
    for seed in range(60):
        game = reference.play_random(seed)
        highest = max(highest, *game.final)
        fill(lane, game.moves)
        errors = learn_backwards(tables, lane, len(game.moves), 0.0, beta, decay)
        expected = learn_slowly(layout, learner, game.moves, beta=beta, decay=decay)
        assert errors == pytest.approx(expected, rel=1e-4)
    assert highest >= 7, "some games reached the second stage"
    moved = np.flatnonzero(np.array(learner.a))
    assert len(moved) > 3_000
    assert np.count_nonzero(tables.entries[:, A]) == len(moved), "the same entries have learned"
    assert tables.entries[:, USES].tolist() == learner.uses
    for mine, theirs in zip(tables.entries.T, learner[1:], strict=True):
        exact = np.array(theirs)
        np.testing.assert_allclose(mine, exact, rtol=1e-3, atol=1e-3 * np.abs(exact[moved]).mean())


def test_the_last_afterstate_learns_that_nothing_comes() -> None:
    layout = NetworkLayout.of(["0123"])
    tables = tables_of(Network.empty(layout, initial_value=800))
    lane = new_lane(np.uint64(1), layout)
    moves = reference.play_random(3).moves[-1:]
    fill(lane, moves)
    assert learn_backwards(tables, lane, 1, 0.0, 1.0, 0.0) == 800
    places = [at for tuple_ in slow.entries_of(layout, moves[0].afterstate) for at in tuple_]
    value = slow.value(Network(layout, tables.entries[:, WEIGHT], np.ones((1, 1))), moves[0].afterstate)
    assert len(set(places)) == 8
    assert value == pytest.approx(0, abs=1e-3)
    assert learn_backwards(tables, lane, 0, 0.0, 1.0, 0.0) == 0, "a game without a move teaches nothing"


@pytest.mark.parametrize("a", [0.0, 1e-3])
def test_a_record_of_two_updates_moves_at_the_full_rate(a: float) -> None:
    """As a thread can see it, of a processor that stores E and A of another thread one after the other."""
    layout = NetworkLayout.of(["0123"])
    tables = tables_of(Network.empty(layout, initial_value=800))
    tables.entries[:, [E, A]] = 1e6, a
    lane = new_lane(np.uint64(1), layout)
    fill(lane, reference.play_random(3).moves[-1:])
    assert learn_backwards(tables, lane, 1, 0.0, 1.0, 0.0) == 800
    assert learn_backwards(tables, lane, 1, 0.0, 1.0, 0.0) == pytest.approx(0, abs=1e-3)


def test_an_entry_of_two_images_learns_once() -> None:
    layout = NetworkLayout.of(["0123"])
    tables = tables_of(Network.empty(layout, initial_value=800))
    lane = new_lane(np.uint64(1), layout)
    lane.afterstates[0] = 0x1221_0000_0000_1221  # each outer row and column agrees with its mirror image
    assert learn_backwards(tables, lane, 1, 0.0, 1.0, 0.0) == 800
    learned = np.flatnonzero(tables.entries[:, A])
    assert learned.tolist() == [0x1001, 0x1221]
    assert tables.entries[learned].tolist() == [[0, -800, 800, 1]] * 2


def play_one(
    learns: TrainingTables,
    plays: Plays,
    lane: Lane,
    *,
    pooling: bool = False,
    guiding: bool = False,
    restart_moves_min: int = ENDLESS,
) -> tuple[int, list[float], list[int]]:
    """Play one game: its moves, and score and highest exponent if it was a new one."""
    scores = np.full(4, np.nan)
    highest = np.zeros(4, dtype=np.uint8)
    starts = pooling, guiding, restart_moves_min
    games, moves, errors = train(learns, plays, lane, 0.0, 0.0, *starts, 1, scores, highest)
    assert errors >= 0
    return moves, scores[:games].tolist(), highest[:games].tolist()


def check_game(
    network: Network, lane: Lane, length: int, board: list[int], generator: reference.Generator
) -> tuple[int, list[int]]:
    """Every move is a best one by the network, and every spawn the generator's; score and last board."""
    score = 0
    for i in range(length):
        assert reference.unpack(int(lane.boards[i])) == board, f"position {i}"
        values = slow.move_values(network, board, looks_ahead=False)
        after = reference.unpack(int(lane.afterstates[i]))
        best = [move for move in values if values[move] == max(values.values())]
        assert after in [reference.slide(board, move)[0] for move in best]
        reward = next(
            reference.slide(board, move)[1] for move in best if reference.slide(board, move)[0] == after
        )
        assert lane.rewards[i] == reward
        score += reward
        board, _ = reference.spawn(after, generator)
    assert reference.legal_moves(board) == []
    return score, board


def test_games_restart_from_the_middle() -> None:
    """By the moves that the one network wants; another one may learn from them."""
    network, other = (slow.random_network("0123", "1256", stages=(32,), seed=seed) for seed in (1, 2))
    seed = 77
    lane = new_lane(np.uint64(seed), network.layout)
    seeds = reference.Generator.of_game(seed)
    restart: list[int] | None = None
    restarts = 0
    begun = []
    for _ in range(30):
        length, scores, highest = play_one(tables_of(other), plays_of(network), lane, restart_moves_min=40)
        board, _, generator = reference.new_game(seeds.next())
        restarts += restart is not None
        begun.append(restart or board)
        score, final = check_game(network, lane, length, begun[-1], generator)
        assert scores == ([score] if restart is None else []), "means are of new games alone"
        assert highest == ([max(final)] if restart is None else [])
        restart = reference.unpack(int(lane.boards[length // 2])) if length >= 40 else None
    assert 3 < restarts < 27, "both kinds of games were played"
    assert len({tuple(board) for board in begun}) > 25


def test_games_begin_in_the_stage_that_learned_least() -> None:
    network = slow.random_network("0123", "1256", stages=(32, 64, 96), seed=1)
    layout, plays, kept = network.layout, plays_of(network), 4
    lane = new_lane(np.uint64(5), layout, kept)
    entered: list[list[list[int]]] = [[] for _ in range(layout.stage_count)]
    learned, begun = [0] * layout.stage_count, [0] * layout.stage_count
    least = limited = 0
    for _ in range(200):
        length, scores, _ = play_one(tables_of(network), plays, lane, pooling=True)
        boards = [reference.unpack(int(board)) for board in lane.boards[:length]]
        assert bool(scores) == (least == 0)
        assert not least or boards[0] in entered[least][-kept:]
        reached = slow.stage_of(layout, boards[0])
        for board in boards:
            if (stage := slow.stage_of(layout, board)) > reached:
                reached = stage
                entered[stage].append(board)
        for after in lane.afterstates[:length]:
            learned[slow.stage_of(layout, reference.unpack(int(after)))] += 1
        there = [
            stage
            for stage in range(layout.stage_count)
            if not stage or begun[stage] < BEGINS_MAX * len(entered[stage])
        ]
        limited += any(
            entered[stage] and stage not in there and learned[stage] < min(learned[other] for other in there)
            for stage in range(layout.stage_count)
        )
        least = min(there, key=lambda stage: learned[stage])
        begun[least] += least > 0
        assert lane.tallies.tolist() == [[len(boards) for boards in entered], begun, learned]
    assert all(begun[1:]), "a start in each stage"
    assert limited, "a stage with too few boards to begin on waited"
    assert max(map(len, entered)) > kept


def test_a_goal_ends_a_game_at_the_halved_board() -> None:
    network = slow.random_network("0123", "1256", stages=(32768,), seed=3)
    layout, goal = network.layout, 6
    lane = new_lane(np.uint64(77), layout)
    seeds = reference.Generator.of_game(77)
    for _ in range(40):
        tables, other = tables_of(network), tables_of(network)
        score, highest = np.empty(1), np.empty(1, dtype=np.uint8)
        learning, starts = (1.0, 0.5), (False, False, ENDLESS)
        plays = plays_of(network, 2**goal)
        _, length, errors = train(tables, plays, lane, *learning, *starts, 1, score, highest)
        board, _, generator = reference.new_game(seeds.next())
        for after in lane.afterstates[:length]:
            assert max(board) < goal
            board, _ = reference.spawn(reference.unpack(int(after)), generator)
        worth: dict[float, tuple[list[int], int]] = {}
        for move in reference.legal_moves(board):
            after, reward = reference.slide(board, move)
            seen = int(downgraded(np.uint64(reference.pack(after)))) if max(after) == goal else 0
            value = slow.value(network, reference.unpack(seen) if seen else after)
            worth[reward + value] = after, reward
        end = 0.0
        if worth:
            end = max(worth)
            after, reward = worth[end]
            assert max(after) == goal == highest[0]
            assert score[0] == lane.rewards[:length].sum() + reward
        assert errors == learn_backwards(other, lane, length, end, *learning)
        assert np.array_equal(tables.entries, other.entries)
    assert 5 < lane.state[GOALS] < 35, "games end either way"


def test_guided_games_choose_by_halved_boards() -> None:
    network = slow.random_network("0123", "1256", stages=(32768,), seed=3)
    guide, lane = 32 + 16, new_lane(np.uint64(77), network.layout)
    seeds = reference.Generator.of_game(77)
    plays = plays_of(network, guides=(guide,))
    turned = {True: 0, False: 0}
    for _ in range(40):
        length, _, _ = play_one(tables_of(network), plays, lane, guiding=True)
        is_guided = seeds.next() % 2 == 0
        for i in range(length):
            cells, after = reference.unpack(int(lane.boards[i])), int(lane.afterstates[i])
            halves = sum({2**exponent for exponent in cells if exponent}) >= guide
            plain, halved = {}, {}
            for move in reference.legal_moves(cells):
                option, reward = reference.slide(cells, move)
                packed = reference.pack(option)
                plain[packed] = reward + slow.value(network, option)
                smaller = reference.unpack(int(downgraded(np.uint64(packed))))
                halved[packed] = reward + slow.value(network, smaller)
            values = halved if is_guided and halves else plain
            assert values[after] == max(values.values())
            turned[is_guided] += halves and plain[after] < max(plain.values())
    assert turned[True] > 50
    assert not turned[False]


def test_what_is_played_is_what_is_learned() -> None:
    layout = NetworkLayout.of(["0123", "0145"])
    tables = tables_of(Network.empty(layout))
    other = tables_of(Network.empty(layout))
    plays = plays_of(Network.empty(layout))
    lane = new_lane(np.uint64(5), layout)
    scores, highest = np.empty(1), np.empty(1, dtype=np.uint8)
    for _ in range(20):
        _, length, errors = train(tables, plays, lane, 1.0, 0.5, False, False, 10, 1, scores, highest)
        assert errors == learn_backwards(other, lane, length, 0.0, 1.0, 0.5)
    assert np.array_equal(tables.entries, other.entries)
    assert tables.entries.any()


def run(seed: int, budgets: list[int], games: int = 4096) -> tuple[npt.NDArray[Any], list[float], int]:
    """Train in slices of these numbers of moves."""
    layout = NetworkLayout.of(["0123", "0145"])
    tables, plays = tables_of(Network.empty(layout)), plays_of(Network.empty(layout))
    lane = new_lane(np.uint64(seed), layout)
    scores, highest = np.empty(games), np.empty(games, dtype=np.uint8)
    found: list[float] = []
    total = 0
    for budget in budgets:
        how = (1.0, 0.0, False, False, 10)
        count, moves, _ = train(tables, plays, lane, *how, budget, scores, highest)
        found += scores[:count].tolist()
        total += moves
    return tables.entries, found, total


def test_slices_change_nothing_but_where_it_ends() -> None:
    one, scores_of_one, moves = run(9, [20_000])
    assert 20_000 <= moves < 22_000, "it ends with the game in which the number is reached"
    slices, scores_of_slices, moves_of_slices = run(9, [1] * 3000)
    count = min(len(scores_of_one), len(scores_of_slices))
    assert scores_of_one[:count] == scores_of_slices[:count]
    again, scores_again, _ = run(9, [20_000])
    assert np.array_equal(one, again)
    assert scores_again == scores_of_one
    other, _, _ = run(10, [20_000])
    assert not np.array_equal(one, other)
    assert slices.any()
    assert moves_of_slices > 20_000


def test_a_full_array_of_scores_ends_it_too() -> None:
    _, scores, moves = run(9, [ENDLESS], games=12)
    assert (len(scores), moves < 30_000) == (12, True)


def test_a_lane_has_room_for_the_longest_game() -> None:
    # Each move adds 2 or more to a sum of at most 16 tiles of 32768.
    assert LENGTH_MAX >= 16 * 32768 / 2 / 2
    lane = new_lane(np.uint64(0), NetworkLayout.of(["0123", "4567", "0145", "1256"]))
    assert {len(lane.boards), len(lane.afterstates), len(lane.rewards)} == {LENGTH_MAX}
    assert lane.addresses.shape == (2, 32)
