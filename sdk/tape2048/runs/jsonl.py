"""Runs as JSON lines, for tools that read no other format.

A line of a run has the fields ``run_idx, steps, start_unix_s, elapsed_s, max_score, highest_tile, engine,
final_board, states, moves``. A move is ``"UP"``, ``"DOWN"``, ``"LEFT"`` or ``"RIGHT"``. A line of a step has
``run_idx, step_idx, pre_board`` (16 exponents, row-major), ``chosen`` (a move), and ``branches``: null, or an
object of ``legal`` and ``value`` for each of up, down, left and right.

Packed boards are JSON integers of up to 64 bits, or text on request. Python's ``json``, msgspec and DuckDB
read these integers exactly; Polars reads them exactly or raises an error. Other readers turn large integers
into rounded floats, which lose the last cells of a board: ``pyarrow.json`` and Hugging Face datasets from
2**63 on, unless a schema says ``uint64``, and JavaScript and jq before 1.7 above 2**53. Branch values read
back as the same float32. A value that is not finite is null.

Games of another program are read as well. Each game is a file ``<name>.jsonl.gz``, with its facts in
``<name>.meta.json``. A line is a step ::

    {
        "seed": 5,
        "step_index": 0,
        "max_rank": 1,
        "move": "up",
        "valuation_type": "search",
        "valuation": 2.5,
        "board": [0, 1, ...],
        "branch_evs": {"up": 2.5, "down": null, "left": 2.4, "right": 2.1},
    }

The facts are ``seed``, ``num_moves``, ``score`` and ``max_tile``. Other fields are ignored. The files have no
final board. A packed board cannot hold a tile of 65536, so a game is read up to the move that makes it.
"""

from __future__ import annotations

import codecs
import gzip
import itertools
import os
import re
import zlib
from typing import TYPE_CHECKING, Annotated, Any, Literal

import msgspec
import numpy as np

from tape2048.errors import BookkeepingError, FieldError, FormatError, TruncatedError
from tape2048.files.durable import new_file, write_all
from tape2048.files.reading import open_regular, reading
from tape2048.runs import foreign_games
from tape2048.runs.a2run2 import RunV2, legal_bits
from tape2048.runs.run import Run, RunMeta, RunSource, check_meta, check_step_count

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from tape2048.runs.conversion import Conversion
    from tape2048.runs.run import U64

#: Most bytes of a line. The longest game that the rules allow, of 262,000 steps, has 8 MB.
LINE_BYTES_MAX = 16 * 1024 * 1024

_MOVES = {"UP": 0, "DOWN": 1, "LEFT": 2, "RIGHT": 3}
_NAMES = np.array(list(_MOVES), object)
_encoder = msgspec.json.Encoder()
#: What a line of this format has, unlike a line of other programs: a number of steps, and packed boards.
_OWN = re.compile(rb'"steps"\s*:\s*\d'), re.compile(rb'"states"\s*:\s*\[\s*("\d+"|\d|\])')


class _RunLine(msgspec.Struct, kw_only=True):
    steps: int
    start_unix_s: int = 0
    elapsed_s: float | None = 0.0
    max_score: int = 0
    highest_tile: int = 0
    engine: str | None = None
    final_board: int | str | None = None
    states: list[int | str]
    moves: list[str]


class _Branch(msgspec.Struct, gc=False):  # structs are encoded in half the time of dicts
    legal: bool
    value: float | None


class _StepLine(msgspec.Struct, gc=False):
    run_idx: int
    step_idx: int
    pre_board: list[int]
    chosen: str
    branches: list[_Branch] | None


def step_lines(run: Run, run_idx: int) -> bytes:
    """Encode a run as JSON lines, one for each step.

    Args:
        run: the run.
        run_idx: number of the run: its id in the session, or its position in the file.

    Example:
        >>> from tape2048.runs import read_run, step_lines
        >>> step_lines(read_run("runs/golden.a2run"), 0).splitlines()[0][:27]
        b'{"run_idx":0,"step_idx":0,"'
    """
    from tape2048.game.rules import boards_to_exps

    full = RunV2.from_run(run)
    legal = legal_bits(full.branch_legal).reshape(-1)
    values = full.branch_values.astype(object).reshape(-1)
    values[~legal] = None
    branches = list(map(_Branch, legal.tolist(), values.tolist()))
    steps = map(
        _StepLine,
        itertools.repeat(run_idx),
        itertools.count(),
        boards_to_exps(full.boards).tolist(),
        _NAMES[full.moves].tolist(),
        (branches[4 * i : 4 * i + 4] if has else None for i, has in enumerate(full.has_branches.tolist())),
    )
    return _encoder.encode_lines(list(steps))


