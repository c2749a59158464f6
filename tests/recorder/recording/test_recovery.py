"""What the next start makes of what a dead recorder, or a power failure, has left."""

import errno
import json
import os
import shutil
from collections.abc import Iterable
from pathlib import Path

import msgspec
import pytest
from tests.mutants import Mutant, planted
from tests.sdk.builders import raising

from tape2048.base.findings import Finding, Report
from tape2048.errors import StorageError
from tape2048.maintenance.validation import validate_session
from tape2048.session.session import sessions
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile
from tape2048_recorder.recording.partial import FACTS, JOURNAL, STAGED, PartialSession
from tape2048_recorder.recording.world import World

from ..checks import assert_holds, meta_of, partials, recover, snapshot
from ..disks import files_end_at, overlay, tmpfs, unsaid
from ..materials import NAME, Blocks, leave, make_facts, publish


@pytest.fixture(params=["row_blocks", "tape_blocks", "column_blocks"], ids=["rows", "tape", "columns"])
def blocks(request: pytest.FixtureRequest) -> Blocks:
    """Blocks of rows, the same games on tape, and with columns."""
    found: Blocks = request.getfixturevalue(request.param)
    return found


def assert_recovers(root: Path, blocks: Blocks, numbers: Iterable[int]) -> None:
    """Exactly these blocks are published."""
    numbers = set(numbers)
    assert_holds(root, blocks, confirmed=numbers, confirming=numbers, published_alive=())


def test_a_session_that_was_being_written(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(4))
    os.utime(session.path / JOURNAL, (1_700_000_000, 1_700_000_000))
    found, listener = recover(root)
    assert found == [root / NAME]
    (message,) = listener.messages("warning")
    assert f"recovered {NAME}: 12 games" in message
    assert meta_of(root / NAME)["ended_at"] == "2023-11-14T22:13:20Z", "when it was written to last"
    assert_holds(root, blocks, confirmed=range(4), confirming=range(4), published_alive=())


@pytest.mark.root
def test_a_session_in_a_layer_of_an_image(tmp_path: Path, blocks: Blocks) -> None:
    """OverlayFS does not rename its directory, so a copy is published."""
    with tmpfs(tmp_path / "lower", 16):
        leave(tmp_path / "lower", blocks, range(4))
        with overlay(tmp_path / "lower", tmp_path / "layers") as merged:
            found, _ = recover(merged)
            assert found == [merged / NAME]
            assert not partials(merged)
            assert_holds(merged, blocks, confirmed=range(4), confirming=range(4), published_alive=())


def test_several_sessions(root: Path, blocks: Blocks) -> None:
    for number in range(3):
        leave(root, blocks, [2 * number, 2 * number + 1], serial=number)
    assert_recovers(root, blocks, range(6))
    assert [path.name for path in sessions(root)] == [NAME, f"{NAME}-2", f"{NAME}-3"]


@pytest.mark.parametrize("content", [b"", b"{", b'{"format_version": 1}'])
def test_killed_while_it_began(root: Path, blocks: Blocks, content: bytes) -> None:
    session = leave(root, blocks, [])
    (session.path / FACTS).write_bytes(content)
    assert_recovers(root, blocks, [])
    assert not sessions(root)


@pytest.mark.parametrize("gone", [[FACTS], [JOURNAL], [FACTS, JOURNAL], [FACTS, JOURNAL, "rows"]], ids=str)
def test_killed_while_it_began_without_files(root: Path, blocks: Blocks, gone: list[str]) -> None:
    session = leave(root, blocks, [])
    for name in gone:
        (session.steps_path if name == "rows" else session.path / name).unlink()
    assert_recovers(root, blocks, [])
    assert not sessions(root)


@pytest.mark.parametrize(
    "names", [[], ["manifest.json"], ["metadata.db", "metadata.db-journal", "manifest.json"]]
)
def test_killed_while_it_was_published(root: Path, blocks: Blocks, names: list[str]) -> None:
    session = leave(root, blocks, range(3))
    for name in names:
        (session.path / STAGED / name).write_bytes(b"half")
    with session.steps_path.open("r+b") as file:
        file.write(b"\x93NUMPY")
    assert_recovers(root, blocks, range(3))


