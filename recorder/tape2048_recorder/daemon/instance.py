"""The instance of a recorder in a directory: its lock, and the progress of its games.

The files of an instance are in ``<out_dir>/.recorder/``:

* ``<instance>.lock`` is locked (``flock``) while the recorder runs. The kernel releases the lock however the
  recorder ends.
* ``<instance>.json`` holds the progress through the games of each configured seed and lease, so that the next
  recorder continues there and repeats no game.
* ``<instance>.status.json`` is described in :mod:`tape2048_recorder.status.status_report`, and
  ``readers.lock``, which all instances share, in :mod:`tape2048.files.locks`.

The ledger knows which worker holds which game, so that every game is recorded once, even if workers die. A
game's id determines the game, so another worker plays a dead worker's game again in the same way.
"""

from __future__ import annotations

import contextlib
import itertools
import os
from collections import deque
from pathlib import Path
from typing import TYPE_CHECKING

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.errors import BusyError, ConfigError, StorageError, TapeError
from tape2048.files.locks import LOCKS_DIRECTORY
from tape2048.files.opening import storage_error, storage_errors
from tape2048.session.layout import NUMBER_BITS
from tape2048_recorder.recording.world import REAL, World
from tape2048_recorder.status.status_report import STATUS_SUFFIX, Process, status_path

if TYPE_CHECKING:
    from tape2048_recorder.record_options import RecorderConfig

#: The saved progress is this many ids ahead of the games, so a crash skips at most this many ids.
IDS_AHEAD = 1 << 24

#: Number of seeds to remember, the most recently used. Each takes about 60 bytes of the file.
SEEDS_MAX = 1000

_SAVING = "writing the instance's progress"


class GameState(msgspec.Struct, frozen=True):
    """Progress of a seed's lease: ids below ``next_id`` were handed out, except the ranges in ``free``."""

    seed: int
    next_id: int = 0
    free: tuple[tuple[int, int], ...] = ()
    lease: int = 0

    @classmethod
    def new(cls, seed: int, lease: int) -> GameState:
        return GameState(seed, lease << NUMBER_BITS, lease=lease)

    @property
    def end(self) -> int:
        """The first id after the lease."""
        return (self.lease + 1) << NUMBER_BITS


class _Progress(GameState, frozen=True):
    """The file's content: the last used seed and lease, then the others, most recently used first."""

    others: tuple[GameState, ...] = ()


