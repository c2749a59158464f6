"""Embeddings in the making: a directory that many processes fill, chunk by chunk, and that outlives them.

::

    <session>/.embeddings.partial/
        plan.json       what is made, of which rows, in chunks of how many
        values.npy      the file to be, at its full size from the start
        journal.0of2    16 bytes for each chunk that a process of this share has written: u64 chunk,
                        u32 CRC-32C of the chunk's bytes, u32 CRC-32C of these 12

A chunk counts when its record stands in a journal, which is written after it. So a process that is killed
loses the chunk it was at. A power failure can lose more: before the file gets its name, each chunk is read
again and compared with its record, and made again where it differs.

``embeddings.json`` is what makes a session have embeddings. It is written last, and removed first where other
ones are replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
from typing import TYPE_CHECKING, Any, Self

import msgspec
import numpy as np
from crc32c import crc32c

from tape2048.base.text import pretty_json
from tape2048.errors import AlreadyRunningError, DiskFullError, EmbeddingsError, NameTakenError
from tape2048.io.durable import (
    fsync_dir,
    fsync_path,
    new_file,
    path_exists,
    replace_file,
    storage_errors,
    try_lock,
    write_all,
)
from tape2048.io.reading import map_path, read_path
from tape2048.session.embeddings import EMBEDDINGS_JSON, EMBEDDINGS_NPY

if TYPE_CHECKING:
    from collections.abc import Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

PARTIAL = ".embeddings.partial"
_PLAN = "plan.json"
_VALUES = "values.npy"
_JOURNALS = "journal.*of*"

_RECORD = struct.Struct("<QI")
_RECORD_BYTES = _RECORD.size + 4
#: Bytes of a header of two dimensions: what NumPy writes, and a multiple of 64.
_HEADER_BYTES = 128


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What is made of which rows.

    Attributes:
        model_sha: of the tower.
        pooling: how its states are pooled.
        width: D.
        rows: N.
        steps_crc32c: of ``steps.npy``; None of a session in shards.
        chunk_rows: rows of a chunk; the last one may have fewer.
    """

    model_sha: str
    pooling: str
    width: int
    rows: int
    steps_crc32c: int | None
    chunk_rows: int

    @property
    def chunks(self) -> int:
        """How many."""
        return -(-self.rows // self.chunk_rows)

    def rows_of(self, chunk: int) -> range:
        """The rows of a chunk."""
        return range(chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.rows))

    @property
    def header(self) -> bytes:
        """The beginning of the ``.npy`` file, format 1.0."""
        shape = f"({self.rows}, {self.width})"
        text = f"{{'descr': '<u2', 'fortran_order': False, 'shape': {shape}, }}"
        room = _HEADER_BYTES - 10
        return b"\x93NUMPY\x01\x00" + room.to_bytes(2, "little") + text.ljust(room - 1).encode() + b"\n"

    @property
    def bytes(self) -> int:
        """Length of the file."""
        return _HEADER_BYTES + 2 * self.rows * self.width

    def offset(self, chunk: int) -> int:
        """Where a chunk begins in the file."""
        return _HEADER_BYTES + 2 * self.width * self.rows_of(chunk).start

    @property
    def facts(self) -> dict[str, Any]:
        """What ``embeddings.json`` says."""
        return {
            "model_sha": self.model_sha,
            "pooling": self.pooling,
            "D": self.width,
            "dtype": "bf16",
            "dtype_bits": "bf16",
            "rows": self.rows,
            "steps_crc32c": self.steps_crc32c,
        }


