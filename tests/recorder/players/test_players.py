"""Players: moves against the formulas, ties included, and the registry."""

import functools
import itertools
import random
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from tests import reference
from tests.recorder.choosing import (
    GAMMA,
    boards,
    choice,
    choose_once,
    counts_of,
    evenly,
    outcomes,
    u64,
    words,
)

from tape2048.errors import ConfigError
from tape2048.jit.compiler import kernel
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE, choose
from tape2048_recorder.players import options, simple

Cells = tuple[int, ...]


@kernel
def _choose_each(player: Any, boards: Any, moves: Any) -> None:
    state = np.uint64(0)
    for i in range(boards.shape[0]):
        moves[i], _after, state = choose(player, boards[i], state, state)


ALL = [("random", {}), ("greedy", {}), *(("expectimax", {"depth": depth}) for depth in (1, 2, 3))]


@pytest.mark.parametrize(("name", "args"), ALL)
@settings(max_examples=60)
@given(cells=boards, state=words)
def test_a_choice_is_legal_with_its_afterstate(
    name: str, args: dict[str, int], cells: list[int], state: int
) -> None:
    if args.get("depth") == 3 and cells.count(0) > 1:  # an empty board takes a second
        cells = [tile or cell % 7 for cell, tile in enumerate(cells)]
    move, after, _ = choice(make(name, **args), cells, state)
    legal = reference.legal_moves(cells)
    if legal:
        assert move in legal
        assert after == reference.seen_slide(cells, move)[0]
    else:
        assert move == NO_MOVE


@functools.cache
def make(name: str, **args: int) -> Any:
    return options.make_player(name, args)


@given(boards, words)
def test_random_draws_as_the_reference(cells: list[int], state: int) -> None:
    generator = reference.Generator(state, reference.GOLDEN_GAMMA)
    expected = reference.random_move(cells, generator)
    move, _, after = choice(make("random"), cells, state)
    assert move == (NO_MOVE if expected is None else expected)
    assert after == generator.state


def best_merges(cells: list[int]) -> list[int]:
    scores = {move: reference.seen_slide(cells, move)[1] for move in reference.legal_moves(cells)}
    return [move for move in scores if scores[move] == max(scores.values())]


def boards_by(key: Callable[[list[int]], list[int]], seed: int, merges: bool = False) -> list[list[int]]:
    """A board for each set of moves that ``key`` finds on random boards, with merges where there are any."""
    draw = random.Random(seed)
    found: dict[tuple[int, ...], list[int]] = {}
    for i in range(6000):
        cells = draw.choices([0, 1, 2, 3, 4], weights=[draw.choice([0, 1, 9]), 3, 2, 1, 1], k=16)
        if i % 2:  # lines packed to one side leave fewer moves
            cells = reference.seen_slide(
                reference.seen_slide(cells, draw.choice([0, 1]))[0], draw.choice([2, 3])
            )[0]
        moves = tuple(key(cells))
        if moves not in found or (merges and reference.seen_slide(found[moves], moves[0])[1] == 0):
            found[moves] = cells
    assert {len(moves) for moves in found if moves} == {1, 2, 3, 4}
    return [found[moves] for moves in sorted(found) if moves]


@pytest.mark.parametrize(("name", "key"), [("random", reference.legal_moves), ("greedy", best_merges)])
def test_equal_moves_are_drawn_equally_often(name: str, key: Callable[[list[int]], list[int]]) -> None:
    for cells in boards_by(key, 4, merges=name == "greedy"):
        assert evenly(counts_of(make(name), cells), key(cells)), cells


@pytest.mark.parametrize(
    ("name", "args", "scores"),
    [
        ("random", {}, [304, 688, 1328, 1320, 1244, 2264, 996, 776]),
        ("greedy", {}, [320, 1128, 2816, 3112, 2136, 1480, 1164, 380]),
        ("expectimax", {"depth": 1}, [75356, 79148, 61604]),
        ("expectimax", {"depth": 2}, [115248]),
    ],
)
def test_players_play_the_same_games(name: str, args: dict[str, int], scores: list[int]) -> None:
    """Sessions of earlier versions can be replayed."""
    seeds = rng.game_seeds(2048, np.arange(len(scores), dtype=np.uint64))
    assert outcomes(options.make_player(name, args), seeds).scores.tolist() == scores


@functools.cache
def line_value(line: tuple[int, int, int, int], *, outer: bool) -> float:
    w = simple.WEIGHTS
    pairs = list(itertools.pairwise(line))
    merges = sum(a == b != 0 for a, b in pairs)
    rough = sum(abs(a - b) for a, b in pairs if a and b)
    rise = sum(b**w.power - a**w.power for a, b in pairs if b > a)
    fall = sum(a**w.power - b**w.power for a, b in pairs if a > b)
    value = w.base + w.empty * line.count(0) + w.merge * merges - w.smooth * rough
    value -= w.monotone * min(rise, fall) + w.total * sum(tile**w.power for tile in line)
    if outer:
        value += w.corner * max(line[0], line[3]) ** w.corner_power
    return max(value, 1)


def leaf_value(cells: list[int]) -> float:
    lines = reference.LINES[reference.LEFT] + reference.LINES[reference.UP]
    return sum(
        line_value(tuple(cells[cell] for cell in line), outer=i % 4 in {0, 3})  # type: ignore[arg-type]
        for i, line in enumerate(lines)
    )


@functools.cache
def afterstate_value(after: Cells, depth: int) -> float:
    """The expectation over the spawns, ``depth`` of them deep, each answered with the best move."""
    if depth == 0:
        return leaf_value(list(after))
    empty = reference.empty_cells(list(after))
    total = 0.0
    for cell in empty:
        for exponent, chance in ((1, 0.9), (2, 0.1)):
            board = list(after)
            board[cell] = exponent
            total += chance * max(
                (
                    afterstate_value(tuple(reference.seen_slide(board, move)[0]), depth - 1)
                    for move in reference.legal_moves(board)
                ),
                default=0.0,
            )
    return total / len(empty)


