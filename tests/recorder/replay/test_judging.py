"""Loss and luck against the formulas, on networks of integers and games of random moves."""

import functools
import math
import random

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st
from tests import reference
from tests.recorder.ntuple_training import slow

from tape2048.errors import ConfigError
from tape2048.game.rules import legal_masks
from tape2048.ntuple.calibration import PHASES, SIZES, VALUES, Calibration, Differences
from tape2048.ntuple.network import save_network
from tape2048.ntuple.outcomes import outcomes
from tape2048.players import PlayedBy
from tape2048.session.layout import RUN_DTYPE
from tape2048_recorder.replay.judging import Judge, Judged

NETWORK = slow.random_network("0145", "1256", "0123", "4567", stages=(64,))
TILE = 64


class Played:
    """A game of random moves from a board on, to its end or so many moves long."""

    def __init__(self, seed: int, moves_max: int, start: list[int] | None = None) -> None:
        rng = random.Random(seed)
        cells = start
        while cells is None or not reference.legal_moves(cells):
            cells = [rng.choice([0, 1, 1, 2, 3, 4, 5, 6]) for _ in range(16)]
        self.cells, self.moves, self.rewards = [cells], [], []
        while (legal := reference.legal_moves(cells)) and len(self.moves) < moves_max:
            self.moves.append(rng.choice(legal))
            after, reward = reference.slide(cells, self.moves[-1])
            cells = list(after)
            cells[rng.choice(reference.empty_cells(after))] = 2 if rng.random() < 0.1 else 1
            self.cells.append(cells)
            self.rewards.append(reward)

    def judged_by(self, judge: Judge) -> Judged:
        return judge.game(slow.packed(self.cells), np.array(self.moves, np.uint8))


@functools.cache
def player_judge(ahead: int = 1, downgrade: int = 0) -> Judge:
    import tempfile

    with tempfile.NamedTemporaryFile(suffix=".ntuple") as file:
        save_network(NETWORK, file.name, compress=False)  # it takes seconds
        return Judge.of_player("ntuple", {"weights": file.name, "downgrade": downgrade, "ahead": ahead})


def chance(board: int) -> float:
    """A probability without rhyme or reason, that an expectation of it does not round."""
    return (board * 0x9E3779B97F4A7C15 % 2**64 >> 54) / 1024


