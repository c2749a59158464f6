"""Fuzzing of the data set directory: real directories, planted defects."""

import os
import random
import sqlite3
import sys
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest

sys.path.insert(0, str(Path(__file__).parent))

import dataset_target
import harness
from dataset_target import DATASET, SPLIT
from set_targets import GAMES
from tests.mutants import Mutant, planted

from tape2048.datasets.dataset import Dataset
from tape2048.errors import FormatError

#: Damaged directories; ``make fuzz`` asks for more.
DIRECTORIES = int(os.environ.get("FUZZ_CASES", "100000")) // 500

pytestmark = pytest.mark.slow

FILES = "tape2048.session.dataset"
ROWS = "tape2048.session.foreign"
LISTED = "tape2048.formats.session:file_defects"
TABLE = "tape2048.session.dataset_runs"
NPY = "tape2048.formats.npy"


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


PLANTED = {
    "overlap": (f"{TABLE}:RunTable.check_tiles", "if wrong.size:", "if False:"),
    "runs that end early": (f"{TABLE}:RunTable.check_tiles", "if int(expected[-1]) != rows:", "if False:"),
    "an id that stands twice": (f"{TABLE}:RunTable.check_ids", "if twice.size:", "if False:"),
    "path": (LISTED, "if not is_name(name):", "if False:"),
    "a file that is longer": (LISTED, "if found > entry.bytes:", "if False:"),
    "a file that is shorter": (LISTED, "if found < entry.bytes:", "if False:"),
    "count": (f"{FILES}:check_whole", "if claimed != found:", "if claimed < found:"),
    "length": (f"{NPY}:check_header", "if bytes_found < header.end_offset:", "if False:"),
    "trailing bytes": (f"{NPY}:check_header", "if bytes_found > header.end_offset:", "if False:"),
    "row type": (f"{NPY}:check_header", "if known is None:", "if known == 0:"),
    "column order": (f"{NPY}:parse_header", "if fortran_order or ", "if "),
    "dimensions": (f"{NPY}:parse_header", "np.dtype((dtype, shape[1:]))", "dtype"),
    "count out of range": (f"{TABLE}:table_of_columns", "column and not 0 <= min", "column and not min"),
    "another run's rows": (f"{ROWS}:check_ends", '(ids != runs["id"])', "(ids > 99)"),
    "steps out of order": (f"{ROWS}:check_ends", "(found != steps)", "(found > 99)"),
    "manifest's version": (
        "tape2048.formats.session:parse_manifest", "manifest.version != version", "manifest.version < 0"
    ),
}  # fmt: skip


def fuzz() -> None:
    """As much as the suite does."""
    harness.structured(DATASET, 20_000, seed=1)
    harness.exhaustive(DATASET._replace(seeds=DATASET.seeds[2:3]))


@pytest.mark.parametrize("name", PLANTED)
def test_a_check_that_is_taken_out_is_missed(name: str) -> None:
    try:
        with planted(Mutant(*PLANTED[name])), pytest.raises(harness.FindingError):
            fuzz()
    finally:
        for remembered in (dataset_target._header, dataset_target._table):
            remembered.cache_clear()  # of what the defect let through
