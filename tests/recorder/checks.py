"""What has to hold of an output directory, whatever happened to the recorder that wrote it."""

import gc
import json
import os
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable
from contextlib import closing
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from tape2048.maintenance.validation import validate_session
from tape2048.session.session import Session, sessions
from tape2048_recorder.daemon.instance import Instance
from tape2048_recorder.game.rows_file import COLUMNS, RowsFile
from tape2048_recorder.recording.partial import JOURNAL, read_journal, staging_of
from tape2048_recorder.recording.publish import recover_all
from tape2048_recorder.recording.world import REAL, World
from tape2048_recorder.status.status_report import Level, Status

from .materials import Blocks, Prepared

#: The columns of a run that its game decides, wherever its rows lie.
OUTCOME = ("run_id", "seed", "steps", "score", "highest_tile")


def descriptors() -> int:
    """How many descriptors this process has open; garbage of earlier tests closes its own first."""
    gc.collect()
    return len(os.listdir("/proc/self/fd"))  # noqa: PTH208 - the count alone


class Listener:
    """A reporter that remembers what it was told."""

    def __init__(self) -> None:
        self.events: list[tuple[str, str]] = []

    def event(self, level: Level, message: str) -> None:
        self.events.append((level, message))

    def status(self, make_status: Callable[[], Status]) -> None:
        pass

    def messages(self, level: str) -> list[str]:
        return [message for at, message in self.events if at == level]


class Run(NamedTuple):
    """A published run, read from the files and not through the SDK."""

    session: Path
    outcome: tuple[int, ...]
    data: bytes  # its rows, and those of each column


def published_runs(root: Path) -> list[Run]:
    """All runs of all sessions in a directory."""
    found = []
    for path in sessions(root):
        meta = meta_of(path)
        columns = map(COLUMNS.__getitem__, meta["config"].get("columns", "").split())
        file = RowsFile.of(meta["storage"], record_action=meta["record_action"])
        files = [
            (each, (path / each.name).read_bytes()) for each in (file, *map(RowsFile.of_column, columns))
        ]
        with closing(sqlite3.connect(f"file:{path / 'metadata.db'}?mode=ro", uri=True)) as database:
            table = database.execute(
                "SELECT id, seed, steps, max_score, highest_tile, first_row, rows FROM runs ORDER BY id"
            ).fetchall()
        for *outcome, first, count in table:
            data = b"".join(rows[each.at(first) : each.at(first + count)] for each, rows in files)
            found.append(Run(path, tuple(outcome), data))
    return found


def run_table(root: Path) -> NDArray[np.void]:
    """The run tables of all sessions, one after another."""
    return np.concatenate([Session.open(path).runs for path in sessions(root)])


def meta_of(session: Path) -> dict[str, Any]:
    with closing(sqlite3.connect(f"file:{session / 'metadata.db'}?mode=ro", uri=True)) as database:
        return {
            key: json.loads(value)
            for key, value in database.execute("SELECT meta_key, meta_value FROM session")
        }


def expected_runs(blocks: Iterable[Prepared]) -> dict[int, tuple[tuple[int, ...], bytes]]:
    """What the run table and the rows say of the games in these blocks."""
    expected = {}
    for block in blocks:
        for run in block.runs:
            first, count = int(run["first_row"]), int(run["rows"])
            signed = int(run["seed"].astype(np.int64))
            outcome = tuple(signed if name == "seed" else int(run[name]) for name in OUTCOME)
            parts = (
                data[first * file.row_bytes : (first + count) * file.row_bytes] for file, data in block.files
            )
            expected[int(run["run_id"])] = (outcome, b"".join(parts))
    return expected


def partials(root: Path) -> list[Path]:
    return sorted(root.glob(".*.partial"))


def assert_sessions_valid(root: Path) -> None:
    for path in sessions(root):
        report = validate_session(path)
        assert report.ok, report.findings
        assert report.checksums


def assert_all_published(root: Path) -> None:
    """Every session is valid, and none is unfinished."""
    assert_sessions_valid(root)
    assert not partials(root)


def recover(root: Path, instance: str = "default", world: World = REAL) -> tuple[list[Path], Listener]:
    """What the next start does with a directory before it plays, under the instance's lock."""
    listener = Listener()
    lock = Instance(root, instance)
    try:
        return recover_all(root, instance, listener, world), listener
    finally:
        lock.close()


