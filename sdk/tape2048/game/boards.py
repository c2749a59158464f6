"""Boards for programs: legal moves, moves and spawns of many boards at once, and boards as tiles.

The functions take one packed board or an array of any shape, and moves 0 up, 1 down, 2 left, 3 right. Their
arguments are broadcast. NumPy computes them, so nothing is compiled.
"""

from __future__ import annotations

import functools
import operator
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from numba.extending import overload

from tape2048.game import rules
from tape2048.game.rules import (
    EXPONENT_MAX,
    LEFT,
    MERGE_SCORE,
    ONES,
    SLIDE,
    SLIDE_APART,
    WON,
    as_packed,
    boards_to_exps,
    exps_to_boards,
)

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray

#: The names of the moves 0 to 3.
MOVE_NAMES = ("up", "down", "left", "right")
#: The probability that a spawned tile is a 4; otherwise, it is a 2.
P_FOUR = 0.1

U64 = np.uint64

# The rules' own expressions, computed on arrays.
_transpose: Any = rules.transpose.py_func  # type: ignore[attr-defined]


class Step(NamedTuple):
    """Boards after moves and their spawns.

    Attributes:
        boards: ``u64[n]``, the boards to move on next; :data:`WON` after a merge of two tiles of 32768.
        rewards: ``i64[n]``, points of the moves: the sum of the merged tiles.
        ended: ``bool[n]``, whether the game has ended: no move is left, or it is won.
    """

    boards: NDArray[np.uint64]
    rewards: NDArray[np.int64]
    ended: NDArray[np.bool_]


class Spawns(NamedTuple):
    """All spawns on n boards: k rows, by board, cell and tile.

    Attributes:
        parents: ``i64[k]``, the number of the board before, 0 to n - 1.
        boards: ``u64[k]``, the board with the spawn.
        cells: ``u8[k]``, its cell, 0 (top left) to 15.
        tiles: ``u8[k]``, 2 or 4.
        probabilities: ``f64[k]``; those of a board add up to 1.
    """

    parents: NDArray[np.int64]
    boards: NDArray[np.uint64]
    cells: NDArray[np.uint8]
    tiles: NDArray[np.uint8]
    probabilities: NDArray[np.float64]


def _chosen(name: str, given: ArrayLike, allowed: tuple[int, ...], expected: str) -> NDArray[np.int64]:
    found = np.asarray(given)
    if found.size and found.dtype.kind not in "iu":
        raise ValueError(f"{name} have dtype {found.dtype}; expected integers")
    known = functools.reduce(operator.or_, (found == each for each in allowed))
    if not known.all():
        at = tuple(np.argwhere(~known)[0].tolist())
        raise ValueError(f"{name}{[*at] if at else ''} is {found[at]}; expected {expected}")
    return found.astype(np.int64)


def _moves(given: ArrayLike) -> NDArray[np.int64]:
    return _chosen("moves", given, (0, 1, 2, 3), "0 up, 1 down, 2 left or 3 right")


def _flat(*arrays: NDArray[Any]) -> tuple[tuple[int, ...], list[NDArray[Any]]]:
    alike = np.broadcast_arrays(*arrays)
    return alike[0].shape, [each.ravel() for each in alike]


def _empty_mask(boards: NDArray[np.uint64]) -> NDArray[np.uint64]:
    found: NDArray[np.uint64] = rules.empty_mask.py_func(boards.copy())  # type: ignore[attr-defined]
    return found


def _lines(boards: NDArray[np.uint64], moves: NDArray[np.int64]) -> NDArray[np.int64]:
    """Return the four lines of each board along its move, as indices of ``SLIDE``: ``i64[n, 4]``."""
    along = np.where(moves < LEFT, _transpose(boards), boards)
    return along.view(np.uint16).reshape(-1, 4) + ((moves & 1) << 16)[:, None]


def _back(lines: NDArray[np.uint16], moves: NDArray[np.int64]) -> NDArray[np.uint64]:
    """Return the boards of slid lines, ``u16[n, 4]``."""
    after = lines.view(np.uint64)[:, 0]
    return np.where(moves < LEFT, _transpose(after), after)


def _slide(boards: NDArray[np.uint64], moves: NDArray[np.int64]) -> NDArray[np.uint64]:
    return _back(SLIDE[_lines(boards, moves)], moves)


def _score(lines: NDArray[np.int64]) -> NDArray[np.int64]:
    found: NDArray[np.int64] = MERGE_SCORE[lines & 0xFFFF].sum(axis=1, dtype=np.int64)
    return found


