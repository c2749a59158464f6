"""Columns: values for each row of a session, in files beside its rows or in an overlay directory.

A column is two files in the session's directory or in ``<overlay>/<name of the session>/``, which is searched
first. ``<name>.<dtype>.npy`` holds ``[N]`` or ``[N, D]`` in C order, in the order of the rows. A name is a-z,
then up to 63 of a-z, 0-9 and _. The types are ``bool``, ``u8`` to ``u64``, ``i8`` to ``i64``, ``f16`` to
``f64``, all little-endian, and ``bf16``, whose bits are stored as ``<u2``.

``<name>.json`` is written last: a ``.npy`` file without it is half-written. It is an object:

================  =====================================================================================
``dtype``         the type in the file's name
``rows``          N
``D``             D, absent for ``[N]``
``steps_crc32c``  checksum of ``steps.npy`` or ``tape.npy``; null for a session in shards
``crc32c``        CRC-32C of the ``.npy`` file; absent in files of earlier versions
``maker``         for example ``"tape2048 embed"``; absent in old files
other fields      facts of the maker, such as the tower's ``model_sha`` and ``pooling`` for ``embeddings``
================  =====================================================================================
"""

from __future__ import annotations

import contextlib
import os
import re
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, NamedTuple

import msgspec
import numpy as np

from tape2048._version import __version__
from tape2048.base.text import pretty_json
from tape2048.errors import ColumnError, FormatError, MissingPathError, TapeError
from tape2048.files.npy import open_shards, peek_header, read_header
from tape2048.files.opening import path_exists
from tape2048.files.reading import crc32c_file, load_open, open_regular, read_document
from tape2048.session.batch_fields import RESERVED, field_of
from tape2048.session.directory import list_names, rows_entry
from tape2048.session.layout import MANIFEST

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.files.npy import Shards
    from tape2048.session.foreign import ForeignRows

#: The types of columns, and how NumPy stores them.
COLUMN_DTYPES = {
    "bool": "|b1", "u8": "|u1", "u16": "<u2", "u32": "<u4", "u64": "<u8", "i8": "|i1", "i16": "<i2",
    "i32": "<i4", "i64": "<i8", "f16": "<f2", "f32": "<f4", "f64": "<f8", "bf16": "<u2",
}  # fmt: skip

_NAME = r"[a-z][a-z0-9_]{0,63}"
_NPY = re.compile(rf"({_NAME})\.({'|'.join(COLUMN_DTYPES)})\.npy", re.ASCII)
# Embeddings of other programs: float32, in the order of the files of rows.
_EMBEDDINGS = re.compile(r"embeddings-\d{5,6}\.npy")
# Annotations of 2048former: structured rows, each with the run and the step of the row that it describes.
_ANNOTATIONS = re.compile(r"annotations(-\d{5,6})?\.npy")
_ANNOTATED = "run_id", "step_index"
_JSON = re.compile(rf"({_NAME})\.json", re.ASCII)
_DRAFT = re.compile(rf"\.{_NAME}\.partial", re.ASCII)
# A maker that is a command, which a hint can repeat.
_COMMAND = re.compile(r"tape2048( [a-z]{1,20}){1,3}", re.ASCII)
#: The maker of columns that a recorder wrote with the rows.
RECORDED = "tape2048 record"
# Fields of rows with a value for each move.
_OF_MOVES = frozenset({"branch_evs", "ev_values", "ev_q", "policy_p1", "policy_logp", "policy_hard"})
_MAKERS = {"embeddings": "tape2048 embed"} | dict.fromkeys(
    ("values", "best", "loss", "luck", "grade", "network_values"), "tape2048 annotate"
)

# The states of the files whose checksums this process has compared.
_checked: set[tuple[int | None, ...]] = set()
_WIDTH_MAX = 2**31


