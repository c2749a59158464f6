"""Compiled encoder of tapes: boards and moves to bytes."""

from __future__ import annotations

from typing import Any

import numpy as np

from tape2048.game.spawns import spawn_between
from tape2048.jit.compiler import kernel

U8 = np.uint8
U64 = np.uint64


@kernel
def encode(  # noqa: PLR0917
    boards: Any, moves: Any, first: Any, steps: Any, finals: Any, tape: Any
) -> Any:
    """Encode games from boards ``u64[n]``, moves ``u8[n]`` and finals ``u64[G]`` into ``tape``, ``u8[n]``.

    ``first`` and ``steps`` (``i64[G]``) are each game's first index in all arrays, and its length.

    Returns:
        -1, or the index of the first step whose move and one spawn do not lead to the next board.
    """
    for game in range(first.shape[0]):
        end = first[game] + steps[game]
        for at_byte in range(first[game], end):
            move = U64(moves[at_byte])
            following = boards[at_byte + 1] if at_byte + 1 < end else finals[game]
            spawn = spawn_between(boards[at_byte], move, following) if move < U64(4) else U64(0)
            if spawn == U64(0):
                return at_byte
            is_four = (spawn & U64(15)) - U64(1)
            tape[at_byte] = U8(move | (spawn >> U64(4)) << U64(2) | is_four << U64(6))
    return -1
