"""The interface between players and the game loop.

A player is a ``NamedTuple`` of its parameters and tables, and a compiled function that chooses a move. The
loop calls :func:`choose`, which numba resolves by the player's *type* when it compiles the loop. So one
loop's source becomes separate machine code for each player, with the player's function inlined.

To add a player, write a module::

    class Mine(NamedTuple):
        depth: np.uint64


    @chooses(Mine)
    def _choose(player, board, state, gamma):
        ...
        return move, afterstate, state  # three u64; NO_MOVE without a legal move

The function cannot create arrays. Then add a row to
:data:`tape2048_recorder.players.options.REGISTRY`. A player that computes values of moves also needs a
function for :func:`choose_valued`, and ``valued=True`` in its row.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast

import numpy as np
from numba import types
from numba.extending import overload

from tape2048.jit.compiler import AS_HELPER, implementations

#: The move of :func:`choose` on a board without legal moves.
NO_MOVE = np.uint64(4)


def choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    """Return a player's ``(move, afterstate, state)`` for a board, in compiled code only.

    ``state`` and ``gamma`` are the game's generator, from which ties and random moves are drawn. The move is
    :data:`NO_MOVE` on a board without legal moves.
    """
    raise TypeError(f"choose is for compiled code, called from Python with a {type(player).__name__}")


def choose_valued(player: Any, board: Any, state: Any, gamma: Any, values: Any) -> Any:
    """Return the result of :func:`choose`, and fill ``values`` (``f32[4]``: up, down, left, right).

    Every legal move is searched as deep as the player searches this board, even if the player would skip it.
    Illegal moves get NaN.
    """
    raise TypeError(f"choose_valued is for compiled code, called from Python with a {type(player).__name__}")


def chooses(player_class: type, **jit_options: Any) -> Callable[[Any], Any]:
    """Return a decorator for the implementation of :func:`choose` for a player's ``NamedTuple``."""

    def register(function: Any) -> Any:
        @overload(choose, jit_options=cast("Any", AS_HELPER | jit_options))
        def _resolve(player: Any, board: Any, state: Any, gamma: Any) -> Any:
            return function if _is_of(player, player_class) else None

        implementations[player_class].append((function, jit_options))
        return function

    return register


def values_moves(player_class: type) -> Callable[[Any], Any]:
    """Return a decorator for the implementation of :func:`choose_valued` for a player's ``NamedTuple``."""

    def register(function: Any) -> Any:
        @overload(choose_valued, jit_options=cast("Any", AS_HELPER | {"forceinline": True}))
        def _resolve(player: Any, board: Any, state: Any, gamma: Any, values: Any) -> Any:
            return function if _is_of(player, player_class) else None

        implementations[player_class].append((function, {}))
        return function

    return register


def _is_of(player: Any, player_class: type) -> bool:
    return (
        isinstance(player, types.BaseNamedTuple) and getattr(player, "instance_class", None) is player_class
    )
