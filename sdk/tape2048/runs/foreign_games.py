"""Games of other programs: JSON lines, JSON, CSV, Parquet and Arrow, also with gzip or zstd.

A record is a row (a board and a move) or a game: lists of boards and of moves, or a list of steps, each with
a board and a move. :data:`NAMES` has the usual names of the columns; case, ``_`` and ``-`` do not count.

* **Boards** are 16 tiles or exponents: flat or as four lists, in one column, as text, or in 16 columns such
  as ``exps_0``, ...; or packed, as a number or 16 hexadecimal digits.
* **Moves** are words or numbers. No numbering is assumed: the boards show what each number means.
* **Games** of rows have a number or a name, or start at a board of two tiles.

The first games decide how a file is read: whether cells are tiles or exponents, the direction of each move,
and whether boards are from before or after their moves. Each game is then checked against the rules, so a
wrong decision is an error, and never a wrong row.
"""

from __future__ import annotations

import codecs
import contextlib
import csv
import gzip
import hashlib
import io
import itertools
import logging
import os
import re
import tempfile
import zlib
from collections import Counter, defaultdict
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import counted, printable
from tape2048.errors import (
    BookkeepingError,
    ConfigError,
    EmptyCorpusError,
    FieldError,
    FormatError,
    MissingPackageError,
    NameTakenError,
    ReplayError,
)
from tape2048.files.durable import rename_noreplace
from tape2048.files.expansion import expanded_max
from tape2048.files.opening import storage_errors
from tape2048.files.reading import open_regular, reading
from tape2048.runs.arrow import decoding, pyarrow
from tape2048.runs.registry import FINAL_BOARD, plain_name
from tape2048.runs.run import (
    Run,
    RunMeta,
    RunSource,
    check_meta,
    check_rules,
    check_step_count,
    numbered,
    until_win,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.runs.run import RunFacts

#: The usual names of the columns by what they hold, the preferred name first.
NAMES = {
    "steps": ("steps", "moves", "history", "trajectory", "transitions", "turns"),
    "board": (
        "board", "boards", "state", "states", "grid", "grids", "exps", "preboard", "boardbefore", "cells",
        "tiles", "observation", "obs", "position", "positions", "tokens", "boardhistory",
    ),
    "move": (
        "actionname", "movename", "direction", "directions", "move", "moves", "action", "actions", "dir",
        "chosen", "movedir", "movehistory",
    ),
    "session": ("session",),
    "game": ("gameid", "game", "runid", "runidx", "run", "episodeid", "episode", "gameidx", "trajectoryid"),
    "step": ("step", "stepidx", "stepindex", "movenumber", "moveidx", "moveindex", "turn", "indexinrun"),
    "final_board": ("finalboard", "finalstate", "lastboard"),
    "score": ("score", "maxscore", "finalscore"),
    "highest_tile": ("highesttile", "maxtile"),
    "player": ("player", "engine", "agent", "bot"),
    "start_unix_s": ("startunixs",),
    "elapsed_s": ("elapseds",),
}  # fmt: skip
_FACTS = ("score", "highest_tile", "player", "start_unix_s", "elapsed_s")
_WORDS = {"up": 0, "u": 0, "w": 0, "down": 1, "s": 1, "left": 2, "l": 2, "a": 2, "right": 3, "r": 3}
_DIRECTIONS = ("up", "down", "left", "right")
#: Keys of a JSON object that has a list of games or rows.
_WRAPPERS = ("games", "episodes", "rows", "records")

#: What decides how a file is read; and the rows that are parsed together.
_SAMPLE_GAMES, _SAMPLE_ROWS, _BATCH_ROWS = 64, 20_000, 65_536
_LINE_BYTES_MAX = 64 << 20
_NO_GAME = (
    KeyError, TypeError, ValueError, OverflowError, AttributeError, RecursionError, msgspec.DecodeError,
)  # fmt: skip
_FIRST_MOVE = "the first move, which was made before the first board"
_PAGE = "docs/how-to/own-games.md lists the layouts"


class _FileColumns(NamedTuple):
    """The columns of a file by what they hold (:data:`NAMES`), and whether its records are games."""

    columns: dict[str, str]
    cells: list[str]  # the 16 columns of boards
    is_game: bool

    @classmethod
    def of(cls, path: Path, records: Sequence[Any], given: Mapping[str, str]) -> _FileColumns:
        """Find the columns of the first record that has a board and a move, or boards."""
        if unknown := given.keys() - NAMES.keys():
            raise ConfigError(f"columns: found {min(unknown)!r}; expected some of {', '.join(NAMES)}")
        for record in records:
            if not isinstance(record, dict):
                continue
            columns = _find(record, given)
            steps = record.get(columns.pop("steps", ""))
            inner = steps[0] if isinstance(steps, list) and steps and isinstance(steps[0], dict) else None
            if inner is not None:
                name = _find(record, given)["steps"]
                columns = {role: each for role, each in columns.items() if role in (*_FACTS, "final_board")}
                columns |= {"steps": name} | {
                    role: each for role, each in _find(inner, given).items() if role in {"board", "move"}
                }
            board = (record if inner is None else inner).get(columns.get("board", ""))
            cells = _sixteen(record, given.get("board")) if board is None else []
            if board is not None or cells:
                is_list = isinstance(board, list) and not _is_board(board)
                return cls(columns, cells, inner is not None or is_list)
        first = next(filter(None, records), None)
        if first is None:
            raise EmptyCorpusError("the file has no records; expected games or rows", path=path)
        found = ", ".join(map(printable, first)) if isinstance(first, dict) else "no named values"
        shown = printable(msgspec.json.encode(first, enc_hook=str).decode())
        board, move = (", ".join(NAMES[role][:6]) for role in ("board", "move"))
        raise FormatError(
            f"found the columns {found}; expected a board ({board}, ...; or 16 columns such as cell_0) and a "
            f"move ({move}, ...). The first record: {shown[:200]}",
            path=path,
            hint="This is a table of games, without moves. Write rows: tape2048 export --rows."
            if isinstance(first, dict) and "max_score" in first
            else f"Name them with --columns board=NAME,move=NAME,game=NAME. {_PAGE}.",
        )


def _find(record: Mapping[str, Any], given: Mapping[str, str]) -> dict[str, str]:
    plain = {re.sub("[^a-z0-9]", "", name.lower()): name for name in reversed([*record])}
    found = {}
    for role, names in NAMES.items():
        name = given.get(role) or next((plain[each] for each in names if each in plain), "")
        if name in record and role not in {r for r, own in given.items() if not own}:
            found[role] = name
    return found


def _sixteen(record: Mapping[str, Any], prefix: str | None) -> list[str]:
    """Return the names of 16 columns that differ in their numbers, in the order of the numbers."""
    groups = defaultdict(list)
    for name in record:
        numbers = tuple(map(int, re.findall(r"\d+", name)))
        if numbers and (prefix is None or name.startswith(prefix)):
            groups[re.sub(r"\d+", "#", name)].append((numbers, name))
    found = [sorted(group) for group in groups.values() if len(group) == 16]
    return [name for _, name in found[0]] if found else []


def _is_board(value: list[Any]) -> bool:
    flat = [cell for row in value for cell in (row if isinstance(row, list) else [row])]
    return len(flat) == 16 and all(isinstance(cell, int | float) and 0 <= cell <= 1 << 17 for cell in flat)


def read(
    path: Path, kind: str = "foreign", *, columns: Mapping[str, str] | None = None, **_: Any
) -> RunSource:
    """Open a file of games or rows for a conversion.

    Args:
        path: the file.
        kind: the kind of the source.
        columns: columns by what they hold (:data:`NAMES`), where other names are not found; "" for none.
    """
    first = [record for _, record in itertools.islice(_records(path.absolute()), _SAMPLE_GAMES)]
    layout = _FileColumns.of(path, first, columns or {})
    if layout.is_game:
        games = _GameRecords(path, layout)
        return RunSource(path, kind, sum(1 for _ in games.items()), games.items, games.read)
    rows = _RowRecords(path, layout)
    return numbered(path, kind, len(rows.starts) - 1, rows.named, rows.read)


# Records of a file


def _word(path: Path) -> str:
    extension = plain_name(path).rpartition(".")[2]
    return {"jsonl": "line", "ndjson": "line", "json": "record"}.get(extension, "row")


@contextlib.contextmanager
def _open(path: Path) -> Iterator[Any]:
    """Open a file, which may be compressed; translate the errors of the block."""
    with open_regular(path) as fd, os.fdopen(os.dup(fd), "rb") as raw:
        head, most = raw.peek(4)[:4], expanded_max(os.fstat(fd).st_size)
        errors: tuple[type[Exception], ...] = (EOFError, zlib.error, gzip.BadGzipFile)
        file: Any = raw
        if head[:2] == b"\x1f\x8b":
            file = gzip.GzipFile(fileobj=raw)
        elif head == b"\x28\xb5\x2f\xfd":
            try:
                import zstandard
            except ImportError as error:
                hint = "pip install 'tape2048[zstd]'"
                raise MissingPackageError(
                    "zstd needs zstandard, which is not installed", hint=hint
                ) from error
            reader = zstandard.ZstdDecompressor().stream_reader(raw, read_across_frames=True)
            file, errors = io.BufferedReader(reader), (*errors, zstandard.ZstdError)
        try:
            yield _Bounded(file, most, path)
        except errors as error:
            raise FormatError(f"the compressed data is damaged or cut off: {error}", path=path) from error


class _Bounded(io.RawIOBase):
    """A stream of at most ``most`` bytes."""

    def __init__(self, file: Any, most: int, path: Path) -> None:
        self._file, self._left, self._path = file, most, path

    def _count(self, data: bytes) -> bytes:
        self._left -= len(data)
        if self._left < 0:
            raise FormatError("the file expands to more than 1000 times its size", path=self._path)
        return data

    def readable(self) -> bool:
        return True

    def read(self, size: int = -1) -> bytes:
        return self._count(self._file.read(size if size >= 0 else self._left + 1))

    def readline(self, size: int | None = -1) -> bytes:
        return self._count(self._file.readline(size))


def _lines(path: Path) -> Iterator[tuple[int, bytes]]:
    """Yield the numbers and the JSON of lines, or of the elements of an array."""
    with _open(path) as file:
        if plain_name(path).endswith(".json"):
            yield from enumerate(_elements(file.read().removeprefix(codecs.BOM_UTF8), path), start=1)
            return
        for number in itertools.count(1):
            line = file.readline(_LINE_BYTES_MAX + 1)
            if len(line) > _LINE_BYTES_MAX:
                raise FormatError(f"line {number} has more than {_LINE_BYTES_MAX} bytes", path=path)
            if not line:
                return
            line = line.removeprefix(codecs.BOM_UTF8) if number == 1 else line
            if line.strip():
                yield number, line


def _elements(data: bytes, path: Path) -> list[Any]:
    try:
        if data.lstrip()[:1] == b"[":
            return msgspec.json.decode(data, type=list[msgspec.Raw])
        whole = msgspec.json.decode(data, type=dict[str, msgspec.Raw])
        for name in _WRAPPERS:
            if bytes(whole.get(name, b"")).lstrip()[:2] in {b"[{", b"[\n", b"[ "}:
                return msgspec.json.decode(whole[name], type=list[msgspec.Raw])
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"malformed: {error}", path=path) from error
    return [data]