class ColumnInfo(msgspec.Struct, frozen=True):
    """Name, type and origin of a column.

    Attributes:
        name: name of the column, and of its field in batches.
        dtype: type, a key of :data:`COLUMN_DTYPES`.
        width: number of values in each row, D; None for a column of shape ``[N]``.
        rows: number of rows, N.
        steps_crc32c: checksum of ``steps.npy`` or ``tape.npy``; None for a session in shards.
        facts: other facts of ``<name>.json``, including ``maker``.
        crc32c: CRC-32C of the file of values; None if it has none.

    Example:
        >>> from tape2048 import ColumnInfo
        >>> ColumnInfo("values", "f32", width=4, rows=10).shape
        (10, 4)
    """

    name: str
    dtype: str
    width: int | None = None
    rows: int = 0
    steps_crc32c: int | None = None
    facts: dict[str, Any] = {}
    crc32c: int | None = None

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape of the values: ``(N,)`` or ``(N, D)``."""
        return (self.rows,) if self.width is None else (self.rows, self.width)

    @property
    def numpy_dtype(self) -> np.dtype[Any]:
        """Type of the stored values; ``<u2`` for ``bf16``."""
        return np.dtype(COLUMN_DTYPES[self.dtype])

    @property
    def npy_name(self) -> str:
        """Name of the file of values."""
        return f"{self.name}.{self.dtype}.npy"

    @property
    def json_name(self) -> str:
        """Name of the file of facts."""
        return f"{self.name}.json"

    @property
    def row_bytes(self) -> int:
        """Bytes of a row's values."""
        return self.numpy_dtype.itemsize * (1 if self.width is None else self.width)

    @property
    def document(self) -> dict[str, Any]:
        """The content of ``<name>.json``."""
        own = {"dtype": self.dtype, "rows": self.rows, "D": self.width, "steps_crc32c": self.steps_crc32c}
        if self.width is None:
            del own["D"]
        if self.crc32c is not None:
            own["crc32c"] = self.crc32c
        return {**self.facts, **own}


def column_text(info: ColumnInfo) -> bytes:
    """Return the bytes of ``<name>.json``: the column's document, and the release that wrote it."""
    return pretty_json({**info.document, "release": __version__})


class Column(NamedTuple):
    """A column: its values, mapped and read-only, ``[N]`` or ``[N, D]``, its description, and its file.

    Values of type ``bf16`` are their bits, ``u16``.
    """

    values: NDArray[Any]
    info: ColumnInfo
    path: Path


class Located(NamedTuple):
    """A column whose rows may be in several files.

    ``rows`` may be strided. ``index_of`` maps row numbers of the session to indices of ``rows``; None if they
    are equal. ``linear``: the rows of each segment are at equal distances in ``rows``.
    """

    info: ColumnInfo
    path: Path
    rows: NDArray[Any]
    index_of: Callable[[NDArray[np.int64]], NDArray[np.int64]] | None = None
    linear: bool = True

    def take(self, numbers: NDArray[np.int64]) -> NDArray[Any]:
        values: NDArray[Any] = self.rows[numbers if self.index_of is None else self.index_of(numbers)]
        return values


