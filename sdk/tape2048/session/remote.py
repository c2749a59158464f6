"""Sessions in a store: put as a whole, listed, verified when fetched, and removed after a delay.

::

    sessions/<session>.<label>.<manifest>/    the files of a session, manifest.json last
    removed/<the same name>.json              a tombstone: the session is no longer listed

``<manifest>`` is the beginning of the SHA-256 of ``manifest.json``, which has the checksums of the other
files: a name stands for one content. So a put that is repeated, or that two processes make, changes nothing,
and bytes that were replaced in the store are found by name.
"""

from __future__ import annotations

import hashlib
import os
import time
from functools import partial
from typing import TYPE_CHECKING, NamedTuple

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import (
    ChecksumError,
    FormatError,
    ManifestError,
    MissingPathError,
    StoreError,
    TruncatedError,
)
from tape2048.formats.manifest import parse_manifest
from tape2048.formats.session import FORMAT_VERSION, MANIFEST, FileEntry, Manifest
from tape2048.io.crc import check_crc, crc32c, crc32c_file
from tape2048.io.durable import open_fd, write_all
from tape2048.io.reading import open_regular, read_path
from tape2048.session.directory import MANIFEST_BYTES_MAX, PLAIN_NAME

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator
    from pathlib import Path

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

    What is there under its name stays if it is whole and has the same bytes; else it is written again.
    """
    try:
        text = read_path(session / MANIFEST).tobytes()
    except MissingPathError as error:
        raise ManifestError("missing", path=session / MANIFEST) from error
    manifest = _parse(text, session / MANIFEST)
    name = str(RemoteName(session.name, label, _digest(text)))
    directory = f"{SESSIONS}/{name}"
    if MANIFEST in store.names(directory):
        try:
            _verify(store, directory, manifest, text)
        except (FormatError, MissingPathError):
            store.retract(directory, MANIFEST)
        else:
            return name
    staged = store.stage(directory)
    for file, entry in manifest.files.items():
        store.upload(f"{staged}/{file}", session / file)
        try:
            compare_file(store, f"{staged}/{file}", entry)
        except FormatError:
            check_local(session / file, entry)  # its error, if the local file is the damaged one
            raise
    store.commit(directory, MANIFEST, text)
    _verify_manifest(store, directory, text)
    if MANIFEST not in store.names(directory):
        raise StoreError("it was put, and is not in the listing", path=store.path(directory))
    return name


def list_sessions(store: Store) -> list[str]:
    """List the whole sessions of a store, sorted, without those with a tombstone; errors: StoreError."""
    return sorted(list_files(store))


def list_files(store: Store) -> dict[str, dict[str, int]]:
    """List the sessions as :func:`list_sessions`, each with the sizes of its files by name."""
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
                compare_file(store, f"{SESSIONS}/{name}/{file}", entry, partial(write_all, fd), entry.bytes)
                if files is None:
                    os.fsync(fd)


def parse_named(name: str, text: bytes, path: str | Path) -> Manifest:
    """Parse the manifest that a session's name stands for; ManifestError if it is another one."""
    named = RemoteName.parse(name)
    if named is None or _digest(text) != named.digest:
        raise ManifestError(
            "not the manifest that the session's name stands for: it was replaced or cut",
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


def read_manifest(store: Store, name: str, size: int | None = None) -> tuple[Manifest, bytes]:
    """Read the manifest that a session's name stands for, with its text; ``size`` as for ``Store.get``."""
    key = f"{SESSIONS}/{name}/{MANIFEST}"
    text = store.get(key, MANIFEST_BYTES_MAX, size)
    return parse_named(name, text, store.path(key)), text


def _verify(store: Store, directory: str, manifest: Manifest, text: bytes) -> None:
    _verify_manifest(store, directory, text)
    for file, entry in manifest.files.items():
        compare_file(store, f"{directory}/{file}", entry)


def _verify_manifest(store: Store, directory: str, text: bytes) -> None:
    key = f"{directory}/{MANIFEST}"
    if store.get(key, MANIFEST_BYTES_MAX) != text:
        raise ManifestError("it reads back other bytes than were written", path=store.path(key))


def check_local(path: Path, entry: FileEntry) -> None:
    """Compare a local file with the manifest; FormatError if it differs."""
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        if size != entry.bytes:
            raise TruncatedError(f"has {size} bytes; the manifest says {entry.bytes}", path=path)
        check_crc(crc32c_file(fd, size, path), entry.crc32c, "the file", path=path, offset=0)


def compare_file(
    store: Store,
    key: str,
    entry: FileEntry,
    write: Callable[[bytes], object] = lambda _: None,
    size: int | None = None,
) -> None:
    """Read a file of the store, and compare its size and its CRC-32C with the manifest's.

    ``size`` is for ``Store.chunks``.
    """
    found = checksum = 0
    chunks: Iterator[bytes] = store.chunks(key, size)
    for data in chunks:
        found, checksum = found + len(data), crc32c(data, checksum)
        if found > entry.bytes:
            break
        write(data)
    if found < entry.bytes:
        raise TruncatedError(
            f"reads back {found} bytes; the manifest says {entry.bytes}", path=store.path(key), offset=found
        )
    if (found, checksum) != (entry.bytes, entry.crc32c):
        raise ChecksumError(
            f"reads back as CRC-32C {checksum:#010x}; the manifest says {entry.crc32c:#010x}",
            path=store.path(key),
        )
