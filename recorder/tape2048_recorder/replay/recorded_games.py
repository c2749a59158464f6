"""Recorded games as boards and moves. Unrecorded parts are played again if the player is available."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.errors import FormatError, ReplayError
from tape2048.game.moves import AMBIGUOUS, UNKNOWN, recover
from tape2048.game.rules import WON, boards_to_exps, exps_after
from tape2048.runs.sessions import boards_of, session_run

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048_recorder.replay.replay import Play


class RecordedGame(NamedTuple):
    """A game as its boards, ``u64[n + 1]``, and moves, ``u8[n]``; 255 if no move leads to the next board.

    ``numbers`` counts the moves before each board; None: 0, 1, ... ``guessed`` marks moves that are one of
    two possible moves; None: no move.
    """

    states: NDArray[np.uint64]
    moves: NDArray[np.uint8]
    numbers: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    guessed: NDArray[np.bool_] | None = None

    @property
    def known_moves(self) -> NDArray[np.uint8]:
        """The moves, with 255 for unknown and guessed moves."""
        return self.moves if self.guessed is None else np.where(self.guessed, UNKNOWN, self.moves)

    @property
    def exps(self) -> NDArray[np.uint8]:
        """The boards as exponents, ``u8[n + 1, 16]``."""
        exps = boards_to_exps(self.states)
        if len(self.moves) and self.states[-1] == WON:
            exps[-1] = exps_after(self.states[-2], self.moves[-1])
        return exps

    @property
    def is_whole(self) -> bool:
        """Whether every board is known, and a move leads from each to the next."""
        return self.numbers is None and not (self.moves > 3).any()


def recorded_game(session: Session, ordinal: int, play: Play | None) -> RecordedGame:
    """Read a game; ``play`` replays unrecorded parts. ReplayError if no board of it is recorded."""
    notes: list[str] = []
    try:
        if play is not None:
            try:
                run, certain, lost = session_run(session, ordinal, play)
            except FormatError as error:
                notes.append(f"not played again: {error.message}")
                play = None
        if play is None:
            run, certain, lost = session_run(session, ordinal, lossy=True)
    except ReplayError as error:
        rows = session.rows_of(ordinal)
        boards = boards_of(rows, f"run {session.runs['run_id'][ordinal]}", session.path)
        if not len(boards):
            raise
        found = recover(boards).moves
        return RecordedGame(boards, found, rows["step_idx"].astype(np.int64), (*notes, error.message))
    if not certain:
        notes.append("the last spawn is not recorded: the likelier one is shown")
    if lost:
        notes.append(f"not recorded: {', '.join(lost)}")
    guessed = recover(run.states).moves == AMBIGUOUS if lost else None
    return RecordedGame(run.states, run.moves, None, tuple(notes), guessed)
