"""Statistics of a pack's runs: count, compare, encode and parse them.

The block is in the ``postcard`` encoding (see :mod:`tape2048.runs.a2run2`), then, to its end, a JSON object
with the fields that this leaves out; a reader of the first part ignores the second::

    Stats = count: u64, total_steps: u64, min_len: u32, max_len: u32, mean_len: f64,
            p50_len: u32, p90_len: u32, p99_len: u32

Other writers leave the object out. In older packs the block is a JSON object alone, with all fields.
"""

from __future__ import annotations

import struct
from collections import Counter
from typing import TYPE_CHECKING, Any, TypeVar

import msgspec

from tape2048.errors import FieldError, FormatError
from tape2048.runs.a2run2 import Cursor, varint

if TYPE_CHECKING:
    from tape2048.runs.run import RunMeta

T = TypeVar("T")


class PackStats(msgspec.Struct, frozen=True):
    """Statistics of a pack's runs.

    Attributes:
        count: runs.
        total_steps: steps of all runs.
        min_len: steps of the shortest run, 0 without runs.
        max_len: steps of the longest run.
        mean_len: mean steps of a run.
        p50_len: median steps of a run: a length that occurs (the nearest rank; other writers may take the
            one beside it).
        p90_len: 90th percentile.
        p99_len: 99th percentile.
        highest_tile_hist: runs by their highest tile (its value); None where the file does not say.
        engine_counts: runs by engine; "" for runs without one; None where the file does not say.

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
    highest_tile_hist: dict[int, int] | None = None
    engine_counts: dict[str, int] | None = None


class _More(msgspec.Struct):
    """The fields after the postcard ones."""

    highest_tile_hist: dict[int, int] | None = None
    engine_counts: dict[str, int] | None = None


#: The fields of the postcard part, in order.
_POSTCARD = PackStats.__struct_fields__[:-2]
_PERCENTILES = {"p50_len": 50, "p90_len": 90, "p99_len": 99}


def count_stats(metas: list[RunMeta]) -> PackStats:
    """Compute the statistics of runs from their metadata."""
    lengths = sorted(meta.steps for meta in metas)
    count, total = len(lengths), sum(lengths)
    ranks = {
        name: lengths[-(-count * percent // 100) - 1] if lengths else 0
        for name, percent in _PERCENTILES.items()
    }
    return PackStats(
        count=count,
        total_steps=total,
        min_len=lengths[0] if lengths else 0,
        max_len=lengths[-1] if lengths else 0,
        mean_len=total / count if count else 0.0,
        p50_len=ranks["p50_len"],
        p90_len=ranks["p90_len"],
        p99_len=ranks["p99_len"],
        highest_tile_hist=dict(sorted(Counter(meta.highest_tile for meta in metas).items())),
        engine_counts=dict(sorted(Counter(meta.engine or "" for meta in metas).items())),
    )


def agrees(found: PackStats, metas: list[RunMeta]) -> bool:
    """Compare a file's statistics with its runs, whatever its rule for percentiles."""
    lengths = sorted(meta.steps for meta in metas)
    free: dict[str, Any] = {name: None for name in _More.__struct_fields__ if getattr(found, name) is None}
    for name, percent in _PERCENTILES.items() if lengths else ():
        place, value = (len(lengths) - 1) * percent, getattr(found, name)
        # Between the lengths on both sides of the exact place.
        if not lengths[place // 100] <= value <= lengths[-(-place // 100)]:
            return False
        free[name] = value
    return found == msgspec.structs.replace(count_stats(metas), **free)


def stats_bytes(stats: PackStats) -> bytes:
    """Encode a stats block."""
    values = (getattr(stats, name) for name in _POSTCARD)
    head = b"".join(struct.pack("<d", x) if isinstance(x, float) else varint(x) for x in values)
    return head + msgspec.json.encode(_More(stats.highest_tile_hist, stats.engine_counts))


def parse_stats(block: bytes) -> PackStats | None:
    """Parse a stats block; return None for a JSON object of other content, FieldError for other bytes."""
    # JSON first: its brace is also the count of a postcard block of 123 runs, whose rest is no JSON.
    if _is_object(block):
        return _decode(block, PackStats)
    cursor = Cursor(block, None)
    try:
        facts: list[Any] = [cursor.varint(bits) for bits in (64, 64, 32, 32)]
        facts += struct.unpack("<d", cursor.take(8, "mean_len"))
        facts += [cursor.varint(32) for _ in range(3)]
    except FormatError as error:
        raise FieldError(f"the stats are neither postcard nor a JSON object: {error.message}") from error
    rest = block[cursor.at :]
    if rest and not _is_object(rest):
        raise FieldError(f"the stats end with {len(rest)} bytes that are not a JSON object")
    more = _decode(rest, _More) or _More()
    facts += [more.highest_tile_hist, more.engine_counts]
    return PackStats(*facts)


def _is_object(block: bytes) -> bool:
    return _decode(block, dict[str, msgspec.Raw]) is not None


def _decode(block: bytes, kind: type[T]) -> T | None:
    try:
        return msgspec.json.decode(block, type=kind)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return None
