"""Many nodes of a fleet under a virtual clock: every game is accounted for.

``FULL_SWEEP=1`` takes a thousand nodes, the suite a sample.

The product's own code joins, claims leases, ships, beats and looks on; only the store, the clock and the
recorders are simulated. Each node is a thread, and one of them runs at a time: a call of the store ends when
the clock says so, or never (the node is killed), or in an error (the node is cut off, or the answer is lost).
A seed decides everything.

Stores differ in what they do with a directory that is put twice: ``first`` keeps the first one, as a rename
and a write with ``If-None-Match: *`` do; ``last`` replaces silently. Listings are those of some time ago.
"""

from __future__ import annotations

import contextlib
import heapq
import itertools
import json
import os
import random
import shutil
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c
from tests.mutants import Mutant, planted
from tests.sdk.store_servers import fetch_session

from tape2048.errors import MissingPathError, StoreError, TapeError
from tape2048.session.layout import BLOCK_DTYPE, RUN_DTYPE, FileEntry
from tape2048.session.metadata import read_metadata
from tape2048.session.metadata_writer import finish_session
from tape2048.session.session import sessions
from tape2048.stores.objects import Store
from tape2048.stores.remote import RemoteName, list_sessions
from tape2048_recorder.fleet import agent as agents, plan, spool
from tape2048_recorder.fleet.agent import Agent, Onlooker, Shipper
from tape2048_recorder.fleet.plan import FleetPlan, create_fleet, read_plan
from tape2048_recorder.fleet.spool import Spool
from tape2048_recorder.record_options import NUMBER_BITS, RecorderConfig

#: Nodes of a fleet.
NODES = 1000 if os.environ.get("FULL_SWEEP") == "1" else 120

#: From this time on listings are old: a lease is not confirmed by them, so nodes join before.
STALE_S = 30.0

#: Until this time there are faults; then the nodes that live go on until all is shipped.
FAULTS_S = 150.0
SESSIONS = 2
GAMES = 3


class Killed(BaseException):
    """The node's process is killed: nothing of the product catches it."""


class World:
    """The clock, and the threads that wait for their time."""

    def __init__(self, seed: int) -> None:
        self.rng = random.Random(seed)
        self.now = 0.0
        self.failure: BaseException | None = None
        self._waiting: list[tuple[float, int, Task]] = []
        self._count = itertools.count()
        self._back = threading.Semaphore(0)
        self.time = SimpleNamespace(time=lambda: 1.8e9 + self.now, monotonic=lambda: self.now)

    @property
    def faulty(self) -> bool:
        return self.now < FAULTS_S

    def start(self, body: Any) -> None:
        task = Task(self, body)
        heapq.heappush(self._waiting, (self.now, next(self._count), task))
        task.start()

    def sleep(self, seconds: float) -> None:
        """Wait, while others run; the main thread does not take part in time."""
        task = threading.current_thread()
        if isinstance(task, Task):
            heapq.heappush(self._waiting, (self.now + seconds, next(self._count), task))
            self._back.release()
            task.turn.acquire()

    def ended(self, failure: BaseException | None) -> None:
        self.failure = self.failure or failure
        self._back.release()

    def run(self) -> None:
        while self._waiting and self.failure is None:
            self.now, _, task = heapq.heappop(self._waiting)
            task.turn.release()
            self._back.acquire()
        if self.failure is not None:
            raise self.failure


class Task(threading.Thread):
    def __init__(self, world: World, body: Any) -> None:
        super().__init__(daemon=True)
        self.turn = threading.Semaphore(0)
        self.world, self.body = world, body

    def run(self) -> None:
        self.turn.acquire()
        failure = None
        try:
            self.body()
        except BaseException as error:  # noqa: BLE001 - the main thread raises it
            failure = error
        self.world.ended(failure)


class Bucket:
    """What a store holds: for each key its contents, each with its time; None: removed."""

    def __init__(self, world: World, keeps: str) -> None:
        self.world, self.keeps = world, keeps
        self.stale_s = 2.0
        self.held: dict[str, dict[str, dict[str, list[tuple[float, bytes | None]]]]] = {}

    def contents(self, key: str) -> list[tuple[float, bytes | None]]:
        top, _, rest = key.partition("/")
        second, _, last = rest.partition("/")
        return self.held.setdefault(top, {}).setdefault(second, {}).setdefault(last, [])

    def get(self, key: str) -> bytes | None:
        held = self.contents(key)
        return held[-1][1] if held else None

    def put(self, key: str, data: bytes | None) -> None:
        self.contents(key).append((self.world.now, data))

    def names(self, directory: str) -> dict[str, int]:
        then = self.world.now - (self.stale_s if STALE_S < self.world.now < FAULTS_S else 0.0)
        top, _, second = directory.partition("/")
        found = {}
        inner = self.held.get(top, {})
        for name in [second] if second else inner:
            if name.startswith("."):
                continue
            for last, held in inner.get(name, {}).items():
                seen = [data for at, data in held if at <= then]
                if seen and seen[-1] is not None:
                    path = last if second else "/".join(filter(None, (name, last)))
                    found[path] = len(seen[-1])
        return found


