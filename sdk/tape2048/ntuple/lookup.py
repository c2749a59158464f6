r"""Compiled look-up of an afterstate's value in an n-tuple network.

.. math::

    V(s) = \sum_{t} \sum_{k=0}^{7} w_t[\,\iota_t(\sigma_k(s))\,]

over the tuples :math:`t` and the 8 symmetries :math:`\sigma_k` of the square, where :math:`\iota_t(b)` is the
number whose hexadecimal digits are the exponents of ``b`` in the tuple's cells (cell 0 first). Source:
Szubert and Jaskowski, "Temporal difference learning of n-tuple networks for the game 2048", CIG 2014,
section III. With stages, the large tiles decide which stage's tables a board is looked up in: Wu et al.,
"Multi-stage temporal difference learning for 2048", TAAI 2014; Yeh et al., IEEE TCIAIG 2016; by all of them,
and not the highest alone: Jaskowski, "Mastering 2048 with delayed temporal coherence learning", 2018.

The eight boards, the offsets of their entries and the entries are side by side in vector registers
(:mod:`tape2048.ntuple.images`). Nothing branches on a value, so a processor requests the entries of all
boards under comparison before the first ones arrive. :mod:`tape2048.ntuple.placing` lays out the entries.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048.game.rules import flip, mirror, transpose
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import extract_nibbles
from tape2048.ntuple.images import stage_of, sums_at

U64 = np.uint64

SYMMETRIES = 8


@register_jitable
def highest_at_least(board: Any, exponent: Any) -> Any:
    """Return whether a tile of the board has at least this exponent (1..15)."""
    return stage_of((U64(1) << exponent,), board) != U64(0)


@kernel
def downgraded(board: Any) -> Any:
    """Halve all tiles above the largest missing one: a smaller board with the same legal moves.

    Networks have seen few boards with the largest tiles, and value them badly: Guei, Chen and Wu, "Optimistic
    temporal difference learning for 2048", IEEE Transactions on Games 2021, section IV. Returns the board
    itself where no tile is missing, and where two are 32768, which do not merge: halves of them would.
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


@register_jitable(forceinline=True)
def _symmetries(board: Any) -> Any:
    """Return the board under the 8 symmetries."""
    b1 = mirror(board)
    b4 = transpose(board)
    b5 = mirror(b4)
    return board, b1, flip(board), flip(b1), b4, b5, flip(b4), flip(b5)


@register_jitable(forceinline=True)
def value_of(places: Any, table: Any, scales: Any, board: Any) -> Any:
    """Return the value of a board, ``f32``.

    Args:
        places: the offsets of entries, :class:`tape2048.ntuple.placing.Places`.
        table: ``f32`` or ``i16``, all stages' entries.
        scales: ``f32[S, T]``, in the order of the places.
        board: ``u64``.
    """
    stage = stage_of(places.stage_begins, board)
    base = stage * places.stage_bytes
    sums = sums_at(table, places.pairs, places.singles, base, board, transpose(board))
    total = np.float32(0)
    for t in range(len(sums)):
        total += scales[stage, t] * np.float32(sums[t])
    return total


@register_jitable
def indices_of(masks: Any, offsets: Any, base: Any, board: Any, out: Any) -> None:
    """Write the indices of a board's entries in a network's own order into ``out``, ``u64[8 T]``."""
    boards = _symmetries(board)
    for t in range(len(masks)):
        for k in range(SYMMETRIES):
            out[t * SYMMETRIES + k] = base + offsets[t] + extract_nibbles(boards[k], masks[t])
