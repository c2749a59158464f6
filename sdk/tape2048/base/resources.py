"""Cores and memory available to this process, within the limits of its control groups (version 1 or 2)."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path


def own_groups(controller: str, mounts: Path, own: Path) -> list[Path]:
    """List the folders of this process's control groups and of their parents. Each may have a limit."""
    try:
        lines = own.read_text().splitlines()
    except OSError:
        return []
    folders: list[Path] = []
    for line in lines:
        _, controllers, name = line.split(":", 2)
        if controllers and controller not in controllers.split(","):
            continue
        # Version 2 has no controllers in its line and is mounted at the root; version 1 has a mount for each.
        mount = mounts / controllers if controllers else mounts
        group = mount / name.lstrip("/")
        folders += [group, *(parent for parent in group.parents if parent.is_relative_to(mount))]
    return folders


def available_cores(cgroup_root: Path = Path("/sys/fs/cgroup"), own: Path = Path("/proc/self/cgroup")) -> int:
    """Count the usable cores, at least 1. A quota of 1.5 counts as 1: a second worker would wait."""
    quotas = (_quota(folder) for folder in own_groups("cpu", cgroup_root, own))
    own_cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    cores = [own_cores, *(quota for quota in quotas if quota is not None)]
    return max(1, int(min(cores)))


def _quota(folder: Path) -> float | None:
    """Return the quota of one group in cores; None without a (readable) one."""
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


def ram_available(root: Path = Path("/")) -> int:
    """Return the bytes of memory that this process can fill before anything is swapped or killed.

    That is the machine's ``MemAvailable``, or less if a control group of the process leaves less: its limit,
    minus its usage without droppable file cache. ``root`` contains ``proc`` and ``sys``.
    """
    groups = own_groups("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup")
    left = [_meminfo(root / "proc/meminfo"), *(bytes_ for group in groups for bytes_ in _left_in(group))]
    return max(0, min(left))


def _meminfo(path: Path) -> int:
    with contextlib.suppress(FileNotFoundError):
        for line in path.read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return int(line.split()[1]) * 1024
    return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE") // 2  # other systems have no MemAvailable


def _left_in(group: Path) -> list[int]:
    if (group / "memory.current").exists():  # version 2
        limits, used, cache = ["memory.max", "memory.high"], "memory.current", "inactive_file"
    else:
        limits, used, cache = ["memory.limit_in_bytes"], "memory.usage_in_bytes", "total_inactive_file"
    left = []
    for name in limits:
        try:
            limit = int((group / name).read_text())  # "max": no limit
            statistics = dict(
                line.partition(" ")[::2] for line in (group / "memory.stat").read_text().splitlines()
            )
            left.append(limit - int((group / used).read_text()) + int(statistics.get(cache, 0)))
        except (OSError, ValueError):
            continue
    return left
