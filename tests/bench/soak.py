"""A recorder whose processes are killed at random, for as long as you like; nothing confirmed may be lost.

::

    python -m tests.bench.soak --minutes 60 [--every-s 10 20] [--workers 2] [--seed 1]

Each 10 to 20 s one process is killed by SIGKILL: a worker, the daemon, or the daemon twice, the second time
while the next start recovers what the first death left. After each death of the daemon: what its journals
and sessions held is published once, by the next start; every session passes ``validate`` (and is removed
then, by the functions of ``tape2048 prune``); no game comes twice. The steps that were played and are not
published may be no more than what the workers' buffers can hold, for each kill. Resident memory, descriptors
and shared memory may not grow from the middle third of the run to the last. The exit code is 1 where any of
that does not hold.
"""

from __future__ import annotations

import argparse
import random
import signal
import sys
import time
from collections import Counter
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tape2048._holds import Upkeep
from tape2048._removal import remove_sessions
from tape2048.session import Session, sessions
from tape2048.validation import validate_session

from ..recorder.checks import confirmed_now
from ..recorder.processes import Recorder, Recorders, kill, resident_mb, wait_until, workers_of
from .recording import memory_dir

if TYPE_CHECKING:
    from collections.abc import Callable

#: Expectimax, a row in twenty: games of some ten thousand steps, and files that stay small.
SETTINGS: dict[str, Any] = {
    "player": "expectimax",
    "sample_rate": 20,
    "block_rows": 8192,
    "rotate_steps": 20_000,
    "flush_s": 1.0,
}

#: No game of this player has come near it.
GAME_STEPS_MAX = 60_000

GROWTH_MAX_MB = 12.0
DESCRIPTORS_MORE_MAX = 6


class Sample(NamedTuple):
    """What the daemon and the largest worker have, late in a life."""

    daemon_mb: float
    worker_mb: float
    descriptors: int


class Tally:
    """What was published so far, and what was seen."""

    def __init__(self, root: Path) -> None:
        self._root = root
        self.ids: set[int] = set()
        self.steps = 0
        self.played = 0
        self.kills: Counter[str] = Counter()
        self.sessions = 0
        self.samples: list[Sample] = []
        self.problems: list[str] = []

    def check(self, holds: bool, problem: str) -> None:
        """Remember a problem where something does not hold."""
        if not holds:
            self.problems.append(problem)
            sys.stdout.write(f"PROBLEM: {problem}\n")

    def collect(self) -> None:
        """Check every session that is published, count it, and remove it."""
        found = sessions(self._root)
        for path in found:
            report = validate_session(path)
            self.check(report.ok, f"{path.name}: {[finding.message for finding in report.findings]}")
            runs = Session.open(path).runs
            ids = set(runs["id"].tolist())
            self.check(len(ids) == len(runs) and not ids & self.ids, f"{path.name}: games that come twice")
            self.ids |= ids
            self.steps += int(runs["steps"].sum())
        with Upkeep(self._root) as upkeep:
            for outcome in remove_sessions(self._root, found, upkeep):
                self.check(outcome.gone, f"{outcome.path.name} was not removed: {outcome.error}")
        self.sessions += len(found)

    @property
    def at_risk(self) -> int:
        """Steps that the kills may have taken: full buffers, and the games in play."""
        each = SETTINGS["block_rows"] * SETTINGS["sample_rate"] + 2 * GAME_STEPS_MAX
        return each * (self.kills["worker"] + self.kills["daemon"])


def last_status(recorder: Recorder) -> dict[str, Any]:
    """What a recorder has said last of its state."""
    said = [said["status"] for said in list(recorder.said) if "status" in said]
    return said[-1] if said else {"steps": 0}


def look(recorder: Recorder) -> Sample | None:
    """Memory and descriptors of a recorder that is at work, or None where a process has just died."""
    try:
        workers = [resident_mb(pid) for pid in recorder.workers]
        descriptors = sum(1 for _ in Path(f"/proc/{recorder.pid}/fd").iterdir())
        return Sample(resident_mb(recorder.pid), max(workers), descriptors)
    except (OSError, ValueError):
        return None


def shared_memory() -> set[str]:
    """What a dying process can leave in ``/dev/shm``, but for the directories of tests."""
    return {path.name for path in Path("/dev/shm").iterdir() if path.is_file()}


