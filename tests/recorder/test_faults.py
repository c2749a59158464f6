"""Real recorders with real workers, disturbed the way the world disturbs them."""

import contextlib
import errno
import hashlib
import json
import os
import random
import resource
import shutil
import signal
import socket
import subprocess
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.errors import BusyError, DiskFullError, RecorderError, StartError, StorageError
from tape2048.jit.compiler import private_dir
from tape2048.ntuple.network import save_network
from tape2048.session.layout import STEP_DTYPE
from tape2048.session.session import sessions
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.replay.replay import replay_session

from .checks import (
    assert_all_published,
    assert_recovers_all_that_was_confirmed,
    assert_sessions_valid,
    confirmed_now,
    meta_of,
    partials,
    published_runs,
    recover,
    run_table,
)
from .disks import files_end_at, tmpfs
from .ntuple_training import slow
from .processes import (
    Recorder,
    Recorders,
    cpu_s,
    environment,
    kill,
    resident_mb,
    shared_memory,
    wait_until,
    wait_until_idle,
    workers_of,
)

pytestmark = pytest.mark.slow

SEED = 99
#: Half a million rows: seven sessions of the usual size here, or a second of play.
GAMES = 4_000
#: One worker, whose first game takes 8,909 steps of a player that makes some thousands a second, and a
#: status soon after its begin: a signal then comes in the middle of a game.
SLOW: dict[str, Any] = {
    "player": "expectimax",
    "player_args": {"depth": 3},
    "workers": 1,
    "seed": 11,
    "hooks": {"tape2048_recorder.daemon.daemon:STATUS_INTERVAL_S": 0.05},
}
#: A thousand games a second, of about a hundred rows each: enough to be in the middle of things.
CALM = {"player": "expectimax", "sample_rate": 20}
#: A hundred thousand games a second.
FAST = {"sample_rate": 100}
#: Each step of the calm games.
TAPE = {"player": "expectimax", "storage": "tape"}


def published_ids(root: Path) -> list[int]:
    return [run.outcome[0] for run in published_runs(root)]


def assert_contiguous(ids: list[int]) -> None:
    assert ids
    assert sorted(ids) == list(range(len(ids)))


def assert_every_game_accounted_for(root: Path) -> None:
    """Each game is recorded once, or the instance remembers that the next start has to play it."""
    state = json.loads((root / ".recorder" / "default.json").read_bytes())
    to_play = [game for first, end in state["free"] for game in range(first, end)]
    assert sorted(published_ids(root) + to_play) == list(range(state["next_id"]))


def wait_for_games(recorder: Recorder) -> dict[str, Any]:
    return recorder.wait_for_status(lambda status: status["games"] > 0)


def test_sigterm_drains(recorders: Recorders, root: Path) -> None:
    recorder = recorders.start(seed=SEED, **CALM)
    wait_for_games(recorder)
    recorder.stop()
    assert recorder.summary["reason"] == "SIGTERM was received"
    assert recorder.summary["games_dropped"] == 0
    assert_all_published(root)
    runs = run_table(root)
    assert_contiguous([int(run_id) for run_id in runs["run_id"]])
    assert recorder.summary["games"] == len(runs)
    np.testing.assert_array_equal(runs["seed"], game_seeds(SEED, runs["run_id"]))
    assert {str(path) for path in sessions(root)} == set(recorder.summary["sessions"])
    assert not any(meta_of(path)["recovered"] for path in sessions(root))


def test_other_signals_drain_too(recorders: Recorders, root: Path) -> None:
    recorder = recorders.start(**CALM)
    wait_for_games(recorder)
    for worker in recorder.workers:  # a terminal and systemd signal them too; they leave it to the daemon
        for number in (signal.SIGINT, signal.SIGTERM):
            kill(worker, number)
    recorder.signal(signal.SIGINT)
    assert recorder.end() == 0
    assert recorder.summary["reason"] == "SIGINT was received"
    assert recorder.summary["games_dropped"] == 0
    assert not recorder.events("warning")


