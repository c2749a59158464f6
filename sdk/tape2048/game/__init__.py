"""The rules of 2048 on packed boards, and the move between two of them. Loads numba."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.game.moves import (
        AMBIGUOUS as AMBIGUOUS,
        UNKNOWN as UNKNOWN,
        Recovered as Recovered,
        last_boards as last_boards,
        recover as recover,
        recover_move as recover_move,
    )
    from tape2048.game.rules import (
        WON as WON,
        board_score as board_score,
        boards_to_exps as boards_to_exps,
        count_empty as count_empty,
        exps_after as exps_after,
        exps_to_boards as exps_to_boards,
        legal_mask as legal_mask,
        legal_masks as legal_masks,
        max_exponent as max_exponent,
        merge_score as merge_score,
        slide as slide,
        symmetry as symmetry,
        transpose as transpose,
        wins as wins,
    )
    from tape2048.game.spawns import NO_CELL as NO_CELL
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
