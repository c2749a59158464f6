"""Sessions in a store: put as a whole, listed, verified when fetched, and removed after a delay.

::

    sessions/<session>.<label>.<manifest>/    the files of a session, manifest.json last
    removed/<the same name>.json              a tombstone: the session is no longer listed

``<manifest>`` is the first part of the SHA-256 of ``manifest.json``, which has the SHA-256 of the other
files; earlier releases put manifests with CRC-32C alone. A name determines the content. A repeated put
changes nothing, nor does a put by two processes, and the name exposes bytes that were replaced in the store.

The cache of a store's sessions is bounded, and shared by any number of processes::

    <cache>/
        <name>/              a copy of a whole session; every byte was compared with its checksum
        .tables/<name>/      its metadata.db and manifest.json: the run table, without the rows
        .<name>.fetching/    a download, locked by the process that makes it
        .recorder/           locks

Nothing in it is ever out of date. A download takes its room before it begins: its files have their sizes at
once, and sessions that no process holds go, the least recently used first. It appears by a rename. The
remains of a killed process are removed when room is needed, or when the session is fetched again. Sessions in
use are locked as in any directory (``locks``).
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
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import (
    BusyError,
    ChecksumError,
    CorpusError,
    FormatError,
    ManifestError,
    MissingPathError,
    NameTakenError,
    StoreError,
    TruncatedError,
)
from tape2048.formats.metadata import Metadata, read_metadata
from tape2048.formats.session import (
    FORMAT_VERSION,
    MANIFEST,
    METADATA_DB,
    FileEntry,
    Manifest,
    parse_manifest,
)
from tape2048.io.durable import (
    Staging,
    lock_directory,
    open_fd,
    open_owned,
    rename_exchange,
    rename_noreplace,
    storage_errors,
    write_all,
    write_file,
)
from tape2048.io.reading import check_crc, crc32c, crc32c_file, open_regular, read_path
from tape2048.session.directory import MANIFEST_BYTES_MAX, PLAIN_NAME
from tape2048.session.locks import LOCKS_DIRECTORY, ReadLock, RemovalLock, lock_for_reading, make_readers_lock

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator

    from tape2048.io.objects import Store

SESSIONS, _REMOVED = "sessions", "removed"
_DIGEST_LENGTH = 16


class RemoteName(NamedTuple):
    """The parts of a session's name in a store."""

    session: str
    label: str
    digest: str

    @classmethod
    def parse(cls, name: str) -> RemoteName | None:
        """Split a name; None for another one."""
        parts = name.rsplit(".", 2)
        return cls(*parts) if len(parts) == 3 and len(parts[2]) == _DIGEST_LENGTH else None

    def __str__(self) -> str:
        return ".".join(self)


class _Tombstone(msgspec.Struct, frozen=True):
    removed_at: float


def put_session(store: Store, session: Path, label: str) -> str:
    """Put a published session into a store, and read it back.

    An existing copy stays if it is whole and has the same bytes. Otherwise, it is written again.
    """
    try:
        local = read_path(session / MANIFEST).tobytes()
    except MissingPathError as error:
        raise ManifestError("missing", path=session / MANIFEST) from error
    manifest = _parse(local, session / MANIFEST)
    files = {
        file: msgspec.structs.replace(entry, sha256=check_local(session / file, entry))
        for file, entry in manifest.files.items()
    }
    text = pretty_json(msgspec.structs.replace(manifest, files=files))
    for found in (local, text):  # earlier releases put the local manifest, without SHA-256
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
    staged = store.stage(directory)
    for file, entry in files.items():
        store.upload(f"{staged}/{file}", session / file)
        compare_file(store, f"{staged}/{file}", entry)
    store.commit(directory, MANIFEST, text)
    _verify_manifest(store, directory, text)
    if MANIFEST not in store.names(directory):
        raise StoreError("it was put, and is not in the listing", path=store.path(directory))
    return name


