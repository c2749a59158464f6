"""Checks of decoded games: by the rules, and against what the run table says of them."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from tape2048.errors import BookkeepingError, FieldError, FormatError, ReplayError
from tape2048.tape.layout import ANCHOR_ROWS, TAPE_HEADER_BYTES

if TYPE_CHECKING:
    import os
    from collections.abc import Iterator

    from numpy.typing import NDArray

HINT = "restore the session from a copy"

#: Beside the kinds of :mod:`tape2048.tape.codec`: a number of the run table differs.
_DIFFERS = 255


class Defect(NamedTuple):
    """A defect of a game.

    Attributes:
        game: its place among the games that were checked.
        step: 0-based; the number of steps where the defect is known only after the last one.
        kind: the class of its error.
        text: what was found and expected.
        games: number of games whose first defect is of this kind, this one included.
        code: the kind as a number.
    """

    game: int
    step: int
    kind: type[FormatError]
    text: str
    games: int
    code: int

    def error(
        self, run: np.void, path: str | os.PathLike[str], data_offset: int = TAPE_HEADER_BYTES
    ) -> FormatError:
        """Make the error."""
        offset = data_offset + int(run["first_row"]) + self.step
        more = f" ({self.games} runs like it)" if self.games > 1 else ""
        text = f"run {run['id']}, step {self.step}: {self.text}{more}"
        return self.kind(text, path=path, offset=offset, hint=HINT)


class Checked(NamedTuple):
    """What :func:`check_games` found.

    Attributes:
        boards: ``u64[n]``: the board before each step; undefined in games with a defect.
        finals: ``u64[G]``: the board after each game's last step.
        defects: the first defect of each kind.
        sound: ``bool[G]``: whether a game has none.
    """

    boards: NDArray[np.uint64]
    finals: NDArray[np.uint64]
    defects: list[Defect]
    sound: NDArray[np.bool_]


def check_games(
    tape: NDArray[np.uint8],
    runs: NDArray[np.void],
    starts: NDArray[np.uint64],
    boards: NDArray[np.uint64] | None = None,
) -> Checked:
    """Decode whole games once, and compare them with the rules and with their run table; without the GIL.

    Args:
        tape: ``u8[n]``, the bytes of these games, one after the other: a file's, or a piece's of it.
        runs: ``RUN_DTYPE[G]``, their rows of the run table; ``first_row`` of the first one is ``tape[0]``.
        starts: ``u64[G]``, their first boards.
        boards: ``u64[>= n]`` to decode into; None: a new array.

    Returns:
        Their boards and defects: a start that is none, bit 7, an illegal move, a spawn on a full cell, a game
        that goes on after its end or stops before it; and a score, a highest tile or a number of steps other
        than the run table's. The anchors of the piece are :func:`anchors_of` its boards.

    Raises:
        ValueError: the games do not lie within ``tape``, one after the other.

    Example:
        >>> from tape2048.formats.session import RUN_DTYPE
        >>> tape = np.array([3], np.uint8)  # right, and a 2 at the top left
        >>> runs = np.array([(7, 0, 0, 1, 1, 4, 4)], RUN_DTYPE)
        >>> check_games(tape, runs, np.array([0x1100000000000000], np.uint64)).defects[0].text
        'the game stops on board 0x1002000000000000, where move 1 or 2 or 3 is legal'
    """
    from tape2048.tape.codec import decode, judge

    games = len(runs)
    first = (runs["first_row"] - runs["first_row"][:1]).astype(np.int64)
    steps = runs["rows"].astype(np.int64)
    if not np.array_equal(np.append(first, len(tape)), np.append(0, np.cumsum(steps))[: games + 1]):
        raise ValueError(f"{games} games do not tile {len(tape)} bytes")
    boards = np.empty(len(tape), np.uint64) if boards is None else boards[: len(tape)]
    starts = np.ascontiguousarray(starts)
    finals, scores, tiles = (np.empty(games, np.uint64) for _ in range(3))
    wrong, kinds, at = np.empty(games, np.uint8), np.empty(games, np.uint8), np.empty(games, np.int64)
    decode(tape, first, steps, starts, boards, finals, wrong)
    judge(tape, first, steps, starts, finals, wrong, scores, tiles, kinds, at)
    found = {"steps": steps, "max_score": scores, "highest_tile": tiles}
    differs = (kinds == 0) & np.any([runs[name] != values for name, values in found.items()], axis=0)
    kinds[differs] = _DIFFERS
    defects = []
    for kind in np.unique(kinds[kinds != 0]).tolist():
        alike = np.flatnonzero(kinds == kind)
        game = int(alike[0])
        step, row = int(at[game]), runs[game]
        if kind == _DIFFERS:
            name = next(name for name, values in found.items() if values[game] != row[name])
            error: type[FormatError] = BookkeepingError
            text = f"{name} is {found[name][game]}; the run table says {row[name]}"
        else:
            played = tape[first[game] : first[game] + steps[game]]
            error, text = _describe(kind, _board_at(played[:step], starts[game]), played[step:])
        defects.append(Defect(game, step, error, text, len(alike), kind))
    return Checked(boards, finals, defects, kinds == 0)


def anchors_of(
    boards: NDArray[np.uint64], first_row: int, anchor_rows: int = ANCHOR_ROWS
) -> NDArray[np.uint64]:
    """Return the anchors among the boards of consecutive rows: a view.

    Args:
        boards: ``u64[n]``.
        first_row: number of the first of these rows in its session.
        anchor_rows: K.

    Example:
        >>> anchors_of(np.arange(30, 70, dtype=np.uint64), 30).tolist()
        [32, 48, 64]
    """
    return boards[-first_row % anchor_rows :: anchor_rows]


def game_pieces(runs: NDArray[np.void], rows_max: int) -> Iterator[tuple[slice, slice]]:
    """Cut a tape into pieces of whole games, so that each fits into memory."""
    ends = (runs["first_row"] + runs["rows"]).astype(np.int64)
    first = begin = 0
    while first < len(ends):
        last = max(first + 1, int(np.searchsorted(ends, begin + rows_max, "right")))
        end = int(ends[last - 1])
        yield slice(first, last), slice(begin, end)
        first, begin = last, end


def anchor_error(  # noqa: PLR0917
    row: int, found: int, due: int, run: np.void, path: str | os.PathLike[str], offset: int
) -> BookkeepingError:
    """Make the error of a row's anchor other than the board that the tape leads to, in a run."""
    return BookkeepingError(
        f"run {run['id']}, step {row - int(run['first_row'])}: the anchor of row {row} is {found:#018x}; "
        f"the tape leads to {due:#018x}",
        path=path,
        offset=offset,
        hint=HINT,
    )


