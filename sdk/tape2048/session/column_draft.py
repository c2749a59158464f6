"""Writer of columns, which several processes can share, and which resumes after a kill.

A job writes one or several columns. The rows are split into chunks, and chunk c belongs to share c mod n. The
processes of the shares fill::

    <session or its overlay>/.<first column>.partial/
        plan.json           the columns, the number of rows, and the rows of a chunk
        <name>.<dtype>.npy  the file of each column, at its full size from the start
        journal.0of2        a record for each chunk that a process of this share has written: u64 chunk, u32
                            CRC-32C of the chunk's bytes in all columns, u32 CRC-32C of these 12 bytes

A record is written after its chunk, so a killed process loses only its current chunk. A power failure can
lose more. Therefore, before the files are published, each chunk is read, compared with its record, and
written again if it differs.

``<name>.json`` makes a column part of the session. It is written last, and, when a column is replaced,
removed first.
"""

from __future__ import annotations

import contextlib
import fcntl
import itertools
import os
import shutil
import struct
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, Protocol, Self

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import BusyError, ChecksumError, ColumnError, DiskFullError, FieldError, NameTakenError
from tape2048.files.durable import fsync_dir, fsync_path, new_file, write_all, write_file
from tape2048.files.npy import rows_header
from tape2048.files.opening import open_fd, path_exists, storage_errors, try_lock
from tape2048.files.reading import crc32c, crc32c_file, map_path, open_regular, read_document, read_path
from tape2048.session.columns import (
    COLUMN_DTYPES,
    Column,
    ColumnInfo,
    check_column_name,
    column_text,
    find_columns,
)
from tape2048.session.layout import STEPS_NPY
from tape2048.session.tape_layout import TAPE_NPY

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from numpy.typing import ArrayLike, NDArray

    from tape2048.session.columns import Columns

#: Rows of a chunk, the most work that a kill loses: a few MB, and for most makers a few seconds.
CHUNK_ROWS = 65_536

_PLAN = "plan.json"
_JOURNALS = "journal.*of*"
_RECORD = struct.Struct("<QI")
_RECORD_BYTES = _RECORD.size + 4
#: Bytes of the header of an array, as NumPy writes it.
COLUMN_HEADER_BYTES = 128


class ColumnOwner(Protocol):
    path: Path
    rows_without_run: int

    @property
    def columns(self) -> Columns:
        """Its columns."""

    def tokens(self, index: slice) -> NDArray[np.uint8]:
        """Return the exponents of rows."""


class Written(NamedTuple):
    # `"there"`: the columns existed already; `"waiting"`: this share is done, but other shares are not
    status: Literal["made", "there", "waiting"]
    rows: int  # rows of the session, N
    rows_made: int  # rows that this call made
    columns: tuple[ColumnInfo, ...]


def write_columns(
    session: ColumnOwner,
    columns: Sequence[ColumnInfo],
    make: Callable[[range], Mapping[str, NDArray[Any]]],
    *,
    chunk_rows: int = CHUNK_ROWS,
    share: tuple[int, int] = (0, 1),
    force: bool = False,
    progress: Callable[[int, int], object] | None = None,
) -> Written:
    """Make columns of a session, or this process's share of them. After a kill, the same call resumes.

    ``make`` returns the values of each column for a range of rows. A resumed job keeps its first
    ``chunk_rows``. ``share`` is an index from 0 and the number of shares. With ``force``, columns with other
    facts and unfinished jobs are replaced; the old columns stay until the new ones are complete. Raises
    ValueError, ChecksumError (of the rows), ColumnError (without ``force``), BusyError for a share in work,
    or StorageError.
    """
    index, count = share
    if chunk_rows < 1 or not 0 <= index < count:
        expected = "chunk_rows of at least 1, and a share (i, n) with 0 <= i < n"
        raise ValueError(f"chunk_rows={chunk_rows}, share={share}; expected {expected}")
    plan = _plan(session, columns, chunk_rows)
    existing = session.columns
    there = [] if force else [each for each in plan.columns if existing.is_made(each.name)]
    for each in there:
        found = existing.read(each.name)
        if other := _difference([found.info], [each]):
            message = f"the session has another column {each.name}: {other}"
            raise ColumnError(message, path=found.path, hint="Pass --force to replace it.")
    if len(there) == len(columns):
        return Written("there", plan.rows, 0, plan.columns)
    with ColumnDraft(existing.directories[0], plan, share, replace=force) as draft:
        plan, done = draft.plan, draft.done()
        sizes = {chunk: len(plan.rows_of(chunk)) for chunk in range(index, plan.chunks, count)}
        wanted = [chunk for chunk in sizes if chunk not in done]
        made, total = 0, sum(sizes.values())
        ready = total - sum(sizes[chunk] for chunk in wanted)
        report = progress or (lambda _done, _total: None)
        report(ready, total)
        while True:
            for chunk in wanted:
                draft.write(chunk, make(plan.rows_of(chunk)))
                made += sizes[chunk]
                report(min(ready + made, total), total)
            missing = draft.publish()
            # Other processes make the chunks of other shares. Missing chunks of this share were damaged.
            wanted = [chunk for chunk in missing if chunk in sizes]
            if not wanted:
                return Written("waiting" if missing else "made", plan.rows, made, plan.columns)
            if made > 2 * total:
                message = "the disk repeatedly returns other bytes than were written"
                raise ChecksumError(message, path=draft.path)


