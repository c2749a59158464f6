"""A simulator of 2048 that shares no code with the product, and the faults that can be planted in it."""

from __future__ import annotations

import contextlib
import sqlite3
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numba.extending import register_jitable
from numpy.typing import NDArray

from tape2048.jit.compiler import kernel

from .builders import SEED_SCHEMA, step_dtype

#: Faults, by name; FAULTS[0] is 2048.
FAULTS = (
    "none",
    "stale count of empty cells",
    "stale count, at least 1",
    "share of 4s of 0.12",
    "double merges",
    "never the last of several empty cells",
    "no spawn in the only empty cell",
)
_STALE, _STALE_1, _FOURS, _DOUBLE, _NOT_LAST, _NOT_ONLY = range(1, 7)


class Game(NamedTuple):
    """``u64[n + 1]`` boards, ``u8[n]`` moves and the score of the merges."""

    states: NDArray[np.uint64]
    moves: NDArray[np.uint8]
    score: int


@register_jitable
def _slide(cells: Any, move: int, out: Any, fault: int) -> int:
    out[:] = 0
    score = 0
    for line in range(4):
        place, step = (line, 4) if move < 2 else (4 * line, 1)
        if move % 2:
            place, step = place + 3 * step, -step
        source, mergeable = place, False
        for _ in range(4):
            tile = cells[source]
            source += step
            if tile == 0:
                continue
            if mergeable and out[place - step] == tile:
                out[place - step] += 1
                score += 2 << tile
                mergeable = fault == _DOUBLE
            else:
                out[place] = tile
                place += step
                mergeable = True
    return score


@register_jitable
def _spawn(cells: Any, before: int, fault: int, rng: Any) -> None:
    count = (cells == 0).sum()
    if fault in (_STALE, _STALE_1):
        count = min(count, before)
    if fault == _STALE_1:
        count = max(count, 1)
    if (fault == _NOT_ONLY and count == 1) or count == 0:
        return
    at = rng.integers(0, count - (fault == _NOT_LAST and count > 1))
    for cell in range(16):
        if cells[cell] == 0:
            if at == 0:
                cells[cell] = 1 + (rng.random() < (0.12 if fault == _FOURS else 0.1))
                return
            at -= 1


@kernel
def _play(rng: Any, fault: int, states: Any, moves: Any) -> Any:
    """Play a game: the move that leaves the most empty cells, and of several the first one."""
    cells, best, out = np.zeros(16, np.uint8), np.zeros(16, np.uint8), np.zeros(16, np.uint8)
    _spawn(cells, 16, fault, rng)
    _spawn(cells, 15, fault, rng)
    total = 0
    for step in range(len(states)):
        board = np.uint64(0)
        for cell in range(16):
            board = board << np.uint64(4) | np.uint64(cells[cell])
        states[step] = board
        most, score, chosen = -1, 0, 0
        for move in (2, 0, 3, 1):
            points = _slide(cells, move, out, fault)
            if (out == 0).sum() > most and (out != cells).any():
                most, score, chosen = (out == 0).sum(), points, move
                best[:] = out
        if most < 0 or step == len(moves):
            return step, total
        before = (cells == 0).sum()
        moves[step] = chosen
        cells[:] = best
        total += score
        _spawn(cells, before, fault, rng)
    return len(moves), total


def play(fault: str, seed: int, moves: int) -> list[Game]:
    """Play games with this many moves. The last one breaks off."""
    games: list[Game] = []
    while moves > 0:
        states, made = np.empty(moves + 1, np.uint64), np.empty(moves, np.uint8)
        rng = np.random.default_rng([seed, len(games)])
        steps, score = _play(rng, FAULTS.index(fault), states, made)
        games.append(Game(states[: steps + 1].copy(), made[:steps].copy(), score))
        moves -= steps
    return games


def write(directory: Path, games: list[Game], *, action: bool = True) -> Path:
    """Write the games as a foreign session, without final boards, and perhaps without moves."""
    directory.mkdir(parents=True)
    parts, table = [], []
    for number, game in enumerate(games):
        rows = np.zeros(len(game.moves), step_dtype(action=action))
        rows["run_id"], rows["step_idx"] = number, np.arange(len(rows))
        rows["exps"] = game.states[:-1, None] >> np.arange(60, -4, -4, dtype=np.uint64) & np.uint64(15)
        if action:
            rows["action"] = game.moves
        parts.append(rows)
        highest = max(int(game.states[-1]) >> shift & 15 for shift in range(0, 64, 4))
        table.append((number, 0, len(rows), game.score, 1 << highest))
    np.save(directory / "steps.npy", np.concatenate(parts))
    with contextlib.closing(sqlite3.connect(directory / "metadata.db")) as database, database:
        database.executescript(SEED_SCHEMA)
        database.executemany("INSERT INTO runs VALUES (?, ?, ?, ?, ?)", table)
    return directory
