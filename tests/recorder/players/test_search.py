"""The look-ahead: values against the formula, and bit for bit the same by the shortcuts as without them."""

from __future__ import annotations

import functools
import math
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference
from tests.recorder.choosing import outcomes
from tests.recorder.ntuple_training import slow

from tape2048.errors import ConfigError
from tape2048.game.rules import empty_mask
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount
from tape2048.ntuple.network import load_network
from tape2048_recorder.game import rng
from tape2048_recorder.players import registry
from tape2048_recorder.players.ntuple import NTuple, move_values, of_network
from tape2048_recorder.players.search import (
    _each_answer,
    _listed_answers,
    best_answers,
    costs_of,
    empty_table,
    expected_once,
)

if TYPE_CHECKING:
    from tape2048.ntuple.network import Network

#: As in the tests of the player: what is compiled for one serves the other.
TUPLES = ("0145", "1256", "0123", "4567")
CHANCES = {1: 0.9, 2: 0.1}


@functools.cache
def network(dtype: type = np.float32) -> Network:
    return slow.random_network(*TUPLES, stages=(64,), dtype=dtype, seed=1, spread=500)


def always(spawns: int, chance: float = 0.0, margin: float = 0.0, **how: Any) -> NTuple:
    return of_network(
        network(),
        look_below=16,
        look_twice_below=16,
        look_spawns=spawns,
        look_chance=chance,
        look_margin=margin,
        **how,
    )


def without_table(player: NTuple) -> NTuple:
    keys, values = empty_table(0)
    return player._replace(cache_keys=keys, cache_values=values)


def late_boards(count: int, empty: int, seed: int) -> list[list[int]]:
    """Boards with few empty cells, one tile of each height from 4 on, and small ones."""
    draw = np.random.default_rng(seed)
    found = []
    while len(found) < count:
        cells = [*range(10, 3, -1), *draw.integers(1, 4, 9 - empty).tolist(), *[0] * empty]
        cells = draw.permutation(cells).tolist()
        if reference.legal_moves(cells):
            found.append(cells)
    return found


def slow_expected(cells: list[int], spawns: int, bits: float) -> float:
    """The expectation of the best answer; a line of spawns ends where ``bits`` of improbability are used."""
    empty = reference.empty_cells(cells)
    total = 0.0
    for cell in empty:
        for exponent, chance in CHANCES.items():
            board = [exponent if i == cell else tile for i, tile in enumerate(cells)]
            left = bits - round(2 * math.log2(len(empty) / chance)) / 2
            deeper = spawns > 1 and left >= 0
            answers = []
            for move in reference.legal_moves(board):
                after, score = reference.slide(board, move)
                value = slow_expected(after, spawns - 1, left) if deeper else slow.value(network(), after)
                answers.append(score + value)
            total += chance * max(answers, default=0.0)
    return total / len(empty)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("spawns", "chance", "empty"), [(2, 0.0, 1), (2, 0.1, 2), (2, 0.3, 1), (3, 0.02, 1), (4, 0.01, 0)]
)
def test_values_are_those_of_the_formula(spawns: int, chance: float, empty: int) -> None:
    cases = late_boards(4, empty, seed=spawns)
    bits = math.inf if chance == 0 else math.floor(-2 * math.log2(chance)) / 2
    found = move_values(always(spawns, chance), slow.packed(cases))
    full = move_values(always(min(spawns, 3)), slow.packed(cases))
    for cells, mine in zip(cases, found, strict=True):
        for move in reference.legal_moves(cells):
            after, score = reference.slide(cells, move)
            expected = score + slow_expected(after, spawns, bits)
            assert mine[move] == pytest.approx(expected, rel=1e-5, abs=0.05), (cells, move)
    assert (chance == 0) == np.array_equal(found, full, equal_nan=True), "the cut-off cuts"


@pytest.mark.parametrize("margin", [0.0, 800.0])
@pytest.mark.parametrize(("spawns", "chance"), [(2, 0.0), (2, 0.01), (3, 0.003), (5, 0.001)])
def test_the_table_changes_no_bit(spawns: int, chance: float, margin: float) -> None:
    """All boards after one another, so that it is full of values of others."""
    player = always(spawns, chance, margin)
    emptiest = 4 if spawns > 2 else 7
    cases = [cells for cells in slow.random_boards(120, seed=21) if reference.legal_moves(cells)]
    cases = [cells for cells in cases if cells.count(0) <= emptiest]
    cases += [cells for empty in range(emptiest) for cells in late_boards(4, empty, seed=empty)]
    boards = slow.packed(cases)
    assert len(player.cache_values) == (spawns - 1) << 12
    found = move_values(player, boards)
    assert np.array_equal(found, move_values(without_table(player), boards), equal_nan=True)
    again = move_values(player, boards[::-1].copy())[::-1]
    assert np.array_equal(found, again, equal_nan=True)


