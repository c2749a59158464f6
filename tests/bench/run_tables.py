"""The memory and the time that run tables take in an open corpus, by the number of games.

::

    python -m tests.bench.run_tables [--sessions 1000] [--games 100000] [--directory .]

Writes sessions on tape with so many games each: the same few hundred games, with different seeds. The tape is
one file for all sessions. Their run tables take 93 bytes a game on the disk, and 0.4 s for 100,000 games. A
process of its own opens them, filters, and serves batches. Memory is what is anonymous after each step
(``RssAnon``), less that of the same process with one small session, and the peak until then (``VmHWM``). The
last peak has pages of the mapped tapes, too.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

import msgspec
import numpy as np
from crc32c import crc32c
from tests.sdk.tapes import games_on_tape, plain_npy

from tape2048.session.layout import BLOCK_DTYPE, FORMAT_VERSION, MANIFEST, METADATA_DB, FileEntry, Manifest
from tape2048.session.metadata_writer import write_metadata

from .figures import TREES, Benchmark, Figure

_SEEDS = 200
_CHILD = """
import json, sys, time
from tape2048 import Corpus
from tape2048.loader import run_columns
run_columns.KEPT_RUNS = min(run_columns.KEPT_RUNS, int(sys.argv[2]))
found = []
def step(name, work):
    begin = time.perf_counter()
    result = work()
    seconds = time.perf_counter() - begin
    with open("/proc/self/status") as file:
        status = dict(line.split(":", 1) for line in file)
    found.append((name, seconds, *(int(status[key].split()[0]) * 1024 for key in ("RssAnon", "VmHWM"))))
    return result
corpus = step("open", lambda: Corpus.open(sys.argv[1], load="mmap"))
step("where(min_score=1500)", lambda: corpus.where(min_score=1500))
step("where('score >= 1500 AND steps < 200')", lambda: corpus.where("score >= 1500 AND steps < 200"))
step("split", lambda: corpus.split(train=0.9, val=0.1))
step("len", lambda: len(corpus))
batches = step("batches", lambda: corpus.batches(4096))
def serve():
    buffer = batches.buffer()
    for index in range(min(len(batches), 100)):
        batches.fill(buffer, epoch=0, index=index)
step("100 batches", serve)
print(json.dumps([len(corpus.runs) if len(corpus) < 1e6 else len(corpus._tables.runs), found]))
"""


def write_sessions(root: Path, sessions: int, games: int) -> None:
    """Write sessions of so many games."""
    some = games_on_tape(*range(_SEEDS))
    copies = -(-games // _SEEDS)
    counts = np.tile(some.runs["rows"].astype(np.int64), copies)[:games]
    rows = int(counts.sum())
    tape, boards = (np.tile(each, copies)[:rows] for each in (some.tape, some.boards))
    data = {"tape.npy": plain_npy("|u1", tape), "anchors.npy": plain_npy("<u8", boards[::16])}
    runs = np.tile(some.runs, copies)[:games]
    runs["run_id"], runs["first_row"] = np.arange(games), np.cumsum(counts) - counts
    facts = {
        "rows": rows,
        "runs": games,
        "player_sha256": "ab" * 32,
        "storage": "tape",
        "record_action": True,
    }
    blocks = np.array([(0, rows, crc32c(tape))], BLOCK_DTYPE)
    starts = np.tile(some.starts, copies)[:games]
    (root / ".rows").mkdir(parents=True)
    for name, content in data.items():
        (root / ".rows" / name).write_bytes(content)
    for number in range(sessions):
        path = root / f"20260101T{number // 3600:02}{number // 60 % 60:02}{number % 60:02}Z_model=many"
        path.mkdir()
        for name in data:
            os.link(root / ".rows" / name, path / name)
        runs["seed"] = np.arange(games) + number * games
        database = path / METADATA_DB
        write_metadata(database, runs=runs, blocks=blocks, session=facts, start_boards=starts)
        contents = {**data, METADATA_DB: database.read_bytes()}
        files = {name: FileEntry(len(each), crc32c(each)) for name, each in contents.items()}
        manifest = Manifest(FORMAT_VERSION, rows, games, files, anchor_rows=16)
        (path / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def _measure(root: Path, kept: int) -> tuple[int, list[tuple[str, float, int, int]]]:
    done = subprocess.run(
        [sys.executable, "-c", _CHILD, str(root), str(kept)],
        env={**os.environ, "PYTHONPATH": TREES}, capture_output=True, text=True, check=True,
    )  # fmt: skip
    found: tuple[int, list[tuple[str, float, int, int]]] = json.loads(done.stdout)
    return found


def figures(directory: Path, *, sessions: int, games: int) -> list[Figure]:
    """Open one small session, then all of them."""
    write_sessions(directory / "one", 1, 1000)
    write_sessions(directory / "many", sessions, games)
    _measure(directory / "one", 0)  # compiles
    _, small = _measure(directory / "one", 0)
    count, found = _measure(directory / "many", min(1 << 20, games))
    group, table = f"{count:,} games in {sessions:,} sessions", []
    for (name, seconds, anonymous, peak), before in zip(found, small, strict=True):
        own = max(0, anonymous - before[2]) / count
        table += [
            Figure(group=group, name=f"{name}: time", value=seconds, unit="s"),
            Figure(group=group, name=f"{name}: memory after it", value=own, unit="bytes per game"),
            Figure(group=group, name=f"{name}: peak memory", value=peak / 1e9, unit="GB"),
        ]
    return table


BENCHMARK = Benchmark(
    figures, sizes={"sessions": 1000, "games": 100_000}, smallest={"sessions": 3, "games": 300}
)

if __name__ == "__main__":
    BENCHMARK.main("run_tables", __doc__)
