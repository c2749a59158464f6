"""A column of many rows, killed at random times and resumed, compared with an undisturbed one.

python -m tests.bench.column_kills --rows 1000000000
"""

import argparse
import os
import random
import signal
import tempfile
import time
from pathlib import Path

import numpy as np
from numpy.typing import NDArray
from tests.sdk.builders import NAME
from tests.sdk.tapes import TapeGames, write_tape

from tape2048 import Session
from tape2048.files.reading import crc32c, map_path
from tape2048.session.column_draft import write_columns
from tape2048.session.columns import ColumnInfo
from tape2048.session.layout import RUN_DTYPE

GAME_ROWS = 200_000  # a session on tape has no longer games
COLUMN = ColumnInfo("mixed", "u8", facts={"maker": "a test"})


def make(rows: range) -> dict[str, NDArray[np.uint8]]:
    """A byte that depends on the row."""
    numbers = np.arange(rows.start, rows.stop, dtype=np.uint32)
    return {"mixed": (numbers * np.uint32(2654435761) >> np.uint32(13)).astype(np.uint8)}


def write(session: Session, delay: float | None = None) -> bool:
    """Write the column in a forked child, killed after a delay; tell whether it finished."""
    pid = os.fork()
    if pid == 0:
        write_columns(session, [COLUMN], make)
        os._exit(0)
    if delay is not None:
        time.sleep(delay)
        os.kill(pid, signal.SIGKILL)
    status = os.waitpid(pid, 0)[1]
    assert status in {0, signal.SIGKILL}
    return status == 0


def take_file(session: Session) -> tuple[int, bytes]:
    """Checksum of the values, and the facts; the files are removed."""
    column = session.column("mixed")
    json = column.path.with_name("mixed.json")
    found = crc32c(map_path(column.path).data), json.read_bytes()
    column.path.unlink()
    json.unlink()
    return found


def main() -> None:
    """Print what was compared."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--rows", type=int, default=10**9)
    parser.add_argument("--kills", type=int, default=20)
    parser.add_argument("--dir", type=Path)
    args = parser.parse_args()
    starts = np.arange(0, args.rows, GAME_ROWS)
    runs = np.zeros(len(starts), RUN_DTYPE)
    runs["id"], runs["first_row"] = starts, starts
    runs["rows"] = runs["steps"] = np.minimum(GAME_ROWS, args.rows - starts)
    two_tiles = np.broadcast_to(np.uint64(0x11), args.rows)
    games = TapeGames(np.zeros(args.rows, np.uint8), two_tiles, runs, two_tiles[: len(runs)], two_tiles[:1])
    with tempfile.TemporaryDirectory(dir=args.dir) as root:
        session = Session.open(write_tape(Path(root, NAME), games, anchor_rows=4096, block_rows=args.rows))
        begin = time.monotonic()
        assert write(session)
        whole = time.monotonic() - begin
        expected = take_file(session)
        print(f"{len(session):,} rows, undisturbed: {whole:.1f} s, CRC-32C {expected[0]:#010x}")
        rng, kills, finished = random.Random(38), 0, 0
        while kills < args.kills or not finished:
            delay = rng.uniform(0, rng.choice((0.12, 0.4)) * whole)
            if write(session, delay if kills < args.kills else None):
                assert take_file(session) == expected
                finished += 1
            else:
                kills += 1
                journal = session.path / ".mixed.partial/journal.0of1"
                chunks = journal.stat().st_size // 16 if journal.exists() else 0
                print(f"kill {kills}: {chunks:,} chunks in the journal", flush=True)
        print(f"{kills} kills, {finished} columns finished, each identical to the undisturbed one")


if __name__ == "__main__":
    main()
