"""The rules of 2048 on packed boards, for programs and compiled players, and the move between two boards.

A board is a ``u64``: 16 exponents of 4 bits, from the top left, row by row. Moves are 0 up, 1 down, 2 left
and 3 right. :func:`legal`, :func:`slide`, :func:`merge_score`, :func:`spawn`, :func:`step` and
:func:`spawns` take one board or arrays of boards. Play a batch of games with random moves::

    rng = np.random.default_rng(0)
    boards = spawn(spawn(np.zeros(1000, np.uint64), rng=rng), rng=rng)
    ended = np.zeros(1000, bool)
    while not ended.all():
        moves = np.argmax(legal(boards) * rng.random((1000, 4)), axis=1)
        boards, rewards, ended = step(boards, moves, rng=rng)

Loads numba.
"""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.game.board_text import parse_board as parse_board
    from tape2048.game.boards import (
        MOVE_NAMES as MOVE_NAMES,
        Spawns as Spawns,
        Step as Step,
        board_to_text as board_to_text,
        boards_to_tiles as boards_to_tiles,
        legal as legal,
        merge_score as merge_score,
        slide as slide,
        spawn as spawn,
        spawns as spawns,
        step as step,
        tiles_to_boards as tiles_to_boards,
    )
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
        symmetry as symmetry,
        transpose as transpose,
        wins as wins,
    )
    from tape2048.game.spawning import NO_CELL as NO_CELL
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
