r"""The places at which games are lost, by the values of an n-tuple network.

The value of a board is that of its best answer, :math:`v(b) = \max_m (r_m + V(s_m))`: the points that the
network expects from here. Over a move and a spawn it drops by :math:`v(b_i) - r_i - v(b_{i+1})`, where the
spawn was unlucky or the move worse than the network's. Of each game, the **fall** is the largest drop on
boards with its highest tile: before that, a new highest tile changes what a network with stages expects,
though nothing is lost. The last board counts as a drop to 0: a game that ends out of the blue has its fall
there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.critic.ntuple.critic import Games
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.game.rules import boards_to_exps, exps_to_boards
from tape2048.rows.buffers import open_sessions
from tape2048.session.run_table import exponents_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Values = Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.float32]]


class Falls(msgspec.Struct, frozen=True):
    """The falls of some games, in means over games; ``at_empty`` counts them by the board's empty cells."""

    games: int
    moves: float  # of a game
    points: float  # lost at the fall
    moves_left: float  # from the fall to the end; the median over games
    last_empty: float  # empty cells of the last board before a move
    at_empty: dict[int, int]


def analyse(games: Games, values: Values) -> dict[int, Falls]:
    """Find the falls of games, by the highest tile at the end, ascending."""
    played = np.flatnonzero(np.diff(games.starts))
    facts = np.array([_fall(games.between(run, run + 1).boards, values) for run in played.tolist()])
    tiles = 1 << games.highest[played].astype(np.int64)
    return {int(tile): _summary(facts[tiles == tile]) for tile in np.unique(tiles)}


def _fall(boards: npt.NDArray[np.uint64], values: Values) -> tuple[float, ...]:
    """Return moves, points, moves left, last empty cells, and the fall's empty cells."""
    exps = boards_to_exps(boards).astype(np.int64)
    tiles = np.where(exps > 0, 1 << exps, 0)
    # Of merges that make a tile, (e - 1) * 2**e is the score if each spawn was a 2; a 4 adds 4 by itself.
    scores = np.where(exps > 0, (exps - 1) * tiles, 0).sum(axis=1)
    spawned_fours = np.diff(tiles.sum(axis=1)) == 4
    rewards = np.append(np.diff(scores) - 4 * spawned_fours, 0)
    found = values(boards).astype(np.float64)
    drops = found - rewards - np.append(found[1:], 0)
    highest = exps.max(axis=1)
    at = int(np.where(highest == highest[-1], drops, -np.inf).argmax())
    empty = (exps == 0).sum(axis=1)
    return (len(boards), drops[at], len(boards) - at, empty[-1], empty[at])


def _summary(facts: npt.NDArray[np.float64]) -> Falls:
    moves, points, left, last_empty, empty = facts.T
    return Falls(
        games=len(facts),
        moves=float(moves.mean()),
        points=float(points.mean()),
        moves_left=float(np.median(left)),
        last_empty=float(last_empty.mean()),
        at_empty=dict(enumerate(np.bincount(empty.astype(np.int64)).tolist())),
    )


def recorded_games(root: Path, games_max: int) -> Games:
    """Return the first games of a session, or of a directory of sessions, with every board."""
    boards: list[npt.NDArray[np.uint64]] = []
    highest: list[int] = []
    for session in open_sessions(root, "raise")[0]:
        if (rate := session.meta.get("sample_rate", 1)) != 1:
            raise ConfigError(
                f"{session.path} has one board in {rate}, expected all",
                hint="record with sample_rate = 1, or have the player play: tape2048 player analyse PLAYER",
            )
        for run in range(min(len(session.runs), games_max - len(boards))):
            boards.append(exps_to_boards(session.tokens(session.numbers_of(run))))
            highest.append(int(session.runs["highest_tile"][run]))
    if not boards:
        raise EmptyCorpusError("no games here", path=root)
    starts = np.append(0, np.cumsum([len(one) for one in boards]))
    return Games(np.concatenate(boards), starts, exponents_of(np.array(highest, np.uint64)))
