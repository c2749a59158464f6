"""A recorder whose processes are killed at random, for as long as you like; nothing confirmed may be lost.

::

    python -m tests.bench.soak --minutes 60 [--every-s 3 8] [--workers 2] [--seed 1] [--storage rows]

Each 3 to 8 s one process is killed: a worker, or the daemon, by SIGKILL or by the kernel, for lack of memory
in the recorder's control group (root, and a memory controller that may be written); or the daemon twice, the
second time while the next start recovers what the first death left. In the second half of the time, workers
alone are killed, so that one daemon lives through it.

After each death of the daemon: what its journals and sessions held is published once, by the next start;
every session passes ``validate`` (and is removed then, by the functions of ``tape2048 prune``), which checks
each move of a tape; no game comes twice. The ids of a life have no gap but for the games that died with a
process; after the orderly end, the recorder's own file names the missing ones.

The steps that were played are read from the memory that daemon and workers share, after their death, so they
are exact but for the slice of 50 ms that a worker was killed in. Those that are not published may be no more
than what each worker that died could hold: a full buffer and its game in play. Resident memory and
descriptors of the last daemon and its workers may not grow from the middle third of its life to the last, and
nothing may be left in shared memory. The exit code is 1 where any of that does not hold.
"""

import argparse
import contextlib
import os
import random
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import remove_sessions
from tape2048.maintenance.validation import validate_session
from tape2048.session.session import Session, sessions
from tape2048_recorder.daemon.instance import IDS_AHEAD, GameState, Instance
from tape2048_recorder.ipc.protocol import Shared

from ..recorder import processes
from ..recorder.checks import confirmed_now, partials, snapshot
from ..recorder.processes import (
    PATIENCE_S,
    Recorder,
    Recorders,
    kill,
    resident_mb,
    shared_memory,
    wait_until,
    workers_of,
)
from .figures import memory_dir
from .memory_group import MemoryGroup

#: Expectimax, a row in twenty: games of some ten thousand steps, and files that stay small.
SETTINGS: dict[str, Any] = {
    "player": "expectimax", "sample_rate": 20, "block_rows": 2048, "rotate_steps": 20_000, "flush_s": 1.0,
}  # fmt: skip

#: The same on tape, which has every row: blocks and sessions of as many steps.
ON_TAPE: dict[str, Any] = {
    "storage": "tape",
    "sample_rate": 1,
    "block_rows": SETTINGS["block_rows"] * SETTINGS["sample_rate"],
    "rotate_steps": SETTINGS["rotate_steps"] * SETTINGS["sample_rate"],
}

#: No game of this player has come near it.
GAME_STEPS_MAX = 60_000

#: Steps that die with a worker, at most: a full buffer of finished games, and the game in play.
HELD_MAX = SETTINGS["block_rows"] * SETTINGS["sample_rate"] + GAME_STEPS_MAX

#: Games that a process holds when it dies, at most: 1.25 blocks of games of 1,000 steps, and a full buffer.
HELD_GAMES_MAX = 92

#: What is killed, and whether by the kernel; a worker as often as the others together.
VICTIMS = ("worker", "worker", "worker", "worker, memory", "daemon", "daemon, memory", "recovery")

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
        self.workers_lost = 0
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
            ids = set(runs["run_id"].tolist())
            self.check(len(ids) == len(runs) and not ids & self.ids, f"{path.name}: games that come twice")
            self.ids |= ids
            self.steps += int(runs["steps"].sum())
        with RemovalLock(self._root) as upkeep:
            for outcome in remove_sessions(self._root, found, upkeep):
                self.check(outcome.gone, f"{outcome.path.name} was not removed: {outcome.error}")
        self.sessions += len(found)

    @property
    def at_risk(self) -> int:
        """Steps that the kills may have taken."""
        return HELD_MAX * self.workers_lost


