"""Recorders as processes of their own, to be watched and disturbed."""

import contextlib
import json
import os
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Self

from tape2048.errors import TapeError
from tape2048_recorder.ipc.protocol import WORKER_MODULE

Said = dict[str, Any]
Condition = Callable[[Said], Any]

CHECKOUT = Path(__file__).resolve().parents[2]

#: How long anything may take before a test gives up. Only a cold compile cache comes near it.
PATIENCE_S = 120.0


def environment(**more: str) -> dict[str, str]:
    """The environment of a process that imports what this one imports, without anybody's settings."""
    paths = [str(CHECKOUT / tree) for tree in ("", "sdk", "recorder", "tools")]
    clean = {name: value for name, value in os.environ.items() if not name.startswith("TAPE2048_")}
    return {**clean, "PYTHONPATH": os.pathsep.join(paths), **more}


def shared_memory() -> set[str]:
    """The files in ``/dev/shm`` that no living process maps: what a process that died can have left there."""
    found = {path.name for path in Path("/dev/shm").iterdir() if path.is_file()}
    for maps in Path("/proc").glob("[0-9]*/maps"):
        with contextlib.suppress(OSError):  # it has just gone, or is another user's
            found -= {Path(line).name for line in maps.read_text().splitlines() if "/dev/shm/" in line}
    return found


