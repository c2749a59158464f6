"""Specification of the files of a session on tape, which takes 1.5 bytes for each row.

The session has two files instead of ``steps.npy``. Both are one-dimensional, in NumPy format 1.0, with
headers of :data:`TAPE_HEADER_BYTES` bytes.

``tape.npy``: ``|u1``, shape ``(N,)``. Byte i is the move of row i and the spawn after it:

====  ==========================================================================
bits  meaning
====  ==========================================================================
0-1   the move: 0 up, 1 down, 2 left, 3 right
2-5   the cell of the spawned tile, row-major, 0 is the top left
6     1 if the spawned tile is a 4, 0 if it is a 2
7     1 if the move merges two tiles of 32768, which ends the game; otherwise 0
====  ==========================================================================

A tape has every step of a game. The last byte of a game leads to a final board without a legal move, or has
bit 7 set. With bit 7, no tile is spawned, and bits 2 to 6 are 0. In a step without bit 7, two tiles of 32768
do not merge: games recorded under rules 1, in which they never merge, are decoded to the boards that were
played.

``anchors.npy``: ``<u8``, shape ``(ceil(N / K),)``. Entry c is the packed board of row ``c * K``, from which
the rows after it are decoded. K is a power of two, ``anchor_rows`` in the manifest.

In ``metadata.db``, the table ``runs`` has the column ``start_board``: the packed board after the first two
spawns, as a signed integer. If the table ``session`` has ``start_boards``, it is the given board that the
game starts from. The table ``session`` has ``storage = "tape"``, and the table ``blocks`` covers
``tape.npy``.
"""

from __future__ import annotations

import numpy as np

TAPE_NPY = "tape.npy"
ANCHORS_NPY = "anchors.npy"

#: Rows between anchors. With 16 rows, anchors take half a byte for each row, and 5.2 million random rows are
#: decoded in a second; with 8 rows, a byte and 7.2 million; with 32 rows, 3.4 million.
ANCHOR_ROWS = 16
#: Most rows between anchors in a tape. The reader takes any power of two up to this number.
ANCHOR_ROWS_MAX = 4096

TAPE_HEADER_BYTES = 128

#: Rows of a block of ``tape.npy``; see ``STEPS_BLOCK_ROWS`` for ``steps.npy``.
TAPE_BLOCK_ROWS = 1_048_576

TAPE_DTYPE = np.dtype("u1")
ANCHOR_DTYPE = np.dtype("<u8")

MOVE_BITS = 0x03
WIN_BIT = 0x80

#: Most steps of a game: the tiles of 16 cells add up to at most 16 * 32768, the first two tiles to at least
#: 4, and each spawn adds at least 2. The limit bounds the memory for a game, whatever a file claims.
GAME_STEPS_MAX = (16 * 32768 - 4) // 2


def anchor_count(rows: int, anchor_rows: int = ANCHOR_ROWS) -> int:
    return -(-rows // anchor_rows)