class Life:
    """A recorder from its start to its death."""

    def __init__(self, recorders: Recorders, group: MemoryGroup | None, settings: dict[str, Any]) -> None:
        self.recorder = recorders.start(**settings)
        if group is not None:
            group.add(self.recorder.pid)  # before it has started a worker
        self._workers = int(settings["workers"])
        self._shared: Shared | None = None

    def wait_until_it_plays(self) -> None:
        """Wait for all workers, and for a move of one (a recorder whose workers never record gives up)."""
        before = self.played
        self.recorder.wait_for_status(lambda status: status["workers_ready"] > 0)
        wait_until(lambda: len(self.recorder.workers) == self._workers)
        self._hold_shared()
        wait_until(lambda: self.played > before)

    def _hold_shared(self) -> None:
        for path in Path(f"/proc/{self.recorder.pid}/fd").iterdir():
            with contextlib.suppress(OSError):  # closed meanwhile
                if self._shared is None and "memfd:tape2048" in str(path.readlink()):
                    self._shared = Shared(os.open(path, os.O_RDWR | os.O_CLOEXEC))

    @property
    def played(self) -> int:
        """Steps that its workers have played so far, those that have died too."""
        return 0 if self._shared is None else int(self._shared.slots["steps"].sum())

    def kill(self, tally: Tally, group: MemoryGroup | None = None) -> None:
        """Kill the daemon, see that its workers go with it, and count what they have played."""
        if self.recorder.process.poll() is None:
            self._hold_shared()
        if group is not None:
            group.exhaust(self.recorder.pid)
        else:
            self.recorder.signal(signal.SIGKILL)
        code = self.recorder.process.wait(PATIENCE_S)
        tally.check(code == -signal.SIGKILL, f"the daemon ended with {code}")
        wait_until(lambda: not workers_of(self.recorder.pid))
        tally.workers_lost += self._workers if self.played else 0
        self.end(tally)

    def lose_worker(self, tally: Tally, draw: random.Random, group: MemoryGroup | None = None) -> None:
        """Kill a worker."""
        victim = draw.choice(self.recorder.workers)
        if group is not None:
            group.exhaust(victim)
        else:
            kill(victim)
        wait_until(lambda: victim not in self.recorder.workers)
        tally.workers_lost += 1

    def end(self, tally: Tally) -> None:
        """Count what was played; the processes have ended."""
        tally.played += self.played
        if self._shared is not None:
            self._shared.close()
        self.recorder.close()


def look(recorder: Recorder) -> Sample | None:
    """Memory and descriptors of a recorder that is at work, or None where a process has just died."""
    try:
        workers = [resident_mb(pid) for pid in recorder.workers]
        descriptors = sum(1 for _ in Path(f"/proc/{recorder.pid}/fd").iterdir())
        return Sample(resident_mb(recorder.pid), max(workers), descriptors)
    except (OSError, ValueError):
        return None


def soak(
    root: Path, *, seconds: float, every_s: tuple[float, float], workers: int = 2, seed: int = 1,
    storage: str = "rows", group: MemoryGroup | None = None, victims: Sequence[str] = (),
    show: Callable[[str], object] = lambda _: None,
) -> Tally:  # fmt: skip
    """Record and kill; returns what was found.

    Args:
        root: an empty directory.
        seconds: how long to go on, at least.
        every_s: shortest and longest time between two kills.
        workers: of the recorder.
        seed: of the kills.
        storage: of the recorder.
        group: where the recorder is to run; None: nobody dies for lack of memory.
        victims: what to kill before what is drawn.
        show: told a line for each kill.
    """
    draw = random.Random(seed)
    first = list(victims)
    kinds = [victim for victim in VICTIMS if "memory" not in victim or group is not None]
    late = [victim for victim in kinds if victim.startswith("worker")]
    tally = Tally(root)
    half = time.monotonic() + seconds / 2
    end = half + seconds / 2
    settings = {**SETTINGS, **(ON_TAPE if storage == "tape" else {}), "workers": workers, "seed": seed}
    with Recorders(root) as recorders:
        life = Life(recorders, group, settings)
        while first or time.monotonic() < end:
            life.wait_until_it_plays()
            time.sleep(draw.uniform(*every_s))
            if (sample := look(life.recorder)) is not None:
                tally.samples.append(sample)
            victim = first.pop(0) if first else draw.choice(kinds if time.monotonic() < half else late)
            show(f"{victim}: {life.played:,} steps in this life, {tally.steps:,} collected")
            tally.kills[victim] += 1
            by_kernel = group if "memory" in victim else None
            if victim.startswith("worker"):
                life.lose_worker(tally, draw, by_kernel)
                tally.collect()
                continue
            life.kill(tally, by_kernel)
            if victim == "recovery":
                kill_while_it_recovers(root, Life(recorders, group, settings), draw, tally)
            expected = confirmed_now(root)
            life = Life(recorders, group, settings)
            tally.samples.clear()
            life.wait_until_it_plays()
            tally.collect()
            lost = set(expected) - tally.ids
            tally.check(not lost, f"{len(lost)} confirmed games are lost")
        life.recorder.signal(signal.SIGTERM)
        code = life.recorder.end()
        tally.check(code == 0, f"the recorder ended with {code}: {life.recorder.stderr[-500:]}")
        life.end(tally)
        tally.collect()
    tally.check(not list(root.glob(".*.partial")), "unfinished sessions are left")
    tally.check(not (root / ".quarantine").exists(), "something was put into the quarantine")
    missing = tally.played - tally.steps
    tally.check(missing >= 0, f"{-missing:,} steps are published that nobody played")
    tally.check(missing <= tally.at_risk, f"{missing:,} steps are missing; the bound is {tally.at_risk:,}")
    with contextlib.closing(Instance(root, "default")) as instance:
        tally.problems += unexplained(tally.ids, instance.load_state(seed), workers * HELD_GAMES_MAX)
    check_growth(tally)
    return tally