def _tables(path: Path) -> Iterator[Any]:
    """Yield the record batches of CSV, Parquet or Arrow. All values of CSV are text."""
    pa, parquet = pyarrow()
    name = plain_name(path)
    kind = {"csv": "CSV", "tsv": "CSV", "parquet": "Parquet"}.get(name.rpartition(".")[2], "Arrow")
    with decoding(path, "the file", kind), _open(path) as file:
        if kind == "CSV":
            from pyarrow import csv as arrow_csv

            head = file.readline().decode("utf-8-sig")
            mark = max("\t;,", key=head.count)
            names = next(csv.reader([head], delimiter=mark), [])
            reader = arrow_csv.open_csv(
                file,
                read_options=arrow_csv.ReadOptions(column_names=names, block_size=4 << 20),
                parse_options=arrow_csv.ParseOptions(delimiter=mark, newlines_in_values=True),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(names, pa.string()), strings_can_be_null=True
                ),
            )
            yield from reader
        elif kind == "Parquet":
            with open_regular(path) as fd, os.fdopen(os.dup(fd), "rb") as plain:
                rows = parquet.ParquetFile(plain)
                sizes = [rows.metadata.row_group(i).total_byte_size for i in range(rows.num_row_groups)]
                if max(sizes, default=0) > expanded_max(path.stat().st_size):
                    raise FormatError(f"a row group expands to {max(sizes)} bytes", path=path)
                yield from rows.iter_batches(_BATCH_ROWS)
        else:
            with open_regular(path) as fd, os.fdopen(os.dup(fd), "rb") as plain:
                reader = pa.ipc.open_file(plain)
                yield from map(reader.get_batch, range(reader.num_record_batches))


