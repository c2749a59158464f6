"""Specification of the files of a session on tape, which takes 1.5 bytes a row.

The session has two files instead of ``steps.npy``. Both are one-dimensional, NumPy format 1.0, with headers
of :data:`TAPE_HEADER_BYTES`.

``tape.npy``: ``|u1``, shape ``(N,)``. Byte i is the decision of row i and the spawn after it:

====  ==========================================================================
bits  meaning
====  ==========================================================================
0-1   the move: 0 up, 1 down, 2 left, 3 right
2-5   the cell of the spawned tile, row-major, 0 is the top left
6     1 if the spawned tile is a 4, 0 if it is a 2
7     1 if the move merges two tiles of 32768, which ends the game; else 0
====  ==========================================================================

Every step of a game is there: the last byte leads to its final board, on which no move is legal, or has bit 7
set. No tile is spawned then, and bits 2 to 6 are 0. In a step without bit 7, two tiles of 32768 stay apart: a
game recorded under rules 1, in which they do not merge, has the boards that were played.

``anchors.npy``: ``<u8``, shape ``(ceil(N / K),)``. Entry c is the packed board of row ``c * K``, from which
the rows after it are decoded. K is a power of two, ``anchor_rows`` in the manifest.

In ``metadata.db``, the table ``runs`` has the column ``start_board``, the packed board after the two first
spawns (as a signed integer). If ``session`` has ``start_boards``, it is the board that the game was given.
``session`` has ``storage = "tape"``, and ``blocks`` cover ``tape.npy``.
"""

from __future__ import annotations

import numpy as np

TAPE_NPY = "tape.npy"
ANCHORS_NPY = "anchors.npy"

#: Rows between anchors: half a byte a row. Random rows are decoded 5.2 million a second; with 8 rows 7.2, at
#: a byte a row, and with 32 rows 3.4.
ANCHOR_ROWS = 16
#: No tape has fewer anchors; any power of two up to it is read.
ANCHOR_ROWS_MAX = 4096

TAPE_HEADER_BYTES = 128

#: Rows of a block of ``tape.npy``, as ``STEPS_BLOCK_ROWS`` of ``steps.npy``.
TAPE_BLOCK_ROWS = 1_048_576

TAPE_DTYPE = np.dtype("u1")
ANCHOR_DTYPE = np.dtype("<u8")

MOVE_BITS = 0x03
WIN_BIT = 0x80

#: No game has more steps: the tiles of 16 cells add up to at most 16 * 32768, and each spawn adds at least 2
#: to the first two tiles. A game always fits into memory, even if a file claims otherwise.
GAME_STEPS_MAX = (16 * 32768 - 4) // 2


def anchor_count(rows: int, anchor_rows: int = ANCHOR_ROWS) -> int:
    """Return the number of anchors of a tape."""
    return -(-rows // anchor_rows)
