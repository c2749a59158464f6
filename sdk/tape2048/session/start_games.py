"""The games from which the given start boards of other games come.

Positions of a game and of its continuations are alike, so splits put them into one part. A recorder therefore
writes the identities of the boards' games (see :mod:`tape2048.loader.splits`) into the fact ``start_boards``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np

from tape2048.errors import FieldError
from tape2048.jit.mix import mix64
from tape2048.session.layout import START_BOARDS

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.session.session import Session

#: A board to start from, and the identity of its game. If that is unknown, ``player_sha256`` is empty, and
#: ``seed`` is the board.
START_DTYPE = np.dtype([("board", "<u8"), ("seed", "<u8"), ("player_sha256", "S64")])

_GAME_DTYPE = np.dtype([("seed", "<u8"), ("player", "<u2")])


def with_games(
    boards: NDArray[np.uint64],
    seeds: NDArray[np.uint64] | None = None,
    players: NDArray[np.bytes_] | None = None,
) -> NDArray[np.void]:
    """Return boards with the identities of their games, ``START_DTYPE[N]``; None: the games are unknown."""
    starts = np.zeros(len(boards), START_DTYPE)
    starts["board"], starts["seed"] = boards, boards if seeds is None else seeds
    if players is not None:
        starts["player_sha256"] = players
    return starts


class StartGames(msgspec.Struct, frozen=True):
    """The games of the distinct start boards, in the order of the boards: the key ``games`` of the fact."""

    players: list[str]  # SHA-256 of each player; empty for unknown games, whose seed is the board
    games: bytes  # a seed (``u64``) and the index of a player (``u16``) for each board; base64 in the fact

    @classmethod
    def of(cls, starts: NDArray[np.void]) -> StartGames | None:
        """Return the games of distinct boards, ``START_DTYPE[N]``; None if all are unknown."""
        players, index = np.unique(starts["player_sha256"], return_inverse=True)
        if players.tolist() == [b""] and (starts["seed"] == starts["board"]).all():
            return None
        if len(players) > 1 << 16:
            raise FieldError(f"found boards of {len(players):,} players, expected at most {1 << 16:,}")
        games = np.empty(len(starts), _GAME_DTYPE)
        games["seed"], games["player"] = starts["seed"], index
        return cls([player.decode("ascii", "replace") for player in players.tolist()], games.tobytes())

    def of_seeds(self, seeds: NDArray[np.uint64]) -> tuple[NDArray[np.uint64], NDArray[np.uint16]]:
        """Return the games whose boards the games of some seeds start from: seeds, and indices of players."""
        table = np.frombuffer(self.games, _GAME_DTYPE)
        drawn = table[mix64(seeds) % np.uint64(len(table))]
        return drawn["seed"], drawn["player"]


class _Fact(msgspec.Struct):
    count: int = 0
    games: StartGames | None = None


def read_start_games(session: Session) -> StartGames | None:
    """Return the games of a session's start boards; None if they are unknown, FieldError if invalid."""
    try:
        fact = msgspec.convert(session.meta.get(START_BOARDS), _Fact)
    except msgspec.ValidationError as error:
        raise FieldError(f"the fact {START_BOARDS} is invalid: {error}", path=session.path) from error
    found = fact.games
    if found is not None:
        size = fact.count * _GAME_DTYPE.itemsize
        if not len(found.games) == size > 0:
            what = f"the fact {START_BOARDS} has {len(found.games)} bytes of games, expected {size}"
            raise FieldError(what, path=session.path)
        highest = int(np.frombuffer(found.games, _GAME_DTYPE)["player"].max())
        if highest >= len(found.players):
            what = f"the fact {START_BOARDS} has the player {highest}, expected below {len(found.players)}"
            raise FieldError(what, path=session.path)
    return found