def write_column(
    session: ColumnOwner,
    name: str,
    values: ArrayLike | Iterable[ArrayLike],
    *,
    dtype: str | None = None,
    facts: Mapping[str, Any] | None = None,
    replace: bool = False,
) -> Column:
    """Write a column beside the rows, or to the overlay. It appears when it is complete.

    Args:
        session: the session.
        name: a-z, then up to 63 of a-z, 0-9 and _; not a built-in field of batches.
        values: an array ``[N]`` or ``[N, D]``, or an iterable of chunks of it, in the order of the rows.
        dtype: one of the :mod:`types of columns <tape2048.session.columns>`; by default the type of the
            first chunk. Integers must fit; floats are rounded.
        facts: facts to store with the column, as JSON values; ``maker`` must be text.
        replace: whether to replace an existing or unfinished column of this name.

    Raises:
        ValueError: an invalid name or type, or values of another number of rows.
        ColumnError: the column exists (without ``replace``), or the session has rows of no run.
        BusyError: another process is writing the column.
        StorageError: the operating system could not write a file.
        DiskFullError: the disk is full.

    Example:
        >>> from tape2048 import Session, sessions, write_column
        >>> session = Session.open(sessions("selfplay")[0])
        >>> empty = (session.tokens(slice(None)) == 0).sum(axis=1)
        >>> write_column(session, "empty", empty, dtype="u8").path.name
        'empty.u8.npy'
    """
    given: Iterator[Any] = iter([values] if hasattr(values, "__array__") else values)  # type: ignore[arg-type]
    first = np.atleast_1d(next(given, ()))
    names = {np.dtype(kind): each for each, kind in reversed(COLUMN_DTYPES.items())}  # u16 before bf16
    dtype = dtype or names.get(first.dtype.newbyteorder("<"), str(first.dtype))
    if dtype not in COLUMN_DTYPES:
        raise ValueError(f"dtype {dtype!r}; expected one of {', '.join(COLUMN_DTYPES)}")
    own = {"maker": "write_column", **(facts or {})}
    width = first.shape[1] if first.ndim == 2 else None
    plan = _plan(session, [ColumnInfo(name, dtype, width, facts=own)], CHUNK_ROWS, trusted=True)
    directory = session.columns.directories[0]
    if not replace and session.columns.is_made(name):
        message, hint = f"the session has a column {name!r}", "Pass replace=True to replace it."
        raise ColumnError(message, path=directory / f"{name}.json", hint=hint)
    with ColumnDraft(directory, plan, replace=replace, resume=False) as draft:
        end = 0
        for piece in map(np.atleast_1d, itertools.chain([first], given)):
            for at in range(0, len(piece), CHUNK_ROWS):
                part = _as_stored(piece[at : at + CHUNK_ROWS], plan.columns[0])
                end += len(part)
                if end > plan.rows:
                    found = f"found values of more than {plan.rows} rows for column {name!r}"
                    raise ValueError(f"{found}, expected {plan.rows}")
                draft.write_rows(range(end - len(part), end), {name: part})
        if end < plan.rows:
            raise ValueError(f"found values of {end} rows for column {name!r}, expected {plan.rows}")
        draft.publish(verify=False)
    return session.columns.read(name)


