"""A memory control group, and a process in it that takes what is left: for kills that the kernel makes.

Either version of control groups will do; root is needed, and a hierarchy that may be written.
"""

import contextlib
import os
import subprocess
import sys
import time
from pathlib import Path
from types import TracebackType
from typing import NamedTuple, Self

#: What a hog has before there is a limit. The kernel adds a share of the limit, ``oom_score_adj``, to a size:
#: with a large limit, the victim is before a worker, which recorders name before themselves.
_BALLAST_BYTES = 1 << 30
#: What it takes beside the cache, more than the limit leaves it.
_HOG_BYTES = 96 << 20
_LEFT_BYTES = 8 << 20
_HOG = """\
import sys
sys.stdin.readline()
kept = [b"x" * int(sys.argv[1])]
print(flush=True)
sys.stdin.readline()
kept.append(b"x" * int(sys.argv[2]))
sys.stdin.readline()
"""

#: How long the kernel may take; it looks for memory that it can have back first.
_PATIENCE_S = 60.0


class _Names(NamedTuple):
    """What the files of a version are called."""

    limit: str
    no_limit: str
    used: str
    events: str
    cached: str  # in memory.stat


_V1 = _Names("memory.limit_in_bytes", "-1", "memory.usage_in_bytes", "memory.oom_control", "cache")
_V2 = _Names("memory.max", "max", "memory.current", "memory.events", "file")


class MemoryGroup:
    """A group without a limit at first; leaving removes it, when its processes have ended."""

    def __init__(self, path: Path, names: _Names) -> None:
        self._path = path
        self._names = names

    @classmethod
    def make(cls) -> Self | None:
        """A new group, or None where this machine or user cannot have one."""
        for line in Path("/proc/self/mounts").read_text().splitlines():
            _, mounted, kind, options, *_ = line.split()
            names = _V2 if kind == "cgroup2" else _V1
            if kind not in {"cgroup", "cgroup2"} or (kind == "cgroup" and "memory" not in options.split(",")):
                continue
            path = Path(mounted, f"tape2048-{os.getpid()}")
            try:
                path.mkdir()
            except OSError:
                continue
            if (path / names.limit).exists():
                return cls(path, names)
            path.rmdir()  # a hierarchy without this controller
        return None

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        with contextlib.suppress(OSError):  # somebody whom we did not start
            self._path.rmdir()

    def add(self, pid: int) -> None:
        """Put a process in it, with those that it will start."""
        (self._path / "cgroup.procs").write_text(str(pid))

    @property
    def kills(self) -> int:
        """How many of its processes the kernel has killed for lack of memory."""
        lines = (self._path / self._names.events).read_text().splitlines()
        return int(dict(line.split() for line in lines)["oom_kill"])

    def exhaust(self, victim: int) -> None:
        """Let memory run out once, so that the kernel kills a process."""
        before = self.kills
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            Path(f"/proc/{victim}/oom_score_adj").write_text("1000")  # before all others
        statistics = dict(line.split() for line in (self._path / "memory.stat").read_text().splitlines())
        taken = _HOG_BYTES + int(statistics[self._names.cached])  # the kernel gives up what it can read again
        hog = subprocess.Popen(
            [sys.executable, "-I", "-S", "-c", _HOG, str(_BALLAST_BYTES), str(taken)],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        )  # fmt: skip
        try:
            self.add(hog.pid)
            hog.stdin.write("\n")
            hog.stdin.flush()
            hog.stdout.readline()
            used = int((self._path / self._names.used).read_text())
            self._limit(str(used + _LEFT_BYTES))
            hog.stdin.write("\n")
            hog.stdin.flush()
            deadline = time.monotonic() + _PATIENCE_S
            while self.kills == before and hog.poll() is None:
                assert time.monotonic() < deadline, "the kernel has killed nobody"
                time.sleep(0.01)
        finally:
            self._limit(self._names.no_limit)
            hog.kill()
            with contextlib.suppress(BrokenPipeError):
                hog.communicate()

    def _limit(self, limit: str) -> None:
        (self._path / self._names.limit).write_text(limit)