class Remote(Store):
    """A store as one node reaches it."""

    def __init__(self, bucket: Bucket, node: Node | None = None) -> None:
        self.url = "memory"
        self._bucket, self._node = bucket, node

    def _reached(self, key: str, doing: str) -> contextlib.nullcontext[str]:
        del doing
        return contextlib.nullcontext(key)

    def _reach(self, seconds: float = 0.05) -> None:
        if self._node is not None:
            self._node.reach(seconds)

    def _answered(self) -> None:
        if self._node is not None:
            self._node.answered()

    def _put(self, key: str, data: bytes) -> None:
        self._reach()
        self._bucket.put(key, data)
        self._answered()

    def _upload(self, key: str, source: int) -> None:
        data = os.read(source, os.fstat(source).st_size)
        self._reach(0.05 if self._node is None else len(data) / self._node.bytes_per_s)
        self._bucket.put(key, data)
        self._answered()

    def _chunks(self, key: str) -> Iterator[bytes]:
        self._reach()
        data = self._bucket.get(key)
        if data is None:
            raise MissingPathError("no such object", path=self.path(key))
        yield data

    def _names(self, directory: str) -> dict[str, int]:
        self._reach()
        return self._bucket.names(directory)

    def _remove(self, key: str) -> None:
        self._reach()
        if self._bucket.get(key) is not None:
            self._bucket.put(key, None)
        self._answered()

    def stage(self, directory: str) -> str:
        if self._bucket.keeps == "last":
            return directory
        self._reach()
        self._empty(self._staged(directory))
        return self._staged(directory)

    def commit(self, directory: str, name: str, data: bytes) -> None:
        self._reach()
        if self._bucket.keeps == "last":
            self._bucket.put(f"{directory}/{name}", data)
        elif self._bucket.get(f"{directory}/{name}") is None:
            staged = self._staged(directory)
            for file in self._files(staged):
                self._bucket.put(f"{directory}/{file}", self._bucket.get(f"{staged}/{file}"))
            self._bucket.put(f"{directory}/{name}", data)
            self._empty(staged)
        self._answered()

    def retract(self, directory: str, name: str) -> None:
        self.remove(f"{directory}/{name}")
        self._empty(directory)

    def _staged(self, directory: str) -> str:
        top, _, second = directory.partition("/")
        return f"{top}/.{second}.{id(self._node)}.partial"

    def _files(self, directory: str) -> list[str]:
        top, _, second = directory.partition("/")
        files = self._bucket.held.get(top, {}).get(second, {})
        return [name for name in files if self._bucket.get(f"{directory}/{name}") is not None]

    def _empty(self, directory: str) -> None:
        for file in self._files(directory):
            self._bucket.put(f"{directory}/{file}", None)