class Instance:
    """The lock of an instance name in a directory, held until closed."""

    def __init__(self, out_dir: Path, name: str, world: World = REAL) -> None:
        self._world = world
        directory = out_dir / LOCKS_DIRECTORY
        self.state_path = directory / f"{name}.json"
        self.status_path = status_path(out_dir, name)
        self.out_dir = out_dir
        self._lock_path = directory / f"{name}.lock"
        self._known: list[GameState] | None = None  # the file's content; None: not read yet
        with storage_errors(directory, "preparing the directory"):
            world.make_readers_lock(out_dir)
            world.files.fsync_dir(out_dir)
            self._fd = world.files.open_owned(self._lock_path, os.O_RDWR | os.O_CREAT)
        with contextlib.ExitStack() as stack, storage_errors(self._lock_path, "locking the file"):
            stack.callback(world.os.close, self._fd)
            if not world.files.try_lock(self._fd):
                holder = Process.parse(world.os.pread(self._fd, 256, 0).decode(errors="replace"))
                named = "another recorder" if holder is None else f"the recorder with {holder.name}"
                raise BusyError(
                    f"{named} records into this directory as instance {name!r}",
                    path=out_dir,
                    hint="Stop that recorder, or choose another --instance or --out for this one.",
                )
            world.os.ftruncate(self._fd, 0)
            world.files.write_all(self._fd, Process.mine().line.encode(), 0)
            with storage_errors(directory, "removing what a killed recorder left"):
                for draft in directory.glob(f".{self.state_path.name}.*.tmp"):
                    draft.unlink(missing_ok=True)
            stack.pop_all()  # from now on, close() releases the lock

    def lost(self) -> StorageError | None:
        """Return an error if the directory was removed or created again; a moved directory can come back."""
        found = "was replaced"
        try:
            held = self._world.os.fstat(self._fd)
            try:
                if os.path.samestat(held, self._lock_path.lstat()):
                    return None
            except (FileNotFoundError, NotADirectoryError):
                if held.st_nlink and not self._world.files.path_exists(self.out_dir):
                    return None
                found = "was removed"
        except OSError:  # a device error: the next tick checks again
            return None
        return StorageError(
            f"the recorder's lock file {found}, so another recorder could play the same games here",
            path=self._lock_path,
            hint="Stop a recorder before you move or remove its directory.",
        )

    def load_state(self, seed: int, lease: int = 0) -> GameState:
        with storage_errors(self.state_path, "reading the progress of the games"):
            self._known = self._read(self.state_path)
        known = (state for state in self._known if (state.seed, state.lease) == (seed, lease))
        return next(known, GameState.new(seed, lease))

    def leases_of_others(self, seed: int) -> dict[str, list[int]]:
        """Return the leases of a seed that the other instances of this directory play or have played."""
        paths = self.state_path.parent.glob("*.json")
        others = [path for path in paths if path != self.state_path and not path.name.endswith(STATUS_SUFFIX)]
        return {
            path.stem: [state.lease for state in self._read(path) if state.seed == seed] for path in others
        }

    def _read(self, path: Path) -> list[GameState]:
        try:
            fd = self._world.files.open_owned(path, os.O_RDONLY)
            try:
                data = self._world.os.pread(fd, self._world.os.fstat(fd).st_size, 0)
            finally:
                self._world.os.close(fd)
            found = msgspec.json.decode(data, type=_Progress)
        except FileNotFoundError:
            return []
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
            raise ConfigError(
                f"found a malformed file, expected the progress of an instance's games: {error}",
                path=path,
                hint="Restore the file, or move it away. Then every seed starts again with its first game.",
            ) from error
        return [GameState(found.seed, found.next_id, found.free, found.lease), *found.others]

    def save_state(self, state: GameState) -> None:
        """Save the progress of a seed's lease. The progress of other leases does not change."""
        if (lost := self.lost()) is not None:
            raise lost
        known = self._read(self.state_path) if self._known is None else self._known
        mine = state.seed, state.lease
        others = [other for other in known if (other.seed, other.lease) != mine][: SEEDS_MAX - 1]
        content = _Progress(state.seed, state.next_id, state.free, state.lease, tuple(others))
        self._world.files.replace_file(self.state_path, msgspec.json.encode(content))
        self._known = [state, *others]

    def close(self) -> None:
        self._world.os.close(self._fd)


class GameProgress:
    """The progress of a recorder's games; ``state`` is the progress at its start.

    The file is always ahead of the games, so that a crash skips ids instead of repeating games. Only the
    progress of a configured seed is saved: a random seed is drawn at each start, and never used again.
    """

    def __init__(self, instance: Instance, config: RecorderConfig, world: World = REAL) -> None:
        self.instance = instance
        self._saves = config.seed is not None
        assert config.lease is not None  # `run` has taken one
        if config.seed is None:
            self.state = GameState.new(int.from_bytes(world.os.urandom(8)), config.lease)
        else:
            self.state = instance.load_state(config.seed, config.lease)
        self._covered = 0

    def cover(self, next_id: int) -> None:
        """Save the progress ahead of ``next_id`` before ids up to it are handed out."""
        if not self._saves or next_id + IDS_AHEAD // 2 <= self._covered:
            return
        ahead = GameState(self.state.seed, next_id + IDS_AHEAD, lease=self.state.lease)
        try:
            self.instance.save_state(ahead)
        except OSError as error:
            if next_id > self._covered:
                raise storage_error(error, self.instance.state_path, _SAVING) from error
        else:
            self._covered = next_id + IDS_AHEAD

    def repeats(self) -> str | None:
        """Describe the other instance here that plays the same games; None if there is none."""
        seed, lease = self.state.seed, self.state.lease
        try:
            others = self.instance.leases_of_others(seed) if self._saves else {}
        except (OSError, TapeError) as error:
            return f"another instance may play the same games: {error}"
        names = [name for name, leases in others.items() if lease in leases]
        if not names:
            return None
        used = set(itertools.chain(*others.values()))
        free = next(number for number in itertools.count(1) if number not in used)
        return (
            f"{self.instance.out_dir}: instance {names[0]!r} also plays lease {lease} of seed {seed}. With "
            f"the same player, both record the same games. Pass --lease {free} to play other games"
        )

    def settle(self, state: GameState) -> None:
        """Save the exact progress when the recorder ends."""
        if self._saves:
            with storage_errors(self.instance.state_path, _SAVING):
                self.instance.save_state(state)