def test_the_drain_finishes_games_and_starts_none(recorders: Recorders, root: Path) -> None:
    recorder = recorders.start(**SLOW, drain_timeout_s=3600)
    recorder.wait_for_status(lambda status: status["steps"] > 0)
    recorder.stop()
    assert recorder.summary["games_dropped"] == 0
    assert 1 <= recorder.summary["games"] < 8, "the worker was given eight"
    assert_every_game_accounted_for(root)


def test_a_stopped_worker_does_not_stop_the_drain(recorders: Recorders, root: Path) -> None:
    hooks = {"tape2048_recorder.daemon.daemon:HURRY_GRACE_S": 0.5}
    recorder = recorders.start(workers=2, drain_timeout_s=0.3, hooks=hooks, seed=SEED, **CALM)
    recorder.wait_for_status(lambda status: status["workers_ready"] == 2 and status["recorded_rows"] > 0)
    stopped = recorder.workers[0]
    kill(stopped, signal.SIGSTOP)
    begin = time.monotonic()
    recorder.stop()
    assert time.monotonic() - begin > 0.8, "the drain's time and the grace"
    assert any(
        f"pid {stopped}) ended while draining: killed by SIGKILL" in event
        for event in recorder.events("warning")
    )
    assert not Path(f"/proc/{stopped}").exists()
    assert_sessions_valid(root)
    assert len(published_ids(root)) == recorder.summary["games"] > 0


@pytest.mark.parametrize(
    "limit",
    [
        {"max_steps": 1, "player": "greedy", "storage": "tape"},
        {"max_disk_mb": 1, "player": "greedy", "storage": "rows"},
    ],
    ids=lambda limit: "-".join(map(str, limit.values())),
)
def test_limits_overshoot_by_a_game_per_worker(
    recorders: Recorders, root: Path, limit: dict[str, Any]
) -> None:
    """Also where a block or a slice of play holds far more rows."""
    name, value = next(iter(limit.items()))
    large = dict.fromkeys(("block_rows", "rotate_steps"), 10_000_000)
    summary = recorders.run(workers=2, seed=SEED, **limit, **large).summary
    assert summary["reason"].startswith(f"{name} = {value} was reached")
    assert_sessions_valid(root)
    runs = run_table(root)
    game = int(runs["rows"].max())
    assert len(runs) == summary["games"]
    if name == "max_steps":
        assert value <= summary["rows"] == runs["rows"].sum() < value + 2 * game
    else:
        assert 0.97e6 <= summary["bytes"] <= 1.01e6 + 2 * game * (28 if limit["storage"] == "rows" else 1.5)


def test_a_limit_before_the_first_move_is_an_error(recorders: Recorders, root: Path) -> None:
    recorder = recorders.fail(StartError, max_ram_mb=1, **CALM)
    assert recorder.error["message"].startswith(f"{root}: nothing was recorded: max_ram_mb = 1 was reached")
    assert not sessions(root)


def test_a_stop_before_the_first_game_is_no_error(recorders: Recorders, tmp_path: Path) -> None:
    hooks = only_workers_see(tmp_path, "sitecustomize", "import time\ntime.sleep(600)")
    recorder = recorders.start(hooks=hooks, **CALM)
    recorder.wait_for_status(lambda status: status["state"] == "starting")
    recorder.stop()
    assert recorder.summary["games"] == 0


def assert_workers_end(recorder: Recorder) -> None:
    """The workers of a killed recorder play no more, however long they take to be gone."""
    used: dict[int, list[float]] = {}

    def are_gone() -> bool:
        left = workers_of(recorder.pid)
        for pid in left:
            with contextlib.suppress(OSError):  # it has just gone
                used.setdefault(pid, []).append(cpu_s(pid))
        return not left

    wait_until(are_gone)
    assert all(seen[-1] - seen[0] < 1 for seen in used.values()), used


