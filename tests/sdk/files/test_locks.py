"""Readers hold their sessions, and what removes sessions leaves those alone."""

import copy
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from tape2048 import Session, errors, sessions
from tape2048.files import locks, removal_locks
from tape2048.files.locks import READERS_LOCK, lock_for_reading
from tape2048.files.opening import open_fd, try_lock
from tape2048.files.removal_locks import LockProbe, RemovalLock, make_readers_lock
from tape2048.maintenance.removal import clear_leftovers, explain_refusal, find_leftovers, remove_sessions

from ..builders import note_flushes, open_files, raising, write_foreign, write_ours

NAMES = [f"2025010{day}T000000Z_model=toy" for day in range(1, 5)]


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Four sessions, and the file of the locks."""
    root = tmp_path / "root"
    for name in NAMES:
        write_ours(root / name)
    make_readers_lock(root)
    return root


def removed(root: Path, *names: str) -> list[str]:
    with RemovalLock(root) as upkeep:
        return [
            outcome.path.name
            for outcome in remove_sessions(root, [root / name for name in names], upkeep)
            if outcome.gone
        ]


def test_an_open_session_is_not_removed(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # Inodes that follow one another: a lock is of one session, and not of its neighbours.
    inodes = {(root / name).stat().st_ino: number for number, name in enumerate(NAMES, 1)}
    for module in (locks, removal_locks):
        monkeypatch.setattr(module, "_byte_of", lambda status: inodes[status.st_ino])
    session = Session.open(root / NAMES[1])
    assert removed(root, *NAMES) == [NAMES[0], *NAMES[2:]]
    assert Session.open(root / NAMES[1]).runs.tolist() == session.runs.tolist()
    del session
    assert removed(root, NAMES[1]) == [NAMES[1]]
    assert [path.name for path in root.iterdir()] == [".recorder"]


def test_each_object_holds_it_and_the_last_one_lets_go(root: Path) -> None:
    opened = [Session.open(root / NAMES[0], load=load) for load in ("mmap", "ram", "mmap")]
    copied = copy.copy(opened[0])
    while opened:
        assert removed(root, NAMES[0]) == []
        opened.pop()
    assert removed(root, NAMES[0]) == []
    del copied
    assert removed(root, NAMES[0]) == [NAMES[0]]


def test_one_descriptor_for_all_sessions(root: Path) -> None:
    before = open_files()
    opened = [Session.open(root / name) for name in NAMES for _ in range(5)]
    assert len(open_files()) == len(before) + 1
    opened.clear()
    Session.open(root / NAMES[0])
    with RemovalLock(root):
        pass
    removed(root, *NAMES[:3])
    with pytest.raises(errors.MissingPathError):
        Session.open(root / NAMES[0])
    assert open_files() == before


def test_by_another_name(root: Path, tmp_path: Path) -> None:
    (tmp_path / "link").symlink_to(root / NAMES[2])
    session = Session.open(tmp_path / "link")
    assert removed(root, NAMES[2]) == []
    assert session.name == "link"


READER = """
import sys
from tape2048 import Session
session = Session.open(sys.argv[1])
print("open", flush=True)
sys.stdin.read()
"""


def test_another_process_holds_it_until_it_dies(root: Path) -> None:
    reader = subprocess.Popen(
        [sys.executable, "-W", "error", "-c", READER, str(root / NAMES[3])],
        stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert reader.stdout.readline() == "open\n"
        assert removed(root, NAMES[3]) == []
        reader.kill()
        reader.wait()
        assert removed(root, NAMES[3]) == [NAMES[3]]
    finally:
        reader.kill()
        reader.communicate()


def test_a_forked_child_does_not_unlock(root: Path) -> None:
    session = Session.open(root / NAMES[0])
    child = os.fork()
    if child == 0:
        del session
        Session.open(root / NAMES[1])
        os._exit(0)
    assert os.waitpid(child, 0)[1] == 0
    assert removed(root, *NAMES[:2]) == [NAMES[1]]
    assert session.name == NAMES[0]


def test_one_that_is_being_removed_cannot_be_opened(root: Path) -> None:
    with RemovalLock(root) as upkeep:
        taken = upkeep.try_lock(root / NAMES[0])
        with pytest.raises(errors.MissingPathError, match="being removed"):
            Session.open(root / NAMES[0])
        upkeep.unlock(taken)
        assert len(Session.open(root / NAMES[0]))
        assert not upkeep.is_read(root / NAMES[0])
        session = Session.open(root / NAMES[0])
        assert upkeep.is_read(root / NAMES[0])
        assert session.name == NAMES[0]


@pytest.mark.parametrize("replaced", [False, True])
def test_a_removal_while_the_lock_is_taken(
    root: Path, monkeypatch: pytest.MonkeyPatch, replaced: bool
) -> None:
    def lock_too_late(*args: Any) -> bool:
        (root / NAMES[0]).rename(root / ".gone")
        if replaced:
            write_ours(root / NAMES[0])
        monkeypatch.undo()
        return locks._lock(*args)

    before = open_files()
    monkeypatch.setattr("tape2048.files.locks._lock", lock_too_late)
    with pytest.raises(errors.MissingPathError, match="removed just now"):
        Session.open(root / NAMES[0])
    assert removed(root, NAMES[1]) == [NAMES[1]]
    assert open_files() == before


def test_two_that_remove_exclude_each_other(root: Path) -> None:
    before = open_files()
    with RemovalLock(root), pytest.raises(errors.BusyError, match="another process is removing"):
        RemovalLock(root)
    assert open_files() == before
    with RemovalLock(root):
        pass


def test_garbage_collection_while_the_mutex_is_held(root: Path) -> None:
    session = Session.open(root / NAMES[0])
    with locks._mutex:
        del session
    other = Session.open(root / NAMES[1])
    assert removed(root, *NAMES[:2]) == [NAMES[0]]
    assert other.name == NAMES[1]


class TestWithoutTheFile:
    """Where nobody has recorded or removed: readers make no file."""

    @pytest.fixture
    def root(self, root: Path) -> Path:
        (root / ".recorder" / READERS_LOCK).unlink()
        (root / ".recorder").rmdir()
        return root

    def test_a_reader_from_before_keeps_everything(self, root: Path) -> None:
        session = Session.open(root / NAMES[0])
        assert not (root / ".recorder").exists()
        with pytest.raises(errors.BusyError, match=r"before readers\.lock existed"):
            RemovalLock(root)
        later = Session.open(root / NAMES[1])
        with pytest.raises(errors.BusyError):
            RemovalLock(root)
        del session
        assert removed(root, *NAMES) == [NAMES[0], *NAMES[2:]]
        assert later.name == NAMES[1]

    def test_the_lock_file_appears_during_open(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        """Who removes makes it, and then takes the directory that the reader is about to lock."""

        def refuse(*_: object) -> None:
            monkeypatch.undo()
            make_readers_lock(root)
            raise BlockingIOError

        before = open_files()
        monkeypatch.setattr("fcntl.flock", refuse)
        session = Session.open(root / NAMES[0])
        assert removed(root, *NAMES) == NAMES[1:]
        del session
        assert removed(root, NAMES[0]) == [NAMES[0]]
        Session.open(write_ours(root / NAMES[0]))
        assert open_files() == before

    def test_nothing_is_read_nothing_is_kept(self, root: Path) -> None:
        Session.open(root / NAMES[0])
        assert removed(root, *NAMES) == NAMES


def test_reads_without_a_lock_on_a_locked_directory(root: Path) -> None:
    shutil.rmtree(root / ".recorder")
    with open_fd(root, os.O_RDONLY | os.O_DIRECTORY) as directory:
        assert try_lock(directory)
        assert lock_for_reading(root / NAMES[0]) is None
        assert Session.open(root / NAMES[0]).runs.tolist()


def test_a_file_system_without_locks(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("fcntl.fcntl", raising(OSError(37, "No locks available")))
    assert len(Session.open(root / NAMES[0]))
    before = open_files()
    with pytest.raises(errors.StorageError, match="No locks available"):
        RemovalLock(root)
    assert open_files() == before


def test_nobody_sees_half_a_session(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def die(path: Path) -> None:
        (path / "steps.npy").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr("shutil.rmtree", die)
        with pytest.raises(KeyboardInterrupt):
            removed(root, *NAMES[:2])
    assert [path.name for path in sessions(root)] == NAMES[2:]
    assert [path.name for path in find_leftovers(root)] == [f".{name}.removed" for name in NAMES[:2]]
    write_ours(root / NAMES[0])  # a name may be used again before the leftover is gone
    with RemovalLock(root) as upkeep:
        assert [outcome.gone for outcome in remove_sessions(root, [root / NAMES[0]], upkeep)] == [True]
        assert len(clear_leftovers(root, upkeep)) == 2
        assert clear_leftovers(root, upkeep) == []
    assert sorted(path.name for path in root.iterdir()) == [".recorder", *NAMES[2:]]


def test_hidden_names_are_flushed_before_deletion(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    flushed = note_flushes(monkeypatch)
    real = shutil.rmtree
    deleted: list[str] = []

    def delete(path: Path) -> None:
        assert [path for path, _ in flushed] == [root]
        deleted.append(path.name)
        real(path)

    monkeypatch.setattr("shutil.rmtree", delete)
    assert removed(root, *NAMES[:2]) == NAMES[:2]
    assert deleted == [f".{name}.removed" for name in NAMES[:2]]
    assert [path for path, _ in flushed] == [root, root]


def test_nothing_is_deleted_after_a_failed_flush(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, RemovalLock(root) as upkeep:
        patch.setattr("tape2048.maintenance.removal.fsync_dir", raising(OSError(5, "Input/output error")))
        outcomes = list(remove_sessions(root, [root / name for name in NAMES[:2]], upkeep))
    assert [outcome.gone for outcome in outcomes] == [False, False]
    assert all(isinstance(outcome.error, errors.StorageError) for outcome in outcomes)
    leftovers = find_leftovers(root)
    assert [len(list(path.iterdir())) for path in leftovers] == [3, 3]
    (root / f".{NAMES[3]}.removed").touch()  # not what a removal leaves
    with RemovalLock(root) as upkeep:
        assert [outcome.path for outcome in clear_leftovers(root, upkeep)] == leftovers
    assert [path for path in leftovers if path.exists()] == []


@pytest.mark.parametrize("broken", [False, True])
def test_removal_leaves_no_lock(root: Path, monkeypatch: pytest.MonkeyPatch, broken: bool) -> None:
    """A new session may get the inode, and so the lock, of one that was removed."""
    for module in (locks, removal_locks):
        monkeypatch.setattr(module, "_byte_of", lambda _: 1)
    if broken:
        refuse = raising(OSError(13, "Permission denied"))
        monkeypatch.setattr("tape2048.files.durable.rename_noreplace", refuse)
    with RemovalLock(root) as upkeep:
        (outcome,) = remove_sessions(root, [root / NAMES[0]], upkeep)
        assert (outcome.gone, outcome.error is None) == (not broken, not broken)
        assert len(Session.open(root / NAMES[1]))


def test_one_that_fails_does_not_keep_the_others(root: Path) -> None:
    with RemovalLock(root) as upkeep:
        paths = [root / NAMES[0], root / "20300101T000000Z_model=gone", root / NAMES[1]]
        outcomes = list(remove_sessions(root, paths, upkeep))
    assert [outcome.gone for outcome in outcomes] == [True, False, True]
    assert isinstance(outcomes[1].error, errors.StorageError)


def test_only_what_is_surely_ours_may_go(root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert explain_refusal(root / NAMES[0]) is None
    (root / NAMES[0] / "embeddings.bf16.npy").touch()
    assert explain_refusal(root / NAMES[0]) is None
    (root / NAMES[0] / "notes.txt").touch()
    assert "notes.txt" in str(explain_refusal(root / NAMES[0]))
    (root / NAMES[1] / "manifest.json").write_bytes(b"{")
    assert "malformed" in str(explain_refusal(root / NAMES[1]))
    (root / NAMES[2] / "steps.npy").unlink()
    assert "lacks" in str(explain_refusal(root / NAMES[2]))
    (root / "20250105T000000Z_model=link").symlink_to(root / NAMES[3])
    assert "link" in str(explain_refusal(root / "20250105T000000Z_model=link"))
    foreign = write_foreign(root / "20250106T000000Z_model=theirs")
    assert "another program wrote it" in str(explain_refusal(foreign))
    assert "its name" in str(explain_refusal(write_ours(tmp_path / "session")))
    assert explain_refusal(root / "20250107T000000Z_model=gone") is not None
    refuse = raising(OSError(5, "Input/output error"))
    monkeypatch.setattr("tape2048.session.session_files.list_names", refuse)
    assert explain_refusal(root / NAMES[3]) == "Input/output error"


def test_removal_where_directories_cannot_be_locked(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As on NFS."""
    monkeypatch.setattr("fcntl.flock", raising(OSError(9, "Bad file descriptor")))
    session = Session.open(root / NAMES[0])
    assert removed(root, *NAMES[:2]) == [NAMES[1]]
    assert session.name == NAMES[0]


