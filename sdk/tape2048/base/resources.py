"""Cores and memory that this process may use, cut by the limits of its control groups (version 1 or 2)."""

from __future__ import annotations

import os
from pathlib import Path


def own_groups(controller: str, mounts: Path, own: Path) -> list[Path]:
    """The folders of this process's groups and of the groups that these stand in: each may have a limit.

    Args:
        controller: ``cpu`` or ``memory``.
        mounts: where the control groups are mounted, ``/sys/fs/cgroup``.
        own: the list of this process's control groups, ``/proc/self/cgroup``.
    """
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


def ram_available(root: Path = Path("/")) -> int:
    """Bytes of memory that this process can fill before something has to give way.

    The machine's ``MemAvailable``, or less where a control group (version 1 or 2; this process's or one
    that it stands in) leaves less: its limit without what it uses, file cache that can be dropped aside.

    Args:
        root: where ``/proc`` and ``/sys`` are looked for.
    """
    found = [_meminfo(root / "proc/meminfo")]
    for group in own_groups("memory", root / "sys/fs/cgroup", root / "proc/self/cgroup"):
        left = _left_in(group)
        if left is not None:
            found.append(left)
    return max(0, min(found))


def _meminfo(path: Path) -> int:
    for line in path.read_text().splitlines():
        if line.startswith("MemAvailable:"):
            return int(line.split()[1]) * 1024
    return os.sysconf("SC_AVPHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")  # a kernel before 3.14


def _left_in(group: Path) -> int | None:
    """Bytes that a group has left; None where it has no limit (or none that can be read)."""
    version_2 = (group / "memory.current").exists()
    limits, used, cache = (
        (("memory.max", "memory.high"), "memory.current", "inactive_file")
        if version_2
        else (("memory.limit_in_bytes",), "memory.usage_in_bytes", "total_inactive_file")
    )
    left = None
    for name in limits:
        try:
            limit = int((group / name).read_text())  # "max": no limit
            now = int((group / used).read_text()) - _statistic(group / "memory.stat", cache)
        except (OSError, ValueError):
            continue
        left = limit - now if left is None else min(left, limit - now)
    return left


def _statistic(path: Path, name: str) -> int:
    for line in path.read_text().splitlines():
        key, _, value = line.partition(" ")
        if key == name:
            return int(value)
    return 0
