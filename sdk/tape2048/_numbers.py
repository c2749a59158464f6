"""Whole numbers that callers give: NumPy's and PyTorch's count as well as Python's own."""

from __future__ import annotations

import operator
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from typing import SupportsIndex

__all__ = ["whole"]


def whole(name: str, value: SupportsIndex) -> int:
    """The number as Python's own, which fits JSON and does not overflow; ValueError for what is no integer.

    Args:
        name: of the argument, for the message.
        value: as it was given.
    """
    try:
        return operator.index(value)
    except TypeError:
        raise ValueError(f"{name}={value!r}; expected a whole number") from None
