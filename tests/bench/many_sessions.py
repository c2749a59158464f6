"""What ``tape2048 list`` and ``tape2048 prune`` take for very many small sessions, beside an empty directory.

::

    python -m tests.bench.many_sessions [--sessions 10000]

Each is run as a process of its own, three times, and the quickest counts: wall seconds, CPU seconds and, for
``prune``, which removes all but a hundred at the last, resident megabytes.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, NamedTuple

from ..tools.conftest import write_session
from ..tools.small_sessions import fill
from .recording import memory_dir
from .start import recorder_env

if TYPE_CHECKING:
    from pathlib import Path


class Cost(NamedTuple):
    """What one process took."""

    wall_s: float
    cpu_s: float
    resident_mb: float


def cost(*arguments: str) -> Cost:
    """Run ``tape2048`` once."""
    # An installed package has its byte code beside it; without, a fifth of a second goes to compiling ours.
    env = {name: value for name, value in recorder_env().items() if name != "PYTHONDONTWRITEBYTECODE"}
    begin = time.monotonic()
    child = subprocess.Popen(
        [sys.executable, "-m", "tape2048_tools.cli", *arguments], stdout=subprocess.DEVNULL, env=env
    )
    _, status, usage = os.wait4(child.pid, 0)
    if status:
        raise RuntimeError(f"tape2048 {' '.join(arguments)} ended with {os.waitstatus_to_exitcode(status)}")
    return Cost(time.monotonic() - begin, usage.ru_utime + usage.ru_stime, usage.ru_maxrss * 1024 / 1e6)


def measure(directory: Path, count: int) -> dict[str, Cost]:
    """List and prune ``count`` sessions; the quickest of three, but for the removal itself."""
    root, empty = directory / "root", directory / "empty"
    empty.mkdir()
    fill(root, write_session(directory / "template" / "session"), count)
    found = {}
    for name, arguments in {
        "list an empty directory": ("list", str(empty)),
        f"list {count:,} sessions": ("list", str(root)),
        f"prune {count:,} sessions, dry": ("prune", str(root), "--max-sessions", "100", "--dry-run"),
    }.items():
        found[name] = min(cost(*arguments) for _ in range(3))
    found[f"prune {count:,} sessions to 100"] = cost("prune", str(root), "--max-sessions", "100")
    return found


def main() -> None:
    """Measure, and print a table."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--sessions", type=int, default=10_000)
    args = parser.parse_args()
    with memory_dir() as directory:
        found = measure(directory, args.sessions)
    sys.stdout.write("| what | wall s | CPU s | resident MB |\n|---|---|---|---|\n")
    for name, one in found.items():
        sys.stdout.write(f"| {name} | {one.wall_s:.2f} | {one.cpu_s:.2f} | {one.resident_mb:.0f} |\n")


if __name__ == "__main__":
    main()