def _records(path: Path) -> Iterator[tuple[int, Any]]:
    """Yield the numbers and the values of records: of a line that is not JSON, its bytes."""
    if _word(path) == "row":
        numbers = itertools.count(1)
        for batch in _tables(path):
            for first in range(0, len(batch), 64):
                yield from ((next(numbers), row) for row in batch.slice(first, 64).to_pylist())
    else:
        for number, line in _lines(path):
            try:
                yield number, msgspec.json.decode(line)
            except (msgspec.DecodeError, UnicodeDecodeError, RecursionError):
                yield number, line


# Boards and moves


def _cells(values: Any) -> tuple[NDArray[np.int64], bool]:
    """Return the cells of boards, ``i64[n, 16]``, and whether they are exponents for sure; or ValueError."""
    from tape2048.game.rules import boards_to_exps

    if isinstance(values[0], str):
        values = [_from_text(text) for text in values]
    array = np.array(values, np.uint64 if isinstance(values[0], int) else None)
    if array.dtype == np.uint64 and array.ndim == 1:
        return boards_to_exps(array).astype(np.int64), True
    found = array.astype(np.int64) if array.dtype.kind in "iuf" else np.zeros(0, np.int64)
    if found.size != 16 * len(values) or (found != array).any():
        raise ValueError("expected 16 cells, a packed board, or 16 hexadecimal digits")
    return found.reshape(-1, 16), False