def run_line(run: Run, run_idx: int, u64: U64 = "number") -> bytes:
    r"""Encode a run as one JSON line with its newline.

    Args:
        run: the run.
        run_idx: number of the run, as for :func:`step_lines`.
        u64: form of packed boards: ``"number"``, or ``"text"``, which no reader rounds.

    Example:
        >>> from tape2048.runs import read_run, run_line
        >>> run_line(read_run("runs/golden.a2run"), 0).count(b"\n")
        1
    """
    states: list[Any] = [*map(str, run.states.tolist())] if u64 == "text" else run.states.tolist()
    facts = msgspec.structs.asdict(run.meta) | {"elapsed_s": float(str(np.float32(run.meta.elapsed_s)))}
    more = {"final_board": states[-1], "states": states, "moves": _NAMES[run.moves].tolist()}
    return _encoder.encode_lines([{"run_idx": run_idx, **facts, **more}])


def read(path: Path, kind: str, **how: Any) -> RunSource:
    """Open JSON lines for a conversion: of this format, or of another program."""
    first = next((line for _, line in _lines(path)), b"")
    if first and not all(each.search(first) for each in _OWN):
        return foreign_games.read(path, "foreign", **how)
    count, whole = sum(1 for _ in _lines(path)), path.absolute()

    def items() -> Iterator[tuple[str, tuple[int, bytes]]]:
        return ((f"{path}: line {line[0]}", line) for line in _lines(whole))

    return RunSource(path, kind, count, items, lambda line: (parse_line(line[1], path, line[0]),))


