"""A node's spool: the directory to which its recorder writes, and from which its sessions are shipped.

``.recorder/agent.fleet.json`` holds the spool's fleet and lease, and sums over the shipped sessions.
``.recorder/agent.fleet.lock`` is locked while an agent is running.
"""

from __future__ import annotations

import contextlib
import os
import secrets
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import pretty_json
from tape2048.errors import (
    BookkeepingError,
    BusyError,
    DiskFullError,
    FleetError,
    FormatError,
    MissingPathError,
    StorageError,
    TapeError,
)
from tape2048.files.durable import replace_file, write_all
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.files.opening import open_owned, storage_errors, try_lock
from tape2048.files.removal_locks import RemovalLock, make_readers_lock
from tape2048.maintenance.removal import clear_leftovers, remove_sessions
from tape2048.session.columns import column_files
from tape2048.session.layout import METADATA_DB, SESSION_NAME
from tape2048.session.metadata import read_metadata
from tape2048.stores.remote import put_session
from tape2048_recorder.fleet.plan import FleetPlan, claim_lease, lease_label, read_plan
from tape2048_recorder.record_options import NUMBER_BITS
from tape2048_recorder.recording.recording import MEGABYTE, bytes_of
from tape2048_recorder.status.status_report import Process

if TYPE_CHECKING:
    from pathlib import Path

    from tape2048.stores.objects import Store

_MEMBER, _LOCK = "agent.fleet.json", "agent.fleet.lock"
#: The log of an agent that Ray started.
AGENT_LOG = "agent.fleet.log"


class Member(msgspec.Struct, frozen=True, kw_only=True):
    """The fleet of a spool, its lease, and sums over the sessions shipped from it."""

    fleet: str
    lease: int
    claim: str
    sessions: int = 0
    games: int = 0
    rows: int = 0
    bytes: int = 0
    last: str = ""  # name in the store of the last counted session


def read_member(spool: Path) -> Member | None:
    """Read the membership of a spool; None if no agent ever ran there, FleetError if the file is damaged."""
    path = spool / LOCKS_DIRECTORY / _MEMBER
    try:
        with storage_errors(path, "reading the spool's facts"):
            return msgspec.json.decode(path.read_bytes(), type=Member)
    except StorageError:
        if path.exists():
            raise
        return None
    except msgspec.MsgspecError as error:
        hint = "Restore the file. It records which games were played here."
        raise FleetError(f"not the facts of a spool: {error}", path=path, hint=hint) from error


def agent_at_work(spool: Path) -> tuple[Process, int] | None:
    """Return the agent that uses a spool, and a pidfd of it; None if no agent runs on this machine."""
    try:
        process = Process.parse((spool / LOCKS_DIRECTORY / _LOCK).read_text())
        if process is None or not process.is_local:
            return None
        pidfd = os.pidfd_open(process.pid)
    except (OSError, UnicodeDecodeError):
        return None
    if process.is_there:  # the pidfd now holds this process
        return process, pidfd
    os.close(pidfd)
    return None


