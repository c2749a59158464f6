"""The machine's answers to the checks of ``tape2048 doctor``."""

from __future__ import annotations

import contextlib
import ctypes
import importlib.metadata
import os
import re
import resource
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.base.resources import available_cores, own_groups, ram_available

if TYPE_CHECKING:
    from collections.abc import Mapping

MEGABYTE = 10**6

_TIME_UNADJUSTED = 5  # TIME_ERROR of adjtimex: nothing synchronises the clock


class Machine:
    """File systems, limits, resources and packages of this machine.

    Args:
        env: the environment.
        proc: the directory ``/proc``.
    """

    def __init__(self, env: Mapping[str, str] | None = None, proc: Path = Path("/proc")) -> None:
        self.env = os.environ if env is None else env
        self.proc = proc

    def filesystem(self, path: Path) -> tuple[str, set[str]]:
        """Return the kind of file system at an existing path, and its mount options."""
        device = path.stat().st_dev
        wanted = f"{os.major(device)}:{os.minor(device)}"
        best = ("unknown", set[str](), "")
        for line in (self.proc / "self/mountinfo").read_text(errors="replace").splitlines():
            before, _, after = line.partition(" - ")
            fields, kind = before.split(), after.split()
            point = fields[4].encode().decode("unicode_escape")
            inside = str(path) == point or str(path).startswith(point.rstrip("/") + "/")
            # A btrfs subvolume has another number than its mount; then the longest mount point decides.
            if inside and (fields[2] == wanted or len(point) > len(best[2])):
                best = (kind[0], set(fields[5].split(",")), point)
        return best[0], best[1]

    def statvfs(self, path: Path) -> os.statvfs_result:
        """Return free space and inodes."""
        return os.statvfs(path)

    def limit(self, kind: int) -> int | None:
        """Return a soft limit, or None if there is none."""
        soft, _ = resource.getrlimit(kind)
        return None if soft == resource.RLIM_INFINITY else soft

    def memory_mb(self) -> float:
        """Return the megabytes that are free, on the machine and within the control groups."""
        return ram_available() / MEGABYTE

    def tasks_max(self) -> int | None:
        """Return the tightest limit of processes and threads that a control group sets."""
        limits = []
        for folder in own_groups("pids", Path("/sys/fs/cgroup"), self.proc / "self/cgroup"):
            with contextlib.suppress(OSError, ValueError):
                limits.append(int((folder / "pids.max").read_text()))
        return min(limits, default=None)

    def cores(self) -> int:
        """Return the cores of the affinity, cut by the CPU quota of the control groups."""
        return available_cores(own=self.proc / "self/cgroup")

    def cpu_features(self) -> set[str]:
        """Return the processor's feature flags."""
        text = (self.proc / "cpuinfo").read_text(errors="replace")
        found = re.search(r"^(?:flags|Features)\s*:(.*)$", text, re.MULTILINE)
        return set(found[1].split()) if found else set()

    def clock_is_synchronised(self) -> bool | None:
        """Return whether the kernel reports a synchronised clock; None if it does not report it."""

        class Timex(ctypes.Structure):
            _fields_ = (("modes", ctypes.c_uint), ("rest", ctypes.c_byte * 256))

        try:
            state = ctypes.CDLL(None, use_errno=True).adjtimex(ctypes.byref(Timex()))
        except AttributeError:
            return None
        return None if state < 0 else state != _TIME_UNADJUSTED

    def version(self, package: str) -> str | None:
        """Return the version of an installed package, or None."""
        try:
            return importlib.metadata.version(package)
        except importlib.metadata.PackageNotFoundError:
            return None
