"""The agent of a node: keeps a recorder running, ships its sessions, and sends heartbeats to the store.

The recorder is a detached process. It survives the agent, and the next agent attaches to it. The agent's main
thread watches the recorder and writes a heartbeat every few seconds. Another thread ships sessions.

:class:`Onlooker` derives the state of a fleet from the heartbeats and sessions in its store.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import re
import secrets
import threading
import time
from collections import Counter
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tape2048.base.text import counted, pretty_json
from tape2048.base.threads import map_ordered
from tape2048.errors import FleetError, MissingPathError, NotRunningError, StorageError, TapeError
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.stores.remote import RemoteName, list_sessions
from tape2048_recorder.fleet.launching import start_recorder, trim_log
from tape2048_recorder.fleet.plan import (
    AGENTS,
    PINNED,
    SMALL_BYTES_MAX,
    FleetPlan,
    lease_label,
    read_drain,
    read_plan,
)
from tape2048_recorder.fleet.spool import AGENT_LOG, OF_A_SESSION, Spool
from tape2048_recorder.status.control_socket import Running
from tape2048_recorder.status.status_report import Level, Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from tape2048.stores.objects import Store
    from tape2048_recorder.record_options import RecorderConfig

#: Interval of heartbeats, and of checking whether the fleet drains.
BEAT_S = 3.0

#: A node without a heartbeat for this long is lost. `fleet status` needs two more intervals to exclude clock
#: skew, and so reports a lost node within 20 s.
LOST_S = 10.0

#: States of an agent that has ended: everything is shipped, or an error stopped it.
ENDED: Final = "ended"
FAILED: Final = "failed"

#: Delays before a session is shipped again after a failure, and before a dead recorder is restarted.
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0

_LOOK_S = 0.2


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    lease: int
    agent: str  # random, identifies this run of the agent
    number: int  # grows with each heartbeat
    host: str
    pid: int
    space: str = ""  # the pid's :attr:`Process.space`
    written_at: float
    state: str  # of the recorder; without a recorder: shipping, ENDED or FAILED
    why: str | None = None
    games: int = 0  # recorded since the recorder's start
    rows: int = 0
    steps_per_s: float = 0.0
    sessions: int = 0  # shipped from the spool
    session_rows: int = 0
    bytes: int = 0
    spool_sessions: int = 0  # waiting to be shipped
    spool_bytes: int = 0
    lag_s: float = 0.0  # age of the oldest waiting session
    error: str | None = None  # why the last attempt to ship failed


def read_beat(store: Store, lease: int) -> Beat | None:
    try:
        return msgspec.json.decode(
            store.get(f"{AGENTS}/{lease_label(lease)}.json", SMALL_BYTES_MAX), type=Beat
        )
    except (MissingPathError, msgspec.MsgspecError):
        return None


class Shipper:
    """A thread that ships the sessions of a spool, and retries after failures."""

    def __init__(self, spool: Spool, report: Callable[[Level, str], None]) -> None:
        self._spool, self._report = spool, report
        self.wake = threading.Event()  # set to retry now
        self._ends = False
        self._said: set[str] = set()
        self.error: str | None = None
        self.thread = threading.Thread(target=self._run, name="shipper", daemon=True)
        self.thread.start()

    def _run(self) -> None:
        wait_s = RETRY_S_MIN
        while not self._ends:
            wait_s = RETRY_S_MIN if self.ship_all() else min(2 * wait_s, RETRY_S_MAX)
            self.wake.wait(wait_s)
            self.wake.clear()

    def ship_all(self) -> bool:
        """Ship every waiting session; return False if a session failed."""
        failed = None
        try:
            for session in self._spool.sessions():
                if self._ends:
                    break
                try:
                    self._report("info", f"shipped {self._spool.ship(session)}")
                except OF_A_SESSION as error:
                    failed = self._fail(error)
        except StorageError as error:  # of the store or the spool: the next session would fail too
            failed = self._fail(error)
        if failed is None and self.error is not None:
            self._said.clear()
            self._report("info", "shipping works again")
        self.error = failed
        return failed is None

    def _fail(self, error: TapeError) -> str:
        text = str(error)
        if text not in self._said:
            self._said.add(text)
            self._report("warning", f"not shipped yet: {text}")
        return text

    def close(self) -> None:
        """End the thread after the current session. Waiting sessions are left to the next agent."""
        self._ends = True
        self.wake.set()
        self.thread.join(RETRY_S_MAX)


@dataclasses.dataclass(eq=False)
class Agent:
    store: Store
    spool: Spool
    config: RecorderConfig | None
    command: Sequence[str]
    report: Callable[[Level, str], None]
    stop: threading.Event
    leave: threading.Event

    def __post_init__(self) -> None:
        self._agent, self._number = secrets.token_hex(8), 0
        self._next_beat = 0.0
        self._beat_fails = False
        self._recorder: Running | None = None
        self._restart_s = RETRY_S_MIN
        self._drains = self._stops_now = False
        self._phase: Literal["recording", "shipping", "ended", "failed"] = "recording"
        self._why: str | None = None
        self._error: TapeError | None = None

    def run(self) -> str:
        """Record and ship until the recorder has ended and the spool is empty; return the reason."""
        self._refuse_second_agent()
        self._shipper = Shipper(self.spool, self.report)
        try:
            if self.config is not None:
                self._record(self.config)
            self._ship_rest()
            self._phase = ENDED
        except BaseException as error:
            self._phase, self._why = FAILED, str(error)
            raise
        finally:
            self._shipper.close()
            if self._recorder is not None:
                self._recorder.close()
            self._beat()
        return self._why or "everything is shipped"

    def _refuse_second_agent(self) -> None:
        """Raise FleetError if another agent with this lease runs, on a copy of this spool."""
        lease = self.spool.member.lease
        before = read_beat(self.store, lease)
        if before is None or before.state in {ENDED, FAILED} or abs(time.time() - before.written_at) > LOST_S:
            return
        is_local = Process(before.pid, 0, before.space).is_local  # otherwise its pid cannot be checked here
        if before.host == platform.node() and is_local and Process.of(before.pid) is None:
            return
        deadline = time.monotonic() + 2 * BEAT_S
        while time.monotonic() < deadline and not self.stop.wait(_LOOK_S):
            now = read_beat(self.store, lease)
            if now is not None and (now.agent, now.number) != (before.agent, before.number):
                raise FleetError(
                    f"an agent on {now.host} (pid {now.pid}) uses this spool's lease, {lease_label(lease)}",
                    path=self.spool.path,
                    hint="Start with an empty spool: a copied spool would play the same games again.",
                )

    def _record(self, config: RecorderConfig) -> None:
        self._attach(config)
        while not self.leave.is_set():
            self._beat_if_due()
            if self._stops_now and not self._drains:
                self._drain("the fleet is stopped", games=False)
            elif self.stop.is_set() and not self._drains:
                self._drain("the agent was asked to end")
            if (self._recorder is None or self._recorder.wait(0.0)) and not self._start_again(config):
                return
            self.leave.wait(_LOOK_S)
        if not self._drains:
            self._drain("the agent was asked to leave")

    def _attach(self, config: RecorderConfig) -> None:
        try:
            self._recorder = Running(self.spool.path, config.instance)
        except NotRunningError:
            with contextlib.suppress(NotRunningError):  # it has already reached a limit
                self._recorder = start_recorder(config, self.command)
                self.report("info", f"started a recorder (pid {self._recorder.process.pid})")
            return
        found = self._recorder.snapshot().config
        for name in (*PINNED, "lease"):
            wanted = getattr(config, name)
            if found.get(name) != wanted:
                raise FleetError(
                    f"found a running recorder with {name} = {found.get(name)!r}, expected {wanted!r}, the "
                    "fleet's value",
                    path=self.spool.path,
                    hint="Stop it (tape2048 stop), or choose a different --spool.",
                )
        self.report("info", f"attached to the recorder (pid {self._recorder.process.pid})")

    def _drain(self, why: str, *, games: bool = True) -> None:
        self._drains, self._why = True, why
        self.report("info", f"{why}: the recorder {'drains' if games else 'publishes and ends'}")
        if self._recorder is not None:
            with contextlib.suppress(NotRunningError):
                self._recorder.stop(drain=games)

    def _start_again(self, config: RecorderConfig) -> bool:
        if self._recorder is None:
            return False
        last = self._recorder.snapshot()
        self._recorder.close()
        self._recorder = None
        if last.status.state == "stopped":
            self._why = self._why or last.status.why
            if last.status.error is not None:
                self._error = FleetError(
                    f"the recorder ended with an error: {last.status.error}",
                    path=self.spool.path,
                    hint=f"See its log, {self.spool.path / LOCKS_DIRECTORY / config.instance}.log.",
                )
            return False
        if self._drains:
            self._why = "the recorder died while it drained. The next start publishes the committed rows"
            return False
        self.report("warning", f"the recorder died; a new one starts in {self._restart_s:g} s")
        until = time.monotonic() + self._restart_s
        while time.monotonic() < until and not self.leave.wait(_LOOK_S):
            self._beat_if_due()
        self._restart_s = min(2 * self._restart_s, RETRY_S_MAX)
        self._attach(config)
        return True

    def _ship_rest(self) -> None:
        self._phase = "shipping"
        self._shipper.wake.set()
        while left := self.spool.sessions():
            if self.leave.is_set() or (self.config is None and self.stop.is_set()):
                why = self._shipper.error or "the agent was asked to leave"
                raise FleetError(
                    f"{counted(len(left), 'session')} not shipped: {why}",
                    path=self.spool.path,
                    hint=f"Ship them with `tape2048 fleet join {self.store.url} --ship-only`.",
                )
            self._beat_if_due()
            self.leave.wait(_LOOK_S)
        if self._error is not None:
            raise self._error

    def _beat_if_due(self) -> None:
        if not self._shipper.thread.is_alive():  # only a bug ends it early
            raise FleetError(
                "the thread that ships sessions has died",
                path=self.spool.path,
                hint="See its error above.",
            )
        if time.monotonic() < self._next_beat:
            return
        self._next_beat = time.monotonic() + BEAT_S
        self._beat()
        for log in (AGENT_LOG, "default.log" if self.config is None else f"{self.config.instance}.log"):
            trim_log(self.spool.path / LOCKS_DIRECTORY / log)
        with contextlib.suppress(TapeError):
            if self.config is not None and (drain := read_drain(self.store)) is not None:
                if drain.now and not self._stops_now:
                    self._stops_now, self._drains = True, False  # also hurry a recorder that is draining
                self.stop.set()

    def _beat(self) -> None:
        self._number += 1
        member, waiting, lag_s = self.spool.member, self.spool.sessions(), 0.0
        for session in waiting:
            with contextlib.suppress(OSError):  # it was just shipped
                lag_s = max(lag_s, time.time() - session.stat().st_mtime)
        beat = Beat(
            lease=member.lease,
            agent=self._agent,
            number=self._number,
            host=platform.node(),
            pid=os.getpid(),
            space=Process.mine().space,
            written_at=time.time(),
            state=self._phase,
            why=self._why,
            sessions=member.sessions,
            session_rows=member.rows,
            bytes=member.bytes,
            spool_sessions=len(waiting),
            spool_bytes=self.spool.size_bytes(),
            lag_s=lag_s,
            error=self._shipper.error,
        )
        if self._recorder is not None and self._phase == "recording":
            with contextlib.suppress(TapeError):
                status = self._recorder.snapshot().status
                beat = msgspec.structs.replace(
                    beat,
                    state=status.state,
                    why=status.why,
                    games=status.recorded_games,
                    rows=status.recorded_rows,
                    steps_per_s=status.steps_per_s,
                )
        try:
            self.store.put(f"{AGENTS}/{lease_label(member.lease)}.json", pretty_json(beat))
            self._beat_fails = False
        except StorageError as error:
            if not self._beat_fails:
                self.report("warning", f"the store receives no heartbeat from this node: {error}")
            self._beat_fails = True


# The state of a fleet, from its store.

#: Concurrent requests for heartbeats. If a request takes 0.1 s, a thousand nodes are read within LOST_S.
_BEAT_REQUESTS = 16

_BEAT_NAME = re.compile(r"[0-9a-f]{6}\.json")


class Node(msgspec.Struct, frozen=True):
    beat: Beat  # the last heartbeat
    state: str  # ``lost`` without a heartbeat for ``LOST_S``; otherwise the state in the heartbeat
    silent_s: float  # time since the heartbeat by this machine's clock; negative if the node's clock is ahead
    stored: int  # number of its sessions in the store

    @property
    def name(self) -> str:
        return f"{self.beat.host} ({lease_label(self.beat.lease)})"

    @property
    def is_going(self) -> bool:
        return self.state not in {"lost", ENDED, FAILED}


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet at one moment: its nodes, sums over the nodes, and the number of ``sessions`` in the store."""

    url: str
    plan: FleetPlan
    draining: bool
    nodes: list[Node]
    sessions: int
    rows: int
    bytes: int
    steps_per_s: float
    lag_s: float
    lost: list[str]
    unknown: list[str]  # keys below agents/ that are not heartbeats


