"""A worker killed at its calls, and the calls of a real recorder failing; every game is recorded once.

The first worker of a real recorder runs under strace (as ``strace -D``, so that it stays the daemon's child),
which kills it or fails its N-th call; those that take its place run free. ``FULL_SWEEP=1`` takes every call
that says anything to a file or to the daemon, the suite a sample.
"""

import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tape2048 import errors

from ..checks import assert_recovers_all_that_was_confirmed, assert_sessions_valid, partials, published_runs
from ..processes import run_traced
from ..test_crash_sweep import FULL, REAL, Point

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(shutil.which("strace") is None, reason="strace is not installed"),
]

GAMES = REAL["max_games"]

#: What a worker does with files, and what it tells and hears.
SAYING = ("pwrite64", "sendto", "recvfrom")

#: Calls of the daemon that a full or broken device fails.
REFUSABLE = ("pwrite64", "fsync", "ftruncate", "renameat2", "mkdir", "unlinkat", "rmdir")

FAILURES = ("error=ENOSPC", "error=EIO")

#: strace in front of the first worker alone: who makes the directory is it.
WRAPPER = """#!/bin/sh
if mkdir {flag} 2>/dev/null; then exec strace -D -q {options} {python} "$@"; fi
exec {python} "$@"
"""


def record(directory: Path, *, worker: str = "", daemon: tuple[str, ...] = ()) -> tuple[int, dict[str, Any]]:
    """Run a recorder to its end in ``directory/root``; its exit status, and the last thing it said.

    Args:
        directory: where.
        worker: options of a strace in front of the first worker.
        daemon: options of a strace of the daemon's threads, its workers left alone.
    """
    directory.mkdir()
    hooks: dict[str, Any] = {"tape2048_recorder.recording.recording:RETRY_S": 0.1}
    if worker:
        wrapper = directory / "python"
        wrapper.write_text(WRAPPER.format(flag=directory / "first", options=worker, python=sys.executable))
        wrapper.chmod(0o755)
        hooks["sys:executable"] = str(wrapper)
    return run_traced({**REAL, "out_dir": str(directory / "root")}, hooks, *daemon)


def outcomes(root: Path) -> dict[tuple[int, ...], bytes]:
    return {run.outcome: run.data for run in published_runs(root)}


class Undisturbed(NamedTuple):
    """What is recorded when nothing goes wrong, and how often a worker makes each call for it."""

    outcomes: dict[tuple[int, ...], bytes]
    calls: Counter[str]
    opens: list[int]  # which of its openat are of rows


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> Undisturbed:
    directory = tmp_path_factory.mktemp("undisturbed")
    trace = directory / "worker.trace"
    options = f"-o {trace} -e trace={','.join((*SAYING, 'openat'))}"
    assert record(directory / "run", worker=options)[0] == 0
    text = trace.read_text()
    opened = re.findall(r"^openat\((.*)$", text, re.MULTILINE)
    return Undisturbed(
        outcomes(directory / "run" / "root"),
        Counter(re.findall(r"^(\w+)\(", text, re.MULTILINE)),
        [number for number, path in enumerate(opened, start=1) if "steps.npy" in path],
    )


def swept(points: list[Point], check: Callable[[Point], None]) -> list[str]:
    """What does not hold, at each of the points."""

    def problem(point: Point) -> str | None:
        try:
            check(point)
        except Exception as error:  # noqa: BLE001 - whatever goes wrong in a check is what is looked for
            return f"{point}: {error!r}"
        return None

    assert points
    with ThreadPoolExecutor(2) as pool:
        return [found for found in pool.map(problem, points) if found is not None]


def test_a_worker_disturbed_at_each_call(fast_dir: Path, undisturbed: Undisturbed) -> None:
    calls, opens = undisturbed.calls, undisturbed.opens
    assert len(undisturbed.outcomes) == GAMES
    assert len(opens) >= 3
    points = [Point("openat", str(n), how) for how in ("signal=KILL", *FAILURES) for n in opens]
    points += [Point(name, str(n), "signal=KILL") for name in SAYING for n in range(1, calls[name] + 1)]
    points += [Point("pwrite64", str(n), how) for how in FAILURES for n in range(1, calls["pwrite64"] + 1)]
    assert len(points) > 50

    def check(point: Point) -> None:
        directory = fast_dir / re.sub(r"[^A-Za-z0-9]+", "-", str(point))
        code, said = record(directory, worker=" ".join(point.strace))
        assert code == 0, said
        assert (directory / "first").is_dir()
        root = directory / "root"
        assert_sessions_valid(root)
        assert not partials(root)
        assert len(published_runs(root)) == GAMES, "none lost, none twice"
        assert outcomes(root) == undisturbed.outcomes
        shutil.rmtree(directory)

    step = 1 if FULL else len(points) // 2
    assert swept(points[step // 2 :: step], check) == []


def test_each_call_of_a_real_recorder_fails(fast_dir: Path, undisturbed: Undisturbed) -> None:
    trace = fast_dir / "trace"
    record(fast_dir / "traced", daemon=("-o", str(trace), "-e", f"trace={','.join(REFUSABLE)}"))
    counts = Counter(re.findall(r"^(\d+) +(\w+)\(", trace.read_text(), re.MULTILINE))
    most = {
        name: max((n for (_, call), n in counts.items() if call == name), default=0) for name in REFUSABLE
    }
    points = [
        Point(name, str(n), how) for how in FAILURES for name in REFUSABLE for n in range(1, most[name] + 1)
    ]
    assert len(points) > 100

    def check(point: Point) -> None:
        directory = fast_dir / re.sub(r"[^A-Za-z0-9]+", "-", str(point))
        root = directory / "root"
        status, said = record(directory, daemon=tuple(point.strace))
        if status == 0:  # it went on when the error was gone, or the error did no harm
            assert_sessions_valid(root)
            assert len(published_runs(root)) == GAMES
            assert outcomes(root) == undisturbed.outcomes
        else:
            kinds = (errors.StorageError, errors.RecorderError)  # a file, or the memory that is shared
            assert issubclass(getattr(errors, said["error"]), kinds), said
        if root.exists():
            assert_recovers_all_that_was_confirmed(root)
        shutil.rmtree(directory)

    step = 1 if FULL else len(points) // 2
    assert swept(points[step // 2 :: step], check) == []
