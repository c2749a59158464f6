"""An epoch's order without a list of it: a keyed bijection on [0, n), computed where it is needed.

The i-th row of the epoch is ``permutation(i)``. Nothing of size n is stored, so a loader over 1e9 rows
holds a few hundred bytes of shuffle, and its whole state is (seed, epoch, position).

**Construction.** A Feistel network on pairs (Luby, Rackoff, SIAM J. Comput. 1988) over a domain that is
not a power of two (Black, Rogaway, "Ciphers with arbitrary finite domains", CT-RSA 2002, their
generalized Feistel and cycle walking). With k about half the bits of n - 1 and b = ceil(n / 2**k), an
index is the pair ``(low, high)``, ``low < 2**k``, ``high < b``, and a double round is ::

    low  = low  + F(high)  mod 2**k
    high = high + F(low)   mod b

A result that is not below n goes through the network again until it is. The domain exceeds n by less
than 2**k, so that this happens to one index in sqrt(n); no division is needed, since one half is a
power of two; and adding, where XOR would be as good otherwise, lets permutations of either parity come up.

**Round function.** A keyed product whose middle bits are squared, and of that the middle bits again (the
step of Widynski's "Squares" generator, arXiv:2004.06278): ``y = (x ^ key) * factor >> 15``, then
``y * y >> 16``, both cut to 32 bits. An offset below b comes from these by Lemire's multiply and shift
(ACM TOMACS 2019); at n <= 2**40 its bias is below 2**-11 a round, and the rounds add up. All of it is
products of 32 bits in lanes of 64, which the compiler turns into AVX2.

**Keys** are SHAKE-128 of (n, seed, epoch): neighbouring seeds and epochs have nothing in common.

**Rounds.** Decided by tests; ``tests/sdk/test_shuffle.py`` keeps those that told the most. Over small
domains all n! permutations must be equally likely. Over larger ones, the number of pairs that share
``high`` and keep their distance in ``low`` must be distributed as in a random permutation: that is what
tells a Feistel network of few rounds from one (Patarin, "Generic attacks on Feistel schemes", Asiacrypt
2001). In standard errors of 1,000 to 100,000 permutations, the worse of mean and variance of that number,
and the chi-square of the n!:

======  =======  ========  ==========  =======  =======
rounds  n = 256  n = 1024  n = 4096    5!       7!
======  =======  ========  ==========  =======  =======
6       15       6         4           400      1,400
8       9        9         4           117      411
10      6        6         1           31       135
12      1        1         0           9        49
16      2        2         1           1        9
20      1        1         0           0        1
======  =======  ========  ==========  =======  =======

Larger n show less. So 12 rounds, and 24 up to n = 2**16, where speed does not matter. It is a shuffle and
not a cipher: nobody who wants to predict it is kept from doing so.
"""

from __future__ import annotations

import hashlib
from typing import TYPE_CHECKING, Any

import numpy as np
from numba.extending import register_jitable

from tape2048._jit import kernel

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["INDICES_MAX", "Permutation", "fill_permuted", "fill_unpermuted", "permuted", "unpermuted"]

U64 = np.uint64

#: Largest n: both halves stay within 20 bits, and the bias of an offset far below what tests see.
INDICES_MAX = 1 << 40

#: Largest n that gets twice the rounds: halves of a few bits mix slowly.
SMALL_INDICES_MAX = 1 << 16
DOUBLE_ROUNDS = 6
SMALL_DOUBLE_ROUNDS = 12

# Where the parts of ``keys`` stand: n, bits of the low half, size of the high half, double rounds, and then
# (key, factor) of each round.
_N, _LOW_BITS, _HIGH_SIZE, _DOUBLE_ROUNDS, _ROUND_KEYS = range(5)

# Indices that go through all rounds together: 8 KB, which stay in the L1 cache.
_TILE = 1024

_WORD = U64(0xFFFFFFFF)
_32 = U64(32)


