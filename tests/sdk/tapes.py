"""Games and sessions on tape, made from the format and the reference rules, not by the code under test."""

from __future__ import annotations

import functools
import json
import sqlite3
from contextlib import closing
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
from crc32c import crc32c
from tests import reference as ref

from tape2048.formats.session import RUN_DTYPE

from .builders import OUR_SCHEMA, header_bytes, npy_bytes, signed, step_dtype, write_manifest

if TYPE_CHECKING:
    from pathlib import Path

    from numpy.typing import NDArray


class TapeGames(NamedTuple):
    """Whole games.

    Attributes:
        tape: ``u8[n]``.
        boards: ``u64[n]``, the board before each step.
        runs: ``RUN_DTYPE[G]``.
        starts: ``u64[G]``.
        finals: ``u64[G]``.
    """

    tape: NDArray[np.uint8]
    boards: NDArray[np.uint64]
    runs: NDArray[np.void]
    starts: NDArray[np.uint64]
    finals: NDArray[np.uint64]

    @property
    def moves(self) -> NDArray[np.uint8]:
        """The moves alone."""
        return self.tape & 3


def byte_of(afterstate: list[int], following: list[int], move: int) -> int:
    """The byte of one step."""
    (cell,) = (cell for cell in range(16) if afterstate[cell] != following[cell])
    return move + 4 * cell + 64 * (following[cell] == 2)


@functools.cache
def _game(seed: int) -> tuple[list[int], list[int], int, int, int]:
    """The bytes and the boards of a random game, its final board, score and highest tile."""
    game = ref.play_random(seed)
    boards = [move.cells for move in game.moves]
    following = [*boards[1:], game.final]
    tape = [
        byte_of(move.afterstate, cells, move.move) for move, cells in zip(game.moves, following, strict=True)
    ]
    return tape, [ref.pack(cells) for cells in boards], ref.pack(game.final), game.score, 1 << max(game.final)


def games_on_tape(*seeds: int) -> TapeGames:
    """The random games of these seeds, one after the other."""
    played = [_game(seed) for seed in seeds]
    runs = np.zeros(len(played), RUN_DTYPE)
    runs["id"], runs["seed"] = np.arange(len(played)) + 7, seeds
    runs["rows"] = runs["steps"] = [len(game[0]) for game in played]
    runs["first_row"] = np.cumsum(runs["rows"]) - runs["rows"]
    runs["max_score"], runs["highest_tile"] = [game[3] for game in played], [game[4] for game in played]
    return TapeGames(
        np.array([byte for game in played for byte in game[0]], np.uint8),
        np.array([board for game in played for board in game[1]], np.uint64),
        runs,
        np.array([game[1][0] for game in played], np.uint64),
        np.array([game[2] for game in played], np.uint64),
    )


TAPE_SCHEMA = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT, highest_tile INT,
                  first_row INT, rows INT, start_board BIGINT);
CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT);
CREATE TABLE blocks(first_row INTEGER PRIMARY KEY, rows INT, crc32c INT);
"""


def write_tape(
    directory: Path,
    games: TapeGames,
    *,
    record_action: bool = True,
    anchor_rows: int = 16,
    block_rows: int = 100,
    sql: str = "",
    **facts: object,
) -> Path:
    """A session on tape as the format describes it, and the statements in ``sql`` executed on it."""
    directory.mkdir(parents=True)
    tape, count = games.tape, len(games.tape)
    anchors = games.boards[::anchor_rows]
    (directory / "tape.npy").write_bytes(plain_npy("|u1", tape))
    (directory / "anchors.npy").write_bytes(plain_npy("<u8", anchors))
    blocks = [
        (first, len(tape[first : first + block_rows]), crc32c(tape[first : first + block_rows].tobytes()))
        for first in range(0, count, block_rows)
    ]
    content = {
        "rows": count, "runs": len(games.runs), "sample_rate": 1, "record_action": record_action,
        "storage": "tape", "engine": "toy", **facts,
    }  # fmt: skip
    with closing(sqlite3.connect(directory / "metadata.db")) as database:
        database.executescript(TAPE_SCHEMA)
        names = ("id", "seed", "steps", "max_score", "highest_tile", "first_row", "rows")
        rows = zip(*(games.runs[name].tolist() for name in names), games.starts.tolist(), strict=True)
        database.executemany(
            "INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)",
            [(*row[:1], signed(row[1]), *row[2:7], signed(row[7])) for row in rows],
        )
        database.executemany("INSERT INTO blocks VALUES (?, ?, ?)", blocks)
        database.executemany(
            "INSERT INTO session VALUES (?, ?)", [(key, json.dumps(value)) for key, value in content.items()]
        )
        database.executescript(sql)
        database.commit()
    tape_manifest(directory, rows=count, runs=len(games.runs), anchor_rows=anchor_rows)
    return directory


def write_rows(directory: Path, games: TapeGames, *, record_action: bool = True, **facts: object) -> Path:
    """The same games as a session of rows."""
    directory.mkdir(parents=True)
    rows, count = as_rows(games, record_action=record_action), len(games.tape)
    (directory / "steps.npy").write_bytes(npy_bytes(rows))
    content = {
        "rows": count, "runs": len(games.runs), "sample_rate": 1, "record_action": record_action,
        "engine": "toy", **facts,
    }  # fmt: skip
    with closing(sqlite3.connect(directory / "metadata.db")) as database:
        database.executescript(OUR_SCHEMA)
        names = ("id", "seed", "steps", "max_score", "highest_tile", "first_row", "rows")
        table = zip(*(games.runs[name].tolist() for name in names), strict=True)
        database.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?)", table)
        database.execute("INSERT INTO blocks VALUES (?, ?, ?)", (0, count, crc32c(rows.tobytes())))
        database.executemany(
            "INSERT INTO session VALUES (?, ?)", [(key, json.dumps(value)) for key, value in content.items()]
        )
        database.commit()
    write_manifest(directory, rows=count, runs=len(games.runs))
    return directory


def play(seed: int, _steps: int) -> tuple[NDArray[np.uint64], NDArray[np.uint8]]:
    """Play a game again, as a session's player does."""
    games = games_on_tape(seed)
    return np.append(games.boards, games.finals), games.moves


def plain_npy(descr: str, values: NDArray[Any], claimed: int | None = None) -> bytes:
    """A ``.npy`` file of numbers; the header may claim another count."""
    count = len(values) if claimed is None else claimed
    text = f"{{'descr': '{descr}', 'fortran_order': False, 'shape': ({count},), }}"
    return header_bytes(text.encode(), pad=True) + values.tobytes()


def tape_manifest(directory: Path, *, rows: int, runs: int, **changes: object) -> None:
    """A manifest that fits the files as they are now, then ``changes``."""
    content = {
        "version": 1,
        "rows": rows,
        "runs": runs,
        "files": {
            name: {"bytes": len(data), "crc32c": crc32c(data)}
            for name in ("tape.npy", "anchors.npy", "metadata.db")
            if (data := (directory / name).read_bytes()) is not None
        },
        "anchor_rows": 16,
    }
    (directory / "manifest.json").write_text(json.dumps(content | changes))


def as_rows(games: TapeGames, *, record_action: bool = True) -> NDArray[np.void]:
    """The same games as the rows of ``steps.npy``."""
    rows = np.zeros(len(games.tape), step_dtype(action=record_action))
    rows["run_id"] = np.repeat(games.runs["id"], games.runs["rows"])
    rows["step_idx"] = np.concatenate([np.arange(count) for count in games.runs["rows"].tolist()])
    rows["exps"] = [ref.unpack(board) for board in games.boards.tolist()]
    if record_action:
        rows["action"] = games.moves
    return rows
