"""Partial sessions: sessions during writing, and their journals.

::

    <out_dir>/.<TS>_model=<tag>.<instance>.partial/
        facts.json           facts known from the start: player, seed, configuration
        journal              the confirmed blocks and their runs
        session/steps.npy    blocks at their reserved rows; the header is written at the end; or tape.npy
        session/values.f32.npy  a column (``columns``), likewise
        compacted-<n>/       another journal and session/, where blocks had to be moved
        fsync-failed         in a stage whose rows could not be flushed: its blocks have to be moved

The daemon reserves row ranges, and workers write into them. A reserved range that was never confirmed (its
worker died, or its disk was full) is a hole, unless it was the last one. Publishing takes ``session/`` out of
this directory by one rename: a directory without it is a published session's empty shell. Compaction writes
the blocks without holes to a ``compacted-<n>/`` beside the first pair and renames that into place, so that at
each moment the journal and the file of the highest ``n`` belong together.

A block is **confirmed** when its record is in the journal. The record is appended with one ``write`` after
the block's rows, and carries all of their metadata; so a killed daemon loses no confirmed block, and
``metadata.db`` is built once, at rotation. Nothing is flushed to stable storage before rotation: after a
power failure, a record counts if its own checksum and its block's checksum hold.

========  ===============================================================
bytes     header
========  ===============================================================
0..8      magic ``T2KJRNL1``
8..16     ``u64`` bytes of a row in all files
========  ===============================================================

then, for each block:

========  ===============================================================
bytes     record
========  ===============================================================
0..4      magic ``BLCK``, or ``BLCV`` with columns
4..8      ``u32`` runs
8..16     ``u64`` first row
16..20    ``u32`` rows
20..24    ``u32`` CRC-32C of the rows
24..      runs, ``RUN_DTYPE``, 40 bytes each, ``first_row`` counted from the file's first row
then 4    ``u32`` CRC-32C of the columns' rows, one column after another; only in ``BLCV``
last 4    ``u32`` CRC-32C of the record before it
========  ===============================================================
"""

from __future__ import annotations

import contextlib
import itertools
import os
import re
import stat
import struct
import time
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt
from crc32c import crc32c

from tape2048.base.text import counted
from tape2048.errors import FormatError
from tape2048.formats.session import RUN_DTYPE, SESSION_NAME
from tape2048.io.durable import NEW_FILE_MODE, storage_errors
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile
from tape2048_recorder.game.starts import StartBoards
from tape2048_recorder.recording.world import REAL, World

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.session.columns import ColumnInfo
    from tape2048_recorder.ipc.protocol import BlockWritten

FACTS = "facts.json"
STAGED = "session"
COMPACTION_DRAFT = "compaction.tmp"
PARTIAL_SUFFIX = ".partial"

#: The facts of a recorder have some kilobytes, most of them its configuration.
_FACTS_BYTES_MAX = 1 << 20

_COMPACTED = re.compile(r"compacted-([1-9][0-9]*)")
#: The directories of a partial session, relative to its path. All else are files.
_DIRECTORIES = re.compile(rf"\.|{STAGED}|({_COMPACTED.pattern}|{re.escape(COMPACTION_DRAFT)})(/{STAGED})?")

#: Directories that other programs make in any directory.
SYSTEM_DIRECTORIES = {"@eaDir", ".ipynb_checkpoints"}

JOURNAL = "journal"
JOURNAL_HEADER_BYTES = 16

_HEADER = struct.Struct("<8sQ")
_RECORD = struct.Struct("<4sIQII")
_CHECK = struct.Struct("<I")
_MAGIC = b"T2KJRNL1"
#: Of a block without columns, and with columns.
_RECORD_MAGICS = b"BLCK", b"BLCV"
assert _HEADER.size == JOURNAL_HEADER_BYTES
assert _RECORD.size == 24


def utc_text(moment: float) -> str:
    """Format a moment (``time.time``) as UTC, RFC 3339, in whole seconds."""
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


class Block(NamedTuple):
    """A confirmed block and the runs whose rows it holds."""

    first_row: int
    rows: int
    crc32c: int
    runs: npt.NDArray[np.void]
    columns_crc32c: int | None = None