class Spool(contextlib.AbstractContextManager["Spool"]):
    """A spool of a fleet, locked until it is closed, as a context manager."""

    def __init__(self, path: Path, store: Store, plan: FleetPlan) -> None:
        self._store, self._plan = store, plan
        self.closed = self._taken = False
        self._shipped: dict[str, str] = {}  # shipped sessions that could not be removed yet
        with storage_errors(path, "preparing the spool"):
            path.mkdir(parents=True, exist_ok=True)
            self.path = path.resolve()
            make_readers_lock(self.path)
            self._lock = open_owned(self.path / LOCKS_DIRECTORY / _LOCK, os.O_RDWR | os.O_CREAT)
        try:
            self._take()
            self.member = self._join()
        except BaseException:
            self.close()
            raise

    def _take(self) -> None:
        if not try_lock(self._lock):
            holder = Process.parse(os.pread(self._lock, 256, 0).decode(errors="replace"))
            named = "another agent" if holder is None else f"the agent with {holder.name}"
            raise BusyError(
                f"{named} uses this spool",
                path=self.path,
                hint="Stop that agent, or choose a different --spool.",
            )
        self._taken = True
        with storage_errors(self.path, "writing the lock file"):
            os.ftruncate(self._lock, 0)
            write_all(self._lock, Process.mine().line.encode(), 0)

    def _join(self) -> Member:
        member = read_member(self.path)
        if member is None:
            if left := self.sessions():
                raise FleetError(
                    f"found {left[0].name}, which belongs to no fleet; expected an empty spool",
                    path=self.path,
                    hint="Choose a different --spool.",
                )
            claim = secrets.token_hex(8)
            member = Member(fleet=self._plan.fleet, lease=claim_lease(self._store, claim), claim=claim)
            self._save(member)
        if member.fleet != self._plan.fleet:
            raise FleetError(
                f"found a spool of the fleet {member.fleet}, expected {self._plan.fleet}, the fleet of "
                f"{self._store.url}",
                path=self.path,
                hint="Choose a different --spool, or pass the address of the spool's fleet.",
            )
        return member

    def _save(self, member: Member) -> None:
        path = self.path / LOCKS_DIRECTORY / _MEMBER
        with storage_errors(path, "writing the spool's facts"):
            replace_file(path, pretty_json(member))
        self.member = member

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        if not self.closed:
            self.closed = True
            with contextlib.suppress(OSError):
                if self._taken:  # this process is not an agent any more
                    os.ftruncate(self._lock, 0)
            os.close(self._lock)

    def sessions(self) -> list[Path]:
        with storage_errors(self.path, "listing the spool"):
            return sorted(path for path in self.path.iterdir() if SESSION_NAME.fullmatch(path.name))

    def size_bytes(self) -> int:
        return sum(map(bytes_of, self.sessions()))

    def make_room(self, spool_max_mb: int | None) -> None:
        """Ship until a recorder can write; DiskFullError if the spool is full and shipping fails."""
        for session in self.sessions():
            size = self.size_bytes()
            if spool_max_mb is None or size < spool_max_mb * MEGABYTE:
                return
            try:
                self.ship(session)
            except TapeError as error:
                raise DiskFullError(
                    f"found {size // MEGABYTE} MB of sessions to ship, expected less than spool_max_mb = "
                    f"{spool_max_mb}. Shipping failed: {error}",
                    path=self.path,
                    hint=error.hint or "Repair the cause, or raise spool_max_mb.",
                ) from error

    def ship(self, session: Path) -> str:
        """Upload a session, read back every byte, remove it here, and return its name in the store."""
        games, rows = self._check(session)
        if read_plan(self._store).fleet != self._plan.fleet:
            hint = "Check whether the right directory is mounted. Nothing was shipped."
            raise FleetError("the store now holds another fleet", path=self._store.url, hint=hint)
        size = bytes_of(session)
        before = self.member
        if (name := self._shipped.get(session.name)) is None:
            name = put_session(self._store, session, lease_label(before.lease))
            self._shipped[session.name] = name
            if before.last != name:
                after = msgspec.structs.replace(
                    before,
                    sessions=before.sessions + 1,
                    games=before.games + games,
                    rows=before.rows + rows,
                    bytes=before.bytes + size,
                    last=name,
                )
                self._save(after)
        with RemovalLock(self.path) as lock:
            clear_leftovers(self.path, lock)
            for outcome in remove_sessions(self.path, [session], lock):
                if outcome.error is not None:
                    raise outcome.error
                if not outcome.gone:
                    raise BusyError("the session is shipped, but a process still reads it here", path=session)
        del self._shipped[session.name]  # after a clock jump, a new session can have this name
        return name

    def _check(self, session: Path) -> tuple[int, int]:
        """Check that a session belongs to this fleet and lease; return its numbers of games and rows."""
        path = session / METADATA_DB
        metadata = read_metadata(path)
        expected: dict[str, Any] = {"player_sha256": self._plan.player_sha256, **self._plan.settings}
        for name in ("player_sha256", "seed", "sample_rate", "record_action"):
            if (found := metadata.session.get(name)) != expected[name]:
                raise FleetError(
                    f"found {name} = {found!r}, expected the fleet's {expected[name]!r}. The session is not "
                    "shipped",
                    path=session,
                    hint="Move the session out of the spool.",
                )
        if not len(metadata.runs):
            raise BookkeepingError("found no run, expected at least one", path=path)
        leases = np.unique(metadata.runs["id"] >> np.uint64(NUMBER_BITS)).tolist()
        if leases != [self.member.lease]:
            raise FleetError(
                f"found games of the leases {leases}, expected only {self.member.lease}, the spool's lease. "
                "The session is not shipped",
                path=session,
                hint="Move the session out of the spool.",
            )
        if files := sorted(column_files(session)):
            found = f"found {files[0]}, expected no columns: a store cannot hold columns"
            hint = "Move the session or its columns out of the spool. Shipping would remove them here."
            raise FleetError(found, path=session, hint=hint)
        return len(metadata.runs), int(metadata.runs["rows"].sum())


#: Errors that concern one session, which stays in the spool. Shipping continues with the next session.
OF_A_SESSION = (FormatError, FleetError, BusyError, MissingPathError)
