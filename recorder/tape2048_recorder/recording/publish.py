"""Publishing of partial sessions, including sessions that a killed recorder left behind.

:func:`publish_steps` can be killed at any point and run again. It first removes the remains of an earlier
try, uses only the blocks in the journal, and makes the session visible by its last rename.
"""

from __future__ import annotations

import contextlib
import errno
import fnmatch
import functools
import itertools
import math
import os
from collections import deque
from operator import attrgetter
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.base.findings import Finding
from tape2048.base.text import counted
from tape2048.errors import (
    BookkeepingError,
    DiskFullError,
    FormatError,
    MissingPathError,
    RecorderError,
    StorageError,
    TapeError,
    TooManyFilesError,
    TruncatedError,
    error_class,
)
from tape2048.files.npy import rows_header
from tape2048.files.opening import NO_FILES, storage_error, storage_errors
from tape2048.files.reading import crc32c_combine
from tape2048.players import player_text
from tape2048.session.columns import RECORDED, column_text
from tape2048.session.layout import BLOCK_DTYPE, RUN_DTYPE, FileEntry, name_key
from tape2048.session.tape_layout import (
    ANCHOR_DTYPE,
    ANCHOR_ROWS,
    ANCHORS_NPY,
    TAPE_HEADER_BYTES,
    TAPE_NPY,
    anchor_count,
)
from tape2048_recorder.game.kept_starts import load_starts
from tape2048_recorder.recording.partial import (
    COMPACTION_DRAFT,
    JOURNAL,
    JOURNAL_HEADER_BYTES,
    PARTIAL_SUFFIX,
    STAGED,
    SYSTEM_DIRECTORIES,
    Block,
    Facts,
    Journal,
    PartialSession,
    compactions,
    read_facts,
    read_journal,
    refuse_foreign_files,
    staging_of,
    utc_text,
)
from tape2048_recorder.recording.world import REAL, World, at_once

if TYPE_CHECKING:
    from collections.abc import Callable, Generator, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048_recorder.game.rows_file import RowsFile
    from tape2048_recorder.status.status_report import Reporter

#: Rows to decode at once, whose boards fit into the second-level cache. A longer game is decoded whole.
_PIECE_ROWS = 1 << 17

#: Bytes to read at once: a damaged journal can claim blocks of any size.
_CHUNK_BYTES = 1 << 20

#: File that marks rows that could not be flushed. The kernel may have dropped pages that it could not write,
#: and still report success for the next flush, so the next try writes the blocks again.
_DOUBTED = "fsync-failed"

#: Delay between two tries while the disk is full or no descriptor is free.
RETRY_S = 1.0


class Published(NamedTuple):
    """A published session: its path (None if it had no intact block), its size, and the rows it lost."""

    path: Path | None
    rows: int
    runs: int
    bytes: int
    recovered: bool
    rows_lost: int

    @property
    def contents(self) -> str:
        megabytes = f"{self.bytes / 10**6:,.1f} MB"
        return f"{counted(self.runs, 'game')}, {counted(self.rows, 'row')}, {megabytes}"


