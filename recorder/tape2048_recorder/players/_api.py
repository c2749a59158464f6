"""What a player is to the game loop.

A player is a ``NamedTuple`` of its parameters and tables, and a compiled function that chooses. The
loop calls :func:`choose`, which numba resolves by the player's *type* while it compiles the loop: each
player gets a game loop of its own with its choice inlined, and nobody writes a second loop.

A new player is one module::

    class Mine(NamedTuple):
        depth: np.uint64


    @overload(choose)
    def _choose(player, board, state, gamma):
        if not is_player(player, Mine):
            return None

        def choose_mine(player, board, state, gamma):
            ...
            return move, afterstate, state  # three u64; NO_MOVE where nothing is legal

        return choose_mine

and one row in :data:`tape2048_recorder.players.REGISTRY`.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba import types

__all__ = ["NO_MOVE", "choose", "is_player"]

#: What :func:`choose` gives for a board on which the game is over.
NO_MOVE = np.uint64(4)


def choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    """Choose a move. Compiled code only; see the module's docstring.

    Args:
        player: a player's ``NamedTuple``.
        board: ``u64``.
        state: the game's generator, from which ties and random moves are drawn.
        gamma: its increment.

    Returns:
        ``(move, afterstate, state)``; ``move`` is :data:`NO_MOVE` where the game is over.
    """
    message = f"choose is for compiled code; no overload for {type(player).__name__} in Python"
    raise TypeError(message)


def is_player(numba_type: Any, cls: type) -> bool:
    """Whether numba sees an argument as this player (for the overloads of :func:`choose`)."""
    return isinstance(numba_type, types.BaseNamedTuple) and getattr(numba_type, "instance_class", None) is cls