@pytest.mark.parametrize("pace", [FAST, TAPE], ids=["fast", "tape"])
def test_killed_at_any_moment(recorders: Recorders, root: Path, pace: dict[str, Any]) -> None:
    before = shared_memory()
    recorder = recorders.start_recording(workers=2, seed=SEED, rotate_steps=5_000, **pace)
    time.sleep(random.Random(str(pace)).uniform(0, 0.15))
    assert len(recorder.workers) == 2
    recorder.signal(signal.SIGKILL)
    assert recorder.end() == -signal.SIGKILL
    assert_workers_end(recorder)
    wait_until(lambda: shared_memory() <= before)

    assert_recovers_all_that_was_confirmed(root)


def test_the_next_start_publishes_leftovers(recorders: Recorders, root: Path) -> None:
    hooks = {
        "tape2048_recorder.daemon.instance:IDS_AHEAD": 64
    }  # few, so that they are used up within the test
    recorder = recorders.start(seed=SEED, rotate_steps=10**9, hooks=hooks, **CALM)
    recorder.wait_for_status(lambda status: status["recorded_rows"] > 5_000)
    recorder.signal(signal.SIGKILL)
    recorder.end()
    confirmed = confirmed_now(root)
    assert not sessions(root)
    again = recorders.run(seed=SEED, max_games=500, hooks=hooks, **CALM)
    assert [Path(path).name for path in again.summary["recovered"]] == [sessions(root)[0].name]
    assert any("from a killed recorder" in event for event in again.events("warning"))
    assert_sessions_valid(root)
    assert meta_of(sessions(root)[0])["recovered"]
    ids = published_ids(root)
    assert len(ids) == len(confirmed) + 500
    assert len(set(ids)) == len(ids), "a game was recorded twice"


#: What a worker runs before anything else: the block that it is about to report, once, goes wrong.
MAD_WORKER = """
import os
from tape2048_recorder.ipc import protocol

FLAG, POOR = {flag!r}, {flag!r} + "-poor"
send = protocol.Channel.send
blocks = 0

def mad_send(channel, *messages):
    global blocks
    message = messages[0]
    if isinstance(message, protocol.BlockWritten):
        blocks += 1
        if blocks == 3:
            try:
                os.close(os.open(FLAG, os.O_CREAT | os.O_EXCL))
            except FileExistsError:
                pass  # another one was mad before
            else:
                {deed}
    elif isinstance(message, protocol.Starts) and os.path.exists(POOR):
        os.unlink(POOR)
        raise MemoryError("for a while")
    send(channel, *messages)

protocol.Channel.send = mad_send
"""

DEEDS = {
    "it is killed when it has said so": (
        "send(channel, *messages); os.kill(os.getpid(), 9)",
        "killed by SIGKILL",
    ),
    "its successor finds no memory": (
        "open(POOR, 'x').close(); os.kill(os.getpid(), 9)",
        "MemoryError: for a while",
    ),
    "it crashes": ("raise ValueError('mad')", "ValueError: mad"),
    "it sends noise": ("channel._socket.sendall(bytes([255]) * 64)", "sent an invalid message"),
    "it claims other rows": ("message.rows += 1", "sent an invalid message"),
}


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[tuple[int, ...], bytes]:
    """Games as one worker records them when nothing goes wrong: outcome to rows."""
    root = tmp_path_factory.mktemp("undisturbed")
    with Recorders(root) as recorders:
        recorders.run(workers=1, seed=SEED, max_games=GAMES)
    return {run.outcome: run.data for run in published_runs(root)}


def test_two_workers_record_what_one_does(
    recorders: Recorders, root: Path, undisturbed: dict[tuple[int, ...], bytes]
) -> None:
    recorder = recorders.run(workers=2, seed=SEED, max_games=GAMES)
    assert len(undisturbed) == recorder.summary["games"] == GAMES
    assert {run.outcome: run.data for run in published_runs(root)} == undisturbed


