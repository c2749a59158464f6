"""Recovery trusts no partial session: a crafted one goes to the quarantine, and nothing else changes."""

import errno
import functools
import os
import struct
import tracemalloc
from collections.abc import Callable
from pathlib import Path

import msgspec
import numpy as np
import pytest
from crc32c import crc32c

from tape2048.maintenance.validation import validate_session
from tape2048.session.layout import RUN_DTYPE, STEPS_HEADER_BYTES
from tape2048.session.session import sessions
from tape2048_recorder.recording.partial import FACTS, JOURNAL, STAGED, PartialSession
from tape2048_recorder.recording.publish import publish_steps

from ..checks import Listener, partials, recover, snapshot
from ..materials import NAME, ROW_BYTES, Blocks, leave, make_facts


def assert_only_this_is_put_away(root: Path, session: PartialSession, blocks: Blocks, why: str) -> None:
    """A crafted session is put away; one beside it is recovered, and no other file changes."""
    theirs = root / "20250101T000000Z_model=theirs"
    if not theirs.exists():
        theirs.mkdir()
        (theirs / "embeddings.bf16.npy").write_bytes(b"long work")
    before, outside = snapshot(theirs), sorted(root.parent.iterdir())
    leave(root, blocks, [5], serial=2)
    found, listener = recover(root)
    (error,) = listener.messages("error")
    assert error.startswith("not recovered, moved to .quarantine/")
    assert why in error
    assert [path.parent for path in found] == [root]
    assert partials(root) == []
    assert set(sessions(root)) == {*found, theirs}
    assert snapshot(theirs) == before
    assert sorted(root.parent.iterdir()) == outside
    assert recover(root)[1].events == []
    assert not os.path.lexists(session.path)


FACTS_OF_NO_RECORDER = {
    "a path as the start": ({"started_at": "../../elsewhere/20260102T030405Z"}, "found the facts of"),
    "an absolute path": ({"started_at": "/elsewhere/x"}, "found the facts of"),
    "a hidden name": ({"model_tag": ".hidden"}, "found the facts of"),
    "an escape": ({"model_tag": "toy\x1b[31m"}, "found the facts of"),
    "a newline at the end": ({"model_tag": "toy\n"}, "found the facts of"),
    "a NUL": ({"model_tag": "toy\0"}, "found the facts of"),
    "another directory's": ({"model_tag": "other"}, "found the facts of"),
    "digits of another script": ({"started_at": "٢٠٢٦-01-02T03:04:05Z"}, "found the facts of"),
    "no rate": ({"sample_rate": 0}, "sample_rate"),
}


@pytest.mark.parametrize("case", FACTS_OF_NO_RECORDER)
def test_facts_that_no_recorder_writes(root: Path, blocks: Blocks, case: str) -> None:
    changes, why = FACTS_OF_NO_RECORDER[case]
    session = leave(root, blocks, range(2))
    (session.path / FACTS).write_bytes(msgspec.json.encode(make_facts(**changes)))
    assert_only_this_is_put_away(root, session, blocks, why)