Ids = tuple[int, int]


class Ledger:
    """The ids of one lease: free ids, and ids that workers hold, in ranges ``[first, end)``."""

    def __init__(self, state: GameState, *, games_max: int | None, workers: int) -> None:
        self._state = state
        self.next_id = state.next_id  # the lowest id that was never handed out
        self._free: deque[Ids] = deque(state.free)
        self._left = games_max
        self._workers = workers
        self._held: dict[int, deque[Ids]] = {}
        self.confirmed = 0

    def limit(self, games_max: int | None) -> None:
        """Limit the total number of games, including games already handed out; None: no limit."""
        held = sum(end - first for ranges in self._held.values() for first, end in ranges)
        self._left = None if games_max is None else max(games_max - self.confirmed - held, 0)

    def take(self, worker: int, want: int) -> Ids | None:
        """Hand out up to ``want`` games to a worker; return ``(first_id, count)``, None if none is left."""
        if self._left is not None:
            want = min(want, -(-self._left // (2 * self._workers)))
        if not self._free:
            want = min(want, max(self._state.end - self.next_id, 0))
        if want == 0:
            return None
        if self._free:
            first, end = self._free.popleft()
            if end - first > want:
                self._free.appendleft((first + want, end))
            count = min(want, end - first)
        else:
            first, count = self.next_id, want
            self.next_id += count
        if self._left is not None:
            self._left -= count
        self._held.setdefault(worker, deque()).append((first, first + count))
        return first, count

    def confirm(self, worker: int, ids: npt.NDArray[np.uint64]) -> bool:
        """Remove games that a worker has recorded; return False unless it held each of them."""
        held = self._held.get(worker, deque())
        have = np.concatenate(
            [np.empty(0, dtype=np.uint64), *(np.arange(*span, dtype=np.uint64) for span in held)]
        )
        left = np.setdiff1d(have, ids, assume_unique=True)
        if len(left) + len(ids) != len(have):
            return False
        breaks = np.flatnonzero(np.diff(left) != 1) + 1
        held.clear()
        held.extend((int(part[0]), int(part[-1]) + 1) for part in np.split(left, breaks) if len(part))
        self.confirmed += len(ids)
        return True

    def forfeit(self, worker: int, game: int) -> bool:
        """Remove a game that does not count for ``games_max``; return False unless the worker held it."""
        held = self.confirm(worker, np.array([game], dtype=np.uint64))
        self.confirmed -= held
        if self._left is not None:
            self._left += held
        return held

    def release(self, worker: int) -> int:
        back = self._held.pop(worker, deque())
        self._free.extendleft(reversed(back))
        count = sum(end - first for first, end in back)
        if self._left is not None:
            self._left += count
        return count

    @property
    def exhausted(self) -> bool:
        """Whether no game is left to hand out (some may still be in progress)."""
        return self._left == 0 or self.used_up

    @property
    def used_up(self) -> bool:
        """Whether every id of the lease is handed out."""
        return not self._free and self.next_id >= self._state.end

    def why_exhausted(self, games_max: int | None) -> str:
        if self.used_up:
            return f"lease {self._state.lease} has no game left"
        return f"max_games = {games_max} was reached"

    def state(self) -> GameState:
        """Return the progress to save. It is exact if no worker holds games."""
        return GameState(self._state.seed, self.next_id, tuple(self._free), self._state.lease)
