"""Embedding of sessions: the offline job that writes a tower's vectors of all rows beside the rows.

The tower runs in evaluation mode, in float32 on a CPU and under bfloat16 autocast on CUDA; the vectors are
rounded to bfloat16, to nearest, ties to even. The job is split into chunks of rows, so that it resumes where
a killed process stopped, and several processes share it: chunk c belongs to share c mod n. They fill::

    <session>/.embeddings.partial/
        plan.json       the model, the rows, and the rows of a chunk
        values.npy      the future file, at its full size from the start
        journal.0of2    16 bytes for each chunk that a process of this share has written: u64 chunk,
                        u32 CRC-32C of the chunk's bytes, u32 CRC-32C of these 12

A chunk counts once its record is in a journal; the record is written after the chunk. So a killed process
loses only its current chunk. A power failure can lose more: before the file is published, each chunk is read
again, compared with its record, and written again if it differs.

``embeddings.json`` makes the embeddings part of the session. It is written last, and removed first when
others are replaced.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import struct
import time
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Self

import msgspec
import numpy as np
import torch
from crc32c import crc32c

from tape2048.base.text import counted, pretty_json
from tape2048.errors import (
    BusyError,
    ChecksumError,
    ColumnError,
    DiskFullError,
    FieldError,
    ModelError,
    NameTakenError,
)
from tape2048.formats.npy import rows_header
from tape2048.formats.session import STEPS_NPY, TAPE_NPY
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
from tape2048.io.reading import crc32c_file, map_path, open_regular, read_path
from tape2048.session.directory import EMBEDDINGS_JSON, EMBEDDINGS_NPY, rows_entry
from tape2048.session.session import open_embeddings

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048.torch.tower import OpenTower

#: 16 MB at D = 128: some seconds of a CPU's work, the most that a kill may cost.
CHUNK_ROWS = 65_536
BATCH_ROWS = 2048


class Embedded(NamedTuple):
    """The result of :func:`embed_session`."""

    # `"made"`; `"there"`: these embeddings existed already; `"waiting"`: this share is done, and others are
    # not
    status: Literal["made", "there", "waiting"]
    rows: int  # N
    rows_made: int  # rows embedded by this call
    width: int  # D


def bf16_bits(values: torch.Tensor) -> NDArray[np.uint16]:
    """Round floats to bfloat16, to nearest, ties to even, as bits: ``u16`` of the same shape."""
    rounded = values.to(torch.bfloat16).contiguous().cpu()
    return rounded.view(torch.int16).numpy().view(np.uint16)


def tower_width(tower: OpenTower, device: torch.device) -> int:
    """Return D, from the vector of one board; raise ModelError where the tower gives no vector."""
    tower.module.to(device)
    found = _vectors(tower, torch.zeros(1, 16, dtype=torch.uint8), device)
    return int(found.shape[1])


def tower_rate(tower: OpenTower, device: torch.device, batch_rows: int) -> float:
    """Measure a tower's rows a second, for one second on artificial boards."""
    tower.module.to(device)
    boards = torch.arange(batch_rows * 16, dtype=torch.int32).reshape(batch_rows, 16).remainder(12).byte()
    _vectors(tower, boards, device)  # the first call sets up kernels
    begin = time.perf_counter()
    rows = 0
    while time.perf_counter() - begin < 1:
        bf16_bits(_vectors(tower, boards, device))  # which waits for the device
        rows += batch_rows
    return rows / (time.perf_counter() - begin)


def embed_rows(
    tower: OpenTower, tokens: NDArray[np.uint8], device: torch.device, batch_rows: int = BATCH_ROWS
) -> NDArray[np.uint16]:
    """Embed boards given as exponents ``u8[n, 16]``; return bits of bfloat16, ``u16[n, D]``."""
    if batch_rows < 1:
        raise ValueError(f"batch_rows={batch_rows}; expected at least 1")
    if not len(tokens):
        return np.empty((0, tower_width(tower, device)), np.uint16)
    parts = []
    for begin in range(0, len(tokens), batch_rows):
        vectors = _vectors(tower, torch.from_numpy(tokens[begin : begin + batch_rows]), device)
        finite = vectors.isfinite().all(dim=1)
        if not bool(finite.all()):
            at = begin + int((~finite).nonzero()[0, 0])
            raise ModelError(
                f"the tower gives numbers that are not finite for the board {tokens[at].tolist()}",
                hint="it diverged in training, or its checkpoint is another model's",
            )
        parts.append(bf16_bits(vectors))
    return np.concatenate(parts)


