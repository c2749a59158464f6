"""The ``critic`` player: its moves against the formula, on a small critic of random weights."""

import functools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from tests import reference
from tests.recorder.choosing import boards, choice, words

from tape2048.critic import NTupleCritic
from tape2048.critic.facts import CriticFacts, SplitInfo
from tape2048.errors import ConfigError, ModelError
from tape2048.ntuple import NetworkLayout
from tape2048_recorder.game.player_api import NO_MOVE
from tape2048_recorder.players.critic_player import CriticPlayer
from tape2048_recorder.players.ntuple import NTuple, make as make_ntuple, move_values
from tape2048_recorder.players.options import check_player, make_player, player_sha256

TILES = (64, 1024, 32768)


@pytest.fixture(scope="module")
def path(tmp_path_factory: pytest.TempPathFactory) -> Path:
    layout = NetworkLayout.of(["0145", "0123"], stages=[64])
    weights = np.random.default_rng(5).integers(-60, 60, (layout.entries, 4)).astype(np.int16)
    weights[:, 3] = 0
    facts = CriticFacts(thresholds=list(TILES), split=SplitInfo(fractions={"train": 1.0}))
    file = tmp_path_factory.mktemp("critic") / "random.critic"
    NTupleCritic(facts, layout, weights, 1 / 64).save(file)
    return file


@functools.cache
def critic(path: Path) -> NTupleCritic:
    return NTupleCritic.load(path)


@functools.cache
def player(path: Path, tile: int = 1024, **how: float) -> CriticPlayer:
    args = {"critic": str(path), "tile": tile, "margin": 0.0, "weights": "fast", **how}
    made: CriticPlayer = make_player("critic", check_player("critic", args))
    return made


@functools.cache
def probabilities(path: Path, cells: tuple[int, ...]) -> tuple[float, ...]:
    """As the critic says, and 0 of tiles that a board without a move lacks."""
    found = critic(path)(np.array([reference.pack(list(cells))], np.uint64))[0]
    over = not reference.legal_moves(list(cells))
    return tuple(0.0 if over and p < 1 else float(p) for p in found)


def expected(path: Path, after: list[int], goal: int, spawns: int) -> float:
    total, empty = 0.0, [cell for cell in range(16) if not after[cell]]
    for cell in empty:
        for exponent, chance in ((1, 0.9), (2, 0.1)):
            board = [*after[:cell], exponent, *after[cell + 1 :]]
            if spawns == 1:
                total += chance * probabilities(path, tuple(board))[goal]
            else:
                total += chance * max(slow_values(path, board, goal, 1).values(), default=0.0)
    return total / len(empty)


def slow_values(path: Path, cells: list[int], goal: int, spawns: int) -> dict[int, float]:
    if max(cells) >= TILES[goal].bit_length() - 1:
        return dict.fromkeys(reference.legal_moves(cells) or [0], 1.0)
    return {
        move: expected(path, reference.seen_slide(cells, move)[0], goal, spawns)
        for move in reference.legal_moves(cells)
    }


@pytest.mark.parametrize(("tile", "spawns"), [(64, 1), (1024, 1), (1024, 2)])
@settings(max_examples=20, deadline=None)
@example(cells=[0] * 14 + [1, 1], state=0)  # the higher tile alone would be likelier than the lower one
@given(cells=boards, state=words)
def test_it_chooses_the_likeliest_move(
    path: Path, tile: int, spawns: int, cells: list[int], state: int
) -> None:
    if spawns == 2:
        cells = [cell or 1 for cell in cells]  # the reference is slow
    goal = TILES.index(tile)
    while goal < 2 and max(cells) >= TILES[goal].bit_length() - 1:
        goal += 1
    move, after, _ = choice(player(path, tile, look=16 * (spawns - 1)), cells, state)
    values = slow_values(path, cells, goal, spawns)
    legal = reference.legal_moves(cells)
    if not legal:
        assert (move, after) == (NO_MOVE, cells)
        return
    assert after == reference.seen_slide(cells, move)[0]
    assert values[move] == pytest.approx(max(values[one] for one in legal), abs=1e-5)


@functools.cache
def fast_network() -> NTuple:
    return make_ntuple(weights="fast", downgrade=0)


@pytest.mark.parametrize("margin", [1e-3, 200.0])
@settings(max_examples=50)
@given(cells=st.lists(st.integers(0, 12), min_size=16, max_size=16), state=words)
def test_moves_are_within_the_margin(path: Path, margin: float, cells: list[int], state: int) -> None:
    move, _, _ = choice(player(path, margin=margin), cells, state)
    board = np.array([reference.pack(cells)], np.uint64)
    values = move_values(fast_network(), board)[0]
    if reference.legal_moves(cells):
        assert values[move] >= np.nanmax(values) - margin - 0.1


def test_each_setting_makes_another_player(path: Path) -> None:
    made = [player(path), player(path, 64), player(path, look=3), player(path, margin=10.0)]
    hashes = {player_sha256("critic", one) for one in made}
    assert len(hashes) == len(made)
    assert player_sha256("critic", player(path)) in hashes


def test_what_cannot_be_is_refused_by_name(path: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tile = 2048, expected a tile of the critic .*: 64, 1024, 32768"):
        player(path, 2048)
    with pytest.raises(ModelError, match="no such file"):
        check_player("critic", {"critic": str(tmp_path / "nowhere")})
    with pytest.raises(ConfigError, match="found no network"):
        check_player("critic", {"critic": str(path), "weights": "nowhere"})


def test_the_hash_of_an_older_player_stays() -> None:
    """Sessions that it played can be replayed."""
    assert player_sha256("critic", make_player("critic", {})).startswith("3bb7b5b72a82")