class Node:
    """A node: its agent, which is killed and started again, and what its recorder published."""

    def __init__(self, fleet: Fleet, number: int) -> None:
        self.fleet, self.world = fleet, fleet.world
        self.rng = random.Random(fleet.world.rng.random())
        self.path = fleet.root / f"spool-{number}"
        self.bytes_per_s = self.rng.choice([1e3, 1e5, 1e5, 1e6])
        begin = self.rng.uniform(10, 0.7 * FAULTS_S)
        self.cut_off = (begin, begin + self.rng.choice([0, 0, 20, 80]))
        self.due = sorted(self.rng.uniform(0, 0.6 * FAULTS_S) for _ in range(SESSIONS))
        self.copied = self.rng.random() < 0.2
        self.lease: int | None = None
        self.published: list[str] = []
        self.dead = False

    def die(self, share: float) -> None:
        if self.world.faulty and self.rng.random() < share:
            raise Killed

    def reach(self, seconds: float) -> None:
        self.world.sleep(seconds * self.rng.uniform(0.5, 2))
        self.die(0.004)
        if self.cut_off[0] <= self.world.now < self.cut_off[1]:
            raise StoreError("it does not answer", path="memory")

    def answered(self) -> None:
        """After a change: the node may die now, or miss the answer."""
        self.die(0.004)
        if self.world.faulty and self.rng.random() < 0.004:
            raise StoreError("the answer was lost", path="memory")

    def live(self) -> None:
        """Be started again after each death, but for the last one."""
        self.world.sleep(self.rng.uniform(0, 0.5))
        while True:
            try:
                self._life()
            except Killed:
                if self.rng.random() < 0.08:
                    self.dead = True
                    return
                self.world.sleep(self.rng.uniform(1, 20))
            except TapeError as error:
                self.fleet.errors.add(type(error).__name__)
                self.world.sleep(5)
                if self.world.now > 4 * FAULTS_S:
                    raise
            else:
                return

    def _life(self) -> None:
        store = Remote(self.fleet.bucket, self)
        with Spool(self.path, store, read_plan(store)) as own:
            self.lease = own.member.lease
            agent = agent_of(store, own)
            while self.due or own.sessions():
                if self.due and self.due[0] <= self.world.now:
                    self.due.pop(0)
                    self._publish(own)
                agent._shipper.ship_all()
                agent._beat()
                self.world.sleep(8)
                assert self.world.now < 4 * FAULTS_S, agent._shipper.error
            agent._phase = "ended"
            agent._beat()

    def _publish(self, own: Spool) -> None:
        """Do what the recorder does: a whole session, with ids of the lease, appears in the spool."""
        number = len(self.published)
        name = f"20260101T{number:06d}Z_model=random"
        path = own.path / f".{name}.draft"
        path.mkdir()
        tape = self.rng.randbytes(500)
        (path / "tape.npy").write_bytes(tape)
        runs = np.zeros(GAMES, RUN_DTYPE)
        runs["id"] = (own.member.lease << NUMBER_BITS) + GAMES * number + np.arange(GAMES)
        runs["rows"] = runs["steps"] = 5
        runs["first_row"] = 5 * np.arange(GAMES)
        plan = self.fleet.plan
        facts = {**plan.settings, "player_sha256": plan.player_sha256, "rows": 5 * GAMES}
        finish_session(
            path, {"tape.npy": FileEntry(len(tape), crc32c(tape))}, runs, np.zeros(0, BLOCK_DTYPE), facts
        )
        path.rename(own.path / name)
        self.published.append(name)
        if self.copied:
            self.copied = False
            self.fleet.copy(self, own)


def agent_of(store: Store, own: Spool) -> Agent:
    """An agent whose shipper has no thread: the node's thread calls it."""

    class Here(Shipper):
        def __init__(self) -> None:
            self._spool, self._report = own, lambda _level, _text: None
            self._ends, self._said, self.error = False, set(), None

    agent = Agent(store, own, None, (), lambda _level, _text: None, threading.Event(), threading.Event())
    agent._shipper = Here()
    return agent


class Fleet:
    """A fleet, and a reader that looks into its store all the time."""

    def __init__(self, root: Path, keeps: str, nodes: int, seed: int) -> None:
        self.root, self.world = root, World(seed)
        self.bucket = Bucket(self.world, keeps)
        self.errors: set[str] = set()
        settings: dict[str, Any] = {"player": "random", "seed": 77, "storage": "tape"}
        self.plan: FleetPlan = create_fleet(Remote(self.bucket), RecorderConfig(**settings))
        self.nodes = [Node(self, number) for number in range(nodes)]
        self.twins: list[Node] = []

    def copy(self, node: Node, own: Spool) -> None:
        """Have another agent ship what is in a copy of a node's spool."""
        twin = Node(self, len(self.nodes) + len(self.twins))
        twin.due, twin.copied = [], False
        shutil.copytree(own.path, twin.path)
        self.twins.append(twin)
        self.world.start(twin.live)

    def run(self) -> None:
        for node in self.nodes:
            self.world.start(node.live)
        self.world.start(self._read)
        self.world.run()

    def _read(self) -> None:
        """Fetch some of the listed sessions: a reader sees whole ones or none."""
        store, rng = Remote(self.bucket), random.Random(self.world.rng.random())
        for number in itertools.count():
            self.world.sleep(4)
            listed = list_sessions(store)
            for name in rng.sample(listed, min(3, len(listed))):
                fetch_session(store, name, self.root / f"read-{number}")
            if not self.world.faulty:
                return

    def check(self) -> None:
        """Account for every session, lease and lost node."""
        self.world.now += 10 * agents.LOST_S
        leases = [node.lease for node in self.nodes if node.lease is not None]
        assert len(leases) == len(set(leases)), "a lease of two nodes"
        stored: dict[tuple[str, str], str] = {}
        ids: list[int] = []
        for name in list_sessions(Remote(self.bucket)):
            parsed = RemoteName.parse(name)
            assert (parsed.label, parsed.session) not in stored, "a session twice"
            stored[parsed.label, parsed.session] = name
            got = fetch_session(Remote(self.bucket), name, self.root / "all")
            ids += read_metadata(got / "metadata.db").runs["id"].tolist()
        assert len(ids) == len(set(ids)), "a game twice"
        for node in self.nodes:
            waiting = {path.name for path in sessions(node.path)} if node.path.exists() else set()
            assert node.dead or not waiting
            for name in node.published:
                assert name in waiting or (f"{node.lease:06x}", name) in stored, "a session is gone"
        assert len(stored) <= sum(len(node.published) for node in self.nodes)
        found = Onlooker(Remote(self.bucket), lambda _: None).look()
        # The dead, and those whose last words did not arrive.
        lost = {f"{node.lease:06x}" for node in self.nodes if self._last_state(node) != "ended"}
        assert {name.partition("(")[2].rstrip(")") for name in found.lost} == lost, "lost nodes"
        assert found.sessions == len(stored)

    def _last_state(self, node: Node) -> str:
        """What the store has of a node; one that it never heard of has nothing to be lost."""
        beat = node.lease and self.bucket.get(f"agents/{node.lease:06x}.json")
        return json.loads(beat)["state"] if beat else "ended"


