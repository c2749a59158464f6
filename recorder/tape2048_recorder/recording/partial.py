"""Partial sessions: directories of sessions that are being written, and their journals.

::

    <out_dir>/.<TS>_model=<tag>.<instance>.partial/
        facts.json           the facts known at the start: player, seed, configuration
        journal              the committed blocks and their runs
        session/steps.npy    the blocks at their reserved rows, or tape.npy; the header is written last
        session/values.f32.npy  a column (``columns``), likewise
        compacted-<n>/       a later journal and session/, after blocks had to be moved
        fsync-failed         marks that rows could not be flushed: their blocks must be written again

The daemon reserves row ranges, and workers write into them. A reserved range that was never committed,
because its worker died or the disk was full, leaves a hole, unless it is the last range. Publishing moves
``session/`` out of this directory by one rename. A directory without ``session/`` is the empty rest of a
published session.

Compaction writes the blocks without holes to a new directory, and then renames that to ``compacted-<n>/``. A
directory with a journal and a ``session/`` is a *staging directory*; the highest ``n`` is current.

A block is **committed** when its record is in the journal. The record is appended by one ``write``, after the
block's rows, and contains their metadata. So a killed daemon loses no committed block, and ``metadata.db`` is
built once, when the session is published. Nothing is flushed to stable storage before that. After a power
failure, a record is valid if its checksum and its block's checksum match.

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
24..      runs, ``RUN_DTYPE``, 40 bytes each; ``first_row`` counts from the file's first row
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
from tape2048.files.opening import NEW_FILE_MODE, storage_errors
from tape2048.session.layout import RUN_DTYPE, SESSION_NAME
from tape2048_recorder.game.kept_starts import StartBoards
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile
from tape2048_recorder.recording.world import REAL, World

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.session.columns import ColumnInfo
    from tape2048_recorder.ipc.protocol import BlockWritten

FACTS = "facts.json"
STAGED = "session"
COMPACTION_DRAFT = "compaction.tmp"
PARTIAL_SUFFIX = ".partial"

#: The facts of a recorder take a few kilobytes, mostly its configuration.
_FACTS_BYTES_MAX = 1 << 20

_COMPACTED = re.compile(r"compacted-([1-9][0-9]*)")
#: The directories of a partial session, relative to its path. Everything else is a file.
_DIRECTORIES = re.compile(rf"\.|{STAGED}|({_COMPACTED.pattern}|{re.escape(COMPACTION_DRAFT)})(/{STAGED})?")

#: Directories that other programs create in any directory.
SYSTEM_DIRECTORIES = {"@eaDir", ".ipynb_checkpoints"}

JOURNAL = "journal"
JOURNAL_HEADER_BYTES = 16

_HEADER = struct.Struct("<8sQ")
_RECORD = struct.Struct("<4sIQII")
_CHECK = struct.Struct("<I")
_MAGIC = b"T2KJRNL1"
#: The magic of a block without columns, and of a block with columns.
_RECORD_MAGICS = b"BLCK", b"BLCV"
assert _HEADER.size == JOURNAL_HEADER_BYTES
assert _RECORD.size == 24


def utc_text(moment: float) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(moment))


class Block(NamedTuple):
    first_row: int
    rows: int
    crc32c: int
    runs: npt.NDArray[np.void]
    columns_crc32c: int | None = None


class Journal:
    """The writer of a journal. A failed append leaves the journal unchanged."""

    def __init__(self, path: Path, row_bytes: int, world: World = REAL) -> None:
        self._world = world
        self._fd = world.os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, NEW_FILE_MODE)
        try:
            world.files.write_all(self._fd, _HEADER.pack(_MAGIC, row_bytes))
            world.os.fsync(self._fd)  # without the header, no record could be read
        except OSError:
            world.os.close(self._fd)
            raise
        self._bytes = _HEADER.size

    def append(self, block: Block) -> None:
        columns = b"" if block.columns_crc32c is None else _CHECK.pack(block.columns_crc32c)
        magic = _RECORD_MAGICS[bool(columns)]
        head = _RECORD.pack(magic, len(block.runs), block.first_row, block.rows, block.crc32c)
        body = head + block.runs.tobytes() + columns
        record = body + _CHECK.pack(crc32c(body))
        try:
            # At the end of the last whole record, even after a failed write: a torn record would hide all
            # later records.
            self._world.files.write_all(self._fd, record, self._bytes)
        except OSError:
            with contextlib.suppress(OSError):
                self._world.os.ftruncate(self._fd, self._bytes)
            raise
        self._bytes += len(record)

    def close(self) -> None:
        self._world.os.close(self._fd)


def read_journal(path: Path, row_bytes: int, world: World = REAL) -> list[Block]:
    """Read the blocks that a dead daemon committed, up to a truncated or damaged record."""
    data = world.load_path(path).data  # mapped, because a crafted journal can have any size
    if len(data) < _HEADER.size:
        return []
    magic, found_row_bytes = _HEADER.unpack_from(data)
    if magic != _MAGIC or found_row_bytes != row_bytes:
        raise FormatError(
            f"found {magic!r}, expected a journal with the magic {_MAGIC!r}"
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
            found = f"found a block of {counted(rows, 'row')} with runs of {runs['rows'].tolist()!r:.80} rows"
            raise FormatError(f"{found}; expected the same sum, and no empty run", path=path, offset=at)
        blocks.append(Block(first_row, rows, checksum, runs.copy(), columns))
        at = end + _CHECK.size
    ordered = sorted(blocks, key=lambda block: block.first_row)
    for before, block in itertools.pairwise(ordered):
        end = before.first_row + before.rows
        if block.first_row < end:
            msg = f"found a block at row {block.first_row}, expected row {end} or later: blocks overlap"
            raise FormatError(msg, path=path)
    return blocks


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The facts known at a session's start. Each becomes a row of the table ``session``."""

    format_version: int
    engine: str
    player: str
    player_args: dict[str, Any]
    player_sha256: str
    seed: int
    sample_rate: int
    record_action: bool
    model_tag: str
    instance: str
    started_at: str
    config: dict[str, Any]
    config_sha256: str
    storage: Annotated[str, msgspec.Meta(pattern="^(rows|tape)$")] = "rows"
    host: str | None = None  # in drafts of early versions
    rules: int = 1  # the value for drafts of versions that did not record it
    start_boards: StartBoards | None = None  # None if every game starts with two tiles
    calibrated: str | None = None  # the player of the calibration that made the columns' points
    settings_sha256: str | None = None  # of the file of settings of a recorder that ships to a store

    @property
    def file(self) -> RowsFile:
        return RowsFile.of(self.storage, record_action=self.record_action)

    @property
    def columns(self) -> list[ColumnInfo]:
        return [COLUMNS[name] for name in (self.config.get("columns") or "").split()]

    @property
    def files(self) -> list[RowsFile]:
        return [self.file, *map(RowsFile.of_column, self.columns)]

    @property
    def row_bytes(self) -> int:
        return sum(file.row_bytes for file in self.files)

    @property
    def name(self) -> str:
        """The session's name, without the counter that is added if the name is taken."""
        return f"{self.started_at.replace('-', '').replace(':', '')}_model={self.model_tag}"


