"""Sessions that are being written, and how they become visible."""

import errno
import json
import os
import resource
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from tests.sdk.builders import raising
from tests.sdk.naming import Naming

from tape2048.errors import DiskFullError, FormatError, StorageError, TooManyFilesError
from tape2048.files import durable
from tape2048.session.layout import ACTION_STEP_DTYPE, STEP_DTYPE, STEPS_HEADER_BYTES
from tape2048.session.session import Session, sessions
from tape2048_recorder.recording import publish as publisher
from tape2048_recorder.recording.partial import PartialSession
from tape2048_recorder.recording.publish import Published, Publisher
from tape2048_recorder.recording.world import World

from ..checks import (
    assert_all_published,
    assert_sessions_valid,
    descriptors,
    expected_runs,
    meta_of,
    partials,
    published_runs,
    recover,
    snapshot,
)
from ..disks import files_end_at
from ..materials import ENDED_AT, NAME, STARTED_AT, Blocks, Prepared, make_facts, publish
from ..processes import wait_until


def begin(
    root: Path, blocks: Iterable[Prepared] = (), serial: int = 1, *, hole: int = 0, **facts: object
) -> PartialSession:
    """A session with these blocks recorded, behind a hole of some rows."""
    session = PartialSession(root, make_facts(**facts), serial)
    first = session.reserve(hole) if hole else None
    for block in blocks:
        block.record(session)
    if first is not None:
        session.release(first)
    return session


def finish(root: Path, session: PartialSession) -> Published:
    session.journal.close()
    return publish(root, session, flush=session.flush)


def assert_published(root: Path, blocks: Blocks) -> None:
    """These blocks' games, and no others, stand in the sessions of a directory that holds nothing else."""
    assert_all_published(root)
    assert {run.outcome: run.data for run in published_runs(root)} == dict(expected_runs(blocks).values())


def test_what_was_confirmed_is_published(root: Path, blocks: Blocks) -> None:
    session = begin(root, blocks)
    published = finish(root, session)
    assert_published(root, blocks)
    path = root / NAME
    rows = sum(block.rows for block in blocks)
    assert published == (path, rows, 18, sum(file.stat().st_size for file in path.iterdir()), False, 0)
    assert sorted(file.name for file in path.iterdir()) == ["manifest.json", "metadata.db", "steps.npy"]
    manifest = json.loads((path / "manifest.json").read_bytes())
    assert manifest["files"]["steps.npy"]["crc32c"] == crc32c((path / "steps.npy").read_bytes())
    meta = meta_of(path)
    assert (meta["recovered"], meta["started_at"], meta["ended_at"]) == (False, STARTED_AT, ENDED_AT)
    assert (meta["rows"], meta["runs"], meta["player_sha256"]) == (rows, 18, "ab" * 32)


@pytest.mark.parametrize("has_hole", [False, True])
def test_everything_is_flushed_in_order(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch, has_hole: bool
) -> None:
    session = begin(root)
    if has_hole:
        hole = session.reserve(blocks[0].rows)
        blocks[1].record(session)
        session.release(hole)
    else:
        blocks[1].record(session)
    naming = Naming(root, monkeypatch)
    removed = []

    def remove(_world: World, partial: Path, out_dir: Path) -> None:
        naming.assert_flushed(NAME)
        removed.append((partial, out_dir))

    monkeypatch.setattr("tape2048_recorder.recording.publish._remove", remove)
    finish(root, session)
    assert removed == [(session.path, root)]


def test_publishing_leaves_no_descriptor(root: Path, blocks: Blocks) -> None:
    before = descriptors()
    session = begin(root, [blocks[1]], hole=blocks[0].rows)
    finish(root, session)
    session.close()
    assert descriptors() == before


