"""How many cores a process may use."""

import os
from pathlib import Path

import pytest

from tape2048.base.resources import available_cores


@pytest.mark.parametrize(
    ("quota", "cores"),
    [("max 100000", 8), ("150000 100000", 1), ("250000 100000", 2), ("10000 100000", 1), ("junk", 8),
     ("1 0", 8)],
)  # fmt: skip
def test_cores_follow_the_quota_of_version_2(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    files = {"fs/a/cpu.max": quota, "fs/a/b/cpu.max": "max 100000", "cgroup": "0::/a/b\n"}
    assert _cores(tmp_path, monkeypatch, files) == cores


@pytest.mark.parametrize(("quota", "cores"), [("-1", 8), ("200000", 2), ("900000", 8)])
def test_cores_follow_the_quota_of_version_1(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, quota: str, cores: int
) -> None:
    box = "fs/cpu,cpuacct/box"
    files = {f"{box}/cpu.cfs_quota_us": f"{quota}\n", f"{box}/cpu.cfs_period_us": "100000\n",
             "cgroup": "5:memory:/box\n4:cpu,cpuacct:/box\n0::/\n"}  # fmt: skip
    assert _cores(tmp_path, monkeypatch, files) == cores


def _cores(root: Path, monkeypatch: pytest.MonkeyPatch, files: dict[str, str]) -> int:
    """The cores of a process with eight in its affinity."""
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    for name, text in files.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return available_cores(root / "fs", root / "cgroup")


def test_cores_without_groups_are_the_affinity(tmp_path: Path) -> None:
    assert available_cores(tmp_path, tmp_path / "missing") == len(os.sched_getaffinity(0))
