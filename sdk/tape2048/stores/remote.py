"""Sessions in a store: written atomically, listed, and verified when fetched.

::

    sessions/<session>.<label>.<manifest>/    the files of a session, manifest.json last
    removed/<the same name>.json              a session of an earlier release that is no longer listed
    <session>/                                in a store without sessions/: a copy of a session directory

``<manifest>`` is the first part of the SHA-256 of ``manifest.json``, which has the SHA-256 of the other files
(only their CRC-32C in manifests of earlier releases). The name therefore determines the content. Writing a
session again changes nothing, even if two processes do it at the same time, and bytes that were replaced in
the store are detected. Copied session directories get a name with an empty label; each listing reads their
manifests.

The cache of a store's sessions is bounded, and shared by any number of processes::

    <cache>/
        <name>/              a copy of a whole session; every byte was compared with its checksum
        .tables/<name>/      its metadata.db and manifest.json: the run table, without the rows
        .<name>.<0...>.tmp/  a download in progress, by one process at a time
        .recorder/           locks

Nothing in the cache can be out of date. A download reserves its space first: it removes sessions that no
process holds, the least recently used first, and gives its files their final sizes. It becomes visible by a
rename. Hidden directories without a lock are leftovers of killed processes, which may have run an earlier
release. They are removed when space is needed. Sessions in use are locked in the same way as in other
directories of sessions: see ``tape2048.files.locks``.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import secrets
import shutil
import threading
import time
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypeVar

import msgspec

from tape2048.base.text import pretty_json
from tape2048.base.threads import map_ordered
from tape2048.errors import (
    BusyError,
    ChecksumError,
    CorpusError,
    FormatError,
    ManifestError,
    MissingPathError,
    StoreError,
    TruncatedError,
)
from tape2048.files.durable import Draft, remove_draft, write_all, write_file
from tape2048.files.locks import LOCKS_DIRECTORY, ReadLock, lock_for_reading
from tape2048.files.opening import open_fd, open_owned, storage_errors
from tape2048.files.reading import check_crc, crc32c, crc32c_file, open_regular, read_path
from tape2048.files.removal_locks import RemovalLock, make_readers_lock
from tape2048.session.directory import MANIFEST_BYTES_MAX, PLAIN_NAME
from tape2048.session.layout import (
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    FileEntry,
    Manifest,
    name_key,
    parse_manifest,
)
from tape2048.session.metadata import Metadata, read_metadata
from tape2048.session.stored import SESSIONS
from tape2048.stores.objects import DirectoryStore

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tape2048.stores.objects import Store

T = TypeVar("T")

_REMOVED = "removed"
_DIGEST_LENGTH = 16

#: Concurrent requests for manifests and run tables.
REQUESTS = 16


class RemoteName(NamedTuple):
    session: str
    label: str
    digest: str

    @classmethod
    def parse(cls, name: str) -> RemoteName | None:
        parts = name.rsplit(".", 2)
        return cls(*parts) if len(parts) == 3 and len(parts[2]) == _DIGEST_LENGTH else None

    def __str__(self) -> str:
        return ".".join(self)


def put_session(store: Store, session: Path, label: str) -> str:
    """Write a session, read it back, and return its name; a complete equal copy stays."""
    try:
        local = read_path(session / MANIFEST).tobytes()
    except MissingPathError as error:
        raise ManifestError("no such file", path=session / MANIFEST) from error
    manifest = _parse(local, session / MANIFEST)
    files = {
        file: msgspec.structs.replace(entry, sha256=check_local(session / file, entry))
        for file, entry in manifest.files.items()
    }
    text = pretty_json(msgspec.structs.replace(manifest, files=files))
    for found in (local, text):  # earlier releases wrote the local manifest, without SHA-256
        name = str(RemoteName(session.name, label, _digest(found)))
        directory = f"{SESSIONS}/{name}"
        if MANIFEST in store.names(directory):
            try:
                _verify_manifest(store, directory, found)
                for file, entry in files.items():
                    compare_file(store, f"{directory}/{file}", entry)
            except (FormatError, MissingPathError):
                store.retract(directory, MANIFEST)
            else:
                return name
    with store.publishing(directory, MANIFEST, text) as draft:
        for file, entry in files.items():
            store.upload(f"{draft}/{file}", session / file)
            compare_file(store, f"{draft}/{file}", entry)
    _verify_manifest(store, directory, text)
    if MANIFEST not in store.names(directory):
        message = "was written, but the store does not list it"
        raise StoreError(message, path=store.path(directory))
    return name


def list_sessions(store: Store) -> list[str]:
    """List the complete sessions, without removed sessions, by name, label and digest; StoreError."""
    return list(list_files(store))


def list_directory(root: Path) -> list[str]:
    """List the sessions of a store that is a directory."""
    return list_sessions(DirectoryStore(root))


def list_files(store: Store) -> dict[str, dict[str, int]]:
    """Return the sessions of :func:`list_sessions`, each with the sizes of its files by name."""
    removed = store.names(_REMOVED)
    found: dict[RemoteName, dict[str, int]] = {}
    for path, size in store.names(SESSIONS).items():
        name, _, file = path.partition("/")
        if (parsed := RemoteName.parse(name)) and f"{name}.json" not in removed:
            found.setdefault(parsed, {})[file] = size
    order = sorted(found, key=lambda name: (name_key(name.session), name))
    return {str(name): found[name] for name in order if MANIFEST in found[name]}


def list_copied(store: Store, session: str = "") -> dict[str, dict[str, int]]:
    """Return the copied session directories of a store, or one of them, as :func:`list_files` does."""
    found: dict[str, dict[str, int]] = {}
    for path, size in store.names(session).items():
        name, _, file = f"{session}/{path}".lstrip("/").partition("/")
        if PLAIN_NAME.fullmatch(file) and SESSION_NAME.fullmatch(name):
            found.setdefault(name, {})[file] = size
    whole = sorted((name for name in found if MANIFEST in found[name]), key=name_key)
    texts = map_ordered(lambda name: store.get(f"{name}/{MANIFEST}", MANIFEST_BYTES_MAX), whole, REQUESTS)
    return {
        str(RemoteName(name, "", _digest(text))): found[name] for name, text in zip(whole, texts, strict=True)
    }


def place_of(name: str) -> str:
    parsed = RemoteName.parse(name)
    return parsed.session if parsed and not parsed.label else f"{SESSIONS}/{name}"


def download(
    store: Store, name: str, manifest: Manifest, directory: Path, files: Collection[str] | None = None
) -> None:
    """Write a session's files, every byte checked; with ``files`` only these, not flushed."""
    for file, entry in manifest.files.items():
        if files is None or file in files:
            with open_fd(directory / file, os.O_WRONLY | os.O_CREAT) as fd:
                compare_file(store, f"{place_of(name)}/{file}", entry, partial(write_all, fd))
                if files is None:
                    os.fsync(fd)


