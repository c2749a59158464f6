"""The ``ntuple`` player and its look-ahead against the formulas, on networks of integers."""

import dataclasses
import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
from hypothesis import given, settings
from scipy import stats
from tests import reference
from tests.recorder.choosing import boards, choice, counts_of, evenly, outcomes, u64, words
from tests.recorder.ntuple_training import slow

from tape2048.errors import ConfigError, ModelError
from tape2048.game.rules import empty_mask
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import popcount
from tape2048.ntuple.lookup import downgraded
from tape2048.ntuple.network import Network, load_network, save_network
from tape2048_recorder.game import rng
from tape2048_recorder.game.player_api import NO_MOVE
from tape2048_recorder.players import options
from tape2048_recorder.players.ntuple import (
    NTuple,
    _each_answer,
    _listed_answers,
    empty_table,
    expected_once,
    mix_choices,
    move_values,
    of_network,
)
from tape2048_recorder.players.parameters import parse_mix

#: Two stages as after training, and the shape of the network ``fast``, whose kernels other tests compile.
DTYPES: dict[str, dict[str, Any]] = {"f32": {"stages": (64,)}, "i16": {"dtype": np.int16}}
TUPLES = {"f32": ("0145", "1256", "0123", "4567"), "i16": slow.FAST}


@functools.cache
def network(kind: str = "f32", seed: int = 1, spread: int = 500) -> Network:
    return slow.random_network(*TUPLES[kind], **DTYPES[kind], seed=seed, spread=spread)


@functools.cache
def slow_values(kind: str, cells: tuple[int, ...], *, looks_ahead: bool) -> dict[int, float]:
    return slow.move_values(network(kind), list(cells), looks_ahead=looks_ahead)


@functools.cache
def make(kind: str = "f32", **how: Any) -> NTuple:
    return of_network(network(kind), **how)


def seeds_of(games: int, seed: int = 3) -> npt.NDArray[np.uint64]:
    return rng.game_seeds(seed, np.arange(games, dtype=np.uint64))


@pytest.mark.parametrize("look", [0, 2, 16])
@pytest.mark.parametrize("kind", DTYPES)
@settings(max_examples=50)
@given(cells=boards, state=words)
def test_a_choice_is_legal_with_its_afterstate(kind: str, look: int, cells: list[int], state: int) -> None:
    move, after, _ = choice(make(kind, look=look), cells, state)
    if reference.legal_moves(cells):
        assert move in reference.legal_moves(cells)
        assert after == reference.seen_slide(cells, move)[0]
    else:
        assert (move, after) == (NO_MOVE, cells)


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("look", [0, 2, 16])
def test_looking_ahead_is_an_expectation(kind: str, look: int) -> None:
    player = make(kind, look=look)
    cases = [cells for cells in slow.random_boards(32, seed=12, highest=8) if reference.legal_moves(cells)]
    found = move_values(player, slow.packed(cases))
    differ = 0
    for cells, mine in zip(cases, found, strict=True):
        looks_ahead = cells.count(0) < look
        values = slow_values(kind, tuple(cells), looks_ahead=looks_ahead)
        assert [m for m in range(4) if not math.isnan(mine[m])] == list(values)
        for move, expected in values.items():
            assert mine[move] == pytest.approx(expected, rel=1e-5, abs=0.05), (cells, move)
        move, _, _ = choice(player, cells)
        assert values[move] >= max(values.values()) - 0.1
        if looks_ahead:
            shallow = slow_values(kind, tuple(cells), looks_ahead=False)
            differ += shallow[move] < max(shallow.values())
    assert differ or look < 2, "some choices are others than without"


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("margin", [1, 400, 100_000])
def test_the_look_ahead_is_at_moves_within_the_margin(kind: str, margin: float) -> None:
    player = make(kind, look=16, look_margin=margin)
    chosen_otherwise = full_boards = 0
    for cells in slow.random_boards(40, seed=13, highest=8):
        now = slow_values(kind, tuple(cells), looks_ahead=False)
        if not now:
            continue
        ahead = slow_values(kind, tuple(cells), looks_ahead=True)
        full = 0 not in cells
        near = [move for move in now if full or now[move] >= max(now.values()) - margin]
        best = max(ahead[move] for move in near)
        move, _, _ = choice(player, cells)
        assert move in near
        assert len(near) == 1 or ahead[move] >= best - 0.1
        chosen_otherwise += ahead[move] < max(ahead.values()) - 0.1
        full_boards += full
    assert full_boards > 1
    assert (chosen_otherwise > 0) == (margin < 100_000), "a wide margin leaves nothing out, a narrow one does"