@kernel
def both_ways(player: Any, afters: Any, out: Any) -> None:
    for i in range(afters.shape[0]):
        empty = popcount(empty_mask(afters[i]))
        out[i, 0] = _each_answer(player, afters[i], empty)
        out[i, 1] = _listed_answers(player, afters[i], empty)
        out[i, 2] = expected_once(player, afters[i])


@pytest.mark.parametrize("dtype", [np.float32, np.int16])
def test_listing_leaves_changes_no_bit(dtype: type) -> None:
    """Also of boards with 15 empty cells, and with none that slides."""
    player = of_network(network(dtype), look_below=16)
    cases = [cells for cells in slow.random_boards(3000, seed=3) if 0 < cells.count(0) < 16]
    cases += [[e if i == cell else 0 for i in range(16)] for cell in range(16) for e in (1, 2, 15)]
    cases += [[1, 2, 1, 2, 2, 1, 2, 1] * 2, [15] * 15 + [0]]
    cases[-2][5] = 0
    afters: npt.NDArray[np.uint64] = slow.packed(cases)
    out = np.empty((len(afters), 3), np.float32)
    both_ways(player, afters, out)
    assert np.array_equal(out[:, 0], out[:, 1])
    assert np.array_equal(out[:, 0], out[:, 2])
    assert len(np.unique(out[:, 0])) > 2000


def test_best_answers_are_those_of_the_network() -> None:
    cases = list(slow.random_boards(50, seed=5))
    found = best_answers(always(2), slow.packed(cases))
    for cells, mine in zip(cases, found.tolist(), strict=True):
        values = slow.move_values(network(), cells, looks_ahead=False)
        assert mine == pytest.approx(max(values.values(), default=0.0), rel=1e-6)


def test_a_search_deepens_with_big_tiles() -> None:
    crowded = [10, 11, 12, 13, 1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 1, 0]
    plain = [1, 2, 3, 4, 1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 1, 0]
    boards = slow.packed([crowded, plain])
    deeper = move_values(always(2, look_deeper_from=4), boards)
    two, three = move_values(always(2), boards), move_values(always(3), boards)
    assert np.array_equal(deeper, np.stack([three[0], two[1]]), equal_nan=True)
    assert not np.array_equal(two[0], three[0], equal_nan=True)
    assert np.array_equal(move_values(always(2, look_deeper_from=5), boards), two, equal_nan=True)


def test_a_spawn_costs_its_improbability_in_half_bits() -> None:
    costs, budget = costs_of(0.01)
    assert budget == 13  # 6.64 bits
    assert costs[0, [1, 2, 9]].tolist() == [0, 2, 7]
    assert costs[1, [1, 2, 9]].tolist() == [7, 9, 13]
    costs, budget = costs_of(0)
    assert (budget, costs.any()) == (0, False)


def test_deep_search_games_follow_from_seeds() -> None:
    """Whatever was played before with the same table."""
    player = always(3, 0.05)
    seeds = rng.game_seeds(7, np.arange(3, dtype=np.uint64))
    scores = outcomes(player, seeds).scores.tolist()
    assert outcomes(player, seeds[::-1].copy()).scores.tolist() == scores[::-1]
    assert np.count_nonzero(player.cache_values) > 3000, "the table is used"


@pytest.mark.parametrize("args", [{"look_spawns": 4}, {"look_spawns": 3, "look_deeper_from": 2}])
def test_a_search_without_an_end_is_refused(args: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match="takes minutes for a move"):
        registry.check_player("ntuple", args)
    assert registry.check_player("ntuple", {**args, "look_chance": 0.001})["look_chance"] == 0.001
    assert registry.check_player("ntuple", {"look_spawns": 3})["look_spawns"] == 3


def test_the_hash_of_a_player_from_before_stays() -> None:
    """Sessions that it played can be replayed."""
    default = load_network("default")
    player = of_network(default, look_below=3, look_margin=6400.0, downgrade=default.downgrade)
    assert bytes(player.identity).hex().startswith("999dc842ec55a79e")
    others = [{"look_spawns": 3}, {"look_chance": 0.01}, {"look_deeper_from": 1}]
    assert len({bytes(of_network(network(), **how).identity) for how in ({}, *others)}) == 4