def _is_one(board: Any, move: Any) -> bool:
    """Tell whether these are a board and a move, which compiled code answers in a microsecond."""
    one = isinstance(board, int | np.uint64) and isinstance(move, int | np.integer)
    return one and 0 <= board < 1 << 64 and 0 <= move < 4


def slide(board: Any, move: Any) -> Any:
    """Return the afterstates of moves: tiles slid and merged, no spawn. An illegal move changes nothing.

    Compiled players can call it with one board.

    Args:
        board: packed boards, ``u64[n]``, or one board.
        move: ``[n]``, 0 up, 1 down, 2 left, 3 right, or one move.

    Returns:
        ``u64[n]``; an ``int`` for one board and one move. Two merged tiles of 32768 are one 32768:
        :func:`step` tells that the game is won.

    Raises:
        ValueError: boards are not integers of 64 bits, or moves are not 0 to 3.

    Example:
        >>> hex(slide(0x1120000000000000, 2))
        '0x2200000000000000'
        >>> [hex(after) for after in slide(0x1120000000000000, [0, 2, 3])]
        ['0x1120000000000000', '0x2200000000000000', '0x22000000000000']
    """
    if _is_one(board, move):
        return int(rules.slide(U64(board), U64(move)))
    shape, (boards, moves) = _flat(as_packed(board), _moves(move))
    return _slide(boards, moves).reshape(shape)[()]


def merge_score(board: Any, move: Any) -> Any:
    """Return the points of moves: the sum of the merged tiles. An illegal move has 0.

    Compiled players can call it with one board.

    Args:
        board: packed boards, ``u64[n]``, or one board.
        move: ``[n]``, 0 up, 1 down, 2 left, 3 right, or one move.

    Returns:
        ``i64[n]``; an ``int`` for one board and one move.

    Raises:
        ValueError: as :func:`slide`.

    Example:
        >>> merge_score(0x1122000000000000, [0, 1, 2, 3])
        array([ 0,  0, 12, 12])
    """
    if _is_one(board, move):
        return int(rules.merge_score(U64(board), U64(move)))
    shape, (boards, moves) = _flat(as_packed(board), _moves(move))
    return _score(_lines(boards, moves)).reshape(shape)[()]


@overload(slide, strict=False)
def _slide_one(board: Any, move: Any) -> Any:  # noqa: ARG001 - numba's interface
    return lambda board, move: rules.slide(board, move)  # noqa: PLW0108 - numba needs a function


@overload(merge_score, strict=False)
def _merge_score_one(board: Any, move: Any) -> Any:  # noqa: ARG001 - numba's interface
    return lambda board, move: rules.merge_score(board, move)  # noqa: PLW0108 - as above


def legal(boards: ArrayLike) -> NDArray[np.bool_]:
    """Tell which moves change boards.

    Args:
        boards: packed boards, ``u64[n]``, or one board.

    Returns:
        ``bool[n, 4]`` (or ``bool[4]``): up, down, left, right. All four are False when a game has ended.

    Raises:
        ValueError: boards are not integers of 64 bits.

    Example:
        >>> legal([0x1000000000000000, 0x1200000000000000])
        array([[False,  True, False,  True],
               [False,  True, False,  True]])
    """
    packed = as_packed(boards)
    flat = packed.ravel()
    columns, found = _transpose(flat), np.empty((flat.size, 4), np.bool_)
    for move in range(4):
        lines = flat if move >= LEFT else columns
        table = SLIDE[(move & 1) << 16 :][: 1 << 16]
        found[:, move] = table[lines.view(np.uint16)].view(np.uint64) != lines
    return found.reshape(*packed.shape, 4)


def _can_move(boards: NDArray[np.uint64]) -> NDArray[np.bool_]:
    found: NDArray[np.bool_] = legal(boards).view(np.uint32)[:, 0] != 0
    return found


def check_moves(boards: NDArray[np.uint64], moves: NDArray[Any]) -> None:
    """Raise a ValueError that names the first illegal move of ``u64[n]`` boards, and its board."""
    made = _moves(moves)
    if (wrong := np.flatnonzero(_slide(boards, made) == boards)).size:
        _refuse_move(wrong[0], boards, made)


def _refuse_move(at: int, boards: NDArray[np.uint64], moves: NDArray[np.int64]) -> None:
    names = " or ".join(f"{move} {MOVE_NAMES[move]}" for move in np.flatnonzero(legal(boards[at])))
    found = f"moves[{at}] is {moves[at]} {MOVE_NAMES[moves[at]]}, which changes nothing on the board"
    expected = names or "no move: its game has ended"
    raise ValueError(f"{found} {int(boards[at]):#018x}; expected {expected}")