def refuse_foreign_files(partial: Path) -> None:
    """Reject foreign files in a partial session: a link would publish another user's file."""
    found = [partial]
    for path in found:  # the list grows while it is read
        if path.name in SYSTEM_DIRECTORIES:
            continue
        status = path.lstat()
        if _DIRECTORIES.fullmatch(path.relative_to(partial).as_posix()):
            expected, is_one = "a directory", stat.S_ISDIR(status.st_mode)
            found += path.iterdir() if is_one else ()
        else:
            is_one = stat.S_ISREG(status.st_mode) and status.st_nlink == 1
            expected = "a regular file with one link"
        if not is_one:
            what = f"found {stat.filemode(status.st_mode)} with {counted(status.st_nlink, 'link')}"
            raise FormatError(f"{what}, expected {expected}", path=path)


def read_facts(partial: Path) -> Facts:
    path = partial / FACTS
    try:
        size = path.stat().st_size
        if size > _FACTS_BYTES_MAX:
            raise FormatError(
                f"found {size:,} bytes, expected the facts of a session, at most {_FACTS_BYTES_MAX:,} bytes",
                path=path,
            )
        facts = msgspec.json.decode(path.read_bytes(), type=Facts)
    except FileNotFoundError as error:
        raise FormatError("found no file, expected the facts of a session", path=path) from error
    except msgspec.MsgspecError as error:
        raise FormatError(f"not the complete facts of a session: {error}", path=path) from error
    if not SESSION_NAME.fullmatch(facts.name) or not partial.name.startswith(f".{facts.name}"):
        raise FormatError(f"found the facts of session {facts.name!r}, expected {partial.name!r}", path=path)
    return facts


