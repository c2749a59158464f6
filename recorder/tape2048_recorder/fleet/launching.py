"""Starting of detached recorders and agents, which survive their parents.

A child of an engine's worker (Ray) dies with the worker, and a recorder's session would stay unpublished.
Therefore this module runs as a process between the two (``python -m tape2048_recorder.fleet.launching LOG
COMMAND...``). It resets inherited signal handlers and priorities, starts the command in a new process
session, prints its pid, and ends. The command's parent is then init.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING

from tape2048.base.settings import ENV_PREFIX, settings_toml
from tape2048.errors import FleetError, NotRunningError, RecorderError, StorageError, TapeError
from tape2048.files.durable import replace_file
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.files.opening import open_owned, storage_errors
from tape2048.files.reading import read_path
from tape2048_recorder.status.control_socket import Running
from tape2048_recorder.status.status_report import Process, read_snapshot

if TYPE_CHECKING:
    from collections.abc import Sequence

    from tape2048_recorder.record_options import RecorderConfig

#: Variables of an engine's workers. Ray sets OMP_NUM_THREADS to 1.
_OF_AN_ENGINE = ("RAY_", "OMP_NUM_THREADS")

#: Variables that a recorder must not get: settings, which are in its file, and variables for an engine's
#: worker or for the agent.
_NOT_FOR_A_RECORDER = (ENV_PREFIX, *_OF_AN_ENGINE, "NOTIFY_SOCKET", "WATCHDOG_")

#: Time limit for a recorder's first status. It takes a second, or several on a busy machine.
_START_S = 60.0

_LOG_BYTES_SHOWN = 2000

#: Size at which a log is moved to ``<name>.1``: two weeks of the default lines.
_LOG_BYTES_MAX = 5_000_000


def start_recorder(config: RecorderConfig, command: Sequence[str]) -> Running:
    """Start a detached recorder, and wait for its first status."""
    directory = Path(config.out_dir, LOCKS_DIRECTORY)
    file, log = directory / f"{config.instance}.recorder.toml", directory / f"{config.instance}.log"
    with storage_errors(file, "writing the recorder's settings"):
        replace_file(file, settings_toml(config).encode())
    process = _launch([*command, "record", "--config", str(file)], log, without=_NOT_FOR_A_RECORDER)
    deadline = time.monotonic() + _START_S
    while process is not None and process.is_there and time.monotonic() < deadline:
        with contextlib.suppress(NotRunningError, RecorderError):
            running = Running(Path(config.out_dir), config.instance)
            if running.process == process:
                return running
            running.close()
        time.sleep(0.1)
    with contextlib.suppress(TapeError):  # it may have reached a limit already
        snapshot = read_snapshot(Path(config.out_dir), config.instance)
        if snapshot.process == process and snapshot.status.error is None:
            raise NotRunningError("the recorder has ended", path=config.out_dir)
    raise FleetError("the recorder ended while it started", path=log, hint=end_of(log))


def start_agent(command: Sequence[str], log: Path) -> Process | None:
    """Start an agent that survives its engine; return None if it has already ended."""
    trim_log(log)
    return _launch(command, log, without=_OF_AN_ENGINE)


def _launch(command: Sequence[str], log: Path, *, without: tuple[str, ...]) -> Process | None:
    with storage_errors(log, "starting a process"):
        os.close(open_owned(log, os.O_RDONLY | os.O_CREAT))
        done = subprocess.run(
            [sys.executable, "-m", "tape2048_recorder.fleet.launching", str(log), *command],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            check=False,
            start_new_session=True,
            env={name: value for name, value in os.environ.items() if not name.startswith(without)},
        )
    return Process.of(int(done.stdout)) if done.returncode == 0 else None


def trim_log(log: Path) -> None:
    """Move the content of a long log to ``<name>.1``. Its writer continues to append to the same file."""
    with contextlib.suppress(OSError, StorageError), os.fdopen(open_owned(log, os.O_RDWR), "r+b") as file:
        if os.fstat(file.fileno()).st_size >= _LOG_BYTES_MAX:
            replace_file(log.with_name(f"{log.name}.1"), file.read())
            file.truncate(0)


def end_of(log: Path) -> str:
    text = ""
    with contextlib.suppress(TapeError):
        text = read_path(log)[-_LOG_BYTES_SHOWN:].tobytes().decode(errors="replace").strip()
    return f"the end of its log: {text}" if text else "its log is empty"


def main() -> None:
    log, *command = sys.argv[1:]
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    with contextlib.suppress(OSError):
        Path("/proc/self/oom_score_adj").write_text("0")
    with os.fdopen(open_owned(log, os.O_WRONLY | os.O_APPEND | os.O_CREAT), "ab") as output:
        child = subprocess.Popen(
            command, stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True
        )
    sys.stdout.write(f"{child.pid}\n")
    sys.stdout.flush()
    os._exit(0)  # a normal exit would warn that the child is still running


if __name__ == "__main__":
    main()
