"""Batches straight from tape, pools from tape on disk, and cold tapes into packed boards.

::

    python -m tests.bench.tapes [--rows 200000000] [--cold 100000000] [--rounds 7] [--directory .]

Games of ``ntuple:look=0``, four million rows of them again and again. Batches in memory are made in one
thread, from rows at addresses that no call has touched before. Cold files as in ``loading``.
"""

import functools
import os
import time
from pathlib import Path
from typing import Any, NamedTuple, cast

import numpy as np
from numpy.typing import NDArray

from tape2048 import Corpus, Session
from tape2048.files.bulk_read import allocate
from tape2048.loader.buffers import RowBuffers, Tapes
from tape2048.loader.row_map import Segments
from tape2048.loader.row_view import tables_of
from tape2048.loader.run_columns import CORPUS_RUN_DTYPE, RunColumns
from tape2048.session import ANCHOR_ROWS, TapeWriter
from tape2048.session.layout import STEP_DTYPE
from tape2048.session.tape_writer import encode

from .batches import _Memory, fills
from .figures import Benchmark, Figure, alternate, cat_s, in_turns, make_cold, median_of
from .games import play as play_boards

ROWS = 200_000_000
COLD_ROWS = 100_000_000
BATCH = 4096
PLAYER = "ntuple:look=0"
#: Different games, about four million rows of them.
GAMES = 600


class Games(NamedTuple):
    """Games on tape: ``tape`` u8[n], ``boards`` u64[n], ``runs`` RUN_DTYPE[G] and ``starts`` u64[G]."""

    tape: NDArray[np.uint8]
    boards: NDArray[np.uint64]
    runs: NDArray[np.void]
    starts: NDArray[np.uint64]


def play(player: str, games: int) -> Games:
    """Play games, and encode them."""
    boards, moves, finals, runs = play_boards(player, games)
    first, rows = runs["first_row"].astype(np.int64), runs["rows"].astype(np.int64)
    tape = np.empty(len(boards), np.uint8)
    assert encode(boards, moves, first, rows, finals, tape) == -1
    return Games(tape, boards, runs, boards[first])


class _Tape(NamedTuple):
    data: NDArray[np.uint8]
    anchors: NDArray[np.uint64]
    starts: NDArray[np.uint64]
    anchor_rows: int = ANCHOR_ROWS


