"""A real recorder as a service manager, an operator and Prometheus see it, from its start to its end."""

import os
import pwd
import signal
import socket
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tape2048.errors import NotRunningError, RecorderError
from tape2048.session.session import Session
from tape2048_recorder.status.control_socket import Running
from tape2048_recorder.status.status_report import judge, read_snapshot
from tape2048_recorder.workers.__main__ import OOM_SCORE_ADJ

from ..checks import assert_sessions_valid, meta_of
from ..processes import PATIENCE_S, Recorders, environment, kill, wait_until, workers_of

pytestmark = pytest.mark.slow

#: Finished games stay in the worker: only a request has them written.
CONFIG = """\
player = "expectimax"
workers = {workers}
sample_rate = 1000
block_rows = 1_000_000
flush_s = 3600
min_free_mb = 0
drain_timeout_s = 20
rotate_steps = {rotate_steps}
log_interval_s = 3600
metrics_textfile = "{textfile}"
"""


class Service:
    """`tape2048 record` under a service manager that is this test."""

    def __init__(self, root: Path, directory: Path) -> None:
        self.config = directory / "recorder.toml"
        self.textfile = directory / "tape2048.prom"
        self.root = root
        self.configure()
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind(str(directory / "notify"))
        self._log = (directory / "log").open("w+b")
        env = {"NOTIFY_SOCKET": str(directory / "notify"), "WATCHDOG_USEC": "60000000"}
        arguments = ["record", "--config", str(self.config), "--out", str(root)]
        self.process = subprocess.Popen(
            [sys.executable, "-m", "tape2048_tools.cli", *arguments],
            env=environment(**env),
            stdin=subprocess.DEVNULL,
            stdout=subprocess.DEVNULL,
            stderr=self._log,
            start_new_session=True,  # no terminal above it: SIGHUP reloads
        )
        self.heard: list[dict[str, str]] = []
        self._listener = threading.Thread(target=self._listen)
        self._listener.start()

    def configure(self, *, workers: int = 1, rotate_steps: int = 10_000_000) -> None:
        self.config.write_text(
            CONFIG.format(workers=workers, rotate_steps=rotate_steps, textfile=self.textfile)
        )

    def _listen(self) -> None:
        while message := self._socket.recv(4096):
            self.heard.append(dict(line.split("=", 1) for line in message.decode().split("\n")))

    def wait_for(self, field: str, *, after: int = 0) -> int:
        """Wait for a message with this field; returns how many came up to it."""

        def found() -> int | None:
            assert self.process.poll() is None, self.log
            numbers = range(after, len(self.heard))
            return next((n + 1 for n in numbers if field in self.heard[n]), None)

        return int(wait_until(found))

    @property
    def log(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        ending = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        ending.sendto(b"", self._socket.getsockname())
        ending.close()
        self._listener.join()
        self._socket.close()
        self._log.close()


@pytest.fixture
def service(root: Path, tmp_path: Path) -> Iterator[Service]:
    service = Service(root, tmp_path)
    yield service
    service.close()


def check_that_another_user_may_not(service: Service) -> None:
    """Root's recorder, and a process that has become nobody."""
    if os.geteuid() != 0:
        return
    code = (
        "import os, sys, pathlib\n"
        "from tape2048.errors import RecorderError\n"
        "from tape2048_recorder.status.control_socket import Running\n"
        "recorder = Running(pathlib.Path(sys.argv[1]), 'default')\n"
        "os.setresuid(65534, 65534, 65534)\n"
        "try:\n    recorder.stop(drain=True)\n"
        "except RecorderError as error:\n    print(error, error.hint)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, str(service.root)],
        env=environment(), capture_output=True, text=True, check=True,
    )  # fmt: skip
    owner = pwd.getpwuid(0).pw_name
    assert f"(pid {service.process.pid}) belongs to user {owner}, but you are nobody" in done.stdout, (
        done.stderr
    )
    assert "as that user or root" in done.stdout


def rotate(recorder: Running) -> str:
    """Rotate until a game has ended meanwhile; filling a block would take longer."""
    return str(wait_until(lambda: recorder.rotate(PATIENCE_S)))


def test_the_life_of_a_service(service: Service) -> None:
    ready = service.wait_for("READY")
    assert not any("READY" in message for message in service.heard[: ready - 1])
    assert "EXTEND_TIMEOUT_USEC" in service.heard[0]
    service.wait_for("WATCHDOG")
    snapshot = read_snapshot(service.root, "default")
    assert judge(snapshot).state in {"starting", "recording"}
    assert snapshot.process.pid == service.process.pid
    (worker,) = workers_of(service.process.pid)  # where memory runs out, it goes and not the daemon
    mine, its, daemons = (
        int(Path(f"/proc/{pid}/oom_score_adj").read_text()) for pid in ("self", worker, service.process.pid)
    )
    assert (daemons, its) == (mine, max(mine, OOM_SCORE_ADJ))

    # New settings: one may change, one may not.
    service.configure(workers=2, rotate_steps=9_000_000)
    os.kill(service.process.pid, signal.SIGHUP)
    reloading = service.wait_for("RELOADING", after=ready)
    assert "MONOTONIC_USEC" in service.heard[reloading - 1]
    done = service.wait_for("READY", after=reloading)
    assert "warning reload: workers stays 1; 2 needs a restart" in service.log
    assert "info reload: rotate_steps = 9_000_000 (was 10_000_000)" in service.log

    # Broken ones, a hundred times.
    service.config.write_text("rotate_steps = many\n")
    for _ in range(100):
        os.kill(service.process.pid, signal.SIGHUP)
    service.wait_for("READY", after=done)
    assert "error reload: nothing is changed: " in service.log
    assert service.log.count("reload: nothing is changed") <= 3

    with Running(service.root, "default") as recorder:
        recorder.rotate(PATIENCE_S)
        path = rotate(recorder)
    assert len(Session.open(path)) > 0
    assert meta_of(service.root / path)["config"]["rotate_steps"] == 9_000_000

    check_that_another_user_may_not(service)
    before_the_end = len(service.heard)
    with Running(service.root, "default") as recorder:
        recorder.stop(drain=True)
        assert recorder.wait(PATIENCE_S)
    assert service.process.wait(PATIENCE_S) == 0
    wait_until(lambda: any("STOPPING" in message for message in service.heard[before_the_end:]))
    last = read_snapshot(service.root, "default")
    assert judge(last).text.startswith("stopped ")
    assert last.status.why == "SIGTERM was received"
    assert last.status.sessions_pending == 0
    assert last.status.counts.reloads >= 2
    assert 'tape2048_state{recorder="default",state="stopped"} 1.0' in service.textfile.read_text()
    with pytest.raises(NotRunningError, match="stopped"):
        Running(service.root, "default")
    assert_sessions_valid(service.root)
    assert sorted(path.name for path in (service.root / ".recorder").iterdir()) == [
        "default.lock",
        "default.status.json",
        "readers.lock",
    ]


def test_stop_now_waits_for_no_game(recorders: Recorders, root: Path) -> None:
    settings: dict[str, Any] = {"player": "expectimax", "player_args": {"depth": 3}, "workers": 1}
    recorder = recorders.start(**settings, seed=11, drain_timeout_s=3600)
    recorder.wait_for_status(lambda status: status["steps"] > 0)
    with Running(root, "default") as running:
        kill(recorder.pid, signal.SIGSTOP)
        with pytest.raises(RecorderError, match=r"has not published the session within 0\.2 s"):
            running.rotate(0.2)
        kill(recorder.pid, signal.SIGCONT)
        running.stop(drain=False)
        assert running.wait(PATIENCE_S)
        last = running.snapshot().status
    assert recorder.end() == 0
    assert recorder.summary["reason"] == "SIGUSR2 was received"
    assert last.games_dropped == recorder.summary["games_dropped"] > 0
    assert last.recorded_games == recorder.summary["games"]
    assert recorder.events("warning") == ["SIGUSR2: killing the workers, publishing committed blocks"]
