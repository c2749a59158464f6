from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np
import pytest

from tape2048.datasets.dataset import Dataset
from tape2048.datasets.packdat import DataPack
from tape2048.packs import PackReader, PackWriter
from tape2048.runs.a2run import read_run
from tape2048.runs.a2run2 import RunV2
from tape2048.session.session import Session

from ..builders import Spec, rows_of, write_foreign, write_ours
from ..row_source_contract import RowSourceContract, Sample, boards_of
from ..run_builders import a2run2_bytes, a2t1_bytes
from ..tapes import as_rows, games_on_tape, write_tape
from .set_builders import GAMES, packdat_bytes, write_dataset

if TYPE_CHECKING:
    from pathlib import Path

BOARDS = np.array([board for run in GAMES for board in run.states[:-1]], np.uint64)


def boards(*numbers: int) -> np.ndarray:
    return np.array([board for i in numbers for board in GAMES[i].states[:-1]], np.uint64)


def a_run(path: Path) -> Sample:
    return Sample(RunV2.from_bytes(a2run2_bytes(GAMES[2])), boards(2))


def a_mapped_run(path: Path) -> Sample:
    (path / "r.a2run").write_bytes(a2t1_bytes(GAMES[2]))
    return Sample(read_run(path / "r.a2run"), boards(2))


def a_pack(path: Path) -> Sample:
    with PackWriter(path / "x.a2pack") as writer:
        for run in GAMES:
            writer.add(a2run2_bytes(run))
    return Sample(PackReader.open(path / "x.a2pack").rows(), BOARDS)


def a_data_pack(path: Path) -> Sample:
    (path / "pack.dat").write_bytes(packdat_bytes())
    return Sample(DataPack.load(path / "pack.dat"), BOARDS)


def a_mapped_data_pack(path: Path) -> Sample:
    (path / "pack.dat").write_bytes(packdat_bytes())
    return Sample(DataPack.load(path / "pack.dat", load="mmap"), BOARDS)


def a_view_of_a_data_pack(path: Path) -> Sample:
    (path / "pack.dat").write_bytes(packdat_bytes())
    return Sample(DataPack.load(path / "pack.dat").filter_by_highest_tile(max_tile=64), boards(0, 1))


def a_dataset(path: Path) -> Sample:
    return Sample(Dataset.open(write_dataset(path / "ds")), BOARDS)


def a_mapped_dataset(path: Path) -> Sample:
    return Sample(Dataset.open(write_dataset(path / "ds"), load="mmap"), BOARDS)


def a_mapped_dataset_in_shards(path: Path) -> Sample:
    return Sample(Dataset.open(write_dataset(path / "ds", shard_rows=13), load="mmap"), BOARDS)


def several_datasets(path: Path) -> Sample:
    sets = [write_dataset(path / name) for name in ("a", "b")]
    return Sample(Dataset.open(sets), np.concatenate([BOARDS, BOARDS]))


def a_view_of_a_dataset(path: Path) -> Sample:
    whole = Dataset.open([write_dataset(path / "a"), write_dataset(path / "b", shard_rows=40)], load="mmap")
    return Sample(whole.filter_by_engine("other é", None), np.concatenate([boards(1, 2), boards(1, 2)]))


def a_session(path: Path) -> Sample:
    return Sample(Session.open(write_ours(path / "s")), boards_of(rows_of(Spec())))


def a_session_on_tape(path: Path) -> Sample:
    games = games_on_tape(1, 2)
    return Sample(Session.open(write_tape(path / "s", games)), games.boards, as_rows(games))


def a_foreign_session(path: Path) -> Sample:
    spec = Spec(interleaved=True)
    return Sample(Session.open(write_foreign(path / "s", spec)), boards_of(rows_of(spec)))


SOURCES = (
    a_run, a_mapped_run, a_pack, a_data_pack, a_mapped_data_pack, a_view_of_a_data_pack, a_dataset,
    a_mapped_dataset, a_mapped_dataset_in_shards, several_datasets, a_view_of_a_dataset, a_session,
    a_session_on_tape, a_foreign_session,
)  # fmt: skip


@pytest.fixture(params=SOURCES, ids=[make.__name__ for make in SOURCES])
def sample(request: pytest.FixtureRequest, tmp_path: Path) -> Sample:
    made: Sample = request.param(tmp_path)
    return made


class TestContract(RowSourceContract):
    def test_masks(self, sample: Sample) -> None:
        mask = np.arange(len(sample.boards)) % 3 == 1
        sample.check(sample.source[mask], mask)
        with pytest.raises(IndexError):
            sample.source.get_batch(np.ones(len(sample.boards) + 1, np.bool_))