def snapshot(root: Path) -> dict[str, tuple[int, ...]]:
    """Every file and directory, but those of the lock, with all that changes when somebody touches it."""
    found = {}
    for path in [*root.glob("*"), *root.glob("*/*"), *root.glob(".*.partial/**/*")]:
        if ".recorder" not in path.parts:
            try:
                status = path.lstat()
            except FileNotFoundError:  # a recorder is at work: it was removed since it was listed
                continue
            found[str(path)] = (status.st_ino, status.st_size, status.st_mtime_ns, status.st_ctime_ns)
    return found


def assert_holds(
    root: Path,
    blocks: Blocks,
    *,
    confirmed: Iterable[int],
    confirming: Iterable[int],
    published_alive: Iterable[Path],
) -> None:
    """After any death: what was confirmed is published once, as it was written, by the next start.

    Args:
        root: as the dead recorder left it.
        blocks: what it may have written.
        confirmed: numbers of the blocks that it was told are safe.
        confirming: numbers of those whose confirmation had begun; they may be there.
        published_alive: the sessions that it had published itself. The others are of a recovery.
    """
    before, alive = set(sessions(root)), set(published_alive)
    recovered, listener = recover(root)
    assert not listener.messages("error")
    assert not partials(root), f"left: {partials(root)}"
    assert set(sessions(root)) == before | set(recovered)
    assert_sessions_valid(root)
    for path in sessions(root):
        assert meta_of(path)["recovered"] == (path not in alive), f"recovered is wrong in {path.name}"

    runs = published_runs(root)
    counts = Counter(run.outcome[0] for run in runs)
    assert all(count == 1 for count in counts.values()), f"published more than once: {counts}"
    missing = {run_id for number in confirmed for run_id in blocks[number].ids} - set(counts)
    assert not missing, f"confirmed and lost: {sorted(missing)}"
    extra = set(counts) - {run_id for number in confirming for run_id in blocks[number].ids}
    assert not extra, f"published and never confirmed: {sorted(extra)}"
    written = expected_runs(blocks)
    for run in runs:
        outcome, data = written[run.outcome[0]]
        assert run.outcome == outcome
        assert run.data == data, f"run {run.outcome[0]} is not what was written"

    after = snapshot(root)
    again, listener = recover(root)
    assert again == []
    assert listener.events == []
    assert snapshot(root) == after, "a second recovery changed something"


def confirmed_now(root: Path) -> dict[int, tuple[int, ...]]:
    """What stands in the journals and sessions of a recorder that was just killed."""
    return {run.outcome[0]: run.outcome for run in published_runs(root)} | confirmed_in_journals(root)


def confirmed_in_journals(root: Path) -> dict[int, tuple[int, ...]]:
    """What stands in the journals of a recorder that was just killed."""
    found = {}
    for partial in partials(root):
        stage = staging_of(partial)
        if not (stage / "session").is_dir() or not (stage / JOURNAL).exists():
            continue  # a shell, or killed while it began
        row_bytes = int.from_bytes((stage / JOURNAL).read_bytes()[8:16], "little")
        for block in read_journal(stage / JOURNAL, row_bytes):
            for run in block.runs:
                seed = int(run["seed"].astype(np.int64))
                outcome = (
                    int(run["run_id"]),
                    seed,
                    *(int(run[name]) for name in ("steps", "score", "highest_tile")),
                )
                found[outcome[0]] = outcome
    return found


def assert_recovers_all_that_was_confirmed(root: Path) -> None:
    """The next start publishes what the journals of a recorder that was just killed hold, and no more."""
    confirmed = confirmed_now(root)
    visible = set(sessions(root))
    recovered, listener = recover(root)
    assert not listener.messages("error")
    assert not partials(root)
    assert set(sessions(root)) == visible | set(recovered)
    assert_sessions_valid(root)
    for path in sessions(root):
        assert meta_of(path)["recovered"] == (path not in visible)
    runs = published_runs(root)
    assert Counter(run.outcome[0] for run in runs) == Counter(confirmed.keys()), "none lost, none twice"
    assert {run.outcome for run in runs} == set(confirmed.values())
