"""Publishes partial sessions, also those that a killed recorder left open.

:func:`publish` can be killed at any point and run again: it first removes what an earlier try left, it works
on the journal's blocks, and only its last rename makes anything visible.
"""

from __future__ import annotations

import contextlib
import fnmatch
import itertools
import os
import shutil
from datetime import UTC, datetime
from typing import TYPE_CHECKING, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.base.findings import Finding
from tape2048.base.text import counted
from tape2048.errors import FormatError, StorageError, TapeError, error_class
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
    storage_error,
    storage_errors,
    write_all,
)
from tape2048.maintenance.quarantine import quarantine
from tape2048.maintenance.validation import validate_session
from tape2048_recorder.recording.journal import JOURNAL, JOURNAL_HEADER_BYTES, Block, Journal, read_journal
from tape2048_recorder.recording.partial import (
    PARTIAL_SUFFIX,
    STAGED,
    Facts,
    compactions,
    read_facts,
    stage_of,
    utc_text,
)

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048_recorder.status.report import Reporter

_DRAFT = "compaction.tmp"

#: Marks a ``steps.npy`` that could not be flushed. The kernel may have dropped pages that it could not write,
#: and reports success for the next flush: the next try writes the blocks anew.
_DOUBTED = "fsync-failed"


class Published(NamedTuple):
    """The result for a partial session: its path (None: there was nothing to publish), and its size."""

    path: Path | None
    rows: int
    runs: int
    bytes: int
    recovered: bool
    rows_lost: int

    @property
    def contents(self) -> str:
        """A description of its size."""
        what = f"{counted(self.runs, 'game')}, {counted(self.rows, 'row')}"
        return f"{what}, {self.bytes / 10**6:,.1f} MB"


def publish(
    out_dir: Path,
    partial: Path,
    facts: Facts,
    blocks: list[Block],
    *,
    ended_at: str,
    recovered: bool = False,
    flush: Callable[[], bool] = lambda: True,
) -> Published:
    """Publish the confirmed blocks of a partial session as a whole session.

    Args:
        out_dir: the directory to publish in.
        partial: the directory that the session was written in; nothing writes there any more.
        facts: its facts.
        blocks: its confirmed blocks, in any order, not overlapping.
        ended_at: UTC, RFC 3339.
        recovered: whether its recorder was killed. Then all is read back, and only the blocks whose checksum
            holds are published.
        flush: flushes the rows; returns False if some may be lost. Then all are read back, and the blocks
            whose checksum holds are written anew.

    Raises:
        StorageError: an operating system error; calling again is safe.
    """
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
        # Never DiskFullError: the session has its name, and a retry would find nothing to publish.
        raise StorageError(
            f"published as {path.name}; removing the partial directory failed ({error.strerror or error})",
            path=partial,
            hint="look at the kernel's log (dmesg) for the device; the next start removes what is left",
        ) from error
    runs = sum(len(block.runs) for block in blocks)
    return Published(path, rows, runs, size, recovered, claimed - rows)


def recover(out_dir: Path, partial: Path, *, ended_at: str) -> Published:
    """Publish a killed recorder's partial session: each confirmed block whose checksum holds.

    Raises:
        FormatError: the directory has no valid facts, or the session would not pass ``tape2048 validate``; it
            is left alone.
        StorageError: an operating system error; calling again is safe.
    """
    with storage_errors(partial, "recovering a session"):
        stage = stage_of(partial)
        if not path_exists(
            stage / STAGED
        ):  # published and killed before the shell was removed, or just begun
            _remove(partial, out_dir)
            return Published(None, 0, 0, 0, recovered=True, rows_lost=0)
        try:
            facts = read_facts(partial)
        except FormatError:
            with contextlib.suppress(FileNotFoundError):
                if len((stage / JOURNAL).read_bytes()) > JOURNAL_HEADER_BYTES:
                    raise
            _remove(partial, out_dir)  # killed while it began: nothing was confirmed
            return Published(None, 0, 0, 0, recovered=True, rows_lost=0)
        blocks = read_journal(stage / JOURNAL, step_dtype(record_action=facts.record_action).itemsize)
    return publish(out_dir, partial, facts, blocks, ended_at=ended_at, recovered=True)


