"""Final boards of recorded games, which a session does not hold, by playing them again from their seeds."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.resources import available_cores
from tape2048.errors import ConfigError, FormatError, ReplayError
from tape2048.game.rules import boards_to_exps
from tape2048.jit.compiler import kernel
from tape2048_recorder.game.engine import new_game, spawn
from tape2048_recorder.game.player_api import NO_MOVE, choose
from tape2048_recorder.players.registry import REGISTRY, make_player, own, player_sha256

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.session.session import Session

__all__ = ["final_boards"]

#: Games that one thread plays at a time.
_CHUNK_RUNS = 256


@kernel
def _play_to_the_end(player: Any, seeds: Any, lasts: Any, finals: Any, steps: Any) -> None:
    """Play games; fills in the board before the last move, the final one, and the number of moves."""
    for i in range(len(seeds)):
        board, _, state, gamma = new_game(seeds[i])
        steps[i] = 0
        while True:
            move, after, state = choose(player, board, state, gamma)
            if move == NO_MOVE:
                break
            lasts[i] = board
            board, _, state = spawn(after, state, gamma)
            steps[i] += 1
        finals[i] = board


def final_boards(session: Session) -> NDArray[np.uint64] | None:
    """The board after the last move of each run of a session.

    Args:
        session: any.

    Returns:
        ``u64[R]``; None where the session does not say what played it, or that player is not known here
        (another version of it, say, or one whose network's file is gone).

    Raises:
        ReplayError: a game comes out differently than it was recorded.
    """
    name, args = session.meta.get("player"), session.meta.get("player_args", {})
    if not isinstance(name, str) or name not in REGISTRY or not isinstance(args, dict):
        return None
    try:
        made = make_player(name, args)
    except (ConfigError, FormatError):
        return None
    if session.meta.get("player_sha256") != player_sha256(name, made):
        return None
    runs = session.runs
    seeds = np.ascontiguousarray(runs["seed"])
    lasts, finals, steps = (np.zeros(len(runs), np.uint64) for _ in range(3))

    def play(part: slice) -> None:
        player = own(made)  # its cache is written: one for each piece of work
        _play_to_the_end(player, seeds[part], lasts[part], finals[part], steps[part])

    parts = [slice(first, first + _CHUNK_RUNS) for first in range(0, len(runs), _CHUNK_RUNS)]
    with ThreadPoolExecutor(available_cores()) as pool:
        list(pool.map(play, parts))
    _compare(session, steps, lasts)
    return finals


def _compare(session: Session, steps: NDArray[np.uint64], lasts: NDArray[np.uint64]) -> None:
    runs = session.runs
    for i in np.flatnonzero(runs["rows"]).tolist():
        rows = session.steps[session.rows_of(i)]
        same = steps[i] == runs["steps"][i]
        if same and int(rows["step_idx"][-1]) + 1 == int(steps[i]):
            same = np.array_equal(rows["exps"][-1], boards_to_exps(lasts[i]))
        if not same:
            raise ReplayError(
                f"run {runs['id'][i]} (seed {runs['seed'][i]}) comes out differently: its final board is "
                "not known",
                path=session.path,
                hint="tape2048 validate --replay says which games are not as they were played",
            )