def corpus_on_tape(games: Games, rows: int) -> Corpus:
    """A corpus of about so many rows on tape in memory: the games again and again."""
    copies = max(1, rows // len(games.tape))
    size = len(games.tape) * copies
    memory = allocate(size + -(-size // ANCHOR_ROWS) * 8)
    moves, anchors = memory[:size], memory[size:].view(np.uint64)
    for copy in range(copies):
        first = copy * len(games.tape)
        moves[first : first + len(games.tape)] = games.tape
        rest = -first % ANCHOR_ROWS
        mine = games.boards[rest::ANCHOR_ROWS]
        anchors[(first + rest) // ANCHOR_ROWS :][: len(mine)] = mine
    counts = np.tile(games.runs["rows"].astype(np.int64), copies)
    starts = np.cumsum(counts) - counts
    runs = np.zeros(len(counts), CORPUS_RUN_DTYPE)
    runs["run_id"], runs["first_row"] = np.arange(len(counts)), starts
    runs["rows"] = runs["steps"] = counts
    runs["highest_tile"] = np.tile(games.runs["highest_tile"], copies)
    begin = np.uint64(moves.ctypes.data)
    segments = Segments(
        address=begin + starts.astype(np.uint64), rows=counts, run=np.arange(len(counts)),
        end=np.full(len(counts), begin + np.uint64(size)), first_row=starts,
        session=np.zeros(len(counts), np.int64), stride=np.ones(len(counts), np.int64),
        layout=np.zeros(len(counts), np.uint64),
    )  # fmt: skip
    spans = np.array([[begin, anchors.ctypes.data, ANCHOR_ROWS.bit_length() - 1]], np.uint64)
    starts = np.tile(games.starts, copies)
    session = _Memory(np.empty(0, STEP_DTYPE), _Tape(moves, anchors, starts))
    tapes = Tapes(spans, starts)
    sessions = (cast("Session", session),)
    held = RunColumns.of_table(sessions, runs)
    return Corpus._of_store(RowBuffers(sessions, held, segments, (memory,), "ram", tapes=tapes))


def batch_figures(games: Games, *, rows: int, batch: int, rounds: int) -> list[Figure]:
    """Batches straight from tape in memory, by order and fields."""
    corpus = corpus_on_tape(games, rows)
    size = sum(array.nbytes for array in tables_of(corpus).store.memory) / len(corpus)
    contenders = {
        "tokens, labels, shuffled": fills(corpus, batch),
        "tokens, labels, shuffled, d4": fills(corpus, batch, augment="d4"),
        "tokens, moves, shuffled": fills(corpus, batch, fields=("tokens", "move")),
        "tokens, labels, in order": fills(corpus, batch, shuffle=False),
    }
    turns = {name: functools.partial(_rate, fill, batch) for name, fill in contenders.items()}
    samples = in_turns(turns, rounds)
    group = f"batches of {batch:,} of {len(corpus):,} rows on tape"
    figures = [median_of(found, group=group, name=name, unit="M rows/s") for name, found in samples.items()]
    return [
        *figures,
        median_of([size], group=group, name="memory a row", unit="B"),
    ]


def _rate(fill: Any, batch: int, calls: int = 64) -> float:
    """Millions of rows a second, by the median call."""
    times = []
    for _ in range(calls):
        begin = time.perf_counter()
        fill(None)
        times.append(time.perf_counter() - begin)
    return batch / float(np.median(times)) / 1e6


def write_tapes(root: Path, games: Games, rows: int) -> Path:
    """A session on tape of about so many rows: the games again and again."""
    directory = root / "20260101T000000Z_model=copies"
    directory.mkdir(parents=True)
    copies = max(1, rows // len(games.tape))
    with TapeWriter(directory) as writer:
        for copy in range(copies):
            runs = games.runs.copy()
            runs["run_id"] += np.uint64(copy * len(runs))
            writer.add(games.tape, runs, games.starts)
        writer.finish({"player_sha256": "ab" * 32, "sample_rate": 1, "record_action": False})
    return directory


def disk_figures(games: Games, *, rows: int, batch: int, rounds: int, directory: Path) -> list[Figure]:
    """Cold tapes into packed boards against ``cat`` of the rows as ``steps.npy``; pools of cold tapes."""
    session = write_tapes(directory, games, rows)
    corpus = Corpus.open(session, load="mmap")
    steps = directory / "steps.npy"  # as long as the session's would be; cat does not look at it
    with steps.open("wb") as file:
        noise = np.random.default_rng(0).bytes(28 << 20)
        for first in range(0, len(corpus), 1 << 20):
            file.write(noise[: 28 * min(1 << 20, len(corpus) - first)])
        file.flush()
        os.fsync(file.fileno())
    paths = [session / name for name in ("tape.npy", "anchors.npy")]
    group = f"{len(corpus):,} rows of a cold session on tape"

    def packed_s() -> float:
        make_cold(paths, 8 * len(corpus))
        begin = time.perf_counter()
        found = Corpus.open(session, load="packed", progress=False)
        passed = time.perf_counter() - begin
        assert len(found) == len(corpus)
        return passed

    packed_s()  # compiles
    cats, ours, ratios = alternate(lambda: cat_s([steps], 0), packed_s, rounds)
    figures = [
        median_of(ours, group=group, name="opened, packed", unit="s"),
        median_of(cats, group=group, name="`cat` of the rows as steps.npy", unit="s"),
        median_of(ratios, group=group, name="speed, of `cat`", unit="ratio"),
    ]
    from tape2048.torch import CriticLoader

    pool_rows = min(1 << 25, len(corpus) // 2)
    rates = []
    for seed in range(rounds):
        make_cold(paths, 0)
        loader = CriticLoader(corpus, batch, threads=1, seed=seed, pool_rows=pool_rows)
        begin, served = time.perf_counter(), 0
        for found in loader:
            served += len(found["tokens"])
        rates.append(served / (time.perf_counter() - begin) / 1e6)
    name = f"`CriticLoader`, 1 thread, pool_rows={pool_rows:,}"
    return [*figures, median_of(rates, group=group, name=name, unit="M rows/s")]


def measure(
    directory: Path, *, rows: int, cold: int, batch: int, player: str, games: int, rounds: int
) -> list[Figure]:
    """All of them."""
    played = play(player, games)
    return [
        *batch_figures(played, rows=rows, batch=batch, rounds=rounds),
        *disk_figures(played, rows=cold, batch=batch, rounds=rounds, directory=directory),
    ]


BENCHMARK = Benchmark(
    measure,
    sizes={
        "rows": ROWS, "cold": COLD_ROWS, "batch": BATCH, "player": PLAYER, "games": GAMES, "rounds": 7,
    },
    smallest={
        "rows": 50_000, "cold": 20_000, "batch": 256, "player": "random", "games": 200, "rounds": 1,
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("tapes", __doc__)
