"""Start files: boards from which games begin, to measure a stage of the game by itself.

A file is ``.npy`` with exponents, ``u8[N, 16]``, or text: a line for each board, its 16 hexadecimal digits
(cell 0 first), with or without ``0x``; empty lines and what follows a ``#`` do not count.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import numpy as np

from tape2048.errors import ConfigError, FieldError, NpyError
from tape2048.game.rules import boards_to_exps, exps_to_boards, legal_masks
from tape2048.io.durable import publishing_file
from tape2048.io.reading import read_path
from tape2048.ntuple.network import TILES
from tape2048.rows.buffers import open_sessions

if TYPE_CHECKING:
    from pathlib import Path

    import numpy.typing as npt

_MAGIC = b"\x93NUMPY"
_HINT = "`tape2048 player starts` writes such a file; text has the 16 hexadecimal digits of a board in a line"
_LINE = re.compile(r"(?:0x)?([0-9a-fA-F]{16})")


def read_starts(path: Path) -> npt.NDArray[np.uint64]:
    """Read a start file: at least one board, ``u64[N]``."""
    data = read_path(path)
    boards = _of_npy(path) if bytes(data[:6]) == _MAGIC else _of_text(bytes(data), path)
    if not len(boards):
        raise FieldError("found no board, expected at least one", path=path, hint=_HINT)
    _check(boards, path)
    return boards


def _of_npy(path: Path) -> npt.NDArray[np.uint64]:
    try:
        exps = np.load(path, allow_pickle=False)
    except (ValueError, EOFError, OSError) as error:
        raise NpyError(f"not a .npy file of boards: {error}", path=path, hint=_HINT) from error
    if exps.dtype != np.uint8 or exps.ndim != 2 or exps.shape[1] != 16:
        raise NpyError(
            f"found {exps.dtype}{list(exps.shape)}, expected exponents uint8[N, 16]", path=path, hint=_HINT
        )
    above = np.flatnonzero((exps > 15).any(axis=1))
    if len(above):
        raise FieldError(
            f"board {above[0]} has an exponent above 15, which is a 32768", path=path, hint=_HINT
        )
    return exps_to_boards(exps)


def _of_text(data: bytes, path: Path) -> npt.NDArray[np.uint64]:
    boards = []
    for number, line in enumerate(data.decode("utf-8", "replace").splitlines(), 1):
        text = line.partition("#")[0].strip()
        if not text:
            continue
        match = _LINE.fullmatch(text)
        if match is None:
            raise FieldError(
                f"line {number} is {text[:40]!r}, expected the 16 hexadecimal digits of a board",
                path=path,
                hint="the exponents from the top left on: 0x1B00000000000000 has a 2 and a 2048",
            )
        boards.append(int(match[1], 16))
    return np.array(boards, dtype=np.uint64)


def _check(boards: npt.NDArray[np.uint64], path: Path) -> None:
    """Raise FieldError at the first board that no game has before a move.

    There are two tiles at least, one of them a 2 or 4 that has just appeared, and a legal move.
    """
    exps = boards_to_exps(boards)
    faults = (
        ((exps > 0).sum(axis=1) < 2, "has fewer than two tiles"),
        (~((exps == 1) | (exps == 2)).any(axis=1), "has no 2 and no 4, of which each move adds one"),
        (legal_masks(boards) == 0, "has no legal move"),
    )
    for wrong, what in faults:
        if wrong.any():
            at = int(wrong.argmax())
            raise FieldError(
                f"board {at}, 0x{int(boards[at]):016x}, {what}", path=path, hint="leave it out; " + _HINT
            )


def first_boards(root: Path, tile: int) -> npt.NDArray[np.uint64]:
    """Return the first board with a tile of each game of a session or a directory of sessions, ``u64[N]``."""
    if tile not in TILES:
        raise ConfigError(f"found the tile {tile}, expected one from {TILES[0]} to {TILES[-1]}")
    found: list[npt.NDArray[np.uint8]] = []
    for session in open_sessions(root, "raise")[0]:
        for run in np.flatnonzero(session.runs["highest_tile"] >= tile).tolist():
            exps = session.tokens(session.numbers_of(run))
            has = (exps >= tile.bit_length() - 1).any(axis=1)
            if has.any():
                found.append(exps[has.argmax()])
    if not found:
        raise ConfigError(
            f"found no board with a {tile} below {root}", hint="a lower tile, or games of a stronger player"
        )
    return exps_to_boards(np.stack(found))


def write_starts(path: Path, boards: npt.NDArray[np.uint64], *, replace: bool = False) -> None:
    """Write a start file as ``.npy``; it appears when it is complete."""
    with publishing_file(path, replace=replace) as file:
        np.save(file, boards_to_exps(boards))
