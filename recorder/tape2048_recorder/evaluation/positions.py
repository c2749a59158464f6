r"""The positions at which games are lost.

The position at which a game is lost is found by the values of an n-tuple network. The value of a board is the
value of its best move, :math:`v(b) = \max_m (r_m + V(s_m))`, or the score that comes by its calibration.
A move and a spawn lower it by :math:`v(b_i) - r_i - v(b_{i+1})`, if the spawn was unlucky or the move worse
than the network's best. The **fall** of a game is the largest drop on boards with the game's highest tile. On
earlier boards, a new highest tile changes what a network with stages expects, although nothing is lost. The
last board counts as a drop to 0, so a game that ends unexpectedly has its fall there.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.critic.ntuple.ntuple_critic import GameBoards
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.game.rules import boards_to_exps, exps_to_boards
from tape2048.game.scores import SPAWN, potentials
from tape2048.loader.buffers import find_sessions, open_sessions
from tape2048.loader.duplicates import distinct_runs
from tape2048.session.run_table import exponents_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

    Values = Callable[[npt.NDArray[np.uint64]], npt.NDArray[np.float32]]


class Falls(msgspec.Struct, frozen=True):
    """The falls of some games, as means over the games unless noted."""

    games: int
    moves: float  # of a game
    points: float | None  # lost at the fall; None if the values are no points of the player's games
    share: float  # of the value of the board that was lost at the fall
    moves_left: float  # from the fall to the end, median
    last_empty: float  # empty cells of the last board before a move
    at_empty: dict[int, int]  # number of games by the empty cells of the board at the fall


def analyse(games: GameBoards, values: Values, *, calibrated: bool) -> dict[int, Falls]:
    """Return the falls of games by their highest tile, ascending; in points only if calibrated."""
    played = np.flatnonzero(np.diff(games.starts))
    facts = np.array([_fall(games.between(run, run + 1).boards, values) for run in played.tolist()])
    tiles = 1 << games.highest[played].astype(np.int64)
    return {int(tile): _summary(facts[tiles == tile], calibrated=calibrated) for tile in np.unique(tiles)}


def _fall(boards: npt.NDArray[np.uint64], values: Values) -> tuple[float, ...]:
    """Return moves, points, share, moves left, empty cells of the last board, and empty cells at the fall."""
    exps = boards_to_exps(boards)
    rewards = np.append(np.diff(potentials(exps)) + SPAWN, 0)
    found = values(boards).astype(np.float64)
    drops = found - rewards - np.append(found[1:], 0)
    highest = exps.max(axis=1)
    at = int(np.where(highest == highest[-1], drops, -np.inf).argmax())
    empty = (exps == 0).sum(axis=1)
    return (len(boards), drops[at], drops[at] / max(found[at], 1.0), len(boards) - at, empty[-1], empty[at])


def _summary(facts: npt.NDArray[np.float64], *, calibrated: bool) -> Falls:
    moves, points, share, left, last_empty, empty = facts.T
    return Falls(
        games=len(facts),
        moves=float(moves.mean()),
        points=float(points.mean()) if calibrated else None,
        share=float(share.mean()),
        moves_left=float(np.median(left)),
        last_empty=float(last_empty.mean()),
        at_empty=dict(enumerate(np.bincount(empty.astype(np.int64)).tolist())),
    )


def recorded_games(root: Path, games_max: int) -> tuple[GameBoards, dict[str, Any]]:
    """Return the first games of sessions, with every board, and the facts of their player, if it is one."""
    boards: list[npt.NDArray[np.uint64]] = []
    highest: list[int] = []
    sessions, _ = open_sessions(find_sessions(root))
    for session, chosen in zip(sessions, distinct_runs(sessions), strict=True):
        if (rate := session.meta.get("sample_rate", 1)) != 1:
            raise ConfigError(
                f"{session.path}: found sample_rate = {rate}, expected 1 (every board)",
                hint="Record with sample_rate = 1, or let the player play: tape2048 player analyse PLAYER.",
            )
        for run in np.flatnonzero(chosen)[: max(0, games_max - len(boards))].tolist():
            boards.append(exps_to_boards(session.tokens(session.numbers_of(run))))
            highest.append(int(session.runs["highest_tile"][run]))
    if not boards:
        raise EmptyCorpusError("found no games", path=root)
    starts = np.append(0, np.cumsum([len(one) for one in boards]))
    players = {session.meta.get("player_sha256") for session in sessions}
    found = GameBoards(np.concatenate(boards), starts, exponents_of(np.array(highest, np.uint64)))
    return found, dict(sessions[0].meta) if len(players) == 1 else {}