def _from_text(text: str) -> Any:
    numbers = re.findall(r"\d+", text)
    if len(numbers) == 16:
        return [int(number) for number in numbers]
    if re.fullmatch(r"(0[xX])?[0-9a-fA-F]{16}|0[xX][0-9a-fA-F]{1,15}", text := text.strip()):
        return int(text, 16)
    return int(text)


def _cells_or_none(values: Sequence[Any]) -> tuple[NDArray[np.int64], bool]:
    """Do as :func:`_cells`, with cells of -1 for a value that is not a board."""
    with contextlib.suppress(ValueError, TypeError, OverflowError):
        return _cells(values)
    found, packed = np.full((len(values), 16), -1, np.int64), False
    for i, value in enumerate(values):
        with contextlib.suppress(ValueError, TypeError, OverflowError):
            cells, packed = _cells([value])
            found[i] = cells[0]
    return found, packed


def _pack(cells: NDArray[np.int64], *, tiles: bool) -> tuple[NDArray[np.uint64], NDArray[np.bool_]]:
    """Pack cells that are tiles or exponents; return also which boards have other cells."""
    from tape2048.game.rules import exps_to_boards

    exps = cells
    if tiles:
        logs = np.log2(np.maximum(cells, 1)).astype(np.int64)
        exps = np.where((1 << logs == cells) & (logs > 0), logs, np.where(cells == 0, 0, -1))
    bad = np.any((exps < 0) | (exps > 17), axis=1)
    return exps_to_boards(np.clip(exps, 0, 15)), bad


def _are_tiles(games: Sequence[tuple[NDArray[np.int64], bool]]) -> bool:
    """Tell whether cells are tiles: what more boards follow from, by a move and a new tile."""
    from tape2048.game.moves import UNKNOWN, recover

    scores = []
    for tiles in (False, True):
        packed = [_pack(cells, tiles=tiles) for cells, is_packed in games if len(cells) and not is_packed]
        follow = sum(
            int(((recover(boards).moves != UNKNOWN) & ~bad[1:] & ~bad[:-1]).sum()) for boards, bad in packed
        )
        scores.append((follow, sum(int((~bad).sum()) for _, bad in packed), tiles))
    return max(scores)[2]


def _label(value: Any) -> Any:
    """Return a move as a number or as a word in lower case; None for none."""
    if isinstance(value, str):
        text = value.strip().lower()
        if found := re.search(r"(up|down|left|right)$", text):
            return found[1]
        value = int(text) if re.fullmatch(r"-?\d+", text) else text
    if isinstance(value, float):
        value = int(value) if value.is_integer() else None if np.isnan(value) else value
    if value is None or value in ("", "none", "null", -1):
        return None
    return value if isinstance(value, int | str) else repr(value)