class Columns(Mapping[str, ColumnInfo]):
    """A mapping of a session's columns, found by listing its directories. Facts are read on access.

    An access raises KeyError for an unknown name, and ColumnError for a damaged or half-written column.
    ``directories`` are in the order of the search, and new columns go to the first.
    """

    def __init__(
        self,
        directories: tuple[Path, ...],
        rows: int,
        manifest: Any,
        foreign: ForeignRows | None = None,
    ) -> None:
        self.directories, self.rows, self.rows_entry = directories, rows, rows_entry(manifest)
        self.foreign, self._fields = foreign, {} if foreign is None else _fields_of(foreign)
        self._checked: set[Path] = set()  # annotations that have been compared with the rows
        self._found: dict[str, tuple[Path, list[str]]] = {}
        for directory in reversed(directories):
            self._found |= {name: (directory, files) for name, files in find_columns(directory).items()}

    def __getitem__(self, name: str) -> ColumnInfo:
        """Read ``<name>.json``, or describe a field."""
        if name in self._found or self.foreign is None:
            return _read_info(*self._found[name], name)
        facts = _field_facts(name, self.foreign.paths[0].with_name(f"{name}s.json"))
        return msgspec.structs.replace(self._fields[name], facts=facts)

    def __contains__(self, name: object) -> bool:
        """Check whether there is a file of this column, complete or not."""
        return name in self._found or name in self._fields

    def __iter__(self) -> Iterator[str]:
        return iter(sorted({*self._found, *self._fields}))

    def __len__(self) -> int:
        return len({*self._found, *self._fields})

    def is_field(self, name: str) -> bool:
        return name in self._fields and name not in self._found

    def is_made(self, name: str) -> bool:
        """Check whether a column has been completely written to the first of the directories."""
        return path_exists(self.directories[0] / f"{name}.json")

    def read(self, name: str) -> Column:
        found, rows = self.open(name), self.rows
        values = found.rows[:rows]
        # Indices ascend: if the last index is equal to its row number, all are.
        if rows and found.index_of is not None and found.index_of(np.array([rows - 1])) != rows - 1:
            values = found.take(np.arange(rows))
        values.flags.writeable = False
        return Column(values, found.info, found.path)

    def open(self, name: str, *, check: bool = True) -> Located:
        """Map a column; with ``check``, compare its file with its checksum, once in a process."""
        if self.foreign is not None and self.is_field(name):
            rows = self.foreign.field(name)
            return Located(self[name], self.foreign.paths[0], rows, self.foreign.index_of)
        if name not in self._found:
            check_column_name(name)
            maker, directory = _MAKERS.get(name), self.directories[-1] if self.directories else None
            hint = f"Make it: {maker}" if maker else f"Choose one of: {', '.join(self) or 'no columns'}."
            message = f"no {name}.json: this session has no column {name!r}"
            raise ColumnError(message, path=directory, hint=hint)
        directory, files = self._found[name]
        info = _read_info(directory, files, name)
        if files != [info.npy_name]:
            return self._open_shards(info, [directory / file for file in files], name)
        crc32c = self.rows_entry.crc32c if self.rows_entry else info.steps_crc32c
        if (info.rows, info.steps_crc32c) != (self.rows, crc32c):
            message = f"made of {info.rows} rows with CRC-32C {info.steps_crc32c}. The session has "
            message, hint = f"{message}{self.rows} with {crc32c}", _again(name, info.facts.get("maker"))
            raise ColumnError(message, path=directory / info.json_name, hint=hint)
        path = directory / info.npy_name
        found = Located(info, path, _map(path, info))
        if check:
            status = path.stat()
            state = status.st_dev, status.st_ino, status.st_size, status.st_mtime_ns, info.crc32c
            if state not in _checked:
                check_values(info, path)
                _checked.add(state)
        return found

    def _open_shards(self, info: ColumnInfo, paths: list[Path], name: str) -> Located:
        files = np.array([self.rows]) if self.foreign is None else self.foreign.counts
        if info.rows != files.sum():
            raise ColumnError(
                f"found {info.rows} rows in {len(paths)} files, expected {files.sum()}", path=paths[0]
            )
        is_annotation = _ANNOTATIONS.fullmatch(paths[0].name) is not None
        dtype = np.dtype((info.numpy_dtype, info.shape[1:]))
        try:
            shards = open_shards(paths, [peek_header(paths[0]).dtype if is_annotation else dtype], "mmap")
        except FormatError as error:
            raise ColumnError(error.message, path=error.path, offset=error.offset) from error
        if is_annotation:
            self._check_annotations(shards, paths)
            shards = shards._replace(rows=shards.rows[name])
        firsts = np.cumsum(shards.counts) - shards.counts
        shifts = shards.begins - firsts

        def index_of(rows: NDArray[np.int64]) -> NDArray[np.int64]:
            numbers = rows if self.foreign is None else self.foreign.in_files(rows)
            found: NDArray[np.int64] = numbers + shifts[np.searchsorted(firsts, numbers, "right") - 1]
            return found

        linear = bool(np.isin(firsts[1:], files.cumsum()).all())
        return Located(info, paths[0], shards.rows, index_of, linear)

    def _check_annotations(self, shards: Shards, paths: list[Path]) -> None:
        """Compare the runs and steps of annotations with the rows, once."""
        foreign = self.foreign
        if foreign is None:
            message = "found annotations of another program in a session of a recorder, expected none"
            raise ColumnError(message, path=paths[0], hint="Move them to another directory.")
        if paths[0] in self._checked:
            return
        of_files = (shards.begins, shards.counts), (foreign.file_begins, foreign.counts)
        for name, own in zip(_ANNOTATED, (foreign.layout.run, foreign.layout.step), strict=True):
            found, expected = (
                np.concatenate([values[at : at + count] for at, count in zip(*spans, strict=True)])
                for values, spans in zip((shards.rows[name], foreign.rows[own]), of_files, strict=True)
            )
            if len(at := np.flatnonzero(found.astype(np.uint64) != expected.astype(np.uint64))):
                message = f"row {at[0]} has {name} {found[at[0]]}. The session's row has {expected[at[0]]}"
                hint = "Replace them by annotations of these rows, or move them to another directory."
                raise ColumnError(message, path=paths[0], hint=hint)
        self._checked.add(paths[0])


