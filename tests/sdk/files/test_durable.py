"""New files that appear whole or not at all, and ordered work on threads."""

import ctypes
import errno
import os
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.crashes import crashes

from tape2048 import errors
from tape2048.base.threads import map_ordered, worker_count
from tape2048.errors import DiskFullError, NameTakenError, StorageError, TooManyFilesError
from tape2048.files import durable
from tape2048.files.durable import (
    Draft,
    fsync_dir,
    fsync_path,
    new_file,
    rename_exchange,
    rename_noreplace,
    replace_file,
    sweep_drafts,
    write_all,
    write_file,
)
from tape2048.files.opening import open_fd, path_exists, storage_error

from ...recorder.disks import files_end_at
from ..builders import names, note_flushes, open_files, raising


class TestNewFile:
    def test_it_appears_when_it_is_whole(self, tmp_path: Path) -> None:
        with new_file(tmp_path / "x") as fd:
            write_all(fd, b"half")
            assert all(name.startswith(".") for name in names(tmp_path))
            write_all(fd, b"whole")
        assert names(tmp_path) == ["x"]
        assert (tmp_path / "x").read_bytes() == b"halfwhole"

    def test_only_a_file_is_replaced(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        (tmp_path / "directory").mkdir()
        os.mkfifo(tmp_path / "pipe")
        (tmp_path / "link").symlink_to("pipe")
        before = {path: path.lstat() for path in tmp_path.iterdir()}
        monkeypatch.chdir(tmp_path)
        for name in ("directory", "pipe", "link", ".", ""):
            with pytest.raises(errors.NameTakenError, match="expected a file"), new_file(name, replace=True):
                pass
            with pytest.raises(errors.NameTakenError), durable.publishing_file(name, replace=True):
                pass
        assert {path: path.lstat() for path in tmp_path.iterdir()} == before
        (tmp_path / "old").write_bytes(b"old")
        (tmp_path / "dangling").symlink_to("nowhere")
        for name in ("old", "dangling", "none"):
            with durable.publishing_file(name, replace=True) as file:
                file.write(b"new")
                assert name != "old" or Path(name).read_bytes() == b"old"
            assert (tmp_path / name).read_bytes() == b"new"

    def test_flushed_before_it_is_named_and_the_name_after(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        calls: list[str] = []

        def note(name: str, function: Any) -> Any:
            def noted(*args: Any) -> Any:
                calls.append(name)
                return function(*args)

            return noted

        monkeypatch.setattr(durable.os, "fsync", note("fsync", os.fsync))
        monkeypatch.setattr(durable, "rename_noreplace", note("rename", durable.rename_noreplace))
        monkeypatch.setattr(durable, "fsync_dir", note("directory", durable.fsync_dir))
        with new_file(tmp_path / "x") as fd:
            write_all(fd, b"x")
        assert calls == ["fsync", "rename", "directory", "fsync"]

    def test_after_an_error_there_is_what_was_there(self, tmp_path: Path) -> None:
        before = open_files()
        (tmp_path / "old").write_bytes(b"old")
        for error in (KeyboardInterrupt, ValueError, errors.FieldError):
            for name in ("x", "old"):
                with pytest.raises(error), new_file(tmp_path / name, replace=name == "old") as fd:  # noqa: PT012
                    write_all(fd, b"half")
                    raise error("no")
        assert names(tmp_path) == ["old"]
        assert (tmp_path / "old").read_bytes() == b"old"
        assert open_files() == before

    @pytest.mark.parametrize(
        ("code", "kind"),
        [
            (errno.ENOSPC, errors.DiskFullError),
            (errno.EDQUOT, errors.DiskFullError),
            (errno.EIO, errors.StorageError),
        ],
    )
    def test_a_flush_that_fails_is_not_tried_again(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int, kind: type[errors.StorageError]
    ) -> None:
        tries = []

        def refuse(fd: int) -> None:
            tries.append(fd)
            raise OSError(code, os.strerror(code))

        monkeypatch.setattr(durable.os, "fsync", refuse)
        with pytest.raises(kind) as caught, new_file(tmp_path / "x") as fd:
            write_all(fd, b"x")
        assert len(tries) == 1
        assert caught.value.path == str(tmp_path / "x")
        assert names(tmp_path) == []

    def test_without_locks_it_is_written_all_the_same(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("fcntl.flock", raising(OSError(errno.ENOLCK, "No locks available")))
        with new_file(tmp_path / "x") as fd:
            write_all(fd, b"x")
        assert names(tmp_path) == ["x"]

    def test_what_stands_there_stays(self, tmp_path: Path) -> None:
        (tmp_path / "x").symlink_to("nowhere")
        for replacing in (new_file, durable.publishing_file):
            with pytest.raises(errors.NameTakenError) as caught, replacing(tmp_path / "x"):
                raise AssertionError("refused before anything is written")
            assert "--force" in str(caught.value.hint)
        assert names(tmp_path) == ["x"]

    def test_what_comes_to_stand_there_meanwhile_stays(self, tmp_path: Path) -> None:
        with pytest.raises(errors.NameTakenError), new_file(tmp_path / "x") as fd:  # noqa: PT012
            write_all(fd, b"mine")
            (tmp_path / "x").write_bytes(b"theirs")
        assert names(tmp_path) == ["x"]
        assert (tmp_path / "x").read_bytes() == b"theirs"

    def test_a_directory_that_is_not_there(self, tmp_path: Path) -> None:
        with pytest.raises(errors.StorageError), new_file(tmp_path / "none/x"):
            pass

    def test_names_as_long_as_they_get(self, tmp_path: Path) -> None:
        with new_file(tmp_path / ("x" * 255)) as fd:
            write_all(fd, b"x")
        assert names(tmp_path) == ["x" * 255]

    def test_a_sweep_removes_only_dead_drafts(self, tmp_path: Path) -> None:
        dead, dead_directory = ".0123456789abcdef.tmp", f".x.{'1' * 16}.tmp"
        for name in (dead, ".0123456789abcdeF.tmp", ".lock", dead[1:], f"{dead}.x"):
            (tmp_path / name).write_bytes(b"x")
        (tmp_path / dead_directory).mkdir()
        (tmp_path / f".{'2' * 16}.tmp").symlink_to(tmp_path / ".lock")
        os.mkfifo(tmp_path / f".{'3' * 16}.tmp")
        with new_file(tmp_path / "alive") as fd, Draft(tmp_path / "living"):
            (tmp_path / dead).write_bytes(b"x")
            before, opened = names(tmp_path), open_files()
            (tmp_path / dead_directory).mkdir()
            assert sorted(sweep_drafts(tmp_path)) == [tmp_path / dead, tmp_path / dead_directory]
            assert names(tmp_path) == [name for name in before if name != dead]
            assert open_files() == opened
            write_all(fd, b"whole")
        assert (tmp_path / "alive").read_bytes() == b"whole"
        assert sweep_drafts(tmp_path / "none") == []

    def test_killed_at_any_call_it_leaves_a_whole_file_or_a_dead_draft(self, tmp_path: Path) -> None:
        def work() -> None:
            with new_file(tmp_path / "x", replace=True) as fd:
                write_all(fd, b"half")
                write_all(fd, b"whole")

        found, ends = set(), []
        for crash in crashes(work):
            sweep_drafts(tmp_path)
            found.add(tuple(path.read_bytes() for path in tmp_path.iterdir()))
            ends.append(crash.ended)
        assert ends[-1]
        assert found == {(), (b"halfwhole",)}


def test_a_directory_appears_whole(tmp_path: Path) -> None:
    """Killed at any call, it is there or not, and the next draft removes what is left."""
    target = tmp_path / "x"

    def work(content: bytes) -> None:
        with Draft(target) as draft:
            write_file(draft.path / "file", content)
            draft.publish(exchange=target.exists())

    work(b"old")
    contents = []
    for crash in crashes(lambda: work(b"new"), before=lambda: work(b"old")):
        contents.append((target / "file").read_bytes())
        with Draft(target, alone=True), pytest.raises(errors.BusyError), Draft(target, alone=True):
            pass
        with pytest.raises(errors.NameTakenError), Draft(target) as draft:
            draft.publish()
        assert names(tmp_path) == ["x"], crash
    assert contents == sorted(contents, reverse=True), "the old one first"
    assert set(contents) == {b"old", b"new"}


class TestMapOrdered:
    @pytest.mark.parametrize("workers", [1, 2, 7, None])
    def test_results_come_in_order(self, workers: int | None) -> None:
        def slow_first(i: int) -> int:
            time.sleep(0.002 if i % 5 == 0 else 0)
            return i * i

        assert list(map_ordered(slow_first, range(40), workers)) == [i * i for i in range(40)]

    @pytest.mark.parametrize("workers", [1, 3])
    def test_an_error_comes_in_its_turn(self, workers: int) -> None:
        def bad_at_3(i: int) -> int:
            if i == 3:
                raise errors.FieldError("three")
            return i

        found = []
        with pytest.raises(errors.FieldError, match="three"):  # noqa: PT012
            for result in map_ordered(bad_at_3, range(100), workers):
                found.append(result)  # noqa: PERF402 - what came before the error counts
        assert found == [0, 1, 2]

    def test_only_a_few_are_ahead(self) -> None:
        taken = []

        def items() -> Iterator[int]:
            for i in range(1000):
                taken.append(i)
                yield i

        results = map_ordered(lambda i: i, items(), 2)
        assert next(results) == 0
        assert len(taken) < 20
        results.close()
        assert len(taken) < 20

    def test_no_thread_is_left(self) -> None:
        before = threading.active_count()
        assert sum(map_ordered(int, range(10), 4)) == 45
        assert threading.active_count() == before

    def test_worker_counts(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tape2048.base.threads.available_cores", lambda: 5)  # of a quota, say
        assert worker_count(None) == 5
        assert worker_count(3) == 3
        with pytest.raises(ValueError, match="workers=0"):
            worker_count(0)
        with pytest.raises(ValueError, match="workers=0"):
            list(map_ordered(np.sqrt, [], 0))
        no_number: Any
        for no_number in (1.5, float("nan"), "2"):  # a pool of NaN threads would wait for ever
            with pytest.raises(ValueError, match="expected a whole number"):
                worker_count(no_number)


class TestOpenOwned:
    """Files where other users may have put something else."""

    def put(self, path: Path, kind: str) -> None:
        match kind:
            case "link":
                path.symlink_to("mine")
            case "link to nowhere":
                path.symlink_to("nowhere")
            case "pipe":
                os.mkfifo(path)
            case "directory":
                path.mkdir()
            case "socket":
                with socket.socket(socket.AF_UNIX) as bound:
                    bound.bind(str(path))
            case "other user":
                path.write_text("theirs")
                os.chown(path, 12345, 12345)

    @pytest.mark.parametrize("flags", [os.O_RDONLY, os.O_WRONLY | os.O_CREAT, os.O_RDWR | os.O_CREAT])
    @pytest.mark.parametrize(
        "kind",
        [
            *("link", "link to nowhere", "pipe", "directory", "socket"),
            pytest.param("other user", marks=pytest.mark.root),
        ],
    )
    def test_third_party_files_are_rejected(self, tmp_path: Path, kind: str, flags: int) -> None:
        if kind == "other user" and os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        (tmp_path / "mine").write_text("mine")
        self.put(tmp_path / "x", kind)
        before = {path: path.lstat() for path in tmp_path.iterdir()}
        opened = open_files()
        with pytest.raises(errors.StorageError, match="expected a regular file of user") as caught:
            durable.open_owned(tmp_path / "x", flags)
        assert caught.value.path == str(tmp_path / "x")
        assert open_files() == opened
        assert {path: path.lstat() for path in tmp_path.iterdir()} == before
        assert (tmp_path / "mine").read_text() == "mine"

    @pytest.mark.root
    def test_the_directory_s_owner_may_have_made_it(self, tmp_path: Path) -> None:
        """Root looks after the recordings of a service's user."""
        if os.geteuid() != 0:
            pytest.skip("only root can give a file away")
        (tmp_path / "x").touch()
        for path in (tmp_path / "x", tmp_path):
            os.chown(path, 12345, 12345)
        os.close(durable.open_owned(tmp_path / "x", os.O_RDWR))

    def test_a_directory_is_no_link_to_one(self, tmp_path: Path) -> None:
        (tmp_path / "real").mkdir()
        (tmp_path / "link").symlink_to("real")
        flags = os.O_RDONLY | os.O_DIRECTORY
        os.close(durable.open_owned(tmp_path / "real", flags))
        with pytest.raises(errors.StorageError, match="expected a directory of user"):
            durable.open_owned(tmp_path / "link", flags)

    def test_what_is_not_there_is_the_system_s_error(self, tmp_path: Path) -> None:
        (tmp_path / "file").touch()
        with pytest.raises(FileNotFoundError):
            durable.open_owned(tmp_path / "x", os.O_RDONLY)
        with pytest.raises(NotADirectoryError):
            durable.open_owned(tmp_path / "file" / "x", os.O_RDONLY)


def test_an_interrupted_rename_is_repeated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Some network file systems let signals in."""
    real, codes = durable._libc(), [errno.EINTR, errno.EINTR]

    class Libc:
        @staticmethod
        def renameat2(*args: Any) -> int:
            if codes:
                ctypes.set_errno(codes.pop())
                return -1
            return int(real.renameat2(*args))

    monkeypatch.setattr(durable, "_libc", Libc)
    (tmp_path / "old").write_text("mine")
    durable.rename_noreplace(tmp_path / "old", tmp_path / "new")
    assert (tmp_path / "new").read_text() == "mine"
    assert not codes


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


def test_a_draft_that_another_process_publishes_meanwhile(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is there for mkdir, and gone when it is looked at: then this process makes it."""
    real, calls = os.mkdir, list[str]()

    def mkdir(path: Path, *args: int) -> None:
        calls.append(str(path))
        if len(calls) == 1:
            raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(path))
        real(path, *args)

    monkeypatch.setattr(os, "mkdir", mkdir)
    with Draft(tmp_path / "target", alone=True) as draft:
        assert draft.path.is_dir()
        draft.publish()
    assert len(calls) == 2
    assert [path.name for path in tmp_path.iterdir()] == ["target"]


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
