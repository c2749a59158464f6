"""Strict reader and writer of safetensors files: named arrays and a table of text.

::

    u64 length of the header | header, JSON | the arrays' bytes, one after the other

Every offset is checked against the file's length before it is used. The arrays have to cover the file
exactly, in the header's order. The writer adds a checksum to the table of text, ``crc32c``: of the arrays'
bytes, in the order of their names, as 8 hexadecimal digits. The reader checks it where present.

The package ``safetensors`` decodes only ``bytes``, copies every array, and does not return the table of text.
It loads a network of 256 MB, which every worker does, in 5 s instead of 0.5 s, and with 256 MB more memory.
"""

from __future__ import annotations

import math
import struct
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, FormatError, TruncatedError
from tape2048.io.reading import crc32c

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

Array = npt.NDArray[Any]

_LENGTH = struct.Struct("<Q")
_CHECKSUM = "crc32c"
_DTYPES = {"F32": "<f4", "I16": "<i2", "U16": "<u2", "U64": "<u8"}
_NAMES = {np.dtype(dtype): name for name, dtype in _DTYPES.items()}

#: Networks have no more, and NumPy has a limit of its own.
_DIMENSIONS_MAX = 2

#: An array takes about 100 bytes of a header.
_HEADER_BYTES_MAX = 4 << 20


class _Tensor(msgspec.Struct, forbid_unknown_fields=True):
    dtype: str
    shape: list[int]
    data_offsets: tuple[int, int]


def encode(arrays: Mapping[str, Array], texts: Mapping[str, str]) -> Iterator[bytes | memoryview]:
    """Yield the bytes of a file of ``f32``, ``i16``, ``u16`` and ``u64`` arrays, without copying them."""
    header: dict[str, Any] = {"__metadata__": {**texts, _CHECKSUM: _checksum(arrays)}}
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


def decode(data: memoryview | bytes, path: str) -> tuple[dict[str, Array], dict[str, str]]:
    """Decode a file's arrays (views of ``data``) and its table of text; ``path`` is for errors.

    Raises FormatError or one of its subclasses TruncatedError and ChecksumError.
    """
    if len(data) < _LENGTH.size:
        raise TruncatedError(f"found {len(data)} bytes, expected a safetensors file", path=path, offset=0)
    (length,) = _LENGTH.unpack_from(data)
    begin = _LENGTH.size + length
    if begin > len(data) or length > _HEADER_BYTES_MAX:
        raise TruncatedError(
            f"the header claims more bytes than the {len(data) - _LENGTH.size:,} that follow, or than the "
            f"{_HEADER_BYTES_MAX:,} that a header may have",
            path=path,
            offset=0,
            hint="not a safetensors file, or a file that was cut off",
        )
    tensors, texts = _read_header(data[_LENGTH.size : begin], path)
    arrays: dict[str, Array] = {}
    at = begin
    for name, tensor in tensors:
        dtype = _DTYPES.get(tensor.dtype)
        if dtype is None:
            raise FormatError(
                f"{name} is of type {tensor.dtype}, expected one of {', '.join(_DTYPES)}", path=path
            )
        if len(tensor.shape) > _DIMENSIONS_MAX or any(not 0 < size < 2**48 for size in tensor.shape):
            raise FormatError(f"{name} has the shape {tensor.shape}", path=path)
        count = math.prod(tensor.shape)
        end = at + count * np.dtype(dtype).itemsize
        if tensor.data_offsets != (at - begin, end - begin):
            raise FormatError(
                f"{name} claims bytes {tensor.data_offsets[0]} to {tensor.data_offsets[1]}; "
                f"its type and shape say {at - begin} to {end - begin}",
                path=path,
                offset=at,
            )
        if end > len(data):
            raise TruncatedError(f"{name} ends at byte {end:,}, and the file has {len(data):,}", path=path)
        arrays[name] = np.frombuffer(data, dtype=dtype, count=count, offset=at).reshape(tensor.shape)
        at = end
    if at != len(data):
        rest = counted(len(data) - at, "byte")
        raise FormatError(f"the last array is followed by {rest}", path=path, offset=at)
    written = texts.pop(_CHECKSUM, None)
    if written is not None and written != (found := _checksum(arrays)):
        raise ChecksumError(
            f"the arrays have the CRC-32C {found}; the header has {written}",
            path=path,
            hint="restore the file from a copy; a program that edits arrays has to drop the header's crc32c",
        )
    return arrays, texts


def _read_header(text: memoryview | bytes, path: str) -> tuple[list[tuple[str, _Tensor]], dict[str, str]]:
    try:
        header = msgspec.json.decode(text, type=dict[str, msgspec.Raw])
        texts = msgspec.json.decode(header.pop("__metadata__", b"{}"), type=dict[str, str])
        tensors = {name: msgspec.json.decode(raw, type=_Tensor) for name, raw in header.items()}
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FormatError(f"the header is not safetensors JSON: {error}", path=path, offset=8) from error
    return sorted(tensors.items(), key=lambda item: item[1].data_offsets), texts
