"""Packs of another project's games, written from its description and not by the code under test.

The games are played by its rules: two 32768 tiles merge, and The game continues. Boards are lists of
exponents.
"""

import gzip
import json
import random
import sqlite3
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray
from tests import reference

UDLR = ("up", "down", "left", "right")
KINDS = ("search", "tuple11", "tuple10")

STEP_ROW = np.dtype(
    [
        ("run_id", np.uint32),
        ("step_index", np.uint32),
        ("board", np.uint64),
        ("board_eval", np.int32),
        ("tile_65536_mask", np.uint16),
        ("move_dir", np.uint8),
        ("valuation_type", np.uint8),
        ("ev_legal", np.uint8),
        ("max_rank", np.uint8),
        ("seed", np.uint32),
        ("branch_evs", np.float32, (4,)),
    ],
    align=True,
)
assert STEP_ROW.itemsize == 48


class Step(NamedTuple):
    """One row: the board before the move, the move, and each move's value (None: illegal)."""

    board: list[int]
    move: int
    values: list[float | None]
    kind: int


class Played(NamedTuple):
    """A whole game."""

    seed: int
    steps: list[Step]
    score: int
    final: list[int]

    @property
    def highest(self) -> int:
        return 1 << max(*self.final, *(max(step.board) for step in self.steps))


def slide(board: list[int], move: int) -> tuple[list[int], int]:
    """A move by rules without a highest tile."""
    return reference.slide(board, move, top=99)


def play(seed: int, start: list[int] | None = None) -> Played:
    """A game of random legal moves, from two tiles or from a board."""
    rng = random.Random(seed)

    def spawn(cells: list[int]) -> list[int]:
        at = rng.choice([i for i, tile in enumerate(cells) if not tile])
        return [2 if i == at and rng.random() < 0.1 else 1 if i == at else t for i, t in enumerate(cells)]

    board = start or spawn(spawn([0] * 16))
    steps: list[Step] = []
    total = 0
    while True:
        afters = [slide(board, move) for move in range(4)]
        legal = [move for move in range(4) if afters[move][0] != board]
        if not legal:
            return Played(seed, steps, total, board)
        move = rng.choice(legal)
        values = [round(rng.uniform(-9, 9), 3) if m in legal else None for m in range(4)]
        steps.append(Step(board, move, values, rng.randrange(3)))
        total += afters[move][1]
        board = spawn(afters[move][0])


def games(count: int) -> list[Played]:
    """Games of random moves; every fifth begins late, and soon makes a 65536."""
    late = [15, 14, 13, 13, 0, 0, 3, 2, 1, 0, 0, 0, 0, 0, 0, 0]
    return [play(seed, start=late if seed % 5 == 3 else None) for seed in range(count)]


def rows_of(played: list[Played], dtype: np.dtype[Any] = STEP_ROW) -> NDArray[np.void]:
    """The rows of a pack, run after run; fields of the type beyond the document's are left 0."""
    rows = np.zeros(sum(len(game.steps) for game in played), dtype)
    at = 0
    for run, game in enumerate(played):
        for index, step in enumerate(game.steps):
            row = rows[at]
            at += 1
            row["run_id"], row["step_index"], row["move_dir"] = run, index, step.move
            for cell, exponent in enumerate(step.board):
                row["board"] |= np.uint64(min(exponent, 15) << (15 - cell) * 4)
                row["tile_65536_mask"] |= np.uint16((exponent >= 16) << cell)
            row["board_eval"] = -index - run
            row["valuation_type"], row["max_rank"], row["seed"] = step.kind, max(step.board), game.seed
            for move, value in enumerate(step.values):
                row["ev_legal"] |= np.uint8((value is not None) << move)
                row["branch_evs"][move] = value or 0
    return rows


def write_pack(
    directory: Path, played: list[Played], *, shard_rows: int | None = None, rows: NDArray[Any] | None = None
) -> Path:
    """``steps.npy`` or shards, ``metadata.db`` and ``valuation_types.json``."""
    directory.mkdir(parents=True)
    rows = rows_of(played) if rows is None else rows
    if shard_rows is None:
        np.save(directory / "steps.npy", rows)
    for number, first in enumerate(range(0, len(rows), shard_rows or len(rows)) if shard_rows else ()):
        np.save(directory / f"steps-{number:05d}.npy", rows[first : first + (shard_rows or 0)])
    with closing(sqlite3.connect(directory / "metadata.db")) as database:
        database.executescript(
            "PRAGMA journal_mode = WAL; PRAGMA synchronous = NORMAL;"
            "CREATE TABLE runs (id INTEGER PRIMARY KEY, seed BIGINT NOT NULL, steps INT NOT NULL,"
            " max_score INT NOT NULL, highest_tile INT NOT NULL);"
            "CREATE TABLE session (meta_key TEXT PRIMARY KEY, meta_value TEXT NOT NULL);"
        )
        table = [(i, game.seed, len(game.steps), game.score, game.highest) for i, game in enumerate(played)]
        database.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", table)
        database.commit()
    (directory / "valuation_types.json").write_text(json.dumps({kind: i for i, kind in enumerate(KINDS)}))
    return directory


def write_raw(directory: Path, number: int, game: Played, **meta: object) -> Path:
    """A game's ``.jsonl.gz`` and ``.meta.json``; ``meta`` replaces facts."""
    directory.mkdir(parents=True, exist_ok=True)
    path = directory / f"depth06_worker00_seed{game.seed:010d}_game{number:06d}.jsonl.gz"
    lines = [
        json.dumps(
            {
                "seed": game.seed,
                "step_index": index,
                "max_rank": max(step.board),
                "move": UDLR[step.move],
                "valuation_type": KINDS[step.kind],
                "valuation": step.values[step.move],
                "board": step.board,
                "branch_evs": {
                    name: step.values[UDLR.index(name)] for name in ("up", "left", "right", "down")
                },
                "an_earlier_field": [index],
            }
        )
        for index, step in enumerate(game.steps)
    ]
    path.write_bytes(gzip.compress("".join(line + "\n" for line in lines).encode()))
    facts = {
        "seed": game.seed, "depth": 6, "game_index": number, "steps_file": str(path), "num_moves": len(lines),
        "score": game.score, "max_tile": game.highest, "max_rank": game.highest.bit_length() - 1,
        "sum_tile": sum(1 << tile for tile in game.final if tile), "seconds": 1.5,
    }  # fmt: skip
    name = path.name.removesuffix(".jsonl.gz") + ".meta.json"
    path.with_name(name).write_text(json.dumps(facts | meta))
    return path
