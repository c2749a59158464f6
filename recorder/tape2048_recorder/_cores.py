"""How many cores this process may use: its affinity, cut by the CPU quota of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

__all__ = ["available_cores"]


def available_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that this process may keep busy, at least 1.

    A quota of 1.5 cores counts as 1: a second worker would spend half of each period waiting.

    Args:
        cgroup_root: where the control groups are mounted.
        own: the list of this process's control groups.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [quota for folder in _own_groups(cgroup_root, own) if (quota := _quota(folder)) is not None]
    return max(1, int(min([cores, *quotas])))


def _own_groups(root: Path, own: Path) -> list[Path]:
    """The folders of this process's groups and of the groups that these stand in: each may have a quota."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        # Version 2 has no controllers in its line and is mounted at the root; version 1 has a mount for each.
        base = root / controllers if controllers else root
        group = base / path.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(base))]
    return folders


def _quota(folder: Path) -> float | None:
    """The quota of one group in cores, or None where it has none (or cannot be read)."""
    try:
        if (version_2 := folder / "cpu.max").exists():
            quota, period = version_2.read_text().split()
        else:
            quota = (folder / "cpu.cfs_quota_us").read_text()
            period = (folder / "cpu.cfs_period_us").read_text()
        cores = float(quota) / float(period)
    except (OSError, ValueError, ZeroDivisionError):  # "max" is not a number: no quota
        return None
    return cores if cores > 0 else None  # -1: no quota
