"""Tile downgrading, compiled: a usual board in the place of one with huge tiles, with the same moves.

Of boards with the largest tiles a network has seen few, and values them badly. In their place it is asked
about a board whose tiles above its largest missing one are halved: Guei, Chen and Wu, "Optimistic temporal
difference learning for 2048", IEEE Transactions on Games 2021, section IV.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from tape2048.jit.compiler import kernel

__all__ = ["downgraded"]

U64 = np.uint64


@kernel
def downgraded(board: Any) -> Any:
    """The board with all tiles above its largest missing one halved; the legal moves are the same.

    The board itself where no tile is missing, and where two are 32768, which do not merge: halves of them do.
    """
    present = U64(0)
    highest = U64(0)
    ceilings = 0
    for i in range(16):
        exponent = (board >> U64(4 * i)) & U64(15)
        present |= U64(1) << exponent
        highest = max(highest, exponent)
        ceilings += exponent == U64(15)
    missing = highest
    while missing > U64(0) and (present >> missing) & U64(1):
        missing -= U64(1)
    if missing == U64(0) or ceilings > 1:
        return board
    halved = U64(0)
    for i in range(16):
        exponent = (board >> U64(4 * i)) & U64(15)
        halved |= (exponent - U64(exponent > missing)) << U64(4 * i)
    return halved
