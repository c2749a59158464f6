"""The interface between players and the game loop.

A player is a ``NamedTuple`` of its parameters and tables, and a compiled function that chooses. The
loop calls :func:`choose`, which numba resolves by the player's *type* while it compiles the loop: each
player gets its own machine code with its choice inlined, from one loop's source.

A new player is one module::

    class Mine(NamedTuple):
        depth: np.uint64


    @chooses(Mine)
    def _choose(player, board, state, gamma):
        ...
        return move, afterstate, state  # three u64; NO_MOVE without a legal move

and one row in :data:`tape2048_recorder.players.options.REGISTRY`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import types
from numba.extending import overload

#: The move of :func:`choose` on a board without legal moves.
NO_MOVE = np.uint64(4)


def choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    """Return a player's ``(move, afterstate, state)`` for a board, in compiled code only.

    ``state`` and ``gamma`` are the game's generator, from which ties and random moves are drawn. The move is
    :data:`NO_MOVE` where the game is over.
    """
    raise TypeError(f"choose is for compiled code. No overload for {type(player).__name__} in Python")


def chooses(player_class: type, **jit_options: Any) -> Callable[[Any], Any]:
    """Decorate the implementation of :func:`choose` for a player's ``NamedTuple``."""

    def register(function: Any) -> Any:
        @overload(choose, jit_options=cast("Any", jit_options))
        def _resolve(player: Any, board: Any, state: Any, gamma: Any) -> Any:
            is_tuple = isinstance(player, types.BaseNamedTuple)
            return function if is_tuple and getattr(player, "instance_class", None) is player_class else None

        return function

    return register