def parse_named(name: str, text: bytes, path: str | Path) -> Manifest:
    """Parse a manifest; raise ManifestError if the session's name has another SHA-256."""
    named = RemoteName.parse(name)
    if named is None or _digest(text) != named.digest:
        raise ManifestError(
            f"was changed: its SHA-256 starts with {_digest(text)}, expected the end of the name {name}",
            path=path,
            hint="restore it from a copy, or remove the session",
        )
    return _parse(text, path)


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]


def _parse(text: bytes, path: str | Path) -> Manifest:
    manifest = parse_manifest(text, path, Manifest, version=FORMAT_VERSION, what="session format")
    for file in manifest.files:
        if not PLAIN_NAME.fullmatch(file) or file == MANIFEST:
            raise ManifestError(f"{file!r} is not a valid name of a file", path=path)
    return manifest


def read_manifest(store: Store, name: str) -> tuple[Manifest, bytes]:
    key = f"{place_of(name)}/{MANIFEST}"
    text = store.get(key, MANIFEST_BYTES_MAX)
    return parse_named(name, text, store.path(key)), text


def _verify_manifest(store: Store, directory: str, text: bytes) -> None:
    key = f"{directory}/{MANIFEST}"
    if store.get(key, MANIFEST_BYTES_MAX) != text:
        raise ManifestError("the store returns other bytes than were written", path=store.path(key))


