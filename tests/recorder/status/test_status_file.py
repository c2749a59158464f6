"""The status file: whole at each moment, on a full disk too, and judged by what became of the writer."""

import contextlib
import os
import platform
import subprocess
import sys
import threading
import time
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sdk.builders import raising

from tape2048.errors import FieldError, StorageError
from tape2048_recorder.status import status_report as report
from tape2048_recorder.status.status_report import (
    Process,
    StatusFile,
    instances,
    judge,
    read_snapshot,
    snapshots,
    status_path,
)

from ..checks import descriptors
from ..disks import tmpfs
from ..statuses import snapshot_now, status_now


@pytest.fixture
def path(tmp_path: Path) -> Path:
    path = status_path(tmp_path, "default")
    path.parent.mkdir()
    return path


def gone() -> Process:
    """A process that was there."""
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    child.communicate()
    assert process is not None
    return process


def fill(fd: int) -> None:
    """Take what room is left on a file system."""
    with contextlib.suppress(OSError):
        while True:
            os.write(fd, bytes(4096))


def test_what_is_written_is_read(path: Path, tmp_path: Path) -> None:
    file = StatusFile(path)
    for steps in range(5):
        snapshot = snapshot_now(status=status_now(steps=steps, by_highest_tile={2048: 3}))
        file.write(snapshot)
        assert read_snapshot(tmp_path, "default") == snapshot
    file.close()
    assert [entry.name for entry in path.parent.iterdir()] == [path.name]


def test_a_reader_never_sees_a_half(path: Path, tmp_path: Path) -> None:
    file = StatusFile(path)
    file.write(snapshot_now())
    done = threading.Event()

    def write() -> None:
        for steps in range(300):
            file.write(snapshot_now(status=status_now(steps=steps, why="x" * (steps * 37 % 6000))))
        done.set()

    writer = threading.Thread(target=write)
    writer.start()
    seen = set()
    while not done.is_set():
        snapshot = read_snapshot(tmp_path, "default")
        if snapshot.status.why is not None:
            assert len(snapshot.status.why) == snapshot.status.steps * 37 % 6000
        seen.add(snapshot.status.steps)
    writer.join()
    assert read_snapshot(tmp_path, "default").status.steps == 299


