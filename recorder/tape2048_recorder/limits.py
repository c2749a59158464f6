"""The limits at which a recorder ends of itself: it drains, publishes, and names the one it met."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048._words import counted

if TYPE_CHECKING:
    from collections.abc import Iterable

    from tape2048_recorder.config_schema import RecorderConfig

__all__ = ["limit_met", "resident_bytes"]

_MEGABYTE = 10**6
_PAGE_BYTES = os.sysconf("SC_PAGE_SIZE")


def resident_bytes(pids: Iterable[int]) -> int:
    """Resident memory of these processes together; pages they share count for each."""
    total = 0
    for pid in pids:
        try:
            total += int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * _PAGE_BYTES
        except (OSError, IndexError):
            continue  # it has just ended
    return total


def limit_met(
    config: RecorderConfig, *, rows: int, elapsed_s: float, disk_bytes: int, pids: Iterable[int]
) -> str | None:
    """The limit that is met, in words, or None. ``max_games`` is not here: no more games are handed out."""
    if config.max_steps is not None and rows >= config.max_steps:
        return f"max_steps = {config.max_steps} was reached ({counted(rows, 'row')})"
    if config.max_wall_s is not None and elapsed_s >= config.max_wall_s:
        return f"max_wall_s = {config.max_wall_s:g} was reached"
    if config.max_disk_mb is not None and disk_bytes >= config.max_disk_mb * _MEGABYTE:
        return f"max_disk_mb = {config.max_disk_mb} was reached ({disk_bytes / _MEGABYTE:.0f} MB of sessions)"
    if config.max_ram_mb is not None:
        ram = resident_bytes(pids)
        if ram >= config.max_ram_mb * _MEGABYTE:
            return f"max_ram_mb = {config.max_ram_mb} was reached ({ram / _MEGABYTE:.0f} MB resident)"
    return None
