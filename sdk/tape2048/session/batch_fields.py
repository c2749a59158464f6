"""The built-in fields of batches. To add a field, add an entry to :data:`FIELDS`.

A field with ``make`` is computed from other fields of the same rows and from the table of their games. The
other fields are written by ``loader.gather_kernel``, in the loop that fetches the rows, or by
``loader.ahead``, which reads a later board of the game.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray


class Field(NamedTuple):
    """A field of a batch, with a value for each row.

    ``dtype`` is None for ``labels``, whose type is an option. ``of_rows``: it needs the whole row, not only
    the board. ``make`` takes the table of the view's runs (``CORPUS_RUN_DTYPE[R]``) and the arrays of
    ``needs``; None: a kernel writes the field. ``moves``, for a field of ``loader.ahead``, is the moves to
    the later board; 0 if the end of the game suffices; None for other fields.
    """

    dtype: type[np.generic] | None
    about: str
    width: int | None = None
    of_rows: bool = False
    needs: tuple[str, ...] = ()
    make: Callable[..., Any] | None = None
    moves: int | None = None


def _steps_left(runs: NDArray[np.void], run: NDArray[np.uint32], step: NDArray[np.uint32]) -> NDArray[Any]:
    steps = runs["steps"][run]
    left: NDArray[Any] = steps - np.minimum(step + 1, steps)
    return left


#: Attributes of a batch, which would hide a column of the same name in ``batch.NAME``. A column can be called
#: ``values``, as the column of ``annotate`` is.
RESERVED = frozenset({
    "allocate", "arrays", "capacity", "copy", "get", "items", "keys", "layout", "owners", "rows", "show",
    "to_pandas",
})  # fmt: skip

#: The fields by name. A column cannot have one of these names.
FIELDS = {
    "tokens": Field(np.uint8, "exponents of the board", width=16),
    "labels": Field(None, "whether the game reached each threshold"),
    "weight": Field(np.float32, "number of rows that the row represents; above 1 in a capped sample"),
    "row": Field(np.int64, "number of the row in the corpus"),
    "run": Field(np.uint32, "ordinal of the game in `corpus.runs`"),
    "step": Field(np.uint32, "number of the row's move: the moves before the row", of_rows=True),
    "action": Field(
        np.uint8, "the recorded move, if every session of the rows has it, as tapes do", of_rows=True
    ),
    "legal": Field(np.uint8, "mask of the legal moves"),
    "move": Field(
        np.uint8, "the move, recovered from this board and the next one, or `UNKNOWN`", of_rows=True
    ),
    "symmetry": Field(np.uint8, "index of the symmetry that was applied"),
    "steps_left": Field(np.uint32, "moves after the row's move", needs=("run", "step"), make=_steps_left),
    "score": Field(
        np.uint32, "final score of the game", needs=("run",), make=lambda runs, run: runs["score"][run]
    ),
    "score_to_go": Field(
        np.uint32, "points of the row's move and of all later ones", needs=("run", "tokens"), moves=0
    ),
    "score_so_far": Field(np.uint32, "points before the row's move", needs=("run", "tokens"), moves=0),
    "highest_tile": Field(
        np.uint32, "highest tile of the game", needs=("run",),
        make=lambda runs, run: runs["highest_tile"][run],
    ),
    "board_highest_tile": Field(
        np.uint32, "highest tile on the board", needs=("tokens",),
        make=lambda _runs, tokens: np.left_shift(np.uint32(1), tokens.max(axis=1)),
    ),
    "seed": Field(np.uint64, "seed of the game", needs=("run",), make=lambda runs, run: runs["seed"][run]),
    "valid": Field(
        np.bool_, "false where a window repeats the game's last row, and else true", make=lambda _: True
    ),
}  # fmt: skip

#: Fields with a number K of moves in their names, as in ``return_32``, by the first part of the name.
AHEAD = {
    "return": Field(
        np.uint32, "points of the next K moves, or of all that are left", needs=("run", "tokens")
    ),
    "highest_tile_after": Field(
        np.uint32, "highest tile on the board after K moves, or at the game's end", needs=("run",)
    ),
}  # fmt: skip

_MOVES_DIGITS_MAX = 6


def field_of(name: str) -> Field | None:
    kind, _, moves = name.rpartition("_")
    if kind in AHEAD and moves.isascii() and moves.isdigit() and len(moves) <= _MOVES_DIGITS_MAX:
        return AHEAD[kind]._replace(moves=int(moves)) if moves[0] != "0" else None
    return FIELDS.get(name)
