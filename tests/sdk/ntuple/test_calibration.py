"""Calibrations: the fit of outcomes, the look-up, and the files."""

import dataclasses
from pathlib import Path
from typing import Any

import msgspec
import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.errors import ModelError
from tape2048.ntuple import Network, NetworkLayout, save_network
from tape2048.ntuple.calibrated_network import CALIBRATIONS, calibrations_of, find_calibration
from tape2048.ntuple.calibration import KNOTS, LOWEST, Calibration, Differences
from tape2048.ntuple.outcomes import BoardOutcomes, fit, isotonic, outcomes, phases_of

U64 = np.uint64


def sampled(games: int, seed: int = 0, knots: int = 3 * KNOTS) -> BoardOutcomes:
    """A law that depends on the phase: the score is 10 times the value, less 100 per step, plus noise."""
    random = np.random.default_rng(seed)
    phases = np.tile(np.arange(knots) + 0.5, games)
    values = random.uniform(100, 200, len(phases))
    scores = 10 * values - 100 * phases / KNOTS + random.normal(0, 50, len(phases))
    reached = random.random(len(phases)) < (values - 100) / 100
    return BoardOutcomes(phases, values, scores, reached, np.repeat(np.arange(games), knots))


def calibration(found: BoardOutcomes, games: int, **more: Any) -> Calibration:
    return Calibration("a" * 64, "b" * 64, "a player", games, **fit(found), **more)


def board(highest: int, lower: int = 0) -> int:
    return highest << 60 | lower << 56


def test_scores_are_those_of_the_law_for_unseen_values() -> None:
    table = calibration(sampled(2000), 2000).table
    boards = np.array([board(LOWEST), board(LOWEST + 1), board(LOWEST + 1, LOWEST)], U64)
    phases = phases_of(boards)
    assert phases.tolist() == [0, KNOTS, KNOTS + 8]
    for value in (112.0, 150.0, 188.0):
        scores, reach = outcomes(table, boards, np.full(3, value, np.float32))
        # The sample of a step is drawn half a step later.
        np.testing.assert_allclose(scores, 10 * value - 100 * phases / KNOTS, atol=15)
        np.testing.assert_allclose(reach, (value - 100) / 100, atol=0.07)


def test_values_outside_the_table_have_its_ends() -> None:
    table = calibration(sampled(500), 500).table
    boards = np.full(2, board(LOWEST), U64)
    (low, high), _ = outcomes(table, boards, np.array([-1e9, 1e9], np.float32))
    assert (low, high) == (table[1, 0].min(), table[1, 0].max())


def test_a_board_without_moves_is_worth_nothing() -> None:
    table = calibration(sampled(500), 500).table
    dead = np.array([0x1212212112122121], U64)
    assert outcomes(table, dead, np.zeros(1, np.float32)).tolist() == [[0], [0]]


def test_rare_phases_have_no_figures() -> None:
    """Too few games reach the later phases; their boards get the last figures."""
    few, many = sampled(99, 1), sampled(300, 2, knots=KNOTS)
    parts = (np.concatenate([a, b]) for a, b in zip(*map(msgspec.structs.astuple, (few, many)), strict=True))
    phases, values, scores, reached, games = parts
    games[len(few.games) :] += 99
    found = calibration(BoardOutcomes(phases, values, scores, reached, games), 399)
    assert len(found.values) == len(found.phase_games) == KNOTS
    assert min(found.phase_games) >= 300
    assert (found.table[:, KNOTS:] == found.table[:, KNOTS - 1 : KNOTS]).all()


@settings(max_examples=50)
@given(st.lists(st.tuples(st.floats(-100, 100), st.floats(0.1, 10)), min_size=1, max_size=8))
def test_isotonic_is_the_best_ascending_fit(pairs: list[tuple[float, float]]) -> None:
    means, weights = map(np.array, zip(*pairs, strict=True))
    found = isotonic(means, weights)
    assert (np.diff(found) >= -1e-9).all()
    blocks: list[list[float]] = []  # pool adjacent violators
    for mean, weight in pairs:
        blocks.append([mean, weight, 1])
        while len(blocks) > 1 and blocks[-2][0] > blocks[-1][0]:
            (m1, w1, n1), (m2, w2, n2) = blocks[-2:]
            blocks[-2:] = [[(m1 * w1 + m2 * w2) / (w1 + w2), w1 + w2, n1 + n2]]
    np.testing.assert_allclose(found, [m for m, _, n in blocks for _ in range(int(n))], atol=1e-9)


def test_differences_shrink_to_their_real_part() -> None:
    real = [[0, 0, 100, 1000, 5000, 20_000]] * 2 + [[100, 300, 1000, 3000, 10_000, 30_000]]
    spread = [[10, 10, 10, 10, 10, 10]] * 3
    known = calibration(sampled(200), 200, differences=Differences(real, spread, [[20] * 6] * 3))
    found, spreads = known.real_differences(
        np.array([5, 15], np.uint8), np.array([[0, 1000, 60_000, np.nan], [0, 1000, 60_000, np.nan]])
    )
    np.testing.assert_allclose(found, [[0, 100, 40_000, np.nan], [0, 1000, 60_000, np.nan]])
    assert spreads[0, :3].tolist() == [0, 10, 20]


def network_with(path: Path, calibrations: Any) -> str:
    network = Network.empty(NetworkLayout.of(["0123"]))
    save_network(dataclasses.replace(network, facts={CALIBRATIONS: calibrations}), path)
    return str(path)


def test_a_file_keeps_its_calibrations(tmp_path: Path) -> None:
    known = calibration(sampled(200), 200)
    weights = network_with(tmp_path / "a.ntuple", msgspec.to_builtins([known]))
    assert calibrations_of(weights) == [known]
    assert find_calibration(weights, "a" * 64) == known
    assert find_calibration(weights, "a" * 64, "c" * 64) is None
    assert find_calibration(weights, "c" * 64) is None


def _descending(facts: dict[str, Any]) -> None:
    facts["values"][0].reverse()


def _narrow(facts: dict[str, Any]) -> None:
    facts["scores"] = [row[:-1] for row in facts["scores"]]


@pytest.mark.parametrize(
    "damage",
    [_descending, _narrow, lambda facts: facts.update(games="many"), lambda facts: facts.pop("reach")],
)
def test_an_invalid_calibration_is_an_error(tmp_path: Path, damage: Any) -> None:
    facts = msgspec.to_builtins(calibration(sampled(200), 200))
    damage(facts)
    weights = network_with(tmp_path / "a.ntuple", [facts])
    with pytest.raises(ModelError, match="calibration") as caught:
        calibrations_of(weights)
    assert str(tmp_path) in str(caught.value)


def test_the_shipped_networks_are_calibrated() -> None:
    found: npt.NDArray[Any] = np.array(
        [
            [one.games, len(one.values)]
            for name in ("fast", "small", "strong")
            for one in calibrations_of(name)
        ]
    )
    assert len(found) >= 6
    assert (found > 100).all()