class Permutation:
    """A bijection on [0, n) that a seed and an epoch choose.

    Args:
        n: size, 1 <= n <= ``INDICES_MAX``.
        seed: 0 <= seed < 2**64.
        epoch: 0 <= epoch < 2**64; each epoch of a seed is another permutation.

    Attributes:
        n: as given.
        seed: as given.
        epoch: as given.
        keys: ``u64[...]``, what the kernels of this module take; read-only.

    Raises:
        ValueError: an argument out of its range.
    """

    def __init__(self, n: int, *, seed: int, epoch: int) -> None:
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
            IndexError: positions outside [0, n).
            TypeError: ``out`` is something else.
        """
        self._check(start, out)
        fill_permuted(U64(start), self.keys, out)

    def inverse_fill(self, start: int, out: NDArray[np.uint64]) -> None:
        """Write the positions of ``start, start + 1, ...``: ``permutation(out[j]) == start + j``.

        Arguments and errors as for :meth:`fill`.
        """
        self._check(start, out)
        fill_unpermuted(U64(start), self.keys, out)

    def _check(self, start: int, out: NDArray[np.uint64]) -> None:
        if out.dtype != np.uint64 or out.ndim != 1 or not out.flags.c_contiguous or not out.flags.writeable:
            raise TypeError(
                f"out is {out.dtype} of shape {out.shape}; expected a writable, contiguous u64[m]"
            )
        if start < 0 or start + len(out) > self.n:
            raise IndexError(
                f"positions {start} to {start + len(out) - 1}; expected 0 <= position < {self.n}"
            )


def _make_keys(n: int, seed: int, epoch: int) -> NDArray[np.uint64]:
    low_bits = max(1, (n - 1).bit_length() // 2)
    high_size = -(-n >> low_bits)
    double_rounds = SMALL_DOUBLE_ROUNDS if n <= SMALL_INDICES_MAX else DOUBLE_ROUNDS
    name = b"tape2048.shuffle 1" + b"".join(value.to_bytes(8, "little") for value in (n, seed, epoch))
    words = np.frombuffer(hashlib.shake_128(name).digest(16 * double_rounds), "<u4").astype(U64)
    words[1::2] |= U64(1)  # an even factor would lose the highest bits of its other operand
    keys = np.concatenate((np.array([n, low_bits, high_size, double_rounds], U64), words))
    keys.flags.writeable = False
    return keys


@register_jitable
def _round(x: Any, key: Any, factor: Any) -> Any:
    """The round function before it is cut to its middle bits: 64 bits, of which those below 48 count."""
    y = (((x ^ key) * factor) >> U64(15)) & _WORD
    return y * y


# Both directions keep each half below 2**32 and say so (``& _WORD``): the compiler then needs one 32-bit
# multiplication where it would else make three. A difference that fell below zero has ones in its high word:
# that word is the mask for adding b back.


@register_jitable
def _forward(pair: Any, half: Any, round_keys: Any) -> Any:
    """A double round on ``low << 32 | high``, with the (key, factor) of each of the two."""
    _, low_mask, low_shift, high_size = half
    k0, f0, k1, f1 = round_keys
    low, high = pair >> _32, pair & _WORD
    low = (low + (_round(high, k0, f0) >> low_shift)) & low_mask
    high += (((_round(low, k1, f1) >> U64(16)) & _WORD) * high_size >> _32) - high_size
    high += (high >> _32) & high_size
    return (low << _32) | high


@register_jitable
def _backward(pair: Any, half: Any, round_keys: Any) -> Any:
    """The inverse of :func:`_forward`."""
    _, low_mask, low_shift, high_size = half
    k0, f0, k1, f1 = round_keys
    low, high = pair >> _32, pair & _WORD
    high -= ((_round(low, k1, f1) >> U64(16)) & _WORD) * high_size >> _32
    high += (high >> _32) & high_size
    low = (low - (_round(high, k0, f0) >> low_shift)) & low_mask
    return (low << _32) | high


@register_jitable
def _round_keys(keys: Any, double_round: Any) -> Any:
    """The two (key, factor) of a double round."""
    at = _ROUND_KEYS + 4 * double_round
    return keys[at] & _WORD, keys[at + 1] & _WORD, keys[at + 2] & _WORD, keys[at + 3] & _WORD


@register_jitable
def _halves(keys: Any) -> Any:
    """``(low_bits, low_mask, low_shift, high_size)``; ``low_shift`` leaves the highest of 48 bits."""
    low_bits = keys[_LOW_BITS]
    low_mask = ((U64(1) << low_bits) - U64(1)) & _WORD
    return low_bits, low_mask, U64(48) - low_bits, keys[_HIGH_SIZE] & _WORD


@register_jitable
def _pair(i: Any, half: Any) -> Any:
    low_bits, low_mask, _, _ = half
    return ((i & low_mask) << _32) | (i >> low_bits)


@register_jitable
def _index(pair: Any, half: Any) -> Any:
    return ((pair & _WORD) << half[0]) | (pair >> _32)


@kernel
def permuted(i: Any, keys: Any) -> Any:
    """The image of one position (``u64``, below n): for other kernels; many at once are five times faster."""
    half = _halves(keys)
    while True:
        pair = _pair(i, half)
        for r in range(keys[_DOUBLE_ROUNDS]):
            round_keys = _round_keys(keys, r)
            pair = _forward(pair, half, round_keys)
        i = _index(pair, half)
        if i < keys[_N]:
            return i


@kernel
def unpermuted(i: Any, keys: Any) -> Any:
    """The position of one image (``u64``, below n): the inverse of :func:`permuted`."""
    half = _halves(keys)
    while True:
        pair = _pair(i, half)
        for r in range(keys[_DOUBLE_ROUNDS] - U64(1), -1, -1):
            round_keys = _round_keys(keys, r)
            pair = _backward(pair, half, round_keys)
        i = _index(pair, half)
        if i < keys[_N]:
            return i


# One double round at a time over a whole tile: short, independent iterations are what keeps the processor
# busy. All rounds in one iteration are a chain of dependent steps, and take twice as long.


@kernel
def fill_permuted(start: Any, keys: Any, out: Any) -> None:
    """``out[j] = permuted(start + j)``, ``u64[m]``; ``start`` is ``u64``, and nothing is checked."""
    half = _halves(keys)
    for first in range(0, out.shape[0], _TILE):
        tile = out[first : first + _TILE]
        for t in range(tile.shape[0]):
            tile[t] = _pair(start + U64(first + t), half)
        for r in range(keys[_DOUBLE_ROUNDS]):
            round_keys = _round_keys(keys, r)
            for t in range(tile.shape[0]):
                tile[t] = _forward(tile[t], half, round_keys)
        for t in range(tile.shape[0]):
            tile[t] = _index(tile[t], half)
        for t in range(tile.shape[0]):
            if tile[t] >= keys[_N]:
                tile[t] = permuted(tile[t], keys)


@kernel
def fill_unpermuted(start: Any, keys: Any, out: Any) -> None:
    """``out[j] = unpermuted(start + j)``, ``u64[m]``; as :func:`fill_permuted`."""
    half = _halves(keys)
    for first in range(0, out.shape[0], _TILE):
        tile = out[first : first + _TILE]
        for t in range(tile.shape[0]):
            tile[t] = _pair(start + U64(first + t), half)
        for r in range(keys[_DOUBLE_ROUNDS] - U64(1), -1, -1):
            round_keys = _round_keys(keys, r)
            for t in range(tile.shape[0]):
                tile[t] = _backward(tile[t], half, round_keys)
        for t in range(tile.shape[0]):
            tile[t] = _index(tile[t], half)
        for t in range(tile.shape[0]):
            if tile[t] >= keys[_N]:
                tile[t] = unpermuted(tile[t], keys)
