"""The sessions that a viewer shows: found again and again, read once each, known by ids instead of paths.

A thread lists the directories and reads the run table of each new session, so that the first page does not
wait for ten thousand of them. Rows are read only for a game that is shown.
"""

from __future__ import annotations

import functools
import hashlib
import math
import os
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.errors import ConfigError, MissingPathError, TapeError
from tape2048.formats.metadata import read_metadata
from tape2048.formats.session import METADATA_DB, SESSION_NAME
from tape2048.io.training_directory import METRICS
from tape2048.session.session import Session, session_names
from tape2048_tools.sessions.roots import described, directory_bytes
from tape2048_tools.sessions.summary import brief, player_text

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from numpy.typing import NDArray

#: Seconds for which a listing of the directories is taken for current, and where none of them has changed: a
#: copied session appears before its files do.
LISTED_S, UNCHANGED_LISTED_S = 1.0, 10.0

#: The same for directories of trainings, for which a page asks each second.
TRAININGS_LISTED_S = 10.0

#: Columns of the run table that pages need.
COLUMNS = ("id", "seed", "steps", "max_score", "highest_tile", "rows")


def id_of(text: str) -> str:
    """Return the id that stands for a path or a name in links."""
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]


def brief_player(facts: Mapping[str, Any]) -> str:
    """Return the player of a session's facts with the parameters that are not its defaults."""
    name, args = facts.get("player"), facts.get("player_args")
    if not isinstance(name, str) or not isinstance(args, dict):
        return player_text(facts)
    try:
        normal = _defaults(name)
    except ConfigError:
        normal = {}
    return player_text({"player": name, "player_args": {k: v for k, v in args.items() if normal.get(k) != v}})


@functools.cache
def _defaults(name: str) -> Mapping[str, Any]:
    from tape2048_recorder.players.registry import check_player

    return check_player(name, {})


class Entry(NamedTuple):
    """A session with its run table.

    Attributes:
        id: in links.
        path: the directory.
        meta: its facts.
        runs: ``RUN_DTYPE[R]``, by id.
        bytes: size of its files.
        stamp: tells it from another session that takes its place; see :func:`_identity`.
    """

    id: str
    path: Path
    meta: dict[str, Any]
    runs: NDArray[np.void]
    bytes: int
    stamp: tuple[int, ...] = ()

    @property
    def name(self) -> str:
        """The directory's name."""
        return self.path.name

    @property
    def player_id(self) -> str:
        """The id of the player, with all its parameters, in links."""
        return id_of(player_text(self.meta))

    @property
    def player(self) -> str:
        """The player with the parameters that are not its defaults."""
        return brief_player(self.meta)


