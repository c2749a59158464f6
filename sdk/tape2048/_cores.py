"""How many cores this process may use: its affinity, cut by the CPU quota of its control groups."""

from __future__ import annotations

import os
from pathlib import Path

from tape2048._cgroups import own_groups

__all__ = ["available_cores"]


def available_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Cores that this process may keep busy, at least 1.

    A quota of 1.5 cores counts as 1: a second worker would spend half of each period waiting.

    Args:
        cgroup_root: where the control groups are mounted.
        own: the list of this process's control groups.
    """
    cores = len(os.sched_getaffinity(0))
    quotas = [
        quota for folder in own_groups("cpu", cgroup_root, own) if (quota := _quota(folder)) is not None
    ]
    return max(1, int(min([cores, *quotas])))


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
