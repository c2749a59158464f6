"""Stages of runs: ranges of rows with the same highest tile on the board, and equal shares of them.

The highest tile of a game never falls, so a binary search finds where it rises. In 10M rows on tape, of 1,066
games, that takes 20 ms of one core; reading all boards takes 800 ms.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.base.threads import map_ordered
from tape2048.loader.batch import Batch, BatchLayout

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.loader.gatherer import Gatherer

#: Runs whose stages are searched together.
_STAGE_RUNS = 4096


def stage_firsts(gatherer: Gatherer, starts: NDArray[np.int64]) -> NDArray[np.int64]:
    layout = BatchLayout(("tokens",), 0, "bool")

    def highest(rows: NDArray[np.int64]) -> Any:
        batch = Batch.allocate(layout, len(rows))
        gatherer.gather(rows, batch)
        return batch["tokens"].max(axis=1)

    def search(run: int) -> NDArray[np.int64]:
        edges = starts[run : run + _STAGE_RUNS + 1]
        low, high = edges[:-1][edges[:-1] < edges[1:]], edges[1:][edges[:-1] < edges[1:]] - 1
        firsts, ranges = [low], np.stack([low, high, highest(low), highest(high)])
        while ranges.size:
            low, high, at_low, at_high = ranges[:, ranges[2] < ranges[3]]
            firsts.append(high[high - low == 1])
            low, high, at_low, at_high = (each[high - low > 1] for each in (low, high, at_low, at_high))
            middle = (low + high) // 2
            at_middle = highest(middle)
            halves = [low, middle, at_low, at_middle], [middle, high, at_middle, at_high]
            ranges = np.concatenate(halves, axis=1)
        return np.sort(np.concatenate(firsts))

    return np.concatenate(list(map_ordered(search, range(0, len(starts) - 1, _STAGE_RUNS))))


def even_shares(
    rows: NDArray[np.int64], begins: NDArray[np.int64], taken: NDArray[np.int64]
) -> NDArray[np.int64]:
    """Share the rows taken from each run evenly among its stages, as far as these have rows.

    ``begins`` (``i64[R + 1]``) is the first stage of each run. Of each run, ``taken`` is at least one per
    stage.
    """
    counts, left, shares = np.diff(begins), taken.copy(), np.empty_like(rows)
    order = np.lexsort((rows, np.repeat(np.arange(len(counts)), counts)))  # of each run, the smallest first
    for turn in range(int(counts.max(initial=0))):
        runs = np.flatnonzero(counts > turn)
        stage = order[begins[runs] + turn]
        shares[stage] = np.minimum(rows[stage], left[runs] // (counts[runs] - turn))
        left[runs] -= shares[stage]
    return shares
