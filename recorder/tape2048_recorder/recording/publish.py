"""From confirmed blocks to a published session, and back to that after a crash.

:func:`publish` can be killed at any point and run again: it begins by removing what an earlier try
left, it works on what the journal says, and only its last rename makes anything visible.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.base.text import counted
from tape2048.errors import FormatError, StorageError, error_class
from tape2048.formats.manifest import finish_session
from tape2048.formats.session import (
    BLOCK_DTYPE,
    RUN_DTYPE,
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    FileEntry,
    session_header,
    step_dtype,
)
from tape2048.io.crc import crc32c_combine
from tape2048.io.durable import (
    fsync_dir,
    fsync_path,
    open_fd,
    path_exists,
    rename_numbered,
    storage_errors,
    write_all,
)
from tape2048.maintenance.validation import validate_session
from tape2048_recorder.recording.journal import JOURNAL, Block, Journal, read_journal
from tape2048_recorder.recording.partial import STAGED, Facts, compactions, read_facts, stage_of

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

_DRAFT = "compaction.tmp"

#: Stands where ``steps.npy`` could not be flushed. The kernel may have dropped pages that it could not write,
#: and reports success when it is asked again: the next try writes the blocks anew.
_DOUBTED = "fsync-failed"


class Published(NamedTuple):
    """What became of a partial session: where it is (None: there was nothing to publish), and its size."""

    path: Path | None
    rows: int
    runs: int
    bytes: int
    recovered: bool
    rows_lost: int

    @property
    def contents(self) -> str:
        """How much it holds, for a person."""
        what = f"{counted(self.runs, 'game')}, {counted(self.rows, 'row')}"
        return f"{what}, {self.bytes / 10**6:,.1f} MB"


def publish(
    out_dir: Path,
    partial: Path,
    facts: Facts,
    blocks: list[Block],
    *,
    ended_at: str,
    flush: Callable[[], bool] = lambda: True,
) -> Published:
    """Make a session of confirmed blocks visible, whole.

    Args:
        out_dir: where.
        partial: the directory it was written in; nothing writes there any more.
        facts: its facts.
        blocks: its confirmed blocks, in any order, not overlapping.
        ended_at: UTC, RFC 3339.
        flush: flushes the rows; False where some may be lost. Then all are read back, and the blocks whose
            checksum holds are written anew.

    Raises:
        StorageError: the operating system said no; calling again is safe.
    """
    return _publish(out_dir, partial, facts, blocks, ended_at=ended_at, recovered=False, flush=flush)


def recover(out_dir: Path, partial: Path, *, ended_at: str) -> Published:
    """Publish what a killed recorder left in ``partial``: each confirmed block whose checksum holds.

    Raises:
        FormatError: the directory does not say what it is, or what comes of it would not pass ``tape2048
            validate``; it is left alone.
        StorageError: the operating system said no; calling again is safe.
    """
    with storage_errors(partial, "recovering a session"):
        stage = stage_of(partial)
        if not path_exists(stage / STAGED):  # published and then killed, or just begun
            _remove(partial, out_dir)
            return Published(None, 0, 0, 0, recovered=True, rows_lost=0)
        try:
            facts = read_facts(partial)
        except FormatError:
            if not read_journal_or_nothing(stage / JOURNAL):
                _remove(partial, out_dir)  # killed while it began: nothing was confirmed
                return Published(None, 0, 0, 0, recovered=True, rows_lost=0)
            raise
        blocks = read_journal(stage / JOURNAL, step_dtype(record_action=facts.record_action).itemsize)
    return _publish(out_dir, partial, facts, blocks, ended_at=ended_at, recovered=True)


def read_journal_or_nothing(path: Path) -> bytes:
    """The journal's bytes behind its header; none where there is no journal.

    Raises:
        OSError: the device would not say.
    """
    try:
        return path.read_bytes()[16:]
    except FileNotFoundError:
        return b""


def _publish(
    out_dir: Path,
    partial: Path,
    facts: Facts,
    blocks: list[Block],
    *,
    ended_at: str,
    recovered: bool,
    flush: Callable[[], bool] = lambda: True,
) -> Published:
    with storage_errors(partial, "publishing a session"):
        claimed = sum(block.rows for block in blocks)
        shutil.rmtree(partial / _DRAFT, ignore_errors=True)
        row_bytes = step_dtype(record_action=facts.record_action).itemsize
        stage = stage_of(partial)
        if stage != partial:  # an earlier try got as far as moving the blocks
            blocks = read_journal(stage / JOURNAL, row_bytes)
        blocks = sorted(blocks, key=lambda block: block.first_row)
        if recovered:
            blocks = _intact(stage / STAGED / STEPS_NPY, blocks, row_bytes)
        doubted = _in_doubt(partial, stage, flush)
        if blocks and (doubted or _has_holes(blocks)):
            stage, blocks = _compact(partial, stage, blocks, row_bytes)
        if not blocks:
            _remove(partial, out_dir)
            return Published(None, 0, 0, 0, recovered, claimed)
        rows = sum(block.rows for block in blocks)
        size = _finish_files(stage / STAGED, facts, blocks, ended_at=ended_at, recovered=recovered)
        path = rename_numbered(stage / STAGED, out_dir / facts.name)
    try:
        fsync_dir(out_dir)
        _remove(partial, out_dir)
    except OSError as error:
        # Never DiskFullError: the session has its name, and another try would find nothing to publish.
        raise StorageError(
            f"published as {path.name}; what follows failed ({error.strerror or error})",
            path=partial,
            hint="look at the kernel's log (dmesg) for the device; the next start removes what is left",
        ) from error
    runs = sum(len(block.runs) for block in blocks)
    return Published(path, rows, runs, size, recovered, claimed - rows)


def _has_holes(blocks: list[Block]) -> bool:
    ends = itertools.accumulate(block.rows for block in blocks)
    return any(block.first_row + block.rows != end for block, end in zip(blocks, ends, strict=True))


def _in_doubt(partial: Path, stage: Path, flush: Callable[[], bool]) -> bool:
    """Whether rows may be missing on the disk, whatever is read now."""
    if flush() or stage != partial:
        return path_exists(stage / _DOUBTED)
    with contextlib.suppress(OSError):
        (stage / _DOUBTED).touch()  # for the next start, should this one be killed
    return True


def _read_block(fd: int, block: Block, row_bytes: int) -> bytearray | None:
    """A block's bytes, or None where they are not what its checksum says."""
    data = bytearray(block.rows * row_bytes)
    done = 0
    while done < len(data):
        at = STEPS_HEADER_BYTES + block.first_row * row_bytes + done
        count = os.preadv(fd, [memoryview(data)[done:]], at)
        if count == 0:
            return None
        done += count
    return data if crc32c(data) == block.crc32c else None