def soak(
    root: Path,
    *,
    seconds: float,
    every_s: tuple[float, float],
    workers: int = 2,
    seed: int = 1,
    show: Callable[[str], object] = lambda _: None,
) -> Tally:
    """Record and kill; returns what was found.

    Args:
        root: an empty directory.
        seconds: how long to go on, at least.
        every_s: shortest and longest time between two kills.
        workers: of the recorder.
        seed: of the kills.
        show: told a line for each kill.
    """
    draw = random.Random(seed)
    tally = Tally(root)
    before = shared_memory()
    end = time.monotonic() + seconds
    with Recorders(root) as recorders:
        settings = {**SETTINGS, "workers": workers, "seed": seed}
        recorder = recorders.start(**settings)
        while time.monotonic() < end:
            recorder.wait_for_status(lambda status: status["workers_ready"] > 0)
            time.sleep(draw.uniform(*every_s))
            if (sample := look(recorder)) is not None:
                tally.samples.append(sample)
            victim = draw.choice(["worker", "worker", "daemon", "daemon twice"])
            show(
                f"{victim}: {last_status(recorder)['steps']:,} steps in this life, {tally.steps:,} collected"
            )
            if victim == "worker":
                kill(draw.choice(recorder.workers or [recorder.pid]))
                tally.kills["worker"] += 1
                continue
            kill_daemon(recorder, tally)
            if victim == "daemon twice":
                tally.kills["recovery"] += 1
                second = recorders.start(**settings)
                time.sleep(draw.uniform(0.3, 1.2))  # imports take about as long
                kill_daemon(second, tally)
            expected = confirmed_now(root)
            recorder = recorders.start(**settings)
            recorder.wait_for_status(lambda status: status["workers_ready"] > 0)
            tally.collect()
            lost = set(expected) - tally.ids
            tally.check(not lost, f"{len(lost)} confirmed games are lost")
        recorder.signal(signal.SIGTERM)
        code = recorder.end()
        tally.check(code == 0, f"the recorder ended with {code}: {recorder.stderr[-500:]}")
        tally.played += int(last_status(recorder)["steps"])
        tally.collect()
    tally.check(not list(root.glob(".*.partial")), "unfinished sessions are left")
    tally.check(not (root / ".quarantine").exists(), "something was put into the quarantine")
    missing = tally.played - tally.steps
    tally.check(missing <= tally.at_risk, f"{missing:,} steps are missing; the bound is {tally.at_risk:,}")
    more = shared_memory() - before
    tally.check(not more, f"left in /dev/shm: {sorted(more)}")
    check_growth(tally)
    return tally


def kill_daemon(recorder: Recorder, tally: Tally) -> None:
    """Kill a daemon, and see that its workers go with it."""
    tally.kills["daemon"] += 1
    recorder.signal(signal.SIGKILL)
    recorder.process.wait()
    wait_until(lambda: not workers_of(recorder.pid), patience_s=10)
    tally.played += int(last_status(recorder)["steps"])
    recorder.close()


def check_growth(tally: Tally) -> None:
    """Compare the last third of the samples with the one before it."""
    third = len(tally.samples) // 3
    if third < 2:
        return
    middle, last = tally.samples[-2 * third : -third], tally.samples[-third:]
    for at, name, most in (
        (0, "daemon MB", GROWTH_MAX_MB),
        (1, "worker MB", GROWTH_MAX_MB),
        (2, "descriptors", DESCRIPTORS_MORE_MAX),
    ):
        grown = max(sample[at] for sample in last) - max(sample[at] for sample in middle)
        tally.check(grown <= most, f"{name} grew by {grown:.1f}")


def main() -> int:
    """Soak, print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--minutes", type=float, default=60)
    parser.add_argument("--every-s", type=float, nargs=2, default=(10.0, 20.0))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    args = parser.parse_args()

    def show(line: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stdout.flush()

    with memory_dir() as directory:
        root = directory / "out"
        root.mkdir()
        tally = soak(
            root,
            seconds=60 * args.minutes,
            every_s=(args.every_s[0], args.every_s[1]),
            workers=args.workers,
            seed=args.seed,
            show=show,
        )
    missing = max(0, tally.played - tally.steps)
    show(
        f"kills: {dict(tally.kills)}; {tally.sessions} sessions, {len(tally.ids):,} games, "
        f"{tally.steps:,} steps published of {tally.played:,} played, {missing:,} missing "
        f"(bound {tally.at_risk:,}); {len(tally.problems)} problems"
    )
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