def _explicit(cells: ArrayLike | None, tiles: ArrayLike | None, rng: Any) -> list[NDArray[np.int64]]:
    """Return the cells and tiles of spawns; nothing if a generator draws them."""
    if rng is None and cells is not None and tiles is not None:
        cell = _chosen("cells", cells, tuple(range(16)), "0 (top left) to 15")
        return [cell, _chosen("tiles", tiles, (2, 4), "2 or 4")]
    if cells is not None or tiles is not None or not isinstance(rng, np.random.Generator):
        given = {"cells": cells, "tiles": tiles, "rng": rng}
        names = " and ".join(name for name, each in given.items() if each is not None)
        message = f"found {names or 'no spawn'}; expected cells and tiles, or rng=numpy.random.default_rng(0)"
        raise TypeError(message)
    return []


def _spawned(
    boards: NDArray[np.uint64], given: list[NDArray[np.int64]], rng: Any, numbers: NDArray[np.int64]
) -> Any:
    """Return boards with their spawns; an error names a board by its number."""
    if given:
        cells, tiles = given
        shifts = (60 - 4 * cells).astype(np.uint64)
        taken, new = boards >> shifts & U64(15), (tiles >> 1).astype(np.uint64) << shifts
        if (wrong := np.flatnonzero(taken)).size:
            found = f"cells[{numbers[wrong[0]]}] is {cells[wrong[0]]}"
            raise ValueError(f"{found}, which has a tile on the board {int(boards[wrong[0]]):#018x}")
        return boards | new
    empty = _empty_mask(boards)
    counts = np.bitwise_count(empty)
    if (wrong := np.flatnonzero(counts == 0)).size:
        board = int(boards[wrong[0]])
        raise ValueError(f"boards[{numbers[wrong[0]]}] is {board:#018x}; expected an empty cell")
    wanted = (rng.random(boards.size) * counts).astype(np.uint64) + U64(1)
    # Nibbles of the product number the empty cells from the last one, modulo 16; one has the wanted number.
    two = empty & _empty_mask((empty * ONES) ^ ((wanted & U64(15)) * ONES))
    return boards | two << (rng.random(boards.size) < P_FOUR).astype(np.uint64)


def spawn(
    boards: ArrayLike,
    cells: ArrayLike | None = None,
    tiles: ArrayLike | None = None,
    *,
    rng: np.random.Generator | None = None,
) -> NDArray[np.uint64]:
    """Add a tile to each board: given tiles, or tiles that a generator draws as the game does.

    Args:
        boards: packed boards (afterstates), ``u64[n]``, or one board.
        cells: ``[n]``, the empty cells that get a tile, 0 (top left) to 15; with ``tiles``.
        tiles: ``[n]``, 2 or 4.
        rng: a generator, instead of cells and tiles. It draws an empty cell, each equally likely, and a 4
            with the probability 0.1.

    Returns:
        ``u64[n]``, or a ``u64`` for one board.

    Raises:
        ValueError: a cell has a tile, no cell is empty, or a cell or a tile is out of range.
        TypeError: neither cells and tiles nor a generator are given, or both.

    Example:
        >>> hex(spawn(0x2200000000000000, cells=15, tiles=4))
        '0x2200000000000002'
        >>> rng = np.random.default_rng(0)
        >>> new_games = spawn(spawn(np.zeros(1000, np.uint64), rng=rng), rng=rng)
    """
    given = _explicit(cells, tiles, rng)
    shape, (packed, *given) = _flat(as_packed(boards), *given)
    found: NDArray[np.uint64] = _spawned(packed, given, rng, np.arange(packed.size)).reshape(shape)[()]
    return found


