"""pack.dat files and data set directories written here from the formats' description, value by value."""

import json
import sqlite3
import struct
from collections.abc import Callable, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np
from crc32c import crc32c

from ..run_builders import PlainRun, a2run2_bytes, a2t1_bytes, game, ref

ALMOST_ONE = float(np.float32(1 - 2**-23))

#: Three short games, one without branch values, and names and starts that filters tell apart. Their scores
#: are 164, 56 and 280, their highest tiles 32, 16 and 32.
GAMES = (
    game(1, steps_max=30, engine="toy", start_unix_s=1000),
    game(2, steps_max=12, engine=None, start_unix_s=0, with_branches=False),
    game(3, steps_max=45, engine="other é", start_unix_s=3000),
)

#: Other games with as many steps and the same engines, and further ones.
MORE, STILL_MORE = (
    tuple(
        game(seed + at, steps_max=steps, engine=engine, start_unix_s=1000 * at, with_branches=at != 1)
        for at, (steps, engine) in enumerate(((30, "toy"), (12, None), (45, "other é")))
    )
    for seed in (4, 7)
)

SEED_SCHEMA = """
CREATE TABLE IF NOT EXISTS runs (
    id INTEGER PRIMARY KEY, first_step_idx INTEGER NOT NULL, num_steps INTEGER NOT NULL,
    max_score INTEGER NOT NULL, highest_tile INTEGER NOT NULL, engine TEXT, start_time INTEGER, elapsed_s REAL
);
CREATE INDEX IF NOT EXISTS idx_score ON runs(max_score);
CREATE INDEX IF NOT EXISTS idx_steps ON runs(num_steps);
"""

ROW = np.dtype(
    [("board", "<u8"), ("move", "u1"), ("ev_legal", "u1"), ("ev_values", "<f4", (4,)), ("run_id", "<u4"),
     ("step_index", "<u2")]
)  # fmt: skip


def legal_bits(board: int) -> int:
    return sum(1 << move for move in ref.legal_moves(ref.unpack(board)))


def normalised(values: Sequence[float | None], legal: int) -> list[float]:
    """One step's values as section 3 of the description has it; 0 for moves without one."""
    f32 = np.float32
    have = {m: f32(v) for m, v in enumerate(values) if v is not None and legal >> m & 1}
    low, high = (min(have.values()), max(have.values())) if have else (f32(0), f32(0))
    out = [0.0] * 4
    for m, value in have.items():
        if len(have) == 1:
            out[m] = ALMOST_ONE
        elif low == high:
            out[m] = 0.5
        else:
            out[m] = min(float((value - low) / (high - low)), ALMOST_ONE)
    return out


def within_one(values: Sequence[float | None], legal: int) -> list[float]:
    """One step's values as section 6 of the description has it: kept, or normalised where one is outside."""
    have = {m: float(np.float32(v)) for m, v in enumerate(values) if v is not None and legal >> m & 1}
    if all(0 <= value <= 1 for value in have.values()):
        return [have.get(m, 0.0) for m in range(4)]
    return normalised(values, legal)


def level(value: float) -> int:
    """``(v * 65535.0 + 0.5) as u16`` of the format's first writer, in float32."""
    return int(np.float32(np.float32(value) * np.float32(65535)) + np.float32(0.5))


def packdat_step(run: PlainRun, run_id: int, i: int) -> bytes:
    board, move, branches = run.states[i], run.moves[i], run.branches[i]
    legal = legal_bits(board)
    mask, levels = 0, [0] * 4
    if branches is not None:
        mask = sum(1 << m for m in range(4) if branches[m] is not None and legal >> m & 1)
        levels = [level(value) for value in within_one(branches, mask)]
        levels[move] = 65535
    return struct.pack("<QIIBB4H6x", board, run_id, i, move, mask, *levels)


