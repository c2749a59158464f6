"""A training's directory in a store: whole states, each put as a whole.

::

    checkpoints/<step>.<manifest>/    checkpoint.safetensors, metrics.jsonl, best/, last/, and manifest.json

``manifest.json``, with size and CRC-32C of the other files, is put last; ``<manifest>`` is the beginning of
its SHA-256. Rank 0 works in a local directory, puts its state with each checkpoint, and keeps the last two.
Who goes on, on any machine, begins with the state of the highest step; a state that could not be put is kept
where it is, and put when the training goes on there.
"""

from __future__ import annotations

import hashlib
import os
import re
import shutil
from functools import partial
from typing import TYPE_CHECKING

import msgspec

from tape2048.base.text import pretty_json
from tape2048.errors import BusyError, ManifestError
from tape2048.formats.manifest import parse_manifest
from tape2048.formats.session import MANIFEST, FileEntry
from tape2048.io.crc import crc32c_file
from tape2048.io.durable import new_file, replace_file, storage_errors, write_all
from tape2048.io.objects import open_store
from tape2048.io.reading import open_regular
from tape2048.io.training_directory import CHECKPOINT, METRICS
from tape2048.session.directory import MANIFEST_BYTES_MAX
from tape2048.session.remote import compare_file

if TYPE_CHECKING:
    from pathlib import Path

_STATES = "checkpoints"
_NAME = re.compile(r"[0-9]{12}\.[0-9a-f]{16}")
_VERSION = 1

#: Files and directories of a training that are put.
_PARTS = (CHECKPOINT, METRICS, "best", "last")

#: In the local directory while a state is not in the store: its step.
_UNSENT = "unsent"

#: States that stay: the last one, and the one before, which somebody may be reading.
_KEPT = 2


class _Manifest(msgspec.Struct, frozen=True):
    version: int
    step: int
    files: dict[str, FileEntry]


class TrainingStore:
    """The states of a training in a store.

    Args:
        url: ``s3://bucket/prefix``, ``file:///path``.

    Raises:
        TapeError: as for ``open_store``.
    """

    def __init__(self, url: str) -> None:
        self.url = url
        self._store = open_store(url)

    def pull(self, directory: Path) -> bool:
        """Make a local directory's state the store's newest one; return whether there is one.

        A newer state that could not be put is put instead.

        Raises:
            FormatError: bytes in the store are missing, replaced or damaged.
            StorageError: the store, or the operating system, refused something.
        """
        names = self._names()
        unsent = self._unsent(directory)
        if unsent is not None and (not names or unsent > _step(names[-1])):
            self.push(directory, unsent)
            return True
        if not names:
            self._clear(directory)
            return False
        place = f"{_STATES}/{names[-1]}"
        key = f"{place}/{MANIFEST}"
        text = self._store.get(key, MANIFEST_BYTES_MAX)
        if not names[-1].endswith(_digest(text)):
            raise ManifestError("not the manifest that its name stands for", path=self._store.path(key))
        manifest = parse_manifest(text, self._store.path(key), _Manifest, version=_VERSION, what="training")
        self._clear(directory)
        # The checkpoint comes last: without it, nothing here is taken for a state.
        for file, entry in sorted(manifest.files.items(), key=lambda item: item[0] == CHECKPOINT):
            if file.partition("/")[0] not in _PARTS or ".." in file.split("/"):
                raise ManifestError(
                    f"{file!r} is listed, which is not a training's", path=self._store.path(key)
                )
            path = directory / file
            with storage_errors(path, "writing it"):
                path.parent.mkdir(exist_ok=True)
                with new_file(path) as fd:
                    compare_file(self._store, f"{place}/{file}", entry, partial(write_all, fd))
        return True

    def push(self, directory: Path, step: int) -> None:
        """Put a local directory's state, and remove older ones; errors as for :meth:`pull`.

        Raises:
            BusyError: another training has put a later state.
        """
        marker = directory / _UNSENT
        replace_file(marker, str(step).encode())
        names = self._names()
        if names and _step(names[-1]) > step:
            raise BusyError(
                f"found a state of step {_step(names[-1])} while this training is at {step}",
                path=self.url,
                hint="another training writes there: end one of them, or give each an address of its own",
            )
        found = (
            path for part in _PARTS for path in sorted([directory / part, *(directory / part).glob("*")])
        )
        files = {path.relative_to(directory).as_posix(): _entry(path) for path in found if path.is_file()}
        text = pretty_json(_Manifest(_VERSION, step, files))
        name = f"{step:012d}.{_digest(text)}"
        if name not in names:
            place = f"{_STATES}/{name}"
            staged = self._store.stage(place)
            for file, entry in files.items():
                self._store.upload(f"{staged}/{file}", directory / file)
                compare_file(self._store, f"{staged}/{file}", entry)
            self._store.commit(place, MANIFEST, text)
        kept = self._names()[-_KEPT:]
        for old in sorted({key.partition("/")[0] for key in self._store.names(_STATES)}):
            if old < kept[0] and _NAME.fullmatch(old):  # whole, or left by one that was killed
                self._store.retract(f"{_STATES}/{old}", MANIFEST)
        with storage_errors(marker, "removing it"):
            marker.unlink()

    def _names(self) -> list[str]:
        """List the whole states, the newest last."""
        found = (key.partition("/") for key in self._store.names(_STATES))
        return sorted(name for name, _, file in found if file == MANIFEST and _NAME.fullmatch(name))

    @staticmethod
    def _unsent(directory: Path) -> int | None:
        """Return the step of a whole local state that is not in the store."""
        try:
            step = (directory / _UNSENT).read_text()
        except FileNotFoundError:
            return None
        return int(step) if step.isdecimal() and (directory / CHECKPOINT).exists() else None

    @staticmethod
    def _clear(directory: Path) -> None:
        with storage_errors(directory, "removing an older state"):
            for part in (*_PARTS, _UNSENT):
                path = directory / part
                shutil.rmtree(path) if path.is_dir() else path.unlink(missing_ok=True)


def _step(name: str) -> int:
    return int(name.partition(".")[0])


def _digest(text: bytes) -> str:
    return hashlib.sha256(text).hexdigest()[:16]


def _entry(path: Path) -> FileEntry:
    with open_regular(path) as fd:
        size = os.fstat(fd).st_size
        return FileEntry(size, crc32c_file(fd, size, path))
