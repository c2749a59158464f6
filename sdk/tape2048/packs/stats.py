"""Statistics of a pack's runs: its stats block, and the counter that makes it."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tape2048.runs.run import RunMeta


class PackStats(msgspec.Struct, frozen=True):
    """Statistics of a pack's runs.

    Attributes:
        count: runs.
        total_steps: steps of all runs.
        min_len: steps of the shortest run, 0 without runs.
        max_len: steps of the longest run.
        mean_len: mean steps of a run.
        p50_len: median steps of a run (nearest rank, so a length that occurs).
        p90_len: 90th percentile.
        p99_len: 99th percentile.
        highest_tile_hist: runs by their highest tile (its value).
        engine_counts: runs by engine; "" for runs without one.

    Example:
        >>> from tape2048.packs import pack_directory
        >>> pack_directory("runs", "stats.a2pack").stats.count
        2
    """

    count: int
    total_steps: int
    min_len: int
    max_len: int
    mean_len: float
    p50_len: int
    p90_len: int
    p99_len: int
    highest_tile_hist: dict[int, int]
    engine_counts: dict[str, int]


class StatsCounter:
    """Counts runs one by one; keeps one number for each run."""

    def __init__(self) -> None:
        self._lengths: list[int] = []
        self._tiles: Counter[int] = Counter()
        self._engines: Counter[str] = Counter()

    def add(self, meta: RunMeta) -> None:
        """Count a run."""
        self._lengths.append(meta.steps)
        self._tiles[meta.highest_tile] += 1
        self._engines[meta.engine or ""] += 1

    def result(self) -> PackStats:
        """Return the statistics of the runs so far."""
        lengths = sorted(self._lengths)
        count, total = len(lengths), sum(lengths)

        def rank(percent: int) -> int:
            return lengths[-(-count * percent // 100) - 1] if lengths else 0

        return PackStats(
            count=count,
            total_steps=total,
            min_len=lengths[0] if lengths else 0,
            max_len=lengths[-1] if lengths else 0,
            mean_len=total / count if count else 0.0,
            p50_len=rank(50),
            p90_len=rank(90),
            p99_len=rank(99),
            highest_tile_hist=dict(sorted(self._tiles.items())),
            engine_counts=dict(sorted(self._engines.items())),
        )


def parse_stats(block: bytes) -> PackStats | None:
    """Parse a stats block; return None for other content (other writers may have other names)."""
    try:
        return msgspec.json.decode(block, type=PackStats)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
