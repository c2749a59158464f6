"""The state of a fleet, as its store shows it: the nodes' heartbeats, and the sessions."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tape2048.session.remote import RemoteName, list_sessions
from tape2048_recorder.fleet.agent import BEAT_S, ENDED, FAILED, LOST_S, Beat, read_beat
from tape2048_recorder.fleet.plan import AGENTS, FleetPlan, lease_label, read_drain, read_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048.io.objects import Store


class Node(msgspec.Struct, frozen=True):
    """A node of a fleet."""

    beat: Beat  # the last one
    state: str  # ``lost`` without a heartbeat for ``LOST_S``; else the state in the heartbeat
    silent_s: float  # time since the heartbeat by this machine's clock; negative if the node's clock is ahead
    stored: int  # its sessions in the store

    @property
    def name(self) -> str:
        """The node's host and lease."""
        return f"{self.beat.host} ({lease_label(self.beat.lease)})"

    @property
    def is_going(self) -> bool:
        """Whether it runs, as far as is known."""
        return self.state not in {"lost", ENDED, FAILED}


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet at one moment: sums over its nodes, and the number of ``sessions`` in the store."""

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


class Onlooker:
    """Watches a fleet, and tells silent nodes from nodes with clock skew; FleetError if there is no fleet."""

    def __init__(self, store: Store, sleep: Callable[[float], object] = time.sleep) -> None:
        self._store, self._sleep = store, sleep
        self._plan = read_plan(store)
        #: By lease: the last heartbeat, and when it was seen first (monotonic).
        self._seen: dict[int, tuple[tuple[str, int], float]] = {}

    def look(self) -> Overview:
        """Return the present state; the first call takes some seconds if a node seems to be silent."""
        known = set(self._seen)
        beats = self._beats()
        # A node is silent, or its clock is wrong.
        doubtful = [
            beat
            for beat in beats
            if beat.lease not in known
            and beat.state not in {ENDED, FAILED}
            and abs(time.time() - beat.written_at) > LOST_S
        ]
        if doubtful:
            # With a clock that is ahead, the time in a heartbeat does not show its age.
            is_ahead = any(beat.written_at > time.time() for beat in doubtful)
            self._sleep(LOST_S if is_ahead else 2 * BEAT_S)
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
        )

    def _beats(self) -> list[Beat]:
        leases = sorted(int(name.removesuffix(".json"), 16) for name in self._store.names(AGENTS))
        beats = [beat for lease in leases if (beat := read_beat(self._store, lease)) is not None]
        for beat in beats:
            key = beat.agent, beat.number
            if self._seen.get(beat.lease, (None, 0.0))[0] != key:
                is_first = beat.lease not in self._seen
                # The first heartbeat is as old as its time says; a later one is new.
                age_s = max(time.time() - beat.written_at, 0.0) if is_first else 0.0
                self._seen[beat.lease] = key, time.monotonic() - age_s
        return beats

    def _node(self, beat: Beat, stored: int) -> Node:
        state, silent_s = beat.state, time.monotonic() - self._seen[beat.lease][1]
        if state not in {ENDED, FAILED} and silent_s >= LOST_S:
            state = "lost"
        return Node(beat, state, time.time() - beat.written_at, stored)