def find_columns(directory: Path) -> dict[str, list[str]]:
    """Return the ``.npy`` files of each column in a directory: an empty list for a ``.json`` without them."""
    found: dict[str, list[str]] = {}
    try:
        names = list_names(directory)
    except MissingPathError:  # an overlay has directories only for sessions with columns
        return found
    for match in filter(None, map(_NPY.fullmatch, names)):
        found.setdefault(match[1], []).append(match[0])
    for match in filter(None, map(_JSON.fullmatch, names)):
        if match[1] not in found and match[0] != MANIFEST and _is_info(directory / match[0]):
            found[match[1]] = []
    if shards := [name for name in names if _EMBEDDINGS.fullmatch(name)]:
        found.setdefault("embeddings", shards)
    if shards := [name for name in names if _ANNOTATIONS.fullmatch(name)]:
        with contextlib.suppress(FormatError):  # reported when one of the columns is read
            for name in _annotated_fields(directory / shards[0]):
                found.setdefault(name, shards)
    return found


def _annotated_fields(path: Path) -> dict[str, ColumnInfo]:
    header = peek_header(path)
    fields = {name: header.dtype[name] for name in header.dtype.names or () if name not in _ANNOTATED}
    return _columns_of(fields, header.rows) if {*_ANNOTATED} <= {*(header.dtype.names or ())} else {}


def column_files(directory: Path) -> set[str]:
    files = {file for name, files in find_columns(directory).items() for file in (*files, f"{name}.json")}
    return files | {*find_drafts(directory)}


def find_drafts(directory: Path) -> list[str]:
    """Return the names of the drafts of columns in a directory: interrupted, or being written."""
    return [path.name for path in directory.glob(".*.partial") if _DRAFT.fullmatch(path.name)]


def check_column_name(name: str) -> None:
    if field_of(name):
        raise ValueError(f"column name {name!r} is a built-in field of batches; expected another name")
    if name in RESERVED:
        raise ValueError(f"column name {name!r} is an attribute of batches; expected another name")
    if re.fullmatch(_NAME, name, re.ASCII) is None or f"{name}.json" == MANIFEST:
        raise ValueError(f"column name {name!r}; expected a-z, then up to 63 of a-z, 0-9 and _")


#: Keys of a column's file that are not its facts.
_OWN = {"dtype", "rows", "D", "steps_crc32c", "crc32c", "release"}


class _Info(msgspec.Struct):
    dtype: str
    rows: Annotated[int, msgspec.Meta(ge=0)]
    D: Annotated[int, msgspec.Meta(ge=1, le=_WIDTH_MAX)] | msgspec.UnsetType = msgspec.UNSET
    steps_crc32c: int | None = None
    crc32c: int | None = None
    maker: str | None = None


def _read_json(path: Path) -> tuple[_Info, dict[str, Any]]:
    content = read_document(path, error=ColumnError)
    try:
        return msgspec.json.decode(content, type=_Info), msgspec.json.decode(content)
    except (msgspec.DecodeError, UnicodeDecodeError, RecursionError) as error:
        raise ColumnError(f"malformed: {error}", path=path) from error


def _is_info(path: Path) -> bool:
    try:
        return _read_json(path)[0].dtype in COLUMN_DTYPES
    except TapeError:
        return False


def _read_info(directory: Path, files: list[str], name: str) -> ColumnInfo:
    path = directory / f"{name}.json"
    if field_of(name):
        message = f"{name!r} is a built-in field of batches; expected another name for a column"
        raise ColumnError(
            message, path=directory / next(iter(files), path), hint="Rename the column's files."
        )
    if files and _EMBEDDINGS.fullmatch(files[0]):
        return _read_shards([directory / file for file in files])
    if files and _ANNOTATIONS.fullmatch(files[0]):
        rows = sum(peek_header(directory / file).rows for file in files)
        facts = {"moves": True} if name in _OF_MOVES else {}
        return msgspec.structs.replace(_annotated_fields(directory / files[0])[name], rows=rows, facts=facts)
    try:
        found, facts = _read_json(path)
    except MissingPathError as error:
        message = f"half-written: found {files[0]} without {path.name}"
        raise ColumnError(message, path=path, hint=_again(name, None)) from error
    expected = f"{name}.{found.dtype}.npy"
    if found.dtype not in COLUMN_DTYPES:
        message = f"dtype {found.dtype!r}; expected one of {', '.join(COLUMN_DTYPES)}"
        raise ColumnError(message, path=path)
    if files != [expected]:
        message = f"half-written: found {path.name} without {expected}"
        if files:
            message = f"dtype {found.dtype!r}; expected the type of the file {' and '.join(files)}"
        path = path if files else directory / expected
        raise ColumnError(message, path=path, hint=_again(name, found.maker))
    width = None if found.D is msgspec.UNSET else found.D
    own = {key: value for key, value in facts.items() if key not in _OWN}
    return ColumnInfo(name, found.dtype, width, found.rows, found.steps_crc32c, own, found.crc32c)


