"""The sessions that a recorder is writing, their rotation, and the reasons to pause.

Blocks go into the open session. A session that is full, or old enough, is closed: it receives no more blocks,
waits for unfinished writes, and is then published.
"""

from __future__ import annotations

import contextlib
import dataclasses
import errno
import logging
import math
import os
import resource
from collections.abc import Callable
from pathlib import Path

from tape2048.errors import FormatError, StorageError
from tape2048.files.opening import storage_error
from tape2048.session.layout import METADATA_DB, SESSION_NAME, STEPS_NPY
from tape2048.session.tape_layout import ANCHORS_NPY, TAPE_NPY
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile
from tape2048_recorder.ipc.protocol import BlockWritten, Range, WriteFailed
from tape2048_recorder.record_options import RecorderConfig, columns_row_bytes, row_bytes
from tape2048_recorder.recording.partial import Block, Facts, PartialSession, utc_text
from tape2048_recorder.recording.publish import RETRY_S, Publisher, PublishOutcome
from tape2048_recorder.recording.world import REAL, World

#: Number of closed, unpublished sessions at which workers pause: the disk is too slow.
BACKLOG_MAX = 3

MEGABYTE = 10**6

#: Interval at which the sessions in ``out_dir`` are measured, if their size is limited.
RECOUNT_S = 60.0

#: The files whose sizes count towards ``max_disk_mb`` and ``spool_max_mb``.
_FILES = frozenset(
    {STEPS_NPY, TAPE_NPY, ANCHORS_NPY, METADATA_DB, *(column.npy_name for column in COLUMNS.values())}
)

#: Measured bytes per run in ``metadata.db`` on tape (with rows: 72). A short game's tape takes twice as many.
RUN_BYTES = 90

#: Bytes of a session without rows and runs.
SESSION_BYTES = 25_000

#: Rows per game, assumed before the first game ends: few, so that the first games do not exceed a limit.
GAME_ROWS_MIN = 64

#: Failed writes after which a session gets no more blocks: it was removed, or its file cannot grow.
_ENDS_SESSION = {errno.ENOENT, errno.ESTALE, errno.EFBIG}

#: The value of a limit that is not set.
NO_LIMIT = 1 << 60

#: Prefixes of the reasons for a pause.
DISK_FULL = "the disk is full"
#: In the message of a DiskFullError.
NO_ROOM = "no room"
PUBLISHING = "publishing is behind"
SPOOL_FULL = "the spool is full"


