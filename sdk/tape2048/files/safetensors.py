"""Strict reader and writer of safetensors files: named arrays and a table of text.

::

    u64 length of the header | header, JSON | the arrays' bytes, one after the other

Every offset is checked against the file's length before it is used. The arrays must cover the file exactly,
in the header's order. The writer adds two entries to the table of text: ``release`` is the release of
tape2048, and ``crc32c`` is the checksum of the arrays' bytes, in the order of their names, as 8 hexadecimal
digits. The reader checks the checksum if it is present.

The package ``safetensors`` decodes only ``bytes``, copies every array, and does not return the table of text.
With it, a worker loads a network of 256 MB in 5 s instead of 0.5 s, and takes 256 MB more memory.
"""

from __future__ import annotations

import math
import os
import struct
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048._version import __version__
from tape2048.base.text import counted
from tape2048.errors import ChecksumError, FormatError, TruncatedError
from tape2048.files.reading import crc32c

Array = npt.NDArray[Any]

_LENGTH = struct.Struct("<Q")
_CHECKSUM = "crc32c"
_DTYPES = {"U8": "u1", "F32": "<f4", "I16": "<i2", "U16": "<u2", "U64": "<u8"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}

_DIMENSIONS_MAX = 2  # of the arrays of a network

#: Bytes of the largest header and its length; an array takes about 100.
HEADER_END_MAX = 8 + (4 << 20)


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def encode(arrays: Mapping[str, Array], texts: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file of ``u8``, ``f32``, ``i16``, ``u16`` and ``u64`` arrays without a copy."""
    header: dict[str, Any] = {"__metadata__": {"release": __version__, **texts, _CHECKSUM: _checksum(arrays)}}
    end = 0
    for name, array in arrays.items():
        begin, end = end, end + array.nbytes
        header[name] = _Tensor(_NAMES[array.dtype], list(array.shape), (begin, end))
    text = msgspec.json.encode(header)
    text += b" " * (-len(text) % 8)  # to align the arrays
    yield _LENGTH.pack(len(text)) + text
    yield from map(_bytes_of, arrays.values())


def _bytes_of(array: Array) -> memoryview:
    return np.ascontiguousarray(array).data.cast("B")


def _checksum(arrays: Mapping[str, Array]) -> str:
    value = 0
    for name in sorted(arrays):
        value = crc32c(_bytes_of(arrays[name]), value)
    return f"{value:08x}"


def check_length(data: memoryview | bytes, path: str | os.PathLike[str] | None) -> int:
    """Return the offset of the first array; raise TruncatedError for an impossible length of the header."""
    if len(data) < _LENGTH.size:
        raise TruncatedError(f"found {len(data)} bytes, expected a safetensors file", path=path, offset=0)
    begin: int = _LENGTH.size + _LENGTH.unpack_from(data)[0]
    if begin > len(data) or begin > HEADER_END_MAX:
        raise TruncatedError(
            "the header claims more bytes than the "
            f"{min(len(data), HEADER_END_MAX) - _LENGTH.size:,} that it can have",
            path=path,
            offset=0,
            hint="restore the file from a copy: it was cut off, or is not a safetensors file",
        )
    return begin


class TensorTable(NamedTuple):
    """A header: names, types and shapes of the arrays, the texts, and where the arrays start and end."""

    arrays: dict[str, tuple[str, list[int]]]
    texts: dict[str, str]
    begin: int
    end: int


def read_tensor_table(data: memoryview | bytes, path: str | os.PathLike[str]) -> TensorTable:
    """Read and check the header at the start of ``data``; errors are as for :func:`decode`."""
    begin = at = check_length(data, path)
    try:
        header = msgspec.json.decode(data[_LENGTH.size : begin], type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(header.pop("__metadata__", b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the header is not safetensors JSON: {error}", path=path, offset=8) from error
    arrays = {}
    for name, tensor in sorted(tensors.items(), key=lambda item: item[1].data_offsets):
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise FormatError(
                f"{name} is of type {tensor.dtype}, expected one of {', '.join(_DTYPES)}", path=path
            )
        if len(tensor.shape) > _DIMENSIONS_MAX or any(not 0 < size < 2**48 for size in tensor.shape):
            raise FormatError(
                f"{name} has the shape {tensor.shape}, expected at most {_DIMENSIONS_MAX} dimensions, each "
                "from 1 to 2**48 - 1",
                path=path,
            )
        end = at + math.prod(tensor.shape) * np.dtype(dtype).itemsize
        if tensor.data_offsets != (at - begin, end - begin):
            raise FormatError(
                f"{name} claims bytes {tensor.data_offsets[0]} to {tensor.data_offsets[1]}, expected "
                f"{at - begin} to {end - begin} by its type and shape",
                path=path,
                offset=at,
            )
        arrays[name] = dtype, tensor.shape
        at = end
    return TensorTable(arrays, texts, begin, at)


def decode(data: memoryview | bytes, path: str | os.PathLike[str]) -> tuple[dict[str, Array], dict[str, str]]:
    """Decode arrays (views of ``data``) and texts; FormatError, TruncatedError or ChecksumError."""
    described, texts, at, end = read_tensor_table(data, path)
    if end > len(data):
        raise TruncatedError(f"found {len(data):,} bytes, expected {end:,} by the header", path=path)
    if end < len(data):
        rest = counted(len(data) - end, "byte")
        raise FormatError(f"the last array is followed by {rest}, expected none", path=path, offset=end)
    arrays: dict[str, Array] = {}
    for name, (dtype, shape) in described.items():
        arrays[name] = np.frombuffer(data, dtype, math.prod(shape), at).reshape(shape)
        at += arrays[name].nbytes
    written = texts.pop(_CHECKSUM, None)
    if written is not None and written != (found := _checksum(arrays)):
        raise ChecksumError(
            f"the arrays have the CRC-32C {found}, expected {written} by the header",
            path=path,
            hint="restore the file from a copy. If a program edits the arrays, it must remove the header's "
            "crc32c",
        )
    return arrays, texts
