"""Columns of values, loss and luck: the numbers of a replay, whatever the session holds."""

import functools
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tests.recorder.replay.test_judging import NETWORK
from tests.sdk.builders import Game, Spec, write_ours
from tests.sdk.tapes import as_rows, games_on_tape, write_rows, write_tape

from tape2048.game.moves import recover
from tape2048.ntuple.network import save_network
from tape2048.session.session import Session
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.replay.annotation import Annotator
from tape2048_recorder.replay.judging import Judge


@functools.cache
def weights() -> str:
    import tempfile

    path = Path(tempfile.mkdtemp()) / "network.ntuple"
    save_network(NETWORK, path, compress=False)
    return str(path)


@functools.cache
def judge() -> Judge:
    return Judge.of_player("ntuple", {"weights": weights()})


def columns(session: Session) -> dict[str, NDArray[Any]]:
    return Annotator(judge(), session).make(range(len(session)))


def expected_of(games: Any) -> dict[str, NDArray[Any]]:
    """The columns of all rows, by the judge's own view of each game."""
    found: dict[str, list[NDArray[Any]]] = {"values": [], "loss": [], "luck": []}
    following, first = _following(games), 0
    for count in games.runs["rows"].astype(int):
        rows = slice(first, first + count)
        judged = judge().game(np.append(games.boards[rows], following[rows][-1]), games.moves[rows])
        for name, parts in found.items():
            parts.append(getattr(judged, name))
        first += count
    return {name: np.concatenate(parts) for name, parts in found.items()}


def test_every_storage_has_the_numbers_of_the_replay(tmp_path: Path) -> None:
    games = games_on_tape(1, 2, 3)
    whole = expected_of(games)
    # Without actions: the last moves, and those of two that explain the next board.
    unknown = np.append(recover(games.boards).moves > 3, True)
    unknown[np.cumsum(games.runs["rows"]).astype(int) - 1] = True
    for name, write in (("tape", write_tape), ("rows", write_rows), ("bare", write_rows)):
        session = Session.open(write(tmp_path / name, games, record_action=name != "bare"))
        annotator = Annotator(judge(), session)
        found = annotator.make(range(len(session)))
        for column, values in whole.items():
            expected = values.copy()
            if name == "bare" and column in {"loss", "luck"}:
                expected[unknown] = np.nan
            np.testing.assert_array_equal(found[column], expected, err_msg=f"{name} {column}")
        best = found["values"][np.arange(len(session)), found["best"]]
        assert (best == np.nanmax(whole["values"], axis=1)).all()
        assert ("the luck lacks the last spawns" in "".join(annotator.notes)) == (name == "bare")
        parts = [annotator.make(range(first, first + 50)) for first in range(0, 100, 50)]
        np.testing.assert_array_equal(np.concatenate([part["luck"] for part in parts]), found["luck"][:100])
        assert np.isnan(found["luck"]).sum() == (6 if name == "bare" else 0)


def every_other(directory: Path, games: Any, **facts: object) -> tuple[Session, NDArray[np.bool_]]:
    """A session of every other row, and which rows it has."""
    rows = as_rows(games)
    kept = rows["step_idx"] % 2 == 0

    def put(sampled: NDArray[np.void]) -> None:
        sampled[:] = rows[kept]

    table = [
        Game(*(int(run[name]) for name in ("run_id", "steps", "highest_tile", "seed", "score")))
        for run in games.runs
    ]
    facts = {"rows": int(kept.sum()), "runs": len(table), "sample_rate": 2, "record_action": True, **facts}
    spec = Spec(games=table, action=True, sample_rate=2, change_rows=put, facts=facts)
    return Session.open(write_ours(directory, spec)), kept


def test_what_is_not_recorded_is_played_again(tmp_path: Path) -> None:
    """Boards alone, and every other row: the columns are those of the whole games."""
    games = games_on_tape(1, 17)
    sha256 = player_sha256("random", make_player("random", {}))
    facts = {"player": "random", "player_args": {}, "player_sha256": sha256}
    bare = Session.open(write_rows(tmp_path / "bare", games, record_action=False, **facts))
    sampled, kept = every_other(tmp_path / "sampled", games, **facts)
    whole = expected_of(games)
    assert not np.isnan(whole["luck"]).any()
    for session, rows in ((bare, slice(None)), (sampled, kept)):
        annotator = Annotator(judge(), session)
        found = annotator.make(range(len(session)))
        assert "lacks" not in "".join(annotator.notes)
        for column, values in whole.items():
            np.testing.assert_array_equal(found[column], values[rows])


def test_sampled_rows_of_a_player_that_is_not_here_have_no_luck(tmp_path: Path) -> None:
    games = games_on_tape(1, 17)  # where one move explains two boards that are two moves apart
    session, kept = every_other(tmp_path / "s", games)
    found, whole = columns(session), expected_of(games)
    for column in ("values", "loss"):
        np.testing.assert_array_equal(found[column], whole[column][kept])
    assert np.isnan(found["luck"]).all()


def _following(games: Any) -> NDArray[np.uint64]:
    following = np.append(games.boards[1:], np.uint64(0))
    following[np.cumsum(games.runs["rows"]).astype(int) - 1] = games.finals
    return following
