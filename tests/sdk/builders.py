"""Session directories written here from the format's description, not by the code under test."""

import dataclasses
import gc
import json
import os
import sqlite3
import tracemalloc
from collections.abc import Callable, Iterator, Sequence
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from numpy.typing import NDArray
from tests import reference as ref

NAME = "20250102T030405Z_model=toy"

OUR_SCHEMA = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT, highest_tile INT,
                  first_row INT, rows INT);
CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT);
CREATE TABLE blocks(first_row INTEGER PRIMARY KEY, rows INT, crc32c INT);
"""
SEED_SCHEMA = """
CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT, highest_tile INT);
CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT);
"""


@dataclasses.dataclass(frozen=True)
class Game:
    """One game; its rows obey the rules up to step 159, and show its highest tile in cell 0."""

    id: int
    steps: int
    highest_tile: int = 2048
    seed: int = 7
    max_score: int = 100


GAMES = (
    Game(11, 5, 8192, seed=2**64 - 1), Game(12, 1, 2, seed=2**63), Game(13, 7, 32768), Game(15, 3, 16384),
    Game(14, 4, 4096),
)  # fmt: skip


@dataclasses.dataclass
class Spec:
    """How a directory differs from one that the recorder writes; every field may be replaced."""

    games: Sequence[Game] = GAMES
    action: bool = False
    sample_rate: int = 1
    interleaved: bool = False
    signed_ids: bool = False
    block_rows: int = 6
    facts: dict[str, Any] | None = None
    manifest: bool = True
    change_rows: Callable[[NDArray[np.void]], object] | None = None
    sql: str = ""


def step_dtype(*, action: bool = False, signed: bool = False) -> np.dtype[Any]:
    fields: list[Any] = [("run_id", "<i8" if signed else "<u8"), ("step_idx", "<u4"), ("exps", "u1", (16,))]
    return np.dtype([*fields, ("action", "u1")] if action else fields)


_BOARDS, _MOVES = (np.array(each, np.uint8) for each in ref.cornered())


def rows_of(spec: Spec) -> NDArray[np.void]:
    """The rows of all games, one game after the other, or taking turns."""
    dtype = step_dtype(action=spec.action, signed=spec.signed_ids)
    games = []
    for game in spec.games:
        rows = np.zeros(-(-game.steps // spec.sample_rate), dtype)
        rows["run_id"] = game.id
        rows["step_idx"] = np.arange(len(rows)) * spec.sample_rate
        at = rows["step_idx"] % len(_BOARDS)
        rows["exps"] = _BOARDS[at]
        rows["exps"][:, 0] = game.highest_tile.bit_length() - 1
        if spec.action:
            rows["action"] = _MOVES[at]
        games.append(rows)
    all_rows = np.concatenate(games) if games else np.zeros(0, dtype)
    if spec.interleaved:
        all_rows = all_rows[np.argsort(all_rows["step_idx"], kind="stable")]
    return all_rows


def npy_bytes(rows: NDArray[np.void]) -> bytes:
    """A ``.npy`` file as NumPy writes it, its header as long as NumPy makes it."""
    text = f"{{'descr': {rows.dtype.descr!r}, 'fortran_order': False, 'shape': {rows.shape!r}, }}"
    return header_bytes(text.encode(), pad=True) + rows.tobytes()


def header_bytes(text: bytes, *, version: tuple[int, int] = (1, 0), pad: bool = False) -> bytes:
    """Magic, version, length and text; ``pad`` makes the total a multiple of 64."""
    width = 2 if version == (1, 0) else 4
    if pad:
        text += b" " * (-(9 + width + len(text)) % 64) + b"\n"
    return b"\x93NUMPY" + bytes(version) + len(text).to_bytes(width, "little") + text


def signed(value: int) -> int:
    return value - 2**64 if value >= 2**63 else value


def crc_blocks(rows: NDArray[Any], block_rows: int) -> list[tuple[int, int, int]]:
    """The table ``blocks``: first row, rows and checksum of each so many rows."""
    parts = [(first, rows[first : first + block_rows]) for first in range(0, len(rows), block_rows)]
    return [(first, len(part), crc32c(part.tobytes())) for first, part in parts]


def write_database(
    path: Path, schema: str, runs: Sequence[Sequence[object]], *, blocks: Sequence[Sequence[object]] = (),
    facts: dict[str, Any] | None = None, sql: str = "",
) -> None:  # fmt: skip
    """``metadata.db`` with these records, and the statements in ``sql`` executed on it."""
    with closing(sqlite3.connect(path)) as database:
        database.executescript(schema)
        if runs:
            database.executemany(f"INSERT INTO runs VALUES ({', '.join('?' * len(runs[0]))})", runs)
        if blocks:
            database.executemany("INSERT INTO blocks VALUES (?, ?, ?)", blocks)
        pairs = [(key, json.dumps(value)) for key, value in (facts or {}).items()]
        database.executemany("INSERT INTO session VALUES (?, ?)", pairs)
        database.executescript(sql)
        database.commit()


def write_ours(directory: Path, spec: Spec | None = None) -> Path:
    """A session as the recorder publishes it."""
    spec = spec or Spec()
    directory.mkdir(parents=True)
    rows = rows_of(spec)
    if spec.change_rows:
        spec.change_rows(rows)
    (directory / "steps.npy").write_bytes(npy_bytes(rows))
    counts = [-(-game.steps // spec.sample_rate) for game in spec.games]
    firsts = np.cumsum([0, *counts]).tolist()
    runs = [
        (game.id, signed(game.seed), game.steps, game.max_score, game.highest_tile, first, count)
        for game, first, count in zip(spec.games, firsts, counts, strict=False)
    ]
    facts = {"rows": len(rows), "runs": len(spec.games), "sample_rate": spec.sample_rate, "engine": "toy"}
    facts = facts if spec.facts is None else spec.facts
    blocks = crc_blocks(rows, spec.block_rows)
    write_database(directory / "metadata.db", OUR_SCHEMA, runs, blocks=blocks, facts=facts, sql=spec.sql)
    if spec.manifest:
        write_manifest(directory, rows=len(rows), runs=len(spec.games))
    return directory


def write_manifest(directory: Path, *, rows: int, runs: int, **changes: object) -> None:
    """A manifest that fits the files as they are now, on tape or rows, then ``changes``."""
    on_tape = (directory / "tape.npy").exists()
    contents = {
        name: (directory / name).read_bytes()
        for name in (*(("tape.npy", "anchors.npy") if on_tape else ("steps.npy",)), "metadata.db")
    }
    content = {
        "version": 1,
        "rows": rows,
        "runs": runs,
        "files": {name: {"bytes": len(data), "crc32c": crc32c(data)} for name, data in contents.items()},
        **({"anchor_rows": 16} if on_tape else {}),
    }
    (directory / "manifest.json").write_text(json.dumps(content | changes))


def write_foreign(directory: Path, spec: Spec | None = None, *, shard_rows: int | None = None) -> Path:
    """A directory with the seed's columns alone, and the rows in one file or in shards."""
    spec = spec or Spec()
    directory.mkdir(parents=True)
    rows = rows_of(spec)
    if spec.change_rows:
        spec.change_rows(rows)
    if shard_rows is None:
        (directory / "steps.npy").write_bytes(npy_bytes(rows))
    else:
        for number, first in enumerate(range(0, len(rows), shard_rows), start=1):
            part = rows[first : first + shard_rows]
            (directory / f"steps-{number:06d}.npy").write_bytes(npy_bytes(part))
    runs = [
        (signed(game.id), signed(game.seed), game.steps, game.max_score, game.highest_tile)
        for game in spec.games
    ]
    write_database(directory / "metadata.db", SEED_SCHEMA, runs, sql=spec.sql)
    return directory