def embed_session(
    session: Session,
    tower: OpenTower,
    *,
    device: torch.device | None = None,
    batch_rows: int = BATCH_ROWS,
    chunk_rows: int = CHUNK_ROWS,
    share: tuple[int, int] = (0, 1),
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Embedded:
    """Make a session's embeddings, or this process's share of them.

    The file appears when all shares are done. After a kill, the same call resumes.

    Args:
        session: the session.
        tower: from :func:`tape2048.torch.tower.open_tower`.
        device: of the tower; by default the CPU.
        batch_rows: maximum number of rows in a batch, >= 1.
        chunk_rows: rows of a chunk, >= 1; a resumed job keeps its first size.
        share: index of this process's share, from 0, and number of shares.
        force: make embeddings even if the session has some, or an unfinished job of another tower; those
            stay until the new ones are complete.
        progress: called with the number of this share's rows done, and of all of them.

    Raises:
        ValueError: an invalid argument.
        ChecksumError: ``steps.npy`` or ``tape.npy`` does not match its manifest.
        ColumnError: the session has embeddings of another tower or of other rows (without ``force``), or
            rows of no run.
        BusyError: another process works on this share.
        ModelError: as for :func:`embed_rows`.
        StorageError: the operating system refused something.

    Example:
        >>> from tape2048 import Session, sessions
        >>> from tape2048.torch import embed_session
        >>> from tape2048.torch.tower import open_tower
        >>> embed_session(Session.open(sessions("selfplay")[0]), open_tower("critic/best")).status
        'made'
    """
    index, count = share
    if batch_rows < 1 or chunk_rows < 1 or not 0 <= index < count:
        raise ValueError(
            f"batch_rows={batch_rows}, chunk_rows={chunk_rows}, share={share}; see the arguments"
        )
    if session.rows_without_run:
        raise ColumnError(
            f"found {counted(session.rows_without_run, 'row')} of no run; embeddings need rows of runs alone",
            path=session.path,
            hint="convert it to a session without them: tape2048 convert",
        )
    device = device or torch.device("cpu")
    plan = EmbeddingPlan(
        model_sha=tower.sha256,
        pooling=tower.pooling,
        width=tower_width(tower, device),
        rows=len(session),
        steps_crc32c=_checked_steps(session),
        chunk_rows=chunk_rows,
    )
    if not force and _is_there(session, plan):
        return Embedded("there", plan.rows, 0, plan.width)

    def embed(rows: range) -> NDArray[np.uint16]:
        tokens = session.tokens(slice(rows.start, rows.stop))
        if tokens.size and tokens.max() > 15:
            at = int((tokens > 15).any(axis=1).argmax())
            raise FieldError(
                f"row {rows.start + at}: found the exponent {tokens[at].max()}, expected at most 15",
                path=session.path,
            )
        return embed_rows(tower, tokens, device, batch_rows)

    with EmbeddingDraft(session.path, plan, share, replace=force) as draft:
        return _fill(draft, share, embed, progress or (lambda _done, _total: None))


def _fill(
    draft: EmbeddingDraft,
    share: tuple[int, int],
    embed: Callable[[range], NDArray[np.uint16]],
    progress: Callable[[int, int], object],
) -> Embedded:
    plan = draft.plan
    sizes = {chunk: len(plan.rows_of(chunk)) for chunk in range(share[0], plan.chunks, share[1])}
    total = sum(sizes.values())
    done = draft.done()
    wanted = [chunk for chunk in sizes if chunk not in done]
    ready = total - sum(sizes[chunk] for chunk in wanted)
    made = 0
    progress(ready, total)
    while True:
        for chunk in wanted:
            draft.write(chunk, embed(plan.rows_of(chunk)))
            made += sizes[chunk]
            progress(min(ready + made, total), total)
        missing = draft.publish()
        if missing is None:
            return Embedded("made", plan.rows, made, plan.width)
        # Other shares' chunks are theirs to make; this share's were damaged after they were written.
        wanted = [chunk for chunk in missing if chunk in sizes]
        if not wanted:
            return Embedded("waiting", plan.rows, made, plan.width)


@torch.inference_mode()
def _vectors(tower: OpenTower, tokens: torch.Tensor, device: torch.device) -> torch.Tensor:
    moved = tokens.to(device)
    with torch.autocast("cuda", torch.bfloat16, enabled=device.type == "cuda"):
        found = tower.module(moved)
    if found.ndim != 2 or len(found) != len(tokens):
        raise ModelError(
            f"the tower gave shape {list(found.shape)} for {counted(len(tokens), 'board')}, expected [B, D]"
        )
    return found  # type: ignore[no-any-return]


def _checked_steps(session: Session) -> int | None:
    """Compute the checksum of steps or tape, which the manifest must have; None for a session in shards."""
    path = session.path / (STEPS_NPY if session.tape is None else TAPE_NPY)
    if not path.exists():
        return None
    with open_regular(path) as fd:
        found = crc32c_file(fd, os.fstat(fd).st_size, path)
    named = rows_entry(session.manifest)
    if named is not None and named.crc32c != found:
        raise ChecksumError(
            f"CRC-32C {found:#010x}, and the manifest says {named.crc32c:#010x}: bytes changed", path=path,
            hint="`tape2048 validate` finds the damage; damaged rows are not embedded",
        )  # fmt: skip
    return found


def _is_there(session: Session, plan: EmbeddingPlan) -> bool:
    """Return whether the session has these embeddings; raise ColumnError where it has others."""
    path: Path = session.path / EMBEDDINGS_JSON
    if not path.exists():
        return False
    found = open_embeddings(session)
    mine = plan.model_sha, plan.pooling, plan.width
    theirs = found.model_sha, found.pooling, found.values.shape[1]
    if mine != theirs:
        raise ColumnError(
            f"the session has embeddings of tower {theirs[0]} ({theirs[1]}, D = {theirs[2]}); "
            f"this one is {mine[0]} ({mine[1]}, D = {mine[2]})",
            path=path,
            hint="--force replaces them",
        )
    return True


PARTIAL = ".embeddings.partial"
_PLAN = "plan.json"
_VALUES = "values.npy"
_JOURNALS = "journal.*of*"

_RECORD = struct.Struct("<QI")
_RECORD_BYTES = _RECORD.size + 4
#: The header of a two-dimensional array, as NumPy writes it.
_HEADER_BYTES = 128


class EmbeddingPlan(msgspec.Struct, frozen=True, kw_only=True):
    """The model, the rows and the chunks of a job.

    Attributes:
        model_sha: checksum of the tower.
        pooling: the pooling over its states.
        width: D.
        rows: N.
        steps_crc32c: checksum of ``steps.npy`` or ``tape.npy``; None for a session in shards.
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
        """Number of chunks."""
        return -(-self.rows // self.chunk_rows)

    def rows_of(self, chunk: int) -> range:
        """Return the rows of a chunk."""
        return range(chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.rows))

    @property
    def header(self) -> bytes:
        """The header of the ``.npy`` file, format 1.0."""
        return rows_header(np.dtype("<u2"), self.rows, _HEADER_BYTES, self.width)

    @property
    def bytes(self) -> int:
        """Size of the ``.npy`` file."""
        return self.offset(self.rows)

    def offset(self, row: int) -> int:
        """Return the offset of a row in the file."""
        return _HEADER_BYTES + 2 * self.width * row

    @property
    def facts(self) -> dict[str, Any]:
        """The content of ``embeddings.json``."""
        return {
            "model_sha": self.model_sha,
            "pooling": self.pooling,
            "D": self.width,
            "dtype": "bf16",
            "dtype_bits": "bf16",
            "rows": self.rows,
            "steps_crc32c": self.steps_crc32c,
        }

    def __str__(self) -> str:
        rows = f"{self.rows} rows with CRC-32C {self.steps_crc32c}"
        return f"tower {self.model_sha} ({self.pooling}, D = {self.width}, {rows})"


class EmbeddingDraft:
    """One process's share of the job; a context manager that holds the share's journal.

    The chunks of an existing draft of the same values count; ``replace`` discards a draft of other values.

    Attributes:
        plan: as given, with the ``chunk_rows`` of the existing draft.
    """

    def __init__(
        self, session: Path, plan: EmbeddingPlan, share: tuple[int, int] = (0, 1), *, replace: bool = False
    ) -> None:
        self._session = session
        self._path = session / PARTIAL
        self._share = share
        self._replace = replace
        self.plan = plan
        self._journal = self._values = -1

    def __enter__(self) -> Self:
        try:
            with self._storage_errors():
                self._path.mkdir(exist_ok=True)
                self.plan = self._agree()
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
        """Return the chunks that any process has written, with the checksums in their records."""
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
        """Write a chunk, then its record."""
        rows = self.plan.rows_of(chunk)
        assert values.shape == (len(rows), self.plan.width)
        data = np.ascontiguousarray(values, "<u2").data
        record = _RECORD.pack(chunk, crc32c(data))
        with self._storage_errors():
            write_all(self._values, data, self.plan.offset(rows.start))
            write_all(self._journal, record + crc32c(record).to_bytes(4, "little"))

    def publish(self) -> list[int] | None:
        """Rename the file to its final name if every chunk is complete."""
        with self._storage_errors(), self._lock_directory() as exists:
            if not exists:
                return None  # another process has published them
            missing = self._missing()
            if missing:
                return missing
            if path_exists(self._path / _VALUES):
                fsync_path(self._path / _VALUES)
                (self._session / EMBEDDINGS_JSON).unlink(missing_ok=True)
                fsync_dir(self._session)
                (self._path / _VALUES).replace(self._session / EMBEDDINGS_NPY)
                fsync_dir(self._session)
            replace_file(self._session / EMBEDDINGS_JSON, pretty_json(self.plan.facts))
            shutil.rmtree(self._path)
            fsync_dir(self._session)
        return None

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(self._path, "writing embeddings")

    @contextlib.contextmanager
    def _lock_directory(self) -> Iterator[bool]:
        """Wait for the directory's lock; yield False if the directory is gone."""
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

    def _agree(self) -> EmbeddingPlan:
        """Return the existing draft's plan, or write this one for other processes to find."""
        plan, found = self.plan, self._existing_plan()
        if found is not None and msgspec.structs.replace(found, chunk_rows=plan.chunk_rows) == plan:
            return found
        if self._replace:
            shutil.rmtree(self._path)
            self._path.mkdir()
            return self._existing_plan() or plan
        if found is None:
            raise ColumnError(
                "the plan of an unfinished job is malformed",
                path=self._path / _PLAN,
                hint="--force begins anew",
            )
        raise ColumnError(
            f"an unfinished job stands here, of {found}; this one is of {plan}",
            path=self._path,
            hint="finish it with its own tower, or let --force begin anew",
        )

    def _existing_plan(self) -> EmbeddingPlan | None:
        """Read the draft's plan, written now if there is none; None if it is malformed."""
        path = self._path / _PLAN
        with contextlib.suppress(NameTakenError), new_file(path) as fd:
            write_all(fd, msgspec.json.encode(self.plan))
        try:
            return msgspec.json.decode(read_path(path).tobytes(), type=EmbeddingPlan)
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return None

    def _open_journal(self) -> None:
        index, count = self._share
        path = self._path / f"journal.{index}of{count}"
        self._journal = os.open(path, os.O_RDWR | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o644)
        if not try_lock(self._journal):
            raise BusyError(
                f"another process makes share {index}/{count} of these embeddings",
                path=self._session,
                hint="wait for it, or share the work: --shard I/N",
            )
        # Drop a truncated record: the next one must begin at a multiple of the record size.
        size = os.fstat(self._journal).st_size
        os.ftruncate(self._journal, size - size % _RECORD_BYTES)

    def _open_values(self) -> None:
        path = self._path / _VALUES
        if not path_exists(path) and path_exists(self._session / EMBEDDINGS_NPY) and not self._missing():
            return  # a process ended after its rename in publish(): only the rest of publish() is left
        self._values = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        allocated = 512 * os.fstat(self._values).st_blocks
        free = shutil.disk_usage(self._path).free
        if self.plan.bytes - allocated > free:
            raise DiskFullError(
                f"{free:,} bytes are free, and the embeddings take {self.plan.bytes:,}",
                path=self._session,
                hint="free some space",
            )
        write_all(self._values, self.plan.header, 0)
        os.ftruncate(self._values, self.plan.bytes)

    def _missing(self) -> list[int]:
        """List the chunks without a record, or with bytes that do not match it."""
        plan, path = self.plan, self._path / _VALUES
        path = path if path_exists(path) else self._session / EMBEDDINGS_NPY
        content = map_path(path).data if path_exists(path) else memoryview(b"")
        if len(content) != plan.bytes or bytes(content[:_HEADER_BYTES]) != plan.header:
            return list(range(plan.chunks))
        done = self.done()
        missing = []
        for chunk in range(plan.chunks):
            rows = plan.rows_of(chunk)
            data = content[plan.offset(rows.start) : plan.offset(rows.stop)]
            if chunk not in done or crc32c(data) not in done[chunk]:
                missing.append(chunk)
        return missing
