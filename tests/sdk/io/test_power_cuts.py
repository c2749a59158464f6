"""Files that are whole or not there, and checksums of what was summed in pieces."""

import errno
import os
import signal
import threading
import time
from collections.abc import Callable
from pathlib import Path

import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st
from tests.sdk.builders import names, note_flushes, open_files

from tape2048.errors import DiskFullError, NameTakenError, StorageError, TooManyFilesError
from tape2048.io import durable
from tape2048.io.durable import (
    fsync_dir,
    fsync_path,
    open_fd,
    path_exists,
    rename_exchange,
    rename_noreplace,
    replace_file,
    storage_error,
    sweep_drafts,
    write_all,
    write_file,
)
from tape2048.io.reading import crc32c_combine

from ...recorder.disks import files_end_at

# --- checksums


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_many_sums_make_the_sum_of_all(pieces: list[bytes]) -> None:
    total = 0
    for piece in pieces:
        total = crc32c_combine(total, crc32c(piece), len(piece))
    assert total == crc32c(b"".join(pieces))


def test_long_pieces() -> None:
    data = bytes(range(251)) * 34_000
    for length in (2**power + more for power in range(24) for more in (-1, 0, 1)):
        second = data[:length]
        assert crc32c_combine(crc32c(b"first"), crc32c(second), length) == crc32c(b"first" + second)


def test_a_write_that_is_interrupted_is_continued() -> None:
    data = os.urandom(1 << 20)
    reader, writer = os.pipe()
    received = bytearray()

    def read_slowly() -> None:
        while chunk := os.read(reader, 1 << 16):
            received.extend(chunk)
            time.sleep(0.005)

    thread = threading.Thread(target=read_slowly)
    interruptions = 0

    def interrupt(_number: int, _frame: object) -> None:
        nonlocal interruptions
        interruptions += 1

    before = signal.signal(signal.SIGALRM, interrupt)
    signal.setitimer(signal.ITIMER_REAL, 0.01, 0.01)  # each ends a write early, with the count so far
    try:
        thread.start()
        write_all(writer, data)
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        os.close(writer)
        thread.join()
        os.close(reader)
    assert interruptions
    assert bytes(received) == data


def test_write_all_takes_any_bytes_at_any_place(tmp_path: Path) -> None:
    for make in (bytes, bytearray, memoryview):
        with open_fd(tmp_path / make.__name__, os.O_RDWR | os.O_CREAT) as fd:
            write_all(fd, make(b"world"), 6)
            write_all(fd, make(b"hello "))
            write_all(fd, make(b""))
        assert (tmp_path / make.__name__).read_bytes() == b"hello world"
    for offset in (None, 0, 300):
        with open_fd(tmp_path / f"{offset}", os.O_WRONLY | os.O_CREAT) as fd:
            # Around the call alone: the limit holds for pytest's own output too, if that is a file.
            with files_end_at(1000), pytest.raises(OSError, match="File too large"):
                write_all(fd, bytes(1001), offset)
            assert os.fstat(fd).st_size == 1000, "the short write alone is no error"


