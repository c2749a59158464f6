"""The directory that a training shares with nobody and goes on in."""

import errno
import os
from pathlib import Path

import pytest

from tape2048.errors import BusyError, ConfigError, StorageError
from tape2048.io.durable import write_all
from tape2048.training import CHECKPOINT, METRICS, TrainingDirectory, check_same

from .builders import open_files

LINES = [b'{"step":%d,"loss":0.5}\n' % step for step in (1, 2, 2, 3)]


def directory(path: Path) -> TrainingDirectory:
    return TrainingDirectory(path, "step")


@pytest.mark.parametrize("made", [False, True])
def test_one_training_at_a_time(tmp_path: Path, made: bool) -> None:
    path = tmp_path / "a/b"
    if made:
        path.mkdir(parents=True)
    before = open_files()
    with directory(path).locked():
        with pytest.raises(BusyError) as caught, directory(path).locked():
            pass
        assert caught.value.path == str(path)
        assert "--out" in (caught.value.hint or "")
    assert open_files() == before
    assert path.exists() == made  # what was made for nothing goes
    with directory(path).locked():
        (path / f".{'0' * 16}.tmp").touch()
        (path / METRICS).touch()
    with directory(path).locked():
        assert [each.name for each in path.iterdir()] == [METRICS]
    assert path.exists()


@pytest.mark.parametrize("name", ["file", "file/below"])
def test_a_directory_that_cannot_be_is_refused(tmp_path: Path, name: str) -> None:
    (tmp_path / "file").touch()
    with (
        pytest.raises(StorageError, match="cannot be created or opened"),
        directory(tmp_path / name).locked(),
    ):
        pass


@pytest.mark.parametrize(
    ("there", "steps", "kept", "last"),
    [
        (LINES, 3, LINES, 3),
        (LINES, 2, LINES[:3], 2),
        (LINES, 0, [], 0),
        ([*LINES[:2], LINES[2][:-1]], 3, LINES[:2], 2),
        ([*LINES[:2], b"\0" * 30], 3, LINES[:2], 2),
        ([b'{"step": 1, "x": "\xff"}\n', *LINES], 3, LINES, 3),
        ([b'{"x": ' + b"[" * 100_000 + b"\n", *LINES], 3, LINES, 3),
        ([b"nonsense\n", b"[1]\n", b'{"loss":1}\n', b'{"step":"1"}\n', *LINES], 3, LINES, 3),
    ],
    ids=["all", "steps to come", "anew", "cut off", "zeros", "not UTF-8", "deep", "no lines"],
)
def test_resuming_keeps_the_lines_up_to_the_checkpoint(
    tmp_path: Path, there: list[bytes], steps: int, kept: list[bytes], last: int
) -> None:
    training = directory(tmp_path)
    training.metrics.write_bytes(b"".join(there))
    assert training.cut_metrics(steps) == last
    assert training.metrics.read_bytes() == b"".join(kept)


def test_metrics_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    training = directory(tmp_path)
    assert training.cut_metrics(5) == 0
    assert not training.metrics.exists()
    training.metrics.mkdir()
    with pytest.raises(StorageError, match="reading metrics"):
        training.cut_metrics(5)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EIO, errno.EROFS, errno.EACCES])
def test_a_line_is_written_whole_or_costs_itself_alone(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, number: int
) -> None:
    """Said once, until a line is written again."""
    training, said, before = directory(tmp_path), [], open_files()
    assert training.append_metrics({"step": 1}, said.append)
    write = write_all

    def write_half(fd: int, line: bytes) -> None:
        write(fd, line[:5])
        raise OSError(number, os.strerror(number))

    for _ in range(2):
        with monkeypatch.context() as patch:
            patch.setattr("tape2048.training.write_all", write_half)
            assert [training.append_metrics({"step": step}, said.append) for step in (2, 3)] == [False, False]
        assert training.append_metrics({"step": 4}, said.append)
    assert training.metrics.read_bytes() == b'{"step":1}\n' + b'{"step":4}\n' * 2
    assert len(said) == 2
    assert all(os.strerror(number) in each and each.endswith("are tried again") for each in said)
    assert said[0].startswith(f"{tmp_path / METRICS}: ")
    assert open_files() == before


def test_another_training_names_all_differences(tmp_path: Path) -> None:
    path = tmp_path / CHECKPOINT
    check_same({"a": 1, "b": None}, {"a": 1}, path, ConfigError, "hint")
    with pytest.raises(
        ConfigError, match="directory has b = 2, not 3; c = None, not 4; a = 1, not None"
    ) as caught:
        check_same({"a": 1, "b": 2}, {"b": 3, "c": 4}, path, ConfigError, "hint")
    assert (caught.value.path, caught.value.hint) == (str(path), "hint")