@pytest.mark.parametrize("name", DEEDS)
def test_a_failing_worker_is_replaced_without_a_trace(
    recorders: Recorders, root: Path, tmp_path: Path, undisturbed: dict[tuple[int, ...], bytes], name: str
) -> None:
    deed, said = DEEDS[name]
    code = MAD_WORKER.format(flag=str(tmp_path / "flag"), deed=deed)
    workers = 1 if "successor" in name else 2  # or another worker can play all games before it starts
    hooks = only_workers_see(tmp_path, "sitecustomize", code)
    recorder = recorders.run(workers=workers, seed=SEED, max_games=GAMES, hooks=hooks)
    warnings = recorder.events("warning")
    assert sum(said in warning for warning in warnings) == 1, warnings
    assert_sessions_valid(root)
    runs = published_runs(root)
    assert len(runs) == recorder.summary["games"] == GAMES
    assert {run.outcome: run.data for run in runs} == undisturbed


#: A module that a worker cannot import.
BROKEN = "raise ImportError('broken on purpose')"


def only_workers_see(directory: Path, module: str, code: str) -> dict[str, str]:
    """Hooks with which workers, and not the daemon, import this code as that module."""
    (directory / f"{module}.py").write_text(code)
    return {"environ:PYTHONPATH": f"{directory}{os.pathsep}{environment()['PYTHONPATH']}"}


#: Stops the second worker before its program runs.
STOPPED = """
import os, signal
if b'"index":1,' in open("/proc/self/cmdline", "rb").read():
    os.kill(os.getpid(), signal.SIGSTOP)
"""


def test_a_worker_that_never_starts_is_not_awaited(recorders: Recorders, root: Path, tmp_path: Path) -> None:
    hooks = only_workers_see(tmp_path, "sitecustomize", STOPPED)
    recorder = recorders.run(workers=2, seed=SEED, max_games=20, player="expectimax", hooks=hooks)
    assert recorder.summary["reason"] == "max_games = 20 was reached"
    assert_contiguous(published_ids(root))
    statuses = [said["status"] for said in recorder.said if "status" in said]
    assert not [status for status in statuses if status["state"] == "starting" and status["games"]]
    assert not recorder.events("warning")


def test_a_worker_that_never_starts_is_replaced(recorders: Recorders, root: Path, tmp_path: Path) -> None:
    hooks = only_workers_see(tmp_path, "sitecustomize", STOPPED)
    recorder = recorders.start(workers=2, seed=SEED, worker_silence_s=2.0, hooks=hooks, **CALM)
    said = recorder.wait_for_event("worker 1 (pid ")
    assert "has made no progress for 2 s (state T, stopped" in said
    recorder.wait_for_event("; 0 unrecorded games will be played again, another starts in")
    recorder.stop()
    assert_contiguous(published_ids(root))


def test_a_worker_that_cannot_load_its_player_ends_it(
    recorders: Recorders, root: Path, tmp_path: Path
) -> None:
    recorder = recorders.fail(StartError, hooks=only_workers_see(tmp_path, "numba", BROKEN))
    assert "broken on purpose" in recorder.error["message"]
    assert not recorder.workers


def test_workers_that_die_at_once_end_it(recorders: Recorders, root: Path, tmp_path: Path) -> None:
    hooks = {
        **only_workers_see(tmp_path, "crc32c", BROKEN),
        "tape2048_recorder.daemon.supervisor:BACKOFF_MAX_S": 0.4,
    }
    recorder = recorders.fail(RecorderError, hooks=hooks)
    assert "exit status 1" in recorder.error["message"]
    assert "broken on purpose" in recorder.stderr
    assert recorder.error["message"].endswith("ended: exit status 1"), "nobody plays its games again"
    assert recorder.count("another starts in") == 7, "none after the eighth"


def test_a_network_that_is_overwritten_costs_no_game(
    recorders: Recorders, root: Path, tmp_path: Path
) -> None:
    """Workers map one table. What is played after it changed is played again, from a new one."""
    save_network(slow.random_network("012345", dtype=np.int16), tmp_path / "network")
    source = hashlib.sha256((tmp_path / "network").read_bytes()).hexdigest()
    table = private_dir("networks", source) / "table"
    player = {"player": "ntuple", "player_args": {"weights": str(tmp_path / "network")}}
    try:
        recorder = recorders.start_recording(workers=2, **player)
        table.chmod(0o600)
        with table.open("r+b") as file:
            file.write(np.random.default_rng(1).bytes(30_000_000))
        recorder.wait_for_event("this shared table of a network has changed since it was loaded")
        rows = recorder.next_status()["recorded_rows"]
        recorder.wait_for_status(lambda status: status["recorded_rows"] > rows + 20_000)
        recorder.stop()
        for path in sessions(root):
            assert replay_session(path).findings == ()
    finally:
        shutil.rmtree(table.parent)


