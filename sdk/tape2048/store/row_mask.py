"""Masks of the rows whose board has a given number of empty cells; see ``row_map``."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.formats.session import EXPS_OFFSET
from tape2048.game.rules import count_empty
from tape2048.jit.compiler import kernel
from tape2048.jit.intrinsics import load64, popcount
from tape2048.store.row_map import RowMask

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.store.row_map import RowMap

U64 = np.uint64
_EXPS = U64(EXPS_OFFSET)
_SEVENS = U64(0x7F7F7F7F7F7F7F7F)

BLOCK_WORDS = 8
#: Rows of a view from one sampled block to the next: as many as a block has bits.
SAMPLE_ROWS = 64 * BLOCK_WORDS


@kernel
def _mark(address: Any, starts: Any, strides: Any, low: Any, high: Any, words: Any) -> None:  # noqa: PLR0917
    """Set the bits of rows with ``low <= empty cells < high``."""
    for segment in range(address.shape[0]):
        for row in range(starts[segment], starts[segment + 1]):
            cells = address[segment] + row * strides[segment] + _EXPS
            filled = U64(0)
            for half in range(2):
                bytes_ = load64(cells + U64(8 * half))
                # The high bit of each byte that is not 0 (Hacker's Delight, 6-1).
                filled += popcount((((bytes_ & _SEVENS) + _SEVENS) | bytes_) & ~_SEVENS)
            empty = U64(16) - filled
            words[row >> U64(6)] |= U64(low <= empty < high) << (row & U64(63))


@kernel
def _mark_packed(address: Any, starts: Any, low: Any, high: Any, words: Any) -> None:
    """As :func:`_mark`, for packed boards."""
    for segment in range(address.shape[0]):
        for row in range(starts[segment], starts[segment + 1]):
            empty = count_empty(load64(address[segment] + (row << U64(3))))
            words[row >> U64(6)] |= U64(low <= empty < high) << (row & U64(63))


def mask_empties(rows: RowMap, low: int, high: int) -> RowMap:
    """Restrict a map to the rows whose board has ``low <= empty cells < high``.

    Reads every row's board once, in order: 28 GB for 1e9 rows, or 8 GB of packed boards.
    """
    blocks = -(-rows.rows // (64 * BLOCK_WORDS))
    words = np.zeros(blocks * BLOCK_WORDS, np.uint64)
    starts, bounds = rows.guide.starts, (U64(max(0, low)), U64(max(0, high)))
    if len(rows.board):
        _mark_packed(rows.board, starts, *bounds, words)
    else:
        strides = rows.strides if len(rows.strides) else np.full(len(rows.address), rows.row_bytes, U64)
        _mark(rows.address, starts, strides, *bounds, words)
    counts = np.bitwise_count(words).astype(np.int64)
    before = np.zeros(len(words) + 1, np.int64)
    np.cumsum(counts, out=before[1:])
    ranks = before[::BLOCK_WORDS]
    samples = np.searchsorted(ranks, np.arange(0, before[-1], SAMPLE_ROWS), "right") - 1
    mask = RowMask(words, ranks.astype(U64), np.append(samples, max(0, blocks - 1)).astype(U64))
    return rows._replace(mask=mask, run_starts=_ranks(rows.run_starts, words, before))


def _ranks(
    numbers: NDArray[np.uint64], words: NDArray[np.uint64], before: NDArray[np.int64]
) -> NDArray[np.uint64]:
    """Count the bits set below each number."""
    word = (numbers >> U64(6)).astype(np.int64)
    below = np.append(words, U64(0))[word] & ((U64(1) << (numbers & U64(63))) - U64(1))
    ranks: NDArray[np.uint64] = before[word].astype(U64) + np.bitwise_count(below)
    return ranks
