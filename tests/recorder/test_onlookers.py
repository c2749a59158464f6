"""A recorder whose log nobody reads any more, or whose terminal is gone: it ends as if it were read."""

import contextlib
import errno
import fcntl
import os
import pty
import select
import signal
import subprocess
import sys
import termios
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from tape2048.errors import StorageError
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import Service
from tape2048_recorder.status.signals import Signals
from tape2048_recorder.status.status_report import Level, Status, judge, read_snapshot, status_path

from .checks import assert_all_published, run_table
from .processes import PATIENCE_S, environment, wait_until, workers_of
from .statuses import status_now

CALM = ["--player", "expectimax", "--workers", "1", "--sample-rate", "20"]


class Full:
    """A view whose disk is full."""

    def __init__(self) -> None:
        self.full = True
        self.shown: list[str] = []

    def event(self, level: Level, message: str) -> None:
        if self.full:
            raise OSError(errno.ENOSPC, "No space left on device")
        self.shown.append(message)

    def status(self, make_status: Callable[[], Status]) -> None:
        self.event("info", make_status().state)


def test_a_failing_view_is_tried_again(tmp_path: Path) -> None:
    view = Full()
    # Its status file cannot be written: the service has something to say itself.
    nowhere: Any = SimpleNamespace(status_path=tmp_path / "gone" / "x.status.json", lost=lambda: None)
    with Service(view, RecorderConfig(), nowhere, {}) as service:
        service.event("info", "one")
        service.status(status_now)
        view.full = False
        service.event("info", "two")
        service.status(lambda: status_now(state="paused"))
    assert view.shown == ["two", "paused"]


def games_recorded(root: Path) -> int:
    with contextlib.suppress(Exception):  # it has not begun
        return read_snapshot(root, "default").status.games
    return 0


def assert_ended_well(root: Path, why: str) -> None:
    assert len(run_table(root)) > 0
    assert_all_published(root)
    last = read_snapshot(root, "default")
    assert judge(last).text.startswith("stopped ")
    assert last.status.why == f"{why} was received"


@contextlib.contextmanager
def command(root: Path, **options: object) -> Iterator[subprocess.Popen[bytes]]:
    """`tape2048 record` that has recorded something."""
    process = subprocess.Popen(  # type: ignore[call-overload]
        [sys.executable, "-m", "tape2048_tools.cli", "record", *CALM, "--out", str(root)],
        env=environment(
            TERM="xterm-256color", TAPE2048_MIN_FREE_MB="0", TAPE2048_LOG_INTERVAL_S="0.2"
        ), stdin=subprocess.DEVNULL, **options,
    )  # fmt: skip
    try:
        wait_until(lambda: process.poll() is not None or games_recorded(root) > 0)
        assert process.poll() is None
        yield process
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_nobody_reads_the_log_nor_the_summary(root: Path) -> None:
    """`record 2>&1 | tee log`, and Ctrl-C, which ends tee first."""
    log, write = os.pipe()
    with command(root, stdout=write, stderr=write) as process:
        os.close(write)
        os.close(log)
        time.sleep(0.5)  # so that a line of the log has failed
        process.send_signal(signal.SIGINT)
        assert process.wait(PATIENCE_S) == 0
        assert not workers_of(process.pid)
    assert_ended_well(root, "SIGINT")


@pytest.mark.slow
@pytest.mark.parametrize("ignored", [False, True], ids=["hears SIGHUP", "ignores SIGHUP"])
def test_its_terminal_is_closed(root: Path, ignored: bool) -> None:
    """An ssh connection that breaks: SIGHUP, and every write fails."""
    primary, secondary = pty.openpty()

    def begin() -> None:
        fcntl.ioctl(secondary, termios.TIOCSCTTY, 0)
        signal.signal(signal.SIGHUP, signal.SIG_IGN if ignored else signal.SIG_DFL)

    streams = {"stdout": secondary, "stderr": secondary}
    with command(root, **streams, start_new_session=True, preexec_fn=begin) as process:
        os.close(secondary)
        while select.select([primary], [], [], 0)[0]:
            os.read(primary, 1 << 16)
        os.close(primary)
        if ignored:
            games = games_recorded(root)
            wait_until(lambda: process.poll() is not None or games_recorded(root) > games)
            process.terminate()
        assert process.wait(PATIENCE_S) == 0
        assert not workers_of(process.pid)
    assert_ended_well(root, "SIGTERM" if ignored else "SIGHUP")


@pytest.fixture
def nohup() -> Iterator[None]:
    """What this process starts, and it itself, ignores SIGHUP."""
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    yield
    signal.signal(signal.SIGHUP, before)


@pytest.mark.usefixtures("nohup")
@pytest.mark.parametrize("reloads", [False, True])
def test_an_ignored_sighup_still_reloads(reloads: bool) -> None:
    signals = Signals(reloads=reloads)
    os.kill(os.getpid(), signal.SIGHUP)
    os.kill(os.getpid(), signal.SIGTERM)
    assert signals.take() == (["SIGHUP", "SIGTERM"] if reloads else ["SIGTERM"])
    signals.close()
    assert signal.getsignal(signal.SIGHUP) == signal.SIG_IGN


def test_a_lost_lock_leaves_the_status_file(tmp_path: Path) -> None:
    lost: list[StorageError] = []
    path = status_path(tmp_path, "default")
    path.parent.mkdir()
    view = SimpleNamespace(event=lambda *_: None, status=lambda *_: None)
    instance: Any = SimpleNamespace(status_path=path, lost=lambda: lost[0] if lost else None)
    with Service(cast("Any", view), RecorderConfig(), instance, {}) as service:
        written = read_snapshot(tmp_path, "default")
        lost.append(StorageError("the lock is gone"))
        draft = path.with_name(f".{path.name}.next")
        draft.write_text("another's")
        service.status(lambda: status_now(state="draining"))
    assert read_snapshot(tmp_path, "default") == written
    assert draft.read_text() == "another's"