def step(
    boards: ArrayLike,
    moves: ArrayLike,
    cells: ArrayLike | None = None,
    tiles: ArrayLike | None = None,
    *,
    rng: np.random.Generator | None = None,
) -> Step:
    """Make a move on each board, then add a tile.

    A board whose game has ended stays as it is, with the reward 0 and whatever its move, so that a batch of
    games can continue until the last one ends.

    Args:
        boards: packed boards, ``u64[n]``, or one board.
        moves: ``[n]``, 0 up, 1 down, 2 left, 3 right.
        cells: ``[n]``, as for :func:`spawn`. A move that wins has no spawn.
        tiles: ``[n]``, as for :func:`spawn`.
        rng: a generator, instead of cells and tiles.

    Returns:
        Boards, rewards and ends, each ``[n]``, or scalars for one board.

    Raises:
        ValueError: a move is illegal (the error names its number, the move and the board), or a spawn is
            impossible, as for :func:`spawn`.
        TypeError: as for :func:`spawn`.

    Example:
        >>> boards, rewards, ended = step([0x1100000000000000, 0x1200000000000000], [2, 3], [15, 0], [2, 4])
        >>> [hex(board) for board in boards], rewards.tolist(), ended.tolist()
        (['0x2000000000000001', '0x2012000000000000'], [4, 0], [False, False])
    """
    given = _explicit(cells, tiles, rng)
    shape, (packed, chosen, *given) = _flat(as_packed(boards), _moves(moves), *given)
    lines = _lines(packed, chosen)
    after = _back(SLIDE[lines], chosen)
    stays = np.flatnonzero(after == packed)
    if (wrong := stays[_can_move(packed[stays])]).size:
        _refuse_move(wrong[0], packed, chosen)
    rewards = _score(lines)
    high = np.flatnonzero(rewards >= 65536)
    won = high[(SLIDE[lines[high]] != SLIDE_APART[lines[high]]).any(axis=1)]
    after[won] = WON
    moved = np.delete(np.arange(after.size), np.append(stays, won))
    after[moved] = _spawned(after[moved], [each[moved] for each in given], rng, moved)
    found: Any = (each.reshape(shape)[()] for each in (after, rewards, ~_can_move(after)))
    return Step(*found)


def spawns(boards: ArrayLike) -> Spawns:
    """List all spawns on boards, with their probabilities.

    Args:
        boards: packed boards (afterstates), ``u64[n]``, or one board.

    Returns:
        A row for each board, empty cell and tile. A full board has none.

    Raises:
        ValueError: boards are not integers of 64 bits.

    Example:
        The expected value of afterstates, by a function of boards:

        >>> afterstates = slide([0x1100000000000000, 0x1200000000000000], [2, 3])
        >>> found = spawns(afterstates)
        >>> values = legal(found.boards).sum(axis=1)  # the number of legal moves, for example
        >>> np.bincount(found.parents, found.probabilities * values, minlength=2).round(2)
        array([3.48, 3.56])
    """
    packed = as_packed(boards).ravel()
    empty = boards_to_exps(packed) == 0
    parents, cells = (each.repeat(2) for each in np.nonzero(empty))
    tiles = np.tile(np.array([2, 4], np.uint8), parents.size // 2)
    chances = np.where(tiles == 4, P_FOUR, 1 - P_FOUR) / empty.sum(axis=1)[parents]
    new = (tiles >> 1).astype(np.uint64) << (60 - 4 * cells).astype(np.uint64)
    return Spawns(parents, packed[parents] | new, cells.astype(np.uint8), tiles, chances)


def boards_to_tiles(boards: ArrayLike) -> NDArray[np.int32]:
    """Unpack boards to tiles: ``u64[n]`` (or one board) to ``i32[n, 4, 4]``, 0 for an empty cell.

    Raises:
        ValueError: the boards are not integers of 64 bits.

    Example:
        >>> boards_to_tiles(0x1B00000000000000)[0]
        array([   2, 2048,    0,    0], dtype=int32)
    """
    exps = boards_to_exps(boards).astype(np.int32)
    return np.where(exps > 0, 1 << exps, 0).astype(np.int32).reshape(*exps.shape[:-1], 4, 4)


def tiles_to_boards(tiles: ArrayLike) -> NDArray[np.uint64]:
    """Pack tiles: ``[n, 4, 4]`` or ``[n, 16]`` (or one board of them), 0 for an empty cell, to ``u64[n]``.

    Raises:
        ValueError: the shape is another one, or a tile is neither 0 nor a power of 2 from 2 to 32768.

    Example:
        >>> hex(tiles_to_boards([[2, 2048, 0, 0], [0] * 4, [0] * 4, [0] * 4]))
        '0x1b00000000000000'
    """
    expected = "0 or a power of 2 from 2 to 32768"
    cells = _chosen("tiles", tiles, (0, *(2**exp for exp in range(1, EXPONENT_MAX + 1))), expected)
    if cells.shape[-2:] == (4, 4):
        cells = cells.reshape(*cells.shape[:-2], 16)
    return exps_to_boards(np.where(cells > 0, np.frexp(cells)[1] - 1, 0))


def board_to_text(board: int) -> str:
    """Write a packed board as its tiles, row by row; :func:`parse_board` reads it.

    Example:
        >>> board_to_text(0x010002103421A987)
        '0 2 0 0 / 0 4 2 0 / 8 16 4 2 / 1024 512 256 128'
    """
    return " / ".join(" ".join(map(str, row)) for row in boards_to_tiles(board).tolist())
