"""CRC-32C of bytes that were summed in pieces.

A session's rows are checksummed block by block, as they are written; the checksum of the whole file
follows from those without reading a byte again. The arithmetic is that of polynomials over GF(2)
modulo the Castagnoli polynomial, bits reflected: appending ``n`` bytes multiplies by ``x**(8 n)``
(as in zlib's ``crc32_combine``).
"""

from __future__ import annotations

import functools

__all__ = ["crc32c_combine"]

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
    """``x**(2**n)``."""
    return _ONE >> 1 if n == 0 else _multiply(_power_of_two(n - 1), _power_of_two(n - 1))


@functools.lru_cache(maxsize=1024)
def _shift(length: int) -> int:
    """``x**(8 * length)``."""
    result, n = _ONE, 3
    while length:
        if length & 1:
            result = _multiply(_power_of_two(n), result)
        length >>= 1
        n += 1
    return result


def crc32c_combine(first: int, second: int, second_length: int) -> int:
    """The CRC-32C of two pieces joined, from that of each and the second one's length in bytes."""
    return _multiply(_shift(second_length), first) ^ second