@pytest.fixture
def live(monkeypatch: pytest.MonkeyPatch) -> Iterator[Any]:
    """Make fleets live; their spools are in memory."""
    roots: list[str] = []

    def run(keeps: str, nodes: int, seed: int) -> Fleet:
        roots.append(tempfile.mkdtemp(prefix="fleet-", dir="/dev/shm"))
        fleet = Fleet(Path(roots[-1]), keeps, nodes, seed)
        for module in (agents, plan):
            monkeypatch.setattr(module, "time", fleet.world.time)
        # Few leases, so that nodes meet in them; and deaths between the steps of a shipment.
        monkeypatch.setattr(plan, "LEASE_MAX", 4 * nodes)
        for name in ("replace_file", "remove_sessions"):
            monkeypatch.setattr(spool, name, _deadly(getattr(spool, name)))
        fleet.run()
        fleet.check()
        return fleet

    before = threading.stack_size(512 * 1024)
    yield run
    threading.stack_size(before)
    for root in roots:
        shutil.rmtree(root)


def _deadly(call: Any) -> Any:
    call = getattr(call, "undeadly", call)

    def called(*args: Any) -> Any:
        task = threading.current_thread()
        node = task.body.__self__ if isinstance(task, Task) else None
        if isinstance(node, Node):
            node.die(0.02)
        done = call(*args)
        if isinstance(node, Node):
            node.die(0.02)
        return done

    called.undeadly = call  # type: ignore[attr-defined]
    return called


@pytest.mark.slow
@pytest.mark.parametrize("keeps", ["first", "last"])
def test_every_session_is_accounted_for(live: Any, keeps: str) -> None:
    fleet = live(keeps, NODES, seed=1)
    assert sum(node.dead for node in fleet.nodes) > NODES // 50
    assert "StoreError" in fleet.errors


#: Planted defects, each with how it is found.
MUTANTS = {
    "the manifest first": (
        Mutant(
            "tape2048.stores.remote:put_session",
            "    with store.publishing(directory, MANIFEST, text) as draft:\n",
            '    store.put(f"{directory}/{MANIFEST}", text)\n'
            "    with store.publishing(directory, MANIFEST, text) as draft:\n",
        ),
        "no such object",
    ),
    "a lease without a look at the others' claims": (
        Mutant(
            "tape2048_recorder.fleet.plan:claim_lease",
            'if set(store.names(directory)) == {f"{claim}.json"}:',
            "if True:",
        ),
        "a lease of two nodes",
    ),
    "a lease that is not remembered": (
        Mutant("tape2048_recorder.fleet.spool:Spool._join", "        self._save(member)\n", ""),
        "which belongs to no fleet",
    ),
    "a session removed though it was not shipped": (
        Mutant(
            "tape2048_recorder.fleet.spool:Spool.ship",
            "        name = put_session(self._store, session, lease_label(before.lease))\n",
            "        try:\n"
            "            name = put_session(self._store, session, lease_label(before.lease))\n"
            "        except Exception:\n"
            "            name = session.name\n",
        ),
        "a session is gone",
    ),
    "a node that is never lost": (
        Mutant(
            "tape2048_recorder.fleet.agent:Onlooker._node", "silent_s >= LOST_S", "silent_s >= 1000 * LOST_S"
        ),
        "lost nodes",
    ),
}


@pytest.mark.slow
@pytest.mark.parametrize("name", MUTANTS)
def test_a_planted_defect_is_found(live: Any, name: str) -> None:
    mutant, finding = MUTANTS[name]
    with planted(mutant), pytest.raises((AssertionError, TapeError), match=finding):
        live("last", 150, seed=2)