def recover_all(out_dir: Path, instance: str, reporter: Reporter) -> list[Path]:
    """Publish the partial sessions of this instance's killed recorders; call with the instance's lock held.

    An invalid directory goes to the quarantine with the reason; one that the operating system cannot read or
    write stays for the next start. Both are reported.
    """
    try:
        # Not Path.glob, which reports an unreadable directory as empty (since Python 3.13).
        names = fnmatch.filter(os.listdir(out_dir), f".*.{instance}{PARTIAL_SUFFIX}")  # noqa: PTH208
        partials = sorted(out_dir / name for name in names)
    except OSError as error:
        raise storage_error(error, out_dir, "looking for unfinished sessions") from error
    found = []
    for partial in partials:
        try:
            published = recover(out_dir, partial, ended_at=_last_written(partial))
        except FormatError as error:
            try:
                where = quarantine(out_dir, partial, [Finding.of(error)], by="recovery")
            except TapeError as refused:
                reporter.event("error", f"not recovered, left as it is: {error} ({refused.message})")
            else:
                to = f"{where.parent.name}/{where.name}"
                reporter.event("error", f"not recovered, put into {to}: {error}")
            continue
        except TapeError as error:
            reporter.event("error", f"not recovered, left as it is: {error}")
            continue
        if published.path is not None:
            found.append(published.path)
            what = f"recovered {published.path.name}: {published.contents}, from a killed recorder"
            reporter.event("warning", what)
        if published.rows_lost:
            lost = counted(published.rows_lost, "row")
            reporter.event("error", f"{partial.name}: {lost} did not match checksums")
    return found


def _last_written(partial: Path) -> str:
    try:
        moment = (stage_of(partial) / JOURNAL).stat().st_mtime
    except OSError:
        return utc_text()
    return utc_text(datetime.fromtimestamp(moment, UTC))


def _has_holes(blocks: list[Block]) -> bool:
    ends = itertools.accumulate(block.rows for block in blocks)
    return any(block.first_row + block.rows != end for block, end in zip(blocks, ends, strict=True))


def _in_doubt(partial: Path, stage: Path, flush: Callable[[], bool]) -> bool:
    """Whether rows may be missing on the disk, even if reading returns them now."""
    if flush() or stage != partial:
        return path_exists(stage / _DOUBTED)
    with contextlib.suppress(OSError):
        (stage / _DOUBTED).touch()  # for the next start, should this one be killed
    return True


def _read_block(fd: int, block: Block, row_bytes: int) -> bytearray | None:
    """Read a block; None if its checksum does not match."""
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
    except FileNotFoundError:  # killed during the removal of a session without intact blocks
        return []


def _compact(partial: Path, stage: Path, blocks: list[Block], row_bytes: int) -> tuple[Path, list[Block]]:
    """Write the blocks anew without holes, with their own journal, and make that the current stage."""
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
    """Write header, true length, metadata and manifest: all but the name. Return the session's bytes."""
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
    """Validate every byte of a dead recorder's session before it becomes visible."""
    if not validate_session(session).findings:
        return
    # Once more: SQLite does not always report a device error as one, and it may have been transient.
    findings = validate_session(session).findings
    if not findings:
        return
    # A device error proves nothing about the bytes: the next start tries again.
    unread = [found for found in findings if issubclass(error_class(found.error), StorageError)]
    kind = StorageError if unread else FormatError
    more = f" (and {counted(len(findings) - 1, 'more finding')})" if len(findings) > 1 else ""
    raise kind(
        f"it would be no whole session: {(unread or findings)[0].message}{more}", path=findings[0].path
    )


def _remove(partial: Path, out_dir: Path) -> None:
    """Remove the partial directory of a session that is published or empty.

    The rows go first, those of the current stage last: wherever this is interrupted, no stage remains that
    would be published (again).
    """
    for stage in (partial, *compactions(partial)):
        if path_exists(stage / STAGED):
            shutil.rmtree(stage / STAGED)
    shutil.rmtree(partial)
    fsync_dir(out_dir)
