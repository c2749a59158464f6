"""SIGKILL, a full disk and a broken one at each call of an append and of a build that changes a file.

Whatever happened, a data set is the old one or the new one, whole, and the next append goes through and
leaves nothing behind.
"""

import errno
import os
import shutil
import tempfile
from collections import Counter
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from tests.crashes import CHANGING, FILLING, crashes

from tape2048 import errors
from tape2048.errors import StorageError
from tape2048.files import durable
from tape2048.runs.dataset import Dataset, append_dataset, build_dataset
from tape2048.runs.verify import verify_dataset

from ..builders import note_flushes
from .set_builders import GAMES, MORE, STILL_MORE, dataset_rows, write_runs

OLD = dataset_rows()
NEW = np.concatenate([dataset_rows(), dataset_rows(MORE, len(GAMES))])


@pytest.fixture(scope="module")
def scratch() -> Iterator[Path]:
    # In memory: hundreds of appends flush hundreds of files each.
    where = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=where, prefix="tape2048-test-") as path:
        yield Path(path)


@pytest.fixture(scope="module")
def runs(scratch: Path) -> Path:
    write_runs(scratch / "more", MORE)
    write_runs(scratch / "still-more", STILL_MORE)
    return write_runs(scratch / "runs")


@pytest.fixture
def target(scratch: Path) -> Iterator[Path]:
    (scratch / "stage").mkdir()
    yield scratch / "stage/ds"
    shutil.rmtree(scratch / "stage")


def state_of(target: Path) -> str:
    if not target.exists():
        return "none"
    report = verify_dataset(target)
    assert report.ok, report.findings
    rows = Dataset(target).get_batch(np.arange(report.rows))
    state = "old" if len(rows) == len(OLD) else "new"
    np.testing.assert_array_equal(rows, OLD if state == "old" else NEW)
    return state


def the_next_goes_through(target: Path, runs: Path) -> None:
    if target.exists():
        before = len(Dataset(target).runs)
        append_dataset(target, [runs.with_name("still-more")], workers=1)
        assert len(Dataset(target).runs) == before + len(GAMES)
        assert verify_dataset(target).ok
        assert [path for path in target.parent.iterdir() if path != target] == [], "the remains go"


@pytest.mark.parametrize("shard_rows", [None, 20])
@pytest.mark.parametrize("code", [None, errno.ENOSPC, errno.EIO])
def test_an_append_that_is_interrupted(
    target: Path, runs: Path, shard_rows: int | None, code: int | None
) -> None:
    template = target.with_name("template")
    build_dataset(template, [runs], shard_rows=shard_rows)
    template = template.rename(target.parent.with_name(f"template-{shard_rows}-{code}"))
    calls = FILLING if code == errno.ENOSPC else CHANGING

    def before() -> None:
        shutil.rmtree(target.parent)
        target.parent.mkdir()
        shutil.copytree(template, target)

    def work() -> None:
        if append_dataset(target, [runs.with_name("more")], workers=1).skipped:
            raise LookupError  # a run that could not be read, which it said

    found: Counter[str] = Counter()
    for crash in crashes(work, before=before, error=code, calls=calls):
        assert crash.error in {"", "LookupError", "SchemaError"} or issubclass(
            getattr(errors, crash.error), StorageError
        ), crash
        if crash.error != "LookupError":
            found[state_of(target)] += 1
            the_next_goes_through(target, runs)
    assert found.total() > 10
    assert set(found) == {"old", "new"}, "interrupted before the exchange, and after it"


def test_a_build_that_is_killed(target: Path, runs: Path) -> None:
    found: Counter[str] = Counter()
    for _ in crashes(
        lambda: build_dataset(target, [runs], workers=1),
        before=lambda: shutil.rmtree(target, ignore_errors=True),
    ):
        found[state_of(target)] += 1
        the_next_goes_through(target, runs)
    assert set(found) == {"none", "old"}


def test_the_old_data_set_is_removed_last(target: Path, runs: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The exchange of the names is flushed before the old directory is removed."""
    build_dataset(target, [runs], shard_rows=20)
    flushed = note_flushes(monkeypatch)
    exchanges, real, rmtree = [], durable.rename_exchange, shutil.rmtree

    def exchange(draft: Path, other: Path) -> None:
        exchanges.append(len(flushed))
        real(draft, other)

    def remove(path: Path, **how: bool) -> None:
        assert not exchanges or target.parent in dict(flushed[exchanges[0] :])
        rmtree(path, **how)

    monkeypatch.setattr(durable, "rename_exchange", exchange)
    monkeypatch.setattr(durable.shutil, "rmtree", remove)
    append_dataset(target, [runs], workers=1)
    assert len(exchanges) == 1
