"""Boards of recorded games from which other games can start."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048 import Corpus
from tape2048.game.rules import exps_to_boards
from tape2048.loader.splits import split_identities
from tape2048_recorder.game.kept_starts import with_games
from tape2048_recorder.game.start_files import check_starts

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def boards_of_sessions(path: Path, where: str | None, rows_where: str) -> NDArray[np.void]:
    """Return the first board of each game that meets a condition, with the game: ``START_DTYPE[N]``.

    Args:
        path: a session, or a directory of sessions.
        where: condition in SQL that selects games.
        rows_where: condition in SQL on rows.

    Raises:
        ConfigError: an invalid condition.
        EmptyCorpusError: no row is left.
        FieldError: a board that no game reaches, or too many boards.
        FormatError: a session is malformed.
    """
    rows = Corpus.open(path).where(where).rows_where(rows_where)
    chosen = np.flatnonzero(rows.row_counts)
    boards: NDArray[np.uint64] = exps_to_boards(rows.tokens(rows.row_starts[chosen]))
    runs = rows.runs[chosen]
    check_starts(boards, path, lambda at: f"the board of run {runs['run_id'][at]}")
    found = split_identities(runs, rows.sessions)
    return with_games(
        boards, found.seeds, np.array([each.encode() for each in found.players], "S64")[found.player]
    )
