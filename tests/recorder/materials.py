"""Real games cut into blocks, as workers would write them, and the facts of a session that holds them.

Shared by the tests and by ``crash_server.py``, which runs as a script of its own.
"""

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from tape2048.session.layout import RUN_DTYPE, STEP_DTYPE
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile
from tape2048_recorder.ipc.protocol import BlockWritten
from tape2048_recorder.recording import publish as publishing
from tape2048_recorder.recording.partial import Facts, PartialSession
from tape2048_recorder.recording.world import at_once

STARTED_AT = "2026-01-02T03:04:05Z"
ENDED_AT = "2026-01-02T05:00:00Z"
NAME = "20260102T030405Z_model=toy"
ROW_BYTES = STEP_DTYPE.itemsize
SEED = 2048
#: The ``storage`` of blocks in rows with columns.
COLUMNED = "columns"


class Prepared(NamedTuple):
    """One block: its rows' bytes, and its runs with ``first_row`` counted from the block's first row."""

    data: bytes
    runs: NDArray[np.void]
    storage: str = "rows"
    record_action: bool = False

    def __repr__(self) -> str:
        return f"<block of games {self.ids}>"

    @property
    def rows(self) -> int:
        return len(self.data) // self.file.row_bytes

    @property
    def file(self) -> RowsFile:
        return RowsFile.of(self.storage, record_action=self.record_action)

    @property
    def facts(self) -> dict[str, Any]:
        """The facts of a session that takes the block."""
        if self.storage != COLUMNED:
            return {"storage": self.storage}
        return {"config": {"player": "random", "columns": " ".join(COLUMNS)}}

    @property
    def files(self) -> list[tuple[RowsFile, bytes]]:
        """What is written into each file."""
        files = [(self.file, self.data)]
        if self.storage == COLUMNED:  # any numbers: nobody computes them again
            rng = np.random.default_rng(crc32c(self.data))
            columns = map(RowsFile.of_column, COLUMNS.values())
            files += [(file, rng.bytes(self.rows * file.row_bytes)) for file in columns]
        return files

    @property
    def ids(self) -> list[int]:
        return [int(run_id) for run_id in self.runs["run_id"]]

    def written(self, serial: int, first_row: int) -> BlockWritten:
        """What a worker says when the block stands at this row."""
        columns = crc32c(b"".join(data for _, data in self.files[1:])) if self.storage == COLUMNED else None
        return BlockWritten(serial, first_row, self.rows, crc32c(self.data), self.runs.tobytes(), columns)

    def put(self, session: PartialSession, first_row: int, *, size: int | None = None) -> None:
        """Write the block (or its first ``size`` bytes) as a worker does."""
        for file, data in self.files if size is None else self.files[:1]:
            fd = os.open(session.steps_path.with_name(file.name), os.O_WRONLY | os.O_CLOEXEC)
            try:
                os.pwrite(fd, data[:size], file.at(first_row))
            finally:
                os.close(fd)

    def record(self, session: PartialSession) -> int:
        """Reserve, write and confirm; returns the first row."""
        first_row = session.reserve(self.rows)
        self.put(session, first_row)
        session.confirm(self.written(session.serial, first_row))
        return first_row


Blocks = list[Prepared]


def play_blocks(count: int, games_each: int, storage: str = "rows") -> Blocks:
    """Blocks of random games, played by the recorder's own loop."""
    from tape2048_recorder.game.game_loop import GAMES_PLAYED, Buffer, play_into
    from tape2048_recorder.game.rng import game_seeds
    from tape2048_recorder.players.options import make_player

    player = make_player("random", {})
    blocks = []
    for number in range(count):
        ids = np.arange(number * games_each, (number + 1) * games_each, dtype=np.uint64)
        buffer = Buffer(
            rows_max=1000 * games_each, runs_max=games_each, record_action=False, sample_rate=1,
            storage=storage,
        )  # fmt: skip
        buffer.give(ids, game_seeds(SEED, ids))
        assert play_into(buffer, player, steps_max=1 << 30) == GAMES_PLAYED
        blocks.append(Prepared(buffer.rows.tobytes(), buffer.runs.copy(), storage))
    return blocks


def save_blocks(path: Path, blocks: Blocks) -> None:
    np.savez(
        path,
        data=np.frombuffer(b"".join(block.data for block in blocks), dtype=np.uint8),
        rows=np.array([block.rows for block in blocks]),
        runs=np.concatenate([block.runs for block in blocks]),
        counts=np.array([len(block.runs) for block in blocks]),
        storage=np.array(blocks[0].storage),
    )


def load_blocks(path: Path) -> Blocks:
    with np.load(path, allow_pickle=False) as file:
        data, rows, runs, counts = (file[name] for name in ("data", "rows", "runs", "counts"))
        storage = str(file["storage"])
    assert runs.dtype == RUN_DTYPE
    row_bytes = RowsFile.of(storage, record_action=False).row_bytes
    bytes_at = np.concatenate([[0], np.cumsum(rows)]) * row_bytes
    runs_at = np.concatenate([[0], np.cumsum(counts)])
    return [
        Prepared(
            data[bytes_at[i] : bytes_at[i + 1]].tobytes(), runs[runs_at[i] : runs_at[i + 1]].copy(), storage
        )
        for i in range(len(rows))
    ]


def make_facts(**changes: object) -> Facts:
    values: dict[str, object] = {
        "format_version": 1, "engine": "tape2048/test", "player": "random", "player_args": {},
        "player_sha256": "ab" * 32, "seed": SEED, "sample_rate": 1, "record_action": False,
        "model_tag": "toy", "host": "testhost", "instance": "default", "started_at": STARTED_AT,
        "config": {"player": "random"}, "config_sha256": "cd" * 32,
    }  # fmt: skip
    return Facts(**{**values, **changes})  # type: ignore[arg-type]


def leave(root: Path, blocks: Blocks, numbers: Iterable[int], serial: int = 1) -> PartialSession:
    """A session as a killed recorder leaves it, with these blocks confirmed."""
    session = PartialSession(root, make_facts(**blocks[0].facts), serial)
    for number in numbers:
        blocks[number].record(session)
    session.journal.close()
    return session


def publish(root: Path, session: PartialSession, **options: Any) -> publishing.Published:
    """Publish a session without a publisher's thread."""
    options = {"ended_at": ENDED_AT, **options}
    return at_once(publishing.publish_steps(root, session.path, session.facts, session.blocks, **options))
