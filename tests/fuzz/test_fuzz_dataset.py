"""Fuzzing of the data set directory: real directories."""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz import dataset_target, harness
from tests.fuzz.dataset_target import DATASET, SPLIT
from tests.fuzz.set_targets import GAMES

from tape2048.datasets.dataset import Dataset
from tape2048.errors import FormatError

#: Damaged directories; ``make fuzz`` asks for more.
DIRECTORIES = int(os.environ.get("FUZZ_CASES", "100000")) // 500

pytestmark = pytest.mark.slow


def write_directory(directory: Path) -> dict[str, bytes]:
    """The first seed as files; returns their bytes by name."""
    steps, _, manifest = DATASET.seeds[0].split(SPLIT)
    with closing(sqlite3.connect(directory / "metadata.db")) as database:
        database.execute("PRAGMA page_size = 512")
        database.execute(
            "CREATE TABLE runs (id INTEGER PRIMARY KEY, first_step_idx, num_steps, max_score, highest_tile, "
            "engine, start_time, elapsed_s)"
        )
        for *counts, start, elapsed, engine in dataset_target.run_records(GAMES):
            record = (*counts, engine.decode("latin-1") or None, start, elapsed)
            database.execute("INSERT INTO runs VALUES (?, ?, ?, ?, ?, ?, ?, ?)", record)
        database.commit()
    table = (directory / "metadata.db").read_bytes()
    manifest = manifest.replace(b'"bytes": 40', b'"bytes": %d' % len(table))
    return {"steps.npy": steps, "metadata.db": table, "manifest.json": manifest}


def table_of(dataset: Dataset) -> list[tuple[object, ...]]:
    columns = ("id", "first_row", "steps", "max_score", "highest_tile", "start_unix_s", "elapsed_s")
    return sorted(zip(*(dataset.run_table.rows[name].tolist() for name in columns), strict=True))


def table_as_sqlite_has_it(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        found = database.execute(
            "SELECT id, first_step_idx, num_steps, max_score, highest_tile, ifnull(start_time, 0), "
            "ifnull(elapsed_s, 0) FROM runs"
        )
        return sorted((*counts, float(np.float32(elapsed))) for *counts, elapsed in found)


def test_damaged_directories(tmp_path: Path) -> None:
    files = write_directory(tmp_path)
    rng = random.Random(1)
    opened = 0
    whole = Dataset.open
    with harness.capped_memory():
        for _ in range(DIRECTORIES):
            name = rng.choice(list(files))
            part = harness.Target(name, [files[name]], whole, bytes, None, lambda _: [])
            for other, content in files.items():
                damaged = harness.damaged(part, rng, part.seeds) if other == name else content
                (tmp_path / other).write_bytes(damaged)
            try:
                dataset = Dataset.open(tmp_path)
            except FormatError:
                continue
            opened += 1
            steps = (tmp_path / "steps.npy").read_bytes()
            assert steps.endswith(dataset.steps.tobytes())
            assert table_of(dataset) == table_as_sqlite_has_it(tmp_path / "metadata.db")
    assert opened > 20