@pytest.mark.parametrize("holes", [{0, 3}, {4}], ids=str)
def test_holes_are_closed(root: Path, blocks: Blocks, holes: set[int]) -> None:
    session = begin(root)
    rows = [session.reserve(block.rows) for block in blocks]
    for number in set(range(6)) - holes:
        blocks[number].put(session, rows[number])
        session.confirm(blocks[number].written(1, rows[number]))
    for number in holes:
        blocks[number].put(session, rows[number], size=1000)
        session.release(rows[number])
    finish(root, session)
    assert_published(root, [block for number, block in enumerate(blocks) if number not in holes])


def test_nothing_confirmed_leaves_nothing(root: Path) -> None:
    published = finish(root, begin(root))
    assert published == (None, 0, 0, 0, False, 0)
    assert list(root.iterdir()) == []


def test_changed_blocks_are_left_out_and_counted(root: Path, blocks: Blocks) -> None:
    session = begin(root)
    hole = session.reserve(blocks[0].rows)
    rows = [block.record(session) for block in blocks[1:4]]
    session.release(hole)
    with session.steps_path.open("r+b") as file:
        file.seek(STEPS_HEADER_BYTES + rows[1] * STEP_DTYPE.itemsize + 100)
        file.write(b"\xff")
    assert finish(root, session).rows_lost == blocks[2].rows
    assert_published(root, [blocks[1], blocks[3]])


def test_rows_with_their_moves(root: Path, blocks: Blocks) -> None:
    rows = np.frombuffer(blocks[0].data, dtype=STEP_DTYPE)
    with_moves = np.zeros(len(rows), dtype=ACTION_STEP_DTYPE)
    for name in STEP_DTYPE.names or ():
        with_moves[name] = rows[name]
    with_moves["action"] = np.arange(len(rows)) % 4
    session = begin(root, record_action=True)
    Prepared(with_moves.tobytes(), blocks[0].runs, record_action=True).record(session)
    finish(root, session)
    assert_sessions_valid(root)
    np.testing.assert_array_equal(Session.open(root / NAME).steps, with_moves)


@pytest.mark.parametrize("kind", ["session", "dangling link"])
def test_a_name_that_is_taken_gets_a_counter(root: Path, blocks: Blocks, kind: str) -> None:
    match kind:
        case "session":
            session = begin(root, [blocks[0]])
            finish(root, session)
        case "empty directory":
            (root / NAME).mkdir()
        case "file":
            (root / NAME).write_text("mine")
        case "dangling link":
            (root / NAME).symlink_to("nowhere")
    (root / f"{NAME}-3").mkdir()
    before = snapshot(root)
    paths = []
    for block in blocks[1:4]:
        session = begin(root, [block])
        paths.append(finish(root, session).path)
    assert paths == [root / f"{NAME}-2", root / f"{NAME}-4", root / f"{NAME}-5"]
    after = snapshot(root)
    assert {path: after[path] for path in before} == before, "what stood there was touched"


def test_a_session_that_cannot_begin_leaves_nothing(root: Path) -> None:
    before = descriptors()
    for size in (10, 100):  # the journal's header does not fit; the facts do not
        with files_end_at(size), pytest.raises(StorageError, match="starting a session"):
            begin(root)
    limit = resource.getrlimit(resource.RLIMIT_NOFILE)
    for free in range(3):  # for the rows, the journal, the facts
        lowest = os.dup(0)
        os.close(lowest)
        resource.setrlimit(resource.RLIMIT_NOFILE, (lowest + free, limit[1]))
        try:
            with pytest.raises(TooManyFilesError, match="starting a session"):
                begin(root)
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, limit)
    assert list(root.iterdir()) == []
    with pytest.raises(StorageError):
        begin(root / "nowhere")
    assert descriptors() == before


def test_a_block_that_was_not_given_out_is_refused(root: Path, blocks: Blocks) -> None:
    session = begin(root)
    first = session.reserve(blocks[0].rows)
    written = blocks[0].written(1, first)
    for wrong in (blocks[0].written(1, first + 1), blocks[1].written(1, first)):
        with pytest.raises(FormatError, match="expected the reserved"):
            session.confirm(wrong)
    short = blocks[0].runs[:2].tobytes()
    with pytest.raises(FormatError, match="expected the reserved"):
        session.confirm(type(written)(1, first, written.rows, written.crc32c, short))
    session.confirm(written)
    with pytest.raises(FormatError, match="expected the reserved"):
        session.confirm(written)  # twice
    session.journal.close()


