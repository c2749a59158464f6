"""The board after a run's last move, where a format keeps only the boards before each move.

A game ends when no move is left, and where a cell is empty a move is left. So the afterstate of the last
move of a finished game has one empty cell, and what is not known is whether the last spawn was a 2 or a
4. Often only one of them ends the game.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.game.rules import empty_mask, legal_mask, slide
from tape2048.jit.compiler import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["last_boards"]

U64 = np.uint64


@kernel
def _last_boards(boards: Any, moves: Any, finals: Any, certain: Any) -> None:
    for i in range(len(boards)):
        after = slide(boards[i], moves[i])
        empty = empty_mask(after)
        two = empty & (~empty + U64(1))  # the last empty cell
        ends_two = empty == two and empty != U64(0) and legal_mask(after | two) == U64(0)
        ends_four = empty == two and empty != U64(0) and legal_mask(after | two << U64(1)) == U64(0)
        finals[i] = after | (two << U64(1) if ends_four and not ends_two else two)
        certain[i] = ends_two != ends_four


def last_boards(
    boards: NDArray[np.uint64], moves: NDArray[np.uint8]
) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """The final boards of runs, from the last board that was kept and the move on it.

    Args:
        boards: ``u64[n]``: of each run the board before its last move.
        moves: ``u8[n]``: that move.

    Returns:
        ``(finals, certain)``. ``finals`` is ``u64[n]``: what the rules leave, and of two candidates the
        one with a 2 (nine times as likely). ``certain`` is ``bool[n]``: whether there is one candidate
        alone. A run that was cut short (the board is not one on which a game ends) is never certain; its
        final board is the afterstate with a 2 in its last empty cell.
    """
    finals = np.empty(len(boards), np.uint64)
    certain = np.empty(len(boards), np.bool_)
    _last_boards(np.ascontiguousarray(boards), np.ascontiguousarray(moves), finals, certain)
    return finals, certain
