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

The entries are spread over megabytes, beyond the caches of a core. So the places of all boards that are to be
compared are noted first and their cache lines asked for (:func:`note`), and only then are they added up
(:func:`value_at`): a processor waits for a load, and can look no further than some 30 of them ahead; it does
not wait for lines that it was only told of. A move of four 5-tuples takes a fifth to a third less time so.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048._bits import extract_nibbles, load64, prefetch_in, stack_words, store64_at
from tape2048.rules import flip, mirror, transpose

__all__ = [
    "NOTE_WORDS",
    "SYMMETRIES",
    "highest_at_least",
    "indices_of",
    "note",
    "noted_bytes",
    "stage_of",
    "value_at",
    "value_of",
]

U64 = np.uint64

SYMMETRIES = 8

#: Words of the notes of a board's four moves, for each tuple: what :func:`stack_words` takes.
NOTE_WORDS = 4 * (1 + SYMMETRIES)


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
def noted_bytes(masks: Any) -> Any:
    """Bytes of the notes of one board."""
    return U64(8) + U64(8 * SYMMETRIES) * U64(len(masks))


@register_jitable(forceinline=True)
def _symmetries(board: Any) -> Any:
    """The board under the 8 symmetries."""
    b1 = mirror(board)
    b4 = transpose(board)
    b5 = mirror(b4)
    return board, b1, flip(board), flip(b1), b4, b5, flip(b4), flip(b5)


@register_jitable(forceinline=True)
def _note_place(table: Any, place: Any, to: Any) -> None:
    store64_at(to, place)
    prefetch_in(table, place)


@register_jitable(forceinline=True)
def note(layout: Any, table: Any, board: Any, to: Any) -> None:
    """Note where a board's entries are, and ask for their cache lines.

    Args:
        layout: ``(masks, offsets, stage_exponents, stage_size)``: the nibbles of each tuple and where its
            entries begin in a stage, tuples of T ``u64``; ``u64[S - 1]``; and the entries of a stage.
        table: ``f32`` or ``i16``, all stages' entries.
        board: ``u64``.
        to: address of ``noted_bytes(masks)``.
    """
    masks, offsets, stage_exponents, stage_size = layout
    stage = stage_of(stage_exponents, board)
    store64_at(to, stage)
    to += U64(8)
    b0, b1, b2, b3, b4, b5, b6, b7 = _symmetries(board)
    for t in range(len(masks)):
        mask = masks[t]
        at = stage * stage_size + offsets[t]
        _note_place(table, at + extract_nibbles(b0, mask), to)
        _note_place(table, at + extract_nibbles(b1, mask), to + U64(8))
        _note_place(table, at + extract_nibbles(b2, mask), to + U64(16))
        _note_place(table, at + extract_nibbles(b3, mask), to + U64(24))
        _note_place(table, at + extract_nibbles(b4, mask), to + U64(32))
        _note_place(table, at + extract_nibbles(b5, mask), to + U64(40))
        _note_place(table, at + extract_nibbles(b6, mask), to + U64(48))
        _note_place(table, at + extract_nibbles(b7, mask), to + U64(56))
        to += U64(64)


@register_jitable(forceinline=True)
def _pair(table: Any, at: Any) -> Any:
    return table[load64(at)] + table[load64(at + U64(8))]


@register_jitable(forceinline=True)
def value_at(table: Any, scales: Any, masks: Any, at: Any) -> Any:
    """The value of a board that was noted at an address, ``f32``.

    Args:
        table: as it was noted.
        scales: ``f32[S, T]``.
        masks: as they were noted.
        at: the address.
    """
    stage = load64(at)
    at += U64(8)
    total = np.float32(0)
    for t in range(len(masks)):
        total += scales[stage, t] * np.float32(
            (_pair(table, at) + _pair(table, at + U64(16)))
            + (_pair(table, at + U64(32)) + _pair(table, at + U64(48)))
        )
        at += U64(64)
    return total


@register_jitable
def value_of(layout: Any, table: Any, scales: Any, board: Any) -> Any:
    """The value of one board, ``f32``; for the arguments see :func:`note` and :func:`value_at`."""
    masks = layout[0]
    room = stack_words(NOTE_WORDS, masks)
    note(layout, table, board, room)
    return value_at(table, scales, masks, room)


@register_jitable
def indices_of(masks: Any, offsets: Any, base: Any, board: Any, out: Any) -> None:
    """The places of the entries that :func:`value_of` adds: ``out`` is ``u64[8 T]``."""
    boards = _symmetries(board)
    for t in range(len(masks)):
        for k in range(SYMMETRIES):
            out[t * SYMMETRIES + k] = base + offsets[t] + extract_nibbles(boards[k], masks[t])
