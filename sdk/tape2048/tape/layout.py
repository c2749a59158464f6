"""Specification of sessions on tape: the games of a session in 1.5 bytes a row.

::

    <root>/<TS>_model=<tag>/
        tape.npy         one byte for each decision: the move and the spawn after it
        anchors.npy      one board in every K rows, from which rows between them are decoded
        metadata.db      as in tape2048.formats.session, and the start of each game
        manifest.json    written last: sizes and checksums of the three above, and K

A game is its start and what happened at each step, so a tape holds what ``steps.npy`` with the action holds,
and each game's final board. Both files are NumPy format 1.0, one-dimensional, C order, with headers of
:data:`TAPE_HEADER_BYTES`.

``tape.npy``: ``|u1``, shape ``(N,)``; byte i is what happened at row i.

====  ==========================================================================
bits  meaning
====  ==========================================================================
0-1   the move: 0 up, 1 down, 2 left, 3 right
2-5   the cell of the spawned tile, row-major, 0 is the top left
6     1 if the spawned tile is a 4, 0 if it is a 2
7     0
====  ==========================================================================

The rows of a game are contiguous and in step order, and every step of a game is there: the last byte leads to
its final board, on which no move is legal.

``anchors.npy``: ``<u8``, shape ``(ceil(N / K),)``; entry c is the packed board of row ``c * K``. K is a power
of two, ``anchor_rows`` in the manifest.

``metadata.db``: ``runs`` has the column ``start_board``, the packed board after the two first spawns (as a
signed integer); ``session`` has ``storage = "tape"``; ``blocks`` cover ``tape.npy``.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import numpy as np

from tape2048.formats.npy import rows_header

TAPE_NPY = "tape.npy"
ANCHORS_NPY = "anchors.npy"

#: The fact ``storage`` of a session on tape, and that of one with ``steps.npy``, which may also lack it.
Storage: TypeAlias = Literal["tape", "rows"]
TAPE: Storage = "tape"
ROWS: Storage = "rows"

#: Rows between anchors: half a byte a row. Random rows are decoded 5.2 million a second; with 8 rows 7.2, at
#: a byte a row, and with 32 rows 3.4.
ANCHOR_ROWS = 16
#: No tape has fewer anchors; any power of two up to it is read.
ANCHOR_ROWS_MAX = 4096

TAPE_HEADER_BYTES = 128

TAPE_DTYPE = np.dtype("u1")
ANCHOR_DTYPE = np.dtype("<u8")

MOVE_BITS = 0x03
#: Four times the cell.
CELL_BITS = 0x3C
FOUR_BIT = 0x40
UNUSED_BIT = 0x80

#: No game has more steps: the tiles of 16 cells add up to at most 16 * 32768, and each spawn adds at least 2
#: to the first two tiles. So a game always fits into memory, whatever a file claims.
GAME_STEPS_MAX = (16 * 32768 - 4) // 2


def tape_header(rows: int) -> bytes:
    """Make the header of ``tape.npy``."""
    return rows_header(TAPE_DTYPE, rows, TAPE_HEADER_BYTES)


def anchors_header(rows: int, anchor_rows: int = ANCHOR_ROWS) -> bytes:
    """Make the header of ``anchors.npy`` of a tape of ``rows`` rows."""
    return rows_header(ANCHOR_DTYPE, anchor_count(rows, anchor_rows), TAPE_HEADER_BYTES)


def anchor_count(rows: int, anchor_rows: int = ANCHOR_ROWS) -> int:
    """Return the number of anchors of a tape."""
    return -(-rows // anchor_rows)