def list_sessions(store: Store) -> list[str]:
    """List the whole sessions of a store, sorted, without removed sessions. Errors: StoreError."""
    return sorted(list_files(store))


def list_files(store: Store) -> dict[str, dict[str, int]]:
    """List the sessions as :func:`list_sessions`, each with the names and sizes of its files."""
    removed = store.names(_REMOVED)
    found: dict[str, dict[str, int]] = {}
    for path, size in store.names(SESSIONS).items():
        name, _, file = path.partition("/")
        if RemoteName.parse(name) and f"{name}.json" not in removed:
            found.setdefault(name, {})[file] = size
    return {name: files for name, files in found.items() if MANIFEST in files}


def download(
    store: Store, name: str, manifest: Manifest, directory: Path, files: Collection[str] | None = None
) -> None:
    """Write files of a session into a directory; every byte is compared with its checksum.

    All of them (``files=None``) are flushed; some are for a cache that compares them again.
    """
    for file, entry in manifest.files.items():
        if files is None or file in files:
            with open_fd(directory / file, os.O_WRONLY | os.O_CREAT) as fd:
                compare_file(store, f"{SESSIONS}/{name}/{file}", entry, partial(write_all, fd))
                if files is None:
                    os.fsync(fd)


def parse_named(name: str, text: bytes, path: str | Path) -> Manifest:
    """Parse the manifest that a session's name represents; ManifestError if it is another one."""
    named = RemoteName.parse(name)
    if named is None or _digest(text) != named.digest:
        raise ManifestError(
            "not the manifest that the session's name represents: it was replaced or cut",
            path=path,
            hint="the recorder's copy is gone: restore this one, or remove the session",
        )
    return _parse(text, path)


def bury_session(store: Store, name: str) -> None:
    """Take a session out of the listings; its files stay until :func:`sweep_sessions`."""
    store.put(f"{_REMOVED}/{name}.json", pretty_json(_Tombstone(time.time())))


def sweep_sessions(store: Store, delay_s: float) -> list[str]:
    """Remove the files of sessions that left the listings ``delay_s`` ago; return their names."""
    gone = []
    for file in sorted(store.names(_REMOVED)):
        name = file.removesuffix(".json")
        key = f"{_REMOVED}/{file}"
        try:
            stone = msgspec.json.decode(store.get(key, 1000), type=_Tombstone)
        except msgspec.MsgspecError as error:
            raise StoreError(f"not a tombstone: {error}", path=store.path(key), hint="remove it") from error
        if time.time() - stone.removed_at >= delay_s:
            store.retract(f"{SESSIONS}/{name}", MANIFEST)
            store.remove(key)
            gone.append(name)
    return gone


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:_DIGEST_LENGTH]


def _parse(text: bytes, path: str | Path) -> Manifest:
    manifest = parse_manifest(text, path, Manifest, version=FORMAT_VERSION, what="session format")
    for file in manifest.files:
        if not PLAIN_NAME.fullmatch(file) or file == MANIFEST:
            raise ManifestError(f"{file!r} is listed, which is not a valid file name", path=path)
    return manifest


def read_manifest(store: Store, name: str) -> tuple[Manifest, bytes]:
    """Read the manifest that a session's name represents, with its text."""
    key = f"{SESSIONS}/{name}/{MANIFEST}"
    text = store.get(key, MANIFEST_BYTES_MAX)
    return parse_named(name, text, store.path(key)), text


def _verify_manifest(store: Store, directory: str, text: bytes) -> None:
    key = f"{directory}/{MANIFEST}"
    if store.get(key, MANIFEST_BYTES_MAX) != text:
        raise ManifestError("it reads back other bytes than were written", path=store.path(key))


def check_local(path: Path, entry: FileEntry) -> str:
    """Compare a local file with the manifest; FormatError if it differs. Return its SHA-256."""
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
        raise ChecksumError(f"SHA-256 {found}. The manifest says {entry.sha256}", path=path)