def tokens_of(session: ColumnOwner, rows: range) -> NDArray[np.uint8]:
    """Return the exponents of rows, ``u8[n, 16]``; raise FieldError for an exponent above 15."""
    tokens = session.tokens(slice(rows.start, rows.stop))
    if tokens.size and tokens.max() > 15:
        at = int((tokens > 15).any(axis=1).argmax())
        message = f"row {rows.start + at}: found the exponent {tokens[at].max()}, expected at most 15"
        raise FieldError(message, path=session.path)
    return tokens


def _as_stored(values: NDArray[Any], column: ColumnInfo) -> NDArray[Any]:
    kind = column.numpy_dtype
    if column.dtype == "bf16" and values.dtype != kind:
        # Rounded to nearest, ties to even. A NaN stays a NaN.
        bits = values.astype("<f4").view("<u4")
        rounded = (bits + 0x7FFF + ((bits >> 16) & 1)) >> 16
        return np.where(np.isnan(values), bits >> 16 | 0x40, rounded).astype(kind)
    with np.errstate(invalid="ignore", over="ignore"):
        stored = values.astype(kind, copy=False)
    if kind.kind in "biu" and values.dtype != kind and not np.array_equal(stored, values):
        at = np.argwhere(stored != values)[0]
        raise ValueError(f"found {values[tuple(at)]} in column {column.name!r}; expected {column.dtype}")
    return stored


def _plan(
    session: ColumnOwner, columns: Sequence[ColumnInfo], chunk_rows: int, *, trusted: bool = False
) -> ColumnPlan:
    """Plan columns of a session; with ``trusted``, the checksum of the rows is taken from the manifest."""
    if session.rows_without_run:
        message = f"found {counted(session.rows_without_run, 'row')} that belong to no run, expected none"
        hint = "Convert it to a session without them: tape2048 convert"
        raise ColumnError(message, path=session.path, hint=hint)
    if not session.columns.directories:
        message = "data sets and sessions in a store have no directory for columns"
        hint = "Choose an overlay directory: columns=DIR"
        raise ColumnError(message, path=session.path, hint=hint)
    for column in columns:
        check_column_name(column.name)
    rows, checksum = session.columns.rows, _rows_checksum(session, trusted=trusted)
    own = {"rows": rows, "steps_crc32c": checksum}
    plan = ColumnPlan(tuple(msgspec.structs.replace(each, **own) for each in columns), chunk_rows)
    return msgspec.json.decode(msgspec.json.encode(plan), type=ColumnPlan)  # facts as a reader will get them


def _rows_checksum(session: ColumnOwner, *, trusted: bool) -> int | None:
    entry = session.columns.rows_entry
    paths = [session.path / name for name in (TAPE_NPY, STEPS_NPY) if (session.path / name).exists()]
    # The cache of a store has verified the file when it was fetched.
    if not paths or (entry is not None and trusted):
        return entry.crc32c if entry else None
    with open_regular(paths[0]) as fd:
        found = crc32c_file(fd, os.fstat(fd).st_size, paths[0])
    if entry is not None and entry.crc32c != found:
        message = f"has CRC-32C {found:#010x}. The manifest says {entry.crc32c:#010x}"
        hint = "Find the damage with tape2048 validate, and restore the session from a copy."
        raise ChecksumError(message, path=paths[0], hint=hint)
    return found


def _difference(found: Sequence[ColumnInfo], expected: Sequence[ColumnInfo]) -> str:
    theirs, mine = (", ".join(each.name for each in columns) for columns in (found, expected))
    if theirs != mine:
        return f"found {theirs}; expected {mine}"
    texts: list[str] = []
    for one, other in zip(found, expected, strict=True):
        there, here = one.document, other.document
        # A player or a critic is identified by its SHA-256, and its name may differ.
        named = {"maker", *(key.removesuffix("_sha256") for key in here if key.endswith("_sha256"))}
        keys = [key for key in {**there, **here} if key not in named and there.get(key) != here.get(key)]
        texts += (f"{key} is {there.get(key)!r}; expected {here.get(key)!r}" for key in keys)
    return ", ".join(dict.fromkeys(texts))


