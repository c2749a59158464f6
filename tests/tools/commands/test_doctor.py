"""``tape2048 doctor``: each answer that a machine can give."""

import os
import resource
from pathlib import Path
from typing import Any, NamedTuple
from unittest.mock import Mock

import pytest
from tests.sdk.builders import raising

from tape2048.jit import compiler
from tape2048_tools.machine import doctor
from tape2048_tools.machine.doctor import Machine

from ..conftest import Cli


class Space(NamedTuple):
    """What matters of ``os.statvfs``."""

    f_bavail: int = 10**9
    f_frsize: int = 4096
    f_files: int = 10**6
    f_favail: int = 10**5
    f_blocks: int = 10**9


class Told(Machine):
    """A machine that answers what a test says: each answer replaces the method of its name."""

    def __init__(self, **answers: Any) -> None:
        super().__init__(answers.pop("env", {}))
        versions = {"torch": None, **answers.pop("versions", {})}
        limits = answers.pop("limit", {})
        self.version = lambda package: versions.get(package, Machine.version(self, package))  # type: ignore[method-assign]
        self.limit = limits.get  # type: ignore[method-assign]
        well = {
            "filesystem": ("ext4", {"rw"}), "statvfs": Space(), "memory_mb": 64_000.0, "tasks_max": None,
            "cores": 8, "cpu_features": {"avx2", "bmi2", "popcnt"}, "clock_is_synchronised": True,
            "platform": ("Linux", "x86_64", (3, 11)),
        }  # fmt: skip
        for name, answer in {**well, **answers}.items():
            raises = isinstance(answer, Exception)
            setattr(self, name, Mock(side_effect=answer) if raises else Mock(return_value=answer))


CONFIG = """
rotate_steps = 1_000_000
workers = 2
min_free_mb = 256
drain_timeout_s = 60
"""


def found(tmp_path: Path, config: str = CONFIG, **answers: Any) -> dict[str, doctor.MachineCheck]:
    """The checks by name, of a machine that gives these answers."""
    path = tmp_path / "recorder.toml"
    path.write_text(config)
    checks = doctor.examine(path, Told(**answers))
    by_name = {check.name: check for check in checks}
    assert len(by_name) == len(checks)
    assert all(check.hint for check in checks if check.status == "fail")
    return by_name


def test_a_sound_machine_is_all_ok(tmp_path: Path) -> None:
    assert {check.status for check in found(tmp_path).values()} == {"ok"}


MB = 10**6 // 4096
ANSWERS: dict[str, tuple[dict[str, Any], str, str, str]] = {
    "read-only": ({"filesystem": ("ext4", {"ro"})}, "file system", "fail", "read-only"),
    "network": ({"filesystem": ("nfs4", {"rw"})}, "file system", "warn", "network"),
    "overlay": ({"filesystem": ("overlay", {"rw"})}, "file system", "warn", "container"),
    "tmpfs": ({"filesystem": ("tmpfs", {"rw"})}, "file system", "warn", "reboot"),
    "full": ({"statvfs": Space(f_bavail=255 * MB)}, "free space", "fail", "255 MB"),
    "nearly full": ({"statvfs": Space(f_bavail=300 * MB)}, "free space", "warn", "300 MB"),
    "no inodes": ({"statvfs": Space(f_favail=3)}, "inodes", "fail", "3 left"),
    "few inodes": ({"statvfs": Space(f_favail=300)}, "inodes", "warn", "300 left"),
    "few files": ({"limit": {resource.RLIMIT_NOFILE: 20}}, "open files", "fail", "20"),
    "small files": ({"limit": {resource.RLIMIT_FSIZE: 10**6}}, "file size", "fail", "1,000,000 bytes"),
    "few tasks": ({"tasks_max": 5}, "tasks", "fail", "2 workers need 8"),
    "little memory": ({"memory_mb": 100.0}, "memory", "fail", "100 MB"),
    "less memory": ({"memory_mb": 900.0}, "memory", "warn", "900 MB"),
    "short stop": ({"env": {"TAPE2048_STOP_TIMEOUT_S": "30"}}, "stop timeout", "fail", "30 s"),
    "odd stop": ({"env": {"TAPE2048_STOP_TIMEOUT_S": "soon"}}, "stop timeout", "warn", "'soon'"),
    "no clock": ({"clock_is_synchronised": False}, "clock", "warn", "not synchronised"),
    "few cores": ({"cores": 1}, "cores", "warn", "1 for 2 workers"),
    "aarch64": ({"platform": ("Linux", "aarch64", (3, 11))}, "platform", "warn", "emulated"),
    "riscv64": ({"platform": ("Linux", "riscv64", (3, 11))}, "platform", "warn", "riscv64 (tried: nothing)"),
    "macOS": ({"platform": ("Darwin", "arm64", (3, 13))}, "platform", "fail", "Darwin arm64"),
    "new Python": ({"platform": ("Linux", "x86_64", (3, 99))}, "platform", "warn", "3.99 (tried: nothing)"),
    "old processor": ({"cpu_features": {"popcnt"}}, "processor", "warn", "without avx2, bmi2"),
    "no numba": ({"versions": {"numba": None}}, "numba and NumPy", "fail", "numba missing"),
    "old numba": ({"versions": {"numba": "0.57.1"}}, "numba and NumPy", "fail", "0.57.1"),
    "silent": ({"statvfs": OSError(5, "Input/output error")}, "free space", "warn", "Input/output error"),
}