def test_nested_facts(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    text = msgspec.json.encode(make_facts())
    nested = b'{"player":' + b"[" * 100_000 + b"]" * 100_000 + b"}"
    (session.path / FACTS).write_bytes(text.replace(b'{"player":"random"}', nested))
    assert_only_this_is_put_away(root, session, blocks, "")


def test_facts_without_end(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    os.truncate(session.path / FACTS, 1 << 44)
    assert_only_this_is_put_away(root, session, blocks, "expected the facts of a session")


def link_session(session: PartialSession, theirs: Path) -> None:
    session.steps_path.rename(theirs / "steps.npy")
    (session.path / STAGED).rmdir()
    (session.path / STAGED).symlink_to(theirs)


def link_file(name: str, session: PartialSession, theirs: Path) -> None:
    (session.path / name).rename(theirs / "file")
    (session.path / name).symlink_to(theirs / "file")


def put_fifo(session: PartialSession, theirs: Path) -> None:
    (session.path / JOURNAL).unlink()
    os.mkfifo(session.path / JOURNAL)


CRAFTS: dict[str, Callable[[PartialSession, Path], object]] = {
    "a linked session": link_session,
    "a linked compaction": lambda session, theirs: (session.path / "compacted-1").symlink_to(theirs),
    "a linked journal": functools.partial(link_file, JOURNAL),
    "linked facts": functools.partial(link_file, FACTS),
    "linked rows": functools.partial(link_file, "session/steps.npy"),
    "rows with two names": lambda session, theirs: (theirs / "rows").hardlink_to(session.steps_path),
    "a link": lambda session, theirs: session.path.symlink_to(session.path.rename(theirs / "moved")),
    "a pipe": put_fifo,
    "a file as compaction": lambda session, _: (session.path / "compacted-1").touch(),
    "a compaction with a name": lambda session, _: (session.path / "compacted-x").mkdir(),
    "a directory beside the rows": lambda session, _: (session.path / STAGED / "metadata.db").mkdir(),
    "a file": lambda session, theirs: (session.path.rename(theirs / "moved"), session.path.touch()),
}


@pytest.mark.parametrize("case", CRAFTS)
def test_files_that_no_recorder_makes(root: Path, blocks: Blocks, case: str) -> None:
    session = leave(root, blocks, range(2))
    theirs = root / "20250101T000000Z_model=theirs"
    theirs.mkdir()
    (theirs / "embeddings.bf16.npy").write_bytes(b"long work")
    CRAFTS[case](session, theirs)
    assert_only_this_is_put_away(root, session, blocks, "expected")


@pytest.mark.parametrize("case", ["without end", "of a time that no calendar has"])
def test_a_journal_that_is_odd_is_recovered(root: Path, blocks: Blocks, case: str) -> None:
    journal = leave(root, blocks, range(2)).path / JOURNAL
    if case == "without end":
        os.truncate(journal, 1 << 42)
    else:
        os.utime(journal, (1 << 40, 1 << 40))
    found, listener = recover(root)
    assert found == [root / NAME]
    assert listener.messages("error") == []


def test_files_of_the_system_do_not_matter(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    for place in (session.path, session.path / STAGED):
        for name in ("@eaDir", ".ipynb_checkpoints"):
            (place / name).mkdir()
            (place / name / "file").touch()
        (place / ".DS_Store").touch()
    assert recover(root)[0] == [root / NAME]
    assert validate_session(root / NAME).notes == ("not of this session: .ipynb_checkpoints, @eaDir",)
    assert partials(root) == []


def record(first_row: int, rows: int, crc: int, rows_of_runs: list[int]) -> bytes:
    """A record of the journal under a checksum that holds, whatever its numbers are."""
    runs = np.zeros(len(rows_of_runs), RUN_DTYPE)
    runs["rows"] = rows_of_runs
    body = struct.pack("<4sIQII", b"BLCK", len(runs), first_row, rows, crc) + runs.tobytes()
    return body + struct.pack("<I", crc32c(body))


def append(session: PartialSession, *records: bytes) -> None:
    with (session.path / JOURNAL).open("ab") as file:
        file.write(b"".join(records))


def recover_in_pieces(root: Path) -> tuple[list[Path], Listener]:
    """Recover with little memory, whatever sizes the journal claims."""
    tracemalloc.start()
    result = recover(root)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 64 << 20
    return result


@pytest.mark.parametrize(("first_row", "rows"), [(2**64 - 1, 5), (2**63, 2**32 - 1), (5_000, 2**32 - 1)])
def test_a_block_past_the_end_of_the_file(root: Path, blocks: Blocks, first_row: int, rows: int) -> None:
    session = leave(root, blocks, range(2))
    append(session, record(first_row, rows, 0, [rows]))
    found, listener = recover_in_pieces(root)
    assert found == [root / NAME]
    lost = f"{session.path.name}: {rows:,} rows did not match checksums and are lost"
    assert listener.messages("error") == [lost]


def test_a_block_of_any_size_is_read_in_pieces(root: Path, blocks: Blocks) -> None:
    session = leave(root, blocks, range(2))
    first_row = blocks[0].rows + blocks[1].rows
    rows = 4_000_000
    os.truncate(session.steps_path, STEPS_HEADER_BYTES + (first_row + rows) * ROW_BYTES)
    append(session, record(first_row, rows, 1, [rows]))
    assert recover_in_pieces(root)[0] == [root / NAME]


@pytest.mark.parametrize(
    ("first_row", "rows", "rows_of_runs"),
    [(10_000, 9, [4, 4]), (10_000, 0, []), (10_000, 0, [0, 0]), (0, 5, [5]), (10_000, 5, [5, 0])],
    ids=["a wrong sum", "no run", "no row", "an overlap", "a run without rows"],
)
def test_blocks_that_no_recorder_confirms(
    root: Path, blocks: Blocks, first_row: int, rows: int, rows_of_runs: list[int]
) -> None:
    session = leave(root, blocks, range(2))
    append(session, record(first_row, rows, 0, rows_of_runs))
    assert_only_this_is_put_away(root, session, blocks, "expected")


@pytest.mark.parametrize(("name", "by"), [("score", 4), ("score", -4), ("highest_tile", 0)])
def test_an_outcome_that_the_boards_do_not_have(root: Path, blocks: Blocks, name: str, by: int) -> None:
    run = blocks[1].runs[1]  # a view
    right = int(run[name])
    run[name] = right + by if by else right * 2
    try:
        session = leave(root, blocks, range(3))
    finally:
        run[name] = right
    assert_only_this_is_put_away(root, session, blocks, f"run {blocks[1].ids[1]} has score")


@pytest.mark.parametrize(
    "error", [ZeroDivisionError("a defect"), RecursionError("too deep"), ValueError("NUL")]
)
def test_a_failure_of_one_does_not_keep_the_others(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    session = leave(root, blocks, range(2))
    fail_for(session, monkeypatch, error)
    assert_only_this_is_put_away(root, session, blocks, str(error))


@pytest.mark.parametrize("error", [OSError(errno.EIO, "Input/output error"), MemoryError("no memory")])
def test_a_device_error_does_not_condemn_the_bytes(
    root: Path, blocks: Blocks, monkeypatch: pytest.MonkeyPatch, error: Exception
) -> None:
    session = leave(root, blocks, range(2))
    leave(root, blocks, [5], serial=2)
    with monkeypatch.context() as patch:
        fail_for(session, patch, error)
        before = snapshot(session.path)
        found, listener = recover(root)
    assert len(found) == 1
    (message,) = listener.messages("error")
    assert message.startswith("not recovered, left in place: ")
    assert snapshot(session.path) == before
    assert len(recover(root)[0]) == 1


def fail_for(session: PartialSession, patch: pytest.MonkeyPatch, error: Exception) -> None:
    def failing(out_dir: Path, partial: Path, *args: object, **kwargs: object) -> object:
        if partial == session.path:
            raise error
        return publish_steps(out_dir, partial, *args, **kwargs)  # type: ignore[arg-type]

    patch.setattr("tape2048_recorder.recording.publish.publish_steps", failing)
