"""A fleet on a real Ray cluster of fake nodes: whichever part is killed, no game is lost or played twice.

``FULL_SWEEP=1`` takes several nodes, kills raylets and machines too, and refuses more. The suite takes one.
"""

import contextlib
import importlib.util
import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from tests.recorder.processes import PATIENCE_S, environment, kill, wait_until, workers_of
from tests.sdk.store_servers import fetch_session

from tape2048.errors import ConfigError, FleetError, MissingPackageError, TapeError
from tape2048.session.session import Session, sessions
from tape2048.stores.objects import Store, open_store
from tape2048.stores.remote import list_sessions
from tape2048_recorder.fleet import ray_engine
from tape2048_recorder.fleet.plan import create_fleet
from tape2048_recorder.fleet.spool import agent_at_work, read_member
from tape2048_recorder.record_options import NUMBER_BITS, RecorderConfig
from tape2048_recorder.status.status_report import Snapshot, read_snapshot

from .ray_cluster import Cluster, ray_cluster

COMMAND = [sys.executable, "-m", "tape2048_tools.cli", "fleet"]
PINNED: dict[str, Any] = {"player": "random", "seed": 5, "storage": "tape", "rotate_steps": 300_000}
#: A full spool pauses most of the time: four recorders at full speed would take all of a small machine.
NODE = ["--min-free-mb", "0", "--flush-s", "0.5", "--spool-max-mb", "1"]

FULL = os.environ.get("FULL_SWEEP") == "1"

needs_ray = pytest.mark.skipif(importlib.util.find_spec("ray") is None, reason="ray is not installed")


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A cluster with the node ``a``, which has one CPU; tests add and remove others."""
    with ray_cluster(tmp_path_factory.mktemp("ray")) as made:
        made.raylet = made.ask("add", "a", "1")
        yield made


@pytest.fixture
def store(tmp_path: Path) -> Store:
    (tmp_path / "store").mkdir()
    made = open_store(str(tmp_path / "store"))
    create_fleet(made, RecorderConfig(**PINNED))
    return made


def fleet(*args: str, env: dict[str, str] | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*COMMAND, *args], env=env or environment(), capture_output=True, text=True, timeout=120, check=False
    )


class Driver:
    """``tape2048 fleet record --engine ray``; what it says is collected."""

    def __init__(self, cluster: Cluster, store: Store, nodes: int, spool: str) -> None:
        how = ["--engine", "ray", "--address", cluster.address, "--nodes", str(nodes), "--spool", spool]
        self.process = subprocess.Popen(
            [*COMMAND, "record", store.url, *how, *NODE],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, env=cluster.env,
        )  # fmt: skip
        self.said: list[str] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        with self.process.stdout as lines:
            self.said.extend(lines)

    def wait_for(self, text: str, times: int = 1) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while "".join(self.said).count(text) < times:
            assert self._reader.is_alive(), self.said
            assert time.monotonic() < deadline, self.said
            time.sleep(0.05)

    def end(self) -> int:
        code = self.process.wait(PATIENCE_S)
        self._reader.join()
        return code

    def close(self) -> None:
        self.process.kill()
        self.end()


class Spool:
    """The spool of a fake node, and the processes that work there."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self.lives: dict[int, int] = {}

    @property
    def agent(self) -> int | None:
        if (found := agent_at_work(self.path)) is None:
            return None
        os.close(found[1])
        return found[0].pid

    def snapshot(self) -> Snapshot | None:
        with contextlib.suppress(TapeError):
            snapshot = read_snapshot(self.path, "default")
            self.lives[snapshot.process.pid] = snapshot.status.recorded_rows
            return snapshot
        return None

    @property
    def recorder(self) -> int | None:
        """The recorder's pid, if it is there and has recorded."""
        found = self.snapshot()
        has = found is not None and found.process.is_there and found.status.recorded_rows > 0
        return found.process.pid if found is not None and has else None

    @property
    def lease(self) -> int:
        member = read_member(self.path)
        return member.lease

    def kill(self) -> None:
        """End what works here, as when the machine fails."""
        if (agent := self.agent) is not None:
            kill(agent)
        if (found := self.snapshot()) is not None and found.process.is_there:
            workers = workers_of(found.process.pid)
            for pid in [found.process.pid, *workers]:
                kill(pid)


