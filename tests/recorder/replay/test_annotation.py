"""Columns of values, loss and luck against their formulas, on networks of integers."""

import functools
import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from tests import reference
from tests.recorder.ntuple_training import slow
from tests.recorder.replay.test_judging import NETWORK, Played
from tests.sdk.builders import Game, Spec, write_ours
from tests.sdk.tapes import as_rows, games_on_tape, write_rows, write_tape

from tape2048.errors import ConfigError
from tape2048.ntuple.network import save_network
from tape2048.session.session import Session
from tape2048_recorder.game.loop import Buffer, play_all
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player
from tape2048_recorder.replay import annotation
from tape2048_recorder.replay.annotation import Annotator, moves_of


@functools.cache
def weights() -> str:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "network.ntuple"
    save_network(NETWORK, path, compress=False)
    return str(path)


@functools.cache
def annotator(name: str, **args: Any) -> Annotator:
    return Annotator(name, {"weights": weights(), **args} if name == "ntuple" else args)


def annotated(name: str, game: Played, **args: Any) -> dict[str, NDArray[Any]]:
    boards = slow.packed(game.cells)
    return annotator(name, **args).annotate(boards[:-1], np.array(game.moves, np.uint8), boards[1:])


def values_of(cells: list[int], spawns: int, margin: float) -> tuple[dict[int, float], float, set[int]]:
    """The values, the board's own without look-ahead, and the moves of the search."""
    now = slow.move_values(NETWORK, cells, looks_ahead=False)
    top = max(now.values(), default=0.0)
    searched = set(now if not cells.count(0) else slow.near_best(NETWORK, cells, margin)) if spawns else set()
    if spawns and not (margin and cells.count(0) and len(searched) == 1):
        ahead = slow.move_values(NETWORK, cells, looks_ahead=spawns, margin=margin)
        best = max((ahead[move] for move in searched), default=0.0)
        values = {move: ahead[move] if move in searched else now[move] - top + best for move in now}
        return values, top, searched
    return now, top, set()


@pytest.mark.parametrize(
    ("look_below", "margin"), [(0, 0.0), (9, 0.0), (9, 4000.0)], ids=["now", "ahead", "margin"]
)
@settings(max_examples=8)
@given(seed=st.integers(0, 2**32))
def test_columns_follow_the_formulas(look_below: int, margin: float, seed: int) -> None:
    game = Played(seed, 6)
    found = annotated("ntuple", game, look_below=look_below, look_margin=margin, downgrade=0)
    around = functools.partial(pytest.approx, rel=1e-5, abs=0.1)
    for i, (cells, move) in enumerate(zip(game.cells[:-1], game.moves, strict=True)):
        values, _, searched = values_of(cells, int(cells.count(0) < look_below), margin)
        mine = found["values"][i].tolist()
        assert {m: value for m, value in enumerate(mine) if not math.isnan(value)} == around(values)
        assert mine[found["best"][i]] == max(mine[m] for m in values)
        assert found["loss"][i] == around(max(values.values()) - values[move])
        after = list(reference.slide(cells, move)[0])
        mean = slow.expected_answer(NETWORK, after) if move in searched else slow.value(NETWORK, after)
        assert found["luck"][i] == around(values_of(game.cells[i + 1], 0, 0)[1] - mean)


@pytest.mark.parametrize(
    ("name", "args"),
    [("ntuple", {"look_below": 6}), ("ntuple", {"look_below": 4, "look_margin": 900.0, "downgrade": 64}),
     ("expectimax", {}), ("greedy", {})],
)  # fmt: skip
def test_a_player_makes_no_loss_in_its_own_games(name: str, args: dict[str, Any]) -> None:
    maker = annotator(name, **args)
    buffer = Buffer(rows_max=1 << 12, runs_max=4, record_action=True, sample_rate=1)
    buffer.give(np.arange(4, dtype=np.uint64), game_seeds(3, np.arange(4, dtype=np.uint64)))
    play_all(buffer, make_player(name, {"weights": weights(), **args} if name == "ntuple" else args))
    boards, moves = buffer.boards, buffer.rows["action"]
    found = maker.annotate(boards, moves, np.append(boards[1:], np.uint64(0)))
    assert len(boards) > 300
    assert not found["loss"].any()
    assert np.isnan(found["luck"]).sum() == 4, "games follow one another"
    others = maker.annotate(boards, (moves + 1) % 4, np.zeros_like(boards))
    assert np.nanmax(others["loss"]) > 0
    assert np.isnan(others["luck"]).all()


def test_storages_give_the_same_columns(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    games = games_on_tape(1, 2, 3)
    monkeypatch.setattr(annotation, "_PIECE_ROWS", 50)
    maker = annotator("ntuple", look_below=4)
    whole = maker.annotate(games.boards, games.moves, _following(games))
    bare = dict(whole)
    last = np.cumsum(games.runs["rows"]).astype(int) - 1
    for name, write in (("tape", write_tape), ("rows", write_rows), ("bare", write_rows)):
        session = Session.open(write(tmp_path / name, games, record_action=name != "bare"))
        found = maker.make(session, range(len(session)))
        for column, values in found.items():
            expected = whole[column].copy()
            if name == "bare" and column in {"loss", "luck"}:
                expected[last] = np.nan  # the last moves are not recorded
                expected[moves_of(session, range(len(session)))[1] > 3] = np.nan
            np.testing.assert_array_equal(values, expected, err_msg=f"{name} {column}")
    assert not np.isnan(bare["luck"]).any()


def test_sampled_rows_have_no_luck(tmp_path: Path) -> None:
    games = games_on_tape(1, 17)  # where one move explains two boards that are two moves apart
    rows = as_rows(games)
    kept = rows["step_idx"] % 2 == 0

    def put(sampled: NDArray[np.void]) -> None:
        sampled[:] = rows[kept]

    table = [
        Game(*(int(run[name]) for name in ("id", "steps", "highest_tile", "seed"))) for run in games.runs
    ]
    spec = Spec(games=table, action=True, sample_rate=2, change_rows=put)
    maker, session = annotator("ntuple", look_below=4), Session.open(write_ours(tmp_path / "s", spec))
    found = maker.make(session, range(len(session)))
    whole = maker.annotate(games.boards, games.moves, _following(games))
    for column in ("values", "best", "loss"):
        np.testing.assert_array_equal(found[column], whole[column][kept])
    ends = np.isin(np.flatnonzero(kept), np.cumsum(games.runs["rows"]).astype(int) - 1)
    np.testing.assert_array_equal(found["luck"], np.where(ends, whole["luck"][kept], np.nan))


def _following(games: Any) -> NDArray[np.uint64]:
    following = np.append(games.boards[1:], np.uint64(0))
    following[np.cumsum(games.runs["rows"]).astype(int) - 1] = games.finals
    return following


def test_unknown_moves_have_no_loss_and_luck() -> None:
    game = Played(3, 5)
    boards, moves = slow.packed(game.cells), np.array(game.moves, np.uint8)
    moves[0], following = 4, boards[1:].copy()
    following[2] ^= np.uint64(0x3000000000000000)
    found = annotator("ntuple").annotate(boards[:-1], moves, following)
    assert np.isnan(found["loss"]).tolist() == [True, False, False, False, False]
    assert np.isnan(found["luck"]).tolist() == [True, False, True, False, False]


def test_players_without_values_are_refused() -> None:
    for name in ("random", "critic", "python:a:b"):
        with pytest.raises(ConfigError, match="has no move values"):
            Annotator(name, {})