def critic(boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
    found = np.array([[0.5, chance(board)] for board in boards.tolist()], np.float32)
    return found.reshape(-1, 2)


CRITIC_JUDGE = Judge.of_critic(critic, TILE, thresholds=(32, TILE), sha256="")


def slow_values(judge: Judge, cells: list[int]) -> tuple[dict[int, float], float]:
    """The values of a board's moves a spawn ahead, and the board's own without."""
    if judge.tile is None:
        now = slow.move_values(NETWORK, cells, looks_ahead=False)
        return slow.move_values(NETWORK, cells, looks_ahead=True), max(now.values(), default=0.0)

    def own(cells: list[int]) -> float:
        decided = 2 ** max(cells) >= TILE or not reference.legal_moves(cells)
        return float(2 ** max(cells) >= TILE) if decided else chance(reference.pack(cells))

    found = {}
    for move in reference.legal_moves(cells):
        after, _ = reference.slide(cells, move)
        empty = reference.empty_cells(after)
        spawned = [
            (share, [*after[:cell], exponent, *after[cell + 1 :]])
            for cell in empty
            for exponent, share in slow.SPAWNS
        ]
        found[move] = sum(share * own(board) for share, board in spawned) / len(empty)
    return found, own(cells)


@pytest.mark.parametrize("judge", [player_judge(), CRITIC_JUDGE], ids=["player", "critic"])
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_a_game_is_judged_as_the_formulas_say(judge: Judge, seed: int) -> None:
    game = Played(seed, 6)
    judged = game.judged_by(judge)
    around = functools.partial(pytest.approx, rel=1e-5, abs=0.05 if judge.tile is None else 1e-5)
    found = [slow_values(judge, cells) for cells in game.cells]
    for i, (move, reward) in enumerate(zip(game.moves, game.rewards, strict=True)):
        values, (following, own) = found[i][0], found[i + 1]
        counted = reward if judge.tile is None else 0
        assert {m: v for m, v in enumerate(judged.values[i].tolist()) if not math.isnan(v)} == around(values)
        assert judged.state[i] == around(max(values.values()))
        assert judged.loss[i] == around(max(values.values()) - values[move])
        assert judged.luck[i] == around(counted + own - values[move])
        assert judged.error[i] == around(max(following.values(), default=own) - own)
    assert judged.loss.min() >= 0


def calibrated_judge(ahead: int = 1) -> Judge:
    """A judge whose calibration halves values, less early than late, and keeps half of early differences."""
    values = [[float(40 * n) for n in range(VALUES)]] * PHASES
    scores = [[(0.3 + knot / PHASES) * value for value in row] for knot, row in enumerate(values)]
    reach = [[n / VALUES for n in range(VALUES)]] * PHASES
    half, quarter = ([[size / by for size in SIZES]] * 3 for by in (2, 4))
    known = Differences(half, quarter, [[20] * len(SIZES)] * 3)
    return player_judge(ahead).calibrated(
        Calibration("", "", "toy", 1000, values, scores, reach, scores, [1000] * PHASES, differences=known)
    )


def test_a_calibrated_value_is_the_mean_outcome_of_the_spawns() -> None:
    judge, cells = calibrated_judge(), [0, 1, 2, 0, 3, 0, 0, 4, 5, 0, 1, 0, 0, 2, 0, 5]
    raw = {option.move: option for option in player_judge().board(reference.pack(cells))}
    table = judge.calibration.table  # type: ignore[union-attr]
    means = {}
    for option in judge.board(reference.pack(cells)):
        outcomes_of = [
            outcomes(table, np.array([spawn.board], np.uint64), np.array([before.value], np.float32))[:, 0]
            for spawn, before in zip(option.spawns, raw[option.move].spawns, strict=True)
        ]
        shares = [spawn.probability for spawn in option.spawns]
        score = sum(p * each[0] for p, each in zip(shares, outcomes_of, strict=True))
        means[option.move] = option.reward + score
        assert option.mean == pytest.approx(option.reward + score, rel=1e-5)
        assert [spawn.value for spawn in option.spawns] == pytest.approx([each[0] for each in outcomes_of])
    top = max(raw.values(), key=lambda option: option.value)
    reach = {option.move: option.reach for option in judge.board(reference.pack(cells))}
    for option in judge.board(reference.pack(cells)):
        lost = (top.value - raw[option.move].value) / 2
        assert option.value == pytest.approx(max(means[top.move] - lost, 0), rel=1e-5)
        assert option.spread == pytest.approx(lost / 2, rel=1e-3, abs=0.01)
        assert reach[top.move] >= option.reach


def test_a_move_into_the_end_costs_all_that_would_have_come() -> None:
    """After `up`, nine spawns of ten end the game. This is certain, so it is not shrunk."""
    options = {
        option.move: option
        for option in Judge.of_player("ntuple", {"weights": "fast"}).board(0x02711569248B327C)
    }
    up, left = options[0], options[2]
    dead = [spawn for spawn in up.spawns if not legal_masks(np.array([spawn.board], np.uint64))[0]]
    assert sum(spawn.probability for spawn in dead) == pytest.approx(0.9)
    assert not any(spawn.value for spawn in dead)
    assert 0 <= up.value < 0.21 * left.value


def test_grades_are_shares_of_the_score_to_come() -> None:
    """A loss within its error has no grade, and a network's own points have none."""
    game = Played(5, 1000)
    judge = calibrated_judge()
    judged = game.judged_by(judge)
    best = np.nanmax(judged.values, axis=1)
    made = np.array(game.moves)
    fall = np.nanmax(judged.reach, axis=1) - judged.reach[np.arange(len(made)), made]
    cost = np.maximum(judged.loss / np.maximum(best, 1), fall)
    expected = np.where(judged.loss > judged.spread, np.searchsorted([0.01, 0.03, 0.1], cost, "right"), 0)
    assert judged.grade.tolist() == expected.tolist()
    assert set(judged.grade.tolist()) >= {0, 3}
    assert not game.judged_by(player_judge()).grade.any()


@pytest.mark.parametrize("judge", [calibrated_judge(), player_judge(), CRITIC_JUDGE])
def test_losses_are_those_of_each_option(judge: Judge) -> None:
    game = Played(3, 60)
    boards = np.array([reference.pack(cells) for cells in game.cells[:-1]], np.uint64)
    found = judge.losses(boards, game.moves)
    for i, (board, move) in enumerate(zip(boards.tolist(), game.moves, strict=True)):
        options = {option.move: option for option in judge.board(board)}
        best = options[int(found.best[i])]
        assert best.value == max(option.value for option in options.values())
        assert found.loss[i] == np.float32(best.value) - np.float32(options[move].value)
        assert found.standard_error[i] == np.float32(options[move].spread)
        reach = found.reach_before[i], found.reach_after[i]
        assert reach == pytest.approx((best.reach, options[move].reach), nan_ok=True)
    assert found.grade.tolist() == game.judged_by(judge).grade.tolist()
    exps = np.array(game.cells[:-1], np.uint8)
    for same in (exps, exps.reshape(-1, 4, 4), boards.tolist()):
        assert judge.losses(same, game.moves).loss.tolist() == found.loss.tolist()


@pytest.mark.parametrize(
    ("boards", "moves", "said"),
    [
        ([0x1200, 0x1200], [0, 2.0], "moves have dtype float64; expected integers"),
        ([0x1200, 0x1200], [0, 4], r"moves\[1\] is 4; expected 0 up, 1 down, 2 left or 3 right"),
        (
            [0x1200, 0x12],
            [0, 3],
            r"moves\[1\] is 3 right, which changes nothing on the board 0x0*12; expected 0 up or",
        ),
        ([0x1200], [0, 1], r"boards have shape \(1,\) and moves \(2,\); expected u64\[n\]"),
    ],
)
def test_a_loss_needs_a_legal_move(boards: list[int], moves: list[int], said: str) -> None:
    with pytest.raises(ValueError, match=said):
        player_judge().losses(boards, moves)


@pytest.mark.parametrize(
    "judge", [player_judge(), player_judge(2), CRITIC_JUDGE, calibrated_judge(), calibrated_judge(2)]
)
def test_luck_is_nothing_on_average_over_the_spawns(judge: Judge) -> None:
    for cells in (
        [0, 1, 2, 0, 3, 0, 0, 4, 5, 0, 1, 0, 0, 2, 0, 5],
        [1, 2, 3, 4, 5, 1, 2, 3, 4, 5, 1, 2, 3, 4, 4, 1],
    ):
        for option in judge.board(reference.pack(cells)):
            after, reward = reference.slide(cells, option.move)
            assert (option.reward, option.afterstate) == (reward, reference.pack(after))
            lucks = []
            for spawn in option.spawns:
                boards = np.array([reference.pack(cells), spawn.board], np.uint64)
                judged = judge.game(boards, np.array([option.move], np.uint8))
                lucks.append(spawn.probability * judged.luck[0])
                assert judged.values[0, option.move] == np.float32(option.value)
                rewarded = spawn.value + (reward if judge.tile is None else 0)
                assert judged.luck[0] == pytest.approx(rewarded - option.mean, abs=1e-3)
                placed = list(after)
                placed[spawn.cell] = spawn.tile.bit_length() - 1
                assert reference.pack(placed) == spawn.board
            assert math.fsum(spawn.probability for spawn in option.spawns) == pytest.approx(1)
            assert len(option.spawns) == 2 * len(reference.empty_cells(after))
            assert sum(lucks) == pytest.approx(0, abs=0.05 if judge.tile is None else 1e-6)


@pytest.mark.parametrize(
    "judge", [player_judge(), player_judge(2), calibrated_judge()], ids=["2-ply", "3-ply", "calibrated"]
)
def test_a_score_is_its_expectation_plus_luck_minus_loss_plus_the_error(judge: Judge) -> None:
    game = Played(5, 1000)
    judged = game.judged_by(judge)
    assert not reference.legal_moves(game.cells[-1])
    sums = judged.sums
    score = judged.state[0] + sums["luck"] - sums["loss"] + judged.error.sum()
    assert score == pytest.approx(sum(game.rewards), abs=0.01)
    lost, grades = np.array([0, 10, 20, 30, 40, math.nan], np.float32), np.array([0, 1, 2, 2, 3, 0], np.uint8)
    graded = judged._replace(loss=lost, luck=np.zeros(6, np.float32), grade=grades).sums
    assert (graded["mistakes"], graded["blunders"], graded["loss"]) == (2, 1, 100)


def test_downgraded_boards_have_the_smaller_values() -> None:
    plain, judge = player_judge(), player_judge(downgrade=64)
    large = [0, 1, 2, 0, 0, 3, 1, 0, 2, 0, 7, 4, 0, 1, 0, 4]
    small = [tile - (tile > 6) for tile in large]
    game = Played(1, 1, large)
    judged, of_small = game.judged_by(judge), Played(1, 1, small).judged_by(plain)
    assert np.array_equal(judged.values, of_small.values, equal_nan=True)
    assert (judged.loss[0], judged.luck[0]) == (of_small.loss[0], of_small.luck[0])
    assert not np.array_equal(judged.values, game.judged_by(plain).values, equal_nan=True)
    shown = judge.board(reference.pack(large))
    hidden = plain.board(reference.pack(small))
    assert [option.value for option in shown] == [option.value for option in hidden]
    assert 2**7 in [1 << e for e in reference.unpack(shown[0].spawns[0].board)], "shown as it is"


def test_unknown_moves_have_no_luck() -> None:
    game = Played(3, 5)
    boards = slow.packed(game.cells)
    boards[3] ^= np.uint64(0x3000000000000000)
    moves = np.array(game.moves, np.uint8)
    moves[0] = 255
    judged = player_judge().game(boards, moves)
    assert np.isnan(judged.luck).tolist() == [True, False, True, True, False]
    assert np.isnan(judged.error).tolist() == [True, False, True, True, False]
    assert np.isnan(judged.loss[:3]).tolist() == [True, False, False]
    still = [0] * 15 + [1]
    judged = player_judge().game(slow.packed([still, still]), np.array([1], np.uint8))
    assert np.isnan(judged.loss[0]), "an illegal move"
    with pytest.raises(ValueError, match="boards"):
        player_judge().game(boards, moves[:2])


def test_judges_are_refused() -> None:
    with pytest.raises(ConfigError, match="found the judge 'greedy'"):
        Judge.of_player("greedy")
    with pytest.raises(ConfigError, match="nobody"):
        Judge.of_player("nobody")
    for ahead in (0, 3):
        with pytest.raises(ConfigError, match=f"ahead: found {ahead}"):
            Judge.of_player("ntuple", {"ahead": ahead})
    with pytest.raises(ConfigError, match="'look', expected weights, downgrade or ahead"):
        Judge.of_player("ntuple", {"look": 16})
    with pytest.raises(ConfigError, match="expected a tile of the critic: 32, 64"):
        Judge.of_critic(critic, 128, thresholds=(32, 64), sha256="")


OWN = {"player": "ntuple", "player_args": {"weights": "fast", "look": 3}}


def with_args(**args: object) -> dict[str, object]:
    return {**OWN, "player_args": {**OWN["player_args"], **args}}  # type: ignore[dict-item]


@pytest.mark.parametrize(
    ("facts", "weights", "ahead"),
    [
        (OWN, "fast", 1),
        (with_args(look=16), "fast", 2),
        (with_args(look="0+4:16"), "fast", 2),
        (with_args(look="0+4:3"), "fast", 1),
        (with_args(look="1/1"), "fast", 2),
        ({"player": "critic", "player_args": {"weights": "fast", "look": 16}}, "fast", 1),
        ({"player": "greedy", "player_args": {}}, "strong", 1),
        ({"player": "ntuple", "player_args": None}, "strong", 1),
        ({}, "strong", 1),
    ],
)
def test_the_players_network_judges_one_ply_deeper(
    facts: dict[str, object], weights: str, ahead: int
) -> None:
    judge, message = Judge.of_recorded(facts)
    assert (judge.weights, judge.ahead, message) == (weights, ahead, None)


def test_a_missing_network_is_named_and_replaced() -> None:
    judge, message = Judge.of_recorded(with_args(weights="/nowhere/my.ntuple"))
    assert judge.weights == "strong"
    assert message is not None
    assert "/nowhere/my.ntuple" in message


def games(count: int, mean_score: float, reached: int = 0) -> npt.NDArray[np.void]:
    """Games of this mean score, of which so many reach the tile."""
    runs = np.zeros(count, RUN_DTYPE)
    runs["score"] = mean_score
    runs["highest_tile"] = np.where(np.arange(count) < reached, TILE, TILE // 2)
    return runs


@pytest.mark.parametrize(
    ("facts", "runs", "weak"),
    [
        (OWN, games(1000, 1e6), ""),
        (with_args(look=0), games(1000, 1e6), ""),
        (with_args(look="16/3"), None, "is weaker, up to 3-ply"),
        (with_args(weights="strong"), games(1000, 140_000), ""),
        (with_args(weights="strong"), games(1000, 160_000), "is weaker, 1.5 times the 100,000 points"),
        (with_args(weights="strong"), games(1000, 150_000), "may be weaker, 1,000 known games cannot tell"),
        (with_args(weights="strong"), games(1, 300_000), "may be weaker, 1 known game cannot tell"),
        (with_args(weights="strong"), None, "may be weaker, 0 known games cannot tell"),
        ({"player": "greedy", "player_args": {}}, games(1, 3_000), ""),
        ({}, games(1, 140_000), "may be weaker, unknown player"),
        ({}, games(1, 3_000), ""),
    ],
)
def test_a_judge_weaker_than_the_player_is_found(
    facts: dict[str, object], runs: npt.NDArray[np.void] | None, weak: str
) -> None:
    judge = Judge.of_player("ntuple", {"weights": "fast"}, plays="")
    judge.__dict__["expected"] = 100_000.0
    check_warning(judge.weakness(facts, runs), weak)


def test_a_calibrated_judge_expects_the_score_that_comes() -> None:
    judge = Judge.of_player("ntuple", {"weights": "fast"})
    judge.__dict__["expected"] = 100_000.0
    facts = with_args(weights="strong")
    assert judge.weakness(facts, games(1000, 90_000)) is None
    assert "scores more than the 100,000 points" in str(judge.weakness(facts, games(1000, 110_000)))


def test_only_a_calibrated_judge_has_outcomes() -> None:
    boards = np.array([0x010002103421A987], np.uint64)
    scores, reach = Judge.of_network("fast").outcomes(boards)
    assert scores[0] > 10_000
    assert 0.9 < reach[0] < 1
    with pytest.raises(ConfigError, match="uncalibrated, expected a calibrated judge"):
        Judge.of_network("fast", ahead=2).outcomes(boards)


@pytest.mark.parametrize(
    ("facts", "runs", "weak"),
    [
        ({"player_sha256": "a" * 64}, games(100, 0, 100), ""),
        ({"player_sha256": "b" * 64}, games(100, 0, 50), "is weaker, reaches 64 in more than the 25.0%"),
        ({"player_sha256": "b" * 64}, games(100, 0, 10), ""),
        ({"player_sha256": "b" * 64}, games(100, 0, 27), "may be weaker, 100 known games cannot tell"),
        ({"player_sha256": "b" * 64}, games(1, 0, 0), "may be weaker, 1 known game cannot tell"),
        ({}, None, "may be weaker, unknown player"),
    ],
)
def test_a_critic_that_is_weaker_than_the_player_is_found(
    facts: dict[str, object], runs: npt.NDArray[np.void] | None, weak: str
) -> None:
    """It is not weaker than the player that it learned from."""
    learned_from = [PlayedBy("toy", "a" * 64, 1), PlayedBy("nobody", "", 1)]
    judge = Judge.of_critic(critic, TILE, thresholds=(TILE // 2, TILE), sha256="", players=learned_from)
    judge.__dict__["expected"] = 0.25
    check_warning(judge.weakness(facts, runs), weak)


def check_warning(found: str | None, expected: str) -> None:
    """Compare a warning with the parts of it that a test expects, or with its absence."""
    if not expected:
        assert found is None
        return
    assert found is not None
    assert all(part in found for part in expected.split(", "))
    are = "are not" if "is weaker" in expected else "may not be"
    assert found.endswith(f"Its losses {are} the player's mistakes.")


def test_a_judge_expects_what_its_first_boards_are_worth() -> None:
    found = CRITIC_JUDGE.expected
    assert 0 < found < 1
    assert player_judge().expected > 1
