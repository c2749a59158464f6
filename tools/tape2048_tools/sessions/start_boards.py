"""Boards that games can start from, from a start file or from recorded games."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048.errors import ConfigError

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


def boards_to_start_from(path: Path, where: str | None, rows_where: str | None) -> NDArray[np.uint64]:
    """Return boards that games can start from, ``u64[N]``.

    Args:
        path: a start file, a session, or a directory of sessions.
        where: condition in SQL that selects games of sessions.
        rows_where: condition in SQL on rows of sessions. The first row of each game that meets it is a board.

    Raises:
        ConfigError: a file with a condition, sessions without one, or an invalid condition.
        EmptyCorpusError: no row is left.
        FieldError: a board that no game reaches, or too many boards.
        FormatError: the file or a session is malformed.
    """
    from tape2048_recorder.evaluation.positions import check_starts, read_starts

    if not path.is_dir():
        if where is not None or rows_where is not None:
            raise ConfigError(
                "found a file with a condition, expected a session or a directory of sessions",
                path=path,
                hint="To choose boards of sessions, write them to a file first: tape2048 player starts",
            )
        return read_starts(path)
    if rows_where is None:
        raise ConfigError(
            "found no condition on rows, expected a condition that chooses a board of each game",
            path=path,
            hint="Pass --rows-where 'board_highest >= 14' for the first board of each game with a 16384.",
        )
    from tape2048 import Corpus
    from tape2048.game.rules import exps_to_boards

    rows = Corpus.open(path).where(where).rows_where(rows_where)
    chosen = np.flatnonzero(rows.row_counts)
    boards: NDArray[np.uint64] = exps_to_boards(rows.tokens(rows.row_starts[chosen]))
    check_starts(boards, path, lambda at: f"the board of run {rows.runs['id'][chosen[at]]}")
    return boards