def positions(count: int, *, empty_max: int, seed: int) -> list[list[int]]:
    """Boards as play meets them: many small tiles, a few large ones; some lost after the next spawn."""
    rng_ = random.Random(seed)
    found = []
    while len(found) < count:
        top = rng_.randint(3, 14)
        cells = [max(1, top - int(rng_.expovariate(0.25))) for _ in range(16)]
        for cell in rng_.sample(range(16), rng_.randint(0, empty_max)):
            cells[cell] = 0
        if reference.legal_moves(cells):
            found.append(cells)
    return found


def test_expectimax_is_its_formula() -> None:
    cases = [
        *((1, cells) for cells in positions(20, empty_max=10, seed=1)),
        *((2, cells) for cells in positions(4, empty_max=2, seed=2)),
        *((3, cells) for cells in positions(2, empty_max=0, seed=3)),
    ]
    for depth, cells in cases:
        player = make("expectimax", depth=depth)
        values = {}
        for move in reference.legal_moves(cells):
            after = reference.seen_slide(cells, move)[0]
            values[move] = afterstate_value(tuple(after), depth)
            compiled = float(simple._value(player, u64(after)))
            assert compiled == pytest.approx(values[move], rel=3e-6), (depth, cells, move)
        move, _, state = choice(player, cells, state=77)
        assert values[move] == pytest.approx(max(values.values()), rel=3e-6), (depth, cells)
        assert state == 77, "nothing is drawn"


@pytest.mark.parametrize(("depth", "empty_max", "count"), [(2, 6, 100), (3, 2, 30)])
def test_the_transposition_table_changes_no_choice(depth: int, empty_max: int, count: int) -> None:
    packed = np.array([u64(cells) for cells in positions(count, empty_max=empty_max, seed=depth)])
    used = options.make_player("expectimax", {"depth": depth})
    first, again = (np.empty(count, dtype=np.uint64) for _ in range(2))
    _choose_each(used, packed, first)
    assert np.count_nonzero(used.cache_keys) > count
    _choose_each(used, packed, again)
    assert np.array_equal(first, again)
    fresh = options.make_player("expectimax", {"depth": depth})
    for i in range(count):
        fresh.cache_keys[:] = 0
        assert int(choose_once(fresh, packed[i], np.uint64(0), GAMMA)[0]) == first[i]


def test_the_registry_is_told_by_name(tmp_path: Path) -> None:
    weights = tmp_path / "weights"
    weights.touch()
    for name, kind in options.REGISTRY.items():
        assert kind.name == name
        assert kind.summary
        defaults = {key: parameter.default for key, parameter in kind.parameters.items()}
        needed = {"weights": str(weights)} if "weights" in defaults else {}
        assert options.check_player(name, needed) == defaults | needed
        for key, parameter in kind.parameters.items():
            assert parameter.text
            if parameter.kind == "str":
                continue
            assert parameter.ge <= parameter.default <= parameter.le
            for value in (parameter.ge, parameter.le):
                assert options.check_player(name, {**needed, key: value})[key] == value


@pytest.mark.parametrize(
    ("name", "args", "said", "hint"),
    [
        ("expectimacks", {}, "did you mean 'expectimax'", "Use one of: random, greedy, expectimax"),
        ("Greedy", {}, "did you mean 'greedy'", "one of: "),
        ("mcts", {}, "no player is called 'mcts'", "one of: "),
        ("expectimax", {"dpeth": 2}, "The nearest is 'depth'", "its settings: depth"),
        ("random", {"depth": 2}, "player 'random': found 'depth'", "its settings: none"),
    ],
)
def test_what_is_unknown_is_refused_with_the_nearest(
    name: str, args: dict[str, int], said: str, hint: str
) -> None:
    for function in (options.check_player, options.make_player):
        with pytest.raises(ConfigError, match=said) as caught:
            function(name, args)
        assert hint in caught.value.hint


def test_a_parameter_out_of_its_range_is_refused() -> None:
    for value in (0, 4, -1, 2**70, "2", 2.5, True, None):
        with pytest.raises(ConfigError, match="expected a whole number from 1 to 3"):
            options.check_player("expectimax", {"depth": value})


#: Raise a player's version, and nothing else, where these change: they stand in published sessions.
SHA256 = {
    "random": "6ee999fa67618f3671fd56ef4d9e97b7188c990b071f330b8e47c958f83495bb",
    "greedy": "e0d432294b03fa968b1f19cf2d6e350c2dbd8d11bd98adebafbd716b55fac355",
}


@pytest.mark.parametrize("name", SHA256)
def test_the_hash_of_a_player_stays(name: str) -> None:
    assert options.player_sha256(name, make(name)) == SHA256[name]


def test_different_players_have_different_hashes(monkeypatch: pytest.MonkeyPatch) -> None:
    hashes = {options.player_sha256(name, make(name, **args)) for name, args in ALL}
    player = make("expectimax", depth=1)
    hashes.add(options.player_sha256("expectimax", player._replace(inner=player.outer)))
    other = simple.line_tables(simple.WEIGHTS._replace(merge=501.0))[1]
    hashes.add(options.player_sha256("expectimax", player._replace(inner=other)))
    kind = options.REGISTRY["random"]
    monkeypatch.setitem(options.REGISTRY, "random", kind._replace(version=kind.version + 1))
    hashes.add(options.player_sha256("random", make("random")))
    assert len(hashes) == len(ALL) + 3
    assert all(len(value) == 64 for value in hashes)
