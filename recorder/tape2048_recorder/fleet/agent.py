"""The agent of a node: keeps a recorder at work, ships what it publishes, and says so in the store.

The recorder is a process of nobody and goes on if the agent is killed; the next agent attaches to it. The
agent's main thread looks after the recorder and writes a beat every few seconds; another thread ships.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
import platform
import secrets
import threading
import time
from typing import TYPE_CHECKING, Final, Literal

import msgspec

from tape2048.base.text import counted, pretty_json
from tape2048.errors import FleetError, MissingPathError, NotRunningError, StorageError, TapeError
from tape2048_recorder.fleet.launching import start_recorder, trim_log
from tape2048_recorder.fleet.plan import AGENTS, PINNED, SMALL_BYTES_MAX, lease_label, read_drain
from tape2048_recorder.fleet.spool import AGENT_LOG, OF_A_SESSION
from tape2048_recorder.status.control import Running
from tape2048_recorder.status.status_file import Process

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from pathlib import Path

    from tape2048.io.objects import Store
    from tape2048_recorder.config.schema import RecorderConfig
    from tape2048_recorder.fleet.spool import Spool
    from tape2048_recorder.status.report import Level

#: Interval of beats, and of looking whether the fleet is to drain.
BEAT_S = 3.0

#: A node without a beat for this long is lost. With two beats more, by which another clock is told from
#: silence, a look at the fleet names it within 20 s.
LOST_S = 10.0

#: States of an agent that has ended: everything is shipped, or it raised an error.
ENDED: Final = "ended"
FAILED: Final = "failed"

#: Delays before a session is tried again, and before a recorder that died is started again.
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0

_LOOK_S = 0.2


class Beat(msgspec.Struct, frozen=True, kw_only=True):
    """The last words of a node's agent.

    Attributes:
        agent: random, names this life of the agent.
        number: grows with each beat.
        state: the recorder's, or what the agent does without one: shipping, ``ENDED``, ``FAILED``.
        why: what explains the state.
        games, rows: recorded in this life of the recorder.
        sessions, session_rows, bytes: shipped from the spool.
        spool_sessions, spool_bytes: wait to be shipped.
        lag_s: age of the oldest session that waits.
        error: why the last try to ship failed.
    """

    lease: int
    agent: str
    number: int
    host: str
    pid: int
    written_at: float
    state: str
    why: str | None = None
    games: int = 0
    rows: int = 0
    steps_per_s: float = 0.0
    sessions: int = 0
    session_rows: int = 0
    bytes: int = 0
    spool_sessions: int = 0
    spool_bytes: int = 0
    lag_s: float = 0.0
    error: str | None = None


def read_beat(store: Store, lease: int) -> Beat | None:
    """Read the last beat of a lease; None without one.

    Raises:
        StoreError: the store refuses or does not answer.
    """
    try:
        return msgspec.json.decode(store.get(_beat_key(lease), SMALL_BYTES_MAX), type=Beat)
    except (MissingPathError, msgspec.MsgspecError):
        return None


class Shipper:
    """Ships sessions of a spool in a thread of its own, and tries again what fails.

    Args:
        spool: the spool.
        report: receives events.
    """

    def __init__(self, spool: Spool, report: Callable[[Level, str], None]) -> None:
        self._spool = spool
        self._report = report
        self._wake = threading.Event()
        self._ends = False
        self._said: set[str] = set()
        self.error: str | None = None
        self._thread = threading.Thread(target=self._run, name="shipper", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        wait_s = RETRY_S_MIN
        while not self._ends:
            wait_s = RETRY_S_MIN if self.ship_all() else min(2 * wait_s, RETRY_S_MAX)
            self._wake.wait(wait_s)
            self._wake.clear()

    def ship_all(self) -> bool:
        """Ship every session that waits now; return False where one has to wait for another try."""
        failed = None
        try:
            for session in self._spool.sessions():
                if self._ends:
                    break
                try:
                    name = self._spool.ship(session)
                except OF_A_SESSION as error:
                    failed = self._fail(error)
                else:
                    self._report("info", f"shipped {name}")
        except StorageError as error:  # of the store, or of the spool: the next one would fail alike
            failed = self._fail(error)
        if failed is None and self.error is not None:
            self._said.clear()
            self._report("info", "shipping again")
        self.error = failed
        return failed is None

    def _fail(self, error: TapeError) -> str:
        """Report an error, once until all is shipped."""
        text = str(error)
        if text not in self._said:
            self._said.add(text)
            self._report("warning", f"not shipped yet: {text}")
        return text

    @property
    def alive(self) -> bool:
        """Whether the thread is at work; it ends early by a defect alone, whose traceback it prints."""
        return self._thread.is_alive()

    def hurry(self) -> None:
        """Try again now what waits for another try."""
        self._wake.set()

    def close(self) -> None:
        """End after the session in work; it is shipped whole, or will be by the next agent."""
        self._ends = True
        self._wake.set()
        self._thread.join(RETRY_S_MAX)


@dataclasses.dataclass(eq=False)
class Agent:
    """The agent of one node.

    Args:
        store: the fleet's.
        spool: the node's, with its lease.
        config: the recorder's; its ``out_dir`` is the spool. None: nothing is recorded, only shipped.
        command: what runs ``tape2048``.
        report: receives events.
        stop: set to end it: the recorder drains, and what it publishes is shipped.
        leave: set to end it at once; the recorder drains, and the next agent ships.
    """

    store: Store
    spool: Spool
    config: RecorderConfig | None
    command: Sequence[str]
    report: Callable[[Level, str], None]
    stop: threading.Event
    leave: threading.Event

    def __post_init__(self) -> None:
        self._agent = secrets.token_hex(8)
        self._number = 0
        self._next_beat = 0.0
        self._beat_fails = False
        self._recorder: Running | None = None
        self._restart_s = RETRY_S_MIN
        self._drains = self._stops_now = False
        self._phase: Literal["recording", "shipping", "ended", "failed"] = "recording"
        self._why: str | None = None
        self._error: TapeError | None = None

    def run(self) -> str:
        """Record and ship until the recorder has ended and the spool is empty; return the reason.

        Raises:
            FleetError: another agent has this lease, or a recorder with other settings is at work here.
            RecorderError: the recorder ended with an error; what it published is shipped.
            StoreError: it was told to leave, and sessions wait in the spool.
        """
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
        """Refuse a lease whose agent is at work, on a copy of this spool."""
        lease = self.spool.member.lease
        before = read_beat(self.store, lease)
        if before is None or before.state in {ENDED, FAILED} or abs(time.time() - before.written_at) > LOST_S:
            return
        if before.host == platform.node() and Process.of(before.pid) is None:
            return
        deadline = time.monotonic() + 2 * BEAT_S
        while time.monotonic() < deadline and not self.stop.wait(_LOOK_S):
            now = read_beat(self.store, lease)
            if now is not None and (now.agent, now.number) != (before.agent, before.number):
                raise FleetError(
                    f"an agent on {now.host} (pid {now.pid}) has this spool's lease, {lease_label(lease)}",
                    path=self.spool.path,
                    hint="a copied spool plays the same games again: begin with an empty one",
                )

    # The recorder.

    def _record(self, config: RecorderConfig) -> None:
        self._attach(config)
        while not self.leave.is_set():
            self._beat_if_due()
            if self._stops_now and not self._drains:
                self._drain("the fleet is stopped", games=False)
            elif self.stop.is_set() and not self._drains:
                self._drain("it was asked to end")
            if self._has_ended() and not self._start_again(config):
                return
            self.leave.wait(_LOOK_S)
        if not self._drains:
            self._drain("it was asked to leave")

    def _attach(self, config: RecorderConfig) -> None:
        """Take the recorder that is at work in the spool, or start one."""
        try:
            self._recorder = Running(self.spool.path, config.instance)
        except NotRunningError:
            with contextlib.suppress(NotRunningError):  # it has done its work already
                self._recorder = start_recorder(config, self.command)
                self.report("info", f"started a recorder (pid {self._recorder.process.pid})")
            return
        found = self._recorder.snapshot().config
        for name in (*PINNED, "lease"):
            wanted = getattr(config, name)
            if found.get(name) != wanted:
                raise FleetError(
                    f"a recorder with {name} = {found.get(name)!r} is at work; the fleet has {wanted!r}",
                    path=self.spool.path,
                    hint="stop it (tape2048 stop), or name another --spool",
                )
        self.report("info", f"attached to the recorder (pid {self._recorder.process.pid})")

    def _drain(self, why: str, *, games: bool = True) -> None:
        """Have the recorder end, after the games in play or with what it has confirmed."""
        self._drains = True
        self._why = why
        self.report("info", f"{why}: the recorder {'drains' if games else 'publishes and ends'}")
        if self._recorder is not None:
            with contextlib.suppress(NotRunningError):
                self._recorder.stop(drain=games)

    def _has_ended(self) -> bool:
        return self._recorder is None or self._recorder.wait(0.0)

    def _start_again(self, config: RecorderConfig) -> bool:
        """Start another recorder for one that died; return False if it ended by itself."""
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
                    hint=f"its log: {self.spool.path / '.recorder' / config.instance}.log",
                )
            return False
        if self._drains:
            self._why = "the recorder died while it drained; the next start publishes what it had confirmed"
            return False
        self.report("warning", f"the recorder died; another one starts in {self._restart_s:g} s")
        until = time.monotonic() + self._restart_s
        while time.monotonic() < until and not self.leave.wait(_LOOK_S):
            self._beat_if_due()
        self._restart_s = min(2 * self._restart_s, RETRY_S_MAX)
        self._attach(config)
        return True

    # Shipping.

    def _ship_rest(self) -> None:
        """Wait until the spool is empty; raise the recorder's error then, if it ended with one."""
        self._phase = "shipping"
        self._shipper.hurry()
        while left := self.spool.sessions():
            if self.leave.is_set() or (self.config is None and self.stop.is_set()):
                why = self._shipper.error or "it was told to leave"
                raise FleetError(
                    f"{counted(len(left), 'session')} not shipped: {why}",
                    path=self.spool.path,
                    hint=f"nothing is lost: tape2048 fleet join {self.store.url} --ship-only",
                )
            self._beat_if_due()
            self.leave.wait(_LOOK_S)
        if self._error is not None:
            raise self._error

    # Beats.

    def _beat_if_due(self) -> None:
        if not self._shipper.alive:
            raise FleetError("the shipper has died; its traceback is above", path=self.spool.path)
        if time.monotonic() >= self._next_beat:
            self._next_beat = time.monotonic() + BEAT_S
            self._beat()
            for log in (AGENT_LOG, *([] if self.config is None else [f"{self.config.instance}.log"])):
                trim_log(self.spool.path / ".recorder" / log)
            with contextlib.suppress(TapeError):
                if self.config is not None and (drain := read_drain(self.store)) is not None:
                    if drain.now and not self._stops_now:
                        self._stops_now, self._drains = True, False  # one that drains already is hurried
                    self.stop.set()

    def _beat(self) -> None:
        self._number += 1
        member, waiting = self.spool.member, self.spool.sessions()
        state, why, games, rows, rate = self._phase, self._why, 0, 0, 0.0
        if self._recorder is not None and self._phase == "recording":
            with contextlib.suppress(TapeError):
                status = self._recorder.snapshot().status
                state, why, rate = status.state, status.why, status.steps_per_s  # type: ignore[assignment]
                games, rows = status.recorded_games, status.recorded_rows
        beat = Beat(
            lease=member.lease,
            agent=self._agent,
            number=self._number,
            host=platform.node(),
            pid=os.getpid(),
            written_at=time.time(),
            state=state,
            why=why,
            games=games,
            rows=rows,
            steps_per_s=rate,
            sessions=member.sessions,
            session_rows=member.rows,
            bytes=member.bytes,
            spool_sessions=len(waiting),
            spool_bytes=self.spool.size_bytes(),
            lag_s=max((time.time() - _published_at(path) for path in waiting), default=0.0),
            error=self._shipper.error,
        )
        try:
            self.store.put(_beat_key(member.lease), pretty_json(beat))
        except StorageError as error:
            if not self._beat_fails:
                self.report("warning", f"the store hears nothing of this node: {error}")
            self._beat_fails = True
        else:
            self._beat_fails = False


def _beat_key(lease: int) -> str:
    return f"{AGENTS}/{lease_label(lease)}.json"


def _published_at(session: Path) -> float:
    try:
        return session.stat().st_mtime
    except OSError:
        return time.time()  # shipped just now