def compactions(partial: Path) -> list[Path]:
    # Not Path.glob, which reports an unreadable directory as empty (since Python 3.13).
    moved = [
        (int(match[1]), path) for path in partial.iterdir() if (match := _COMPACTED.fullmatch(path.name))
    ]
    return [path for _, path in sorted(moved)]


def staging_of(partial: Path) -> Path:
    """Return the current staging directory: the directory whose journal and ``session/`` are valid."""
    return [partial, *compactions(partial)][-1]


class PartialSession:
    def __init__(self, out_dir: Path, facts: Facts, serial: int, world: World = REAL) -> None:
        self._world = world
        self.facts = facts
        self.serial = serial
        self.file = facts.file
        self.rows_confirmed = self.runs_confirmed = 0
        self.rows_reserved = 0
        #: Number of rows of each reserved range that is neither committed nor released, by first row.
        self.writing: dict[int, int] = {}
        self.blocks: list[Block] = []  # in the order of the journal
        self._fds: list[int] = []
        self._flushed = True
        with storage_errors(out_dir, "starting a session"):
            self.path = self._make_directory(out_dir)
            #: The file into which workers write their blocks.
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
        """Create the files of the directory; remove it if that fails, since the daemon tries again."""
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
            # Not rmtree, which needs a descriptor, and none may be free.
            for file in (*paths, self.path / JOURNAL, self.path / FACTS):
                with contextlib.suppress(OSError):
                    file.unlink()
            for directory in (self.path / STAGED, self.path):
                with contextlib.suppress(OSError):
                    directory.rmdir()
            raise
        return journal

    def reserve(self, rows: int) -> int:
        first_row = self.rows_reserved
        self.writing[first_row] = rows
        self.rows_reserved += rows
        return first_row

    def confirm(self, written: BlockWritten) -> Block:
        runs = np.frombuffer(written.runs, dtype=RUN_DTYPE).copy()
        reserved = self.writing.get(written.first_row)
        if reserved != written.rows or int(runs["rows"].sum()) != written.rows:
            raise FormatError(
                f"found a block of {counted(written.rows, 'row')} at row {written.first_row} with runs of "
                f"{counted(int(runs['rows'].sum()), 'row')}; expected the reserved {reserved} for both",
                path=self.path,
            )
        runs["first_row"] += np.uint64(written.first_row)
        block = Block(written.first_row, written.rows, written.crc32c, runs, written.columns_crc32c)
        self.journal.append(block)
        del self.writing[written.first_row]
        self.blocks.append(block)
        self.rows_confirmed += written.rows
        self.runs_confirmed += len(runs)
        return block

    def release(self, first_row: int) -> None:
        if first_row + self.writing.pop(first_row) == self.rows_reserved:
            self.rows_reserved = first_row

    def flush(self) -> bool:
        """Flush the rows; return False if some rows may be missing on the disk. Call it once.

        The kernel reports a write error once to each open descriptor, and not to descriptors that are opened
        after the error was reported, for example to a worker that closed the file. The descriptors of this
        object are older than the rows.
        """
        for fd in self._fds:
            try:
                self._world.os.fsync(fd)
            except OSError:
                self._flushed = False
        self.close()
        return self._flushed

    def close(self) -> None:
        """Close the files of the rows, because some file systems cannot remove open files."""
        while self._fds:
            with contextlib.suppress(OSError):  # nothing was written through this descriptor
                self._world.os.close(self._fds.pop())
