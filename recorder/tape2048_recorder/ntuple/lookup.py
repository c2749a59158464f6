r"""The value of an afterstate by an n-tuple network, compiled.

.. math::

    V(s) = \sum_{t} \sum_{k=0}^{7} w_t[\,\iota_t(\sigma_k(s))\,]

over the tuples :math:`t` and the 8 symmetries :math:`\sigma_k` of the square, where :math:`\iota_t(b)` is the
number whose hexadecimal digits are the exponents of ``b`` in the tuple's cells (cell 0 first). Source:
Szubert and Jaskowski, "Temporal difference learning of n-tuple networks for the game 2048", CIG 2014,
section III. With stages, each stage has tables of its own, and the highest tile says which one a board
belongs to: Wu et al., "Multi-stage temporal difference learning for 2048", TAAI 2014; Yeh et al., IEEE
TCIAIG 2016.

The eight boards are made once for each value (a few shifts each), and a tuple's index is then one
``pext``, since its cells are taken in the board's order. Masks and offsets are Python tuples, whose length
numba knows: it unrolls the loop over them, which makes a move a quarter faster than arrays do.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048._bits import extract_nibbles
from tape2048.rules import flip, mirror, transpose

__all__ = ["SYMMETRIES", "highest_at_least", "indices_of", "stage_of", "value_of"]

U64 = np.uint64

SYMMETRIES = 8


@register_jitable
def highest_at_least(board: Any, exponent: Any) -> Any:
    """Whether a tile of the board has at least this exponent (1..15)."""
    # Nibbles of alternate cells in bytes of their own, so that adding does not carry into a neighbour.
    low = U64(0x0F0F0F0F0F0F0F0F)
    reach = (U64(16) - exponent) * U64(0x0101010101010101)
    carry = U64(0x1010101010101010)
    return (((board & low) + reach) | (((board >> U64(4)) & low) + reach)) & carry != U64(0)


@register_jitable
def stage_of(stage_exponents: Any, board: Any) -> Any:
    """The stage of a board: how many of the stages' first exponents its highest tile reaches."""
    stage = U64(0)
    for i in range(stage_exponents.shape[0]):
        if highest_at_least(board, stage_exponents[i]):
            stage += U64(1)
    return stage


@register_jitable(forceinline=True)
def value_of(
    table: Any, scales: Any, masks: Any, offsets: Any, stage: Any, stage_size: Any, board: Any
) -> Any:
    """The value of a board in one stage, ``f32``.

    Args:
        table: ``f32`` or ``i16``, all stages' entries.
        scales: ``f32[S, T]``.
        masks: a tuple of T ``u64``: the nibbles of each tuple.
        offsets: a tuple of T ``u64``: where a tuple's entries begin in its stage.
        stage: the board's stage.
        stage_size: entries of a stage.
        board: ``u64``.
    """
    b0 = board
    b1 = mirror(b0)
    b2 = flip(b0)
    b3 = flip(b1)
    b4 = transpose(b0)
    b5 = mirror(b4)
    b6 = flip(b4)
    b7 = flip(b5)
    base = stage * stage_size
    total = np.float32(0)
    for t in range(len(masks)):
        mask = masks[t]
        at = base + offsets[t]
        total += scales[stage, t] * np.float32(
            (
                (table[at + extract_nibbles(b0, mask)] + table[at + extract_nibbles(b1, mask)])
                + (table[at + extract_nibbles(b2, mask)] + table[at + extract_nibbles(b3, mask)])
            )
            + (
                (table[at + extract_nibbles(b4, mask)] + table[at + extract_nibbles(b5, mask)])
                + (table[at + extract_nibbles(b6, mask)] + table[at + extract_nibbles(b7, mask)])
            )
        )
    return total


@register_jitable
def indices_of(masks: Any, offsets: Any, base: Any, board: Any, out: Any) -> None:
    """The places of the entries that :func:`value_of` adds: ``out`` is ``u64[8 T]``."""
    boards = (
        board,
        mirror(board),
        flip(board),
        flip(mirror(board)),
        transpose(board),
        mirror(transpose(board)),
        flip(transpose(board)),
        flip(mirror(transpose(board))),
    )
    for t in range(len(masks)):
        for k in range(SYMMETRIES):
            out[t * SYMMETRIES + k] = base + offsets[t] + extract_nibbles(boards[k], masks[t])