@pytest.mark.root
def test_a_full_disk_pauses_it_until_there_is_room(recorders: Recorders, small_disk: Path) -> None:
    out_dir = small_disk / "out"
    (small_disk / "more").write_bytes(bytes(7 << 20))
    # A megabyte lasts for a second, and what there is after the ballast is gone for half a minute.
    recorder = recorders.start(
        player="expectimax",
        sample_rate=20,
        workers=2,
        out_dir=str(out_dir),
        seed=SEED,
        rotate_steps=10_000,
        hooks={"tape2048_recorder.daemon.daemon:FLOWING_S": 1.2},
    )
    said = recorder.wait_for_event("paused: ")
    assert any(why in said for why in ("the disk is full", "no room", "no space left")), said
    workers = recorder.workers
    assert len(workers) == 2
    wait_until_idle(workers)
    steps, before = recorder.next_status()["steps"], cpu_s(recorder.pid)
    time.sleep(2.5)
    assert cpu_s(recorder.pid) - before < 1, "the daemon is busy waiting"
    assert recorder.workers == workers
    after = recorder.next_status()
    assert (after["state"], after["steps"]) == ("paused", steps), "workers play while nothing can be written"
    assert recorder.count("paused") == 1
    assert recorder.count("recording again") == 0

    (small_disk / "ballast").unlink()
    recorder.wait_for_event("recording again")
    recorder.stop()
    assert recorder.count("paused") == 1
    assert recorder.count("recording again") == 1
    assert not recorder.events("error")
    assert_all_published(out_dir)
    assert len(published_ids(out_dir)) == recorder.summary["games"]
    assert_every_game_accounted_for(out_dir)


@contextlib.contextmanager
def limited(pids: list[int], kind: int, value: int) -> Iterator[None]:
    """A limit on resources that these processes meet while they run."""
    before = [resource.prlimit(pid, kind) for pid in pids]
    for pid, (_, hard) in zip(pids, before, strict=True):
        resource.prlimit(pid, kind, (value, hard))
    yield
    for pid, limits in zip(pids, before, strict=True):
        with contextlib.suppress(ProcessLookupError):
            resource.prlimit(pid, kind, limits)


class Writes:
    """The writes of a recorder: of the journal, by the daemon, and of rows, by workers. They can fail."""

    def __init__(self, directory: Path) -> None:
        self._flags = {what: directory / f"{what} fail" for what in ("journal", "rows")}
        module = "tests.recorder.failing_writes"
        code = f"import {module} as writes\nwrites.FLAG = {str(self._flags['rows'])!r}"
        self.hooks: dict[str, Any] = {
            **only_workers_see(directory, "sitecustomize", code),
            f"{module}:FLAG": str(self._flags["journal"]),
        }

    @contextlib.contextmanager
    def failing(self, what: str, code: int) -> Iterator[None]:
        self._flags[what].symlink_to(str(code))
        yield
        self._flags[what].unlink()


#: Failed writes that can succeed later, and what the log calls them.
PASSING = {
    errno.ENOSPC: "no room: writing rows failed (No space left on device)",
    errno.EDQUOT: "no room: writing rows failed (Disk quota exceeded)",
    errno.EIO: "writing rows failed (Input/output error)",
    errno.EROFS: "writing rows failed (Read-only file system)",
    errno.EACCES: "writing rows failed (Permission denied)",
    errno.EMFILE: "writing rows failed (Too many open files)",
    errno.ENOMEM: "writing rows failed (Cannot allocate memory)",
}


