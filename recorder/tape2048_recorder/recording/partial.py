"""A session while it is being written.

::

    <out_dir>/.<TS>_model=<tag>.<instance>.partial/
        facts.json           what is known from the start: player, seed, configuration
        journal              the confirmed blocks and their runs
        session/steps.npy    blocks at the rows they were given; the header is written at the end
        compacted-<n>/       another journal and session/, where blocks had to be moved
        fsync-failed         in a stage whose rows could not be flushed: its blocks have to be moved

The daemon gives out row ranges, and workers write into them. A range that was given out and never
confirmed (its worker died, or its disk was full) is a hole, unless it was the last one. Publishing
takes ``session/`` out of this directory by one rename: a directory without it is a published
session's empty shell. Blocks are moved over holes by writing a ``compacted-<n>/`` beside the first pair
and renaming that into place, so that at each moment one journal and one file belong together: those of
the highest ``n``.
"""

from __future__ import annotations

import contextlib
import os
import shutil
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

__all__ = [
    "FACTS",
    "PARTIAL_SUFFIX",
    "STAGED",
    "Facts",
    "PartialSession",
    "compactions",
    "read_facts",
    "stage_of",
]

FACTS = "facts.json"
STAGED = "session"
PARTIAL_SUFFIX = ".partial"


class Facts(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What is known of a session when it begins; each becomes a row of its ``session`` table."""

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
        """The session's name, before a counter is added where it is taken."""
        compact = self.started_at.replace("-", "").replace(":", "")
        return f"{compact}_model={self.model_tag}"


def read_facts(partial: Path) -> Facts:
    """The facts of a partial session.

    Raises:
        FormatError: they are not there or not whole.
        OSError: the device would not say.
    """
    path = partial / FACTS
    try:
        return msgspec.json.decode(path.read_bytes(), type=Facts)
    except (FileNotFoundError, msgspec.MsgspecError) as error:
        raise FormatError(f"no whole facts of a session: {error}", path=path) from error


def compactions(partial: Path) -> list[Path]:
    """The directories that blocks were moved into, in the order in which that happened.

    Raises:
        OSError: the device would not say.
    """
    # Not Path.glob, which takes what cannot be listed for empty (since Python 3.13).
    moved = [path for path in partial.iterdir() if path.name.startswith("compacted-")]
    return sorted(moved, key=lambda path: int(path.name.partition("-")[2]))


def stage_of(partial: Path) -> Path:
    """The directory whose journal and ``session/`` belong together.

    Raises:
        OSError: the device would not say.
    """
    return [partial, *compactions(partial)][-1]


class PartialSession:
    """The session that blocks are being written into.

    Args:
        out_dir: where it will be published.
        facts: what is known of it.
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
        taken = 0
        while True:
            count = f"-{taken + 1}" if taken else ""
            path = out_dir / f".{self.facts.name}{count}.{self.facts.instance}{PARTIAL_SUFFIX}"
            try:
                path.mkdir()
            except FileExistsError:
                taken += 1
                continue
            return path

    def _begin(self, out_dir: Path) -> Journal:
        """Fill the directory, or leave none: while the disk is full, this is tried again each second."""
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
        """Rows given out, confirmed or not."""
        return self._end

    @property
    def writing(self) -> int:
        """Row ranges that are given out and neither confirmed nor released."""
        return len(self._outstanding)

    @property
    def blocks(self) -> list[Block]:
        """The confirmed blocks, in the order in which they were confirmed."""
        return self._blocks

    def reserve(self, rows: int) -> int:
        """Give out a range of this many rows; returns its first row."""
        first_row = self._end
        self._outstanding[first_row] = rows
        self._end += rows
        return first_row

    def confirm(self, written: Written) -> Block:
        """Put a written block into the journal.

        Raises:
            OSError: the journal could not be written; the block may be confirmed later.
            FormatError: the worker's message does not fit what it was given.
        """
        runs = np.frombuffer(written.runs, dtype=RUN_DTYPE).copy()
        if (
            self._outstanding.get(written.first_row) != written.rows
            or int(runs["rows"].sum()) != written.rows
        ):
            raise FormatError(
                f"a block of {written.rows} rows at row {written.first_row} was written; "
                f"{self._outstanding.get(written.first_row)} rows were given out there",
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
        """Take back a range that will not be written."""
        rows = self._outstanding.pop(first_row)
        if first_row + rows == self._end:
            self._end = first_row

    def flush(self) -> bool:
        """Flush the rows, once; False where some that were written may not be on the disk.

        The kernel says so once to each descriptor, and never to one that is opened after another was told (a
        worker's, when it closed the file). The one here is older than the rows.
        """
        if self._steps_fd >= 0:
            try:
                os.fsync(self._steps_fd)
            except OSError:
                self._flushed = False
            self.close()
        return self._flushed

    def close(self) -> None:
        """Let go of the rows' file. A file that is open cannot be removed from every file system."""
        if self._steps_fd >= 0:
            fd, self._steps_fd = self._steps_fd, -1
            with contextlib.suppress(OSError):  # nothing was written through it
                os.close(fd)

    @property
    def size_bytes(self) -> int:
        """What the rows given out take on disk."""
        return STEPS_HEADER_BYTES + self._end * self.dtype.itemsize
