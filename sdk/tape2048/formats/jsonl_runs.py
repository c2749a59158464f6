"""Reading runs from JSON lines, one run a line, as :func:`tape2048.formats.jsonl.run_line` writes them."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np

from tape2048._reading import open_regular, read_exactly, reading
from tape2048.errors import FieldError, FormatError, TapeError
from tape2048.formats.run import Run, RunMeta, check_meta

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["Piece", "pieces_of", "read_piece"]

#: Lines are read together up to so many bytes.
PIECE_BYTES = 4 * 1024 * 1024

_MOVES = {"UP": 0, "DOWN": 1, "LEFT": 2, "RIGHT": 3}


class Piece(NamedTuple):
    """Whole lines of a file: where they begin, how many bytes they have, the number of the first."""

    offset: int
    length: int
    line: int


class _Line(msgspec.Struct):
    steps: int
    states: list[int]
    moves: list[str]
    final_board: int | None = None
    start_unix_s: int = 0
    elapsed_s: float | None = 0.0
    max_score: int = 0
    highest_tile: int = 0
    engine: str | None = None


def pieces_of(path: Path) -> list[Piece]:
    """Cut a file into pieces of whole lines.

    Raises:
        StorageError: the file cannot be read.
    """
    pieces = []
    with open_regular(path) as fd, reading(path), os.fdopen(os.dup(fd), "rb") as file:
        begin = line = 0
        size = lines = 0
        for text in file:
            size += len(text)
            lines += 1
            if size >= PIECE_BYTES:
                pieces.append(Piece(begin, size, line))
                begin, line, size, lines = begin + size, line + lines, 0, 0
        if size:
            pieces.append(Piece(begin, size, line))
    return pieces


def read_piece(path: Path, piece: Piece) -> list[tuple[str, Run | None, TapeError | None]]:
    """The runs of a piece's lines: for each its name, and the run or what is wrong with it."""
    with open_regular(path) as fd:
        content = np.empty(piece.length, np.uint8)
        read_exactly(fd, content, piece.offset, path)
    found: list[tuple[str, Run | None, TapeError | None]] = []
    for number, line in enumerate(content.tobytes().split(b"\n"), start=piece.line + 1):
        if not line.strip():
            continue
        name = f"{path}: line {number}"
        try:
            found.append((name, _run(line, path, number), None))
        except TapeError as error:
            found.append((name, None, error))
    return found


def _run(line: bytes, path: Path, number: int) -> Run:
    try:
        fields = msgspec.json.decode(line, type=_Line)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"line {number}: not a run: {error}", path=path) from error
    states = fields.states
    if fields.final_board is not None and len(states) == fields.steps:
        states = [*states, fields.final_board]
    if len(fields.moves) != fields.steps or len(states) != fields.steps + 1:
        raise FieldError(
            f"line {number}: {fields.steps} steps, {len(states)} states and {len(fields.moves)} moves; "
            f"expected {fields.steps + 1} states and {fields.steps} moves",
            path=path,
        )
    if fields.final_board not in {None, states[-1]}:
        raise FieldError(f"line {number}: final_board is not the last of the states", path=path)
    unknown = [move for move in fields.moves if move not in _MOVES]
    if unknown:
        raise FieldError(f"line {number}: move {unknown[0]!r}; expected one of {list(_MOVES)}", path=path)
    if any(not 0 <= state < 2**64 for state in states):
        raise FieldError(f"line {number}: a board outside 64 bits", path=path)
    meta = RunMeta(
        fields.steps,
        fields.start_unix_s,
        fields.elapsed_s or 0.0,
        fields.max_score,
        fields.highest_tile,
        fields.engine,
    )
    check_meta(meta, path)
    moves = np.array([_MOVES[move] for move in fields.moves], np.uint8)
    return Run(np.array(states, np.uint64), moves, meta)