def _made(games: Sequence[NDArray[np.uint64]], path: Path) -> list[NDArray[np.uint8]]:
    """Return the moves between the boards of games; raise FormatError if most boards do not follow."""
    from tape2048.game.moves import UNKNOWN, recover

    found = [recover(boards).moves for boards in games]
    pairs, wrong = sum(map(len, found)), sum(int((each == UNKNOWN).sum()) for each in found)
    if 2 * wrong > pairs:
        raise FormatError(
            f"{wrong} of {pairs} boards do not follow from the board before by a move and a new 2 or 4; "
            "expected the boards of each game in order",
            path=path,
            hint=f"Name the columns with --columns game=NAME,step=NAME,board=NAME. {_PAGE}.",
        )
    return found


class _Moves(NamedTuple):
    """What the moves of a file mean."""

    numbering: dict[Any, int]
    late: bool = False  # whether a board is from after the move in its row

    @classmethod
    def of(cls, games: Sequence[tuple[NDArray[np.uint64], list[Any]]], path: Path) -> _Moves:
        """Find the direction of each move from the boards before and after it."""
        labels = {label for _, moves in games for label in moves} - {None}
        words = {**_WORDS, "d": 3 if labels & {"w", "a", "s"} else 1}
        learned = (labels & words.keys()) or labels  # beside the usual words, another word is an error
        games = [game for game in games if len(game[0])]
        found = _made([boards for boards, _ in games], path)
        readings = []
        for late in (False, True):
            counts: dict[Any, Counter[int]] = defaultdict(Counter)
            for (_, moves), made in zip(games, found, strict=True):
                for label, move in zip(moves[late:], made.tolist(), strict=False):
                    if label in learned and move < 4:
                        counts[label][move] += 1
            numbering: dict[Any, int] = {}
            for label, each in sorted(counts.items(), key=lambda pair: -pair[1].total()):
                move = words.get(label, each.most_common(1)[0][0])
                if label in words or move not in numbering.values():  # two numbers of a move: one is an error
                    numbering[label] = move
            agree = sum(each[numbering.get(label, 4)] for label, each in counts.items())
            readings.append((agree, -late, numbering, counts))
        agree, early, numbering, counts = max(readings, key=lambda each: each[:2])
        if 2 * agree < sum(each.total() for each in counts.values()):
            label, each = max(
                counts.items(), key=lambda pair: pair[1].total() - pair[1][numbering.get(pair[0], 4)]
            )
            shown = ", ".join(f"{n} times {_DIRECTIONS[move]}" for move, n in each.most_common())
            raise FormatError(
                f"the moves do not fit the boards: the boards show that {label!r} was {shown}",
                path=path,
                hint=f"Boards are row by row, before each move. Name other columns with --columns. {_PAGE}.",
            )
        left = {0, 1, 2, 3} - {*numbering.values()}
        if len(missing := {0, 1, 2, 3} - numbering.keys()) == len(left) == 1 and labels <= {0, 1, 2, 3}:
            numbering[missing.pop()] = left.pop()
        numbering = words | numbering
        numbers = {label: move for label, move in numbering.items() if isinstance(label, int)}
        if any(label != move for label, move in numbers.items()):
            shown = ", ".join(f"{label} {_DIRECTIONS[move]}" for label, move in sorted(numbers.items()))
            logging.getLogger("tape2048").warning("%s: moves are %s, as the boards show", path, shown)
        return cls(numbering, bool(early))

    def run(self, boards: NDArray[np.uint64], labels: list[Any], facts: Mapping[str, Any]) -> RunFacts:
        """Make a run of boards and moves; raise ValueError if their numbers do not fit."""
        from tape2048.game.moves import last_boards
        from tape2048.runs.sessions import NO_CHOICE, recovered_moves

        lost: tuple[str, ...] = ()
        if self.late and len(labels) == len(boards):
            labels, lost = labels[1:], (_FIRST_MOVE,)
        while labels and labels[-1] is None:
            labels = labels[:-1]
        certain = True
        if not labels and len(boards) > 1 and not lost:
            moves, is_open = recovered_moves(boards)
            lost = (NO_CHOICE,) if is_open else ()
        else:
            if len(labels) not in {len(boards), len(boards) - 1}:
                found = f"found {len(boards)} boards and {len(labels)} moves"
                raise ValueError(f"{found}; expected as many moves as boards, or one move fewer")
            for step, label in enumerate(labels):
                if label not in self.numbering:
                    raise ValueError(f"step {step}: move {label!r}, whose direction no board shows")
            moves = np.array([self.numbering[label] for label in labels], np.uint8)
        if len(moves) == len(boards):
            final, sure = last_boards(boards[-1:], moves[-1:])
            boards, certain = np.append(boards, final), bool(sure[0])
        return _with_outcome(boards, moves, facts), certain, 0, lost


