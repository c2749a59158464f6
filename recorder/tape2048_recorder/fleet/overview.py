"""The state of a fleet, as its store tells it: the nodes' beats, and the sessions."""

from __future__ import annotations

import time
from collections import Counter
from typing import TYPE_CHECKING

import msgspec

from tape2048.session.remote import RemoteName, list_sessions
from tape2048_recorder.fleet.agent import BEAT_S, ENDED, FAILED, LOST_S, Beat, read_beat
from tape2048_recorder.fleet.plan import AGENTS, Plan, lease_label, read_drain, read_plan

if TYPE_CHECKING:
    from collections.abc import Callable

    from tape2048.io.objects import Store


class Node(msgspec.Struct, frozen=True):
    """A node of a fleet.

    Attributes:
        beat: its last words.
        state: ``lost`` without a beat for ``LOST_S``, or the beat's.
        silent_s: time without a beat by this machine's clock; negative where the node's clock is ahead.
        stored: its sessions in the store.
    """

    beat: Beat
    state: str
    silent_s: float
    stored: int

    @property
    def name(self) -> str:
        """The node's host and lease."""
        return f"{self.beat.host} ({lease_label(self.beat.lease)})"

    @property
    def is_going(self) -> bool:
        """Whether it is at work, as far as is known."""
        return self.state not in {"lost", ENDED, FAILED}


class Overview(msgspec.Struct, frozen=True, kw_only=True):
    """A fleet at one moment: sums over its nodes, and the ``sessions`` that a reader of the store sees."""

    url: str
    plan: Plan
    draining: bool
    nodes: list[Node]
    sessions: int
    rows: int
    bytes: int
    steps_per_s: float
    lag_s: float
    lost: list[str]


class Onlooker:
    """Looks at a fleet again and again, and tells silent nodes from nodes with another clock.

    Args:
        store: the fleet's.
        sleep: waits some seconds; for tests.

    Raises:
        FleetError: there is no fleet.
        StoreError: the store refuses or does not answer.
    """

    def __init__(self, store: Store, sleep: Callable[[float], object] = time.sleep) -> None:
        self._store = store
        self._sleep = sleep
        self._plan = read_plan(store)
        #: By lease: the beat that was seen last, and when it was seen first (monotonic).
        self._seen: dict[int, tuple[tuple[str, int], float]] = {}

    def look(self) -> Overview:
        """Return the present state; the first look takes some seconds where a node seems to be silent."""
        known = set(self._seen)
        beats = self._beats()
        if doubtful := [beat for beat in beats if beat.lease not in known and self._is_doubtful(beat)]:
            # Where a clock is ahead, the beat's own time does not say how old it is.
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
                # Of a beat that was there before, its own time says how old it is; a new one is new.
                age_s = max(time.time() - beat.written_at, 0.0) if is_first else 0.0
                self._seen[beat.lease] = key, time.monotonic() - age_s
        return beats

    def _is_doubtful(self, beat: Beat) -> bool:
        """Whether a beat that is seen first is of a silent node, or of one with another clock."""
        return beat.state not in {ENDED, FAILED} and abs(time.time() - beat.written_at) > LOST_S

    def _silent_s(self, beat: Beat) -> float:
        return time.monotonic() - self._seen[beat.lease][1]

    def _node(self, beat: Beat, stored: int) -> Node:
        state = beat.state
        if beat.state not in {ENDED, FAILED} and self._silent_s(beat) >= LOST_S:
            state = "lost"
        return Node(beat, state, time.time() - beat.written_at, stored)
