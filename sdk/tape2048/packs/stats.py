"""What a pack's stats block says of its runs, and how it is counted while packing."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING

import msgspec

if TYPE_CHECKING:
    from tape2048.runs.run import RunMeta

__all__ = ["PackStats", "StatsCounter", "parse_stats", "stats_bytes"]


class PackStats(msgspec.Struct, frozen=True):
    """A pack in numbers.

    Attributes:
        count: runs.
        total_steps: steps of all runs.
        min_len: steps of the shortest run, 0 where there is none.
        max_len: steps of the longest run.
        mean_len: mean steps of a run.
        p50_len: steps that half of the runs do not exceed (nearest rank: a length that occurs).
        p90_len: ... nine tenths of the runs.
        p99_len: ... 99 of 100 runs.
        highest_tile_hist: runs by their highest tile (its value).
        engine_counts: runs by engine; "" for runs that name none.
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
    """Counts runs as they pass; keeps one number for each run."""

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
        """The numbers so far."""
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


def stats_bytes(stats: PackStats) -> bytes:
    """The stats block's JSON; the same numbers give the same bytes."""
    return msgspec.json.encode(stats)


def parse_stats(block: bytes) -> PackStats | None:
    """The stats in a block; None where it says something else (other writers may have other names)."""
    try:
        return msgspec.json.decode(block, type=PackStats)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