def _with_outcome(boards: NDArray[np.uint64], moves: NDArray[np.uint8], facts: Mapping[str, Any]) -> Run:
    """Return the run with the given score and tile, or else with the score and tile of its moves."""
    from tape2048.game.moves import find_fault
    from tape2048.game.rules import final_exponent

    _, score = find_fault(boards, moves, np.uint64(0), np.uint64(0))
    tile = 1 << int(final_exponent(boards[-1]))
    meta = RunMeta(
        len(moves),
        int(facts.get("start_unix_s") or 0),
        float(facts.get("elapsed_s") or 0),
        int(score if facts.get("score") is None else facts["score"]),
        int(tile if facts.get("highest_tile") is None else facts["highest_tile"]),
        None if facts.get("player") in {None, ""} else str(facts["player"]),
    )
    check_meta(meta)
    return Run(boards, moves, meta)


# Records that are games


class _GameRecords:
    """Reader of a file whose records are games."""

    def __init__(self, path: Path, layout: _FileColumns) -> None:
        self.path, self.columns, self.name = path.absolute(), layout.columns, f"{path}: {_word(path)}"
        sample: list[Any] = []
        for _, record in itertools.islice(_records(self.path), _SAMPLE_GAMES):
            with contextlib.suppress(*_NO_GAME):
                sample.append(self._parse(record))
            if sum(len(each[0]) for each in sample) > _SAMPLE_ROWS:
                break
        self.tiles = _are_tiles([each[:2] for each in sample])
        packed = [(_pack(each[0], tiles=self.tiles and not each[1]), each[2]) for each in sample]
        games = [(boards, labels) for (boards, bad), labels in packed if not bad.any()]
        self.moves = _Moves.of(games, path)

    def items(self) -> Iterator[tuple[str, Any]]:
        found = _records(self.path) if _word(self.path) == "row" else _lines(self.path)
        return ((f"{self.name} {number}", record) for number, record in found)

    def _parse(self, record: Any) -> tuple[NDArray[np.int64], bool, list[Any], dict[str, Any]]:
        if not isinstance(record, dict):
            record = msgspec.json.decode(record)
        columns = self.columns
        if "steps" in columns:
            boards = [step[columns["board"]] for step in record[columns["steps"]]]
            moves = [step.get(columns.get("move")) for step in record[columns["steps"]]]
        else:
            boards, moves = record[columns["board"]], record.get(columns.get("move")) or []
            if isinstance(moves, str):
                moves = re.findall(r"[^\s,;]+", moves) if re.search(r"[\s,;]", moves) else [*moves]
        if (final := record.get(columns.get("final_board"))) is not None and len(boards) == len(moves):
            boards = [*boards, final]
        if not boards:
            raise ValueError("the game has no boards")
        check_step_count(max(len(boards) - 1, len(moves)))
        facts = {role: record.get(columns.get(role)) for role in _FACTS}
        return *_cells(boards), [*map(_label, moves)], facts

    def read(self, record: Any) -> RunFacts:
        try:
            cells, is_packed, labels, facts = self._parse(record)
            boards, bad = _pack(cells, tiles=self.tiles and not is_packed)
            if bad.any():
                step, due = int(bad.argmax()), "tiles" if self.tiles else "exponents"
                raise ValueError(f"board {step} is {cells[step].tolist()}; expected 16 {due}")
            return self.moves.run(boards, labels, facts)
        except _NO_GAME as error:
            why = f"{error} is missing" if isinstance(error, KeyError) else str(error)
            raise FieldError(f"not a game: {why}") from error


# Records that are rows