def always(spawns: int, chance: float = 0.0, margin: float = 0.0, **how: Any) -> NTuple:
    how = {"look": "/".join(["16"] * spawns), **how}
    return of_network(network(), look_chance=chance, look_margin=margin, **how)


def without_table(player: NTuple) -> NTuple:
    return player._replace(cache_table=empty_table(0))


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
        for exponent, chance in slow.SPAWNS:
            board = [exponent if i == cell else tile for i, tile in enumerate(cells)]
            left = bits - round(2 * math.log2(len(empty) / chance)) / 2
            deeper = spawns > 1 and left >= 0
            answers = []
            for move in reference.legal_moves(board):
                after, score = reference.seen_slide(board, move)
                value = slow_expected(after, spawns - 1, left) if deeper else slow.value(network(), after)
                answers.append(score + value)
            total += chance * max(answers, default=0.0)
    return total / len(empty)


@pytest.mark.parametrize(
    ("spawns", "chance", "empty"), [(2, 0.0, 1), (2, 0.1, 2), (2, 0.3, 1), (3, 0.02, 0), (4, 0.01, 0)]
)
def test_values_are_those_of_the_formula(spawns: int, chance: float, empty: int) -> None:
    cases = late_boards(2, empty, seed=spawns)
    bits = math.inf if chance == 0 else math.floor(-2 * math.log2(chance)) / 2
    found = move_values(always(spawns, chance), slow.packed(cases))
    full = move_values(always(min(spawns, 3)), slow.packed(cases))
    for cells, mine in zip(cases, found, strict=True):
        for move in reference.legal_moves(cells):
            after, score = reference.seen_slide(cells, move)
            expected = score + slow_expected(after, spawns, bits)
            assert mine[move] == pytest.approx(expected, rel=1e-5, abs=0.05), (cells, move)
    assert (chance == 0) == np.array_equal(found, full, equal_nan=True), "the cut-off cuts"


@pytest.mark.parametrize("margin", [0.0, 800.0])
@pytest.mark.parametrize(("spawns", "chance"), [(2, 0.0), (2, 0.01), (3, 0.003), (5, 0.001)])
def test_the_table_changes_no_bit(spawns: int, chance: float, margin: float) -> None:
    """All boards after one another, so that it is full of values of others."""
    player = always(spawns, chance, margin)
    emptiest = 2 if spawns > 2 else 5
    cases = [cells for cells in slow.random_boards(60, seed=21) if reference.legal_moves(cells)]
    cases = [cells for cells in cases if cells.count(0) <= emptiest]
    cases += [cells for empty in range(emptiest) for cells in late_boards(2, empty, seed=empty)]
    boards = slow.packed(cases)
    assert len(player.cache_table) == spawns << 12
    found = move_values(player, boards)
    player.cache_table["after"], player.cache_table["value"] = 1, np.nan  # each entry is of another board
    assert np.array_equal(found, move_values(player, boards), equal_nan=True)
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


@pytest.mark.parametrize("kind", DTYPES)
def test_listing_leaves_changes_no_bit(kind: str) -> None:
    """Also of boards with 15 empty cells, and with none that slides."""
    player = make(kind, look=16)
    cases = [cells for cells in slow.random_boards(600, seed=3) if 0 < cells.count(0) < 16]
    cases += [[e if i == cell else 0 for i in range(16)] for cell in range(16) for e in (1, 2, 15)]
    cases += [[1, 2, 1, 2, 2, 1, 2, 1] * 2, [15] * 15 + [0]]
    cases[-2][5] = 0
    afters: npt.NDArray[np.uint64] = slow.packed(cases)
    out = np.empty((len(afters), 3), np.float32)
    both_ways(player, afters, out)
    assert np.array_equal(out[:, 0], out[:, 1])
    assert np.array_equal(out[:, 0], out[:, 2])
    assert len(np.unique(out[:, 0])) > 400