def packdat_run(run: PlainRun, run_id: int, first_step: int, changes: dict[str, Any]) -> bytes:
    engine = (run.engine or "").encode()
    fields = {"id": run_id, "first": first_step, "steps": len(run.moves), "score": run.max_score}
    fields |= {"tile": run.highest_tile, "engine_len": len(engine)} | changes
    tail = struct.pack("<Qf", run.start_unix_s, run.elapsed_s)
    return struct.pack("<IIIQIH", *fields.values()) + engine + tail


def packdat_bytes(
    games: Sequence[PlainRun] = GAMES,
    *,
    change: Callable[[bytearray], object] | None = None,
    run_changes: dict[str, Any] | None = None,
    extra: bytes = b"",
    **header: int,
) -> bytes:
    """A pack.dat; whatever is changed, the checksum fits what is there."""
    steps = b"".join(
        packdat_step(run, run_id, i) for run_id, run in enumerate(games) for i in range(len(run.moves))
    )
    count = len(steps) // 32
    fields = {"version": 1, "runs": len(games), "steps": count, "offset": 28 + 32 * count} | header
    body = bytearray(b"2048" + struct.pack("<IIQQ", *fields.values()) + steps)
    first = 0
    for run_id, run in enumerate(games):
        body += packdat_run(run, run_id, first, run_changes or {})
        first += len(run.moves)
    body += extra
    if change is not None:
        change(body)
    return seal(bytes(body))


def seal(body: bytes) -> bytes:
    return body + crc32c(body).to_bytes(4, "little")


def dataset_rows(runs: Sequence[PlainRun] = GAMES, first_id: int = 0) -> np.ndarray:
    rows = []
    for run_id, run in enumerate(runs, start=first_id):
        for i, (board, move, branches) in enumerate(zip(run.states, run.moves, run.branches, strict=False)):
            legal = legal_bits(board)
            values = [0.0] * 4
            if branches is not None:
                values = within_one(branches, legal)
                values[move] = 1.0
            rows.append((board, move, legal, values, run_id, i))
    return np.array(rows, ROW)


def write_npy(path: Path, rows: np.ndarray) -> None:
    np.save(path, rows, allow_pickle=False)


def write_dataset(
    directory: Path,
    runs: Sequence[PlainRun] = GAMES,
    *,
    shard_rows: int | None = None,
    manifest: dict[str, Any] | None = None,
    sql: str = "",
    rows: np.ndarray | None = None,
) -> Path:
    """A data set as the original design has it: the seed's columns, and no manifest unless one is given."""
    directory.mkdir(parents=True)
    rows = dataset_rows(runs) if rows is None else rows
    if shard_rows is None:
        write_npy(directory / "steps.npy", rows)
    else:
        (directory / "shards").mkdir()
        for number, first in enumerate(range(0, len(rows), shard_rows)):
            write_npy(directory / f"shards/steps_{number:05d}.npy", rows[first : first + shard_rows])
    with closing(sqlite3.connect(directory / "metadata.db")) as database:
        database.executescript(SEED_SCHEMA)
        first = 0
        for run_id, run in enumerate(runs):
            record = (
                run_id, first, len(run.moves), run.max_score, run.highest_tile, run.engine,
                run.start_unix_s or None, run.elapsed_s,
            )  # fmt: skip
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record)
            first += len(run.moves)
        database.executescript(sql)
        database.commit()
    if manifest is not None:
        (directory / "manifest.json").write_text(json.dumps(manifest))
    return directory


def write_runs(directory: Path, runs: Sequence[PlainRun] = GAMES) -> Path:
    """Run files, A2T1 where a game has no branch values."""
    directory.mkdir(parents=True)
    for number, run in enumerate(runs):
        plain = not any(run.branches)
        data = a2t1_bytes(run) if plain else a2run2_bytes(run)
        (directory / f"{number:03d}.{'a2run' if plain else 'a2run2'}").write_bytes(data)
    return directory


def tree(directory: Path) -> dict[str, bytes]:
    """Every file below a directory, by its path there."""
    files = [path for path in sorted(directory.rglob("*")) if path.is_file()]
    return {path.relative_to(directory).as_posix(): path.read_bytes() for path in files}