class Onlooker:
    """An observer of a fleet that tells silent nodes from clock skew; FleetError without a fleet."""

    def __init__(self, store: Store, sleep: Callable[[float], object] = time.sleep) -> None:
        self._store, self._sleep = store, sleep
        self._plan = read_plan(store)
        #: The last heartbeat of each lease, and when it was first seen (monotonic).
        self._seen: dict[int, tuple[tuple[str, int], float]] = {}

    def look(self) -> Overview:
        """Return the present state. The first call takes several seconds if a node seems to be silent."""
        known = set(self._seen)
        beats = self._beats()
        # Nodes that are silent, or whose clock is wrong.
        doubtful = [
            beat
            for beat in beats
            if beat.lease not in known
            and beat.state not in {ENDED, FAILED}
            and abs(time.time() - beat.written_at) > LOST_S
        ]
        if doubtful:
            # If a node's clock is ahead, the time in a heartbeat does not show its age.
            self._sleep(LOST_S if any(beat.written_at > time.time() for beat in doubtful) else 2 * BEAT_S)
            beats = self._beats()
        stored = Counter(
            parsed.label
            for name in list_sessions(self._store)
            if (parsed := RemoteName.parse(name)) is not None
        )
        nodes = [self._node(beat, stored[lease_label(beat.lease)]) for beat in beats]
        return Overview(
            url=self._store.url,
            plan=self._plan,
            draining=read_drain(self._store) is not None,
            nodes=nodes,
            sessions=stored.total(),
            rows=sum(node.beat.session_rows for node in nodes),
            bytes=sum(node.beat.bytes for node in nodes),
            steps_per_s=sum(node.beat.steps_per_s for node in nodes if node.is_going),
            lag_s=max((node.beat.lag_s for node in nodes), default=0.0),
            lost=[node.name for node in nodes if node.state == "lost"],
            unknown=self._unknown,
        )

    def _read(self, name: str) -> Beat | None:
        if _BEAT_NAME.fullmatch(name):
            with contextlib.suppress(StorageError):
                return read_beat(self._store, int(name[:6], 16))
        return None

    def _beats(self) -> list[Beat]:
        beats, self._unknown = [], list[str]()
        names = sorted(self._store.names(AGENTS))
        for name, beat in zip(names, map_ordered(self._read, names, _BEAT_REQUESTS), strict=True):
            if beat is None:
                self._unknown.append(f"{AGENTS}/{name}")
                continue
            beats.append(beat)
            key = beat.agent, beat.number
            if self._seen.get(beat.lease, (None, 0.0))[0] != key:
                # The age of the first heartbeat follows from its time. Later heartbeats are new.
                age_s = 0.0 if beat.lease in self._seen else max(time.time() - beat.written_at, 0.0)
                self._seen[beat.lease] = key, time.monotonic() - age_s
        return beats

    def _node(self, beat: Beat, stored: int) -> Node:
        state, silent_s = beat.state, time.monotonic() - self._seen[beat.lease][1]
        if state not in {ENDED, FAILED} and silent_s >= LOST_S:
            state = "lost"
        return Node(beat, state, time.time() - beat.written_at, stored)