class Games:
    """The run tables of all sessions read so far, as columns; immutable.

    Attributes:
        sessions: the sessions, by name.
        starts: ``i64[S + 1]``, number of each session's first game.
        waiting: number of sessions that are not read yet.
        waiting_rows: their rows, as far as their manifests say.
        waiting_games: their games.
        broken: the unreadable ones.
    """

    def __init__(
        self,
        sessions: Sequence[Entry],
        waiting: int = 0,
        waiting_rows: int = 0,
        waiting_games: int = 0,
        broken: Sequence[dict[str, str | None]] = (),
    ) -> None:
        self.sessions = tuple(sessions)
        self.starts = np.append(0, np.cumsum([len(one.runs) for one in sessions], dtype=np.int64))
        self.waiting = waiting
        self.waiting_rows = waiting_rows
        self.waiting_games = waiting_games
        self.broken = tuple(broken)
        self._columns: dict[str, NDArray[Any]] = {}
        self._making = threading.Lock()
        self._places = {one.id: number for number, one in enumerate(sessions)}

    def __len__(self) -> int:
        """Number of games."""
        return int(self.starts[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of all games, or ``session``: the number of each game's session."""
        with self._making:
            if name not in self._columns:
                if name == "session":
                    numbers = np.arange(len(self.sessions), dtype=np.uint32)
                    self._columns[name] = np.repeat(numbers, np.diff(self.starts))
                else:
                    parts = [one.runs[name] for one in self.sessions] or [np.empty(0, np.uint32)]
                    self._columns[name] = np.concatenate(parts)
            return self._columns[name]

    def session(self, session_id: str) -> Entry:
        """Return a session by its id; MissingPathError if it is gone."""
        return self.sessions[self.number(session_id)]

    def number(self, session_id: str) -> int:
        """Return the number of a session by its id; MissingPathError if it is gone."""
        if session_id not in self._places:
            raise MissingPathError(
                f"no session has the id {session_id:.20}", hint="it was removed, or is not read yet"
            )
        return self._places[session_id]


class Collection:
    """The sessions below some directories.

    Args:
        roots: directories of sessions, sessions, or directories of trainings.
    """

    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = [Path(os.path.abspath(root)) for root in roots]
        self._read: dict[str, Entry] = {}
        self._broken: dict[str, dict[str, str | None]] = {}
        self._briefs: dict[str, tuple[int, int]] = {}
        self._games: tuple[tuple[int, int, int], Games] | None = None
        self._lock, self._listing = threading.Lock(), threading.Lock()
        self._listed = self._looked = self._trainings_listed = -math.inf
        self._stamps: list[int] = []
        self._trainings: dict[str, Path] = {}
        self._paths: dict[str, str] = {}
        self._identities: dict[str, tuple[int, ...]] = {}
        self._changes = 0
        self._reading = False

    def games(self) -> Games:
        """Return what is read so far; list the directories again if that is a second ago and they changed."""
        with self._listing:
            if (now := time.monotonic()) - self._looked > LISTED_S:
                if now - self._listed > UNCHANGED_LISTED_S or self._stamps != self._stamps_now():
                    self._list()
                self._looked = time.monotonic()
        with self._lock:
            if len(self._paths) > len(self._read) + len(self._broken) and not self._reading:
                self._reading = True
                threading.Thread(target=self._read_new, daemon=True).start()
            state = (self._changes, len(self._read), len(self._paths))
            if self._games is None or self._games[0] != state:
                waiting = [one for one in self._paths if one not in self._read and one not in self._broken]
                rows = [self._briefs.get(one, (0, 0)) for one in waiting]
                made = Games(
                    [self._read[one] for one in self._paths if one in self._read],
                    len(waiting), sum(row for row, _ in rows), sum(game for _, game in rows),
                    [self._broken[one] for one in self._paths if one in self._broken],
                )  # fmt: skip
                self._games = state, made
            return self._games[1]

    def session(self, session_id: str) -> Entry:
        """Return a session by its id; one that is not read yet is read in this thread.

        Raises:
            MissingPathError: it is gone.
            TapeError: it is damaged.
        """
        self.games()
        with self._lock:
            path, known = self._paths.get(session_id), self._read.get(session_id)
            stamp = self._identities.get(session_id, ())
        if known is not None:
            return known
        if path is None:
            raise MissingPathError(f"no session has the id {session_id:.20}", hint="it was removed")
        return read_entry(session_id, Path(path), stamp)

    def whole(self) -> Games:
        """Return all sessions, read in this thread."""
        self._list()
        self._read_new()
        return self.games()

    def trainings(self) -> dict[str, Path]:
        """Return the directories of trainings, by id: the roots and what stands directly in them."""
        if time.monotonic() - self._trainings_listed > TRAININGS_LISTED_S:
            found = {}
            for root in self.roots:
                for path in [root, *_other_directories(root)]:
                    if (path / METRICS).is_file():
                        found[id_of(str(path))] = path
            self._trainings, self._trainings_listed = found, time.monotonic()
        return self._trainings

    def _stamps_now(self) -> list[int]:
        """Return when each root changed, in nanoseconds; -1 for one that is gone."""
        found = []
        for root in self.roots:
            try:
                found.append(root.stat().st_mtime_ns)
            except OSError:
                found.append(-1)
        return found

    def _list(self) -> None:
        stamps = self._stamps_now()
        found = {}
        for root in self.roots:
            if (root / METADATA_DB).exists():
                found[str(root)] = root.name
                continue
            try:
                found |= {f"{root}{os.sep}{name}": name for name in session_names(root)}
            except TapeError:
                continue  # gone, or not readable now; its sessions are shown no more
        paths = {id_of(path): path for path, _ in sorted(found.items(), key=lambda one: (one[1], one[0]))}
        identities = {one: _identity(path) for one, path in paths.items()}
        with self._lock:
            if identities != self._identities:  # sessions that came, went, or were replaced
                self._changes += 1
                for one, stamp in self._identities.items():
                    if identities.get(one) != stamp:
                        for table in (self._read, self._broken, self._briefs):
                            table.pop(one, None)
            self._paths, self._identities = paths, identities
            self._stamps, self._listed = stamps, time.monotonic()
            new = [one for one in paths if one not in self._briefs]
        for one in new:
            if (known := brief(paths[one], Path(paths[one]).name)) is not None:
                self._briefs[one] = known.rows, known.games

    def _read_new(self) -> None:
        try:
            for one, path in list(self._paths.items()):
                if one in self._read or one in self._broken:
                    continue
                stamp = self._identities.get(one, ())
                try:
                    entry = read_entry(one, Path(path), stamp)
                except (TapeError, OSError) as error:
                    known = error if isinstance(error, TapeError) else MissingPathError(str(error))
                    with self._lock:
                        if self._identities.get(one) == stamp:
                            self._broken[one] = described(Path(path), known)
                            self._changes += 1
                else:
                    with self._lock:
                        if self._identities.get(one) == stamp:
                            self._read[one] = entry
            games = self.games()
            for name in (*COLUMNS, "session"):
                _ = games[name]  # before a page asks for it: a second, for ten million games
        finally:
            self._reading = False


def _other_directories(root: Path) -> list[Path]:
    """Return the directories in a root that are not named like sessions; none if it cannot be listed."""
    try:
        with os.scandir(root) as entries:
            names = [one.name for one in entries if one.is_dir() and not SESSION_NAME.fullmatch(one.name)]
    except OSError:
        return []
    return [root / name for name in sorted(names) if name[0] != "."]


def _identity(path: str) -> tuple[int, ...]:
    """Return what changes when another session takes the place of one, or the same is written again."""
    try:
        found = os.stat(f"{path}/{METADATA_DB}")  # noqa: PTH116 - ten thousand of them, each second
    except OSError:
        return ()
    return found.st_ino, found.st_ctime_ns, found.st_size


def read_entry(session_id: str, path: Path, stamp: tuple[int, ...] = ()) -> Entry:
    """Read a session's run table and facts, without its rows where the table says where they lie.

    Args:
        session_id: its id.
        path: the directory.
        stamp: as it was before.

    Raises:
        TapeError: it is damaged, or gone.
        OSError: it is gone.
    """
    metadata = read_metadata(path / METADATA_DB)
    runs = metadata.runs
    if not metadata.has_rows:
        runs = Session.open(path).runs
    runs = runs[np.argsort(runs["id"], kind="stable")]
    return Entry(session_id, path, metadata.session, runs, directory_bytes(path), stamp)


def find_run(runs: NDArray[np.void], run: int) -> int:
    """Return the position of the run with an id in a table ordered by id; MissingPathError without one."""
    at = int(np.searchsorted(runs["id"], np.uint64(run))) if 0 <= run < 1 << 64 else len(runs)
    if at == len(runs) or int(runs["id"][at]) != run:
        raise MissingPathError(f"no game has the id {run}", hint=f"the session has {len(runs):,} games")
    return at


def facts_of(entry: Entry) -> Mapping[str, Any]:
    """Return the facts of a session that its page shows."""
    shown = ("started_at", "ended_at", "host", "model_tag", "engine", "sample_rate", "recovered")
    return {name: entry.meta[name] for name in shown if entry.meta.get(name) is not None}