def publish_steps(
    out_dir: Path,
    partial: Path,
    facts: Facts,
    blocks: list[Block],
    *,
    ended_at: str,
    recovered: bool = False,
    flush: Callable[[], bool] = lambda: True,
    world: World = REAL,
) -> Generator[float, None, Published]:
    """Publish the committed blocks step by step; yield the seconds to wait before the next step.

    A dead recorder left a ``recovered`` session behind. ``flush`` flushes the rows, and returns False if some
    may be missing on the disk. ``ended_at`` is UTC, RFC 3339.
    """
    with storage_errors(partial, "publishing a session"):
        claimed = sum(block.rows for block in blocks)
        world.rmtree(partial / COMPACTION_DRAFT, ignore_errors=True)
        staging = staging_of(partial)
        if staging != partial:  # an earlier try has moved the blocks
            blocks = read_journal(staging / JOURNAL, facts.row_bytes, world)
        blocks = _intact(world, staging / STAGED, sorted(blocks, key=lambda block: block.first_row), facts)
        yield 0.0
        doubted = _in_doubt(world, partial, staging, flush)
        while blocks and (doubted or _has_holes(blocks)):
            staging, blocks = yield from _compact(world, partial, staging, blocks, facts)
            doubted, blocks = False, _intact(world, staging / STAGED, blocks, facts)
        if not blocks:
            try:
                _remove(world, partial, out_dir)
            except OSError as error:  # never DiskFullError: a new session may have taken the name
                raise StorageError(f"cannot be removed: {error.strerror or error}", path=partial) from error
            return Published(None, 0, 0, 0, recovered, claimed)
        rows = sum(block.rows for block in blocks)
        runs = sum(len(block.runs) for block in blocks)
        extra = {"ended_at": ended_at, "recovered": recovered}
        given = None
        if facts.start_boards is not None and facts.file.is_tape:
            given = load_starts(facts.start_boards.path(out_dir))
        size = yield from _finish_files(world, staging / STAGED, facts, blocks, extra, given=given)
        yield 0.0
        path: Path = world.files.rename_numbered(staging / STAGED, out_dir / facts.name)
        published = Published(path, rows, runs, size, recovered, claimed - rows)
    try:
        world.files.fsync_dir(out_dir)
        yield 0.0
        _remove(world, partial, out_dir)
    except OSError as error:
        if error.errno in NO_FILES:  # sync() needs no descriptor. The next start removes the directory
            world.os.sync()
            return published
        # Never DiskFullError: the session is published, and a retry would find nothing to publish.
        raise StorageError(
            f"cannot be removed ({error.strerror or error}); its session is published as {path.name}",
            path=partial,
            hint="Check the device in the kernel's log (dmesg). The next start removes the directory.",
        ) from error
    return published


def recover(out_dir: Path, partial: Path, *, ended_at: str, world: World = REAL) -> Published:
    """Publish a dead recorder's partial session: every committed block whose checksum matches."""
    with storage_errors(partial, "recovering a session"):
        refuse_foreign_files(partial)
        staging = staging_of(partial)
        try:
            # Without session/, it was just created, or it is the rest of a published session.
            facts = read_facts(partial) if world.files.path_exists(staging / STAGED) else None
            blocks = [] if facts is None else read_journal(staging / JOURNAL, facts.row_bytes, world)
        except (FormatError, MissingPathError):
            if not _has_just_begun(world, staging):
                raise
            facts = None
        if facts is None:
            _remove(world, partial, out_dir)
            return Published(None, 0, 0, 0, recovered=True, rows_lost=0)
    paths = [staging / STAGED / file.name for file in facts.files]

    def flush() -> bool:
        try:
            for path in paths:
                world.files.fsync_path(path)
        except OSError:
            return False
        return True

    steps = functools.partial(publish_steps, out_dir, partial, facts, blocks, flush=flush, world=world)
    try:
        return at_once(steps(ended_at=ended_at, recovered=True))
    except StorageError as error:
        if getattr(error.__cause__, "errno", None) != errno.EXDEV or staging != partial:
            raise
    # OverlayFS does not rename directories of a lower layer, so publish a copy.
    with storage_errors(partial, "copying a session"):
        at_once(_compact(world, partial, partial, sorted(blocks, key=attrgetter("first_row")), facts))
    return recover(out_dir, partial, ended_at=ended_at, world=world)


def _has_just_begun(world: World, staging: Path) -> bool:
    """Whether no block was committed: the journal has no record, or there is neither journal nor row."""
    try:
        return len(world.load_path(staging / JOURNAL)) <= JOURNAL_HEADER_BYTES
    except MissingPathError:
        return not any(file.stat().st_size for file in (staging / STAGED).iterdir())


