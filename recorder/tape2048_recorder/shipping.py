"""Shipping: the published sessions of a recorder go to a store and are removed here (``record --to``).

In the store, next to ``sessions/``::

    recorder.toml                 the settings of a group: record --to URL --config URL/recorder.toml
    players/<player_sha256>       the player of a group, which the first recorder writes
    leases/<lease>/<claim>.json   claims of leases; they are never removed

A claim's name is random, so no write replaces another claim. A recorder writes its claim, then lists the
claims of the lease, and takes the lease only if it sees its own claim alone. If two recorders claim one
lease, at least the recorder that lists last sees both. So no lease has two holders, and the store needs no
conditional writes.

``.recorder/<instance>.lease.json`` in the recorder's directory keeps the lease. A session's name in the
store ends with the digest of its manifest: a recorder that is killed while it ships ships the same session
again, and finds it.
"""

from __future__ import annotations

import hashlib
import math
import secrets
import threading
import time
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import counted, pretty_json
from tape2048.errors import (
    BookkeepingError,
    BusyError,
    ConfigError,
    FormatError,
    MissingPathError,
    ShippingError,
    StorageError,
    StoreError,
    TapeError,
)
from tape2048.files.durable import replace_file
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.files.opening import path_exists, storage_errors
from tape2048.files.removal_locks import RemovalLock
from tape2048.maintenance.removal import clear_leftovers, remove_sessions
from tape2048.session.columns import column_files
from tape2048.session.layout import METADATA_DB, NUMBER_BITS, SESSION_NAME, name_key
from tape2048.session.metadata import read_metadata
from tape2048.stores.objects import naming, open_store
from tape2048.stores.remote import put_session
from tape2048_recorder.record_options import LEASE_MAX, row_bytes
from tape2048_recorder.recording.recording import MEGABYTE, bytes_of
from tape2048_recorder.status.status_report import Shipping

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tape2048.stores.objects import Store
    from tape2048_recorder.record_options import RecorderConfig
    from tape2048_recorder.status.status_report import Level

#: The settings of a group in its store, and their size limit.
GROUP_TOML, TOML_BYTES_MAX = "recorder.toml", 1 << 20
LEASES, PLAYERS = "leases", "players"

#: Delays before a session is shipped again after a failure.
RETRY_S_MIN, RETRY_S_MAX = 1.0, 60.0
#: Time to ship the last sessions after a signal; a service manager waits a little longer.
LAST_S = 20.0

_LOOK_S = 0.5  # interval of looking for published sessions
_CLAIMS_MAX = 100
_LAST_TRIES = 3  # of sessions that failed, at the end of a recording
_SPOOL_SESSIONS = 4  # sessions that fit into the directory if ``spool_max_mb`` is not set

#: Errors that concern one session, which stays. Shipping continues with the next session.
_OF_A_SESSION = (FormatError, ShippingError, BusyError, MissingPathError)


class _Lease(msgspec.Struct, frozen=True):
    store: str
    lease: int


def lease_label(lease: int) -> str:
    return f"{lease:06x}"


def take_lease(url: str, out_dir: Path, instance: str) -> int:
    """Return the lease of an instance of a directory; if it has none, claim a free lease in the store.

    Raises:
        ShippingError: the directory has a lease of another store, or its file is damaged.
        StoreError: the store cannot be reached, or does not list the claim.
    """
    store, path = open_store(url), out_dir / LOCKS_DIRECTORY / f"{instance}.lease.json"
    with storage_errors(path, "reading the lease"):
        text = path.read_bytes() if path.exists() else None
    if text is None:
        with naming(url):
            found = _Lease(store.url, _claim(store))
        with storage_errors(path, "writing the lease"):
            path.parent.mkdir(parents=True, exist_ok=True)
            replace_file(path, pretty_json(found))
        return found.lease
    try:
        found = msgspec.json.decode(text, type=_Lease)
    except msgspec.MsgspecError as error:
        hint = "Restore the file, or record into a new --out. The file says which games were played here."
        raise ShippingError(f"not a lease: {error}", path=path, hint=hint) from error
    if found.store != store.url:
        hint = "Choose another --out for each store, or pass the store of this directory."
        raise ShippingError(f"found a lease of {found.store}, expected {store.url}", path=path, hint=hint)
    return found.lease