def test_a_compiler_that_is_switched_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("numba.config.DISABLE_JIT", 1)
    check = found(tmp_path)["numba and NumPy"]
    assert (check.status, check.hint) == ("fail", "unset NUMBA_DISABLE_JIT")


def test_a_worker_for_each_core_needs_files(tmp_path: Path) -> None:
    config, limit = (
        CONFIG.replace("workers = 2", "workers = 0"),
        {resource.RLIMIT_NOFILE: doctor.FILES_OF_DAEMON},
    )
    assert found(tmp_path, config, limit=limit)["open files"].status == "fail"


@pytest.mark.parametrize("name", ANSWERS)
def test_what_is_wrong_is_said(tmp_path: Path, name: str) -> None:
    answers, check, status, said = ANSWERS[name]
    checks = found(tmp_path, **answers)
    assert checks[check].status == status
    assert said in checks[check].found
    same_place = {check, *{"tmpfs": ("compile cache",), "silent": ("compile cache", "inodes")}.get(name, ())}
    assert {other.status for other in checks.values() if other.name not in same_place} == {"ok"}


@pytest.mark.parametrize(
    ("setting", "row_bytes", "file_bytes"),
    [("record_action = false", 28, 28), ("record_action = true", 29, 29), ('storage = "tape"', 1.5, 1)],
)
def test_a_session_has_the_bytes_of_its_rows(
    tmp_path: Path, setting: str, row_bytes: float, file_bytes: int
) -> None:
    """The anchors of a tape are in another file."""
    config = f"{CONFIG}{setting}\n"
    largest = file_bytes * 10**6
    small = found(tmp_path, config, limit={resource.RLIMIT_FSIZE: largest - 1})["file size"]
    assert small.found == f"{largest - 1:,} bytes. A session has {largest:,}"
    assert "file size" not in found(tmp_path, config, limit={resource.RLIMIT_FSIZE: largest})
    wanted = 256 + int(2 * row_bytes)
    short = found(tmp_path, config, statvfs=Space(f_bavail=10**6 * wanted - 1, f_frsize=1))["free space"]
    assert (short.status, f" need {wanted} MB" in short.found) == ("warn", True)
    enough = found(tmp_path, config, statvfs=Space(f_bavail=10**6 * wanted, f_frsize=1))["free space"]
    assert enough.status == "ok"


@pytest.mark.parametrize("name", ["max_disk_mb", "spool_max_mb"])
def test_a_limit_that_the_disk_cannot_hold(tmp_path: Path, name: str) -> None:
    disk = Space(f_bavail=10**9, f_frsize=1, f_blocks=10**9)
    check = found(tmp_path, f"{CONFIG}{name} = 745\n", statvfs=disk)["free space"]
    assert (check.status, f"{name} = 745 and min_free_mb = 256 exceed its 1,000 MB") == ("warn", check.found)
    assert found(tmp_path, f"{CONFIG}{name} = 744\n", statvfs=disk)["free space"].status == "ok"


@pytest.mark.parametrize(
    ("settings", "shared_mb", "buffers_mb", "beside"),
    [
        ("block_rows = 10_000_000", 810, 90, ""),  # boards, and not rows of 28 bytes
        (
            'player = "python:x.py:f"\nlanes = 500_000\nblock_rows = 10_000_000',
            0,
            290 + 4000,
            " besides the model",
        ),
    ],
)
def test_memory_is_counted_as_workers_hold_it(
    tmp_path: Path, settings: str, shared_mb: int, buffers_mb: int, beside: str
) -> None:
    said = found(tmp_path, f"workers = 3\n{settings}\n", memory_mb=99_000.0)["memory"]
    wanted = 250 + shared_mb + 3 * (250 + buffers_mb)
    assert said.found == f"99,000 MB free. The recorder uses up to {wanted:,}{beside}"


