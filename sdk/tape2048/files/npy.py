r"""Strict reader and writer of ``.npy`` files: C order, rows of expected types.

A file is accepted only if its rows have an expected type, and its length is exactly what the header claims. A
regular expression parses the headers that this package and NumPy write of such rows; NumPy's reader parses
all others. Only literals are evaluated, nothing is unpickled, and the file's length is checked before memory
is allocated.

::

    offset  bytes  content
    0       6      magic, \x93NUMPY
    6       2      format version: 1.0, 2.0 or 3.0
    8       2 | 4  length L of the text, <u2 in version 1.0, <u4 in 2.0 and 3.0
    10 | 12 L      text: a dict literal, padded with spaces, ended by a newline
                   (Latin-1; UTF-8 in version 3.0)
    after it       rows x itemsize bytes

Specification: NEP 1 and ``numpy.lib.format``.
"""

from __future__ import annotations

import functools
import io
import mmap
import os
import re
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.lib.format as npy_format

from tape2048.base.text import counted
from tape2048.errors import FormatError, NpyError, TruncatedError
from tape2048.files.bulk_read import FileRange, OnRead, allocate, read_into
from tape2048.files.reading import Reserved, map_file, open_regular, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: Whether rows are mapped from the page cache, or read into memory at once.
Load: TypeAlias = Literal["mmap", "ram"]

#: Longest header text that is parsed (a session's has about 130 bytes): NumPy's own bound, since the time and
#: memory of ``ast`` grow with the text.
HEADER_TEXT_BYTES_MAX = 10_000

_MAGIC = b"\x93NUMPY"
# The width of the length field, by format version.
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
# Longer than any name or number in a header. An error message would print the number, and Python does not
# print integers of thousands of digits.
_LONG_WORD = re.compile(rb"\w{65}")
# Python's parser prints warnings about escapes and about numbers that run into words, and NumPy about an
# indented last line. No header has them.
_STRING = re.compile(rb"('[^']*'|\"[^\"]*\")")
_LONG = re.compile(rb"(?<=[0-9])L\b")  # of Python 2
_WARNED_OF = re.compile(rb"[0-9]\s*[A-Za-z_]|\n[ \t\f]+\Z")
# The text as NumPy and this package write it. Parsing it as a literal takes 0.2 ms, too much for a thousand
# files.
_USUAL_TEXT = re.compile(
    rb"\{'descr': (\[[ -\\^-~]*\]|'[<|]u[18]'), 'fortran_order': False, "
    rb"'shape': \((0|[1-9]\d{0,17}),\), \} *\n"
)


class NpyHeader(msgspec.Struct, frozen=True):
    """A header: type and number of rows, and the first row's offset; rows of ``[N, D]`` are subarrays."""

    dtype: np.dtype[Any]
    rows: int
    data_offset: int

    @property
    def end_offset(self) -> int:
        return self.data_offset + self.rows * self.dtype.itemsize


def rows_header(dtype: np.dtype[Any], rows: int, header_bytes: int, columns: int | None = None) -> bytes:
    """Make a header of format 1.0, ``header_bytes`` long (a multiple of 64 aligns the rows)."""
    if not 0 <= rows < 2**63:
        raise ValueError(f"a .npy file cannot hold {rows} rows; expected 0 <= rows < 2**63")
    # Exactly NumPy's text, for other strict readers.
    descr = dtype.str if dtype.names is None else dtype.descr
    shape = (rows,) if columns is None else (rows, columns)
    text = f"{{'descr': {descr!r}, 'fortran_order': False, 'shape': {shape}, }}".encode("ascii")
    prefix = _MAGIC + b"\x01\x00"
    room = header_bytes - len(prefix) - 2
    if len(text) >= room:
        raise ValueError(f"the row type {dtype} needs a header text of {len(text)} bytes; {room - 1} fit")
    return prefix + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