def _fields_of(foreign: ForeignRows) -> dict[str, ColumnInfo]:
    """Return the columns that are fields of rows, without their facts."""
    layout = foreign.layout
    named = () if layout.is_native else {*(layout.dtype.names or ())} - {*layout[1:]}
    types = {name: layout.dtype[name] for name in named}
    return _columns_of(types | {name: foreign.type_made(name) for name in foreign.made}, len(foreign))


def _columns_of(fields: Mapping[str, np.dtype[Any]], rows: int) -> dict[str, ColumnInfo]:
    found: dict[str, ColumnInfo] = {}
    types = {text: name for name, text in COLUMN_DTYPES.items() if name != "bf16"}
    for name, each in fields.items():
        if each.base.str in types and each.ndim <= 1:
            with contextlib.suppress(ValueError):
                check_column_name(name)
                width = each.shape[0] if each.ndim else None
                found[name] = ColumnInfo(name, types[each.base.str], width, rows)
    return found


def _field_facts(name: str, path: Path) -> dict[str, Any]:
    facts: dict[str, Any] = {"moves": True} if name in _OF_MOVES else {}
    if path.exists():
        try:
            facts["names"] = _numbers_by_name(msgspec.json.decode(read_document(path)))
        except (msgspec.DecodeError, UnicodeDecodeError) as error:
            raise ColumnError(f"malformed: {error}", path=path) from error
    return facts


def _numbers_by_name(document: Any) -> Any:
    """Return ``{"search": 0}`` also for ``["search"]`` and ``{"0": "search"}``; other documents unchanged."""
    given = dict(enumerate(document)) if isinstance(document, list) else document
    with contextlib.suppress(AttributeError, TypeError, ValueError):
        names = {name: int(number) for number, name in given.items() if isinstance(name, str)}
        return names if len(names) == len(given) else document
    return document


def _read_shards(paths: list[Path]) -> ColumnInfo:
    headers = [peek_header(path) for path in paths]
    dtype = headers[0].dtype
    if dtype.base != np.dtype("<f4") or dtype.ndim != 1:
        message = f"found rows of type {dtype}, expected <f4 of shape [N, D]"
        raise ColumnError(message, path=paths[0], offset=0)
    return ColumnInfo("embeddings", "f32", dtype.shape[0], sum(header.rows for header in headers))


def _again(name: str, maker: object) -> str:
    again = isinstance(maker, str) and maker != RECORDED and _COMMAND.fullmatch(maker)
    command = maker if again else _MAKERS.get(name)
    how = f"{command} --force" if command else f"write_column(session, {name!r}, values, replace=True)"
    return f"Make it again from these rows: {how}"


def check_values(info: ColumnInfo, path: Path) -> None:
    """Raise ColumnError unless a column's file has its checksum, if it has one."""
    with open_regular(path) as fd:
        found = None if info.crc32c is None else crc32c_file(fd, os.fstat(fd).st_size, path)
    if found != info.crc32c:
        message = f"has CRC-32C {found:08x}; expected {info.crc32c:08x}, as in {info.json_name}"
        raise ColumnError(message, path=path, hint=_again(info.name, info.facts.get("maker")))


def _map(path: Path, info: ColumnInfo) -> NDArray[Any]:
    with open_regular(path) as fd:
        try:
            header = read_header(fd, path, [np.dtype((info.numpy_dtype, info.shape[1:]))])
        except FormatError as error:
            raise ColumnError(error.message, path=path, offset=error.offset) from error
        if header.rows != info.rows:
            raise ColumnError(f"found {header.rows} rows, expected {info.rows}", path=path, offset=0)
        mapped = load_open(fd, header.end_offset, path)
    return mapped[header.data_offset :].view(info.numpy_dtype).reshape(info.shape)