def recover_all(out_dir: Path, instance: str, reporter: Reporter, world: World = REAL) -> list[Path]:
    """Publish the sessions of this instance's dead recorders, with the lock held; return their paths.

    A malformed directory is quarantined. One that cannot be read or written, or for which memory is too
    small, stays for the next start. Both are reported.
    """
    try:
        # Not Path.glob, which reports an unreadable directory as empty (since Python 3.13).
        pattern = f".*.{instance}{PARTIAL_SUFFIX}"
        found = (path for path in out_dir.iterdir() if fnmatch.fnmatchcase(path.name, pattern))
        end = len(f".{instance}{PARTIAL_SUFFIX}")
        partials = sorted(found, key=lambda path: name_key(path.name[:-end]))
    except OSError as error:
        raise storage_error(error, out_dir, "listing unfinished sessions") from error
    recovered = []
    for partial in partials:
        try:
            try:
                ended_at = utc_text((staging_of(partial) / JOURNAL).stat().st_mtime)
            except (OSError, OverflowError, ValueError):  # a time outside the calendar
                ended_at = utc_text(world.time.time())
            published = recover(out_dir, partial, ended_at=ended_at, world=world)
        except Exception as error:  # noqa: BLE001 - a crafted directory must not stop the others' recovery
            _give_up(world, out_dir, partial, error, reporter)
            continue
        if published.path is not None:
            recovered.append(published.path)
            what = f"recovered {published.path.name}: {published.contents}, from a killed recorder"
            reporter.event("warning", what)
        if published.rows_lost:
            lost = counted(published.rows_lost, "row")
            reporter.event("error", f"{partial.name}: {lost} did not match checksums and are lost")
    return recovered


def _give_up(world: World, out_dir: Path, partial: Path, error: Exception, reporter: Reporter) -> None:
    if not isinstance(error, TapeError):
        kind = StorageError if isinstance(error, OSError | MemoryError) else FormatError
        error = kind(f"recovery failed: {error!r}", path=partial)
    where, why = "left in place", ""
    if isinstance(error, FormatError):
        try:
            to = world.quarantine(out_dir, partial, [Finding.of(error)], by="recovery")
            where = f"moved to {to.parent.name}/{to.name}"
        except TapeError as refused:
            why = f" ({refused.message})"
    reporter.event("error", f"not recovered, {where}: {error}{why}")


def _has_holes(blocks: list[Block]) -> bool:
    ends = itertools.accumulate(block.rows for block in blocks)
    return any(block.first_row + block.rows != end for block, end in zip(blocks, ends, strict=True))


def _in_doubt(world: World, partial: Path, staging: Path, flush: Callable[[], bool]) -> bool:
    """Whether rows may be missing on the disk, even if they can be read now."""
    mark = staging / _DOUBTED
    if staging != partial or world.files.path_exists(mark):
        flush()
        return bool(world.files.path_exists(mark))
    # The kernel reports a failed write only once, so the mark is set before the flush. Afterwards, a full
    # disk could have no space for it, and the next start would trust the rows.
    mark.touch()
    if not flush():
        return True
    mark.unlink()
    return False


def _holds(
    world: World,
    fds: list[int],
    block: Block,
    files: list[RowsFile],
    copy: tuple[list[int], int] | None = None,
) -> bool:
    """Whether a block matches its checksums; it is also copied to ``copy``: descriptors and first row."""
    found = [0, 0]
    for number, (fd, file) in enumerate(zip(fds, files, strict=True)):
        at, left, copied = file.at(block.first_row), block.rows * file.row_bytes, 0
        if at + left > world.os.fstat(fd).st_size:
            return False
        buffer = memoryview(bytearray(min(left, _CHUNK_BYTES)))
        while left and (count := world.os.preadv(fd, [buffer[:left]], at)):
            found[number > 0] = crc32c(buffer[:count], found[number > 0])
            if copy is not None:
                world.files.write_all(copy[0][number], buffer[:count], file.at(copy[1]) + copied)
            at, left, copied = at + count, left - count, copied + count
        if left:
            return False
    return found == [block.crc32c, block.columns_crc32c or 0]