def check_local(path: Path, entry: FileEntry) -> str:
    """Compare a local file with the manifest; raise FormatError if it differs. Return its SHA-256."""
    digest = hashlib.sha256()
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if size != entry.bytes:
            raise TruncatedError(f"has {size} bytes. The manifest says {entry.bytes}", path=path)
        checksum = crc32c_file(fd, size, path, on_chunk=lambda chunk: digest.update(chunk.data))
        check_crc(checksum, entry.crc32c, "the file", path=path, offset=0)
    _check_sha256(digest.hexdigest(), entry, path)
    return digest.hexdigest()


def _check_sha256(found: str, entry: FileEntry, path: str | Path) -> None:
    if entry.sha256 not in {None, found}:
        raise ChecksumError(f"has SHA-256 {found}. The manifest says {entry.sha256}", path=path)


def compare_file(
    store: Store, key: str, entry: FileEntry, write: Callable[[bytes], object] = lambda _: None
) -> None:
    """Pass a file's bytes to ``write``; TruncatedError or ChecksumError if they differ from the manifest."""
    found = checksum = 0
    digest = hashlib.sha256()
    for data in store.chunks(key):
        found, checksum = found + len(data), crc32c(data, checksum)
        digest.update(data)
        if found > entry.bytes:
            break
        write(data)
    if found < entry.bytes:
        raise TruncatedError(
            f"reads back {found} bytes. The manifest says {entry.bytes}", path=store.path(key), offset=found
        )
    if (found, checksum) != (entry.bytes, entry.crc32c):
        raise ChecksumError(
            f"reads back as CRC-32C {checksum:#010x}. The manifest says {entry.crc32c:#010x}",
            path=store.path(key),
        )
    _check_sha256(digest.hexdigest(), entry, store.path(key))


MEGABYTE = 10**6

_TABLES = ".tables"
_LOCK = "cache.lock"

#: Seconds to wait for space that other processes hold, since they may release it soon.
_PATIENCE_S = 30.0
_LOOK_S = 0.02


class Held(NamedTuple):
    """A session in the cache, which is not removed while the lock lives."""

    path: Path
    lock: ReadLock | None


class _Entry(NamedTuple):
    """A directory in the cache: whether it is a run table, the time of its last use, its path, its size."""

    is_table: bool
    used_ns: int
    path: Path
    bytes: int