def change_database(path: Path, sql: str) -> None:
    with closing(sqlite3.connect(path)) as database:
        database.executescript(sql)
        database.commit()


def names(directory: Path) -> list[str]:
    return sorted(entry.name for entry in directory.iterdir())


def open_files() -> list[str]:
    """Numbers of this process's open file descriptors, once what nobody holds any more is collected.

    Not of TCP connections: clients of stores close idle ones at any time.
    """
    gc.collect()
    tcp = {f"socket:[{line.split()[9]}]" for line in Path("/proc/self/net/tcp").read_text().splitlines()[1:]}
    links = [path for path in Path("/proc/self/fd").iterdir() if path.is_symlink()]
    return sorted(path.name for path in links if str(path.readlink()) not in tcp)


def note_flushes(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Path, int]]:
    """What is flushed from now on: each path, and its size at that moment."""
    flushed: list[tuple[Path, int]] = []
    real = os.fsync

    def note(fd: int) -> None:
        real(fd)
        flushed.append((Path(f"/proc/self/fd/{fd}").readlink(), os.fstat(fd).st_size))

    monkeypatch.setattr(os, "fsync", note)
    return flushed


def raising(error: BaseException) -> Callable[..., Any]:
    """A function that raises this, whatever it is called with."""

    def refuse(*_: object, **__: object) -> Any:
        raise error

    return refuse


@contextmanager
def memory_below(count: int) -> Iterator[None]:
    """What is allocated in the block stays below so many bytes."""
    tracemalloc.start()
    try:
        yield
        assert tracemalloc.get_traced_memory()[1] < count
    finally:
        tracemalloc.stop()


def embed(session: Path, values: NDArray[Any], **changes: object) -> None:
    """Embeddings of a session, and facts that fit them, then ``changes``."""
    np.save(session / "embeddings.bf16.npy", values.astype("<u2"))
    manifest = session / "manifest.json"
    files = json.loads(manifest.read_text())["files"] if manifest.exists() else {}
    rows = files.get("steps.npy") or files.get("tape.npy") or {}
    facts = {
        "model_sha": "f" * 64, "pooling": "mean", "D": values.shape[1], "dtype": "bf16", "dtype_bits": "bf16",
        "rows": len(values), "steps_crc32c": rows.get("crc32c"),
    }  # fmt: skip
    (session / "embeddings.json").write_text(json.dumps(facts | changes))
