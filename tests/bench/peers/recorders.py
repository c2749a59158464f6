"""Recorders with two workers, into memory: rows written a second, while they play random moves.

The plain recorder is what one writes first: processes that play, and save an array whenever enough rows are
there. It has no table of games, no checksum, no journal and nothing durable: it shows what those cost.
"""

import itertools
import multiprocessing
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from . import Peer

WORKERS = 2
PLAYER = "random"

#: Steps of all boards that the worker with NumPy games collects for one array.
_NUMPY_STEPS = 64


def _ours(directory: Path) -> Callable[[float], float]:
    from tests.bench.recording import record

    out_dir = directory / "ours"
    return lambda seconds: record(PLAYER, seconds, WORKERS, out_dir).rows_per_s


def _engine_blocks(worker: int) -> Iterator[NDArray[Any]]:
    """Yield blocks of whole games, in rows as tape2048 has them, by its engine."""
    from tests.bench.games import Games, make_buffer

    from tape2048_recorder.game.game_loop import BUFFER_FULL, play_into
    from tape2048_recorder.game.rng import game_seeds

    games, buffer = Games(PLAYER, 1), make_buffer()
    for first in itertools.count(worker << 40, 1000):
        ids = np.arange(first, first + 1000, dtype=np.uint64)
        buffer.give(ids, game_seeds(1, ids))
        while play_into(buffer, games.player, steps_max=1 << 40) == BUFFER_FULL:
            yield buffer.rows
            buffer.drop_block()


def _numpy_blocks(worker: int) -> Iterator[NDArray[Any]]:
    """Yield blocks of rows of games in turns, as NumPy plays them: the game's number and the board."""
    from .engines import BOARDS, NumpyGames

    games = NumpyGames(BOARDS, seed=worker)
    ids = np.arange(BOARDS)
    block = np.empty((_NUMPY_STEPS, BOARDS), [("run_id", "<u8"), ("exps", "u1", (4, 4))])
    while True:
        for rows in block:
            rows["run_id"], rows["exps"] = ids, games.cells
            ended = games.step()
            ids[ended] = ids.max() + 1 + np.arange(len(ended))
        yield block.reshape(-1)


def _plain(blocks: Callable[[int], Iterator[NDArray[Any]]], directory: Path) -> Callable[[float], float]:
    directory.mkdir(exist_ok=True)

    def measure(seconds: float) -> float:
        with multiprocessing.get_context("spawn").Pool(WORKERS) as pool:
            jobs = [(blocks, worker, str(directory), seconds) for worker in range(WORKERS)]
            return sum(pool.starmap(_save, jobs, chunksize=1))

    return measure


def _save(
    blocks: Callable[[int], Iterator[NDArray[Any]]], worker: int, directory: str, seconds: float
) -> float:
    """Save blocks for so many seconds, of which only the last stays; return rows a second after the first."""
    from pathlib import Path

    rows, begin, before = 0, 0.0, None
    for number, block in enumerate(blocks(worker)):
        path = Path(directory) / f"worker{worker}-{number:06}.npy"
        np.save(path, block)
        if before is not None:
            before.unlink()
        before = path
        if number == 0:
            begin = time.perf_counter()
            continue
        rows += len(block)
        if time.perf_counter() - begin >= seconds:
            path.unlink()
            break
    return rows / (time.perf_counter() - begin)


#: The recorders; the first is ours.
PEERS = (
    Peer("tape2048, sessions", ("tape2048",), _ours),
    Peer(
        "multiprocessing, `np.save`, games by tape2048's engine",
        ("numpy",),
        lambda directory: _plain(_engine_blocks, directory / "engine"),
    ),
    Peer(
        "multiprocessing, `np.save`, games in NumPy",
        ("numpy",),
        lambda directory: _plain(_numpy_blocks, directory / "numpy"),
    ),
)
