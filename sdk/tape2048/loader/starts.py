"""The first boards of games, which are not always two tiles."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.game.scores import TWO_TILES, potentials
from tape2048.loader.row_view import sample_rate
from tape2048.session.layout import START_BOARDS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.session.session import Session

_MEAN_SPAWN = 2.2  # value of the mean spawned tile


class FirstBoards(NamedTuple):
    potentials: NDArray[np.int64]  # of the first board of each game, `i64[R]`; see `tape2048.game.scores`
    moves: NDArray[np.int64]  # about the moves from two tiles to the first board of each game, `i64[R]`


def starts_of(runs: NDArray[np.void], sessions: Sequence[Session]) -> FirstBoards:
    """Return facts about the first boards of games.

    A recorder states whether its games start from given boards. In sessions of other programs and of
    conversions, the first row of each game is read, if it is the game's first board.
    """
    starts = FirstBoards(np.full(len(runs), TWO_TILES), np.zeros(len(runs), np.int64))
    for ordinal in np.unique(runs["session"]).tolist():
        session = sessions[ordinal]
        recorded = str(session.meta.get("engine")).startswith("tape2048/")
        if START_BOARDS in session.meta or (not recorded and sample_rate(session)):
            mine = np.flatnonzero((runs["session"] == ordinal) & (runs["rows"] > 0))
            exps = session.tokens(runs["first_row"][mine].astype(np.int64))
            starts.potentials[mine] = potentials(exps)
            total = np.where(exps > 0, 1 << exps.astype(np.int64), 0).sum(axis=1)
            starts.moves[mine] = np.where(total > 8, np.rint(total / _MEAN_SPAWN) - 2, 0)
    return starts