def test_cores_are_those_of_the_quota(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Path] = []
    monkeypatch.setattr(
        "tape2048_tools.machine.doctor.available_cores",
        lambda *, own: asked.append(own) or 1,  # type: ignore[func-returns-value]
    )
    assert Machine(proc=tmp_path).cores() == 1
    assert asked == [tmp_path / "self/cgroup"]


def test_a_long_stop_is_enough(tmp_path: Path) -> None:
    assert found(tmp_path, env={"TAPE2048_STOP_TIMEOUT_S": "90"})["stop timeout"].status == "ok"
    long = found(tmp_path, "drain_timeout_s = 600")["stop timeout"]
    assert long.status == "warn"
    assert "TimeoutStopSec=615" in str(long.hint)


def test_a_wrong_configuration_is_the_first_line(tmp_path: Path) -> None:
    checks = found(tmp_path, "workerz = 3")
    assert next(iter(checks)) == "configuration"
    assert checks["configuration"].status == "fail"
    assert "'workers'" in checks["configuration"].found
    assert checks["file system"].status == "ok"


def test_a_directory_that_cannot_be_used(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("mine")
    checks = found(tmp_path, f'out_dir = "{tmp_path}/file/below"')
    assert (checks["out_dir"].status, "is a file" in checks["out_dir"].found) == ("fail", True)
    monkeypatch.setattr("tempfile.mkdtemp", raising(PermissionError(13, "Permission denied")))
    checks = found(tmp_path, f'out_dir = "{tmp_path}"')
    assert (checks["out_dir"].status, "Permission denied" in checks["out_dir"].found) == ("fail", True)


def test_a_directory_of_somebody_else(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "geteuid", lambda: tmp_path.stat().st_uid + 1)
    check = found(tmp_path, f'out_dir = "{tmp_path}"')["out_dir"]
    assert (check.status, "belongs to" in check.found) == ("warn", True)


def test_it_leaves_nothing_behind(tmp_path: Path) -> None:
    found(tmp_path, f'out_dir = "{tmp_path}"')
    assert [path.name for path in tmp_path.iterdir()] == ["recorder.toml"]


def test_a_cache_that_cannot_be_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").touch()
    where = str(tmp_path / "file" / "cache")
    monkeypatch.setenv("NUMBA_CACHE_DIR", where)
    check = found(tmp_path, env={"NUMBA_CACHE_DIR": where})["compile cache"]
    assert check.status == "warn"
    assert f"{tmp_path}/file: Not a directory; " in check.found
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path))
    tmp_path.chmod(0o777)
    assert "other users can write to it" in found(tmp_path)["compile cache"].found


def test_a_cache_that_is_full_or_damaged(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    assert found(tmp_path)["compile cache"].found.endswith(", 0 kernels")
    full = found(tmp_path, statvfs=Space(f_bavail=63 * MB))["compile cache"]
    assert (full.status, ": 63 MB are free" in full.found) == ("warn", True)
    (compiler.cache_dir.__wrapped__() / "play-1.kernel").touch()
    check = found(tmp_path)["compile cache"]
    assert (check.status, "1 of 1 kernel damaged, play-1.kernel first" in check.found) == ("warn", True)


def test_this_machine_answers(tmp_path: Path) -> None:
    """Whatever it answers, each question can be asked of the real one."""
    machine = Machine()
    kind, options = machine.filesystem(tmp_path.resolve())
    assert kind != "unknown"
    assert options & {"rw", "ro"}
    assert machine.filesystem(Path("/proc").resolve())[0] == "proc"
    assert machine.memory_mb() > 0
    assert machine.tasks_max() is None or machine.tasks_max() > 0  # type: ignore[operator]
    assert machine.cpu_features()
    assert machine.clock_is_synchronised() in (True, False, None)
    assert machine.limit(resource.RLIMIT_NOFILE) is None or machine.limit(resource.RLIMIT_NOFILE) > 0  # type: ignore[operator]
    assert machine.version("numpy")
    assert machine.version("no-such-package") is None


def test_the_command(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    config = tmp_path / "recorder.toml"
    config.write_text(CONFIG)
    monkeypatch.setattr("tape2048_tools.machine.doctor.Machine", Told)
    done = cli("doctor --config", config)
    assert all(line.startswith(("ok ", " ")) for line in done.out.splitlines())
    monkeypatch.setattr(
        "tape2048_tools.machine.doctor.Machine",
        lambda: Told(filesystem=("ext4", {"ro"}), env=dict(os.environ)),
    )
    done = cli("doctor --config", config, expect=1)
    assert "remount,rw" in done.out
    document = cli("doctor --config", config, "--json", expect=1)
    assert not document.json["ok"]
    assert {check["name"] for check in document.json["checks"]} >= {
        "configuration", "out_dir", "memory", "torch",
    }  # fmt: skip