@pytest.mark.parametrize("name", [".recorder", ".recorder/readers.lock"])
def test_a_link_in_place_of_the_locks_is_not_followed(tmp_path: Path, name: str) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    write_ours(root / NAMES[0])
    elsewhere.mkdir()
    (root / name).parent.mkdir(exist_ok=True)
    (root / name).symlink_to(elsewhere if name == ".recorder" else elsewhere / "made")
    with pytest.raises(errors.StorageError, match="found a link"):
        RemovalLock(root)
    assert not list(elsewhere.iterdir())
    assert len(Session.open(root / NAMES[0]))


def test_a_pipe_in_place_of_the_locks_stops_nobody(tmp_path: Path) -> None:
    root = tmp_path / "root"
    write_ours(root / NAMES[0])
    (root / ".recorder").mkdir()
    os.mkfifo(root / ".recorder" / "readers.lock")
    assert len(Session.open(root / NAMES[0]))
    for lock in (RemovalLock, LockProbe):
        with pytest.raises(errors.StorageError, match="found a link, a pipe"):
            lock(root)


def test_permissions_of_the_lock_directory(tmp_path: Path) -> None:
    before = os.umask(0o002)
    try:
        make_readers_lock(tmp_path)
    finally:
        os.umask(before)
    assert (tmp_path / ".recorder").stat().st_mode & 0o777 == 0o775
    assert (tmp_path / ".recorder" / "readers.lock").stat().st_mode & 0o777 == 0o664
