"""Batches of a corpus in memory against the C loop and NumPy; opening many sessions; labels of many rows.

::

    python -m tests.bench.batches [--rows 20000000] [--large 200000000] [--batch 4096] [--rounds 9]

Everything takes turns in one process and one thread, with rows that no call has touched before; a sample is
the median of 32 calls. ``--large 0`` leaves out the second corpus, which needs 8 GB. Rows are noise made in
memory; the 1,000 sessions are written to a directory in memory and opened with a warm cache.
"""

import itertools
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, cast

import numpy as np
from numpy.typing import NDArray

from tape2048 import Corpus, Session
from tape2048.files.bulk_read import allocate
from tape2048.loader.boards import pack_rows
from tape2048.loader.buffers import PackedBoards, RowBuffers
from tape2048.loader.gatherer import Gatherer
from tape2048.loader.row_map import BOARD_BYTES, Segments
from tape2048.loader.row_view import tables_of
from tape2048.loader.run_columns import CORPUS_RUN_DTYPE, RunColumns
from tape2048.session.column_draft import write_column
from tape2048.session.layout import STEP_DTYPE, STEPS_NPY

from . import corpora
from .figures import (
    ROUNDS_MIN,
    Benchmark,
    Figure,
    alternate,
    cat_s,
    make_cold,
    median_of,
    memory_dir,
    ratios,
)
from .floor import Floor, load_floor, take_turns

ROWS = 20_000_000
LARGE_ROWS = 200_000_000
BATCH = 4096
GAME_ROWS = 2_500
LABEL_ROWS = 1_000_000_000
SESSIONS = 1_000
SESSION_GAMES = 800
THRESHOLDS = (8192, 16384, 32768)

#: The whole batch, out of rows; and out of packed boards.
FUSED = "tokens, labels, shuffled"
PACKED = f"{FUSED}, packed"
#: The same with two columns.
COLUMNS = "tokens, labels, values, loss, shuffled"

#: Rows of the corpus on disk, and of the pool.
DISK_ROWS = 20_000_000
POOL_ROWS = 4_000_000

_FILL_ROWS = 1 << 20


class _Memory:
    """What a store needs of a session whose rows were never in a file."""

    is_remote = False

    def __init__(self, steps: NDArray[np.void], tape: Any = None) -> None:
        self.steps = steps
        self.dtype = steps.dtype
        self.tape = tape
        self.load = "ram"
        self.manifest = self.foreign = None
        self.meta: dict[str, Any] = {"sample_rate": 1}
        self.blocks, self.contiguous, self.runs = (), True, np.zeros(0, CORPUS_RUN_DTYPE)

    def __len__(self) -> int:
        return len(self.steps)