class ColumnPlan(msgspec.Struct, frozen=True):
    """The columns of a job, all of the same rows, and the rows of a chunk. The last chunk may have fewer."""

    columns: tuple[ColumnInfo, ...]
    chunk_rows: int

    @property
    def rows(self) -> int:
        return self.columns[0].rows

    @property
    def chunks(self) -> int:
        return -(-self.rows // self.chunk_rows)

    def rows_of(self, chunk: int) -> range:
        return range(chunk * self.chunk_rows, min((chunk + 1) * self.chunk_rows, self.rows))


class ColumnDraft:
    """The context of a share of a job, with the journal locked; ``plan`` has the draft's ``chunk_rows``."""

    def __init__(
        self,
        directory: Path,
        plan: ColumnPlan,
        share: tuple[int, int] = (0, 1),
        *,
        replace: bool = False,
        resume: bool = True,
    ) -> None:
        """Take a share (index and number of shares). A draft of the same plan is resumed.

        ``replace`` discards a draft of another plan. Without ``resume``, an existing draft of this plan is
        discarded, and so is this draft after an exception.
        """
        self.path = directory / f".{plan.columns[0].name}.partial"
        self.plan = plan
        self._directory, self._share, self._replace, self._resume = directory, share, replace, resume

    def __enter__(self) -> Self:
        with contextlib.ExitStack() as stack, self._storage_errors():
            if not path_exists(self._directory):
                self._directory.mkdir(parents=True, exist_ok=True)
                fsync_dir(self._directory.parent)
            self.path.mkdir(exist_ok=True)
            self.plan = self._agree()
            self._lock = stack.enter_context(open_fd(self.path, os.O_RDONLY | os.O_DIRECTORY))
            path = self.path / "journal.{}of{}".format(*self._share)
            self._journal = stack.enter_context(open_fd(path, os.O_RDWR | os.O_CREAT | os.O_APPEND))
            self._take(self._journal)
            # Drop a truncated record: the next one must start at a multiple of the record size.
            size = os.fstat(self._journal).st_size
            os.ftruncate(self._journal, size - size % _RECORD_BYTES)
            self._values = self._open_values(stack)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, error: object, *_: object) -> None:
        if error is not None and not self._resume:
            shutil.rmtree(self.path, ignore_errors=True)
        self._stack.close()

    def done(self) -> dict[int, set[int]]:
        """Return the chunks that any process has written, each with the checksums in its records."""
        found: dict[int, set[int]] = {}
        for path in self.path.glob(_JOURNALS):
            content = read_path(path).tobytes()
            whole = content[: len(content) - len(content) % _RECORD_BYTES]
            for chunk, checksum, own in struct.iter_unpack("<QII", whole):
                if crc32c(_RECORD.pack(chunk, checksum)) == own:
                    found.setdefault(chunk, set()).add(checksum)
        return found

    def write(self, chunk: int, values: Mapping[str, NDArray[Any]]) -> None:
        """Write a chunk of each column, then its record; raise ValueError for another type or shape."""
        record = _RECORD.pack(chunk, self.write_rows(self.plan.rows_of(chunk), values))
        with self._storage_errors():
            write_all(self._journal, record + crc32c(record).to_bytes(4, "little"))

    def write_rows(self, rows: range, values: Mapping[str, NDArray[Any]]) -> int:
        """Write rows of each column without a record; return their checksum."""
        checksum = 0
        for column, fd in zip(self.plan.columns, self._values, strict=True):
            data = np.ascontiguousarray(values[column.name])
            shape = (len(rows), *column.shape[1:])
            if (data.shape, data.dtype) != (shape, column.numpy_dtype):
                raise ValueError(
                    f"{column.name} is {data.dtype.str} of shape {data.shape}; "
                    f"expected {column.numpy_dtype.str} of shape {shape}"
                )
            checksum = crc32c(data.data, checksum)
            with self._storage_errors():
                write_all(fd, data.view(np.uint8).data, _offset(column, rows.start))
        return checksum

    def publish(self, *, verify: bool = True) -> list[int]:
        """Rename the files to their final names, or return the missing chunks (if ``verify``)."""
        with self._storage_errors():
            fcntl.flock(self._lock, fcntl.LOCK_EX)  # waits, unlike try_lock()
            try:
                if not path_exists(self.path):
                    return []  # another process has published them
                missing = self._missing() if verify else []
                if not missing:
                    self._rename()
                return missing
            finally:
                fcntl.flock(self._lock, fcntl.LOCK_UN)

    def _rename(self) -> None:
        directory, present, columns = self._directory, find_columns(self._directory), self.plan.columns
        values = [each.npy_name for each in columns if path_exists(self.path / each.npy_name)]
        for column in columns:
            (self.path / column.json_name).unlink(missing_ok=True)
            write_file(self.path / column.json_name, column_text(column))
        for name in values:
            fsync_path(self.path / name)
        for column in columns:
            (directory / column.json_name).unlink(missing_ok=True)
            for file in present.get(column.name, ()):
                if file != column.npy_name:  # of another type
                    (directory / file).unlink()
        fsync_dir(directory)
        for name in (*values, *(each.json_name for each in columns)):
            (self.path / name).replace(directory / name)
            fsync_dir(directory)
        shutil.rmtree(self.path)
        fsync_dir(directory)

    def _storage_errors(self) -> AbstractContextManager[None]:
        return storage_errors(self.path, "writing a column")

    def _agree(self) -> ColumnPlan:
        """Return the plan of the existing draft, or write this plan for other processes."""
        path = self.path / _PLAN
        while True:
            with contextlib.suppress(NameTakenError), new_file(path) as fd:
                write_all(fd, msgspec.json.encode(self.plan))
                return self.plan
            try:
                found = msgspec.json.decode(read_document(path), type=ColumnPlan)
            except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
                pass  # a damaged plan: no process can resume it
            else:
                other = _difference(found.columns, self.plan.columns)
                if self._resume and not other:
                    return found
                if other and not self._replace:
                    hint = "Finish that job, or pass --force or replace=True to start again."
                    message = f"found an unfinished job of other columns: {other}"
                    raise ColumnError(message, path=self.path, hint=hint)
            for journal in self.path.glob(_JOURNALS):
                with open_fd(journal, os.O_RDONLY) as fd:
                    self._take(fd)
            shutil.rmtree(self.path)
            self.path.mkdir()

    def _take(self, fd: int) -> None:
        if not try_lock(fd):
            names = ", ".join(column.name for column in self.plan.columns)
            message = "another process is making share {}/{} of {}".format(*self._share, names)
            hint = "Wait until it has finished, or share the work: --shard I/N"
            raise BusyError(message, path=self._directory, hint=hint)

    def _open_values(self, stack: contextlib.ExitStack) -> list[int]:
        columns = self.plan.columns
        paths = [self.path / column.npy_name for column in columns]
        if not all(map(path_exists, paths)) and not self._missing():
            return []  # a process ended in publish(), after its renames: publish() only has to finish
        fds = [stack.enter_context(open_fd(path, os.O_RDWR | os.O_CREAT)) for path in paths]
        free = shutil.disk_usage(self.path).free
        sizes = [_offset(column, column.rows) for column in columns]
        if sum(sizes) - 512 * sum(os.fstat(fd).st_blocks for fd in fds) > free:
            message = f"{free:,} bytes are free. The columns take {sum(sizes):,}"
            raise DiskFullError(message, path=self._directory, hint="Free some space.")
        for column, fd, size in zip(columns, fds, sizes, strict=True):
            write_all(fd, _header(column), 0)
            os.ftruncate(fd, size)
        return fds

    def _missing(self) -> list[int]:
        plan = self.plan
        contents = []
        for column in plan.columns:
            path = self.path / column.npy_name
            path = path if path_exists(path) else self._directory / column.npy_name
            content = map_path(path).data if path_exists(path) else memoryview(b"")
            header = _header(column)
            if len(content) != _offset(column, plan.rows) or content[: len(header)] != header:
                return list(range(plan.chunks or 1))
            contents.append(content)
        done = self.done()
        missing = []
        for chunk in range(plan.chunks):
            rows, checksum = plan.rows_of(chunk), 0
            for column, content in zip(plan.columns, contents, strict=True) if chunk in done else ():
                data = content[_offset(column, rows.start) : _offset(column, rows.stop)]
                checksum = crc32c(data, checksum)
            if checksum not in done.get(chunk, ()):
                missing.append(chunk)
        return missing


def _header(column: ColumnInfo) -> bytes:
    return rows_header(column.numpy_dtype, column.rows, COLUMN_HEADER_BYTES, column.width)


def _offset(column: ColumnInfo, row: int) -> int:
    return COLUMN_HEADER_BYTES + column.row_bytes * row
