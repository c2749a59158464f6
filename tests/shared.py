"""What all processes of a run of the tests share: directories that take long to fill, and servers."""

import fcntl
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from pathlib import Path

#: Names the directory of the run. ``conftest.py`` sets it; its last part begins with a process that lives as
#: long as the run.
VARIABLE = "TESTS_SHARED"

#: Runs a server until the process of the run has ended.
_WATCHED = 'pid=$1; shift; "$@" & while kill -0 "$pid" 2>/dev/null; do sleep 1; done; kill -9 $!'

_running: list[subprocess.Popen[bytes]] = []


def shared(name: str, fill: Callable[[Path], object]) -> Path:
    """Return a directory that the first process of the run that asks for it has filled. Do not change it."""
    path = Path(os.environ[VARIABLE], name)
    with path.with_suffix(".lock").open("a") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if lock.seek(0, os.SEEK_END) == 0:
            shutil.rmtree(path, ignore_errors=True)
            path.mkdir()
            fill(path)
            lock.write("filled")
    return path


def start_watched(command: Sequence[str], log: Path) -> subprocess.Popen[bytes]:
    """Start a server that ends with the run, not with this process."""
    pid = Path(os.environ[VARIABLE]).name.partition("-")[0]
    with log.open("wb") as output:
        process = subprocess.Popen(
            ["sh", "-c", _WATCHED, "sh", pid, *command],
            stdin=subprocess.DEVNULL, stdout=output, stderr=output, start_new_session=True,
        )  # fmt: skip
    _running.append(process)
    return process
