"""Fuzzing of the data set directory: real directories with one damaged file."""

import os
import random
import sqlite3
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from tests.fuzz import harness
from tests.fuzz.set_targets import GAMES

from tape2048.errors import FormatError
from tape2048.runs import Dataset

from ..sdk.runs.set_builders import write_dataset

#: Damaged directories; ``make fuzz`` asks for more.
DIRECTORIES = int(os.environ.get("FUZZ_CASES", "100000")) // 500
COLUMNS = ("run_id", "first_row", "steps", "score", "highest_tile", "start_unix_s", "elapsed_s")

pytestmark = pytest.mark.slow


def table_as_sqlite_has_it(path: Path) -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(path)) as database:
        found = database.execute(
            "SELECT id, first_step_idx, num_steps, max_score, highest_tile, ifnull(start_time, 0), "
            "ifnull(elapsed_s, 0) FROM runs"
        )
        return sorted((*counts, float(np.float32(elapsed))) for *counts, elapsed in found)


def test_damaged_directories(tmp_path: Path) -> None:
    steps = sum(len(game.moves) for game in GAMES)
    games = [game.__class__(**{**vars(game), "max_score": min(game.max_score, 2**63 - 1)}) for game in GAMES]
    path = write_dataset(
        tmp_path / "ds", games, manifest={"version": 1, "num_steps": steps, "num_runs": len(games)}
    )
    files = {one.name: one.read_bytes() for one in path.iterdir()}
    rng = random.Random(1)
    opened = 0
    with harness.capped_memory():
        for _ in range(DIRECTORIES):
            name = rng.choice(list(files))
            part = harness.Target(name, [files[name]], Dataset.open, bytes, None, lambda _: [])
            for other, content in files.items():
                damaged = harness.damaged(part, rng, part.seeds) if other == name else content
                (path / other).write_bytes(damaged)
            try:
                dataset = Dataset.open(path)
            except FormatError:
                continue
            opened += 1
            assert (path / "steps.npy").read_bytes().endswith(dataset.steps.tobytes())
            rows = dataset.run_table.rows
            table = sorted(zip(*(rows[column].tolist() for column in COLUMNS), strict=True))
            assert table == table_as_sqlite_has_it(path / "metadata.db")
    assert opened > 20
