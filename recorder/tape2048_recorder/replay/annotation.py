"""Columns with the values, loss and luck of every move of a session.

The columns are ``values`` and ``best`` of each board, ``loss`` and ``grade`` of each move and ``luck`` of its
spawn. :class:`tape2048_recorder.replay.judging.Judge` computes them, as for the viewer, the report and the
terminal. Values of illegal moves are NaN. If the judge is calibrated, points are the score that comes, the
fact ``calibrated`` names the player that the calibration assumes, and ``network_values`` holds the network's
own values. Otherwise, all points are the network's, no move has a grade, and ``calibrated`` is empty. Columns
without this fact are those of earlier versions, and hold the network's points.

By default, each session's judge is the network of its player, 2-ply or 3-ply
(:meth:`tape2048_recorder.replay.judging.Judge.of_recorded`). Moves and boards that are not recorded are
played again, if the player is available. Otherwise:

* loss and luck are NaN if the move was not recorded and cannot be recovered from two boards;
* luck is NaN if the next board was not recorded. That includes the last spawn, which ended the game and was
  unlucky, so the known spawns of such a game are lucky on average.

A game's last board is not among its rows. It has no moves, so its value is 0.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.errors import ReplayError
from tape2048.game.moves import UNKNOWN
from tape2048.game.rules import exps_to_boards
from tape2048.session.columns import ColumnInfo
from tape2048_recorder.game.rows_file import COLUMNS
from tape2048_recorder.replay.recorded_games import recorded_game
from tape2048_recorder.replay.replay import replayer

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048_recorder.replay.judging import Judge
    from tape2048_recorder.replay.replay import Play


class Annotator:
    """The columns of a session by a judge; ``notes`` are warnings for readers."""

    def __init__(self, judge: Judge, session: Session) -> None:
        self._judge, self._session = judge, session
        self._play: Play | None = None
        notes = [judge.weakness(session.meta, session.runs) if len(session.runs) else None]
        if session.tape is None:
            try:
                self._play = replayer(session.path, session.meta)
            except ReplayError as error:
                if "action" not in (session.dtype.names or ()):
                    why = f"which are unlucky: {error.message}"
                    notes.append(f"{session.name}: the luck lacks the last spawns, {why}")
        self.notes = [note for note in notes if note]
        self.facts = facts_of(judge)
        self.columns = columns_of(self.facts)

    def make(self, rows: range) -> dict[str, NDArray[Any]]:
        """Compute the columns of some rows, on all cores."""
        found = self._judge.moves(*moves_of(self._session, rows, self._play))
        best = np.argmax(np.nan_to_num(found.values, nan=-np.inf), axis=1).astype(np.uint8)
        made = {**found._asdict(), "best": best}
        return {column.name: made[column.name] for column in self.columns}


def facts_of(judge: Judge) -> dict[str, Any]:
    calibrated = "" if judge.calibration is None else judge.calibration.player
    return {"judge": judge.text, "judge_sha256": judge.identity, "calibrated": calibrated}


def columns_of(facts: dict[str, Any]) -> tuple[ColumnInfo, ...]:
    best, grade = (ColumnInfo(name, "u8", facts={"moves": name == "best"}) for name in ("best", "grade"))
    luck, network = ColumnInfo("luck", "f32"), ColumnInfo("network_values", "f32", 4, facts={"moves": True})
    more = (network,) if facts.get("calibrated") else ()
    facts = {"maker": "tape2048 annotate", **facts}
    return tuple(
        msgspec.structs.replace(column, facts={**facts, **column.facts})
        for column in (COLUMNS["values"], best, COLUMNS["loss"], luck, grade, *more)
    )


def annotation_of(session: Session) -> Mapping[str, Any] | None:
    """Return the facts of loss and luck, or None without columns of a judge with grades."""
    if not {"loss", "luck", "grade"} <= session.columns.keys():
        return None
    facts = session.columns["loss"].facts
    return facts if "judge_sha256" in facts else None


def moves_of(
    session: Session, rows: range, play: Play | None
) -> tuple[NDArray[np.uint64], NDArray[np.uint8], NDArray[np.uint64]]:
    """Return the boards, moves and next boards of some rows, as arguments of ``Judge.moves``."""
    some = slice(rows.start, rows.stop)
    owners = session.run_index(some)
    moves, following = np.full(len(rows), UNKNOWN, np.uint8), np.zeros(len(rows), np.uint64)
    if session.tape is not None:
        boards = session.tape.boards(rows.start, rows.stop)
        steps = np.arange(rows.start, rows.stop) - session.tape.first_rows[owners]
    else:
        records = session.read_rows(rows.start, rows.stop)
        boards = exps_to_boards(session.tokens(some))
        steps = records["step_idx"].astype(np.int64)
        if "action" in (records.dtype.names or ()):
            moves[:] = records["action"]

    def fill(ordinal: int) -> None:
        game = recorded_game(session, ordinal, play)
        mine = np.flatnonzero(owners == ordinal)
        if game.numbers is None:
            at, known = steps[mine], steps[mine] < len(game.moves)
        else:  # some boards were not recorded: a move is known if both its boards were
            at = np.searchsorted(game.numbers, steps[mine])
            known = at < len(game.moves)
            known[known] = game.numbers[at[known] + 1] == game.numbers[at[known]] + 1
        mine, at = mine[known], at[known]
        following[mine] = game.states[at + 1]
        moves[mine] = np.where(moves[mine] < 4, moves[mine], game.known_moves[at])

    for _ in map_ordered(fill, np.unique(owners).tolist()):
        pass
    return boards, moves, following
