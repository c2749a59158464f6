"""The games from which the given start boards of a session's games come.

Positions of a game and of its continuations are alike, so splits put them into one part. A recorder therefore
writes the identities of the boards' games (see :mod:`tape2048.loader.splits`) into the fact ``start_boards``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.errors import FieldError
from tape2048.session.layout import START_BOARDS

if TYPE_CHECKING:
    from tape2048.session.session import Session

GAME_DTYPE = np.dtype([("seed", "<u8"), ("player", "<u2")])


class StartGames(msgspec.Struct, frozen=True):
    """The games of the distinct start boards, in the order of the boards: the key ``games`` of the fact."""

    players: list[str]  # SHA-256 of each player; empty for unknown games, whose seed is the board
    games: bytes  # `GAME_DTYPE` for each board, with an index into `players`; base64 in the fact


class _Fact(msgspec.Struct):
    count: int = 0
    games: StartGames | None = None


def read_start_games(session: Session) -> StartGames | None:
    """Return the games of a session's start boards; None if they are unknown, FieldError if invalid."""
    try:
        fact = msgspec.convert(session.meta.get(START_BOARDS), _Fact)
    except msgspec.ValidationError as error:
        raise FieldError(f"the fact {START_BOARDS} is invalid: {error}", path=session.path) from error
    if (found := fact.games) is not None:
        size = fact.count * GAME_DTYPE.itemsize
        if not len(found.games) == size > 0:
            what = f"the fact {START_BOARDS} has {len(found.games)} bytes of games, expected {size}"
            raise FieldError(what, path=session.path)
        highest = int(np.frombuffer(found.games, GAME_DTYPE)["player"].max())
        if highest >= len(found.players):
            what = f"the fact {START_BOARDS} has the player {highest}, expected below {len(found.players)}"
            raise FieldError(what, path=session.path)
    return found
