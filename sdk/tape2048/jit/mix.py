"""The hash function behind all draws that a key determines: splits, caps, symmetries."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    from numpy.typing import NDArray

_U64 = np.uint64


def mix64(value: Any) -> Any:
    """Apply SplitMix64's finalizer (Steele, Lea, Flood 2014; Stafford's variant 13), a bijection on ``u64``.

    It takes NumPy arrays and, in compiled code, scalars. Do not pass NumPy scalars: they warn of the intended
    overflow.
    """
    value = (value ^ (value >> _U64(30))) * _U64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> _U64(27))) * _U64(0x94D049BB133111EB)
    return value ^ (value >> _U64(31))


def hashes(count: int, seed: int) -> NDArray[np.uint64]:
    """Return SplitMix64's first ``count`` numbers, all different: the seeds of a recorder's first games."""
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    found: NDArray[np.uint64] = mix64(z + np.uint64(seed & (2**64 - 1)))
    return found


def shuffled(count: int, seed: int) -> NDArray[np.int64]:
    """Return a permutation of [0, count) that the seed determines, independent of NumPy's generators."""
    return np.argsort(hashes(count, seed))