class SessionCache:
    def __init__(self, directory: Path, max_mb: int | None) -> None:
        if max_mb is not None and max_mb < 0:
            raise ValueError(f"cache_max_mb={max_mb}; expected at least 0")
        self.directory = directory
        self.max_mb = max_mb
        with storage_errors(directory, "making the cache"):
            (directory / _TABLES).mkdir(parents=True, exist_ok=True)
            os.close(open_owned(directory / _TABLES, os.O_RDONLY | os.O_DIRECTORY))
            make_readers_lock(directory)

    def check_fits(self, size: int, what: str, hint: str | None = None) -> None:
        if self.max_mb is not None and size > self.max_mb * MEGABYTE:
            raise CorpusError(
                f"{what}: {-(-size // MEGABYTE):,} MB at once; expected at most {self.max_mb:,} MB, the "
                "limit of the cache",
                path=self.directory,
                hint=hint or "raise cache_max_mb",
            )

    def has_table(self, name: str) -> bool:
        return os.path.isdir(self.directory / _TABLES / name)  # noqa: PTH112 - a name may be too long

    @contextlib.contextmanager
    def room(self, size: int, what: str) -> Iterator[Callable[[int], None]]:
        """Reserve space for the block's files; yield a function to call with each size before writing."""
        left, lock = size, threading.Lock()
        if size == 0:
            yield lambda _: None
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(storage_errors(self.directory, "making room"))
            draft = stack.enter_context(Draft(self.directory / _TABLES / "room"))
            with self._room(size, what):
                fd = stack.enter_context(open_fd(draft.path / "room", os.O_WRONLY | os.O_CREAT))
                os.ftruncate(fd, size)

            def took(part: int) -> None:
                nonlocal left
                with lock:
                    left = max(0, left - part)
                    os.ftruncate(fd, left)

            yield took

    def table(
        self, store: Store, name: str, took: Callable[[int], None] | None = None
    ) -> tuple[Manifest, Metadata]:
        """Return a session's manifest and run table. They are fetched if they are missing or damaged."""
        target = self.directory / _TABLES / name

        def find() -> tuple[Manifest, Metadata] | None:
            # Missing, or just removed by another process, or damaged by a power failure.
            with contextlib.suppress(MissingPathError, FormatError):
                text = read_path(target / MANIFEST).tobytes()
                manifest = parse_named(name, text, target / MANIFEST)
                check_local(target / METADATA_DB, manifest.files[METADATA_DB])
                metadata = read_metadata(target / METADATA_DB)
                _touch(target)
                return manifest, metadata
            return None

        def fetch(draft: Draft) -> tuple[Manifest, Metadata]:
            manifest, text = read_manifest(store, name)
            if METADATA_DB not in manifest.files:
                raise ManifestError(f"{METADATA_DB} is not listed", path=target / MANIFEST)
            size = manifest.files[METADATA_DB].bytes + len(text)
            with contextlib.ExitStack() as stack:
                tell = took or stack.enter_context(self.room(size, f"the run table of {name}"))
                with self._changing(), open_fd(draft.path / METADATA_DB, os.O_WRONLY | os.O_CREAT) as fd:
                    os.ftruncate(fd, size - len(text))
                    (draft.path / MANIFEST).write_bytes(text)
                    tell(size)  # the draft takes the space now
                download(store, name, manifest, draft.path, [METADATA_DB])
                metadata = read_metadata(draft.path / METADATA_DB)
                if target.exists():
                    _discard(target)
                draft.publish(durable=False)  # every reader compares it with its checksum
            return manifest, metadata

        return self._found(target, find, fetch)

    def take(self, store: Store, name: str, manifest: Manifest) -> Held:
        """Return a complete session, fetched if it is missing, and hold it in the cache."""
        target = self.directory / name
        return self._found(
            target, lambda: _hold(target), lambda draft: self._fetch(store, name, manifest, draft)
        )

    def _found(self, target: Path, find: Callable[[], T | None], fetch: Callable[[Draft], T | None]) -> T:
        """Find it in the cache, or fetch it once; start again if one returns None (removed meanwhile)."""
        while (found := find()) is None:
            with storage_errors(target, "writing it"), contextlib.ExitStack() as stack:
                try:
                    draft = stack.enter_context(Draft(target, alone=True))
                except BusyError:
                    time.sleep(_LOOK_S)
                    continue
                if (found := find() or fetch(draft)) is not None:
                    return found
        return found

    def _fetch(self, store: Store, name: str, manifest: Manifest, draft: Draft) -> Held | None:
        remove_draft(self.directory / f".{name}.fetching")  # of an earlier release
        try:
            _, text = read_manifest(store, name)
            size = sum(entry.bytes for entry in manifest.files.values()) + len(text)
            with self._room(size, f"the session {name}"):
                write_file(draft.path / MANIFEST, text)
                for file, entry in manifest.files.items():
                    with open_fd(draft.path / file, os.O_WRONLY | os.O_CREAT) as fd:
                        os.ftruncate(fd, entry.bytes)  # reserves the space
            download(store, name, manifest, draft.path)
        except MissingPathError as error:
            raise CorpusError(
                "the session, or a file of it, is no longer in the store",
                path=error.path,
                hint="open the corpus again, without the sessions that were removed from the store",
            ) from error
        with self._changing():  # no process may remove it between the rename and the lock
            draft.publish()
            return _hold(self.directory / name)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclude other processes and threads that remove sessions for space."""
        with open_fd(self.directory / LOCKS_DIRECTORY / _LOCK, os.O_RDWR | os.O_CREAT) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _room(self, size: int, what: str) -> Iterator[None]:
        """Remove sessions until ``size`` bytes fit, and lock; CorpusError if too much is in use."""
        self.check_fits(size, what)
        deadline = time.monotonic() + _PATIENCE_S
        while True:
            with self._changing():
                held = self._make_room(size)
                if held is None:
                    yield
                    return
            if time.monotonic() > deadline:
                raise CorpusError(
                    f"no space in the cache: {what} needs {-(-size // MEGABYTE):,} MB, and sessions in use "
                    f"take {held // MEGABYTE:,} of {self.max_mb:,} MB",
                    path=self.directory,
                    hint="raise cache_max_mb, or close other corpora on this cache",
                )
            time.sleep(_LOOK_S)

    def _make_room(self, size: int) -> int | None:
        """Remove sessions that are not in use until ``size`` bytes fit, or return the bytes in use."""
        if self.max_mb is None:
            return None
        entries = sorted(self._entries())
        excess = sum(entry.bytes for entry in entries) + size - self.max_mb * MEGABYTE
        if excess <= 0:
            return None
        try:
            with RemovalLock(self.directory) as removal:
                for entry in entries:
                    if excess <= 0:
                        break
                    if _remove(entry, removal):
                        excess -= entry.bytes
        except BusyError:
            pass  # `tape2048 prune` is running here
        return None if excess <= 0 else self.max_mb * MEGABYTE + excess - size

    def _entries(self) -> Iterator[_Entry]:
        for root in (self.directory, self.directory / _TABLES):
            with os.scandir(root) as found:
                for each in found:
                    if each.name not in {LOCKS_DIRECTORY, _TABLES} and each.is_dir(follow_symlinks=False):
                        with contextlib.suppress(FileNotFoundError):
                            used = each.stat().st_mtime_ns
                            path = Path(each.path)
                            size = sum(file.lstat().st_size for file in path.iterdir())
                            yield _Entry(root != self.directory, used, path, size)


def _touch(path: Path) -> None:
    now = time.time_ns()  # more exact than the kernel's time of a file, which has steps of milliseconds
    with contextlib.suppress(OSError):
        os.utime(path, ns=(now, now))


def _hold(path: Path) -> Held | None:
    if not path.is_dir():
        return None
    try:
        lock = lock_for_reading(path)
    except MissingPathError:  # it is being removed
        return None
    _touch(path)
    return Held(path, lock)


def _discard(path: Path) -> None:
    hidden = path.rename(path.with_name(f".{path.name}.{secrets.token_hex(8)}.tmp"))
    with contextlib.suppress(FileNotFoundError):  # another process removes it, too
        shutil.rmtree(hidden)


def _remove(entry: _Entry, removal: RemovalLock) -> bool:
    if entry.path.name.startswith("."):
        return remove_draft(entry.path)
    try:
        locked = None if entry.is_table else removal.try_lock(entry.path)
        if locked is None and not entry.is_table:
            return False
        try:
            _discard(entry.path)
        finally:
            if locked is not None:
                removal.unlock(locked)
    except OSError:
        return not entry.path.exists()
    return True
