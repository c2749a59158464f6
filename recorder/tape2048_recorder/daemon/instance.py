"""Who records into a directory: the lock of an instance, and what it remembers from life to life.

``<out_dir>/.recorder/<instance>.lock`` is locked (``flock``) while a recorder lives; the kernel lets
go of it however the recorder ends. ``readers.lock`` in that directory is :mod:`tape2048.session.locks`'s.
``<instance>.json`` beside it holds, for each seed that was given, how far its sequence of games has been
handed out, so that a recorder that starts again goes on instead of playing the same games again, whatever
seeds came in between. ``<instance>.status.json`` is :mod:`.status_file`'s.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from tape2048.errors import AlreadyRunningError, ConfigError
from tape2048.io.durable import fsync_dir, replace_file, storage_error, storage_errors, try_lock, write_all
from tape2048.session.locks import LOCKS_DIRECTORY, make_readers_lock
from tape2048_recorder.status.status_file import status_path

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["IDS_AHEAD", "SEEDS_MAX", "GameState", "Instance", "Memory"]

_DIRECTORY = LOCKS_DIRECTORY

#: Ids that a crash may skip where the seed was given: the memory of them is written this far ahead.
IDS_AHEAD = 1 << 24

#: Seeds that are remembered; of more, those used last. Each takes some 60 bytes of the file.
SEEDS_MAX = 1000

_REMEMBERING = "writing the instance's memory"


class GameState(msgspec.Struct, frozen=True):
    """How far the games of ``seed`` were handed out: all below ``next_id`` but those of ``free``."""

    seed: int
    next_id: int = 0
    free: tuple[tuple[int, int], ...] = ()


class _Memories(GameState, frozen=True):
    """What the file holds: the seed that was used last, then the others, those used last first.

    The file of a recorder that knew one seed only is one without others.
    """

    others: tuple[GameState, ...] = ()


class Instance:
    """The lock of one instance name on one directory, held until closed.

    Raises:
        AlreadyRunningError: another recorder holds it; the message names its pid.
        StorageError: the directory cannot be made or written.
    """

    def __init__(self, out_dir: Path, name: str) -> None:
        directory = out_dir / _DIRECTORY
        self.state_path = directory / f"{name}.json"
        self.status_path = status_path(out_dir, name)
        self._lock_path = directory / f"{name}.lock"
        self._known: list[GameState] | None = None  # what the file holds; None: it was not read yet
        with storage_errors(out_dir, "preparing the output directory"):
            directory.mkdir(parents=True, exist_ok=True)
            make_readers_lock(out_dir)
            fsync_dir(out_dir)
            self._fd = os.open(self._lock_path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
        try:
            self._lock(out_dir, name)
        except BaseException:
            os.close(self._fd)
            raise

    def _lock(self, out_dir: Path, name: str) -> None:
        if not try_lock(self._fd):
            holder = os.pread(self._fd, 64, 0).decode(errors="replace").strip() or "unknown"
            raise AlreadyRunningError(
                f"the recorder with pid {holder} holds this directory as instance {name!r}",
                path=out_dir,
                hint="stop that one, or give this one another name (--instance) or directory (--out-dir)",
            )
        with storage_errors(self._lock_path, "writing the lock file"):
            os.ftruncate(self._fd, 0)
            write_all(self._fd, f"{os.getpid()}\n".encode(), 0)

    def load_state(self, seed: int) -> GameState:
        """Where the sequence of this seed goes on.

        Raises:
            ConfigError: the file is not one of ours.
            StorageError: it cannot be read.
        """
        with storage_errors(self.state_path, "reading how far a seed's games went"):
            self._known = self._read()
        return next((state for state in self._known if state.seed == seed), GameState(seed))

    def _read(self) -> list[GameState]:
        try:
            found = msgspec.json.decode(self.state_path.read_bytes(), type=_Memories)
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"the instance's memory of its games cannot be read: {error}",
                path=self.state_path,
                hint="move the file away; the games of a seed then begin again from the first",
            ) from error
        return [GameState(found.seed, found.next_id, found.free), *found.others]

    def save_state(self, state: GameState) -> None:
        """Remember how far the games of a seed were handed out, beside those of others.

        Raises:
            OSError: as the operating system gave it; the old state stands.
        """
        known = self._read() if self._known is None else self._known
        others = [other for other in known if other.seed != state.seed][: SEEDS_MAX - 1]
        memories = _Memories(state.seed, state.next_id, state.free, tuple(others))
        replace_file(self.state_path, msgspec.json.encode(memories))
        self._known = [state, *others]

    def close(self) -> None:
        """Let go of the lock."""
        os.close(self._fd)


class Memory:
    """How far an instance's games are handed out, on disk.

    It is always ahead of them, so that a crash skips ids and repeats none. Only a seed that was given is
    remembered; a random one is never used again.

    Args:
        instance: whose memory it is.
        seed: of the games; None: a random one.
    """

    def __init__(self, instance: Instance, seed: int | None) -> None:
        self._instance = instance
        self._seed = seed
        self._covered = 0

    def cover(self, next_id: int) -> None:
        """Called before ids up to ``next_id`` are handed out; writes when half of what is ahead is used.

        Raises:
            StorageError: it could not be written, and nothing is left of what was written before.
        """
        if self._seed is None or next_id + IDS_AHEAD // 2 <= self._covered:
            return
        try:
            self._instance.save_state(GameState(self._seed, next_id + IDS_AHEAD))
        except OSError as error:
            if next_id > self._covered:
                raise storage_error(error, self._instance.state_path, _REMEMBERING) from error
        else:
            self._covered = next_id + IDS_AHEAD

    def settle(self, state: GameState) -> None:
        """Remember exactly how far it went, at the end of a life.

        Raises:
            StorageError: it could not be written; the next life skips some ids.
        """
        if self._seed is None:
            return
        with storage_errors(self._instance.state_path, _REMEMBERING):
            self._instance.save_state(state)