def test_a_search_deepens_with_big_tiles() -> None:
    crowded = [10, 11, 12, 13, 1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 1, 0]
    plain = [1, 2, 3, 4, 1, 2, 1, 2, 3, 1, 2, 1, 2, 3, 1, 0]
    boards = slow.packed([crowded, plain])
    deeper = move_values(make(look="16/16+4:16/16/16"), boards)
    two, three = move_values(always(2), boards), move_values(always(3), boards)
    assert np.array_equal(deeper, np.stack([three[0], two[1]]), equal_nan=True)
    assert not np.array_equal(two[0], three[0], equal_nan=True)
    assert np.array_equal(move_values(make(look="16/16+5:16/16/16"), boards), two, equal_nan=True)


@pytest.mark.parametrize("unsure", [300.0, 1000.0])
def test_a_search_deepens_while_the_best_value_changes(unsure: float) -> None:
    """But not where there is one move, nor deeper than ``look`` has numbers."""
    cases = [BY_LEGAL[1], *(cells for empty in range(3) for cells in late_boards(20, empty, seed=empty))]
    boards = slow.packed(cases)
    depths = [make(look=0), make(look=16), always(2), always(3)]
    values = np.stack([move_values(player, boards) for player in depths])
    best, moves = np.nanmax(values, axis=2), np.isfinite(values[0]).sum(axis=1)
    spawns = np.ones(len(cases), dtype=int)
    for deeper in (2, 3):
        changed = np.abs(best[deeper - 1] - best[deeper - 2]) > unsure
        spawns[(spawns == deeper - 1) & changed & (moves > 1)] = deeper
    assert set(spawns) == {1, 2, 3}
    player = of_network(network(), look="16/0/0", look_unsure=unsure)
    found = move_values(player, boards)
    assert np.array_equal(found, values[spawns, np.arange(len(cases))], equal_nan=True)
    for cells, mine in zip(cases, found, strict=True):
        assert mine[choice(player, cells)[0]] == np.nanmax(mine)


@pytest.mark.parametrize("look", ["16/4/4/4", "3+4:16/16/16/16"])
def test_a_search_without_an_end_is_refused(look: str) -> None:
    with pytest.raises(ConfigError, match="more spawns take minutes per move"):
        options.check_player("ntuple", {"look": look})
    assert options.check_player("ntuple", {"look": look, "look_chance": 0.001})["look_chance"] == 0.001
    assert options.check_player("ntuple", {"look": "16/4/4"})["look"] == "16/4/4"


def test_the_hash_of_a_player_from_before_stays() -> None:
    """Sessions that it played can be replayed."""
    default = load_network("small")
    player = of_network(default, look=3, look_margin=6400.0, downgrade=default.downgrade)
    assert bytes(player.identity).hex().startswith("999dc842ec55a79e")
    others = [{"look_chance": 0.01}, {"look_unsure": 1.0}]
    others += [{"look": look} for look in ("0/0/0", "0+1:0/0/0", "0+4:3", "0+4:3/3", "0+3:3", "0+3:3+4:3")]
    assert len({bytes(of_network(network(), **how).identity) for how in ({}, *others)}) == 9


