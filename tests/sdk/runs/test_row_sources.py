from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.runs import DataPack, Dataset, PackReader, PackWriter, RunRows
from tape2048.runs.a2run import read_run
from tape2048.runs.a2run2 import RunV2
from tape2048.session.session import Session

from ..builders import Spec, rows_of, write_foreign, write_ours
from ..row_source_contract import Sample, boards_of, check_contract
from ..run_builders import a2run2_bytes, a2t1_bytes
from ..tapes import as_rows, games_on_tape, write_tape
from .set_builders import GAMES, packdat_bytes, write_dataset

BOARDS = np.array([board for run in GAMES for board in run.states[:-1]], np.uint64)


def boards(*numbers: int) -> np.ndarray:
    return np.array([board for i in numbers for board in GAMES[i].states[:-1]], np.uint64)


def written(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


def packed(path: Path) -> Path:
    with PackWriter(path / "x.a2pack") as writer:
        for run in GAMES:
            writer.add(a2run2_bytes(run))
    return path / "x.a2pack"


def data_pack(path: Path, load: Any = "ram") -> DataPack:
    return DataPack.load(written(path / "pack.dat", packdat_bytes()), load)


def dataset(path: Path, load: Any = "ram", **how: Any) -> Dataset:
    return Dataset.open(write_dataset(path / "ds", **how), load)


def two_datasets(path: Path, load: Any = "ram", shard_rows: int | None = None) -> Dataset:
    return Dataset.open([write_dataset(path / "a"), write_dataset(path / "b", shard_rows=shard_rows)], load)


TAPE_GAMES = games_on_tape(1, 2)
SOURCES: dict[str, Callable[[Path], Sample]] = {
    "run": lambda path: Sample(RunV2.from_bytes(a2run2_bytes(GAMES[2])), boards(2)),
    "mapped run": lambda path: Sample(read_run(written(path / "r", a2t1_bytes(GAMES[2])), "mmap"), boards(2)),
    "pack": lambda path: Sample(RunRows(PackReader.open(packed(path))), BOARDS),
    "pack.dat": lambda path: Sample(data_pack(path), BOARDS),
    "mapped pack.dat": lambda path: Sample(data_pack(path, "mmap"), BOARDS),
    "view of a pack.dat": lambda path: Sample(
        data_pack(path).filter_by_highest_tile(min_tile=32), boards(0, 2)
    ),
    "data set": lambda path: Sample(dataset(path), BOARDS),
    "mapped data set": lambda path: Sample(dataset(path, "mmap"), BOARDS),
    "mapped shards": lambda path: Sample(dataset(path, "mmap", shard_rows=13), BOARDS),
    "two data sets": lambda path: Sample(two_datasets(path), np.concatenate([BOARDS, BOARDS])),
    "view of data sets": lambda path: Sample(
        two_datasets(path, "mmap", 40).filter_by_engine("other é", None), boards(1, 2, 1, 2)
    ),
    "session": lambda path: Sample(Session.open(write_ours(path / "s")), boards_of(rows_of(Spec()))),
    "session on tape": lambda path: Sample(
        Session.open(write_tape(path / "s", TAPE_GAMES)), TAPE_GAMES.boards, as_rows(TAPE_GAMES)
    ),
    "foreign session": lambda path: Sample(
        Session.open(write_foreign(path / "s", Spec(interleaved=True))),
        boards_of(rows_of(Spec(interleaved=True))),
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_contract(tmp_path: Path, kind: str) -> None:
    check_contract(SOURCES[kind](tmp_path))
