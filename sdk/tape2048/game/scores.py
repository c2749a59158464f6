"""The score of a game at each of its boards, computed from the board, its step and the first board.

The potential of a board is the sum over tiles of ``(e - 3) * 2**e``. A merge of two tiles 2**e raises it by
``2**(e + 1)``, which is the merge's score, and a spawned 2 or 4 lowers it by 4. Each move has one spawn. The
score of t moves from board a to board b is therefore ``potential(b) - potential(a) + 4 t``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

#: Points by which each move's spawn lowers the potential.
SPAWN = 4

#: Potential of a board of two spawned tiles.
TWO_TILES = -2 * SPAWN

#: A tile's term in the potential, by its exponent; a look-up takes 0.7 of the time of a shift and a product.
TERMS = np.array([(e - 3) << e if 0 < e < 32 else 0 for e in range(256)], np.int64)


def potentials(exps: NDArray[np.uint8]) -> NDArray[np.int64]:
    """Return the potentials of boards ``u8[N, 16]``: ``i64[N]``.

    Example:
        >>> from tape2048.game import exps_after
        >>> before, after = np.zeros((2, 1, 16), np.uint8)
        >>> before[0, :2], after[0, 0], after[0, 5] = 3, 4, 1  # two 8s merge, and a 2 is spawned
        >>> (potentials(after) - potentials(before) + SPAWN).tolist()
        [16]
    """
    found: NDArray[Any] = TERMS[exps].sum(axis=1)
    return found
