"""Power cuts of an ext4 while a recorder publishes on it; what was published is there, once.

::

    python -m tests.bench.power_cuts [--cuts 30] [--seed 1] [--kind ext4]

A recorder publishes about a session a second on a file system in a file (root). At a random time the file
system is shut down, without its log or a page being flushed, the recorder is killed, and the file system is
mounted again. Then a recorder starts in the same directory, and publishes more. Every game of a session whose
publication was reported before the cut is there, in a valid session; and no game comes twice, from the first
cut to the last. Sessions that are counted go, by the functions of ``tape2048 prune``, and do not come back.
"""

import argparse
import random
import re
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import remove_sessions
from tape2048.maintenance.validation import validate_session
from tape2048.session.session import Session, sessions

from ..recorder import processes
from ..recorder.checks import meta_of, partials
from ..recorder.disks import Looped, shut_down, sync
from ..recorder.processes import Recorder, Recorders, wait_until
from .figures import memory_dir

SETTINGS: dict[str, Any] = {
    "player": "expectimax", "storage": "tape", "block_rows": 4096, "rotate_steps": 30_000, "flush_s": 0.2,
    "seed": 11,
}  # fmt: skip

#: How often everything reaches the disk shortly before a cut, as the kernel may decide at any time.
SYNC_CHANCE = 0.5

#: What a recorder may say of blocks that a cut has taken.
MAY_BE_SAID = "rows did not match checksums"


class Tally:
    """What was published, over all cuts."""

    def __init__(self) -> None:
        self.ids: set[int] = set()
        self.sessions = 0
        self.recovered = 0  # sessions that a start made of what a cut had left
        self.confirmed = 0  # games of sessions that were reported before a cut, and not counted yet
        self.blocks_lost = 0  # reports of committed blocks that had not reached the disk
        self.problems: list[str] = []

    def collect(self, root: Path) -> None:
        """Check every session, count it, and remove it."""
        found = sessions(root)
        for path in found:
            report = validate_session(path)
            self.problems += [f"{path.name}: {finding.message}" for finding in report.findings]
            runs = Session.open(path).runs  # a session that is open is not removed
            ids = set(runs["id"].tolist())
            if len(ids) < len(runs) or ids & self.ids:
                self.problems.append(f"{path.name}: games that come twice")
            self.ids |= ids
            self.recovered += bool(meta_of(path)["recovered"])
        self.sessions += len(found)
        with RemovalLock(root) as upkeep:
            self.problems += [str(one.error) for one in remove_sessions(root, found, upkeep) if not one.gone]


def reported_games(recorder: Recorder, root: Path) -> set[int]:
    """The games of the sessions that a recorder has reported, as far as they are there."""
    names = {
        match[1] for event in recorder.events("info") if (match := re.match(r"published (\S+): ", event))
    }
    return {
        run for path in sessions(root) if path.name in names for run in Session.open(path).runs["id"].tolist()
    }


def cut(disk: Looped, recorder: Recorder, root: Path, draw: random.Random, tally: Tally) -> set[int]:
    """Cut the power some time from now; return the games that were published then."""
    time.sleep(draw.uniform(0, 3))
    if draw.random() < SYNC_CHANCE:
        sync(disk.mount_point)
        time.sleep(draw.uniform(0, 0.5))
    confirmed = reported_games(recorder, root)
    shut_down(disk.mount_point)
    errors = recorder.events("error")  # before it notices
    recorder.close()
    wait_until(lambda: not recorder.workers)
    tally.confirmed += len(confirmed)
    tally.blocks_lost += sum(MAY_BE_SAID in event for event in errors)
    tally.problems += [event for event in errors if MAY_BE_SAID not in event and "Input/output" not in event]
    disk.power_up()
    return confirmed


def cuts(
    directory: Path, *, count: int, seed: int = 1, kind: str = "ext4",
    show: Callable[[str], object] = lambda _: None,
) -> Tally:  # fmt: skip
    """Cut the power so many times; returns what was found."""
    draw, tally, confirmed = random.Random(seed), Tally(), set[int]()
    disk = Looped(kind, directory)
    root = disk.mount_point / "root"
    try:
        root.mkdir()
        with Recorders(root) as recorders:
            for number in range(count + 1):
                recorder = recorders.start(**SETTINGS)
                recorder.wait_for_event("published ")
                tally.collect(root)
                if lost := confirmed - tally.ids:
                    tally.problems.append(f"cut {number}: {len(lost)} published games are lost")
                show(f"{number} cuts: {len(tally.ids):,} games, {tally.problems or 'no problem'}")
                if number < count:
                    confirmed = cut(disk, recorder, root, draw, tally)
            recorder.stop()
        tally.collect(root)
        if left := partials(root):
            tally.problems.append(f"unfinished sessions are left: {left}")
    finally:
        disk.unmount()
    return tally


def main() -> int:
    """Cut, print what was found."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--cuts", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--kind", choices=("ext4", "xfs"), default="ext4")
    args = parser.parse_args()
    processes.PATIENCE_S = 900.0  # a machine with other work may take minutes for a start
    with memory_dir() as directory:

        def show(line: str) -> None:
            print(line, flush=True)

        tally = cuts(directory, count=args.cuts, seed=args.seed, kind=args.kind, show=show)
    print(
        f"{args.cuts} cuts: {tally.sessions} sessions, {tally.recovered} of them recovered; "
        f"{len(tally.ids):,} games, {tally.confirmed:,} of them in sessions that a cut could have taken; "
        f"{tally.blocks_lost} reports of committed rows that had not reached the disk"
    )
    print("\n".join(tally.problems) or "no problem")
    return 1 if tally.problems else 0


if __name__ == "__main__":
    sys.exit(main())
