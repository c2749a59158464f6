"""How many cores a process may use."""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import pytest

from tape2048.base.resources import available_cores

if TYPE_CHECKING:
    from pathlib import Path


def write(path: Path, text: str) -> Path:
    path.write_text(text)
    return path


@pytest.mark.parametrize(
    ("cpu_max", "cores"),
    [
        ("max 100000", 8),
        ("150000 100000", 1),
        ("250000 100000", 2),
        ("10000 100000", 1),
        ("junk", 8),
        ("1 0", 8),
    ],
)
def test_cores_follow_the_quota_of_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, cpu_max: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    (tmp_path / "fs/a/b").mkdir(parents=True)
    write(tmp_path / "fs/a/cpu.max", cpu_max)
    write(tmp_path / "fs/a/b/cpu.max", "max 100000")
    own = write(tmp_path / "cgroup", "0::/a/b\n")
    assert available_cores(tmp_path / "fs", own) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 4), ("200000", 2), ("900000", 4)])
def test_cores_follow_the_quota_of_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(4)))
    group = tmp_path / "fs/cpu,cpuacct/box"
    group.mkdir(parents=True)
    write(group / "cpu.cfs_quota_us", f"{quota}\n")
    write(group / "cpu.cfs_period_us", "100000\n")
    own = write(tmp_path / "cgroup", "5:memory:/box\n4:cpu,cpuacct:/box\n0::/\n")
    assert available_cores(tmp_path / "fs", own) == cores


def test_cores_without_groups_are_the_affinity(tmp_path: Path) -> None:
    assert available_cores(tmp_path, tmp_path / "missing") == len(os.sched_getaffinity(0))