def test_failed_writes_are_repeated(recorders: Recorders, root: Path, tmp_path: Path) -> None:
    writes = Writes(tmp_path)
    hooks = {"tape2048_recorder.daemon.daemon:FLOWING_S": 0.2, **writes.hooks}
    recorder = recorders.start_recording(seed=SEED, rotate_steps=10**9, hooks=hooks, **CALM)
    journal = writes.failing("journal", errno.EIO), "writing the journal failed (Input/output error)"
    failures = [journal, *((writes.failing("rows", code), said) for code, said in PASSING.items())]
    for times, (failure, said) in enumerate(failures, start=1):
        with failure:
            assert "written as soon as that is possible" in recorder.wait_for_event(said)
            time.sleep(1.2)  # it is tried again
            assert recorder.count("paused: ") == times
            rows, seen = recorder.next_status()["recorded_rows"], len(recorder.said)
        recorder.wait_for(lambda said: "recording again" in said.get("event", ""), after=seen)
    recorder.stop()
    assert recorder.summary["rows"] > rows
    assert recorder.count("paused: ") == len(failures)
    assert_sessions_valid(root)
    assert_every_game_accounted_for(root)


def test_sessions_end_at_the_largest_file(recorders: Recorders, root: Path) -> None:
    """Also where a block is larger."""
    settings: dict[str, Any] = {"block_rows": 1 << 16, "rotate_steps": 10**9}
    with files_end_at(1_000_000):
        recorder = recorders.run(seed=SEED, max_games=GAMES, **settings)
    assert recorder.count("1,000,000 bytes here (ulimit -f, LimitFSIZE=). Each session ends there") == 1
    assert recorder.count("File too large") == 0
    assert_contiguous(published_ids(root))
    assert recorder.summary["games"] == GAMES
    assert len(sessions(root)) > 1
    assert_sessions_valid(root)
    assert all(file.stat().st_size <= 1_000_000 for path in sessions(root) for file in path.iterdir())


def test_a_game_larger_than_the_largest_file_ends_it(recorders: Recorders, root: Path) -> None:
    with files_end_at(20_000):
        recorder = recorders.fail(StorageError, seed=SEED, player="expectimax", flush_s=0.1)
    error = f"{root}: files can have 20,000 bytes here (ulimit -f, LimitFSIZE=), too few for a game"
    assert recorder.error["message"] == error
    assert_every_game_accounted_for(root)


@pytest.mark.root
@pytest.mark.parametrize("storage", ["rows", "tape"])
def test_what_fits_on_a_small_disk_is_published(recorders: Recorders, tmp_path: Path, storage: str) -> None:
    """A block of these games is larger than the disk."""
    with tmpfs(tmp_path / "disk", 1):
        out_dir = tmp_path / "disk" / "out"
        settings = {"storage": storage, "block_rows": None, "drain_timeout_s": 0.1, "seed": SEED}
        recorder = recorders.start(out_dir=str(out_dir), flush_s=3600.0, rotate_steps=10**9, **settings)
        recorder.wait_for_event("paused: the disk is full")
        recorder.signal(signal.SIGTERM)
        assert recorder.end() == DiskFullError.exit_code
        assert "are lost (the disk is full: " in recorder.error["message"]
        assert_all_published(out_dir)
        used = sum(file.stat().st_size for path in sessions(out_dir) for file in path.iterdir())
        assert used > 700_000
        assert_every_game_accounted_for(out_dir)


def test_no_free_descriptor_pauses_like_a_full_disk(recorders: Recorders, root: Path) -> None:
    hooks = {"tape2048_recorder.daemon.daemon:FLOWING_S": 0.5}
    recorder = recorders.start_recording(seed=SEED, rotate_steps=10**9, hooks=hooks, **CALM)
    with limited([recorder.pid], resource.RLIMIT_NOFILE, 3):
        recorder.signal(signal.SIGUSR1)
        assert "Too many open files" in recorder.wait_for_event("paused: ")
        time.sleep(1.5)  # it is tried again, and refused; so is the next session's directory
        assert recorder.count("paused: ") == 1
    recorder.wait_for_event("recording again")
    recorder.stop()
    assert_sessions_valid(root)
    assert_every_game_accounted_for(root)
    shells = [list(path.iterdir()) for path in partials(root)]  # of what was published meanwhile
    assert len(shells) <= 1
    assert not recover(root)[0]
    assert not partials(root)