def _batches(path: Path, layout: _FileColumns) -> Iterator[dict[str, Any]]:
    """Yield values of columns by what they hold; the boards as a list or an array."""
    if _word(path) != "row":
        records = (pair for pair in _records(path))
        while batch := list(itertools.islice(records, _BATCH_ROWS)):
            rows = [row for _, row in batch if isinstance(row, dict)]
            if wrong := [number for number, row in batch if not isinstance(row, dict)]:
                text = "%s: left out %d malformed records, the first at %s %d"
                logging.getLogger("tape2048").warning(text, path, len(wrong), _word(path), wrong[0])
            values = {role: [row.get(name) for row in rows] for role, name in layout.columns.items()}
            if layout.cells:
                values["board"] = [[row.get(name) or 0 for name in layout.cells] for row in rows]
            yield values
        return
    pa, _ = pyarrow()
    for batch in _tables(path):
        found: dict[str, Any] = {
            role: batch.column(name).to_pylist() for role, name in layout.columns.items() if role != "board"
        }
        if layout.cells:
            columns = [_cell_column(batch.column(name)) for name in layout.cells]
            found["board"] = np.stack(columns, axis=1)
        else:
            flat = column = batch.column(layout.columns["board"])
            while pa.types.is_nested(flat.type):
                flat = flat.flatten()
            is_plain = flat is not column and len(flat) == 16 * len(column) and not flat.null_count
            found["board"] = flat.to_numpy().reshape(-1, 16) if is_plain else column.to_pylist()
        yield found


def _cell_column(column: Any) -> NDArray[np.float64]:
    """Return one cell of each board: 0 for none, -1 for text that is no number."""
    pa, _ = pyarrow()
    try:
        return column.cast(pa.float64()).fill_null(0).to_numpy()  # type: ignore[no-any-return]
    except pa.ArrowInvalid:
        words = [str(word or 0).strip() for word in column.to_pylist()]
        return np.array([int(word) if word.isdecimal() else -1 for word in words], np.float64)


class _RowRecords:
    """Reader of a file whose records are rows, which it holds in memory, at 24 bytes a row or more."""

    def __init__(self, path: Path, layout: _FileColumns) -> None:
        self.name, self.word = str(path), _word(path)
        self.labels: dict[Any, int] = {}  # codes of moves, and of games
        self.games: dict[Any, int] = {}
        self.problems: dict[int, str] = {}  # rows without a board
        self.tiles: bool | None = None
        parts: dict[str, list[NDArray[Any]]] = defaultdict(list)
        count = 0
        for batch in _batches(path.absolute(), layout):
            for role, values in self._parse(batch, count):
                parts[role].append(values)
            count += len(batch["board"])
        columns = {role: np.concatenate(each) for role, each in parts.items()}
        columns = {role: each for role, each in columns.items() if len(each) == count}
        if "step" in layout.columns and "step" not in columns:
            raise FormatError(f"column {layout.columns['step']} is not a number in each row", path=path)
        self.boards, self.codes = columns["board"], columns["move"]
        self.facts = {role: columns[role] for role in _FACTS if role in columns}
        self.order, self.starts = _split(self.boards, columns.get("game"), columns.get("step"))
        self.of_games = columns.get("game")
        self.names, self.words = [*self.games], [*self.labels]
        few = max(1, int(np.searchsorted(self.starts, _SAMPLE_ROWS)) - 1)
        whole = [i for i in range(few) if not self.problems.keys() & {*self.rows(i).tolist()}]
        self.moves = _Moves.of([self.game(i) for i in whole], path)

    def _parse(self, batch: dict[str, Any], first: int) -> Iterator[tuple[str, NDArray[Any]]]:
        """Yield the arrays of some rows, the first of them with this number."""
        cells, is_packed = _cells_or_none(batch["board"])
        if self.tiles is None:
            self.tiles = _are_tiles([(cells, is_packed)])
        boards, bad = _pack(cells, tiles=self.tiles and not is_packed)
        for row in np.flatnonzero(bad).tolist():
            found, due = printable(batch["board"][row])[:100], "tiles" if self.tiles else "exponents"
            self.problems[first + row] = f"the board is {found}; expected 16 {due}"
        yield "board", boards
        moves = batch.get("move", [None] * len(boards))
        codes = {each: self.labels.setdefault(_label(each), len(self.labels)) for each in {*moves}}
        yield "move", np.array([codes[each] for each in moves], np.int64)
        if "game" in batch:
            keys = zip(*(batch[role] for role in ("session", "game") if role in batch), strict=True)
            yield "game", np.array([self.games.setdefault(key, len(self.games)) for key in keys], np.int64)
        for role in {"step", *_FACTS} & batch.keys():
            with contextlib.suppress(TypeError, ValueError):  # not numbers
                yield role, np.array(batch[role], object if role == "player" else np.float64)

    def rows(self, i: int) -> NDArray[np.int64]:
        return self.order[self.starts[i] : self.starts[i + 1]]

    def game(self, i: int) -> tuple[NDArray[np.uint64], list[Any]]:
        rows = self.rows(i)
        return self.boards[rows], [self.words[code] for code in self.codes[rows].tolist()]

    def named(self, i: int) -> str:
        rows = self.rows(i)
        if self.of_games is None:
            return f"{self.name}: {self.word}s {rows[0] + 1} to {rows[-1] + 1}"
        return f"{self.name}: game {'/'.join(map(str, self.names[self.of_games[rows[0]]]))}"

    def read(self, i: int) -> RunFacts:
        from tape2048.game.moves import find_fault

        rows, none = self.rows(i), np.uint64(0)
        check_step_count(len(rows) - 1)
        for row in rows.tolist() if self.problems else ():
            if row in self.problems:
                raise FieldError(f"{self.word} {row + 1}: {self.problems[row]}")
        own = {role: each[rows] for role, each in self.facts.items()}
        facts = {role: each[0] for role, each in own.items() if (each == each[0]).all() and len(rows) > 1}
        try:
            run, *more = self.moves.run(*self.game(i), facts)
            return check_rules(until_win(run)), *more
        except ValueError as error:
            raise FieldError(str(error)) from error
        except BookkeepingError:  # a score or tile of the row, not of the game
            return self.moves.run(*self.game(i), facts | {"score": None, "highest_tile": None})
        except ReplayError as error:
            row = rows[int(find_fault(run.states, run.moves, none, none)[0])]
            raise ReplayError(f"{self.word} {row + 1}: {error.message}", hint=error.hint) from error


