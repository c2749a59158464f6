"""Shuffle: a keyed bijection on [0, n), computed on the fly.

The i-th row of the epoch is ``permutation(i)``. Nothing of size n is stored, so a loader over 1e9 rows
holds a few hundred bytes of shuffle, and its whole state is (seed, epoch, position).

**Construction.** A Feistel network on pairs (Luby, Rackoff, SIAM J. Comput. 1988) over a domain that is
not a power of two (Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, their
generalized Feistel and cycle walking). With k half the bits of n - 1, rounded up, and b = ceil(n / 2**k),
an index is the pair ``(low, high)``, ``low < 2**k``, ``high < b``, and a double round is ::

    low  = low  + F(high)  mod 2**k
    high = high + G(low)   mod b

A result that is not below n goes through the network again until it is. The domain exceeds n by less than
2**k, so this happens to one index in sqrt(n / 2). No division is needed, since one half is a power of two.
Additions allow permutations of both parities, unlike XOR.

**Round functions.** All arithmetic is modulo 2**w, in lanes of w = 16 bits up to n = 2**31 (sixteen in an
AVX2 register), and of w = 32 above. Two keyed products with a shift between them ("xorshift multiply", as in
the finalizer of MurmurHash3, Appleby 2011) map x to ::

    y = (x ^ key) * factor,    y = (y ^ y >> w/2) * second_factor

F is the low k bits of y ^ y >> w/2; G is y * b >> w, an offset below b by Lemire's multiply and shift (ACM
TOMACS 2019). From 2**16 values, some offsets are 1.5 times as frequent as others. The sum of six rounds is
uniform to 3e-7 (n = 1e9).

**Keys** are SHAKE-128 of (n, seed, epoch), so neighbouring seeds and epochs are unrelated.

**Rounds.** ``tests/sdk/loader/test_shuffle.py`` keeps the most sensitive tests that chose them: over small
domains, all n! permutations are equally likely; over larger domains, the number of pairs that share ``high``
and keep their distance in ``low`` is distributed as in a random permutation (Patarin, "Generic attacks on
Feistel schemes", Asiacrypt 2001). With 20 rounds, no deviation is above 2 standard errors of 1,500 to
500,000 permutations. With 12 rounds, that holds from n = 256 up, but n = 5 and n = 7 deviate by 21 and 75
standard errors. Therefore the shuffle has 12 rounds, and 24 up to n = 2**16, where speed does not matter.
This is a shuffle and not a cipher: it does not resist prediction.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numba import types

from tape2048.base.text import as_int
from tape2048.jit.compiler import helper, kernel
from tape2048.jit.intrinsics import add_below, fold
from tape2048.jit.memory import pointer_to

if TYPE_CHECKING:
    from numpy.typing import NDArray

U64 = np.uint64

#: The largest n: both halves stay within 20 bits.
INDICES_MAX = 1 << 40

#: The largest n whose halves, and the sum of two numbers below b, fit lanes of 16 bits.
SHORT_INDICES_MAX = 1 << 31

#: The largest n with twice the rounds: halves of a few bits mix slowly.
SMALL_INDICES_MAX = 1 << 16
DOUBLE_ROUNDS = 6
SMALL_DOUBLE_ROUNDS = 12

# Layout of ``keys``: n, bits of the low half, size of the high half, double rounds, bits of a lane, and then
# (key, factor, second factor) of each round.
_N, _LOW_BITS, _HIGH_SIZE, _DOUBLE_ROUNDS, _LANE_BITS, _ROUND_KEYS = range(6)
_DOUBLE_ROUND_WORDS = 6

_TILE = 1024  # indices that pass all rounds together


class Permutation:
    """A bijection on [0, n), chosen by a seed and an epoch.

    Args:
        n: size, 1 <= n <= ``INDICES_MAX``.
        seed: seed, 0 <= seed < 2**64.
        epoch: epoch, 0 <= epoch < 2**64. Each epoch of a seed has another permutation.

    Attributes:
        n: as given.
        seed: as given.
        epoch: as given.
        keys: the keys for the kernels of this module, ``u64[...]``, read-only.

    Raises:
        ValueError: an argument is out of range.

    Example:
        >>> import numpy as np
        >>> from tape2048.loader import Permutation
        >>> order = np.empty(10, np.uint64)
        >>> Permutation(10, seed=7, epoch=0).fill(0, order)
        >>> sorted(order.tolist()) == list(range(10))
        True
    """

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
        n, seed, epoch = as_int("n", n), as_int("seed", seed), as_int("epoch", epoch)
        if not 1 <= n <= INDICES_MAX:
            raise ValueError(f"a permutation of {n} indices; expected 1 <= n <= {INDICES_MAX}")
        for name, value in (("seed", seed), ("epoch", epoch)):
            if not 0 <= value < 1 << 64:
                raise ValueError(f"{name} {value}; expected 0 <= {name} < 2**64")
        self.n = n
        self.seed = seed
        self.epoch = epoch
        self.keys = _make_keys(n, seed, epoch)

    def __len__(self) -> int:
        return self.n

    def __repr__(self) -> str:
        return f"Permutation({self.n}, seed={self.seed}, epoch={self.epoch})"

    def fill(self, start: int, out: NDArray[np.uint64]) -> None:
        """Write the images of ``start, start + 1, ...``: ``out[j] = permutation(start + j)``.

        Args:
            start: first position, >= 0.
            out: ``u64[m]``, contiguous, ``start + m <= n``.

        Raises:
            IndexError: a position is outside [0, n).
            TypeError: ``out`` is not this kind of array.
            ValueError: ``start`` is not a whole number.
        """
        start = as_int("start", start)
        if not isinstance(out, np.ndarray):
            raise TypeError(f"out is a {type(out).__name__}; expected a writable, contiguous u64[m]")
        if out.dtype != np.uint64 or out.ndim != 1 or not out.flags.c_contiguous or not out.flags.writeable:
            found = f"out is {out.dtype} of shape {out.shape}"
            raise TypeError(f"{found}; expected a writable, contiguous u64[m]")
        if start < 0 or start + len(out) > self.n:
            found = f"positions {start} to {start + len(out) - 1}"
            raise IndexError(f"{found}; expected 0 <= position < {self.n}")
        fill_permuted(U64(start), self.keys, np.empty(_TILE, U64), out)


def _make_keys(n: int, seed: int, epoch: int) -> NDArray[np.uint64]:
    low_bits = max(1, ((n - 1).bit_length() + 1) // 2)
    high_size = -(-n >> low_bits)
    double_rounds = SMALL_DOUBLE_ROUNDS if n <= SMALL_INDICES_MAX else DOUBLE_ROUNDS
    lane_bits = 16 if n <= SHORT_INDICES_MAX else 32
    name = b"tape2048.shuffle 2" + b"".join(value.to_bytes(8, "little") for value in (n, seed, epoch))
    count = _DOUBLE_ROUND_WORDS * double_rounds
    words = np.frombuffer(hashlib.shake_128(name).digest(lane_bits // 8 * count), f"<u{lane_bits // 8}")
    words = words.astype(U64).reshape(-1, 3)
    words[:, 1:] |= U64(1)  # an even factor would lose the highest bits of its other operand
    keys = np.concatenate((np.array([n, low_bits, high_size, double_rounds, lane_bits], U64), words.ravel()))
    keys.flags.writeable = False
    return keys


@helper
def _product(x: Any, keys: Any, at: Any) -> Any:
    """Return y of the round functions, below 2**w, with the keys from ``at`` on."""
    bits = keys[_LANE_BITS]
    lane = (U64(1) << bits) - U64(1)
    y = ((x ^ keys[at]) * keys[at + 1]) & lane
    return ((y ^ y >> (bits >> U64(1))) * keys[at + 2]) & lane


@helper
def _low_step(high: Any, keys: Any, at: Any) -> Any:
    """Return F, the summand of the low half."""
    y = _product(high, keys, at)
    return y ^ y >> (keys[_LANE_BITS] >> U64(1))


@helper
def _high_step(low: Any, keys: Any, at: Any) -> Any:
    """Return G, the summand of the high half."""
    return _product(low, keys, at) * keys[_HIGH_SIZE] >> keys[_LANE_BITS]


@kernel
def permuted(i: Any, keys: Any) -> Any:
    """Return the image of one position (``u64``, below n); :func:`fill_permuted` is faster for many."""
    low_bits, size = keys[_LOW_BITS], keys[_HIGH_SIZE]
    mask = (U64(1) << low_bits) - U64(1)
    while True:
        low, high = i & mask, i >> low_bits
        for r in range(keys[_DOUBLE_ROUNDS]):
            at = _ROUND_KEYS + _DOUBLE_ROUND_WORDS * r
            low = (low + _low_step(high, keys, at)) & mask
            high = (high + _high_step(low, keys, at + 3)) % size
        i = high << low_bits | low
        if i < keys[_N]:
            return i


def _make_fill(lane: Any, lanes_at: Any, lane_bytes: int) -> Any:
    @kernel
    def fill(  # noqa: PLR0917 - words, of which routines take any number
        start: Any, keys_at: Any, scratch: Any, tile: Any, out_at: Any, count: Any
    ) -> Any:
        # Each cast keeps a result in its lane.
        keys, low, high = _words_at(keys_at), lanes_at(scratch), lanes_at(scratch + tile * U64(lane_bytes))
        low_bits, n = keys[_LOW_BITS], keys[_N]
        low_mask = (U64(1) << low_bits) - U64(1)
        mask, size = lane(low_mask), lane(keys[_HIGH_SIZE])
        for first in range(U64(0), count, tile):
            out, within = _words_at(out_at + (first << U64(3))), min(tile, count - first)
            for t in range(within):
                i = start + first + t
                low[t], high[t] = lane(i & low_mask), lane(i >> low_bits)
            for r in range(keys[_DOUBLE_ROUNDS]):
                at = _ROUND_KEYS + _DOUBLE_ROUND_WORDS * r
                key0, factor0, second0 = lane(keys[at]), lane(keys[at + 1]), lane(keys[at + 2])
                key1, factor1, second1 = lane(keys[at + 3]), lane(keys[at + 4]), lane(keys[at + 5])
                for t in range(within):
                    y = lane(fold(lane(lane(high[t] ^ key0) * factor0)) * second0)
                    low[t] = lane(lane(low[t] + fold(y)) & mask)
                    y = lane(fold(lane(lane(low[t] ^ key1) * factor1)) * second1)
                    high[t] = add_below(high[t], y, size)
            for t in range(within):
                out[t] = U64(high[t]) << low_bits | U64(low[t])
            for t in range(within):
                if out[t] >= n:
                    out[t] = permuted(out[t], keys)
        return count

    return fill


_words_at = pointer_to(types.uint64)
_fill_short = _make_fill(np.uint16, pointer_to(types.uint16), 2)
_fill_long = _make_fill(np.uint32, pointer_to(types.uint32), 4)


def fill_of(keys: NDArray[np.uint64]) -> Any:
    """Return the kernel that writes ``permuted(start + j)``, without checks.

    Its arguments are words: ``start``, the address of ``keys``, of ``tile`` words of memory, ``tile``, the
    address of the output, and the number of its words.
    """
    return _fill_short if keys[_LANE_BITS] == 16 else _fill_long


def fill_permuted(
    start: Any, keys: NDArray[np.uint64], scratch: NDArray[np.uint64], out: NDArray[np.uint64]
) -> None:
    """Write ``out[j] = permuted(start + j)``, without checks."""
    fill_of(keys)(
        U64(start),
        *(U64(keys.ctypes.data), U64(scratch.ctypes.data), U64(len(scratch))),
        *(U64(out.ctypes.data), U64(len(out))),
    )
