"""Damage in files of a session, a data set or a column: nothing is served from it."""

import os
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, Session, errors, validate_session, write_column
from tape2048.files import reading
from tape2048.runs import Dataset, build_dataset

from .builders import NAME, Game, Spec, change_database, write_ours
from .tapes import games_on_tape, write_rows, write_tape

LOADS = ["mmap", "packed", "ram"]
GAMES = games_on_tape(*range(12))


def damage(path: Path, at: int, content: bytes) -> None:
    with path.open("rb+") as file:
        file.seek(at)
        file.write(content)


@pytest.mark.parametrize("load", LOADS)
@pytest.mark.parametrize("condition", [None, "run_id < 15"])
def test_zeros_in_a_run(tmp_path: Path, load: Any, condition: Any) -> None:
    """The 512 bytes of a sector; also where a condition leaves a part of a block to read."""
    session = write_rows(tmp_path / NAME, GAMES)
    damage(session / "steps.npy", 8192, bytes(512))
    with pytest.raises((errors.ChecksumError, errors.FieldError)) as caught:
        list(Corpus.open(tmp_path, condition, load=load).batches(64, shuffle=False))
    assert caught.value.path == str(session / "steps.npy")
    assert caught.value.offset is not None
    write_rows(tmp_path / "20250102T030406Z_model=toy", games_on_tape(50, 51))
    (skipped,) = Corpus.open(tmp_path, "run_id < 15", load="packed", damaged="skip").skipped
    assert skipped.path == session


def test_a_changed_cell(tmp_path: Path) -> None:
    """A board that a game may have, with another checksum; the file is read by several threads."""
    session = write_ours(
        tmp_path / NAME, Spec(games=[Game(1, 500_000), Game(2, 500_000)], block_rows=300_000)
    )
    sound = Corpus.open(tmp_path, load="ram").tokens(slice(None))
    np.testing.assert_array_equal(sound, Session.open(session).tokens(slice(None)))
    row = 700_000
    damage(session / "steps.npy", 192 + 28 * row + 12, bytes([sound[row, 0] ^ 1]))
    ways: list[Callable[[], object]] = [
        lambda: Corpus.open(tmp_path, load="ram"),
        lambda: Corpus.open(tmp_path, load="packed"),
        lambda: Session.open(session, "ram"),
    ]
    for way in ways:
        with pytest.raises(errors.ChecksumError, match=r"block 2 \(rows 600000 to 899999\)") as caught:
            way()
        assert (caught.value.path, caught.value.offset) == (str(session / "steps.npy"), 192 + 28 * 600_000)


@pytest.mark.parametrize("file", ["tape.npy", "anchors.npy"])
def test_a_changed_byte_of_a_tape(tmp_path: Path, file: str) -> None:
    session = write_tape(tmp_path / NAME, GAMES)
    data = (session / file).read_bytes()
    damage(session / file, len(data) - 1, bytes([data[-1] ^ 64]))
    with pytest.raises(errors.ChecksumError, match="block"):
        Corpus.open(tmp_path, load="ram")
    with pytest.raises(errors.ChecksumError, match="block"):
        Session.open(session, "ram")


def test_an_empty_anchor(tmp_path: Path) -> None:
    session = write_tape(tmp_path / NAME, GAMES)
    damage(session / "anchors.npy", 128 + 8 * 5, bytes(8))
    corpus = Corpus.open(tmp_path, load="mmap")
    for way in (corpus.tokens, corpus.get_batch, Session.open(session).tokens):
        with pytest.raises(errors.BookkeepingError, match=r"the anchor of row 80 is 0x0000000000000000"):
            way([80])


def test_a_changed_byte_of_a_data_set(tmp_path: Path) -> None:
    build_dataset(tmp_path / "set", write_rows(tmp_path / NAME, GAMES))
    file = tmp_path / "set/steps.npy"
    damage(file, file.stat().st_size - 32, b"\x01")  # the board of the last row
    for open_set in (Corpus.open, Dataset):
        with pytest.raises(errors.ChecksumError, match="block 0"):
            open_set(tmp_path / "set", load="ram")


@pytest.mark.parametrize("load", LOADS)
def test_a_changed_column(tmp_path: Path, load: Any) -> None:
    session = write_rows(tmp_path / NAME, GAMES)
    path = write_column(Session.open(session), "luck", np.zeros(len(GAMES.tape), np.float32)).path
    assert Corpus.open(tmp_path, load=load).fetch([3], ["luck"])["luck"] == 0
    assert validate_session(session).ok
    damage(path, 128 + 4 * 100, b"\xff" * 64)
    corpus = Corpus.open(tmp_path, load=load)
    ways: list[Callable[[], object]] = [
        lambda: corpus.fetch([3], ["luck"]),
        lambda: next(iter(corpus.batches(16, fields=("tokens", "luck")))),
        lambda: Session.open(session).column("luck"),
    ]
    for way in ways:
        with pytest.raises(errors.ColumnError, match=r"CRC-32C \w+; expected \w+, as in luck.json") as caught:
            way()
        assert caught.value.path == str(path)
    assert [found.error for found in validate_session(session).findings] == ["ColumnError"]


@pytest.mark.parametrize("write", [write_rows, write_tape])
def test_no_blocks(tmp_path: Path, write: Any) -> None:
    session = write(tmp_path / NAME, GAMES)
    change_database(session / "metadata.db", "DROP TABLE blocks")
    with pytest.raises(errors.SchemaError, match="no table blocks"):
        Session.open(session)
    assert "no table blocks" in str(validate_session(session).findings)


def test_files_that_are_not_on_a_local_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """They are read, so that a file that shrinks does not end the process; unless they are too large."""
    session = write_rows(tmp_path / NAME, GAMES)
    rows = len(GAMES.tape)
    path = write_column(Session.open(session), "luck", np.zeros(rows, np.float32)).path
    assert Session.open(session).load == "mmap"
    monkeypatch.setattr(reading, "is_local", lambda _: False)
    monkeypatch.setattr("tape2048.session.session.is_local", lambda _: False)
    monkeypatch.setattr("tape2048.loader.buffers.is_local", lambda _: False)
    opened = Session.open(session)
    values = opened.column("luck").values
    for file in (session / "steps.npy", path):
        os.truncate(file, 192)
    assert opened.load == "ram"
    assert opened.tokens(slice(None)).shape == (rows, 16)
    assert not values.any()
    monkeypatch.setattr(reading, "ram_available", lambda: 0)
    sound = write_rows(tmp_path / "other" / NAME, GAMES)
    assert Session.open(sound).load == "mmap"
    assert Corpus.open(sound, ram_budget=0).load == "mmap"
    assert "is not on a local disk, and too large for memory" in caplog.text


def test_the_file_system_tells_a_local_disk(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    found = int(subprocess.check_output(["stat", "-f", "-c", "%t", tmp_path]), 16)
    assert reading.is_local(tmp_path)
    assert reading.is_local(tmp_path / "missing")
    monkeypatch.setattr(reading, "_NOT_LOCAL", {found})
    assert not reading.is_local(tmp_path)