def _claim(store: Store) -> int:
    claim = f"{secrets.token_hex(8)}.json"
    facts = pretty_json({"claimed_at": time.time()})
    taken = {name.partition("/")[0] for name in store.names(LEASES)}
    for _ in range(_CLAIMS_MAX):
        lease = 1 + secrets.randbelow(LEASE_MAX)
        if lease_label(lease) in taken:
            continue
        directory = f"{LEASES}/{lease_label(lease)}"
        store.put(f"{directory}/{claim}", facts)
        listed = set(store.names(directory))
        if claim not in listed:
            message = "the claim of a lease was written, but the store does not list it"
            raise StoreError(message, path=store.path(directory))
        if listed == {claim}:
            return lease
        taken.add(lease_label(lease))
    raise ShippingError(f"no lease was free in {_CLAIMS_MAX} attempts", path=store.path(LEASES))


def spool_mb(config: RecorderConfig) -> int:
    """Return the default of ``spool_max_mb`` with ``to``: four sessions."""
    session_mb = config.rotate_steps * row_bytes(config) / config.sample_rate / MEGABYTE
    return math.ceil(_SPOOL_SESSIONS * session_mb)


class Shipper:
    """A thread that ships the sessions in a recorder's directory, and retries after failures.

    Args:
        config: the recorder's settings, with the seed and the lease in effect.
        out_dir: the recorder's directory.
        report: function that receives events.
    """

    def __init__(
        self,
        config: RecorderConfig,
        out_dir: Path,
        report: Callable[[Level, str], None],
    ) -> None:
        assert config.to is not None
        assert config.lease is not None
        self._store, self._out_dir, self._report = open_store(config.to), out_dir, report
        self._seed, self._lease = config.seed, config.lease
        self._shipped: dict[str, str] = {}  # shipped sessions that could not be removed yet
        self._reported: set[str] = set()
        self._count = self._bytes = 0
        self._error: str | None = None
        self._ending = False
        self._wake = threading.Event()
        self._seen: tuple[int, float | None] = 0, None  # the last count of waiting sessions, and the oldest
        self._thread = threading.Thread(target=self._run, name="shipper", daemon=True)
        self._thread.start()

    def status(self) -> Shipping:
        """Return what waits, and why."""
        error = self._error
        try:
            waiting = self._waiting()
            times = [path.stat().st_mtime for path in waiting if path_exists(path)]
            self._seen = len(times), min(times, default=None)
        except (OSError, StorageError) as unread:  # what waited before may still wait
            error = error or str(unread)
        count, oldest = self._seen
        return Shipping(
            to=self._store.url,
            sessions_waiting=count,
            waiting_s=0.0 if oldest is None else max(time.time() - oldest, 0.0),
            sessions_shipped=self._count,
            bytes_shipped=self._bytes,
            error=error,
        )

    def finish(self, is_asked_to_end: Callable[[], bool], *, by_signal: bool) -> None:
        """Ship what is left, after a signal for at most :data:`LAST_S`, or until asked to end.

        Sessions that are left stay in the directory, and the next start ships them.
        """
        self._ending = True
        self._wake.set()
        until = time.monotonic() + (LAST_S if by_signal else math.inf)
        while self._thread.is_alive() and not is_asked_to_end() and time.monotonic() < until:
            self._thread.join(_LOOK_S / 5)
        if left := self._waiting():
            why = "" if self._error is None else f". Shipping failed: {self._error}"
            text = f"{counted(len(left), 'session')} in {self._out_dir} not shipped to {self._store.url}"
            self._report("warning", f"{text}; the next start with this directory ships them{why}")

    def _run(self) -> None:
        wait_s, last_tries = RETRY_S_MIN, _LAST_TRIES
        while True:
            is_ending = self._ending  # before the listing: the last session is published by then
            is_reached = self._ship_all()
            if is_ending and is_reached:
                last_tries -= 1
                if self._error is None or not last_tries:
                    return
            wait_s = RETRY_S_MIN if self._error is None else min(2 * wait_s, RETRY_S_MAX)
            self._wake.wait(_LOOK_S if self._error is None else wait_s)
            self._wake.clear()

    def _waiting(self) -> list[Path]:
        with storage_errors(self._out_dir, "listing the sessions to ship"):
            found = (path for path in self._out_dir.iterdir() if SESSION_NAME.fullmatch(path.name))
            return sorted(found, key=lambda path: name_key(path.name))

    def _ship_all(self) -> bool:
        """Ship every session that fits; return False if the store or the directory failed."""
        failed, is_reached = None, True
        try:
            for session in self._waiting():
                try:
                    self._report("info", f"shipped {self._ship(session)}")
                except _OF_A_SESSION as error:
                    failed = self._fail(error)
        # Of the store or the directory: the next session would fail, too. Any other error would end the
        # thread, and the recorder would pause for good without a reason.
        except Exception as error:  # noqa: BLE001
            failed, is_reached = self._fail(error), False
        if failed is None and self._error is not None:
            self._reported.clear()
            self._report("info", "shipping works again")
        self._error = failed
        return is_reached

    def _fail(self, error: Exception) -> str:
        text = str(error) if isinstance(error, TapeError) else f"{type(error).__name__}: {error}"
        if text not in self._reported:
            self._reported.add(text)
            self._report("warning", f"not shipped yet: {text}")
        return text

    def _ship(self, session: Path) -> str:
        """Upload a session, read back every byte, remove it here, and return its name in the store."""
        if (name := self._shipped.get(session.name)) is None:
            self._check(session)
            size = bytes_of(session)
            name = self._shipped[session.name] = put_session(self._store, session, lease_label(self._lease))
            self._count, self._bytes = self._count + 1, self._bytes + size
        with RemovalLock(self._out_dir) as lock:
            clear_leftovers(self._out_dir, lock)
            for outcome in remove_sessions(self._out_dir, [session], lock):
                if outcome.error is not None:
                    raise outcome.error
                if not outcome.gone:
                    raise BusyError("the session is shipped, but a process still reads it here", path=session)
        del self._shipped[session.name]  # after a clock jump, a new session can have this name
        return name

    def _check(self, session: Path) -> None:
        """Raise ShippingError unless a session has the lease and, in a group, its settings and player."""
        path = session / METADATA_DB
        metadata = read_metadata(path)
        if not len(metadata.runs):
            raise BookkeepingError("found no run, expected at least one", path=path)
        if files := sorted(column_files(session)):
            _refuse(session, f"{files[0]}", "no columns, which a store cannot hold")
        leases = np.unique(metadata.runs["run_id"] >> np.uint64(NUMBER_BITS)).tolist()
        if leases != [self._lease]:
            _refuse(session, f"games of the leases {leases}", f"only {self._lease}, this recorder's lease")
        group = group_sha256(self._store)
        facts: dict[str, Any] = metadata.session
        if (found := facts.get("settings_sha256")) != group:
            hint = f"Record with --config {self._store.url}/{GROUP_TOML}."
            _refuse(session, f"settings_sha256 = {found}", f"{group}, of the group's {GROUP_TOML}", hint)
        if group is None:
            return
        if (found := facts.get("seed")) != self._seed:
            _refuse(session, f"the seed {found}", f"{self._seed}, the group's seed")
        player = str(facts.get("player_sha256"))
        if not (players := set(self._store.names(PLAYERS))):
            self._store.put(f"{PLAYERS}/{player}", b"")
            players = set(self._store.names(PLAYERS))
        if others := players - {player}:
            hint = "Install one release and one network everywhere. Remove the wrong file of players/."
            _refuse(session, f"the player {player}", f"{min(others)}, the group's player", hint)


def _refuse(session: Path, found: str, expected: str, hint: str | None = None) -> None:
    message = f"found {found}; expected {expected}. The session is not shipped"
    raise ShippingError(message, path=session, hint=hint or "Move the session out of this directory.")


def group_sha256(store: Store) -> str | None:
    """Return the SHA-256 of the settings of the store's group; None if it has no group."""
    try:
        return hashlib.sha256(_read_toml(store, GROUP_TOML)).hexdigest()
    except MissingPathError:
        return None


def read_settings(url: str) -> bytes:
    """Read a TOML file of a store, ``URL/name.toml``; raise ConfigError if it is missing."""
    directory, _, name = url.rpartition("/")
    try:
        return _read_toml(open_store(directory, url), name)
    except MissingPathError as error:
        raise ConfigError("no such object; expected a TOML file", path=url, hint=error.hint) from error


def _read_toml(store: Store, name: str) -> bytes:
    text = store.get(name, TOML_BYTES_MAX)
    if text.lstrip()[:1] == b"<":
        hint = "Check the network: a proxy or a login page may answer in place of the store."
        raise StoreError("found HTML; expected TOML", path=store.path(name), hint=hint)
    return text