@dataclasses.dataclass(eq=False)
class Recording:
    """The open and closing sessions: reserves row ranges, commits blocks, and rotates."""

    out_dir: Path
    config: RecorderConfig
    #: Returns a session's facts for the configuration, the start (UTC, RFC 3339) and the weights' generation.
    make_facts: Callable[[RecorderConfig, str, int], Facts]
    world: World = REAL

    def __post_init__(self) -> None:
        file = RowsFile.of(self.config.storage, record_action=self.config.record_action)
        self._block_bytes = file.row_bytes + columns_row_bytes(self.config)
        self._bytes_published = 0
        self._rows = self._runs = 0  # committed so far
        self._counted: set[str] = set()  # names of the sessions at the last measurement
        self._recount_at = 0.0
        self._full_until = 0.0  # above a limit: time of the next measurement
        #: Whether no more games start. Then only the disk's space limits the writing of finished games.
        self.draining = False
        self._serial = 0
        self._open: dict[int, PartialSession] = {}  # by generation of weights; usually one
        #: Start of the open or next session of each generation: monotonic time, UTC.
        self._began: dict[int, tuple[float, str]] = {}
        self._closing: list[PartialSession] = []
        self._retry_at = 0.0
        self._failure: str | None = None
        self._last_publish = ""  # what the last session took, in words
        self.publisher = Publisher(self.out_dir, self.world)

    def begin(self, generation: int = 0) -> None:
        """Note the present time as the start of the next session, unless a start is noted already."""
        if generation not in self._began:
            self._began[generation] = (self.world.now, utc_text(self.world.time.time()))

    def why_not(self, rows: int) -> str | None:
        """Return why a block of this many rows cannot be placed now, or None if it can."""
        if self._failure is not None and self.world.now < self._retry_at:
            return self._failure
        backlog = len(self.publisher.queue) + len(self._closing)
        if not self.draining and backlog >= BACKLOG_MAX:
            return f"{PUBLISHING}: {backlog} closed sessions are not published yet{self._last_publish}"
        writing = [session for session in [*self._closing, *self._open.values()] if session.writing]
        rows_written = sum(session.rows_reserved - session.rows_confirmed for session in writing)
        needed = int((rows + rows_written) * self._bytes_per_row)
        # A session's anchors and metadata are written when it is published.
        to_come, unpublished = self._bytes_per_row - self._block_bytes, self._unpublished
        needed += int(to_come * sum(session.rows_confirmed for session in unpublished))
        needed += SESSION_BYTES * max(len(unpublished), 1)
        if not self.draining:  # the last games may use the space of min_free_mb
            needed += self.config.min_free_mb * MEGABYTE
        try:
            free = self.free_bytes()
        except OSError as error:
            return f"{self.out_dir}: {error.strerror}"
        if free < needed:
            return (
                f"{DISK_FULL}: {self.out_dir} has {free // MEGABYTE} MB free, "
                f"{-(-needed // MEGABYTE)} MB are needed (min_free_mb = {self.config.min_free_mb})"
            )
        limit_mb = self.config.spool_max_mb
        if limit_mb is not None and not self.draining:
            size = self.size_bytes(self.world.now, rows + rows_written)
            # If there is no session to remove, a block is written even if it exceeds the limit.
            if size > limit_mb * MEGABYTE and (self._bytes_published or self.sessions_pending):
                waiting = -(-self._size_bytes(rows_written) // MEGABYTE)
                return f"{SPOOL_FULL}: {waiting} MB of sessions in {self.out_dir} (spool_max_mb = {limit_mb})"
        return None

    def place(self, rows: int, generation: int = 0) -> Range:
        """Reserve rows in this generation's open session; open a session if there is none."""
        session = self._open.get(generation)
        if session is None:
            self._serial += 1
            self.begin(generation)
            try:
                session = PartialSession(
                    self.out_dir,
                    self.make_facts(self.config, self._began[generation][1], generation),
                    self._serial,
                    self.world,
                )
            except StorageError as error:
                self.fail(str(error))
                raise
            self._open[generation] = session
        return Range(session.serial, str(session.steps_path), session.reserve(rows))

    def confirm(self, written: BlockWritten) -> Block | None:
        """Commit a block; return None if the journal could not be written and the caller must try again."""
        session = self._session(written.session)
        if session is None:
            raise FormatError(f"found a block for session {written.session}, which is not open")
        try:
            block = session.confirm(written)
        except OSError as error:
            self.fail(str(storage_error(error, session.path, "writing the journal")))
            return None
        self._failure = None
        self._rows += block.rows
        self._runs += len(block.runs)
        self.rotate_if_due()
        return block

    def write_failed(self, failed: WriteFailed) -> None:
        session = self._session(failed.session)
        if session is None:
            return
        session.release(failed.first_row)
        if failed.errno == errno.EFBIG:
            found = "%s: %s. Each session ends there"
            logging.getLogger("tape2048").warning(found, self.out_dir, largest_file())
        else:
            error = OSError(failed.errno, os.strerror(failed.errno))
            self.fail(str(storage_error(error, session.path, "writing rows")))
        if failed.errno in _ENDS_SESSION:  # the next block opens another session
            for generation in [key for key, value in self._open.items() if value is session]:
                self._close(generation)
        self._submit_closing()

    def release(self, place: Range) -> None:
        session = self._session(place.session)
        if session is not None:
            session.release(place.first_row)
            self._submit_closing()

    def fail(self, why: str) -> None:
        """Note a failed write; the next one follows after :data:`RETRY_S`."""
        self._failure = why
        self._retry_at = self.world.now + RETRY_S

    def _session(self, serial: int) -> PartialSession | None:
        candidates = [*self._closing, *self._open.values()]
        return next((session for session in candidates if session.serial == serial), None)

    def rotate_if_due(self) -> None:
        """Close the open session if it is full, or old and not empty; publish closed sessions."""
        for generation, session in list(self._open.items()):
            age_s = self.world.now - self._began[generation][0]
            old = age_s >= (self.config.rotate_s or math.inf) and session.rows_confirmed > 0
            # The journal and the rows are smaller than the metadata, or a failed write ends the session.
            metadata_bytes = SESSION_BYTES + 2 * RUN_BYTES * session.runs_confirmed
            large = session.runs_confirmed > 0 and metadata_bytes > file_bytes_max()
            if old or large or session.rows_reserved >= self.config.rotate_steps:
                self._close(generation)
        self._submit_closing()

    def close_open(self) -> set[int]:
        """Close every open session of any size; return the serials of all unpublished sessions."""
        for generation in list(self._open):
            self._close(generation)
        self._submit_closing()
        return {session.serial for session in [*self._closing, *self.publisher.pending]}

    def retire(self, oldest: int) -> None:
        """Close the sessions of weights older than this generation, which no worker plays any more."""
        for generation in [generation for generation in self._began if generation < oldest]:
            if generation in self._open:
                self._close(generation)
            del self._began[generation]

    def _close(self, generation: int) -> None:
        self._closing.append(self._open.pop(generation))
        del self._began[generation]
        self.begin(generation)

    def _submit_closing(self) -> None:
        for session in [session for session in self._closing if not session.writing]:
            self._closing.remove(session)
            self.publisher.submit(session)

    def outcomes(self) -> list[PublishOutcome]:
        outcomes = self.publisher.outcomes()
        for outcome in outcomes:
            if outcome.published is not None and outcome.published.path is not None:
                seen = outcome.published.path.name in self._counted
                self._bytes_published += 0 if seen else outcome.published.bytes
                megabytes = outcome.published.bytes / MEGABYTE
                self._last_publish = f"; the last one took {outcome.seconds:.1f} s for {megabytes:.1f} MB"
        return outcomes

    @property
    def idle(self) -> bool:
        """Whether every session is published, or has failed to be published."""
        return not self._open and not self._closing and not self.publisher.pending

    @property
    def sessions_pending(self) -> int:
        return len(self.publisher.pending) + len(self._closing)

    @property
    def open_rows(self) -> int:
        return sum(session.rows_confirmed for session in self._open.values())

    def rows_left(self, now: float, rows: int) -> int:
        """Return how many more rows fit below ``max_disk_mb``; ``rows`` are finished but not yet written."""
        left = (self.config.max_disk_mb or NO_LIMIT) * MEGABYTE - self.size_bytes(now, rows)
        return math.ceil(left / self._bytes_per_row)

    def size_bytes(self, now: float, rows: int = 0) -> int:
        """Return the bytes of all sessions, or 0 without a limit; ``rows`` are finished but not yet written.

        The directory is measured every :data:`RECOUNT_S`, and before a limit counts as met, because other
        threads and processes also publish sessions there or remove them (shipping, ``tape2048 prune``).
        """
        limits = [mb for mb in (self.config.max_disk_mb, self.config.spool_max_mb) if mb is not None]
        if not limits:
            return 0
        size = self._size_bytes(rows)
        if now < (self._recount_at if size < min(limits) * MEGABYTE else self._full_until):
            return size
        self._recount_at, self._full_until = now + RECOUNT_S, 0.0
        with contextlib.suppress(OSError):  # if the directory was removed, the next write reports it
            found = [path for path in self.out_dir.iterdir() if SESSION_NAME.match(path.name)]
            self._counted = {path.name for path in found}
            self._bytes_published = sum(map(bytes_of, found))
        size = self._size_bytes(rows)
        if size >= min(limits) * MEGABYTE:
            self._full_until = now + RETRY_S
        return size

    def _size_bytes(self, rows: int) -> int:
        unpublished = self._unpublished
        rows += sum(session.rows_confirmed for session in unpublished)
        sessions = max(len(unpublished), rows > 0)
        return self._bytes_published + sessions * SESSION_BYTES + int(rows * self._bytes_per_row)

    @property
    def _bytes_per_row(self) -> float:
        games_per_row = (self._runs + 1) / (self._rows + GAME_ROWS_MIN)
        return row_bytes(self.config) + games_per_row * RUN_BYTES

    @property
    def _unpublished(self) -> list[PartialSession]:
        # A session that has its final name counts as published. Not Path.exists, which raises device errors.
        publishing = [each for each in self.publisher.pending if self.world.os.path.exists(each.steps_path)]
        return [*publishing, *self._closing, *self._open.values()]

    def free_bytes(self) -> int:
        stat = self.world.os.statvfs(self.out_dir)
        return int(stat.f_bavail * stat.f_frsize)


def file_bytes_max() -> float:
    """Return the largest size of a file that this process and its workers may write (``ulimit -f``)."""
    limit = resource.getrlimit(resource.RLIMIT_FSIZE)[0]
    return math.inf if limit == resource.RLIM_INFINITY else limit


def largest_file() -> str:
    """Describe the limit that a write has met."""
    limit = file_bytes_max()
    if limit == math.inf:
        return "no larger file fits into this file system"
    return f"files can have {int(limit):,} bytes here (ulimit -f, LimitFSIZE=)"


def bytes_of(session: Path) -> int:
    """Return the bytes of a session's files, or 0 if it is being removed."""
    try:
        return sum(file.stat().st_size for file in session.iterdir() if file.name in _FILES)
    except OSError:
        return 0