def _split(
    boards: NDArray[np.uint64], games: NDArray[np.int64] | None, steps: NDArray[np.float64] | None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Return the numbers of rows in the order of games and steps, and the bounds of the games."""
    from tape2048.game.moves import UNKNOWN, recover
    from tape2048.game.rules import boards_to_exps

    order = np.arange(len(boards))
    if games is not None:
        order = np.lexsort((order if steps is None else steps, games))
        new = np.diff(games[order]) != 0
    elif steps is not None:
        new = np.diff(steps) <= 0
    else:
        exps = boards_to_exps(boards)
        is_start = ((exps > 0).sum(axis=1) == 2) & (exps.max(axis=1) <= 2)
        new = (recover(boards).moves == UNKNOWN) & is_start[1:]
    return order, np.concatenate([[0], np.flatnonzero(new) + 1, [len(order)]])


# Files as sessions


def as_session(path: Path) -> Path:
    """Convert a file to a session in the cache, once for each state of the file; return the session.

    Sessions are in ``~/.cache/tape2048/games``, or below ``$XDG_CACHE_HOME``.
    """
    from tape2048.runs.conversion import convert

    with reading(path):
        state = path.stat()
    key = f"{path.resolve()} {state.st_size} {state.st_mtime_ns} {__version__}"
    root = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tape2048" / "games"
    target = root / f"{plain_name(path).partition('.')[0]}-{hashlib.sha256(key.encode()).hexdigest()[:16]}"
    notes = Path(f"{target}.txt")  # what the session lacks, which each opening reports
    if not target.exists():
        with storage_errors(root, "converting into it"):
            root.mkdir(parents=True, exist_ok=True)
            with tempfile.TemporaryDirectory(dir=root) as scratch:
                done = convert(path, draft := Path(scratch, "session"), "session", lossy=True)
                losses = ((what, n) for what, n in done.lost.items() if what != FINAL_BOARD)
                lost = [f"lost {what}, of {counted(n, 'game')}" for what, n in losses]
                left_out = f"left out {counted(len(done.skipped), 'game')}. The first:"
                lost += [f"{left_out} {one.run}: {one.message}" for one in done.skipped[:1]]
                notes.write_text("\n".join(lost))
                with contextlib.suppress(NameTakenError):  # another process was first
                    rename_noreplace(draft, target)
    for note in notes.read_text().splitlines() if notes.exists() else ():
        logging.getLogger("tape2048").warning("%s: %s", path, note)
    return target