def test_metrics_clients_take_no_descriptors(recorders: Recorders, root: Path) -> None:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        address = probe.getsockname()
    listen = f"{address[0]}:{address[1]}"
    recorder = recorders.start(seed=SEED, rotate_steps=20_000, metrics_listen=listen, **CALM)
    recorder.wait_for_status(lambda status: status["sessions"] > 0)
    with limited([recorder.pid], resource.RLIMIT_NOFILE, 64), contextlib.ExitStack() as stack:
        for _ in range(80):
            visitor = stack.enter_context(socket.create_connection(address, timeout=60))
            visitor.sendall(b"GET /metrics HTTP/1.1\r\n")
        published = recorder.count("published ")
        recorder.wait_for(lambda _: recorder.count("published ") > published + 3)
        recorder.stop()
    assert recorder.count("paused: ") == 0
    assert_every_game_accounted_for(root)


@pytest.mark.parametrize(
    ("what", "code"),
    [
        ("journal", errno.EIO),
        ("journal", errno.EDQUOT),
        ("rows", errno.ENOSPC),
        ("rows", errno.EIO),
    ],
)
def test_finished_games_that_find_no_room_are_an_error(
    recorders: Recorders, root: Path, tmp_path: Path, what: str, code: int
) -> None:
    writes = Writes(tmp_path)
    hooks = {
        **writes.hooks,
        "tape2048_recorder.daemon.daemon:HURRY_GRACE_S": 1.5,
        "tape2048_recorder.daemon.daemon:ROOM_GRACE_S": 0.0,
        "import:slow_publisher": True,
        "slow_publisher:GO": str(tmp_path / "go"),
    }
    settings = {"workers": 1, "seed": SEED, "rotate_steps": 10**9, "drain_timeout_s": 0.3}
    recorder = recorders.start_recording(**settings, **CALM, hooks=hooks)
    with writes.failing(what, code):
        recorder.wait_for_event("paused: ")
        wait_until_idle(recorder.workers)
        recorder.signal(signal.SIGTERM)
        wait_until(lambda: not recorder.workers)
        if what == "journal":  # until it has heard of the death, room would still save the block
            recorder.wait_for_event("ended while draining")
    (tmp_path / "go").touch()
    assert recorder.end() == (StorageError if code == errno.EIO else DiskFullError).exit_code
    assert "could not be written before the drain timed out, and are lost (" in recorder.error["message"]
    assert f"({os.strerror(code)})" in recorder.error["message"]
    last = [said["status"]["why"] for said in recorder.said if "status" in said][-1]
    assert last == "SIGTERM was received", "a pause is no reason of an end"
    # A worker whose rows are written is killed while it waits; one that holds its rows can let them go.
    assert recorder.count("ended while draining: killed") == (what == "journal")
    assert_all_published(root)
    assert_every_game_accounted_for(root)


def block_memory(root: Path) -> Path:
    """Keep a recorder from writing its memory; return where the last one is."""
    memory = root / ".recorder" / "default.json"
    saved = memory.rename(root / "saved.json")
    memory.mkdir()
    return saved


def test_unwritable_progress_at_the_end_is_a_warning(recorders: Recorders, root: Path) -> None:
    recorder = recorders.start_recording(seed=SEED, **CALM)
    saved = block_memory(root)
    recorder.stop()
    warning = recorder.events("warning")[-1]
    assert "writing the instance's progress failed" in warning
    assert "The next start with this seed skips some games" in warning
    assert len(published_ids(root)) == recorder.summary["games"] > 0
    state = json.loads(saved.read_bytes())
    assert max(published_ids(root)) < state["next_id"]


def test_too_little_room_to_begin(recorders: Recorders, root: Path) -> None:
    recorder = recorders.fail(DiskFullError, min_free_mb=10**9)
    assert "min_free_mb = 1000000000" in recorder.error["message"]


