"""Sessions in a store, whose rows are fetched when they are needed.

A :class:`RemoteSession` has the run table of a session, and reserved addresses for its rows. A reader takes a
:class:`Hold` of the sessions: missing sessions are fetched into the cache, and all are mapped at their
addresses. When the last hold ends, a session is unmapped, and the cache may remove it.
"""

from __future__ import annotations

import os
import re
import threading
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.text import counted
from tape2048.base.threads import map_ordered
from tape2048.errors import EmptyCorpusError, ManifestError, SchemaError, StorageError, TapeError
from tape2048.files.npy import HEADER_TEXT_BYTES_MAX, read_header
from tape2048.files.opening import storage_errors
from tape2048.files.reading import Reserved, open_regular
from tape2048.session.directory import as_unsigned
from tape2048.session.layout import (
    ACTION_STEP_DTYPE,
    MANIFEST,
    METADATA_DB,
    SESSION_NAME,
    STEP_DTYPE,
    STEP_DTYPES,
    STEPS_NPY,
    FileEntry,
    Manifest,
)
from tape2048.session.session import Session
from tape2048.session.stored import Hold, is_url
from tape2048.session.tape_layout import (
    ANCHOR_DTYPE,
    ANCHORS_NPY,
    TAPE_DTYPE,
    TAPE_NPY,
    anchor_count,
)
from tape2048.session.tape_reader import Tape, check_anchor_rows, tape_runs
from tape2048.stores.objects import naming, open_store
from tape2048.stores.remote import (
    REQUESTS,
    Held,
    RemoteName,
    SessionCache,
    list_copied,
    list_files,
    place_of,
)

if TYPE_CHECKING:
    from collections.abc import Callable

    from numpy.typing import NDArray

    from tape2048.session.metadata import Metadata


class RemoteSessions:
    """A store of sessions, and the cache that they are read through. Pickled, it holds the addresses only."""

    def __init__(self, url: str, cache: SessionCache) -> None:
        self._url = url
        self.cache = cache
        head, _, name = url.rstrip("/").rpartition("/")
        self._only = name if RemoteName.parse(name) or SESSION_NAME.fullmatch(name) else None
        self.store = open_store((head if self._only else url.rstrip("/")).removesuffix("/sessions"), url)

    @property
    def is_session(self) -> bool:
        return self._only is not None

    def __reduce__(self) -> tuple[Callable[..., RemoteSessions], tuple[Any, ...]]:
        return open_remote, (self._url, str(self.cache.directory), self.cache.max_mb)

    def sessions(self) -> list[tuple[str, RemoteSession | TapeError]]:
        """Open all listed sessions; return the address of each, with the session or its error."""
        with naming(self._url):
            if self._only and RemoteName.parse(self._only):
                listed = {self._only: self.store.names(place_of(self._only))}
            else:
                listed = {} if self._only else list_files(self.store)
                listed = listed or list_copied(self.store, self._only or "")
        if not listed:
            raise EmptyCorpusError(
                "no session here",
                path=self._url,
                hint="check the address: the store must have session directories, at its top or in sessions/",
            )
        names = list(listed)
        missing = [listed[name] for name in names if not self.cache.has_table(name)]
        size = sum(files.get(file, 0) for files in missing for file in (MANIFEST, METADATA_DB))
        with self.cache.room(size, f"the run tables of {counted(len(missing), 'session')}") as took:

            def open_one(name: str) -> RemoteSession | TapeError:
                try:
                    found = self.cache.table(self.store, name, took)
                    return RemoteSession(self, name, *found)
                except TapeError as error:
                    return error

            opened = map_ordered(open_one, names, REQUESTS)
            return list(zip(map(self.address, names), opened, strict=True))

    def address(self, name: str) -> str:
        return self.store.path(place_of(name))

    def open(self, name: str) -> RemoteSession:
        return RemoteSession(self, name, *self.cache.table(self.store, name))


def open_remote(url: str, cache: str | os.PathLike[str] | None, max_mb: int | None) -> RemoteSessions:
    if cache is None:
        from tape2048.jit.compiler import cache_base  # loads the compiler

        base = cache_base()
        if base is None:
            message = "found no home directory for the cache of stores"
            raise StorageError(message, hint="choose a directory: cache=DIR")
        cache = base / "tape2048/sessions"
    is_address = is_url(url) or re.match(
        "(s3|gs|az|hf):", os.fspath(url)
    )  # s3:/bucket is a misspelled address
    url = os.fspath(url) if is_address else os.path.abspath(url)
    return RemoteSessions(url, SessionCache(Path(os.path.abspath(cache)), max_mb))


class _Part(NamedTuple):
    file: str
    place: Reserved
    dtype: np.dtype[Any]
    rows: int
    offset: int


class _RemoteTape(Tape):
    """A tape whose session is held after the first access to its bytes."""

    held: Callable[[], object]

    @property
    def data(self) -> NDArray[np.uint8]:
        self.held()
        return self.memory[0]

    @property
    def anchors(self) -> NDArray[np.uint64]:
        self.held()
        return self.memory[1]