@contextlib.contextmanager
def _opened(world: World, session: Path, files: list[RowsFile], flags: int) -> Iterator[list[int]]:
    with contextlib.ExitStack() as stack:
        yield [stack.enter_context(world.files.open_fd(session / file.name, flags)) for file in files]


def _intact(world: World, session: Path, blocks: list[Block], facts: Facts) -> list[Block]:
    files = facts.files
    try:
        with _opened(world, session, files, os.O_RDONLY) as fds:
            return [block for block in blocks if _holds(world, fds, block, files)]
    except FileNotFoundError as error:
        if world.files.path_exists(session / files[0].name):
            missing = f"found no file, expected the column of {counted(len(blocks), 'block')}"
            raise FormatError(missing, path=error.filename) from error
        return []  # the removal of a session without intact blocks was interrupted


def _compact(
    world: World, partial: Path, staging: Path, blocks: list[Block], facts: Facts
) -> Generator[float, None, tuple[Path, list[Block]]]:
    """Write the blocks again without holes, with a new journal, and make them current."""
    draft = partial / COMPACTION_DRAFT
    compacted = partial / f"compacted-{len(compactions(partial)) + 1}"
    (draft / STAGED).mkdir(parents=True)
    moved: list[Block] = []
    files = facts.files
    with (
        _opened(world, staging / STAGED, files, os.O_RDONLY) as sources,
        _opened(world, draft / STAGED, files, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as targets,
        contextlib.closing(Journal(draft / JOURNAL, facts.row_bytes, world)) as journal,
    ):
        end = 0
        for block in blocks:
            yield 0.0
            if not _holds(world, sources, block, files, (targets, end)):
                continue  # the caller counts it as lost
            runs = block.runs.copy()
            runs["first_row"] -= np.uint64(block.first_row - end)  # blocks move only to lower rows
            moved.append(block._replace(first_row=end, runs=runs))
            journal.append(moved[-1])
            end += block.rows
        for target in targets:
            world.os.fsync(target)
    for path in (draft / JOURNAL, draft / STAGED, draft):
        world.files.fsync_path(path)
    draft.rename(compacted)
    world.files.fsync_dir(partial)
    return compacted, moved


def _finish_files(
    world: World,
    session: Path,
    facts: Facts,
    blocks: list[Block],
    extra: dict[str, Any],
    *,
    given: NDArray[np.uint64] | None,
) -> Generator[float, None, int]:
    """Write headers, final lengths, metadata and manifest of a session; return its bytes."""
    file = facts.file
    rows = sum(block.rows for block in blocks)
    kept = {*SYSTEM_DIRECTORIES, *(each.name for each in facts.files)}
    for leftover in session.iterdir():  # from an earlier try
        if leftover.name not in kept:
            leftover.unlink()
    for each in facts.files:
        with world.files.open_fd(session / each.name, os.O_RDWR) as fd:
            world.files.write_all(fd, each.header(rows), 0)
            world.os.ftruncate(fd, each.at(rows))
            try:
                world.os.fsync(fd)
            except OSError:
                with contextlib.suppress(OSError):
                    (session.parent / _DOUBTED).touch()
                raise
    checksum = crc32c(file.header(rows))
    for block in blocks:
        checksum = crc32c_combine(checksum, block.crc32c, block.rows * file.row_bytes)
    judge = {
        "judge": player_text(msgspec.to_builtins(facts)),
        "judge_sha256": facts.player_sha256,
        "calibrated": facts.calibrated or "",
    }
    for column, each in zip(facts.columns, facts.files[1:], strict=True):
        origin = {"maker": RECORDED, **judge, **column.facts}
        own = yield from _checksum(world, session / each.name, each.at(rows))
        made = msgspec.structs.replace(column, rows=rows, steps_crc32c=checksum, facts=origin, crc32c=own)
        world.files.write_file(session / made.json_name, column_text(made))
    runs = np.concatenate([block.runs for block in blocks], dtype=RUN_DTYPE)
    summaries = np.array([block[:3] for block in blocks], dtype=BLOCK_DTYPE)
    told = {**msgspec.to_builtins(facts), **extra, "rows": rows, "runs": len(runs)}
    if facts.start_boards is None:
        del told["start_boards"]
    files = {file.name: FileEntry(file.at(rows), checksum)}
    on_tape: dict[str, Any] = {}
    yield 0.0
    if file.is_tape:
        anchors, starts = yield from decode_games(world, session, runs, given)
        files[ANCHORS_NPY] = anchors
        on_tape = {"start_boards": starts, "anchor_rows": ANCHOR_ROWS}
    size = world.finish_session(session, files, runs, summaries, told, **on_tape)
    size += sum(each.at(rows) for each in facts.files[1:])
    if extra["recovered"]:
        _check_whole(world, session)
    return size


def _checksum(world: World, path: Path, size: int) -> Generator[float, None, int]:
    """Return the CRC-32C of a file; yield the seconds to wait."""
    checksum, at, piece = 0, 0, np.empty(min(size, 8 * _PIECE_ROWS), np.uint8)
    with world.files.open_fd(path, os.O_RDONLY) as fd:
        while at < size:
            count = world.os.preadv(fd, [piece.data], at)
            if not count:
                raise TruncatedError(f"the file ends early; expected {size} bytes", path=path, offset=at)
            checksum, at = crc32c(piece[:count].data, checksum), at + count
            yield 0.0
    return checksum


def decode_games(
    world: World, session: Path, runs: NDArray[np.void], given: NDArray[np.uint64] | None = None
) -> Generator[float, None, tuple[FileEntry, NDArray[np.uint64]]]:
    """Check a staged tape against its ``runs``, and write its anchors; yield the seconds to wait.

    Each game is decoded once, and compared with the rules and with its worker's report. Memory does not grow
    with the session. ``given`` has the boards to start from; None: two tiles. Returns the entry of the
    anchors' file, and the start boards, ``u64[R]``.
    """
    from tape2048.session.tape_reader import anchors_of, check_games, game_pieces
    from tape2048_recorder.game.rng import start_boards

    path = session / TAPE_NPY
    ends = np.cumsum(runs["rows"], dtype=np.uint64)
    if not np.array_equal(runs["first_row"], ends - runs["rows"]):
        raise BookkeepingError("found runs with gaps or overlaps, expected one after the other", path=path)
    starts = start_boards(np.ascontiguousarray(runs["seed"]), given)
    header = rows_header(ANCHOR_DTYPE, anchor_count(int(ends[-1])), TAPE_HEADER_BYTES)
    checksum, size = crc32c(header), len(header)
    boards = np.empty(_PIECE_ROWS, np.uint64)
    files = world.files
    with (
        files.open_fd(path, os.O_RDONLY) as source,
        files.open_fd(session / ANCHORS_NPY, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as target,
    ):
        files.write_all(target, header, 0)
        for piece, rows in game_pieces(runs, _PIECE_ROWS):
            first, end = rows.start, rows.stop
            if end - first > len(boards):
                boards = np.empty(end - first, np.uint64)
            tape = np.empty(end - first, np.uint8)
            at, left = TAPE_HEADER_BYTES + first, tape.data
            while left and (count := world.os.preadv(source, [left], at)):
                at, left = at + count, left[count:]
            if left:
                raise TruncatedError("the file ends before its last run", path=path, offset=at)
            checked = check_games(tape, runs[piece], starts[piece], boards)
            for defect in checked.defects:
                raise defect.error(runs[piece][defect.game], path)
            anchors = np.ascontiguousarray(anchors_of(checked.boards, first)).data
            files.write_all(target, anchors, size)
            checksum, size = crc32c(anchors, checksum), size + anchors.nbytes
            yield 0.0
        world.os.fsync(target)
    return FileEntry(size, checksum), starts


def _check_whole(world: World, session: Path) -> None:
    """Validate every byte of a dead recorder's session before it becomes visible."""
    # Twice: a device error can be transient, and SQLite does not always report it as a device error.
    findings = world.validate(session).findings and world.validate(session).findings
    if not findings:
        return
    # A device error proves nothing about the bytes: the next start tries again.
    unread = [found for found in findings if issubclass(error_class(found.error), StorageError)]
    kind = StorageError if unread else FormatError
    more = f" (and {counted(len(findings) - 1, 'more finding')})" if len(findings) > 1 else ""
    raise kind(
        f"not published, because validation failed: {(unread or findings)[0].message}{more}",
        path=findings[0].path,
    )


def _remove(world: World, partial: Path, out_dir: Path) -> None:
    """Remove a partial directory so that no interruption leaves a valid staging directory."""
    for staging in (partial, *compactions(partial)):
        if world.files.path_exists(staging / STAGED):
            world.rmtree(staging / STAGED)
    world.rmtree(partial)
    world.files.fsync_dir(out_dir)


class PublishOutcome(NamedTuple):
    """The outcome of a try to publish a session. If it is not ``final``, another try follows."""

    session: PartialSession
    published: Published | None
    error: TapeError | None
    final: bool
    seconds: float = 0.0


class Publisher:
    """A thread that publishes sessions in the order of closing; fsync must not block the daemon's loop."""

    def __init__(self, out_dir: Path, world: World = REAL) -> None:
        self._out_dir = out_dir
        self._world = world
        self.queue: deque[PartialSession] = deque()  # sessions that are still to be published
        self._outcomes: deque[PublishOutcome] = deque()
        self._gives_up = self._ends = False
        self.pending: list[PartialSession] = []  # closed sessions without a final outcome
        self._background = world.background("publisher", self._steps())

    def submit(self, session: PartialSession) -> None:
        """Publish this session, to which no worker writes any more."""
        # Some network file systems report a failed write only on close. That does not matter here: the blocks
        # are in memory, and the journal is only for recovery.
        with contextlib.suppress(OSError):
            session.journal.close()
        self.pending.append(session)
        self.queue.append(session)
        self._background.wake()

    def outcomes(self) -> list[PublishOutcome]:
        """Return the outcomes since the last call. If the thread has died, every session has failed."""
        alive = self._background.alive()
        done = [self._outcomes.popleft() for _ in range(len(self._outcomes))]
        for outcome in filter(attrgetter("final"), done):
            self.pending.remove(outcome.session)
        if not alive:
            died = RecorderError("the thread that publishes sessions has died", hint="See its error above.")
            done += [PublishOutcome(session, None, died, final=True) for session in self.pending]
            self.pending.clear()
        return done

    def give_up(self) -> None:
        """Stop retrying; unpublished sessions stay for the next start."""
        self._gives_up = True
        self._background.wake()

    def close(self) -> None:
        """End the thread, once it has tried each session."""
        self._ends = True
        self.give_up()
        self._background.join()

    def _steps(self) -> Iterator[float]:
        while True:
            if self.queue:
                yield from self._publish(self.queue[0])
                self.queue.popleft().close()
            elif self._ends:
                return
            else:
                yield math.inf

    def _publish(self, session: PartialSession) -> Iterator[float]:
        while True:
            begin = self._world.now
            published: Published | None = None
            error: TapeError | None = None
            final = True
            try:
                published = yield from publish_steps(
                    self._out_dir,
                    session.path,
                    session.facts,
                    session.blocks,
                    ended_at=utc_text(self._world.time.time()),
                    flush=session.flush,
                    world=self._world,
                )
            except (DiskFullError, TooManyFilesError) as full:
                final, error = self._gives_up, full
            except TapeError as refused:
                error = refused
            except Exception as other:  # noqa: BLE001 - every error is reported to the daemon
                error = TapeError(f"publishing failed: {other!r}", path=session.path)
            seconds = 0.0 if published is None else self._world.now - begin
            self._outcomes.append(PublishOutcome(session, published, error, final, seconds))
            if final:
                return
            until = self._world.now + RETRY_S
            while not self._gives_up and (wait_s := until - self._world.now) > 0:
                yield wait_s
