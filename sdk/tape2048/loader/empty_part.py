"""The error for a part of a split without games: which shares the games allow."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import EmptyCorpusError
from tape2048.loader.splits import parts_of_hashes

if TYPE_CHECKING:
    from collections.abc import Mapping

    from numpy.typing import NDArray


def empty_part(hashes: NDArray[np.uint64], parts: Mapping[str, float], empty: int) -> EmptyCorpusError:
    """Return the error for a part without games; it says with which share the part would have some."""
    name, share = list(parts.items())[empty]
    found = f"none of {counted(len(hashes), 'game')} is in the part {name}={share:g} of the split"
    hint = f"Record at least {_games_for(share):,} games."
    if (distinct := len(np.unique(hashes))) < len(hashes):
        found += f", and only {distinct:,} of them are different games"
        hint += " Use other seeds and start boards."
    if (needed := _share_for(hashes, list(parts.values()), empty)) is not None:
        found += f"; these games allow {name} >= {needed:g}"
        hint += f" Or pass {name}={needed:g}, and smaller shares for other parts."
    return EmptyCorpusError(found, hint=hint)


def _games_for(share: float) -> int:
    """Return the number of games of which a part of this share has none in one of 10,000 recordings."""
    return math.ceil(math.log(1e-4) / math.log1p(-min(share, 0.999)))


def _share_for(hashes: NDArray[np.uint64], shares: list[float], empty: int) -> float | None:
    """Return the least share in hundredths with which an empty part and all other parts have games."""
    neighbour = empty - 1 if empty else 1
    for percent in range(math.ceil(100 * shares[empty]), 100):
        tried = shares.copy()
        tried[empty] = percent / 100
        tried[neighbour] -= tried[empty] - shares[empty]
        if tried[neighbour] > 0 and len(np.unique(parts_of_hashes(hashes, tried))) == len(tried):
            return tried[empty]
    return None