def write(flow: Conversion) -> None:
    """Write a line for each run of a conversion."""
    with new_file(flow.target) as fd:
        for _, number, run in flow.each():
            write_all(fd, run_line(run, number, flow.u64))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and bytes of the lines that are not blank."""
    with open_regular(path) as fd, reading(path), os.fdopen(os.dup(fd), "rb") as file:
        for number in itertools.count(1):
            line = file.readline(LINE_BYTES_MAX + 1)
            if len(line) > LINE_BYTES_MAX:
                found = f"line {number} has more than {LINE_BYTES_MAX} bytes; expected a run in each line"
                raise FormatError(found, path=path, offset=file.tell() - len(line))
            if not line:
                return
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield number, line


def parse_line(line: bytes, path: Path, number: int) -> Run:
    """Parse the line of a run. Errors name the path and the number of the line."""
    where = f"line {number}: "
    try:
        fields = msgspec.json.decode(line, type=_RunLine)
        states = msgspec.convert(fields.states, list[int], strict=False)  # not strict: takes text, too
        final = msgspec.convert(fields.final_board, int | None, strict=False)
    except (msgspec.DecodeError, RecursionError, UnicodeDecodeError) as error:
        raise FormatError(f"{where}not a run: {error}", path=path) from error
    steps, moves = fields.steps, fields.moves
    check_step_count(max(steps, len(moves)), path)
    if final is not None and len(states) == steps:
        states = [*states, final]
    if len(moves) != steps or len(states) != steps + 1:
        found = f"{where}found {len(states)} states and {len(moves)} moves"
        due = f"expected {steps + 1} states and {steps} moves for {steps} steps"
        raise FieldError(f"{found}, {due}", path=path)
    if final not in {None, states[-1]}:
        found = f"{where}final_board is {final}; expected the last of the states, {states[-1]}"
        raise FieldError(found, path=path)
    if unknown := [move for move in moves if move not in _MOVES]:
        raise FieldError(f"{where}move {unknown[0]!r}; expected one of {list(_MOVES)}", path=path)
    if any(not 0 <= state < 2**64 for state in states):
        raise FieldError(f"{where}a board has more than 64 bits, or is negative", path=path)
    facts = {name: getattr(fields, name) for name in RunMeta.__struct_fields__}
    meta = RunMeta(**facts | {"elapsed_s": fields.elapsed_s or 0.0})
    check_meta(meta, path)
    return Run(np.array(states, np.uint64), np.array([_MOVES[move] for move in moves], np.uint8), meta)


class _GameFacts(msgspec.Struct):
    seed: int
    num_moves: int
    score: int
    max_tile: int
    seconds: float = 0.0


class _GameStep(msgspec.Struct, gc=False):
    move: Literal["up", "down", "left", "right"]
    board: Annotated[
        list[Annotated[int, msgspec.Meta(ge=0, le=17)]], msgspec.Meta(min_length=16, max_length=16)
    ]
    seed: int | None = None
    step_index: int | None = None
    branch_evs: dict[str, float | None] = {}


#: Most bytes of a game's JSON. A game of 60,000 steps has 15 MB.
GAME_JSON_BYTES_MAX = 64 * 1024 * 1024


def _decode(path: Path, decode: Callable[[bytes], Any]) -> Any:
    try:
        with open_regular(path) as fd, os.fdopen(os.dup(fd), "rb") as given:
            file = gzip.GzipFile(fileobj=given) if path.suffix == ".gz" else given
            content = file.read(GAME_JSON_BYTES_MAX + 1)
        if len(content) > GAME_JSON_BYTES_MAX:
            message = f"found more than {GAME_JSON_BYTES_MAX} bytes of JSON, expected fewer"
            raise FormatError(message, path=path)
        check_step_count(content.count(b"\n"), path)
        return decode(content.removeprefix(codecs.BOM_UTF8))
    except EOFError as error:
        size, hint = path.stat().st_size, "restore the file from a copy"
        message = f"the gzip stream is cut off after {size} bytes"
        raise TruncatedError(message, path=path, offset=size, hint=hint) from error
    except (zlib.error, gzip.BadGzipFile, msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"malformed: {error}", path=path) from error


def read_game(path: Path) -> Run:
    """Read a game of another program from its ``.jsonl.gz`` and ``.meta.json``; see this module.

    The files do not have its final board, so it is a possible one
    (:func:`tape2048.game.moves.last_boards`).
    """
    from tape2048.game.moves import last_boards
    from tape2048.game.rules import exps_to_boards

    plain = path.with_name(path.name.removesuffix(".jsonl.gz") + ".meta.json")
    packed = plain.with_name(f"{plain.name}.gz")
    facts_path = packed if packed.exists() else plain
    facts = _decode(facts_path, msgspec.json.Decoder(_GameFacts).decode)
    steps = _decode(path, msgspec.json.Decoder(_GameStep).decode_lines)
    for number, step in enumerate(steps):
        if step.step_index not in {None, number} or step.seed not in {None, facts.seed}:
            found = f"line {number + 1}: step_index {step.step_index} and seed {step.seed}"
            raise FieldError(f"{found}; expected {number} and {facts.seed}", path=path)
    exps = np.array([step.board for step in steps], np.uint8).reshape(-1, 16)
    highest = 1 << int(exps.max(initial=0))
    if facts.num_moves != len(steps) or facts.max_tile not in {highest, 2 * highest}:
        found = f"{facts_path.name} has num_moves {facts.num_moves} and max_tile {facts.max_tile}"
        message = f"{found}. {path.name} has {len(steps)} steps and a {highest} tile"
        raise BookkeepingError(message, path=facts_path, hint="restore both files from a copy")
    boards = exps_to_boards(np.minimum(exps, 15))
    moves = np.array([_MOVES[step.move.upper()] for step in steps], np.uint8)
    final = last_boards(boards[-1:], moves[-1:])[0]
    values = np.array([[step.branch_evs.get(move.lower()) for move in _MOVES] for step in steps], np.float32)
    legal = np.packbits(~np.isnan(values.reshape(-1, 4)), axis=1, bitorder="little")[:, 0]
    meta = RunMeta(len(steps), 0, facts.seconds, facts.score, facts.max_tile)
    return Run(np.append(boards, final), moves, meta, np.nan_to_num(values.reshape(-1, 4)), legal, legal != 0)