class Journal:
    """The writer. A failed append leaves the journal unchanged."""

    def __init__(self, path: Path, row_bytes: int, world: World = REAL) -> None:
        self._world = world
        self._fd = world.os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
        try:
            world.files.write_all(self._fd, _HEADER.pack(_MAGIC, row_bytes))
            world.os.fsync(self._fd)  # records without it could not be read
        except OSError:
            world.os.close(self._fd)
            raise
        self._bytes = _HEADER.size

    def append(self, block: Block) -> None:
        """Confirm a block."""
        columns = b"" if block.columns_crc32c is None else _CHECK.pack(block.columns_crc32c)
        magic = _RECORD_MAGICS[bool(columns)]
        head = _RECORD.pack(magic, len(block.runs), block.first_row, block.rows, block.crc32c)
        body = head + block.runs.tobytes() + columns
        record = body + _CHECK.pack(crc32c(body))
        try:
            # At the end of the last whole record, also after a failed write: a torn record in the middle
            # would hide all later ones.
            self._world.files.write_all(self._fd, record, self._bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._world.os.ftruncate(self._fd, self._bytes)
            raise
        self._bytes += len(record)

    def close(self) -> None:
        """Close the file."""
        self._world.os.close(self._fd)


def read_journal(path: Path, row_bytes: int, world: World = REAL) -> list[Block]:
    """Read the confirmed blocks of a session that its daemon left behind.

    Reading stops at a record that the daemon's death truncated.
    """
    data = world.load_path(path).data  # not into memory: a crafted one may be of any size
    if len(data) < _HEADER.size:
        return []
    magic, found_row_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or found_row_bytes != row_bytes:
        raise FormatError(
            f"not a journal: the magic {_MAGIC!r} is missing"
            if magic != _MAGIC
            else f"found rows of {found_row_bytes} bytes, expected {row_bytes}",
            path=path,
            offset=0,
        )
    blocks: list[Block] = []
    at = _HEADER.size
    while at + _RECORD.size <= len(data):
        record_magic, run_count, first_row, rows, checksum = _RECORD.unpack_from(data, at)
        end = at + _RECORD.size + run_count * RUN_DTYPE.itemsize
        columns = None
        if record_magic == _RECORD_MAGICS[1] and end + _CHECK.size <= len(data):
            (columns,) = _CHECK.unpack_from(data, end)
            end += _CHECK.size
        if record_magic not in _RECORD_MAGICS or end + _CHECK.size > len(data):
            break
        if _CHECK.unpack_from(data, end)[0] != crc32c(data[at:end]):
            break
        runs = np.frombuffer(data, dtype=RUN_DTYPE, count=run_count, offset=at + _RECORD.size)
        if not runs["rows"].all() or int(runs["rows"].sum()) != rows or not rows:
            found = f"found a block of {counted(rows, 'row')} with {counted(run_count, 'run')}"
            raise FormatError(f"{found}, expected the sum of their rows", path=path, offset=at)
        blocks.append(Block(first_row, rows, checksum, runs.copy(), columns))
        at = end + _CHECK.size
    ordered = sorted(blocks, key=lambda block: block.first_row)
    for before, block in itertools.pairwise(ordered):
        end = before.first_row + before.rows
        if block.first_row < end:
            msg = f"found a block at row {block.first_row}, expected none before row {end}"
            raise FormatError(msg, path=path)
    return blocks


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts of a session at its start. Each becomes a row of its ``session`` table."""

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
    storage: Annotated[str, msgspec.Meta(pattern="^(rows|tape)$")] = "rows"
    rules: int = 1  # of drafts without it
    start_boards: StartBoards | None = None  # not recorded if every game starts with two tiles

    @property
    def file(self) -> RowsFile:
        """The file that holds the rows."""
        return RowsFile.of(self.storage, record_action=self.record_action)

    @property
    def columns(self) -> list[ColumnInfo]:
        """The columns that are recorded with the rows."""
        return [COLUMNS[name] for name in (self.config.get("columns") or "").split()]

    @property
    def files(self) -> list[RowsFile]:
        """The file that holds the rows, and those of the columns."""
        return [self.file, *map(RowsFile.of_column, self.columns)]

    @property
    def row_bytes(self) -> int:
        """Bytes of a row in all files."""
        return sum(file.row_bytes for file in self.files)

    @property
    def name(self) -> str:
        """The session's name, without the counter that is added where the name is taken."""
        return f"{self.started_at.replace('-', '').replace(':', '')}_model={self.model_tag}"


def refuse_foreign_files(partial: Path) -> None:
    """Check that a partial session consists of real directories where they belong, and of files.

    A link would publish other users' files.
    """
    found = [partial]
    for path in found:  # which grows
        if path.name in SYSTEM_DIRECTORIES:
            continue
        status = path.lstat()
        if _DIRECTORIES.fullmatch(path.relative_to(partial).as_posix()):
            expected, is_one = "a directory", stat.S_ISDIR(status.st_mode)
            found += path.iterdir() if is_one else ()
        else:
            is_one = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            expected = "a file with one name"
        if not is_one:
            what = f"found {stat.filemode(status.st_mode)} with {counted(status.st_nlink, 'name')}"
            raise FormatError(f"{what}, expected {expected}", path=path)


def read_facts(partial: Path) -> Facts:
    """Read the facts of a partial session."""
    path = partial / FACTS
    try:
        size = path.stat().st_size
        if size > _FACTS_BYTES_MAX:
            raise FormatError(f"no whole facts of a session: found {size:,} bytes", path=path)
        facts = msgspec.json.decode(path.read_bytes(), type=Facts)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise FormatError(f"no whole facts of a session: {error}", path=path) from error
    if not SESSION_NAME.fullmatch(facts.name) or not partial.name.startswith(f".{facts.name}"):
        raise FormatError(f"names a session {facts.name!r}, expected that of its directory", path=path)
    return facts


def compactions(partial: Path) -> list[Path]:
    """List the directories of compactions, from the first to the last."""
    # Not Path.glob, which reports an unreadable directory as empty (since Python 3.13).
    moved = [
        (int(match[1]), path) for path in partial.iterdir() if (match := _COMPACTED.fullmatch(path.name))
    ]
    return [path for _, path in sorted(moved)]


def stage_of(partial: Path) -> Path:
    """Return the directory whose journal and ``session/`` are current."""
    return [partial, *compactions(partial)][-1]


class PartialSession:
    """A session that takes blocks."""

    def __init__(self, out_dir: Path, facts: Facts, serial: int, world: World = REAL) -> None:
        self._world = world
        self.facts = facts
        self.serial = serial
        self.file = facts.file
        self.rows_confirmed = 0
        self.rows_reserved = 0
        #: Row ranges that are reserved and neither confirmed nor released: their rows, by first row.
        self.writing: dict[int, int] = {}
        self.blocks: list[Block] = []  # in order of confirmation
        self._fds: list[int] = []
        self._flushed = True
        with storage_errors(out_dir, "beginning a session"):
            self.path = self._make_directory(out_dir)
            #: The file that workers write their blocks into.
            self.steps_path = self.path / STAGED / self.file.name
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
        """Fill the directory, or remove it: while the disk is full, this is tried again every second."""
        journal, files = None, self._world.files
        paths = [self.steps_path.with_name(file.name) for file in self.facts.files]
        try:
            (self.path / STAGED).mkdir()
            flags = os.O_RDONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC
            for path in paths:
                self._fds.append(self._world.os.open(path, flags, NEW_FILE_MODE))
            journal = Journal(self.path / JOURNAL, self.facts.row_bytes, self._world)
            files.write_file(self.path / FACTS, msgspec.json.encode(self.facts))
            files.fsync_dir(self.path)
            files.fsync_dir(out_dir)
        except OSError:
            if journal is not None:
                journal.close()
            self.close()
            # Without rmtree, which needs a descriptor: there may be none.
            for file in (*paths, self.path / JOURNAL, self.path / FACTS):
                with contextlib.suppress(OSError):
                    file.unlink()
            for directory in (self.path / STAGED, self.path):
                with contextlib.suppress(OSError):
                    directory.rmdir()
            raise
        return journal

    def reserve(self, rows: int) -> int:
        """Reserve a range of this many rows; return its first row."""
        first_row = self.rows_reserved
        self.writing[first_row] = rows
        self.rows_reserved += rows
        return first_row

    def confirm(self, written: BlockWritten) -> Block:
        """Append a written block to the journal."""
        runs = np.frombuffer(written.runs, dtype=RUN_DTYPE).copy()
        reserved = self.writing.get(written.first_row)
        if reserved != written.rows or int(runs["rows"].sum()) != written.rows:
            raise FormatError(
                f"a block of {written.rows} rows at row {written.first_row} was written; "
                f"{reserved} rows were given out there",
                path=self.path,
            )
        runs["first_row"] += np.uint64(written.first_row)
        block = Block(written.first_row, written.rows, written.crc32c, runs, written.columns_crc32c)
        self.journal.append(block)
        del self.writing[written.first_row]
        self.blocks.append(block)
        self.rows_confirmed += written.rows
        return block

    def release(self, first_row: int) -> None:
        """Release a range that will not be written."""
        if first_row + self.writing.pop(first_row) == self.rows_reserved:
            self.rows_reserved = first_row

    def flush(self) -> bool:
        """Flush the rows, once; False if some written rows may not be on the disk.

        The kernel reports a write error once to each open descriptor, and never to one opened after another
        has reported it (a worker's, when it closed the file). These descriptors are older than the rows.
        """
        for fd in self._fds:
            try:
                self._world.os.fsync(fd)
            except OSError:
                self._flushed = False
        self.close()
        return self._flushed

    def close(self) -> None:
        """Close the files of the rows: not every file system can remove an open one."""
        while self._fds:
            with contextlib.suppress(OSError):  # nothing was written through this descriptor
                self._world.os.close(self._fds.pop())
