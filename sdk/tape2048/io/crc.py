"""CRC-32C of files, and of concatenated pieces.

A session's rows are checksummed block by block as they are written; the checksum of the whole file follows
without reading a byte again. The arithmetic is that of polynomials over GF(2) modulo the Castagnoli
polynomial, bits reflected: appending ``n`` bytes multiplies by ``x**(8 n)`` (as in zlib's ``crc32_combine``).
"""

from __future__ import annotations

import functools
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import ChecksumError
from tape2048.io.reading import read_exactly

if TYPE_CHECKING:
    import os
    from collections.abc import Callable

    from numpy.typing import NDArray

_CHUNK_BYTES = 8 * 1024 * 1024

_POLYNOMIAL = 0x82F63B78
_ONE = 1 << 31  # the polynomial 1, reflected


def _multiply(a: int, b: int) -> int:
    product = 0
    bit = _ONE
    while a:
        if a & bit:
            product ^= b
            a ^= bit
        bit >>= 1
        b = b >> 1 ^ _POLYNOMIAL if b & 1 else b >> 1
    return product


@functools.cache
def _power_of_two(n: int) -> int:
    """Return ``x**(2**n)``."""
    return _ONE >> 1 if n == 0 else _multiply(_power_of_two(n - 1), _power_of_two(n - 1))


@functools.lru_cache(maxsize=1024)
def _shift(length: int) -> int:
    """Return ``x**(8 * length)``."""
    result, n = _ONE, 3
    while length:
        if length & 1:
            result = _multiply(_power_of_two(n), result)
        length >>= 1
        n += 1
    return result


def crc32c_combine(first: int, second: int, second_length: int) -> int:
    """Return the CRC-32C of two concatenated pieces, from their CRCs and the second one's length in bytes."""
    return _multiply(_shift(second_length), first) ^ second


def crc32c(data: Any, value: int = 0) -> int:
    """Compute the CRC-32C of bytes, continued from a value."""
    from crc32c import crc32c as compute  # late: the package takes 30 ms to read its own metadata

    return compute(data, value)


def crc32c_file(
    fd: int,
    size: int,
    path: str | os.PathLike[str],
    *,
    offset: int = 0,
    on_chunk: Callable[[NDArray[np.uint8]], object] = lambda _: None,
) -> int:
    """Compute the CRC-32C of a byte range of an open file, without moving its position.

    ``on_chunk`` is called with each chunk, which the next one overwrites; ``path`` is for errors.
    """
    buffer = np.empty(min(size, _CHUNK_BYTES), np.uint8)
    checksum = 0
    for begin in range(0, size, _CHUNK_BYTES):
        chunk = buffer[: size - begin]
        read_exactly(fd, chunk, offset + begin, path)
        checksum = crc32c(chunk.data, checksum)
        on_chunk(chunk)
    return checksum


def check_crc(
    computed: int,
    stored: int,
    what: str,
    *,
    path: str | os.PathLike[str] | None,
    offset: int,
    hint: str = "the file was damaged or cut; restore it from a copy",
) -> None:
    """Raise ChecksumError unless the checksum of a file's part is the stored one."""
    if computed != stored:
        raise ChecksumError(
            f"CRC-32C of {what} is {computed:#010x}; the file says {stored:#010x}",
            path=path,
            offset=offset,
            hint=hint,
        )
