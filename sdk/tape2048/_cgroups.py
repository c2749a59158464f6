"""Which control groups this process stands in, version 1 or 2."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["own_groups"]


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
