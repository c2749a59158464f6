r"""Strict ``.npy`` files: one-dimensional, C order, structured rows of a type known beforehand.

A file is taken only when its rows are of a type that the caller named, and its length is exactly what the
header claims. One regular expression reads the headers that this package and NumPy write of such rows;
NumPy's own reader reads all others. Nothing is evaluated but literals, nothing is unpickled, and nothing is
allocated from a count that the file's length does not bear out.

::

    offset  bytes  content
    0       6      magic, \x93NUMPY
    6       2      format version: 1.0, 2.0 or 3.0
    8       2 | 4  length L of the text, <u2 in version 1.0, <u4 in 2.0 and 3.0
    10 | 12 L      text: a dict literal, padded with spaces, ended by a newline
                   (Latin-1; UTF-8 in version 3.0)
    then           rows x itemsize bytes

Specification: NEP 1 and ``numpy.lib.format``.
"""

from __future__ import annotations

import functools
import io
import os
import re
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, get_args

import msgspec
import numpy as np
import numpy.lib.format as npy_format

from tape2048.base.text import counted
from tape2048.errors import (
    NpyDtypeError,
    NpyHeaderError,
    ObjectDtypeError,
    TrailingBytesError,
    TruncatedError,
)
from tape2048.io.bulk_read import Stretch, read_into
from tape2048.io.reading import map_file, open_regular, reading

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

#: How the rows come into memory: mapped from the page cache as they are touched, or read at once.
Load: TypeAlias = Literal["mmap", "ram"]

#: Longest header text that is parsed. A session's has about 130 bytes; the same bound as NumPy's own
#: guard, because the time and memory that ``ast`` takes grow with the text.
HEADER_TEXT_BYTES_MAX = 10_000

_MAGIC = b"\x93NUMPY"
# The width of the length field, by format version.
_LENGTH_BYTES = {(1, 0): 2, (2, 0): 4, (3, 0): 4}
# No name and no number in a header is this long. Python refuses to print an integer of thousands of
# digits, and an error message has to print what it found.
_LONG_WORD = re.compile(rb"\w{65}")
# Numbers that run into words, and escapes: Python's parser prints warnings of them, and no header has them.
_STRING = re.compile(rb"'[^']*'|\"[^\"]*\"")
_WARNED_OF = re.compile(rb"[0-9]\s*[A-Za-z_]")


# The text as NumPy and this package write it. Parsing it as a literal takes 0.2 ms, which counts where a
# thousand files are opened.
_USUAL_TEXT = re.compile(
    rb"\{'descr': (\[[ -\\^-~]*\]), 'fortran_order': False, 'shape': \((0|[1-9]\d{0,17}),\), \} *\n"
)


class NpyHeader(msgspec.Struct, frozen=True):
    """What a header says: the type of a row, how many there are, and the byte where the first begins."""

    dtype: np.dtype[Any]
    rows: int
    data_offset: int

    @property
    def end_offset(self) -> int:
        """Length in bytes that a whole file with this header has."""
        return self.data_offset + self.rows * self.dtype.itemsize


def rows_header(dtype: np.dtype[Any], rows: int, header_bytes: int) -> bytes:
    """A header of format 1.0 whose length does not depend on the number of rows.

    Args:
        dtype: the row type, packed.
        rows: number of rows, 0 <= rows < 2**63.
        header_bytes: length of the whole header; a multiple of 64 aligns the rows.

    Raises:
        ValueError: the count is out of range, or the row type's description does not fit.
    """
    if not 0 <= rows < 2**63:
        raise ValueError(f"a .npy file cannot hold {rows} rows; expected 0 <= rows < 2**63")
    # The text NumPy itself would write, key for key, so that other strict readers take it as well.
    text = f"{{'descr': {dtype.descr!r}, 'fortran_order': False, 'shape': ({rows},), }}".encode("ascii")
    prefix = _MAGIC + b"\x01\x00"
    room = header_bytes - len(prefix) - 2
    if len(text) >= room:
        raise ValueError(f"the row type {dtype} needs a header text of {len(text)} bytes; {room - 1} fit")
    return prefix + room.to_bytes(2, "little") + text.ljust(room - 1) + b"\n"