def actor_of(raylet: int) -> int | None:
    """The pid of the actor that a raylet's node runs."""
    for path in Path("/proc").glob("[0-9]*/stat"):
        with contextlib.suppress(OSError):
            is_its = int(path.read_text().rpartition(")")[2].split()[1]) == raylet
            if is_its and b"NodeActor" in (path.parent / "cmdline").read_bytes():
                return int(path.parent.name)
    return None


def rows_by_lease(store: Store, into: Path) -> Counter[int]:
    """The rows in the store; each session is verified, and no game is there twice."""
    ids: list[int] = []
    rows: Counter[int] = Counter()
    for name in list_sessions(store):
        runs = Session.open(fetch_session(store, name, into)).runs
        ids += runs["id"].tolist()
        for run in runs:
            rows[int(run["id"]) >> NUMBER_BITS] += int(run["rows"])
    assert len(set(ids)) == len(ids) > 0
    return rows


def lost(store: Store) -> Sequence[str]:
    done = fleet("status", store.url, "--json")
    found: Sequence[str] = json.loads(done.stdout)["lost"]
    assert done.returncode == int(bool(found)), done.stderr
    return found


def check_surroundings(recorder: int) -> None:
    """Check that a recorder has nothing from the actor that its agent was started by."""
    process = Path(f"/proc/{recorder}")
    assert "SigBlk:\t0000000000000000" in (process / "status").read_text()
    assert (process / "oom_score_adj").read_text() == "0\n"
    inherited = (process / "environ").read_bytes()
    assert b"RAY_" not in inherited
    assert b"OMP_NUM_THREADS" not in inherited


def kill_actor(node: Spool, raylet: int, driver: Driver) -> None:
    """Another actor attaches to the agent."""
    before, actor = (node.agent, node.recorder), actor_of(raylet)
    kill(actor)
    killed = time.monotonic()
    driver.wait_for(f"attached to the agent with pid {before[0]}")
    assert time.monotonic() - killed < 30
    assert (node.agent, node.recorder) == before


def kill_agent_and_recorder(node: Spool, driver: Driver) -> None:
    """The actor starts another agent, which attaches to the recorder; and that starts another recorder."""
    agent, recorder = node.agent, node.recorder
    kill(agent)
    driver.wait_for("the agent ended")
    log = node.path / ".recorder/agent.fleet.log"
    wait_until(lambda: f"attached to the recorder (pid {recorder})" in log.read_text())
    assert node.agent not in {None, agent}
    assert node.recorder == recorder
    kill(recorder)
    wait_until(lambda: node.recorder not in {None, recorder})


def lose_a_raylet_and_a_machine(spools: dict[str, Spool], store: Store, cluster: Cluster) -> None:
    """The raylet's node goes on, and another one is taken; the machine is named lost, and comes back."""
    a, c, d = spools["a"], spools["c"], spools["d"]
    before = (c.agent, c.recorder)
    cluster.ask("add", "d", "1")
    cluster.ask("kill", "c")
    cluster.ask("remove", "a")
    a.kill()
    killed = time.monotonic()
    while not (named := lost(store)) and time.monotonic() - killed < 30:
        time.sleep(0.1)
    assert time.monotonic() - killed < 20
    assert [name.endswith(f"({a.lease:06x})") for name in named] == [True]
    cluster.raylet = cluster.ask("add", "a", "1")
    back = time.monotonic()
    wait_until(lambda: a.recorder and d.recorder)
    assert time.monotonic() - back < 30
    assert (c.agent, c.recorder) == before, "what Ray has lost goes on"
    wait_until(lambda: not lost(store))