def parse_header(head: bytes, path: str | os.PathLike[str]) -> NpyHeader:
    if not (head.startswith(_MAGIC) or _MAGIC.startswith(head)):
        raise NpyError(f"not a .npy file: the magic {_MAGIC!r} is missing", path=path, offset=0)
    if len(head) < 8:
        raise _short_header(head, 10, path)
    version = (head[6], head[7])
    width = _LENGTH_BYTES.get(version)
    if width is None:
        raise NpyError(
            f".npy format version {version[0]}.{version[1]}; expected 1.0, 2.0 or 3.0", path=path, offset=6
        )
    begin = 8 + width
    length = int.from_bytes(head[8:begin], "little")
    if length > HEADER_TEXT_BYTES_MAX:
        raise NpyError(
            f"header text of {length} bytes; expected at most {HEADER_TEXT_BYTES_MAX}", path=path, offset=8
        )
    if len(head) < begin + length:
        raise _short_header(head, begin + length, path)
    text = head[begin : begin + length]
    usual = _USUAL_TEXT.fullmatch(text)
    shape: tuple[int, ...]
    try:
        if usual is not None:
            shape, fortran_order, dtype = (int(usual[2]),), False, _usual_type(usual[1])
        else:
            shape, fortran_order, dtype = _read_text(text)
        row_dtype = np.dtype((dtype, shape[1:]))
    except Exception as error:  # NumPy documents no classes
        raise NpyError(
            f"the header text of {len(text)} bytes cannot be parsed ({type(error).__name__}); expected a "
            "dict literal with descr, fortran_order and shape",
            path=path,
            offset=begin,
        ) from error
    # Not isinstance, which takes a bool for an int.
    if fortran_order or len(shape) < 1 or any(type(length) is not int or length < 0 for length in shape):
        raise NpyError(
            f"fortran_order is {fortran_order}, shape is {str(shape)[:80]}; expected False and (rows, ...)",
            path=path,
            offset=begin,
        )
    if dtype.hasobject:
        raise NpyError(
            f"rows of type {dtype.descr} hold pickled Python objects",
            path=path,
            offset=begin,
            hint="save the rows with a type without Python objects; pickles are never loaded",
        )
    return NpyHeader(row_dtype, shape[0], begin + length)


def peek_header(path: str | os.PathLike[str]) -> NpyHeader:
    """Parse a file's header. Errors are as for :func:`read_header`, except for row types and lengths."""
    with open_regular(path) as fd:
        return parse_header(os.pread(fd, 12 + HEADER_TEXT_BYTES_MAX, 0), path)


def read_header(fd: int, path: str | os.PathLike[str], dtypes: Sequence[np.dtype[Any]]) -> NpyHeader:
    """Read the header of an open file, and check its row type and the file's length.

    Args:
        fd: a regular file, open for reading; its position is neither used nor moved.
        path: path for errors.
        dtypes: the accepted row types.

    Returns:
        The header; ``dtype`` is the equal member of ``dtypes``.

    Raises:
        NpyError: the header is malformed, or the rows are of another type, or hold pickled objects.
        TruncatedError: the file is shorter than its header claims; ``offset`` is its end.
        FormatError: the file is longer than its header claims; ``offset`` is its proper end.
        OSError: the operating system could not read it.

    Example:
        >>> from pathlib import Path
        >>> from tape2048.session.layout import STEP_DTYPES
        >>> path = next(Path("selfplay").glob("2*/steps.npy"))
        >>> with path.open("rb") as file:
        ...     read_header(file.fileno(), path, STEP_DTYPES).data_offset
        192
    """
    return check_header(os.pread(fd, 12 + HEADER_TEXT_BYTES_MAX, 0), os.fstat(fd).st_size, path, dtypes)


def check_header(
    head: bytes, bytes_found: int, path: str | os.PathLike[str], dtypes: Sequence[np.dtype[Any]]
) -> NpyHeader:
    """Parse a header as :func:`parse_header`, and check it as :func:`read_header`; ``path`` is for errors."""
    header = parse_header(head, path)
    known = next((dtype for dtype in dtypes if dtype == header.dtype), None)
    if known is None:
        found, *expected = (str(each.descr if each.names else each) for each in (header.dtype, *dtypes))
        raise NpyError(f"rows of type {found}; expected {' or '.join(expected)}", path=path, offset=0)
    header = NpyHeader(known, header.rows, header.data_offset)
    claim = f"the header claims {header.rows} rows ({header.end_offset} bytes). The file"
    if bytes_found < header.end_offset:
        whole = max(0, bytes_found - header.data_offset) // known.itemsize
        raise TruncatedError(
            f"{claim} ends after {whole} whole rows ({bytes_found} bytes)",
            path=path,
            offset=bytes_found,
            hint="restore the file from a copy",
        )
    if bytes_found > header.end_offset:
        raise FormatError(
            f"{claim} has {counted(bytes_found - header.end_offset, 'byte')} more",
            path=path,
            offset=header.end_offset,
        )
    return header


