"""Start files: boards from which games start, to measure one stage of the game.

A start file is an ``.npy`` file or a text file. The former has exponents, ``u8[N, 16]``, or rows with
``exps`` (``u8[16]``) and the identity of the board's game, ``seed`` and ``player_sha256``. A line of text is
a board: its 16 hexadecimal digits (cell 0 first), with or without ``0x``, or 16 tiles or exponents. Empty
lines and text after a ``#`` are ignored.
Boards that no game can reach are rejected if ``game.spawns.start_fault`` recognises them.
"""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import numpy as np

from tape2048.errors import FieldError
from tape2048.files.durable import publishing_file
from tape2048.files.npy import HEADER_TEXT_BYTES_MAX, check_header
from tape2048.files.reading import map_path, read_document
from tape2048.game.board_text import parse_board
from tape2048.game.rules import boards_to_exps, exps_to_boards
from tape2048.game.spawns import START_FAULTS, start_faults
from tape2048_recorder.game.kept_starts import with_games

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy.typing as npt

_MAGIC = b"\x93NUMPY"
_EXPS = np.dtype(("u1", (16,)))  # a row of a start file
_ROW = np.dtype([("exps", "u1", (16,)), ("seed", "<u8"), ("player_sha256", "S64")])
_HINT = "Write start files with `tape2048 player starts`, or as text with a board per line."

#: Most boards to start from, in a file or in sessions: 8 MB.
STARTS_MAX = 1 << 20
#: Most bytes of a start file of text: 64 for each board and its comment.
_FILE_BYTES_MAX = 64 * STARTS_MAX


def read_starts(path: Path) -> npt.NDArray[np.void]:
    """Read the boards of a start file with their games: ``START_DTYPE[N]``, at least one."""
    data, lines = map_path(path), None
    if bytes(data[:6]) == _MAGIC:
        starts = _of_npy(data, path)
    else:
        boards, lines = _of_text(read_document(path, _FILE_BYTES_MAX, FieldError), path)
        starts = with_games(boards)
    if not len(starts):
        raise FieldError("found no board, expected at least one", path=path, hint=_HINT)
    check_starts(starts["board"], path, lambda at: f"board {at}" if lines is None else f"line {lines[at]}")
    return starts


def check_starts(
    boards: npt.NDArray[np.uint64], path: Path, place: Callable[[int], str] = "board {}".format
) -> None:
    """Raise FieldError for more than :data:`STARTS_MAX` boards, or for a board that no game reaches."""
    if len(boards) > STARTS_MAX:
        found = f"found {len(boards):,} boards, expected at most {STARTS_MAX:,}"
        raise FieldError(found, path=path, hint="Select fewer boards.")
    faults = start_faults(np.ascontiguousarray(boards))
    if faults.any():
        at = int((faults > 0).argmax())
        like = int((faults > 0).sum()) - 1
        more = f" (and {like:,} more boards)" if like else ""
        raise FieldError(
            f"{place(at)}, 0x{int(boards[at]):016x}, {START_FAULTS[faults[at]]}{more}; expected boards "
            "that a game can reach",
            path=path,
            hint="Remove the board. " + _HINT,
        )


def _of_npy(data: npt.NDArray[np.uint8], path: Path) -> npt.NDArray[np.void]:
    header = check_header(data[: 12 + HEADER_TEXT_BYTES_MAX].tobytes(), len(data), path, [_EXPS, _ROW])
    content, rows = data[header.data_offset :], None
    if header.dtype == _ROW:
        rows = content.view(_ROW)
    exps = content.reshape(-1, 16) if rows is None else rows["exps"]
    above = np.flatnonzero((exps > 15).any(axis=1))
    if len(above):
        raise FieldError(
            f"board {above[0]} has an exponent above 15, expected at most 15 (a 32768)", path=path, hint=_HINT
        )
    boards = exps_to_boards(exps)
    return with_games(boards) if rows is None else with_games(boards, rows["seed"], rows["player_sha256"])


def _too_many(path: Path) -> FieldError:
    message = f"found more boards than {STARTS_MAX:,}, the most to start from"
    return FieldError(message, path=path, hint="Select fewer boards.")


def _of_text(data: bytes, path: Path) -> tuple[npt.NDArray[np.uint64], list[int]]:
    boards: list[int] = []
    lines: list[int] = []
    for number, line in enumerate(io.BytesIO(data), 1):
        text = line.decode("utf-8", "replace").partition("#")[0].strip()
        if not text:
            continue
        if len(boards) == STARTS_MAX:
            raise _too_many(path)
        try:
            boards.append(parse_board(text))
        except ValueError as error:
            hint = "Write the exponents row by row: 0x1B00000000000000 has a 2 and a 2048 in its top row."
            raise FieldError(f"line {number}: {error}", path=path, hint=hint) from error
        lines.append(number)
    return np.array(boards, dtype=np.uint64), lines


def write_starts(path: Path, starts: npt.NDArray[np.void], *, replace: bool = False) -> None:
    """Write a start file of ``START_DTYPE[N]`` as ``.npy``. The file appears when it is complete."""
    rows = np.empty(len(starts), _ROW)
    rows["exps"] = boards_to_exps(np.ascontiguousarray(starts["board"]))
    rows["seed"], rows["player_sha256"] = starts["seed"], starts["player_sha256"]
    with publishing_file(path, replace=replace) as file:
        np.save(file, rows)