def not_a_start(board: np.uint64) -> str:
    """Describe a board that cannot be a start."""
    return f"start_board is {board:#018x}; expected two tiles, each a 2 or a 4"


def _board_at(tape: NDArray[np.uint8], start: np.uint64) -> np.uint64:
    """Decode one game to the board after its bytes."""
    from tape2048.tape.codec import decode

    final, wrong, boards = np.empty(1, np.uint64), np.empty(1, np.uint8), np.empty(len(tape), np.uint64)
    decode(tape, np.zeros(1, np.int64), np.array([len(tape)]), np.array([start]), boards, final, wrong)
    return final[0]  # type: ignore[no-any-return]


def _describe(kind: int, board: np.uint64, rest: NDArray[np.uint8]) -> tuple[type[FormatError], str]:
    """Describe a defect of the rules, on the board before its step; ``rest`` begins with the step's byte."""
    from tape2048.game.rules import legal_mask
    from tape2048.tape import codec

    mask = int(legal_mask(board))
    legal = " or ".join(str(move) for move in range(4) if mask >> move & 1)
    if kind == codec.BAD_START:
        return FieldError, not_a_start(board)
    if kind == codec.BEFORE_END:
        return ReplayError, f"the game stops on board {board:#018x}, where move {legal} is legal"
    if kind == codec.AFTER_END:
        return ReplayError, f"the game goes on after its end, on board {board:#018x}"
    byte = int(rest[0])
    if kind == codec.BIT_7:
        return FieldError, f"byte {byte:#04x} has bit 7 set; expected 0"
    if kind == codec.ILLEGAL_MOVE:
        return ReplayError, f"move {byte & 3} is illegal on board {board:#018x}; expected {legal}"
    cell = byte >> 2 & 15
    return ReplayError, f"a tile appears in cell {cell}, which is full after move {byte & 3} on {board:#018x}"
