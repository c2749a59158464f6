"""The places of workers: what their slots say when one starts, how often they write, when it is hopeless."""

import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

import msgspec
import pytest
from tests.sdk.builders import open_files

from tape2048_recorder.daemon.supervisor import Supervisor
from tape2048_recorder.ipc.protocol import DRAIN, LOADS, PLAY, Crashed, FromWorker, Range, Weights
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recording.world import REAL, World

from ..processes import wait_until

Supervise = Callable[..., Supervisor]


@pytest.fixture
def supervise() -> Iterator[Supervise]:
    made: list[Supervisor] = []

    def make(config: RecorderConfig, world: World = REAL) -> Supervisor:
        made.append(Supervisor(config, world))
        return made[-1]

    yield make
    for one in made:
        one.close()


@pytest.mark.parametrize(("workers", "deaths"), [(1, 8), (2, 8), (64, 192)])
def test_one_cause_may_take_every_worker_once(supervise: Supervise, workers: int, deaths: int) -> None:
    supervisor = supervise(RecorderConfig(workers=workers))
    for death in range(deaths):
        assert not supervisor.is_hopeless
        supervisor.schedule_restart(supervisor.workers[death % workers], now=0.0)
    assert supervisor.is_hopeless
    supervisor.note_progress(supervisor.workers[0])
    assert not supervisor.is_hopeless


def test_blocks_fit_a_session_in_size_and_age(supervise: Supervise) -> None:
    config = RecorderConfig(workers=2, block_rows=5_000, rotate_steps=10_000, flush_s=9.0)
    supervisor = supervise(config)
    slots = supervisor.shared.slots
    assert (slots["block_rows"].tolist(), slots["flush_s"].tolist()) == ([5_000] * 2, [9.0] * 2)
    supervisor.pace(msgspec.structs.replace(config, rotate_steps=2_000, rotate_s=0.5))
    assert (slots["block_rows"].tolist(), slots["flush_s"].tolist()) == ([2_000] * 2, [0.5] * 2)
    supervisor.pace(msgspec.structs.replace(config, rotate_s=60.0))
    assert (slots["block_rows"].tolist(), slots["flush_s"].tolist()) == ([5_000] * 2, [9.0] * 2)


def test_a_worker_inherits_nothing_from_another(supervise: Supervise) -> None:
    """It would have its patience, drain, write at once, or be waited for as one that has said goodbye."""
    popen = subprocess.Popen
    how: dict[str, Any] = {}

    def sleep(args: list[str], **options: Any) -> Any:
        how.update(options, spec=msgspec.json.decode(args[-1]))
        return popen(["sleep", "600"], **options)

    supervisor = supervise(RecorderConfig(workers=2, player="greedy"), World(popen=sleep))
    worker = supervisor.workers[1]
    slots = supervisor.shared.slots
    supervisor.command(DRAIN)
    supervisor.weights = Weights(generation=4, path="x", sha256="y")
    slots["busy"], slots["heartbeat_ns"], slots["flush"], slots["oldest"] = LOADS, 1, 3, 2
    worker.ready, worker.range, worker.waiting_rows = True, Range(1, "x", 0), 5
    worker.said_bye, worker.last_error = True, "x"
    before, begun = open_files(), time.monotonic_ns()
    supervisor.start(worker)
    assert {name: slots[name].tolist() for name in ("busy", "command", "flushed", "oldest")} == {
        "busy": [LOADS, 0], "command": [DRAIN, PLAY], "flushed": [0, 3], "oldest": [2, 4],
    }  # fmt: skip
    assert slots["heartbeat_ns"][0] == 1
    assert slots["heartbeat_ns"][1] >= begun
    assert (worker.ready, worker.range, worker.waiting_rows) == (False, None, None)
    assert (worker.said_bye, worker.last_error) == (False, None)
    assert worker.alive
    assert supervisor.pids == [worker.process.pid]
    assert (how["spec"]["index"], how["spec"]["daemon_pid"]) == (1, os.getpid())
    assert how["pass_fds"] == (how["spec"]["socket_fd"], how["spec"]["shared_fd"])
    assert how["env"]["OMP_NUM_THREADS"] == "1"
    supervisor.kill_all()
    worker.ready, worker.range, worker.waiting_rows = True, Range(1, "x", 0), 5
    assert supervisor.reap(worker) == "killed by SIGKILL"
    assert (worker.ready, worker.range, worker.waiting_rows) == (False, None, None)
    assert (worker.alive, supervisor.pids) == (False, [])
    assert open_files() == before

    def refuse(*_: object, **__: object) -> None:
        raise OSError("no process")

    supervisor._world = World(popen=refuse)
    with pytest.raises(OSError, match="no process"):
        supervisor.start(worker)
    assert open_files() == before


FAILING = """
import sys
from tape2048_recorder.players import options
from tape2048_recorder.workers import __main__ as worker
def fail(*_):
    raise {error}("ran out of input")
options.make_player = fail
sys.exit(worker.main(sys.argv[1]))
"""


@pytest.mark.parametrize("error", ["EOFError", "ConnectionResetError"])
def test_an_error_of_a_start_is_reported_as_itself(supervise: Supervise, error: str) -> None:
    """These two also come from a socket whose other end is gone."""
    popen, code = subprocess.Popen, FAILING.format(error=error)

    def start(args: list[str], **options: Any) -> Any:
        return popen([sys.executable, "-c", code, args[-1]], **options)

    supervisor = supervise(RecorderConfig(workers=1, player="greedy"), World(popen=start))
    (worker,) = supervisor.workers
    supervisor.start(worker)
    received: list[FromWorker] = []

    def has_ended() -> bool:
        messages, is_open = worker.channel.receive_ready()
        received.extend(messages)
        return not is_open

    wait_until(has_ended)
    assert supervisor.reap(worker) == "exit status 1"
    assert isinstance(received[-1], Crashed)
    assert f"{error}: ran out of input" in received[-1].error