def _intact(steps: Path, blocks: list[Block], row_bytes: int) -> list[Block]:
    try:
        with open_fd(steps, os.O_RDONLY) as fd:
            return [block for block in blocks if _read_block(fd, block, row_bytes) is not None]
    except FileNotFoundError:  # killed while a session of which nothing was intact was being removed
        return []


def _compact(partial: Path, stage: Path, blocks: list[Block], row_bytes: int) -> tuple[Path, list[Block]]:
    """Write the blocks anew without holes, with a journal of their own, and let that take over."""
    draft = partial / _DRAFT
    compacted = partial / f"compacted-{len(compactions(partial)) + 1}"
    (draft / STAGED).mkdir(parents=True)
    moved: list[Block] = []
    with (
        open_fd(stage / STAGED / STEPS_NPY, os.O_RDONLY) as source,
        open_fd(draft / STAGED / STEPS_NPY, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target,
        contextlib.closing(Journal(draft / JOURNAL, row_bytes)) as journal,
    ):
        end = 0
        for block in blocks:
            data = _read_block(source, block, row_bytes)
            if data is None:  # counted as lost by the caller
                continue
            write_all(target, data, STEPS_HEADER_BYTES + end * row_bytes)
            runs = block.runs.copy()
            runs["first_row"] -= np.uint64(block.first_row - end)  # blocks only move to the front
            moved.append(Block(end, block.rows, block.crc32c, runs))
            journal.append(moved[-1])
            end += block.rows
        os.fsync(target)
    for path in (draft / JOURNAL, draft / STAGED, draft):
        fsync_path(path)
    draft.rename(compacted)
    fsync_dir(partial)
    return compacted, moved


def _finish_files(session: Path, facts: Facts, blocks: list[Block], *, ended_at: str, recovered: bool) -> int:
    """Header, true length, metadata, manifest: everything but the name. Returns the session's bytes."""
    dtype = step_dtype(record_action=facts.record_action)
    rows = sum(block.rows for block in blocks)
    for leftover in session.iterdir():  # of an earlier try
        if leftover.name != STEPS_NPY:
            leftover.unlink()
    header = session_header(dtype, rows)
    steps_crc = crc32c(header)
    for block in blocks:
        steps_crc = crc32c_combine(steps_crc, block.crc32c, block.rows * dtype.itemsize)
    with open_fd(session / STEPS_NPY, os.O_RDWR) as fd:
        write_all(fd, header, 0)
        os.ftruncate(fd, len(header) + rows * dtype.itemsize)
        try:
            os.fsync(fd)
        except OSError:
            with contextlib.suppress(OSError):
                (session.parent / _DOUBTED).touch()
            raise
    runs = np.concatenate([block.runs for block in blocks], dtype=RUN_DTYPE)
    summaries = np.array([block[:3] for block in blocks], dtype=BLOCK_DTYPE)
    extra = {"ended_at": ended_at, "rows": rows, "runs": len(runs), "recovered": recovered}
    steps = FileEntry(len(header) + rows * dtype.itemsize, steps_crc)
    size = finish_session(session, steps, runs, summaries, msgspec.structs.asdict(facts) | extra)
    if recovered:
        _check_whole(session)
    return size


def _check_whole(session: Path) -> None:
    """Read a session that a dead recorder has written to its last byte, before anybody sees it."""
    if not validate_session(session).findings:
        return
    # Once more: SQLite does not always say that it was the device that failed, and that may have been once.
    findings = validate_session(session).findings
    if not findings:
        return
    first = findings[0]
    # What the device refuses says nothing of the bytes: the next start looks again.
    unread = [found for found in findings if issubclass(error_class(found.error), StorageError)]
    kind = StorageError if unread else FormatError
    more = f" (and {counted(len(findings) - 1, 'more finding')})" if len(findings) > 1 else ""
    raise kind(f"it would be no whole session: {(unread or [first])[0].message}{more}", path=first.path)


def _remove(partial: Path, out_dir: Path) -> None:
    """Remove a directory whose session is published or never was.

    The rows go first, and those of the stage that speaks for it last of all: however far this gets, no
    stage is left that would be published (again).
    """
    for stage in (partial, *compactions(partial)):
        if path_exists(stage / STAGED):
            shutil.rmtree(stage / STAGED)
    shutil.rmtree(partial)
    fsync_dir(out_dir)