def test_published_and_its_shell_left(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(3))
    shell = root / "shell"
    shutil.copytree(session.path, shell, ignore=shutil.ignore_patterns(STAGED))
    publish(root, session)
    shell.rename(session.path)
    alive = sessions(root)
    assert_holds(root, blocks, confirmed=range(3), confirming=range(3), published_alive=alive)


def test_moved_twice(root: Path, blocks: Blocks) -> None:
    session = PartialSession(root, make_facts(**blocks[0].facts), 1)
    hole = session.reserve(100)
    smallest = sorted(range(6), key=lambda number: blocks[number].rows)[:2]
    for number in smallest:
        blocks[number].record(session)
    session.release(hole)
    session.journal.close()
    moved = session.steps_path.stat().st_size - 100 * blocks[0].file.row_bytes
    assert moved < 20_000, "metadata.db is larger: it finds no room, when the blocks have been moved"
    with files_end_at(20_000), pytest.raises(StorageError, match=r"metadata\.db"):
        publish(root, session)
    corrupt(session.path / "compacted-1" / STAGED / blocks[0].file.name, 3)  # so that they have to move again
    corrupt(session.steps_path, 103 + blocks[smallest[0]].rows)  # nobody looks there any more
    found, listener = recover(root)
    assert len(found) == 1
    assert "rows did not match checksums" in listener.messages("error")[0]
    assert_recovers(root, blocks, smallest[1:])


def corrupt(path: Path, row: int) -> None:
    """Flip a bit of one row in one file."""
    files = [RowsFile.of(storage, record_action=False) for storage in ("rows", "tape")]
    files += map(RowsFile.of_column, COLUMNS.values())
    file = next(file for file in files if file.name == path.name)
    at = file.at(row) + file.row_bytes // 2
    with path.open("r+b") as opened:
        opened.seek(at)
        byte = opened.read(1)[0]
        opened.seek(at)
        opened.write(bytes([byte ^ 1]))


def assert_a_bad_block_is_left_out(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(6))
    lost = range(1, 1 + len(blocks[0].files))  # one block for each file
    for number, (file, _) in zip(lost, blocks[0].files, strict=True):
        before = sum(block.rows for block in blocks[:number])
        corrupt(session.steps_path.with_name(file.name), before + 5)
    found, listener = recover(root)
    assert len(found) == 1
    (error,) = listener.messages("error")
    rows = sum(blocks[number].rows for number in lost)
    assert error == f"{session.path.name}: {rows:,} rows did not match checksums and are lost"
    assert_recovers(root, blocks, {*range(6)} - {*lost})


def test_a_block_that_changed_is_left_out_and_counted(root: Path, blocks: Blocks) -> None:
    assert_a_bad_block_is_left_out(root, blocks)


CARELESS = {
    "blocks are not checked": ("publish:_intact", " if _holds(world, fds, block, files)", ""),
    "checksums are not compared": (
        "publish:_holds",
        "found == [block.crc32c, block.columns_crc32c or 0]",
        "True",
    ),
    "losses are not counted": ("publish:publish_steps", "claimed - rows", "0"),
}


@pytest.mark.parametrize("name", CARELESS)
def test_a_careless_recovery_would_be_noticed(root: Path, blocks: Blocks, name: str) -> None:
    where, old, new = CARELESS[name]
    with (
        planted(Mutant(f"tape2048_recorder.recording.{where}", old, new)),
        pytest.raises((AssertionError, ValueError)),
    ):
        assert_a_bad_block_is_left_out(root, blocks)


@pytest.mark.parametrize("is_removed", [False, True])
def test_nothing_intact(root: Path, blocks: Blocks, is_removed: bool) -> None:
    session = leave(root, blocks, range(2))
    if is_removed:  # by a recovery that was killed while it removed what was left
        session.steps_path.unlink()
    else:
        os.truncate(session.steps_path, 0)
    found, listener = recover(root)
    assert found == []
    assert listener.messages("error") == [
        f"{session.path.name}: {blocks[0].rows + blocks[1].rows:,} rows did not match checksums and are lost"
    ]
    assert_recovers(root, blocks, [])