@pytest.mark.root
def test_a_half_is_read_again(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    snapshot = snapshot_now()
    StatusFile(path).write(snapshot)
    whole = path.read_bytes()
    path.write_bytes(whole[:100])
    monkeypatch.setattr(time, "sleep", lambda _: path.write_bytes(whole))
    assert read_snapshot(tmp_path, "default") == snapshot


def test_a_file_system_without_exchange(path: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(report, "rename_exchange", raising(StorageError("cannot exchange")))
    file = StatusFile(path)
    for steps in range(3):
        file.write(snapshot_now(status=status_now(steps=steps)))
        assert read_snapshot(tmp_path, "default").status.steps == steps


def test_a_full_disk_is_no_reason_to_be_silent(tmp_path: Path) -> None:
    with tmpfs(tmp_path / "disk", 1):
        path = status_path(tmp_path / "disk", "default")
        path.parent.mkdir()
        file = StatusFile(path)
        for steps in range(2):
            file.write(snapshot_now(status=status_now(steps=steps)))
        with (tmp_path / "disk" / "ballast").open("wb", buffering=0) as ballast:
            fill(ballast.fileno())
        for steps in range(2, 6):
            file.write(snapshot_now(status=status_now(steps=steps, why="the disk is full")))
            assert read_snapshot(tmp_path / "disk", "default").status.steps == steps


def test_every_instance_is_found(path: Path, tmp_path: Path) -> None:
    for name in ("b", "a"):
        StatusFile(status_path(tmp_path, name)).write(snapshot_now(instance=name))
    for other in ("a.lock", "a.json", "c.lock", "readers.lock"):  # what else stands there
        (path.parent / other).touch()
    assert instances(tmp_path) == ["a", "b"]
    assert [snapshot.instance for snapshot in snapshots(tmp_path)] == ["a", "b"]
    assert [snapshot.instance for snapshot in snapshots(tmp_path, "b")] == ["b"]


@pytest.mark.parametrize("data", [b"", b"{}", b'{"pid": 1}', b"\xff" * 100, b'{"x":' + b"[" * 50_000])
def test_a_file_of_somebody_else_is_refused(path: Path, tmp_path: Path, data: bytes) -> None:
    path.write_bytes(data)
    with pytest.raises(FieldError, match="not the status of a recorder"):
        read_snapshot(tmp_path, "default")


@pytest.mark.parametrize(
    ("fields", "age_s", "state", "text"),
    [
        ({"state": "starting"}, 0.0, "starting", "starting"),
        ({"state": "recording"}, 0.0, "recording", "recording"),
        ({"state": "paused", "why": "full"}, 0.0, "paused", "paused (full)"),
        ({"state": "draining", "ending": True}, 0.0, "draining", "draining"),
        ({"state": "publishing", "ending": True}, 0.0, "draining", "draining"),
        ({"state": "paused", "ending": True}, 0.0, "draining", "draining"),
        ({}, 42.0, "stale", "stale (last written 42 s ago; pid PID is running but does not write it)"),
        ({}, -3600.0, "stale", "stale (written 3,600 s in the future; pid PID is not its recorder)"),
    ],
)
def test_a_status_is_judged(fields: dict[str, Any], age_s: float, state: str, text: str) -> None:
    """Monotonic clocks start at zero with the machine, so a status can come from the future."""
    verdict = judge(snapshot_now(age_s=age_s, status=status_now(**fields)))
    assert (verdict.state, verdict.running) == (state, state in {"starting", "recording", "paused"})
    assert verdict.text == text.replace("PID", str(os.getpid()))


@pytest.mark.parametrize(
    ("fields", "age_s", "text"),
    [
        ({}, 1.0, "stale (last written 1 s ago; pid PID has ended)"),
        ({}, -3600.0, "stale (last written 0 s ago; pid PID has ended)"),
        ({"state": "stopped", "why": "SIGTERM"}, 100.0, "stopped 100 s ago (SIGTERM)"),
        ({"state": "stopped"}, 10_000.0, "stopped 3 h ago"),
    ],
)
def test_a_status_of_a_dead_process_is_judged(fields: dict[str, Any], age_s: float, text: str) -> None:
    process = gone()
    verdict = judge(snapshot_now(process=process, age_s=age_s, status=status_now(**fields)))
    assert not verdict.running
    assert verdict.text == text.replace("PID", str(process.pid))


UNSEEN = "stale (last written 70 s ago; pid PID on there cannot be seen from here, and its clock may differ)"


@pytest.mark.parametrize(
    ("state", "age_s", "text"),
    [
        ("recording", 1.0, "recording on there; it cannot be signalled from here"),
        ("draining", 1.0, "draining on there; it cannot be signalled from here"),
        (
            "recording",
            70.0,
            UNSEEN,
        ),
        (
            "recording",
            -70.0,
            UNSEEN,
        ),
        ("stopped", 70.0, "stopped 70 s ago"),
    ],
)
def test_a_recorder_elsewhere_is_judged_by_the_time_alone(state: str, age_s: float, text: str) -> None:
    """This process has its pid, in another container or on another host."""
    process = msgspec.structs.replace(Process.of(os.getpid()), space="boot pid:[1]")
    status = status_now(state=state, ending=state == "draining")
    verdict = judge(snapshot_now(process=process, host="there", age_s=age_s, status=status))
    assert verdict.running == (text.startswith("recording"))
    assert verdict.text == text.replace("PID", str(os.getpid()))


def test_a_recorder_from_before_the_boot_is_gone() -> None:
    process = msgspec.structs.replace(Process.of(os.getpid()), space="another-boot pid:[1]")
    assert "has ended" in judge(snapshot_now(process=process, host=platform.node(), age_s=60.0)).text


def test_a_reused_pid_is_not_the_recorder() -> None:
    mine = Process.of(os.getpid())
    assert mine is not None
    another = Process(mine.pid, mine.start_ticks - 1)
    assert not another.is_there
    assert judge(snapshot_now(process=another)).state == "stale"


def test_one_that_nobody_has_buried_is_gone_too() -> None:
    child = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    process = Process.of(child.pid)
    assert process.is_there
    child.kill()
    os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)  # a zombie from here on
    assert not process.is_there
    child.communicate()
    assert not process.is_there


def test_a_clock_jump_changes_nothing() -> None:
    snapshot = msgspec.structs.replace(snapshot_now(), written_at=time.time() + 3600)
    assert judge(snapshot).state == "recording"
    assert judge(msgspec.structs.replace(snapshot, process=gone())).age_s == 0
    before_it_was_set_forward = msgspec.structs.replace(snapshot_now(), written_at=time.time() - 3600)
    assert judge(before_it_was_set_forward).state == "recording"


@pytest.mark.parametrize("kind", ["link", "pipe"])
def test_what_is_no_file_is_neither_read_nor_written(path: Path, tmp_path: Path, kind: str) -> None:
    precious = tmp_path / "precious"
    StatusFile(path).write(snapshot_now())
    path.rename(precious)
    before = precious.read_bytes()
    draft = path.with_name(f".{path.name}.next")
    for name in (path, draft):
        if kind == "link":
            name.symlink_to(precious)
        else:
            os.mkfifo(name)
    with pytest.raises(StorageError, match="found a link, a pipe"):
        read_snapshot(tmp_path, "default")
    opened = descriptors()
    with pytest.raises(StorageError, match="found a link, a pipe"):
        StatusFile(path).write(snapshot_now())
    assert descriptors() == opened
    assert precious.read_bytes() == before
