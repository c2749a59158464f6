"""Boards of rows on tape, decoded from the nearest board that is known: an anchor, or the game's start.

The kernels find a row's byte by its address, as they find a row of ``steps.npy`` (see ``row_map``): a row on
tape is one byte long. What it takes to decode one is in the two tables of a ``row_map.TapeMap``, an entry for
each segment and one for each span of adjacent rows.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048.jit.intrinsics import load8, load64, word
from tape2048.tape.codec import step_forward

U64 = np.uint64

#: Words of a segment's entry: addresses of its game's first byte (0: not on tape) and of the end of its last
#: one, the game's first board, and the address of its span's entry.
FIRST, END, START, SPAN = (U64(i) for i in range(4))
#: Words of a span's entry: addresses of its first byte and of its first anchor, and the bits of the rows
#: between two anchors.
BEGIN, ANCHORS, SHIFT = (U64(i) for i in range(3))


@register_jitable
def entry_of(entries: Any, segment: Any) -> Any:
    """Return the address of a segment's entry."""
    return entries + (segment << U64(5))


@register_jitable
def nearest(row: Any, entry: Any) -> Any:
    """Return the address of the nearest board that is known, and of the byte that follows on it."""
    span, first = word(entry, SPAN), word(entry, FIRST)
    begin, shift = word(span, BEGIN), word(span, SHIFT)
    anchor = (row - begin) >> shift
    source = begin + (anchor << shift)
    if source < first:  # the anchor is another game's
        return entry + (START << U64(3)), first
    return word(span, ANCHORS) + (anchor << U64(3)), source


@register_jitable
def board_at(row: Any, entry: Any) -> Any:
    """Decode the board of the row whose byte is at an address."""
    known, source = nearest(row, entry)
    board = load64(known)
    while source < row:
        board = step_forward(board, load8(source))
        source += U64(1)
    return board