@pytest.mark.parametrize(
    ("former", "look", "sha256", "score"),
    [
        ({"look_below": 3}, "3", "9757fe8b5a216cdf", 152_588),
        ({"look_below": 3, "look_spawns": 3}, "3/0/0", "a830845a34c7a51a", 152_588),
        ({"look_below": 3, "look_twice_below": 2, "look_unsure": 30.0}, "3/2", "d5bd60334d0b2f1f", 76_700),
        (
            {
                "look_below": 3, "look_twice_below": 2, "look_spawns": 3, "look_deeper_from": 2,
                "look_chance": 0.01,
            },
            "3/2/2+2:3/2/2/2", "da2f678309e2961c", 153_856,
        ),
        ({"look_below": 3, "look_unsure": 30.0}, "3/0", "47cb12d0b8c1a259", 151_480),
        ({"look_below": 0, "mix": "0:2+3:1"}, "0", "6e840d8a6f41832a", 4128),
        (
            {
                "look_below": 16, "look_twice_below": 16, "look_spawns": 4, "look_chance": 0.01,
                "look_unsure": 100.0,
            },
            "16/16/16/16", "27caed1bfdfc9065", 131_668,
        ),
    ],
)  # fmt: skip
def test_parameters_of_earlier_versions_play_the_same_games(
    former: dict[str, Any], look: str, sha256: str, score: int
) -> None:
    """As ``look``, with the hash and the game that the earlier version had."""
    recorded = {"weights": "fast", "look_margin": 1600.0, **former}
    assert options.check_player("ntuple", recorded)["look"] == look
    player = options.make_player("ntuple", recorded)
    assert options.player_sha256("ntuple", player).startswith(sha256)
    assert scores_of(player, rng.game_seeds(5, np.zeros(1, np.uint64))).tolist() == [score]


def slow_downgraded(cells: list[int]) -> list[int]:
    missing = [e for e in range(1, max(cells)) if e not in cells]
    if not missing:
        return cells
    return [e - 1 if e > max(missing) else e for e in cells]


@given(cells=boards)
def test_downgrading_halves_large_tiles(cells: list[int]) -> None:
    found = reference.unpack(int(downgraded(u64(cells))))
    assert found == slow_downgraded(cells)
    assert reference.legal_moves(found) == reference.legal_moves(cells)


@pytest.mark.parametrize("look", [0, 3])
def test_moves_are_chosen_on_the_downgraded_board(look: int) -> None:
    player, plain = make(look=look, downgrade=16384), make(look=look)
    differ = downgraded_boards = 0
    for cells in slow.random_boards(200, seed=14, highest=9):
        cells[5] = 13 + len(reference.empty_cells(cells)) % 3
        if not reference.legal_moves(cells):
            continue
        seen = slow_downgraded(cells) if max(cells) >= 14 else cells
        move, after, state = choice(player, cells, state=3)
        assert (move, state) == (choice(plain, seen, state=3)[0], choice(plain, seen, state=3)[2])
        assert after == reference.seen_slide(cells, move)[0]
        differ += move != choice(plain, cells, state=3)[0]
        downgraded_boards += seen != cells
    assert downgraded_boards > 20
    assert differ > 2


#: Boards with 1 to 4 legal moves and no merge: a network that says nothing ties them at once.
BY_LEGAL = {
    1: [0, 1, 2, 3, 0, 4, 5, 6, 0, 7, 8, 9, 0, 10, 11, 12],
    2: [0] * 11 + [1, 0, 1, 2, 3],
    3: [0, 1, 2, 0] + [0] * 12,
    4: [0] * 5 + [1] + [0] * 10,
}


@pytest.mark.parametrize("look", [0, 16])
@pytest.mark.parametrize("count", BY_LEGAL)
def test_ties_are_drawn_uniformly(count: int, look: int) -> None:
    cells = BY_LEGAL[count]
    legal = reference.legal_moves(cells)
    assert len(legal) == count
    values = slow.move_values(network(spread=0), cells, looks_ahead=bool(look))
    best = [move for move in values if values[move] == pytest.approx(max(values.values()), abs=1e-3)]
    assert look or best == legal
    counts = counts_of(of_network(network(spread=0), look=look), cells, 60_000)
    assert counts[best].sum() == 60_000
    assert look or evenly(counts, best), "expectations are rounded, and may differ in the last bit"


FOUR_WAYS = [0, 1, 2, 0, 3, 0, 0, 4, 5, 0, 1, 0, 0, 2, 0, 6]


