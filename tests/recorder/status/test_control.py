"""What is made of a recorder's answers to a request; this process stands for the recorder."""

import os
import select
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace

import msgspec
import pytest

from tape2048.errors import NotRunningError, RecorderError, StorageError
from tape2048_recorder.status.control_socket import Running
from tape2048_recorder.status.signals import ROTATE
from tape2048_recorder.status.status_report import Process, Rotation, StatusFile, status_path

from ..statuses import snapshot_now, status_now

#: Longer than any of these tests.
PATIENCE_S = 600.0


class Told(Running):
    """A recorder that shows one answer after the other, and then has ended where it says so."""

    def __init__(self, root: Path, before: Rotation) -> None:
        self._file = StatusFile(status_path(root, "default"))
        self.show(before)
        super().__init__(root, "default")
        self.answers: list[Rotation] = []
        self.ends = False
        self.signals: list[int] = []

    def show(self, rotation: Rotation) -> None:
        self._file.write(snapshot_now(status=status_now(rotation=rotation)))

    def _signal(self, number: int) -> None:
        self.signals.append(number)

    def wait(self, patience_s: float | None) -> bool:
        self.show(self.answers.pop(0))
        return self.ends and not self.answers


@pytest.fixture
def told(root: Path) -> Iterator[Told]:
    """A recorder of whom two others have asked a rotation, of which one is done."""
    (root / ".recorder").mkdir()
    with Told(root, Rotation(2, 1, "first")) as told:
        yield told


def test_a_rotation_is_over_when_its_own_request_is(told: Told) -> None:
    told.answers = [Rotation(2, 1, "first"), Rotation(3, 2, "second"), Rotation(3, 3, "third")]
    assert told.rotate(PATIENCE_S) == "third"
    assert told.signals == [ROTATE]


def test_a_recorder_that_ends_during_a_rotation(told: Told) -> None:
    told.ends = True
    told.answers = [Rotation(3, 2, "second"), Rotation(3, 3, "third")]
    assert told.rotate(PATIENCE_S) == "third"
    told.answers = [Rotation(4, 3, "third")]
    with pytest.raises(RecorderError, match="ended before it published the session"):
        told.rotate(PATIENCE_S)


@pytest.fixture
def victim() -> Iterator[subprocess.Popen[bytes]]:
    """A process that any signal of ours would kill."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as process:
        yield process
        assert process.poll() is None, "it was signalled"
        process.kill()


@pytest.mark.root
@pytest.mark.parametrize("theirs", ["the file", "the directory too"])
def test_only_the_writer_is_signalled(root: Path, victim: subprocess.Popen[bytes], theirs: str) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root may signal others")
    path = status_path(root, "default")
    path.parent.mkdir()
    StatusFile(path).write(snapshot_now(process=Process.of(victim.pid)))
    os.chown(path, 12345, 12345)
    if theirs == "the file":
        with pytest.raises(StorageError, match="found a file of user 12345"):
            Running(root, "default")
        return
    os.chown(path.parent, 12345, 12345)
    with pytest.raises(
        RecorderError, match=f"uid 12345 names a process of user root .pid {victim.pid}"
    ) as caught:
        Running(root, "default")
    assert caught.value.path == str(path)
    assert caught.value.hint


def test_a_recorder_elsewhere_is_not_signalled(root: Path, victim: subprocess.Popen[bytes]) -> None:
    path = status_path(root, "default")
    path.parent.mkdir()
    elsewhere = msgspec.structs.replace(Process.of(victim.pid), space="boot pid:[1]")
    for instance in (None, "default"):
        StatusFile(path).write(snapshot_now(process=elsewhere, host="there"))
        with pytest.raises(
            RecorderError, match="recording on there; it cannot be signalled from here"
        ) as caught:
            Running(root, instance)
        assert str(caught.value.hint).startswith("Run the command on there")
        StatusFile(path).write(snapshot_now(process=elsewhere, host="there", age_s=60.0))
        with pytest.raises(NotRunningError, match="cannot be seen from here"):
            Running(root, instance)


def test_a_file_from_the_future_names_no_recorder(root: Path, victim: subprocess.Popen[bytes]) -> None:
    path = status_path(root, "default")
    path.parent.mkdir()
    StatusFile(path).write(snapshot_now(process=Process.of(victim.pid), age_s=-3600.0))
    with pytest.raises(NotRunningError, match="in the future"):
        Running(root, "default")


def test_a_patience_that_poll_cannot_have_is_for_ever(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[float | None] = []
    (root / ".recorder").mkdir()
    StatusFile(status_path(root, "default")).write(snapshot_now())
    monkeypatch.setattr(select, "poll", lambda: SimpleNamespace(register=lambda *_: None, poll=asked.append))
    with Running(root, "default") as running:
        for patience_s in (0.5, None, 1e7, 1e300, float("inf"), float("nan")):
            running.wait(patience_s)
    assert asked == [500.0, None, None, None, None, None]
