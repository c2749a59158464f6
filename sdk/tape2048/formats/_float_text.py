"""The shortest decimal text of a float32, in compiled code.

After Raffaello Giulietti, "The Schubfach way to render doubles" (2021), for binary32: of all decimals that
read back as the same float, the shortest, and of those the nearest. ``c * 2**q`` is scaled by a power of
ten (a 64-bit table, made here with Python's integers) together with the two ends of its rounding interval;
at most four candidates remain.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numba.extending import register_jitable

from tape2048._bits import high64

__all__ = ["FLOAT_TEXT_BYTES_MAX", "write_float"]

U32 = np.uint32
U64 = np.uint64

#: A sign, 16 digits and ``.0``, with one to spare; past that, ``-1.17549435e-38`` is as long as it gets.
FLOAT_TEXT_BYTES_MAX = 20

_POWER_MIN = -31
_POWER_MAX = 45

_MINUS, _POINT, _ZERO, _E = (U64(ord(char)) for char in "-.0e")


def _power_of_ten(k: int) -> int:
    """``10**k`` as a 64-bit integer with its highest bit set, rounded up."""
    power: int = 10 ** abs(k)
    if k < 0:
        return -(-(1 << 63 + power.bit_length()) // power)
    shift = power.bit_length() - 64
    return power << -shift if shift <= 0 else -(-power >> shift)


_POWERS = np.array([_power_of_ten(k) for k in range(_POWER_MIN, _POWER_MAX + 1)], dtype=np.uint64)


@register_jitable
def _round_to_odd(power: Any, scaled: Any) -> Any:
    """``power * scaled / 2**64`` with the bits below kept as a sticky lowest one."""
    high = high64(power, scaled)
    low = (power * scaled) >> U64(32)
    return high | U64(low > U64(1))


@register_jitable
def shortest_decimal(bits: Any) -> Any:
    """``(digits, exponent)``: ``digits * 10**exponent`` is the shortest decimal of a positive float."""
    fraction = np.int64(bits & U32(0x7FFFFF))
    biased = np.int64(bits >> U32(23) & U32(0xFF))
    if biased != 0:
        c = fraction | np.int64(1 << 23)
        q = biased - 150
        if 0 <= -q < 24 and c & ((np.int64(1) << -q) - 1) == 0:
            return c >> -q, np.int64(0)  # a whole number below 2**24 is its own text
    else:
        c, q = fraction, np.int64(-149)

    even = c & 1 == 0
    closer_below = fraction == 0 and biased > 1  # the float below is half as far away
    # floor(log10(2**q)), or of 3/4 of that where the interval is lopsided.
    k = (q * 1262611 - (524031 if closer_below else 0)) >> 22
    h = q + ((-k * 1741647) >> 19) + 1
    power = _POWERS[-k - _POWER_MIN]
    below = np.int64(_round_to_odd(power, U64((4 * c - (1 if closer_below else 2)) << h)))
    value = np.int64(_round_to_odd(power, U64((4 * c) << h)))
    above = np.int64(_round_to_odd(power, U64((4 * c + 2) << h)))
    if not even:  # the ends round to the even neighbour: they belong to this float only if it is even
        below += 1
        above -= 1

    s = value >> 2
    if s >= 10:
        ten = s // 10
        down = below <= 40 * ten
        up = 40 * ten + 40 <= above
        if down != up:
            return ten + np.int64(up), k + 1
    down = below <= 4 * s
    up = 4 * s + 4 <= above
    if down != up:
        return s + np.int64(up), k
    middle = 4 * s + 2
    return s + np.int64(value > middle or (value == middle and s & 1 == 1)), k


@register_jitable
def write_digits(out: Any, at: Any, number: Any) -> Any:
    """Decimal digits of a ``u64``; returns the place after them."""
    size = 1
    rest = number // U64(10)
    while rest > U64(0):
        size += 1
        rest //= U64(10)
    for place in range(at + size - 1, at - 1, -1):
        out[place] = number % U64(10) + _ZERO
        number //= U64(10)
    return at + size


@register_jitable
def _write_zeros(out: Any, at: Any, count: Any) -> Any:
    for place in range(at, at + count):
        out[place] = _ZERO
    return at + count


@register_jitable
def write_float(out: Any, at: Any, bits: Any) -> Any:
    """The JSON text of a float32's bits, ``null`` for NaN and infinities; returns the place after it."""
    magnitude = bits & U32(0x7FFFFFFF)
    if magnitude >= U32(0x7F800000):
        out[at], out[at + 1], out[at + 2], out[at + 3] = 110, 117, 108, 108  # null
        return at + 4
    if bits != magnitude:
        out[at] = _MINUS
        at += 1
    digits, exponent = np.int64(0), np.int64(0)
    if magnitude != U32(0):
        digits, exponent = shortest_decimal(magnitude)
    while digits != 0 and digits % 10 == 0:
        digits //= 10
        exponent += 1
    begin = at
    at = write_digits(out, at, U64(digits))
    size = at - begin
    point = size + exponent  # digits before the decimal point
    if exponent >= 0 and point <= 16:
        at = _write_zeros(out, at, exponent)
        out[at], out[at + 1] = _POINT, _ZERO
        return at + 2
    if -4 <= point <= 0:
        # 0.00ddd: the digits move to the right.
        for place in range(size - 1, -1, -1):
            out[begin + 2 - point + place] = out[begin + place]
        out[begin], out[begin + 1] = _ZERO, _POINT
        _write_zeros(out, begin + 2, -point)
        return at + 2 - point
    if 0 < point < size:
        for place in range(size - 1, point - 1, -1):
            out[begin + place + 1] = out[begin + place]
        out[begin + point] = _POINT
        return at + 1
    return _write_scientific(out, begin, size, point - 1)


@register_jitable
def _write_scientific(out: Any, begin: Any, size: Any, exponent: Any) -> Any:
    """``d.ddde-x`` from ``size`` digits at ``begin``."""
    at = begin + size
    if size > 1:
        for place in range(size - 1, 0, -1):
            out[begin + place + 1] = out[begin + place]
        out[begin + 1] = _POINT
        at += 1
    out[at] = _E
    at += 1
    if exponent < 0:
        out[at] = _MINUS
        at += 1
        exponent = -exponent
    return write_digits(out, at, U64(exponent))