def open_rows(
    path: str | os.PathLike[str],
    dtypes: Sequence[np.dtype[Any]],
    load: Load = "mmap",
    on_read: OnRead | None = None,
) -> NDArray[Any]:
    """Open a file's rows.

    Args:
        path: a ``.npy`` file.
        dtypes: the accepted row types.
        load: ``"mmap"`` maps the file (no memory, no open descriptor); ``"ram"`` reads it at once.
        on_read: function that any thread calls with a range that it has read, and its bytes.

    Returns:
        A read-only array ``[rows]``. If a mapped file is truncated while the array lives, touching the lost
        part ends the process with SIGBUS; published files are never written.

    Raises:
        FormatError: a subclass, see :func:`read_header`.
        StorageError: the operating system could not open, map or read it.
        ValueError: another ``load``.

    Example:
        >>> rows = open_rows(path, STEP_DTYPES)
        >>> rows["step_idx"][:3]
        array([0, 1, 2], dtype=uint32)
    """
    check_load(load)
    with open_regular(path) as fd:
        header = read_header(fd, path, dtypes)
        if load == "mmap":
            return map_file(fd, header.end_offset)[header.data_offset :].view(header.dtype)
        rows = np.empty(header.rows, header.dtype)
        read_into(
            rows.view(np.uint8),
            [FileRange(path, header.data_offset, rows.nbytes, fd)],
            on_read=on_read,
        )
    rows.flags.writeable = False
    return rows


class Shards(NamedTuple):
    """Files of one row type as one array; touching rows between two mapped files kills the process."""

    rows: NDArray[Any]
    counts: NDArray[np.int64]
    begins: NDArray[np.int64]


def open_shards(
    paths: Sequence[str | os.PathLike[str]],
    dtypes: Sequence[np.dtype[Any]],
    load: Load = "ram",
    on_read: OnRead | None = None,
) -> Shards:
    """Open at least one file as one read-only array, in the given order, after a check of all headers.

    With ``"mmap"``, the files are mapped at addresses from which all rows are multiples of a row's size
    apart. If the headers do not allow such addresses, the rows are read. ``on_read`` is called as by
    :func:`open_rows`. Errors are as for :func:`open_rows`,
    and NpyError for shards of different types.
    """
    accepted = list(dtypes)
    headers = []
    for path in paths:
        with open_regular(path) as fd:
            headers.append(read_header(fd, path, accepted))
        accepted = [headers[0].dtype]
    counts = np.array([header.rows for header in headers], np.int64)
    begins = _addresses(headers) if load == "mmap" else None
    if begins is not None:
        size, first = headers[0].dtype.itemsize, headers[0].data_offset
        with reading(paths[0]):
            space = Reserved(begins[-1] + headers[-1].end_offset)
        for path, header, begin in zip(paths, headers, begins, strict=True):
            with open_regular(path) as fd:
                space.attach(fd, begin, header.end_offset)
        begins = [begin + header.data_offset - first for begin, header in zip(begins, headers, strict=True)]
        content = np.asarray(space)[first:]
        dtype = headers[0].dtype
        rows = content[: len(content) // size * size].view(dtype.base).reshape(-1, *dtype.shape)
        return Shards(rows, counts, np.array(begins) // size)
    dtype = headers[0].dtype
    rows = allocate(int(counts.sum()) * dtype.itemsize).view(dtype.base).reshape(-1, *dtype.shape)
    read_into(
        rows.view(np.uint8).reshape(-1),
        [
            FileRange(path, header.data_offset, header.rows * header.dtype.itemsize)
            for path, header in zip(paths, headers, strict=True)
        ],
        on_read=on_read,
    )
    rows.flags.writeable = False
    return Shards(rows, counts, np.cumsum(counts) - counts)


def _addresses(headers: Sequence[NpyHeader]) -> list[int] | None:
    """Place files at pages such that all rows are multiples of a row apart; None if there are none."""
    found: list[int] = []
    end, size, page = 0, headers[0].dtype.itemsize, mmap.PAGESIZE
    for header in headers:
        shift = header.data_offset - headers[0].data_offset
        begin = next((at for at in range(end, end + page * size, page) if (at + shift) % size == 0), None)
        if begin is None:
            return None
        found.append(begin)
        end = begin + -(-header.end_offset // page) * page
    return found


def check_load(load: str) -> None:
    if load not in get_args(Load):
        raise ValueError(f"load={load!r}; expected one of {get_args(Load)}")


@functools.lru_cache
def _usual_type(descr: bytes) -> np.dtype[Any]:
    return _read_text(b"{'descr': %b, 'fortran_order': False, 'shape': ()}" % descr)[2]


def _read_text(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Read shape, order and type by NumPy's reader of version 2.0, which evaluates only literals."""
    parts = _STRING.split(text)
    text = b"".join(part if i % 2 else _LONG.sub(b"", part) for i, part in enumerate(parts))
    if b"\\" in text or _LONG_WORD.search(text) or _WARNED_OF.search(_STRING.sub(b"''", text)):
        raise ValueError("not parsed")
    file = io.BytesIO(len(text).to_bytes(4, "little") + text)
    return npy_format.read_array_header_2_0(file, max_header_size=HEADER_TEXT_BYTES_MAX)


def _short_header(head: bytes, expected: int, path: str | os.PathLike[str]) -> TruncatedError:
    return TruncatedError(
        f"the file ends after {len(head)} bytes; expected a header of at least {expected}",
        path=path,
        offset=len(head),
    )
