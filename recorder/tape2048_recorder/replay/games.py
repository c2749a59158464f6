"""Recorded games as boards and moves, with what a recording lacks played again where its player is here."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.conversion.session_runs import boards_of, session_run
from tape2048.errors import FormatError, ReplayError
from tape2048.game.moves import AMBIGUOUS, UNKNOWN, recover
from tape2048.game.rules import WON, boards_to_exps, exps_after

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048_recorder.replay.replay import Play


class Game(NamedTuple):
    """A game as its boards and moves.

    Attributes:
        states: ``u64[n + 1]``, boards.
        moves: ``u8[n]``; 255 where no move leads from a board to the next one.
        numbers: ``i64[n + 1]``, number of the move before which each board stood; None: 0, 1, ...
        notes: what the recording lacks.
        guessed: ``bool[n]``, the moves of two that explain the next board; None: no move is guessed.
    """

    states: NDArray[np.uint64]
    moves: NDArray[np.uint8]
    numbers: NDArray[np.int64] | None = None
    notes: tuple[str, ...] = ()
    guessed: NDArray[np.bool_] | None = None

    @property
    def known_moves(self) -> NDArray[np.uint8]:
        """The moves, 255 for a move that is not known: a guess has no loss."""
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
        """Whether a known move leads from each board to the next one."""
        return self.numbers is None and not (self.moves > 3).any()


def recorded_game(session: Session, ordinal: int, play: Play | None) -> Game:
    """Read a game of a session; ``play`` plays what is not recorded.

    Raises:
        ReplayError: no board of the game is recorded.
    """
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
        boards = boards_of(rows, f"run {session.runs['id'][ordinal]}", session.path)
        if not len(boards):
            raise
        found = recover(boards).moves
        return Game(boards, found, rows["step_idx"].astype(np.int64), (*notes, error.message))
    if not certain:
        notes.append("the last spawn is not recorded: shown is the likelier one")
    if lost:
        notes.append(f"not recorded: {', '.join(lost)}")
    guessed = recover(run.states).moves == AMBIGUOUS if lost else None
    return Game(run.states, run.moves, None, tuple(notes), guessed)