class Draft:
    """One process's part in filling the directory; a context that holds its journal.

    Args:
        session: the session's directory.
        plan: what is made. Where a draft of the same values stands there already, its chunks count.
        share: which share's journal this process writes, and of how many.
        replace: whether a draft of other values gives way.

    Attributes:
        plan: as given, with the ``chunk_rows`` of the draft that stands there.

    Raises:
        AlreadyRunningError: another process works on the same share.
        EmbeddingsError: a draft of other values stands there.
        DiskFullError: there is no room for the whole file.
        StorageError: the operating system refused something.
    """

    def __init__(
        self, session: Path, plan: Plan, share: tuple[int, int] = (0, 1), *, replace: bool = False
    ) -> None:
        self._session = session
        self._path = session / PARTIAL
        self._share = share
        self._replace = replace
        self.plan = plan
        self._journal = self._values = -1

    def __enter__(self) -> Self:
        try:
            with self._refusals():
                self._path.mkdir(exist_ok=True)
                self.plan = self._agree(self.plan)
                self._open_journal()
                self._open_values()
        except BaseException:
            self.__exit__()
            raise
        return self

    def __exit__(self, *_: object) -> None:
        for fd in (self._journal, self._values):
            if fd >= 0:
                os.close(fd)
        self._journal = self._values = -1

    def done(self) -> dict[int, set[int]]:
        """The chunks that any process has written, each with the checksums it was written with."""
        found: dict[int, set[int]] = {}
        for path in sorted(self._path.glob(_JOURNALS)):
            content = read_path(path).tobytes()
            for at in range(0, len(content) - _RECORD_BYTES + 1, _RECORD_BYTES):
                record = content[at : at + _RECORD_BYTES]
                if crc32c(record[:-4]) == int.from_bytes(record[-4:], "little"):
                    chunk, checksum = _RECORD.unpack_from(record)
                    found.setdefault(chunk, set()).add(checksum)
        return {chunk: checksums for chunk, checksums in found.items() if chunk < self.plan.chunks}

    def write(self, chunk: int, values: NDArray[np.uint16]) -> None:
        """Write a chunk, then its record.

        Args:
            chunk: 0 <= chunk < ``plan.chunks``.
            values: bits of bfloat16, ``u2[rows of the chunk, D]``.
        """
        rows = self.plan.rows_of(chunk)
        assert values.shape == (len(rows), self.plan.width)
        data = np.ascontiguousarray(values, "<u2").data
        record = _RECORD.pack(chunk, crc32c(data))
        with self._refusals():
            write_all(self._values, data, self.plan.offset(chunk))
            write_all(self._journal, record + crc32c(record).to_bytes(4, "little"))

    def publish(self) -> list[int] | None:
        """Give the file its name, if every chunk is whole.

        Returns:
            None where the session has these embeddings now; else the chunks that are missing.

        Raises:
            StorageError: the operating system refused something.
        """
        with self._refusals(), self._alone() as there:
            if not there:
                return None  # another process was last, and has done it
            missing = self._missing()
            if missing:
                return missing
            final = self._session / EMBEDDINGS_NPY
            if path_exists(self._path / _VALUES):
                fsync_path(self._path / _VALUES)
                (self._session / EMBEDDINGS_JSON).unlink(missing_ok=True)
                fsync_dir(self._session)
                (self._path / _VALUES).replace(final)
                fsync_dir(self._session)
            replace_file(self._session / EMBEDDINGS_JSON, pretty_json(self.plan.facts))
            shutil.rmtree(self._path)
            fsync_dir(self._session)
        return None

    # ---------------------------------------------------------------------------------- the parts

    def _refusals(self) -> AbstractContextManager[None]:
        return storage_errors(self._path, "writing embeddings")

    @contextlib.contextmanager
    def _alone(self) -> Iterator[bool]:
        """Hold the directory against the other processes; False where it has gone."""
        try:
            fd = os.open(self._path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        except FileNotFoundError:
            yield False
            return
        try:
            fcntl.flock(fd, fcntl.LOCK_EX)  # waits, unlike try_lock()
            yield path_exists(self._path)
        finally:
            os.close(fd)

    def _agree(self, plan: Plan) -> Plan:
        """The plan of the draft that stands here, or else this one, which the others will find."""
        found = self._found(plan)
        if found is None or msgspec.structs.replace(found, chunk_rows=plan.chunk_rows) != plan:
            if self._replace:
                shutil.rmtree(self._path)
                self._path.mkdir()
                return self._found(plan) or plan
            if found is None:
                raise EmbeddingsError(
                    "the plan of an unfinished job is malformed", path=self._path / _PLAN,
                    hint="--force begins anew",
                )  # fmt: skip
            raise EmbeddingsError(
                f"an unfinished job stands here, of {_named(found)}; this one is of {_named(plan)}",
                path=self._path,
                hint="finish it with its own tower, or let --force begin anew",
            )
        return found

    def _found(self, plan: Plan) -> Plan | None:
        """The plan that stands here, written if there is none; None for one that is malformed."""
        path = self._path / _PLAN
        with contextlib.suppress(NameTakenError), new_file(path) as fd:
            write_all(fd, msgspec.json.encode(plan))
        try:
            return msgspec.json.decode(read_path(path).tobytes(), type=Plan)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _open_journal(self) -> None:
        index, count = self._share
        path = self._path / f"journal.{index}of{count}"
        self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not try_lock(self._journal):
            raise AlreadyRunningError(
                f"another process makes share {index}/{count} of these embeddings",
                path=self._session,
                hint="wait for it, or share the work: --shard I/N",
            )
        # A record that a kill cut off; what follows must begin where records do.
        size = os.fstat(self._journal).st_size
        os.ftruncate(self._journal, size - size % _RECORD_BYTES)

    def _open_values(self) -> None:
        path = self._path / _VALUES
        if not path_exists(path) and path_exists(self._session / EMBEDDINGS_NPY) and self._moved():
            return  # it has its name already; what is left to do is the rest of publish()
        self._values = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        status = os.fstat(self._values)
        free = shutil.disk_usage(self._path).free
        if self.plan.bytes - 512 * status.st_blocks > free:
            raise DiskFullError(
                f"{free:,} bytes are free, and the embeddings take {self.plan.bytes:,}",
                path=self._session,
                hint="free some space",
            )
        write_all(self._values, self.plan.header, 0)
        os.ftruncate(self._values, self.plan.bytes)

    def _moved(self) -> bool:
        """Whether the session's file is this draft's, which ended between its renaming and its end."""
        return len(self.done()) == self.plan.chunks and not self._missing()

    def _missing(self) -> list[int]:
        """Chunks without a record, or whose bytes are not those of theirs."""
        path = self._path / _VALUES
        path = path if path_exists(path) else self._session / EMBEDDINGS_NPY
        content = map_path(path).data if path_exists(path) else memoryview(b"")
        if len(content) != self.plan.bytes or bytes(content[:_HEADER_BYTES]) != self.plan.header:
            return list(range(self.plan.chunks))
        done = self.done()
        missing = []
        for chunk in range(self.plan.chunks):
            rows = self.plan.rows_of(chunk)
            begin = self.plan.offset(chunk)
            end = begin + 2 * self.plan.width * len(rows)
            if chunk not in done or crc32c(content[begin:end]) not in done[chunk]:
                missing.append(chunk)
        return missing


def _named(plan: Plan) -> str:
    rows = f"{plan.rows} rows with CRC-32C {plan.steps_crc32c}"
    return f"tower {plan.model_sha} ({plan.pooling}, D = {plan.width}, {rows})"