@pytest.mark.parametrize("epsilon", [0.0, 0.1, 0.7, 1.0])
def test_epsilon_is_the_share_of_random_moves(epsilon: float) -> None:
    values = slow.move_values(network(), FOUR_WAYS, looks_ahead=False)
    assert len(values) == len(set(values.values())) == 4
    best = max(values, key=values.__getitem__)
    expected = [epsilon / 4 + (1 - epsilon) * (move == best) for move in range(4)]
    counts = counts_of(make(epsilon=epsilon), FOUR_WAYS)
    assert counts[4] == 0
    shares = np.array(expected) * counts.sum()
    if epsilon:
        assert stats.chisquare(counts[:4], shares).pvalue > 1e-3
    else:
        assert counts[:4].tolist() == shares.tolist()
    for cells in BY_LEGAL.values() if epsilon == 1 else ():
        assert evenly(counts_of(make(epsilon=1.0), cells), reference.legal_moves(cells))


@pytest.mark.parametrize("kind", DTYPES)
@pytest.mark.parametrize("temperature", [0.01, 100.0, 1000.0, 1e6])
def test_moves_are_drawn_by_softmax(kind: str, temperature: float) -> None:
    for cells in (FOUR_WAYS, BY_LEGAL[3], [1, 0, 0, 1] + [0] * 8 + [1, 0, 0, 1]):
        values = slow.move_values(network(kind), cells, looks_ahead=False)
        best = max(values.values())
        weights = np.array([math.exp((values[move] - best) / temperature) for move in values])
        expected = weights / weights.sum() * 100_000
        counts = counts_of(make(kind, temperature=temperature), cells)
        assert counts[list(values)].sum() == 100_000
        often = expected > 5
        assert counts[list(values)][~often].sum() <= 30
        if often.sum() > 1:
            found = counts[list(values)][often]
            shares = expected[often] / expected[often].sum() * found.sum()
            assert stats.chisquare(found, shares).pvalue > 1e-3


def test_a_mixture_is_read_with_its_weights() -> None:
    looks, ends = parse_mix("0:2+2:1+16")
    assert looks == [0, 2, 16]
    assert [end / 2**64 for end in ends] == pytest.approx([0.5, 0.75, 1.0])
    assert parse_mix("3") == ([3], [2**64 - 1])


@pytest.mark.parametrize(
    "text",
    ["a", "0:", "0:x", "0:0", "0:-1", "17", "-1", "0:nan", "0:inf", "0:1e308+1:1e308", "0++1", "+", "0:1:1"],
)
def test_a_mixture_that_cannot_be_is_refused(text: str) -> None:
    with pytest.raises(ConfigError, match="expected cells:weight joined by"):
        of_network(network(), mix=text)


def scores_of(player: NTuple, seeds: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint64]:
    return outcomes(player, seeds).scores


def test_a_mixture_is_recovered_from_the_seed() -> None:
    seeds = seeds_of(24)
    mixed = of_network(network("i16"), mix="0:1+4:1+16:1")
    choices = mix_choices(mixed, seeds)
    scores = scores_of(mixed, seeds)
    alone = {look: scores_of(make("i16", look=look), seeds) for look in (0, 4, 16)}
    assert set(choices.tolist()) == {0, 4, 16}
    assert scores.tolist() == [alone[int(look)][i] for i, look in enumerate(choices)]
    for look, others in alone.items():
        assert not np.array_equal(scores, others), look


@pytest.fixture
def weights(tmp_path: Path) -> str:
    save_network(network("i16"), tmp_path / "a.ntuple", compress=False)
    return str(tmp_path / "a.ntuple")


@pytest.mark.parametrize(
    ("training", "asked", "exponent"),
    [
        ({"downgrade": 32768}, {}, 15), ({"downgrade": 0}, {}, 0),
        ({"downgrade": 32768}, {"downgrade": 8192}, 13), ({"downgrade": 32768}, {"downgrade": 0}, 0),
        ({}, {}, 14), ({"downgrade": 5}, {}, 14), ({"downgrade": 32768.0}, {}, 14),
        ({"downgrade": [32768]}, {}, 14), (None, {}, 14),
    ],
)  # fmt: skip
def test_a_network_names_its_downgrade_tile(
    tmp_path: Path, training: object, asked: dict[str, Any], exponent: int
) -> None:
    facts = {} if training is None else {"training": training}
    save_network(dataclasses.replace(network("i16"), facts=facts), tmp_path / "a.ntuple", compress=False)
    player = options.make_player("ntuple", {"weights": str(tmp_path / "a.ntuple"), **asked})
    assert player.downgrade_exponent == exponent