def test_write_file_never_writes_over(tmp_path: Path) -> None:
    write_file(tmp_path / "file", b"one")
    with pytest.raises(FileExistsError):
        write_file(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"one"


def test_replace_file_leaves_the_new_content_alone(tmp_path: Path) -> None:
    replace_file(tmp_path / "file", b"one")
    (tmp_path / f".file.{os.getpid()}.tmp").write_bytes(b"left by an earlier try")
    replace_file(tmp_path / "file", b"two")
    assert (tmp_path / "file").read_bytes() == b"two"
    assert [path.name for path in tmp_path.iterdir()] == ["file"]


def test_a_replacement_that_fails_leaves_no_draft(tmp_path: Path) -> None:
    (tmp_path / "directory").mkdir()
    with pytest.raises(IsADirectoryError):
        replace_file(tmp_path / "directory", b"two")
    replace_file(tmp_path / "file", b"one")
    with files_end_at(1000), pytest.raises(OSError, match="File too large"):
        replace_file(tmp_path / "file", bytes(2000))
    assert names(tmp_path) == ["directory", "file"]
    assert (tmp_path / "file").read_bytes() == b"one"


def test_files_and_directories_are_flushed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    before = open_files()
    flushed = note_flushes(monkeypatch)
    write_file(tmp_path / "file", b"one")
    assert flushed == [(tmp_path / "file", 3)]
    replace_file(tmp_path / "file", b"longer")
    assert flushed[1] == (tmp_path / f".file.{os.getpid()}.tmp", 6)
    fsync_path(tmp_path / "file")
    fsync_dir(tmp_path)
    assert [path for path, _ in flushed[2:]] == [tmp_path, tmp_path / "file", tmp_path]
    with pytest.raises(FileNotFoundError):
        fsync_path(tmp_path / "none")
    assert open_files() == before


def test_a_draft_that_cannot_be_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for digit in "123":
        (tmp_path / f".{digit * 16}.tmp").touch()
    before = names(tmp_path)
    unlink = type(tmp_path).unlink
    refused: list[str] = []

    def refuse_the_first(path: Path, *, missing_ok: bool = False) -> None:
        if not refused:
            refused.append(path.name)
            raise PermissionError(13, "Permission denied", str(path))
        unlink(path, missing_ok=missing_ok)

    with monkeypatch.context() as patch:
        patch.setattr(type(tmp_path), "unlink", refuse_the_first)
        found = sweep_drafts(tmp_path)
    gone = set(before) - set(names(tmp_path))
    assert len(gone) == 2
    assert refused[0] not in gone
    assert {path.name for path in found} == gone


def test_path_exists_raises_other_errors(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "loop").symlink_to("loop")
    (tmp_path / "dangling").symlink_to("nowhere")
    assert path_exists(tmp_path / "file")
    assert not any(path_exists(tmp_path / name) for name in ("none", "dangling", "file/none", "none/none"))
    with pytest.raises(OSError, match="symbolic links"):
        path_exists(tmp_path / "loop")


class NoRename:
    """A C library that has no renameat2, or a file system on which it does not work."""


@pytest.fixture(params=["renameat2", "without"])
def renames(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    if request.param == "without":
        monkeypatch.setattr(durable, "_libc", NoRename)
    return str(request.param)


@pytest.mark.usefixtures("renames")
def test_a_rename_never_replaces(tmp_path: Path) -> None:
    source = tmp_path / "source"
    source.mkdir()
    (tmp_path / "empty").mkdir()
    (tmp_path / "full/directory").mkdir(parents=True)
    (tmp_path / "file").write_bytes(b"theirs")
    (tmp_path / "dangling").symlink_to("nowhere")
    before = {path: path.lstat() for path in tmp_path.iterdir()}
    for target in before:
        with pytest.raises(NameTakenError) as caught:
            rename_noreplace(source, target)
        assert caught.value.path == str(target)
    assert {path: path.lstat() for path in tmp_path.iterdir()} == before


@pytest.mark.usefixtures("renames")
def test_a_rename_to_a_free_name(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError) as caught:
        rename_noreplace(tmp_path / "source", tmp_path / "target")
    assert caught.value.filename == str(tmp_path / "source")
    (tmp_path / "source").mkdir()
    rename_noreplace(tmp_path / "source", tmp_path / "target")
    assert names(tmp_path) == ["target"]


def test_the_kernel_refuses_and_not_a_look_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("source", "target"):
        (tmp_path / name).mkdir()
    # Somebody makes it between a look and the rename; a plain one replaces an empty directory.
    monkeypatch.setattr("os.path.lexists", lambda _: False)
    with pytest.raises(NameTakenError):
        rename_noreplace(tmp_path / "source", tmp_path / "target")
    assert names(tmp_path) == ["source", "target"]


def test_two_names_are_exchanged_or_stay(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "one").write_bytes(b"one")
    (tmp_path / "other").mkdir()
    rename_exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == b"one"
    with pytest.raises(FileNotFoundError) as caught:
        rename_exchange(tmp_path / "none", tmp_path / "other")
    assert caught.value.filename == str(tmp_path / "none")
    monkeypatch.setattr(durable, "_libc", NoRename)
    with pytest.raises(StorageError, match="cannot exchange two names"):
        rename_exchange(tmp_path / "one", tmp_path / "other")
    assert (tmp_path / "other").read_bytes() == b"one"


@pytest.mark.parametrize("rename", [rename_noreplace, rename_exchange])
def test_a_null_byte_does_not_end_a_name(tmp_path: Path, rename: Callable[[Path, Path], None]) -> None:
    for name in ("other", "source"):
        (tmp_path / name).write_text(name)
    target = tmp_path / ("free\0name" if rename is rename_noreplace else "other\0name")
    with pytest.raises(ValueError, match="null byte"):
        rename(tmp_path / "source", target)
    assert names(tmp_path) == ["other", "source"]
    assert (tmp_path / "other").read_text() == "other"


@pytest.mark.parametrize(
    ("code", "expected"),
    [(errno.ENOSPC, DiskFullError), (errno.EDQUOT, DiskFullError), (errno.EROFS, StorageError),
     (errno.EACCES, StorageError), (errno.ENOENT, StorageError), (errno.ENOTDIR, StorageError),
     (errno.EIO, StorageError), (errno.EMFILE, TooManyFilesError), (errno.ENFILE, TooManyFilesError)],
)  # fmt: skip
def test_what_the_system_says_has_a_class(code: int, expected: type[StorageError]) -> None:
    error = storage_error(OSError(code, os.strerror(code)), Path("/somewhere"), "writing it")
    assert type(error) is expected
    assert error.path == "/somewhere"
    assert os.strerror(code) in str(error)
    assert "writing it" in str(error)
    assert error.hint
    assert ("LimitNOFILE=" in error.hint) == (expected is TooManyFilesError)


def test_an_error_without_a_number_says_what_it_is() -> None:
    assert "writing it failed (odd)" in str(storage_error(OSError("odd"), "/somewhere", "writing it"))
