"""Corpora of any size, made up in seconds: as the recorder leaves them, with noise for boards."""

from pathlib import Path

import msgspec
import numpy as np
from crc32c import crc32c
from numpy.typing import NDArray

from tape2048.files.npy import rows_header
from tape2048.session.layout import (
    BLOCK_DTYPE,
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    RUN_DTYPE,
    STEP_DTYPE,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    FileEntry,
    Manifest,
)  # fmt: skip
from tape2048.session.metadata_writer import write_metadata

#: Rows of a session and of a game, about as long as the default recorder and a strong player make them.
SESSION_ROWS = 10_000_000
GAME_ROWS = 12_500


def make_corpus(root: Path, rows: int, game_rows: int = GAME_ROWS) -> Path:
    """Write sessions of so many rows together; every game but the last has ``game_rows``."""
    for number, first in enumerate(range(0, rows, SESSION_ROWS)):
        name = f"20260101T{number // 3600:02}{number // 60 % 60:02}{number % 60:02}Z_model=noise"
        _make_session(root / name, number, min(SESSION_ROWS, rows - first), game_rows)
    return root


def _make_session(directory: Path, number: int, rows: int, game_rows: int) -> None:
    directory.mkdir(parents=True)
    rng = np.random.default_rng(number)
    counts = np.full(-(-rows // game_rows), game_rows)
    counts[-1] = rows - game_rows * (len(counts) - 1)
    ids = np.arange(len(counts)) + number * 1_000_000
    steps = np.empty(rows, STEP_DTYPE)
    steps["run_id"] = np.repeat(ids, counts)
    steps["step_idx"] = np.arange(rows) - np.repeat(np.cumsum(counts) - counts, counts)
    steps["exps"] = _boards(rng, rows)
    files = {STEPS_NPY: rows_header(STEP_DTYPE, rows, STEPS_HEADER_BYTES) + steps.tobytes()}
    tiles = 1 << rng.integers(11, 16, len(counts))
    runs = np.zeros(len(counts), RUN_DTYPE)
    runs["run_id"], runs["seed"] = ids, rng.integers(0, 2**63, len(counts))
    runs["first_row"], runs["rows"], runs["steps"] = np.cumsum(counts) - counts, counts, counts
    runs["score"], runs["highest_tile"] = tiles * 20, tiles
    block = np.array([(0, rows, crc32c(memoryview(steps).cast("B")))], BLOCK_DTYPE)
    facts = {"rows": rows, "runs": len(counts), "player_sha256": "ab" * 32, "model_tag": "noise"}
    write_metadata(directory / METADATA_DB, runs=runs, blocks=block, session=facts)
    (directory / STEPS_NPY).write_bytes(files[STEPS_NPY])
    files[METADATA_DB] = (directory / METADATA_DB).read_bytes()
    entries = {name: FileEntry(len(data), crc32c(data)) for name, data in files.items()}
    manifest = Manifest(FORMAT_VERSION, rows, len(counts), entries)
    (directory / MANIFEST).write_bytes(msgspec.json.encode(manifest))


def _boards(rng: np.random.Generator, rows: int) -> NDArray[np.uint8]:
    # A few thousand random boards again and again: what a row holds does not change what reading it costs.
    boards = rng.integers(0, 12, (4096, 16), dtype=np.uint8)
    return boards[rng.integers(0, 4096, rows, dtype=np.uint16)]