def test_what_it_is_shows_in_its_hash(weights: str, tmp_path: Path) -> None:
    save_network(network("i16"), tmp_path / "same.ntuple")
    save_network(network("i16", seed=2), tmp_path / "other.ntuple", compress=False)
    cases: list[dict[str, Any]] = [
        {}, {"look": 0}, {"mix": "0:1+2:1"}, {"mix": "0:1+2:2"}, {"look": "3/1"},
        {"look_margin": 100.0}, {"downgrade": 0}, {"downgrade": 8192}, {"epsilon": 0.1},
        {"temperature": 5}, {"weights": str(tmp_path / "other.ntuple")},
    ]  # fmt: skip
    hashes = [
        options.player_sha256("ntuple", options.make_player("ntuple", {"weights": weights, **args}))
        for args in cases
    ]
    assert len(set(hashes)) == len(cases)
    same = options.make_player("ntuple", {"weights": str(tmp_path / "same.ntuple")})
    assert options.player_sha256("ntuple", same) == hashes[0], "where the file lies does not matter"


#: Texts that are no depths, and depths whose phases are in no order.
DEPTHS = ("", "17", "-1", "1.5", "3/", "3/17", "3+", "3,4:5", "3+4:", "3+7:16", "3+x:16", "1/1/1/1/1/1/1")
PHASES = ("4:16", "3+4:16+4:16/2", "3+5:16+4:3", "3+16")


@pytest.mark.parametrize(
    ("args", "kind", "said"),
    [
        ({"weights": "nowhere"}, ConfigError, "found no network at 'nowhere'"),
        ({"weights": 5}, ConfigError, "expected text"),
        *(({"look": look}, ConfigError, r"found look = .*, expected \[TILES:\]BELOW") for look in DEPTHS),
        *(({"look": look}, ConfigError, "without TILES, and then ascending TILES") for look in PHASES),
        ({"look_below": 17}, ConfigError, "'look_below' was removed: `look` sets the depth"),
        ({"mix": "x"}, ConfigError, "found mix = 'x'"),
        ({"downgrade": 5}, ConfigError, "expected 0 or a tile from 4 to 32768"),
        ({"downgrade": 2}, ConfigError, "expected 0 or a tile from 4 to 32768"),
        ({"epsilon": 1.5}, ConfigError, "expected a number from 0 to 1"),
        ({"epsilon": math.nan}, ConfigError, "expected a number from 0 to 1"),
        ({"temperature": -1}, ConfigError, "expected a number from 0 to 1000000"),
        ({"temperature": True}, ConfigError, "expected a number"),
        ({"look_margim": 1}, ConfigError, "The nearest is 'look_margin'"),
    ],
)
def test_parameters_that_cannot_be_are_refused(
    weights: str, args: dict[str, Any], kind: type[ConfigError], said: str
) -> None:
    for check in (options.check_player, options.make_player):
        with pytest.raises(kind, match=said):
            check("ntuple", {"weights": weights, **args})


def test_a_file_that_is_no_network_is_refused(tmp_path: Path) -> None:
    (tmp_path / "other").write_bytes(b"\2\0\0\0\0\0\0\0{}")
    args = {"weights": str(tmp_path / "other")}
    options.check_player("ntuple", args)  # reads no file
    with pytest.raises(ModelError):
        options.make_player("ntuple", args)


def test_threads_share_tables_and_no_cache() -> None:
    player = make("i16")
    assert options.own(player).table is player.table
    expectimax = options.make_player("expectimax", {"depth": 2})
    assert options.own(expectimax).outer is expectimax.outer
    assert not np.shares_memory(options.own(expectimax).cache_keys, expectimax.cache_keys)