def corpus_in_memory(rows: int, game_rows: int, *, touch: bool = True) -> Corpus:
    """A corpus of games of half to one and a half times ``game_rows``; without ``touch``, of no rows."""
    rng = np.random.default_rng(3)
    counts = rng.integers(max(1, game_rows // 2), 3 * game_rows // 2 + 1, 2 + 2 * rows // game_rows)
    counts = counts[: int(np.searchsorted(np.cumsum(counts), rows))]
    counts = np.append(counts, rows - counts.sum())
    starts = np.cumsum(counts) - counts
    memory = allocate(rows * STEP_DTYPE.itemsize if touch else STEP_DTYPE.itemsize)
    if touch:
        _fill(memory.view(STEP_DTYPE))
    runs = np.zeros(len(counts), CORPUS_RUN_DTYPE)
    runs["run_id"] = np.arange(len(counts))
    runs["first_row"], runs["rows"], runs["steps"] = starts, counts, counts
    runs["highest_tile"] = 1 << rng.integers(10, 16, len(counts))
    begin = np.uint64(memory.ctypes.data)
    segments = Segments(
        address=begin + starts.astype(np.uint64) * np.uint64(28), rows=counts, run=np.arange(len(counts)),
        end=np.full(len(counts), begin + np.uint64(memory.size)), first_row=starts,
        session=np.zeros(len(counts), np.int64), stride=np.full(len(counts), 28),
        layout=np.zeros(len(counts), np.uint64),
    )  # fmt: skip
    session = cast("Session", _Memory(memory.view(STEP_DTYPE)))
    return Corpus._of_store(
        RowBuffers((session,), RunColumns.of_table((session,), runs), segments, (memory,), "ram")
    )


def packed(corpus: Corpus) -> Corpus:
    """A corpus in memory with its boards packed, as ``load="packed"`` has them."""
    store = tables_of(corpus).store
    boards = allocate(len(corpus) * BOARD_BYTES).view(np.uint64)
    pack_rows(corpus[:].view(np.uint8).reshape(-1, STEP_DTYPE.itemsize), boards, "memory")
    (part,) = store.chunks()
    addresses = np.uint64(boards.ctypes.data) + part.segments.first_row.astype(np.uint64) * np.uint64(
        BOARD_BYTES
    )
    held = PackedBoards((boards,), addresses)
    return Corpus._of_store(
        RowBuffers(store.sessions, store.runs, part.segments, store.memory, "packed", boards=held)
    )


def _fill(steps: NDArray[np.void]) -> None:
    rng = np.random.default_rng(1)
    noise = rng.integers(0, 12, (_FILL_ROWS, 28), dtype=np.uint8).view(STEP_DTYPE).reshape(-1)
    for first in range(0, len(steps), _FILL_ROWS):
        part = steps[first : first + _FILL_ROWS]
        part[:] = noise[: len(part)]


def fills(corpus: Corpus, batch: int, **options: Any) -> Callable[[object], object]:
    """A function that makes the next batch, in epochs without end."""
    batches = corpus.batches(batch, thresholds=THRESHOLDS, drop_last=True, **options)
    buffer = batches.buffer()
    places = itertools.cycle((epoch, index) for epoch in range(2) for index in range(len(batches)))

    def fill(_: object) -> None:
        epoch, index = next(places)
        batches.fill(buffer, epoch=epoch, index=index)

    fill(None)  # compiles
    return fill


def batch_figures(*, rows: int, large: int, batch: int, rounds: int) -> list[Figure]:
    """Whole rows, and tokens with labels in shuffled order, against the floor and NumPy."""
    corpus = corpus_in_memory(rows, GAME_ROWS)
    records = np.empty(batch, corpus.dtype)
    gatherer = Gatherer(tables_of(corpus), (), np.empty(0, np.int64))
    steps = corpus[:]
    columns = {"values": np.ones((rows, 4), np.float32), "loss": np.ones(rows, np.float32)}
    contenders: dict[str, Callable[[NDArray[np.uint64]], object]] = {
        "rows": lambda numbers: gatherer.gather_records(numbers.view(np.int64), records),
        "rows, structured array, a[indices]": lambda numbers: steps[numbers],
        FUSED: fills(corpus, batch),
        "tokens, labels, shuffled, d4": fills(corpus, batch, augment="d4"),
        "tokens, labels of half the runs, shuffled": fills(corpus.where("run_id % 2 = 0"), batch),
        "tokens, labels, at most 512 a run": fills(cast("Corpus", corpus.capped(512)), batch),
        "tokens, labels, in order": fills(corpus, batch, shuffle=False),
        PACKED: fills(packed(corpus), batch),
        COLUMNS: fills(corpus, batch, extra=columns),
        f"{COLUMNS}, packed": fills(packed(corpus), batch, extra=columns),
        "tokens, moves, shuffled, packed": fills(packed(corpus), batch, fields=("tokens", "move")),
    }
    if load_floor() is not None:
        floor, out = Floor(steps.view("V28")), np.empty(batch * 28, np.uint8)
        contenders["C loop with prefetch"] = lambda numbers: floor(numbers, out)
        contenders["C loop of requests alone"] = floor.ask
    found = take_turns(contenders, rows=rows, batch=batch, rounds=rounds)
    group = f"{batch} rows of {rows:,}"
    figures = [median_of(samples, group=group, name=name, unit="ms") for name, samples in found.items()]

    def ratio(name: str, one: str, other: str) -> None:
        if other in found:
            samples = ratios(found[one], found[other])
            figures.append(median_of(samples, group=group, name=name, unit="ratio"))

    fused, c_loop = FUSED, "C loop with prefetch"
    ratio("a[indices], of rows", "rows, structured array, a[indices]", "rows")
    ratio("a[indices], of requests alone", "rows, structured array, a[indices]", "C loop of requests alone")
    ratio("rows, of the C loop", "rows", c_loop)
    ratio(f"{fused}, of the C loop", fused, c_loop)
    ratio("d4, of without", f"{fused}, d4", fused)
    ratio(f"{PACKED}, of the C loop", PACKED, c_loop)
    ratio(f"rows/s of {COLUMNS}, of without", fused, COLUMNS)
    ratio(f"rows/s of {COLUMNS}, packed, of without", PACKED, f"{COLUMNS}, packed")
    for each in (fused, PACKED):
        rates = [batch / ms / 1e3 for ms in found[each]]
        figures.append(median_of(rates, group=group, name=f"{each}, a core", unit="M rows/s"))
    if large:
        figures += _large_figures(corpus, corpus_in_memory(large, GAME_ROWS), batch, rounds)
    return figures


def _large_figures(corpus: Corpus, large: Corpus, batch: int, rounds: int) -> list[Figure]:
    """The same batches of a corpus past all caches and most of the TLB; and what that does to the floor."""
    group = f"{batch} rows of {len(large):,}"
    pairs = {
        FUSED: (fills(corpus, batch), fills(large, batch)),
        PACKED: (fills(packed(corpus), batch), fills(packed(large), batch)),
    }
    if load_floor() is not None:
        out = np.empty(batch * 28, np.uint8)
        floors = [Floor(each[:].view("V28")) for each in (corpus, large)]
        pairs["C loop with prefetch"] = (
            lambda numbers: floors[0](numbers % np.uint64(len(corpus)), out),
            lambda numbers: floors[1](numbers, out),
        )
    contenders = {(each, i): work for each, works in pairs.items() for i, work in enumerate(works)}
    found = take_turns(
        cast("dict[str, Callable[[NDArray[np.uint64]], object]]", contenders),
        rows=len(large), batch=batch, rounds=rounds,
    )  # fmt: skip
    figures = []
    for each in pairs:
        small, more = (found[cast("str", (each, i))] for i in (0, 1))
        figures += [
            median_of(more, group=group, name=each, unit="ms"),
            median_of(
                ratios(more, small), group=group, name=f"{each}, of {len(corpus):,} rows", unit="ratio",
            ),
        ]  # fmt: skip
    return figures


def pool_figures(directory: Path, *, rows: int, pool_rows: int, batch: int, rounds: int) -> list[Figure]:
    """Epochs through the pool of mapped sessions and their columns, cold; and ``cat`` of the same files."""
    corpora.make_corpus(directory, rows, GAME_ROWS)
    for session in Corpus.open(directory, load="mmap").sessions:
        write_column(session, "values", np.ones((len(session), 4), np.float32))
        write_column(session, "loss", np.ones(len(session), np.float32))
    paths = [
        path for each in (STEPS_NPY, "values.f32.npy", "loss.f32.npy") for path in directory.glob(f"*/{each}")
    ]
    corpus = Corpus.open(directory, load="mmap")
    fields = ("tokens", "labels", "values", "loss")

    def epoch() -> float:
        make_cold(paths, 2 * pool_rows * 64)
        batches = corpus.batches(batch, fields=fields, thresholds=THRESHOLDS, pool_rows=pool_rows)
        begin = time.perf_counter()
        served = sum(each.rows for each in batches)
        return served / (time.perf_counter() - begin) / 1e6

    epoch()  # compiles
    size = sum(path.stat().st_size for path in paths)
    ours, cats, of_cat = alternate(epoch, lambda: rows / cat_s(paths, 0) / 1e6, rounds)
    group = f"{COLUMNS}, through a pool of {pool_rows:,} of {rows:,} cold rows, {size / 1e9:.2g} GB"
    return [
        median_of(ours, group=group, name="batches", unit="M rows/s"),
        median_of(cats, group=group, name="`cat` of the files", unit="M rows/s"),
        median_of(of_cat, group=group, name="batches, of `cat`", unit="ratio"),
    ]


def label_figures(*, rows: int, rounds: int) -> list[Figure]:
    """Everything that labels take before the first batch: the map of the rows and each segment's label."""
    corpus = corpus_in_memory(rows, GAME_ROWS, touch=False)
    times = []
    for _ in range(rounds):
        view = Corpus._of_store(tables_of(corpus).store)
        begin = time.perf_counter()
        Gatherer(tables_of(view), ("labels",), np.array(THRESHOLDS))
        view.pos_weight(THRESHOLDS)
        times.append(time.perf_counter() - begin)
    name = f"{rows:,} rows, {len(corpus.runs):,} runs"
    return [median_of(times, group="labels", name=name, unit="s")]


def opening_figures(directory: Path, *, sessions: int, games: int, rounds: int) -> list[Figure]:
    """Opening a corpus of many sessions, and a condition on its runs."""
    for number in range(sessions):
        corpora._make_session(directory / f"20260101T{number:06}Z_model=noise", number, games * 3, 3)
    opened, filtered = [], []
    for _ in range(rounds):
        begin = time.perf_counter()
        corpus = Corpus.open(directory, load="mmap")
        assert len(corpus) == sessions * games * 3
        opened.append(time.perf_counter() - begin)
        begin = time.perf_counter()
        assert len(corpus.where("score >= 50000 AND highest_tile >= 8192"))
        filtered.append(time.perf_counter() - begin)
    group = f"{sessions:,} sessions of {games} runs"
    return [
        median_of(opened, group=group, name="open", unit="s"),
        median_of(filtered, group=group, name="where, two columns", unit="s"),
    ]


def measure(
    directory: Path, *, labels: int, disk: int, pool: int, sessions: int, games: int, **how: int
) -> list[Figure]:
    """All of them."""
    rounds = how["rounds"]
    figures = batch_figures(**how) + label_figures(rows=labels, rounds=rounds)
    figures += pool_figures(directory / "cold", rows=disk, pool_rows=pool, batch=how["batch"], rounds=rounds)
    with memory_dir() as memory:
        return figures + opening_figures(memory, sessions=sessions, games=games, rounds=rounds)


BENCHMARK = Benchmark(
    measure,
    sizes={
        "rows": ROWS, "large": LARGE_ROWS, "batch": BATCH, "labels": LABEL_ROWS, "disk": DISK_ROWS,
        "pool": POOL_ROWS, "sessions": SESSIONS, "games": SESSION_GAMES, "rounds": ROUNDS_MIN + 4,
    },
    smallest={
        "rows": 20_000, "large": 40_000, "batch": 512, "labels": 100_000, "disk": 20_000, "pool": 4_000,
        "sessions": 3, "games": 5, "rounds": 1,
    },
)  # fmt: skip

if __name__ == "__main__":
    BENCHMARK.main("batches", __doc__)