@needs_ray
@pytest.mark.slow
def test_killed_parts_lose_and_repeat_no_game(cluster: Cluster, store: Store, tmp_path: Path) -> None:
    spools = {name: Spool(tmp_path / f"spool-{name}") for name in ("abcd" if FULL else "a")}
    names = "abc" if FULL else "a"
    for name in names[1:]:
        cluster.ask("add", name, "1")
    driver = Driver(cluster, store, len(names), str(tmp_path / "spool-{node}"))
    try:
        wait_until(lambda: all(spools[name].recorder for name in names))
        check_surroundings(spools["a"].recorder or 0)
        kill_actor(spools["a"], cluster.raylet, driver)
        kill_agent_and_recorder(spools["b" if FULL else "a"], driver)
        if FULL:
            lose_a_raylet_and_a_machine(spools, store, cluster)
        assert all(spool.recorder for spool in spools.values())
        driver.process.send_signal(signal.SIGTERM)
        assert driver.end() == 0, driver.said
    finally:
        driver.close()
        for spool in spools.values():
            spool.kill()
        for name in "bd" if FULL else "":
            cluster.ask("remove", name)
    assert not any(sessions(spool.path) for spool in spools.values())
    assert len({spool.lease for spool in spools.values()}) == len(spools)
    rows = rows_by_lease(store, tmp_path / "got")
    assert set(rows) == {spool.lease for spool in spools.values()}
    for spool in spools.values():
        assert rows[spool.lease] >= sum(spool.lives.values()) > 0, "rows that were confirmed"
    assert [len(spool.lives) for spool in spools.values()] == ([2, 2, 1, 1] if FULL else [2])


@needs_ray
@pytest.mark.slow
def test_what_does_not_fit_is_refused_by_name(cluster: Cluster, store: Store, tmp_path: Path) -> None:
    (tmp_path / "wrong").write_text("0" * 32)
    (tmp_path / "other.toml").write_text('player = "greedy"\n')
    (tmp_path / "used" / "20260101T000000Z_model=x").mkdir(parents=True)
    cases: list[tuple[str, list[str], str]] = [
        ("wrong", [], "Ray rejected this process"),
        ("", ["--address", "ray://x:10001"], "found no Ray cluster: Invalid address"),
        ("", ["--cpus", "2", "--timeout-s", "0.5"], "expected 1 node with 2 CPUs free"),
        ("", ["--nodes", "2", "--spool", str(tmp_path / "one")], "found one spool for the nodes"),
        ("", ["--spool", str(tmp_path / "used")], "which belongs to no fleet"),
        ("nowhere", [], "Ray rejected this process"),
        ("", ["--address", "127.0.0.1:1"], "found no Ray cluster"),
        ("", ["--nodes", "3"], "(0 CPUs); expected 3 nodes with all CPUs free"),
        ("", ["--config", str(tmp_path / "other.toml")], "player: found 'greedy', expected 'random'"),
    ]
    cases = cases if FULL else cases[:5]

    def refused(case: tuple[str, list[str], str]) -> str:
        token, more, _ = case
        spool = str(tmp_path / "spool-{node}")
        how = ["--engine", "ray", "--nodes", "1", "--address", cluster.address, "--spool", spool, *more]
        env = {"RAY_AUTH_TOKEN_PATH": str(tmp_path / token)} if token else {}
        done = fleet("record", store.url, *how, env={**cluster.env, **env})
        kind = ConfigError if "--config" in more else FleetError
        assert done.returncode == kind.exit_code, done.stderr
        return done.stderr

    cluster.ask("add", "b", "1")
    try:
        with ThreadPoolExecutor(3) as pool:
            for case, said in zip(cases, pool.map(refused, cases), strict=True):
                assert case[2] in said
    finally:
        cluster.ask("remove", "b")
    assert not (tmp_path / "one").exists()
    assert not list(tmp_path.glob("spool-*/*_model=*"))


def test_without_ray_its_extra_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(MissingPackageError, match="--engine ray needs the package ray") as raised:
        ray_engine.record_on_ray(
            ["/store", "/spool", {}, None, []], address=None, nodes=1, cpus=None, timeout_s=1,
            report=lambda *_: None, stop=threading.Event(), leave=threading.Event(),
        )  # fmt: skip
    assert raised.value.hint == "pip install 'tape2048[ray]'"
