"""Runs as JSON lines, for tools that read nothing else.

One line a run: ``run_idx, steps, start_unix_s, elapsed_s, max_score, highest_tile, engine, final_board,
states, moves`` (moves as ``"UP"``, ``"DOWN"``, ``"LEFT"``, ``"RIGHT"``). One line a step: ``run_idx,
step_idx, pre_board`` (16 exponents, row-major), ``chosen`` (a move), ``branches`` (null, or for up, down,
left and right an object of ``legal`` and ``value``).

Packed boards are JSON integers of up to 64 bits: a reader that holds numbers as doubles loses their last
cells. Branch values read back as the same float32; a value that is not finite is null.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.errors import FieldError, FormatError, TapeError
from tape2048.io.reading import open_regular, read_exactly, reading
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.run import Run, RunMeta, check_meta

if TYPE_CHECKING:
    from pathlib import Path

#: Lines are read together up to so many bytes.
PIECE_BYTES = 4 * 1024 * 1024

#: Steps whose lines are made together: their Python objects take about 2 KB each.
_PIECE_STEPS = 1024

_MOVES = {"UP": 0, "DOWN": 1, "LEFT": 2, "RIGHT": 3}
_NAMES = tuple(_MOVES)
_encoder = msgspec.json.Encoder()


class Piece(NamedTuple):
    """Whole lines of a file: where they begin, how many bytes they have, the number of the first."""

    offset: int
    length: int
    line: int


class _RunLine(msgspec.Struct, kw_only=True):
    run_idx: Any = None
    steps: int
    start_unix_s: int = 0
    elapsed_s: float | None = 0.0
    max_score: int = 0
    highest_tile: int = 0
    engine: str | None = None
    final_board: int | None = None
    states: list[int]
    moves: list[str]


class _Branch(msgspec.Struct):
    legal: bool
    value: float | None


class _StepLine(msgspec.Struct):
    run_idx: int
    step_idx: int
    pre_board: list[int]
    chosen: str
    branches: list[_Branch] | None


_ILLEGAL = _Branch(legal=False, value=None)


def step_lines(run: Run, run_idx: int) -> bytes:
    """One line for each step.

    Args:
        run: the run.
        run_idx: its number among the runs of the file.

    Returns:
        The lines, each with its newline, UTF-8.
    """
    from tape2048.game.rules import boards_to_exps

    full = RunV2.from_run(run)
    pieces = []
    for begin in range(0, len(run), _PIECE_STEPS):
        part = slice(begin, begin + _PIECE_STEPS)
        columns = zip(
            itertools.count(begin),
            boards_to_exps(full.boards[part]).tolist(),
            (_NAMES[move] for move in full.moves[part].tolist()),
            map(
                _branches,
                full.branch_values[part].tolist(),
                full.branch_legal[part].tolist(),
                full.has_branches[part].tolist(),
            ),
            strict=False,
        )
        pieces.append(_encoder.encode_lines([_StepLine(run_idx, *step) for step in columns]))
    return b"".join(pieces)


def run_line(run: Run, run_idx: int) -> bytes:
    """The run as one line; the arguments and the result are those of :func:`step_lines`."""
    meta = run.meta
    line = _RunLine(
        run_idx=run_idx,
        steps=meta.steps,
        start_unix_s=meta.start_unix_s,
        elapsed_s=float(str(np.float32(meta.elapsed_s))),
        max_score=meta.max_score,
        highest_tile=meta.highest_tile,
        engine=meta.engine,
        final_board=run.final_board,
        states=run.states.tolist(),
        moves=[_NAMES[move] for move in run.moves.tolist()],
    )
    return _encoder.encode_lines([line])


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
        fields = msgspec.json.decode(line, type=_RunLine)
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


def _branches(values: list[float], legal: int, has: bool) -> list[_Branch] | None:  # noqa: FBT001 - mapped
    if not has:
        return None
    return [
        _Branch(legal=True, value=value) if legal >> move & 1 else _ILLEGAL
        for move, value in enumerate(values)
    ]
