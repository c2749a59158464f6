"""The rules of 2048 on packed boards, and the move between two of them. Loads numba.

- `board_score`: the sum over tiles of (e - 1) * 2**e.
- `boards_to_exps`: exponents of packed boards.
- `count_empty`: the number of empty cells.
- `exps_to_boards`: packed boards of exponents.
- `legal_mask`: the legal moves of one board.
- `legal_masks`: the legal moves of many boards.
- `max_exponent`: the exponent of the highest tile.
- `merge_score`: the score of a move.
- `slide`: the afterstate of a move.
- `symmetry`: one of the square's 8 symmetries.
- `transpose`: rows and columns exchanged.
- `AMBIGUOUS`: in place of a move, if two moves explain two boards.
- `UNKNOWN`: in place of a move, if no move explains two boards.
- `Recovered`: moves and spawns between consecutive boards.
- `recover`: moves and spawns of a sequence of boards.
- `recover_move`: the move between two boards, for compiled code.
- `last_boards`: final boards from the last recorded boards and their moves.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.game.moves import AMBIGUOUS as AMBIGUOUS
    from tape2048.game.moves import UNKNOWN as UNKNOWN
    from tape2048.game.moves import Recovered as Recovered
    from tape2048.game.moves import last_boards as last_boards
    from tape2048.game.moves import recover as recover
    from tape2048.game.moves import recover_move as recover_move
    from tape2048.game.rules import board_score as board_score
    from tape2048.game.rules import boards_to_exps as boards_to_exps
    from tape2048.game.rules import count_empty as count_empty
    from tape2048.game.rules import exps_to_boards as exps_to_boards
    from tape2048.game.rules import legal_mask as legal_mask
    from tape2048.game.rules import legal_masks as legal_masks
    from tape2048.game.rules import max_exponent as max_exponent
    from tape2048.game.rules import merge_score as merge_score
    from tape2048.game.rules import slide as slide
    from tape2048.game.rules import symmetry as symmetry
    from tape2048.game.rules import transpose as transpose
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        rules="board_score boards_to_exps count_empty exps_to_boards legal_mask legal_masks max_exponent "
        "merge_score slide symmetry transpose",
        moves="AMBIGUOUS UNKNOWN Recovered last_boards recover recover_move",
    )
