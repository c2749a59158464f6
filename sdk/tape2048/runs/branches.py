"""Branch values: from expected values to the normalized ones that files hold.

Per step, over the legal moves, in float32:

- one legal move: ``1 - 2**-23``;
- all legal values equal: 0.5 each;
- otherwise ``(ev - min) / (max - min)``, and anything >= 1 becomes ``1 - 2**-23``.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from tape2048.errors import FieldError

if TYPE_CHECKING:
    from numpy.typing import NDArray

__all__ = ["VALUE_MAX", "normalize"]

#: The largest normalized value, just below 1.
VALUE_MAX = np.float32(1 - 2**-23)

_BITS = np.arange(4, dtype=np.uint8)


def normalize(values: NDArray[np.float32], legal: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Normalize expected values per step over the legal moves.

    Args:
        values: ``f32[n, 4]`` (UDLR), any scale.
        legal: ``u8[n]``: bit ``m`` set where move ``m`` is legal.

    Returns:
        ``f32[n, 4]``: see the module; 0 where a move is not legal.

    Raises:
        FieldError: the values of legal moves at one step are not finite, or too far apart for a
            float32 to hold their difference.
    """
    mask = (legal[:, None] >> _BITS & 1).astype(np.bool_)
    low = np.where(mask, values, np.float32(np.inf)).min(axis=1, initial=np.inf)
    high = np.where(mask, values, np.float32(-np.inf)).max(axis=1, initial=-np.inf)
    count = mask.sum(axis=1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        spread = high - low
        bad = (count > 0) & ~np.isfinite(spread)
        if bad.any():
            step = int(bad.argmax())
            raise FieldError(f"branch values {values[step].tolist()} at step {step}; expected finite ones")
        scaled = (values - low[:, None]) / spread[:, None]
    scaled = np.where(spread[:, None] == 0, np.float32(0.5), scaled)
    scaled = np.where(count[:, None] == 1, VALUE_MAX, scaled)
    return np.where(mask, np.minimum(scaled, VALUE_MAX), np.float32(0)).astype(np.float32, copy=False)
