"""The limit of what compressed bytes may expand to, so that a small file cannot take a machine's memory."""

from __future__ import annotations

from typing import Final

#: The network ``strong`` expands to 30 times its file, a network after a few games to hundreds of times.
_FREE_BYTES: Final = 256 << 20
_RATIO_MAX: Final = 1000


def expanded_max(stored: int) -> int:
    """Return the most bytes that this number of stored bytes may expand to."""
    return _FREE_BYTES + _RATIO_MAX * stored