class RemoteSession(Session):
    """A :class:`Session` in a store, whose rows are fetched when they are needed.

    Its own methods fetch it at the first access to rows, and hold it in the cache as long as it lives.
    Corpora hold it only while they read.

    Attributes:
        is_remote: True.
        source: the store and the cache.
        address: address of the session in the store.
        bytes: size of its files in bytes.
    """

    is_remote = True

    def __init__(self, source: RemoteSessions, name: str, manifest: Manifest, metadata: Metadata) -> None:
        self.source = source
        self.address = source.address(name)
        self.bytes = sum(entry.bytes for entry in manifest.files.values())
        self._parts: list[_Part] = []
        self._reset()
        path = source.cache.directory / name
        rows = self._reserve(path, manifest, metadata)
        super().__init__(path, rows, metadata, manifest, "mmap", probe=False)
        self._metadata = lambda: source.cache.table(source.store, name)[1]
        self._manifest = manifest
        self._kept: Hold | None = None

    def _reset(self, held: Held | None = None) -> None:
        """Start with an unlocked mutex. A forked child keeps all existing mappings until it ends."""
        self._pid = os.getpid()
        self._lock = threading.Lock()
        self._held = held
        self._holds = int(held is not None)
        # As for ReadLock: the garbage collector may release a hold while this thread has the lock.
        self._released: deque[None] = deque()

    def _reserve(self, path: Path, manifest: Manifest, metadata: Metadata) -> NDArray[np.void] | Tape:
        """Reserve addresses for the rows, whose sizes are in the manifest."""
        rows = manifest.rows
        if len(metadata.runs) != manifest.runs:
            raise ManifestError(
                f"runs is {manifest.runs}. The session has {len(metadata.runs)}", path=path / MANIFEST
            )
        if TAPE_NPY in manifest.files and ANCHORS_NPY in manifest.files:
            anchor_rows = check_anchor_rows(path, manifest)
            runs, starts = tape_runs(metadata, path)
            anchors = anchor_count(rows, anchor_rows)
            parts = (TAPE_NPY, TAPE_DTYPE, rows), (ANCHORS_NPY, ANCHOR_DTYPE, anchors)
            memory = [self._place(path, name, manifest.files[name], dtype, n) for name, dtype, n in parts]
            offsets = self._parts[0].offset, self._parts[1].offset
            tape = _RemoteTape(path, memory[0], memory[1], anchor_rows, runs, starts, offsets)
            tape.held = self.keep
            return tape
        if STEPS_NPY not in manifest.files or not metadata.has_rows:
            raise SchemaError(f"found neither {STEPS_NPY} nor {TAPE_NPY} of a recorder", path=path)
        entry = manifest.files[STEPS_NPY]
        action = metadata.session.get("record_action")
        if not isinstance(action, bool):  # the length of the header must be a multiple of 64
            action = (entry.bytes - rows * STEP_DTYPE.itemsize) % 64 != 0
        dtype = ACTION_STEP_DTYPE if action else STEP_DTYPE
        return as_unsigned(self._place(path, STEPS_NPY, entry, dtype, rows))

    def _place(
        self, path: Path, name: str, entry: FileEntry, dtype: np.dtype[Any], rows: int
    ) -> NDArray[Any]:
        offset = entry.bytes - rows * dtype.itemsize
        if not 0 < offset <= HEADER_TEXT_BYTES_MAX or (offset % dtype.alignment):
            raise ManifestError(
                f"{name} has {entry.bytes} bytes; expected a header and {counted(rows, 'row')} of "
                f"{counted(dtype.itemsize, 'byte')}",
                path=path / MANIFEST,
            )
        with storage_errors(path / name, "reserving addresses for it"):
            place = Reserved(entry.bytes)
        self._parts.append(_Part(name, place, dtype, rows, offset))
        return np.asarray(place)[offset:].view(dtype)

    @property
    def steps(self) -> NDArray[np.void]:
        """The same array as ``Session.steps``. The session is fetched, and held as long as it lives."""
        self.keep()
        return super().steps

    def __reduce__(self) -> tuple[Callable[..., Session], tuple[Any, ...], dict[str, Any]]:
        return RemoteSessions.open, (self.source, self.name), {"overlay": self.overlay}

    @property
    def column_places(self) -> tuple[Path, ...]:
        """Only the overlay, since the cache holds no columns."""
        return () if self.overlay is None else (self.overlay,)

    def keep(self) -> None:
        """Fetch the session, and hold it in the cache as long as it lives."""
        if self._kept is None:
            self._kept = Hold.of([self])

    def drop(self) -> None:
        """End what :meth:`keep` did. Arrays of rows, which are not copies, must not be used afterwards."""
        if (kept := self._kept) is not None:
            self._kept = None
            kept.close()

    def prefetch(self) -> None:
        """Fetch the session into the cache, without holding it."""
        self.source.cache.take(self.source.store, self.name, self._manifest)

    def acquire(self) -> None:
        """Fetch and map the rows until :meth:`release`, which each call needs; see :class:`Hold`."""
        if self._pid != os.getpid():
            self._reset(self._held)
        with self._lock:
            self._holds += 1
            try:
                if self._held is None:
                    self._attach()
            except BaseException:
                self._holds -= 1
                raise
        self._settle()

    def release(self) -> None:
        """End one call of :meth:`acquire`. The garbage collector may call this."""
        self._released.append(None)
        self._settle()

    def _settle(self) -> None:
        # If another thread has the lock, it calls this method after it has released the lock.
        while self._released and self._lock.acquire(blocking=False):
            try:
                while self._released:
                    self._released.pop()
                    self._holds -= 1
                if self._holds == 0 and self._held is not None:
                    self._held = None
                    for part in self._parts:
                        part.place.detach()
            finally:
                self._lock.release()

    def _attach(self) -> None:
        held = self.source.cache.take(self.source.store, self.name, self._manifest)
        for part in self._parts:
            path = held.path / part.file
            with open_regular(path) as fd:
                header = read_header(fd, path, STEP_DTYPES if part.file == STEPS_NPY else [part.dtype])
                found = header.rows, header.dtype.itemsize, header.data_offset
                expected = part.rows, part.dtype.itemsize, part.offset
                if found != expected:
                    raise ManifestError(
                        f"rows, bytes of a row and offset are {found}. The manifest says {expected}",
                        path=path,
                        hint="remove this session's directory from the cache, and try again",
                    )
                part.place.attach(fd)
        self._held = held