def parse_header(head: bytes, path: str | os.PathLike[str]) -> NpyHeader:
    """Parse a file's first bytes.

    Args:
        head: the file's beginning. ``12 + HEADER_TEXT_BYTES_MAX`` bytes are always enough; fewer mean
            that the file ends there.
        path: named in errors.

    Raises:
        NpyHeaderError: not a ``.npy`` file, or a header that is malformed, in Fortran order, or not of
            one dimension.
        ObjectDtypeError: the rows hold pickled objects.
        TruncatedError: the file ends within the header.
    """
    if not (head.startswith(_MAGIC) or _MAGIC.startswith(head)):
        raise NpyHeaderError(
            f"not a .npy file: begins with {head[:6]!r}, expected {_MAGIC!r}", path=path, offset=0
        )
    if len(head) < 8:
        raise _short_header(head, 10, path)
    version = (head[6], head[7])
    width = _LENGTH_BYTES.get(version)
    if width is None:
        raise NpyHeaderError(
            f".npy format version {version[0]}.{version[1]}; expected 1.0, 2.0 or 3.0", path=path, offset=6
        )
    begin = 8 + width
    length = int.from_bytes(head[8:begin], "little")
    if length > HEADER_TEXT_BYTES_MAX:
        raise NpyHeaderError(
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
    except Exception as error:  # NumPy names no classes of what a bad text raises
        raise NpyHeaderError(
            f"header text {text[:200]!r} is none that a writer of .npy files makes: {type(error).__name__}",
            path=path,
            offset=begin,
        ) from error
    # bool is an int to isinstance, and no count.
    if fortran_order or len(shape) != 1 or type(shape[0]) is not int or shape[0] < 0:
        raise NpyHeaderError(
            f"fortran_order is {fortran_order}, shape is {str(shape)[:80]}; expected False and one dimension",
            path=path,
            offset=begin,
        )
    if dtype.hasobject:
        raise ObjectDtypeError(
            f"rows of type {dtype.descr} hold pickled Python objects",
            path=path,
            offset=begin,
            hint="pickles are never loaded, here or elsewhere",
        )
    return NpyHeader(dtype, shape[0], begin + length)


def read_header(fd: int, path: str | os.PathLike[str], dtypes: Sequence[np.dtype[Any]]) -> NpyHeader:
    """Read the header of an open file, and check its row type and the file's length against it.

    Args:
        fd: a regular file, open for reading; its position is neither used nor moved.
        path: named in errors.
        dtypes: the row types that are taken.

    Returns:
        The header; ``dtype`` is the member of ``dtypes`` that it equals.

    Raises:
        NpyHeaderError: see :func:`parse_header`.
        ObjectDtypeError: the rows hold pickled objects.
        NpyDtypeError: the rows are of another type.
        TruncatedError: the file is shorter than its header claims; ``offset`` is where it ends.
        TrailingBytesError: the file is longer than its header claims; ``offset`` is where it should end.
        StorageError: the operating system could not read it.
    """
    with reading(path):
        bytes_found = os.fstat(fd).st_size
        head = os.pread(fd, 12 + HEADER_TEXT_BYTES_MAX, 0)
    return check_header(head, bytes_found, path, dtypes)


def check_header(
    head: bytes, bytes_found: int, path: str | os.PathLike[str], dtypes: Sequence[np.dtype[Any]]
) -> NpyHeader:
    """Parse a file's first bytes, as :func:`parse_header`, and check what they say as :func:`read_header`.

    Args:
        head: the file's beginning.
        bytes_found: the file's length.
        path: named in errors.
        dtypes: the row types that are taken.
    """
    header = parse_header(head, path)
    known = next((dtype for dtype in dtypes if dtype == header.dtype), None)
    if known is None:
        expected = " or ".join(str(dtype.descr) for dtype in dtypes)
        raise NpyDtypeError(f"rows of type {header.dtype.descr}; expected {expected}", path=path, offset=0)
    header = NpyHeader(known, header.rows, header.data_offset)
    if bytes_found < header.end_offset:
        whole = max(0, bytes_found - header.data_offset) // known.itemsize
        msg = (
            f"the header claims {header.rows} rows ({header.end_offset} bytes); "
            f"the file ends after {whole} whole rows ({bytes_found} bytes)"
        )
        raise TruncatedError(msg, path=path, offset=bytes_found, hint="restore the file from a copy")
    if bytes_found > header.end_offset:
        msg = (
            f"the header claims {header.rows} rows ({header.end_offset} bytes); "
            f"the file has {counted(bytes_found - header.end_offset, 'byte')} more"
        )
        raise TrailingBytesError(msg, path=path, offset=header.end_offset)
    return header


def open_rows(
    path: str | os.PathLike[str], dtypes: Sequence[np.dtype[Any]], load: Load = "mmap"
) -> NDArray[np.void]:
    """Open a file's rows.

    Args:
        path: a ``.npy`` file.
        dtypes: the row types that are taken.
        load: ``"mmap"`` maps the file (no memory of its own, and no file stays open); ``"ram"`` reads
            all of it at once.

    Returns:
        A read-only array of shape ``[rows]``. A mapped file that is truncated while the array lives
        ends the process with SIGBUS when the lost part is touched; published files are never written.

    Raises:
        FormatError: one of the classes that :func:`read_header` names.
        StorageError: the operating system could not open, map or read it.
        ValueError: ``load`` is something else.
    """
    check_load(load)
    with open_regular(path) as fd:
        header = read_header(fd, path, dtypes)
        if load == "mmap":
            with reading(path):
                mapped = map_file(fd, header.end_offset)
            return mapped[header.data_offset :].view(header.dtype)
        rows = np.empty(header.rows, header.dtype)
        read_into(rows.view(np.uint8), [Stretch(path, header.data_offset, rows.nbytes, fd)])
    rows.flags.writeable = False
    return rows


def open_shards(paths: Sequence[str | os.PathLike[str]], dtypes: Sequence[np.dtype[Any]]) -> NDArray[np.void]:
    """Read several files as one array, in the order given.

    All headers are checked before the array is allocated. The rows are always read into memory: an
    array has one address range, and shards have one each.

    Args:
        paths: at least one ``.npy`` file.
        dtypes: the row types that are taken; the shards must agree on one.

    Returns:
        A read-only array of shape ``[rows of all shards]``.

    Raises:
        FormatError: as for :func:`open_rows`; NpyDtypeError also where two shards differ.
        StorageError: the operating system could not open or read one.
    """
    accepted = list(dtypes)
    headers = []
    for path in paths:
        with open_regular(path) as fd:
            headers.append(read_header(fd, path, accepted))
        accepted = [headers[0].dtype]
    rows = np.empty(sum(header.rows for header in headers), headers[0].dtype)
    read_into(
        rows.view(np.uint8),
        [
            Stretch(path, header.data_offset, header.rows * header.dtype.itemsize)
            for path, header in zip(paths, headers, strict=True)
        ],
    )
    rows.flags.writeable = False
    return rows


def check_load(load: str) -> None:
    """Raise ValueError unless ``load`` is one of :data:`Load`."""
    if load not in get_args(Load):
        raise ValueError(f"load={load!r}; expected one of {get_args(Load)}")


@functools.lru_cache
def _usual_type(descr: bytes) -> np.dtype[Any]:
    """The row type that the text of ``descr`` describes."""
    return _read_text(b"{'descr': %b, 'fortran_order': False, 'shape': ()}" % descr)[2]


def _read_text(text: bytes) -> tuple[tuple[int, ...], bool, np.dtype[Any]]:
    """Shape, order and row type by NumPy's reader, which evaluates literals alone.

    Version 2.0 stands for all: 3.0 differs in the names of fields that are not ASCII, which no row type has.
    """
    if b"\\" in text or _LONG_WORD.search(text) or _WARNED_OF.search(_STRING.sub(b"''", text)):
        raise ValueError("not parsed")
    file = io.BytesIO(len(text).to_bytes(4, "little") + text)
    return npy_format.read_array_header_2_0(file, max_header_size=HEADER_TEXT_BYTES_MAX)


def _short_header(head: bytes, expected: int, path: str | os.PathLike[str]) -> TruncatedError:
    return TruncatedError(
        f"the file ends after {len(head)} bytes, within a header of at least {expected}",
        path=path,
        offset=len(head),
    )