def test_a_journal_that_was_cut_off(root: Path, blocks: Blocks, tmp_path: Path) -> None:
    session = leave(root, blocks, range(4))
    template = tmp_path / "template"
    shutil.copytree(session.path, template)
    record = 24 + 3 * 40 + 4 * len(blocks[0].files[:2])
    size = (template / JOURNAL).stat().st_size
    assert size == 16 + 4 * record
    near = {16 + count * record + by for count in range(5) for by in (-1, 0, 1, 24)}
    for cut in sorted(near | set(range(0, size, 61))):
        if cut > size:
            continue
        shutil.rmtree(root)
        root.mkdir()
        shutil.copytree(template, session.path)
        os.truncate(session.path / JOURNAL, cut)
        assert_recovers(root, blocks, range(max(0, cut - 16) // record))


def test_rows_that_failed_to_flush_are_rewritten(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    (session.path / "fsync-failed").touch()
    inode = session.steps_path.stat().st_ino
    assert_recovers(root, blocks, range(2))
    assert (root / NAME / blocks[0].file.name).stat().st_ino != inode


def assert_left_alone(root: Path, session: PartialSession, why: str) -> None:
    before = snapshot(root)
    for _ in range(2):
        found, listener = recover(root)
        assert found == []
        (error,) = listener.messages("error")
        assert error.startswith("not recovered, left in place: ")
        assert why in error
        assert str(session.path) in error
        assert snapshot(root) == before


def assert_put_away(root: Path, session: PartialSession, why: str) -> None:
    found, listener = recover(root)
    assert found == []
    (error,) = listener.messages("error")
    where = root / ".quarantine" / session.path.name.removeprefix(".")
    assert error.startswith(f"not recovered, moved to .quarantine/{where.name}: ")
    assert why in error
    assert not session.path.exists()
    reason = json.loads(where.with_name(f"{where.name}.reason.json").read_bytes())
    assert (reason["was"], reason["by"]) == (str(session.path), "recovery")
    assert why in reason["findings"][0]["message"]
    before = snapshot(root)
    assert recover(root)[1].events == []
    assert snapshot(root) == before
    assert sessions(root) == []


def test_a_column_that_is_lost_costs_no_rows(root: Path, column_blocks: Blocks) -> None:
    session = leave(root, column_blocks, range(2))
    rows = session.steps_path.read_bytes()
    session.steps_path.with_name("loss.f32.npy").unlink()
    assert_put_away(root, session, "found no file, expected the column of 2 blocks")
    away = root / ".quarantine" / session.path.name.removeprefix(".")
    assert (away / STAGED / session.steps_path.name).read_bytes() == rows


def test_facts_that_are_lost(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    (session.path / FACTS).write_bytes(b"\0" * 400)
    rows = session.steps_path.read_bytes()
    assert_put_away(root, session, "not the complete facts")
    away = root / ".quarantine" / session.path.name.removeprefix(".")
    assert (away / STAGED / blocks[0].file.name).read_bytes() == rows
    again = leave(root, blocks, range(2))
    (again.path / FACTS).write_bytes(b"\0" * 400)
    recover(root)
    assert (root / ".quarantine" / f"{away.name}-2").is_dir()


def test_a_journal_of_something_else(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    (session.path / JOURNAL).write_bytes(b"\0" * 400)
    assert_put_away(root, session, "expected a journal with the magic")


def test_what_would_not_pass_validate_is_not_published(root: Path, blocks: Blocks) -> None:
    """Runs and rows that disagree, under checksums that hold: a bug of the recorder, say."""
    session = PartialSession(root, make_facts(**blocks[0].facts), 1)
    # Rows on tape do not carry their run's id, and a row of steps.npy not its game's score.
    field, said = "run_id", "not published, because validation failed"
    if session.file.is_tape:
        field, said = "score", "score is"
    blocks[0].runs[field][0] += 1_000
    try:
        blocks[0].record(session)
    finally:
        blocks[0].runs[field][0] -= 1_000
    session.journal.close()
    assert_put_away(root, session, said)


def test_unreadable_facts_are_tried_again(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch
) -> None:
    session = leave(root, blocks, range(2))
    with monkeypatch.context() as patch:
        patch.setattr(type(root), "read_bytes", raising(OSError(5, "Input/output error", str(session.path))))
        assert_left_alone(root, session, "Input/output error")
    assert_recovers(root, blocks, range(2))


def assert_left_alone_while_unsaid(
    root: Path, session: PartialSession, path: Path, *functions: str, code: int
) -> None:
    before = snapshot(root)
    with unsaid(path, *functions, code=code):
        found, listener = recover(root)
    assert found == []
    (error,) = listener.messages("error")
    assert error.startswith("not recovered, left in place: ")
    assert os.strerror(code) in error
    assert str(session.path) in error
    assert snapshot(root) == before


@pytest.mark.parametrize("code", [errno.EIO, errno.ESTALE, errno.ELOOP])
@pytest.mark.parametrize("name", [STAGED, "fsync-failed"])
def test_a_device_error_is_not_a_missing_file(root: Path, blocks: Blocks, name: str, code: int) -> None:
    session = leave(root, blocks, range(2))
    if name != STAGED:
        (session.path / name).touch()
    assert_left_alone_while_unsaid(root, session, session.path / name, code=code)
    inode = session.steps_path.stat().st_ino
    assert_recovers(root, blocks, range(2))
    assert ((root / NAME / blocks[0].file.name).stat().st_ino == inode) == (name == STAGED)


@pytest.mark.parametrize("times", [1, 2])
def test_an_unreadable_last_check_is_tried_again(root: Path, blocks: Blocks, times: int) -> None:
    session = leave(root, blocks, range(2))
    damaged, unread = Finding("ChecksumError", "it differs"), Finding("StorageError", "Input/output error")
    looks = []

    def look(path: Path) -> Report:
        looks.append(path)
        found = (damaged, unread) if len(looks) <= times else ()
        return msgspec.structs.replace(validate_session(path), findings=found)

    found, listener = recover(root, world=World(validate=look))
    assert len(looks) == 2
    assert found == ([root / NAME] if times == 1 else [])
    if times == 2:
        (error,) = listener.messages("error")
        assert error.startswith("not recovered, left in place: ")
        assert "Input/output error" in error
        assert session.path.is_dir()
    assert_recovers(root, blocks, range(2))


def test_an_unreadable_journal_is_not_empty(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    facts = (session.path / FACTS).read_bytes()
    (session.path / FACTS).write_bytes(b"")
    assert_left_alone_while_unsaid(root, session, session.path / JOURNAL, "open", code=errno.EIO)
    (session.path / FACTS).write_bytes(facts)
    assert_recovers(root, blocks, range(2))


def test_an_unlisted_directory_is_not_empty(root: Path, blocks: Blocks) -> None:
    """Of a session that is published, blocks that were moved before are not published once more."""
    session = leave(root, blocks, range(2))
    (session.path / "fsync-failed").touch()
    shell = root / "shell"
    shutil.copytree(session.path, shell)
    publish(root, session)
    (shell / "compacted-1").mkdir()
    shell.rename(session.path)
    alive = sessions(root)
    # Of the codes, the one that Path.glob has always taken for an empty directory.
    assert_left_alone_while_unsaid(root, session, session.path, "listdir", "scandir", code=errno.EACCES)
    assert_holds(root, blocks, confirmed=range(2), confirming=range(2), published_alive=alive)


def test_an_unlisted_out_dir_is_not_empty(root: Path, blocks: Blocks) -> None:
    leave(root, blocks, range(2))
    refused = unsaid(root, "listdir", "scandir", code=errno.EACCES)
    with refused, pytest.raises(StorageError, match="listing unfinished sessions"):
        recover(root)
    assert_recovers(root, blocks, range(2))


def test_a_journal_that_is_gone(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    (session.path / JOURNAL).unlink()
    assert_left_alone(root, session, "No such file or directory")


def test_what_is_not_its_own_is_not_touched(root: Path, blocks: Blocks) -> None:
    other = PartialSession(root, make_facts(**blocks[0].facts, instance="other"), 1)
    blocks[0].record(other)
    other.journal.close()
    (root / ".hidden").mkdir()
    (root / "notes.default.partial").mkdir()
    (root / "20260102T030405Z_model=theirs").mkdir()
    before = snapshot(root)
    found, listener = recover(root)
    assert (found, listener.events) == ([], [])
    assert snapshot(root) == before
    found, _ = recover(root, "other")
    assert len(found) == 1
