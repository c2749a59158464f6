"""Partial sessions: sessions during writing.

::

    <out_dir>/.<TS>_model=<tag>.<instance>.partial/
        facts.json           facts known from the start: player, seed, configuration
        journal              the confirmed blocks and their runs
        session/steps.npy    blocks at their reserved rows; the header is written at the end
        compacted-<n>/       another journal and session/, where blocks had to be moved
        fsync-failed         in a stage whose rows could not be flushed: its blocks have to be moved

The daemon reserves row ranges, and workers write into them. A reserved range that was never confirmed (its
worker died, or its disk was full) is a hole, unless it was the last one. Publishing takes ``session/`` out of
this directory by one rename: a directory without it is a published session's empty shell. Compaction writes
the blocks without holes to a ``compacted-<n>/`` beside the first pair and renames that into place, so that at
each moment one journal and one file belong together: those of the highest ``n``.
"""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
from datetime import UTC, datetime
from functools import cached_property
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.errors import FormatError
from tape2048.formats.session import RUN_DTYPE, STEPS_HEADER_BYTES, STEPS_NPY, step_dtype
from tape2048.io.durable import fsync_dir, storage_errors, write_file
from tape2048_recorder.recording.journal import JOURNAL, Block, Journal

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048_recorder.ipc.protocol import Written

FACTS = "facts.json"
STAGED = "session"
PARTIAL_SUFFIX = ".partial"


def utc_text(moment: datetime | None = None) -> str:
    """Format a moment (default: now) as UTC, RFC 3339, in whole seconds."""
    return (moment or datetime.now(UTC)).strftime("%Y-%m-%dT%H:%M:%SZ")


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts of a session at its start; each becomes a row of its ``session`` table."""

    format_version: int
    engine: str
    player: str
    player_args: dict[str, Any]
    player_sha256: str
    seed: int
    sample_rate: int
    record_action: bool
    model_tag: str
    host: str
    instance: str
    started_at: str
    config: dict[str, Any]
    config_sha256: str

    @property
    def name(self) -> str:
        """The session's name, without the counter that is added where the name is taken."""
        return f"{self.started_at.replace('-', '').replace(':', '')}_model={self.model_tag}"


def read_facts(partial: Path) -> Facts:
    """Read the facts of a partial session.

    Raises:
        FormatError: they are missing or incomplete.
        OSError: as the operating system gave it.
    """
    path = partial / FACTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Facts)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise FormatError(f"no whole facts of a session: {error}", path=path) from error


def compactions(partial: Path) -> list[Path]:
    """List the directories of compactions, from the first to the last.

    Raises:
        OSError: as the operating system gave it.
    """
    # Not Path.glob, which reports an unreadable directory as empty (since Python 3.13).
    moved = [path for path in partial.iterdir() if path.name.startswith("compacted-")]
    return sorted(moved, key=lambda path: int(path.name.partition("-")[2]))


def stage_of(partial: Path) -> Path:
    """Return the directory whose journal and ``session/`` are current.

    Raises:
        OSError: as the operating system gave it.
    """
    return [partial, *compactions(partial)][-1]


class PartialSession:
    """A session that takes blocks.

    Args:
        out_dir: the directory to publish it in.
        facts: its facts.
        serial: its number in this recorder's life, by which messages name it.

    Raises:
        StorageError: the directory cannot be made.
    """

    def __init__(self, out_dir: Path, facts: Facts, serial: int) -> None:
        self.facts = facts
        self.serial = serial
        self.dtype = step_dtype(record_action=facts.record_action)
        self.rows_confirmed = 0
        self.runs_confirmed = 0
        self._end = 0
        self._outstanding: dict[int, int] = {}
        self._blocks: list[Block] = []
        self._steps_fd = -1
        self._flushed = True
        with storage_errors(out_dir, "beginning a session"):
            self.path = self._make_directory(out_dir)
            self.journal = self._begin(out_dir)

    def _make_directory(self, out_dir: Path) -> Path:
        for number in itertools.count(1):
            count = f"-{number}" if number > 1 else ""
            path = out_dir / f".{self.facts.name}{count}.{self.facts.instance}{PARTIAL_SUFFIX}"
            with contextlib.suppress(FileExistsError):
                path.mkdir()
                return path
        raise AssertionError

    def _begin(self, out_dir: Path) -> Journal:
        """Fill the directory, or remove it: while the disk is full, this is tried again each second."""
        journal = None
        try:
            (self.path / STAGED).mkdir()
            flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            self._steps_fd = os.open(self.steps_path, flags, 0o644)
            journal = Journal(self.path / JOURNAL, self.dtype.itemsize)
            write_file(self.path / FACTS, msgspec.json.encode(self.facts))
            fsync_dir(self.path)
            fsync_dir(out_dir)
        except OSError:
            if journal is not None:
                journal.close()
            self.close()
            shutil.rmtree(self.path, ignore_errors=True)
            raise
        return journal

    @cached_property
    def steps_path(self) -> Path:
        """The file that workers write their blocks into."""
        return self.path / STAGED / STEPS_NPY

    @property
    def rows_reserved(self) -> int:
        """Reserved rows, confirmed or not."""
        return self._end

    @property
    def writing(self) -> int:
        """Row ranges that are reserved and neither confirmed nor released."""
        return len(self._outstanding)

    @property
    def blocks(self) -> list[Block]:
        """The confirmed blocks, in order of confirmation."""
        return self._blocks

    def reserve(self, rows: int) -> int:
        """Reserve a range of this many rows; return its first row."""
        first_row = self._end
        self._outstanding[first_row] = rows
        self._end += rows
        return first_row

    def confirm(self, written: Written) -> Block:
        """Append a written block to the journal.

        Raises:
            OSError: the journal could not be written; the block may be confirmed later.
            FormatError: the worker's message does not match its reserved range.
        """
        runs = np.frombuffer(written.runs, dtype=RUN_DTYPE).copy()
        reserved = self._outstanding.get(written.first_row)
        if reserved != written.rows or int(runs["rows"].sum()) != written.rows:
            raise FormatError(
                f"a block of {written.rows} rows at row {written.first_row} was written; "
                f"{reserved} rows were given out there",
                path=self.path,
            )
        runs["first_row"] += np.uint64(written.first_row)
        block = Block(written.first_row, written.rows, written.crc32c, runs)
        self.journal.append(block)
        del self._outstanding[written.first_row]
        self._blocks.append(block)
        self.rows_confirmed += written.rows
        self.runs_confirmed += len(runs)
        return block

    def release(self, first_row: int) -> None:
        """Release a range that will not be written."""
        rows = self._outstanding.pop(first_row)
        if first_row + rows == self._end:
            self._end = first_row

    def flush(self) -> bool:
        """Flush the rows, once; False if some written rows may not be on the disk.

        The kernel reports a write error once to each open descriptor, and never to one opened after another
        has reported it (a worker's, when it closed the file). This descriptor is older than the rows.
        """
        if self._steps_fd >= 0:
            try:
                os.fsync(self._steps_fd)
            except OSError:
                self._flushed = False
            self.close()
        return self._flushed

    def close(self) -> None:
        """Close the rows' file: not every file system can remove an open one."""
        if self._steps_fd >= 0:
            fd, self._steps_fd = self._steps_fd, -1
            with contextlib.suppress(OSError):  # nothing was written through this descriptor
                os.close(fd)

    @property
    def size_bytes(self) -> int:
        """Bytes of the file with all reserved rows."""
        return STEPS_HEADER_BYTES + self._end * self.dtype.itemsize