def kill_while_it_recovers(root: Path, life: Life, draw: random.Random, tally: Tally) -> None:
    """Kill a recorder soon after it has first touched what a dead one left (if that left anything)."""
    left, was = partials(root), snapshot(root)
    deadline = time.monotonic() + 30
    while left and snapshot(root) == was and time.monotonic() < deadline:
        time.sleep(0.0005)
    time.sleep(draw.uniform(0, 0.01))
    life.kill(tally)
    tally.kills["... before it was through"] += any(path.exists() for path in left)


def unexplained(ids: Collection[int], state: GameState, held_max: int) -> Iterator[str]:
    """Yield what is wrong with the ids of a seed's games, of which the last recorder ended in order.

    A killed recorder's games have gaps where games died with it, at most ``held_max``; the ids of the next
    recorder start far behind. ``state`` is the progress that the last one saved.
    """
    if not ids:
        return
    found = np.sort(np.fromiter(ids, np.int64, len(ids)))
    lives = np.split(found, np.flatnonzero(np.diff(found) > IDS_AHEAD // 2) + 1)
    has_last = state.next_id - found[-1] <= IDS_AHEAD // 2  # else it has published nothing
    for life in lives[:-1] if has_last else lives:
        if (missing := life[-1] - life[0] + 1 - len(life)) > held_max:
            yield f"{missing} games are missing from {life[0]} on"
    if has_last:
        free = {number for first, end in state.free for number in range(first, end)}
        due = set(range(int(lives[-1][0]), state.next_id)) - free
        if differ := due ^ set(lives[-1].tolist()):
            yield f"of the last recorder's games, {sorted(differ)[:9]} are missing or too many"


def check_growth(tally: Tally) -> None:
    """Compare the last third of the last daemon's samples with the one before it."""
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
    parser.add_argument("--every-s", type=float, nargs=2, default=(3.0, 8.0))
    parser.add_argument("--workers", type=int, default=2)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--storage", choices=("rows", "tape"), default="tape")
    args = parser.parse_args()
    processes.PATIENCE_S = 900.0  # a machine with other work may take minutes for a start

    def show(line: str) -> None:
        sys.stdout.write(f"{time.strftime('%H:%M:%S')} {line}\n")
        sys.stdout.flush()

    group = MemoryGroup.make()
    if group is None:
        show("no memory control group can be made here: nobody is killed for lack of memory")
    before = shared_memory()
    with memory_dir() as directory, group or contextlib.nullcontext():
        root = directory / "out"
        root.mkdir()
        tally = soak(
            root, seconds=60 * args.minutes, every_s=(args.every_s[0], args.every_s[1]),
            workers=args.workers, seed=args.seed, storage=args.storage, group=group, show=show,
        )  # fmt: skip
    more = shared_memory() - before
    tally.check(not more, f"left in /dev/shm: {sorted(more)}")
    missing = tally.played - tally.steps
    show(
        f"kills: {dict(tally.kills)}; {tally.sessions} sessions, {len(tally.ids):,} games, "
        f"{tally.steps:,} steps published of {tally.played:,} played, {missing:,} missing "
        f"(bound {tally.at_risk:,}); {len(tally.problems)} problems"
    )
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