def test_a_confirmation_that_fails_may_be_tried_again(root: Path, blocks: Blocks) -> None:
    session = begin(root)
    first = session.reserve(blocks[0].rows)
    blocks[0].put(session, first)
    with files_end_at(60), pytest.raises(OSError, match="File too large"):
        session.confirm(blocks[0].written(1, first))
    assert (len(session.writing), session.rows_confirmed) == (1, 0)
    session.confirm(blocks[0].written(1, first))
    assert (len(session.writing), session.rows_confirmed) == (0, blocks[0].rows)
    finish(root, session)
    assert_published(root, blocks[:1])


def test_publishing_again_after_it_failed(root: Path, blocks: Blocks) -> None:
    session = begin(root, [blocks[1]], hole=10)
    session.journal.close()
    size = session.steps_path.stat().st_size
    assert size < 20_000, "metadata.db is larger"
    for limit, left in (
        (size // 2, ["facts.json", "journal", "session"]),
        (size, ["compacted-1", "facts.json"]),
    ):
        with files_end_at(limit), pytest.raises(StorageError, match=r"too large|metadata\.db"):
            publish(root, session)
        assert set(left) <= {path.name for path in session.path.iterdir()}
        assert not sessions(root)
    publish(root, session)
    assert_published(root, blocks[1:2])


def failing_once(patch: pytest.MonkeyPatch, name: str, code: int) -> None:
    """Have the next call of a function of ``os`` fail, after what it does."""
    real = getattr(os, name)

    def fail(fd: int) -> None:
        patch.setattr(os, name, real)
        real(fd)
        raise OSError(code, os.strerror(code))

    patch.setattr(os, name, fail)


@pytest.mark.parametrize("is_lost", [False, True])
def test_rows_of_which_a_write_failed_are_read_back(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch, is_lost: bool
) -> None:
    session = begin(root)
    rows = [block.record(session) for block in blocks[:3]]
    if is_lost:
        with session.steps_path.open("r+b") as file:
            file.seek(STEPS_HEADER_BYTES + rows[1] * STEP_DTYPE.itemsize)
            file.write(bytes(100))
    inode = session.steps_path.stat().st_ino
    failing_once(monkeypatch, "fsync", errno.EDQUOT)
    published = finish(root, session)
    assert published.rows_lost == (blocks[1].rows if is_lost else 0)
    assert_published(root, [blocks[0], blocks[2]] if is_lost else blocks[:3])
    assert (root / NAME / "steps.npy").stat().st_ino != inode


def test_the_mark_is_set_before_the_flush(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It tells of them once: on a full disk, a killed recorder would leave rows that nobody doubts."""
    session = begin(root, [blocks[0]])
    asked: list[bool] = []

    def flush() -> bool:
        asked.append(True)
        return True

    with monkeypatch.context() as patch:
        patch.setattr(type(root), "touch", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
        with pytest.raises(DiskFullError):
            publish(root, session, flush=flush)
    assert not asked
    finish(root, session)
    assert_published(root, blocks[:1])


def test_a_failed_write_is_remembered_by_the_next_try(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(root, [blocks[0]])
    inode = session.steps_path.stat().st_ino
    failing_once(monkeypatch, "fsync", errno.EIO)
    with files_end_at(200), pytest.raises(StorageError, match="too large"):
        finish(root, session)
    (session.path / "fsync-failed").unlink()  # as where there was no room for it
    publish(root, session, flush=session.flush)
    assert_published(root, blocks[:1])
    assert (root / NAME / "steps.npy").stat().st_ino != inode


def test_the_flushed_descriptor_is_older_than_the_rows(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    flushed: list[tuple[bool, str]] = []
    opened: set[int] = set()
    real, real_open = os.fsync, os.open

    def note(fd: int) -> None:
        flushed.append((fd in opened, str(Path(f"/proc/self/fd/{fd}").readlink())))
        real(fd)

    def note_open(path: str, *args: int, **options: Any) -> int:
        opened.add(fd := real_open(path, *args, **options))
        return fd

    session = begin(root, [blocks[0]])
    monkeypatch.setattr(os, "open", note_open)
    monkeypatch.setattr(os, "fsync", note)
    finish(root, session)
    is_new, path = flushed[0]
    assert not is_new
    assert path == str(session.steps_path)
    session.close()
    session.close()


@pytest.fixture
def thread(root: Path) -> Iterator[Publisher]:
    publisher = Publisher(root)
    yield publisher
    publisher.close()


def test_the_thread_publishes_in_the_order_of_closing(root: Path, blocks: Blocks, thread: Publisher) -> None:
    for serial, block in enumerate(blocks):
        session = begin(root, [block], serial=serial)
        thread.submit(session)
    outcomes = []
    while thread.pending:
        outcomes += thread.outcomes()
    assert [outcome.session.serial for outcome in outcomes] == list(range(6))
    assert all(outcome.final and outcome.error is None for outcome in outcomes)
    assert_published(root, blocks)


def test_a_journal_that_cannot_be_closed_is_ignored(
    root: Path, blocks: Blocks, thread: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(root, [blocks[0]])
    session.journal.close()
    monkeypatch.setattr(session.journal, "close", raising(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))))
    thread.submit(session)
    wait_until(lambda: len(thread._outcomes) == 1)
    (outcome,) = thread.outcomes()
    assert (outcome.final, outcome.error, thread.pending) == (True, None, [])
    assert_published(root, blocks[:1])


def test_the_thread_survives_what_nobody_expected(
    root: Path, blocks: Blocks, thread: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    bad, whole = begin(root, serial=1), begin(root, serial=2)
    blocks[0].record(bad)
    blocks[1].record(whole)
    real = publisher.publish_steps

    def fail_once(*args: Any, **options: Any) -> Published:
        monkeypatch.setattr(publisher, "publish_steps", real)
        raise ZeroDivisionError("a bug")

    monkeypatch.setattr(publisher, "publish_steps", fail_once)
    thread.submit(bad)
    thread.submit(whole)
    wait_until(lambda: len(thread._outcomes) == 2)
    first, second = thread.outcomes()
    assert "a bug" in str(first.error)
    assert (first.final, first.published, second.error, thread.pending) == (True, None, None, [])
    assert bad.path.is_dir(), "it stays for the next start"


@pytest.mark.filterwarnings("ignore::pytest.PytestUnhandledThreadExceptionWarning")
def test_a_dead_thread_fails_every_session(
    root: Path, blocks: Blocks, thread: Publisher, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = (begin(root, [block], serial=serial) for serial, block in enumerate(blocks[:2]))
    monkeypatch.setattr(first, "flush", sys.exit)
    thread.submit(first)
    wait_until(lambda: not thread._background.alive())
    thread.submit(second)
    outcomes = thread.outcomes()
    assert [outcome.session for outcome in outcomes] == [first, second]
    assert all(outcome.final and "has died" in str(outcome.error) for outcome in outcomes)
    assert not thread.pending
    assert first.path.is_dir(), "it stays for the next start"


def test_it_is_published_once_without_descriptors(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = begin(root, [blocks[0]])
    synced: list[bool] = []
    with monkeypatch.context() as patch:
        patch.setattr(durable, "fsync_dir", raising(OSError(errno.ENFILE, os.strerror(errno.ENFILE))))
        patch.setattr(os, "sync", lambda: synced.append(True))
        done = finish(root, session)
    assert done.path is not None
    assert synced
    recover(root)
    assert_published(root, blocks[:1])
    assert not partials(root)