def compare_file(
    store: Store, key: str, entry: FileEntry, write: Callable[[bytes], object] = lambda _: None
) -> None:
    """Read a file of the store, and compare its size and its checksums with the manifest's."""
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

#: The default bound of a cache, in MB: about a dozen sessions of 1e9 rows on tape.
CACHE_MAX_MB = 20_000

_TABLES = ".tables"
_LOCK = "cache.lock"

#: How long to wait for room that others hold: they read a pool, or are about to end.
_PATIENCE_S = 30.0
_LOOK_S = 0.02


class Held(NamedTuple):
    """A session in the cache that stays as long as its lock."""

    path: Path
    lock: ReadLock | None


class _Entry(NamedTuple):
    """A directory in the cache: whether it is a run table, the time of its last use, its path, its size."""

    is_table: bool
    used_ns: int
    path: Path
    bytes: int


class SessionCache:
    """Sessions and run tables of stores in a local directory."""

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
        """Raise CorpusError if the cache can never hold so many bytes at once."""
        if self.max_mb is not None and size > self.max_mb * MEGABYTE:
            raise CorpusError(
                f"{what}: {-(-size // MEGABYTE):,} MB at once, where the cache may have {self.max_mb:,} MB",
                path=self.directory,
                hint=hint or "raise cache_max_mb",
            )

    def has_table(self, name: str) -> bool:
        """Check whether a session's run table is in the cache."""
        return os.path.isdir(self.directory / _TABLES / name)  # noqa: PTH112 - a name may be too long

    @contextlib.contextmanager
    def room(self, size: int, what: str) -> Iterator[Callable[[int], None]]:
        """Keep room for files that are written in the block, which tells the size of each."""
        left, lock = size, threading.Lock()
        if size == 0:
            yield lambda _: None
            return
        with contextlib.ExitStack() as stack:
            stack.enter_context(storage_errors(self.directory, "making room"))
            staging = stack.enter_context(Staging(self.directory / _TABLES / "room"))
            with self._room(size, what):
                fd = stack.enter_context(open_fd(staging.path / "room", os.O_WRONLY | os.O_CREAT))
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
        """Return a session's manifest and run table, which are fetched if they are missing or damaged."""
        target = self.directory / _TABLES / name
        # Not there; or another process needs its room; or a power cut has left a part of it.
        with contextlib.suppress(MissingPathError, FormatError):
            text = read_path(target / MANIFEST).tobytes()
            manifest = parse_named(name, text, target / MANIFEST)
            check_local(target / METADATA_DB, manifest.files[METADATA_DB])
            metadata = read_metadata(target / METADATA_DB)
            _touch(target)
            return manifest, metadata
        manifest, text = read_manifest(store, name)
        if METADATA_DB not in manifest.files:
            raise ManifestError(f"{METADATA_DB} is not listed", path=target / MANIFEST)
        size = manifest.files[METADATA_DB].bytes + len(text)
        with contextlib.ExitStack() as stack:
            if took is None:
                took = stack.enter_context(self.room(size, f"the run table of {name}"))
            stack.enter_context(storage_errors(target, "writing it"))
            metadata = self._fetch_table(store, name, manifest, text, target)
            took(size)
        return manifest, metadata

    def _fetch_table(
        self, store: Store, name: str, manifest: Manifest, text: bytes, target: Path
    ) -> Metadata:
        draft = target.with_name(f".{name}.{secrets.token_hex(8)}")
        draft.mkdir()
        with contextlib.ExitStack() as stack:
            stack.callback(shutil.rmtree, draft, ignore_errors=True)
            fd = lock_directory(draft)
            if fd is not None:
                stack.callback(os.close, fd)
            download(store, name, manifest, draft, [METADATA_DB])
            metadata = read_metadata(draft / METADATA_DB)
            (draft / MANIFEST).write_bytes(text)
            if target.exists():
                rename_exchange(draft, target)
            else:
                with contextlib.suppress(NameTakenError):  # another process was faster
                    rename_noreplace(draft, target)
        return metadata

    def take(self, store: Store, name: str, manifest: Manifest) -> Held:
        """Return a whole session, which is fetched if it is missing, and keep it in the cache."""
        target = self.directory / name
        draft = target.with_name(f".{name}.fetching")
        while (held := _hold(target)) is None:
            with storage_errors(draft, "writing it"), contextlib.ExitStack() as stack:
                with contextlib.suppress(FileExistsError):  # another process may rename it
                    draft.mkdir()
                try:
                    os.close(open_owned(draft, os.O_RDONLY | os.O_DIRECTORY))
                    fd = lock_directory(draft)
                except FileNotFoundError:
                    continue
                if fd is None:  # another process, or thread, is at it
                    time.sleep(_LOOK_S)
                    continue
                stack.callback(os.close, fd)
                try:
                    if (held := _hold(target)) is not None:
                        shutil.rmtree(draft, ignore_errors=True)
                        return held
                    return self._fetch(store, name, manifest, draft)
                except BaseException:
                    shutil.rmtree(draft, ignore_errors=True)
                    raise
        return held

    def _fetch(self, store: Store, name: str, manifest: Manifest, draft: Path) -> Held:
        for path in draft.iterdir():  # of a killed process
            path.unlink()
        try:
            _, text = read_manifest(store, name)
            self._reserve(draft, manifest, text)
            download(store, name, manifest, draft)
        except MissingPathError as error:
            raise CorpusError(
                "the session, or a file of it, is no longer in the store",
                path=error.path,
                hint="open the corpus again: the store's owner has removed sessions",
            ) from error
        with self._changing():  # no process makes room between the rename and the lock
            rename_noreplace(draft, self.directory / name)
            held = _hold(self.directory / name)
        assert held is not None
        return held

    def _reserve(self, draft: Path, manifest: Manifest, text: bytes) -> None:
        """Make room for a session, and take it: by files of its sizes, and the manifest."""
        sizes = {file: entry.bytes for file, entry in manifest.files.items()}
        with self._room(sum(sizes.values()) + len(text), f"the session {draft.name}"):
            write_file(draft / MANIFEST, text)
            for file, size in sizes.items():
                with open_fd(draft / file, os.O_WRONLY | os.O_CREAT) as fd:
                    os.ftruncate(fd, size)

    @contextlib.contextmanager
    def _changing(self) -> Iterator[None]:
        """Exclude other processes and threads that make room."""
        with open_fd(self.directory / LOCKS_DIRECTORY / _LOCK, os.O_RDWR | os.O_CREAT) as fd:
            fcntl.flock(fd, fcntl.LOCK_EX)
            yield

    @contextlib.contextmanager
    def _room(self, size: int, what: str) -> Iterator[None]:
        """Make room, and reserve it for the block. Raise CorpusError if the cache has no room."""
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
                    f"{what} needs {-(-size // MEGABYTE):,} MB, and {held // MEGABYTE:,} MB of the cache's "
                    f"{self.max_mb:,} MB are of sessions in use",
                    path=self.directory,
                    hint="raise cache_max_mb, or close other corpora on this cache",
                )
            time.sleep(_LOOK_S)

    def _make_room(self, size: int) -> int | None:
        """Remove what is not in use until ``size`` bytes fit; if they do not, return the bytes in use."""
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
    now = time.time_ns()  # the kernel's own is some milliseconds coarse
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


def _remove(entry: _Entry, removal: RemovalLock) -> bool:
    path = entry.path
    with contextlib.ExitStack() as stack:
        try:
            if path.name.startswith("."):
                fd = lock_directory(path)
                if fd is None:
                    return False
                stack.callback(os.close, fd)
            else:
                byte = None if entry.is_table else removal.try_lock(path)
                if byte is not None:
                    stack.callback(removal.unlock, byte)
                elif not entry.is_table:
                    return False
                path = path.rename(path.with_name(f".{path.name}.removed"))
            shutil.rmtree(path)
        except OSError:
            return not path.exists()
    return True