class Recorder:
    """One recorder, started as a process; what it says is collected while it runs."""

    def __init__(self, settings: Said, hooks: Said) -> None:
        script = Path(__file__).with_name("recorder_process.py")
        self._errors = tempfile.TemporaryFile()  # noqa: SIM115 - closed by close()
        self.process = subprocess.Popen(
            [sys.executable, str(script), json.dumps(settings), json.dumps(hooks)],
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=self._errors,
            env=environment(),
            text=True,
        )
        self.pid = self.process.pid
        self.said: list[Said] = []
        self._changed = threading.Condition()
        self._reader = threading.Thread(target=self._read, name=f"recorder {self.pid}")
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            for line in lines:
                with self._changed:
                    self.said.append(json.loads(line))
                    self._changed.notify_all()

    def wait_for(self, condition: Condition, after: int = 0) -> Said:
        """The first thing said, after so many, that fulfils the condition."""
        deadline = time.monotonic() + PATIENCE_S
        seen = after
        with self._changed:
            while True:
                for said in self.said[seen:]:
                    if condition(said):
                        return said
                seen = len(self.said)
                ended = not self._reader.is_alive()
                assert not ended, f"the recorder ended first; it said {self.said[-5:]}, {self.stderr}"
                assert time.monotonic() < deadline, (
                    f"waited too long; it said {self.said[-5:]}, {self.stderr}"
                )
                self._changed.wait(0.2)

    def wait_for_status(self, condition: Condition) -> Said:
        """The first status that fulfils the condition."""
        said = self.wait_for(lambda said: "status" in said and condition(said["status"]))
        return said["status"]  # type: ignore[no-any-return]

    def next_status(self) -> Said:
        return self.wait_for(lambda said: "status" in said, after=len(self.said))["status"]  # type: ignore[no-any-return]

    def wait_for_event(self, text: str) -> str:
        """The first event with this text in it."""
        return self.wait_for(lambda said: text in said.get("event", ""))["event"]  # type: ignore[no-any-return]

    def events(self, *levels: str) -> list[str]:
        """What it reported, at these levels."""
        return [said["event"] for said in list(self.said) if "event" in said and said["level"] in levels]

    def count(self, text: str) -> int:
        """How many events have this text in them."""
        return sum(text in event for event in self.events("info", "warning", "error"))

    @property
    def stderr(self) -> str:
        """What it and its workers have written to their standard error."""
        return os.pread(self._errors.fileno(), 1 << 20, 0).decode(errors="replace")

    def signal(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """Wait for the end; returns the exit status. No end may be a traceback."""
        code = self.process.wait(PATIENCE_S)
        self._reader.join(PATIENCE_S)
        assert not self._reader.is_alive(), "somebody still holds the recorder's standard output"
        if code >= 0:
            assert "recorder_process.py" not in self.stderr, self.stderr
        return code

    def stop(self) -> None:
        """Ask for the end, and wait for it."""
        self.signal(signal.SIGTERM)
        assert self.end() == 0

    @property
    def summary(self) -> Said:
        assert "summary" in self.said[-1], f"it did not end well: {self.said[-3:]}"
        return self.said[-1]["summary"]  # type: ignore[no-any-return]

    @property
    def error(self) -> Said:
        """The error that it ended with: ``error`` (its class), ``message``, ``hint``."""
        assert "error" in self.said[-1], f"it did not end with an error: {self.said[-3:]}"
        return self.said[-1]

    @property
    def workers(self) -> list[int]:
        """The pids of its workers that are there now."""
        return workers_of(self.pid)

    def close(self) -> None:
        """Kill what is left of it."""
        self.process.kill()
        for pid in self.workers:
            kill(pid)
        self.process.wait()
        self._reader.join()
        self._errors.close()


class Recorders:
    """Starts recorders on one directory; leaving kills what still runs."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self._started: list[Recorder] = []

    def start(self, *, hooks: Said | None = None, **settings: Any) -> Recorder:
        """Start a recorder: ``settings`` over defaults with which things happen soon."""
        defaults = {
            "player": "random",
            "out_dir": str(self._root),
            "workers": 1,  # each costs a second of a core before it plays
            "block_rows": 2048,
            "rotate_steps": 100_000,
            "min_free_mb": 0,
            "drain_timeout_s": 20.0,
        }
        recorder = Recorder({**defaults, **settings}, hooks or {})
        self._started.append(recorder)
        return recorder

    def start_recording(self, **options: Any) -> Recorder:
        """Start one, and wait until rows are recorded."""
        recorder = self.start(**options)
        recorder.wait_for_status(lambda status: status["recorded_rows"] > 0)
        return recorder

    def run(self, **options: Any) -> Recorder:
        """Start one, and wait for its end, which is no error."""
        recorder = self.start(**options)
        assert recorder.end() == 0, recorder.said[-2:]
        return recorder

    def fail(self, expected: type[TapeError], /, **options: Any) -> Recorder:
        """Start one, and wait for its end with this error."""
        recorder = self.start(**options)
        assert recorder.end() == expected.exit_code
        assert recorder.error["error"] == expected.__name__
        return recorder

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *exception: object) -> None:
        for recorder in self._started:
            recorder.close()


def kill(pid: int, number: signal.Signals = signal.SIGKILL) -> None:
    """Send a signal to a process, which may have ended."""
    with contextlib.suppress(ProcessLookupError):
        os.kill(pid, number)


def workers_of(daemon_pid: int) -> list[int]:
    """Worker processes that this daemon started, whoever their parent is now; zombies do not count."""
    found = []
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            arguments = path.read_bytes().split(b"\0")
        except OSError:
            continue  # it has just ended
        if WORKER_MODULE.encode() in arguments and b'"daemon_pid":%d,' % daemon_pid in arguments[-2]:
            found.append(int(path.parent.name))
    return sorted(found)


def cpu_s(pid: int) -> float:
    """CPU time that a process has used."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def wait_until_idle(pids: Iterable[int]) -> None:
    """Wait until these processes sleep, ten looks in a row (one that has work and no core is not asleep)."""

    def asleep(pid: int) -> bool:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "S"

    looks = 0

    def idle() -> bool:
        nonlocal looks
        looks = looks + 1 if all(map(asleep, pids)) else 0
        return looks == 10

    wait_until(idle)


def resident_mb(pid: int) -> float:
    """Resident memory of a process."""
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def wait_until(condition: Callable[[], Any]) -> Any:
    """Wait until a condition holds, at most :data:`PATIENCE_S`; return its value."""
    deadline = time.monotonic() + PATIENCE_S
    while not (found := condition()):
        assert time.monotonic() < deadline, "waited too long"
        time.sleep(0.01)
    return found