@pytest.mark.root
def test_a_disk_that_cannot_be_written(recorders: Recorders, tmp_path: Path) -> None:
    path = tmp_path / "disk"
    with tmpfs(path, 1):
        subprocess.run(["mount", "-o", "remount,ro", str(path)], check=True)
        for out_dir in (path, path / "below"):
            recorder = recorders.fail(StorageError, out_dir=str(out_dir))
            assert "Read-only file system" in recorder.error["message"]
            assert recorder.error["hint"]


def test_an_out_dir_that_is_a_file(recorders: Recorders, tmp_path: Path) -> None:
    (tmp_path / "file").write_text("mine")
    for out_dir in (tmp_path / "file", tmp_path / "file" / "below"):
        recorder = recorders.fail(StorageError, out_dir=str(out_dir))
        assert recorder.error["message"] == f"{out_dir}: found a file, expected a directory"
    assert (tmp_path / "file").read_text() == "mine"


def test_an_out_dir_that_vanishes(recorders: Recorders, root: Path) -> None:
    hooks = {
        "tape2048_recorder.daemon.daemon:FLOWING_S": 0.3,
        "tape2048_recorder.daemon.daemon:ROOM_GRACE_S": 0.0,
    }
    recorder = recorders.start_recording(rotate_steps=10**9, drain_timeout_s=0.3, hooks=hooks, **CALM)
    root.rename(root.with_name("elsewhere"))
    assert "No such file or directory" in recorder.wait_for_event("paused: ")
    root.with_name("elsewhere").rename(root)  # an unmounted disk can come back
    recorder.wait_for_event("recording again")
    shutil.rmtree(root)
    assert recorder.end() == StorageError.exit_code
    assert "the recorder's lock file was removed" in recorder.error["message"]
    assert recorder.error["hint"]


def test_an_out_dir_that_is_made_again_ends_it(recorders: Recorders, root: Path) -> None:
    """Or it would record without a lock, and another one would play the same games into the same place."""
    recorder = recorders.start_recording(seed=SEED, rotate_steps=10**9, **CALM)
    root.rename(root.with_name("elsewhere"))
    root.mkdir()
    assert recorder.end() == StorageError.exit_code
    assert "the recorder's lock file was removed, so another recorder could play" in recorder.error["message"]
    assert not list(root.iterdir()), "nothing was added"
    assert partials(root.with_name("elsewhere")), "what is confirmed waits for the next start there"


def test_a_second_recorder_is_refused_unless_renamed(recorders: Recorders, root: Path) -> None:
    first = recorders.start_recording(seed=SEED, workers=1, **CALM)
    second = recorders.fail(BusyError, seed=SEED, **CALM)
    assert f"the recorder with pid {first.pid} records into this directory" in second.error["message"]
    other = recorders.run(
        seed=SEED + 1, instance="other", workers=1, max_games=100, rotate_steps=1_500, **CALM
    )
    first.stop()
    assert_all_published(root)
    by_instance = Counter(meta_of(path)["instance"] for path in sessions(root))
    assert by_instance == {"default": len(first.summary["sessions"]), "other": len(other.summary["sessions"])}
    seeds = run_table(root)["seed"]
    assert len(set(seeds.tolist())) == len(seeds) == first.summary["games"] + 100


def test_memory_stays_flat(recorders: Recorders, root: Path) -> None:
    block_rows = 65_536
    recorder = recorders.start(sample_rate=20, block_rows=block_rows, rotate_steps=200_000)
    recorder.wait_for_status(lambda status: status["sessions"] >= 6)  # what is imported late is there
    pids = [recorder.pid, *recorder.workers]
    assert len(pids) == 2
    samples = []
    for _ in range(40):
        time.sleep(0.06)
        samples.append([resident_mb(pid) for pid in pids])
    recorder.stop()
    middle, end = np.median(samples[10:20], axis=0), np.median(samples[30:], axis=0)
    assert (end - middle < 8).all(), f"resident MB in the middle {middle}, at the end {end}"
    assert np.max(samples) < block_rows * STEP_DTYPE.itemsize / 1e6 + 250
