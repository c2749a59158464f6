"""The sessions of a viewer, with ids instead of paths; and selections and pages of their games.

A thread lists the directories and reads the run table of each new session, so that the first page does not
wait for ten thousand sessions. Rows are read only for games that are shown.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
import hashlib
import math
import operator
import os
import re
import threading
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple, cast

import msgspec
import numpy as np

from tape2048.errors import MissingPathError, TapeError
from tape2048.files.training_directory import METRICS
from tape2048.loader.duplicates import Copies, warn_of_doubled
from tape2048.loader.filters import Filters, check_filters, choose_runs, session_columns
from tape2048.players import player_label, player_name, player_text, public_player
from tape2048.search_depth import with_look
from tape2048.session.columns import find_columns
from tape2048.session.former_names import first_hint
from tape2048.session.layout import METADATA_DB, RUN_DTYPE, SESSION_NAME, name_key
from tape2048.session.metadata import read_metadata
from tape2048.session.session import Session
from tape2048.session.stored import session_paths
from tape2048.session.tape_layout import TAPE_NPY
from tape2048.session.tape_reader import game_pieces
from tape2048.short_names import short_names
from tape2048_recorder.players.options import with_defaults
from tape2048_recorder.replay.annotation import annotation_of
from tape2048_recorder.replay.judging import SUMS, summands
from tape2048_tools.sessions.summary import brief, described, directory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable, Collection as Names, Iterable, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.loader.duplicates import Doubled

#: Seconds for which a listing of sessions, and of trainings, counts as current. A listing of 10,000 sessions
#: takes 0.1 s.
LISTED_S, TRAININGS_LISTED_S = 1.0, 10.0

#: Longest time for a condition. SQL on ten million games takes 8 s.
_CONDITION_S = 20.0

#: Function that returns whether the request of this thread no longer needs its result.
stopped: contextvars.ContextVar[Callable[[], bool]] = contextvars.ContextVar("stopped", default=lambda: False)

#: Rows of a column that are summed at a time.
_ROWS_AT_A_TIME = 1 << 22

#: Columns of the run table that pages need.
COLUMNS = ("run_id", "seed", "steps", "score", "highest_tile", "rows")


def id_of(text: str) -> str:
    return hashlib.sha256(text.encode("utf-8", "surrogateescape")).hexdigest()[:10]


def brief_player(facts: Mapping[str, Any]) -> str:
    name, args = facts.get("player"), facts.get("player_args")
    if not isinstance(name, str) or not isinstance(args, dict):
        return player_text(facts)
    normal = with_defaults(name, {})
    brief = {key: value for key, value in with_look(name, args).items() if normal.get(key) != value}
    return player_text({"player": name, "player_args": brief})


@dataclass(frozen=True, eq=False)
class Entry:
    """A session with its run table, ``RUN_DTYPE[R]`` by id."""

    id: str
    path: Path
    meta: dict[str, Any]
    runs: NDArray[np.void]
    bytes: int

    @property
    def name(self) -> str:
        return self.path.name

    @functools.cached_property
    def tape(self) -> Path | None:
        """The file with the rows of a session on tape; None for a session of rows."""
        return path if (path := self.path / TAPE_NPY).exists() else None

    @property
    def columns(self) -> Names[str]:
        return find_columns(self.path)

    @functools.cached_property
    def label(self) -> str:
        return player_label(self.meta)

    @functools.cached_property
    def player_name(self) -> str:
        return player_name(self.meta)

    @property
    def player(self) -> str:
        brief = brief_player(self.meta)
        args = brief.removeprefix(public_player(str(self.meta.get("player")), {})[0])
        return f"{self.label}{args}" if self.meta.get("player_sha256") else brief

    @property
    def full(self) -> str:
        """Name and parameters."""
        return f"{self.player_name}: {self.player}"

    @property
    def sums(self) -> tuple[dict[str, NDArray[np.float64]], Mapping[str, Any] | None]:
        """Sums over each run, NaN without columns, and facts or None; without sums, each call looks again."""
        # Most sessions have no columns, and opening a session takes 1 ms.
        if "_sums" not in self.__dict__ and (self.path / "loss.json").exists():
            with contextlib.suppress(TapeError, OSError):
                if (found := self._sums_of_columns()) is not None:
                    self.__dict__["_sums"] = found
        kept: tuple[dict[str, NDArray[np.float64]], Mapping[str, Any]] | None = self.__dict__.get("_sums")
        return (self._no_sums, None) if kept is None else kept

    @functools.cached_property
    def _no_sums(self) -> dict[str, NDArray[np.float64]]:
        return dict.fromkeys(SUMS, np.full(len(self.runs), np.nan))

    def _sums_of_columns(self) -> tuple[dict[str, NDArray[np.float64]], Mapping[str, Any]] | None:
        session = Session.open(self.path, "mmap")
        facts = annotation_of(session)
        if not session.contiguous or facts is None:
            return None
        found = {name: np.full(len(self.runs), np.nan) for name in SUMS}
        loss, luck, grade = (session.column(name).values for name in ("loss", "luck", "grade"))
        places = np.searchsorted(self.runs["run_id"], session.runs["run_id"])
        for piece, rows in game_pieces(session.runs, _ROWS_AT_A_TIME):
            starts = session.runs["first_row"][piece].astype(np.int64) - rows.start
            ends = starts + session.runs["rows"][piece]
            for name, values in summands(loss[rows], luck[rows], grade[rows]).items():
                until = np.append(0, np.cumsum(values))
                found[name][places[piece]] = until[ends] - until[starts]
        for values in found.values():
            values[self.runs["rows"] != self.runs["steps"]] = np.nan  # a part of the moves has no sum
        return found, facts

    def game(self, run: int) -> np.void:
        row: np.void = self.runs[find_run(self.runs, run)]
        return row


class Once(NamedTuple):
    """The games of a selection, each once; ``games`` None: all. Other sessions serve ``left_out`` games."""

    games: NDArray[np.bool_] | None
    left_out: NDArray[np.bool_]
    doubled: list[Doubled]


class GameTable:
    """The run tables of the sessions read so far, as columns; immutable.

    Sessions are in the order of their names, and ``starts`` (``i64[S + 1]``) has each session's first game.
    ``waiting`` counts the sessions that are not read yet, and ``broken`` are the unreadable sessions.
    """

    dtype = RUN_DTYPE  # filters read these columns like a run table's

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
        self._summed: list[int] = []  # identities of the sums of annotate's columns that are in _columns
        self._making = threading.Lock()
        self._places = {one.id: number for number, one in enumerate(sessions)}

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column of all games, or ``session``: the number of each game's session."""
        # The sums can take long, and other columns do not wait for them.
        sums = [one.sums[0] for one in self.sessions] if name in SUMS else []
        with self._making:
            if name in SUMS and self._summed != (now := list(map(id, sums))):  # annotated meanwhile
                self._summed = now
                for one in SUMS:
                    self._columns.pop(one, None)
            if name not in self._columns:
                if name == "session":
                    numbers = np.arange(len(self.sessions), dtype=np.uint32)
                    self._columns[name] = np.repeat(numbers, np.diff(self.starts))
                elif name in SUMS:
                    parts = [one[name] for one in sums] or [np.empty(0)]
                    self._columns[name] = np.concatenate(parts)
                else:
                    parts = [one.runs[name] for one in self.sessions] or [np.empty(0, np.uint32)]
                    self._columns[name] = np.concatenate(parts)
            return self._columns[name]

    @functools.cached_property
    def short(self) -> dict[str, str]:
        """Short names of the players, by their names."""
        return short_names(one.player_name for one in self.sessions)

    @functools.cached_property
    def copies(self) -> Copies:
        return Copies(self, self.sessions)

    def once(self, chosen: NDArray[np.bool_] | None) -> Once:
        left_out, several = self.copies.left_out(chosen)
        if several:
            chosen = ~left_out if chosen is None else chosen & ~left_out
        return Once(chosen, left_out, several)

    def document(self, number: int) -> dict[str, Any]:
        entry, row = self.at(number)
        return {
            "session": entry.id,
            "name": entry.name,
            "player": self.short[entry.player_name],
            "full": entry.full,
            "run": str(row["run_id"]),
            "score": int(row["score"]),
            "steps": int(row["steps"]),
            "tile": int(row["highest_tile"]),
        }

    def at(self, number: int) -> tuple[Entry, np.void]:
        owner = int(np.searchsorted(self.starts, number, "right")) - 1
        entry = self.sessions[owner]
        return entry, entry.runs[number - int(self.starts[owner])]

    def number(self, session_id: str) -> int:
        if session_id not in self._places:
            raise MissingPathError(
                f"no session has the id {session_id:.20}",
                hint="Reload the page: it was removed, or is not read yet.",
            )
        return self._places[session_id]


class Collection:
    def __init__(self, roots: Iterable[Path]) -> None:
        self.roots = [Path(os.path.abspath(root)) for root in roots]
        self._lock, self._listing = threading.Lock(), threading.Lock()
        self._listed = self._trainings_listed = -math.inf
        self._trainings: dict[str, Path] = {}
        self._reading = False
        self._games: GameTable | None = None  # None after a change
        # By id: each listed session's path with its identity; read sessions; unreadable sessions; rows and
        # games.
        self._paths: dict[str, tuple[str, tuple[int, ...]]] = {}
        self._read: dict[str, Entry] = {}
        self._broken: dict[str, dict[str, str | None]] = {}
        self._briefs: dict[str, tuple[int, int]] = {}
        self._doubled: list[Doubled] = []  # pairs of sessions that a warning has named

    def games(self) -> GameTable:
        """Return the games read so far; list the directories again after a second."""
        with self._listing:
            if time.monotonic() - self._listed > LISTED_S:
                self._list()
        with self._lock:
            waiting = [one for one in self._paths if one not in self._read and one not in self._broken]
            if waiting and not self._reading:
                self._reading = True
                threading.Thread(target=self._read_new, daemon=True).start()
            if self._games is None:
                sizes = [self._briefs.get(one, (0, 0)) for one in waiting]
                self._games = GameTable(
                    [self._read[one] for one in self._paths if one in self._read],
                    len(waiting), sum(rows for rows, _ in sizes), sum(games for _, games in sizes),
                    [self._broken[one] for one in self._paths if one in self._broken],
                )  # fmt: skip
            return self._games

    def session(self, session_id: str) -> Entry:
        self.games()
        with self._lock:
            known, listed = self._read.get(session_id), self._paths.get(session_id)
        if known is not None:
            return known
        if listed is None:
            raise MissingPathError(
                f"no session has the id {session_id:.20}", hint="Reload the page: it was removed."
            )
        return read_entry(session_id, Path(listed[0]))

    def find_game(self, text: str) -> tuple[Entry, int]:
        """Return the session and the id of a game named SESSION/ID, by the session's name or by its id."""
        name, _, run = text.partition("/")
        sessions = self.whole().sessions
        found = [one for one in sessions if name in {one.name, one.id}]
        if len(found) != 1 or not re.fullmatch("[0-9]{1,20}", run):
            names = ", ".join(one.name if not found else one.id for one in (found or sessions)[:9])
            raise MissingPathError(
                f"found the game {text!r} in {len(found)} sessions, expected SESSION/ID of one session",
                hint=f"Choose one of: {names}. The address of a game in `tape2048 view` has both.",
            )
        return found[0], int(found[0].game(int(run))["run_id"])

    def whole(self) -> GameTable:
        """Return all sessions, read in this thread."""
        self._list()
        self._read_new()
        return self.games()

    def trainings(self) -> dict[str, Path]:
        if time.monotonic() - self._trainings_listed > TRAININGS_LISTED_S:
            paths = [path for root in self.roots for path in (root, *_other_directories(root))]
            self._trainings = {id_of(str(path)): path for path in paths if (path / METRICS).is_file()}
            self._trainings_listed = time.monotonic()
        return self._trainings

    def _list(self) -> None:
        found = {}
        for root in self.roots:
            if (root / METADATA_DB).exists():
                found[str(root)] = root.name
                continue
            try:
                found |= {path: path.rpartition(os.sep)[2] for path in session_paths(root)}
            except TapeError:
                continue  # removed, or currently unreadable: do not show its sessions
        order = sorted(found, key=lambda path: (name_key(found[path]), path))
        paths = {id_of(path): (path, _identity(path)) for path in order}
        with self._lock:
            if paths != self._paths:  # sessions were added, removed or replaced
                self._games = None
            for one, listed in self._paths.items():
                if paths.get(one) != listed:
                    for table in (self._read, self._broken, self._briefs):
                        table.pop(one, None)
            self._paths, self._listed = paths, time.monotonic()
            new = [one for one in paths if one not in self._briefs]
        for one in new:
            path = paths[one][0]
            if (known := brief(path, found[path])) is not None:
                self._briefs[one] = known.rows, known.games

    def _read_new(self) -> None:
        try:
            for one, listed in list(self._paths.items()):
                if one in self._read or one in self._broken:
                    continue
                path = Path(listed[0])
                entry: Entry | None = None
                try:
                    entry = read_entry(one, path)
                except (TapeError, OSError) as error:
                    known = error if isinstance(error, TapeError) else MissingPathError(str(error))
                    broken = described(path, known)
                with self._lock:
                    if self._paths.get(one) != listed:
                        continue  # removed or replaced by another process
                    self._games = None
                    if entry is None:
                        self._broken[one] = broken
                    else:
                        self._read[one] = entry
            games = self.games()
            for name in (*COLUMNS, "session"):
                _ = games[name]  # compute it before a page needs it: a second for ten million games
            if (several := games.once(None).doubled) != self._doubled:  # another two seconds
                self._doubled = several
                warn_of_doubled(several)
        finally:
            self._reading = False


def _other_directories(root: Path) -> list[Path]:
    try:
        with os.scandir(root) as entries:
            names = [one.name for one in entries if one.is_dir() and not SESSION_NAME.fullmatch(one.name)]
    except OSError:
        return []
    return [root / name for name in sorted(names) if name[0] != "."]


def _identity(path: str) -> tuple[int, ...]:
    """Return numbers that change when a session is replaced or written again."""
    try:
        found = os.stat(f"{path}/{METADATA_DB}")  # noqa: PTH116 - ten thousand of them, each second
    except OSError:
        return ()
    return found.st_ino, found.st_ctime_ns, found.st_size


def read_entry(session_id: str, path: Path) -> Entry:
    """Read a session's run table and facts; its rows only if the table lacks their places."""
    metadata = read_metadata(path / METADATA_DB)
    runs = metadata.runs
    if not metadata.has_rows:
        runs = Session.open(path, "mmap").runs
    runs = runs[np.argsort(runs["run_id"], kind="stable")]
    return Entry(session_id, path, metadata.session, runs, directory_bytes(path))


def find_run(runs: NDArray[np.void], run: int) -> int:
    at = int(np.searchsorted(runs["run_id"], np.uint64(run))) if 0 <= run < 1 << 64 else len(runs)
    if at == len(runs) or int(runs["run_id"][at]) != run:
        raise MissingPathError(
            f"no game has the id {run}", hint=f"Choose one of the session's {len(runs):,} games."
        )
    return at


#: Columns by which games can be sorted.
SORTS = ("score", "steps", "highest_tile", "run_id", "session", *SUMS)

PAGE_ROWS = 50


class Selection(msgspec.Struct, frozen=True):
    """A choice of games; ``where`` is SQL, and ``session`` the id of a session. Empty: no condition."""

    where: str = ""
    session: str = ""
    filters: tuple[tuple[str, Any], ...] = ()

    @classmethod
    def of(cls, given: Mapping[str, str], prefix: str = "") -> Selection:
        named: dict[str, Any] = {}
        if hint := first_hint({"min_tile", "max_tile"} & {name.removeprefix(prefix) for name in given}):
            raise ValueError(hint)
        for name in Filters.__annotations__:
            if text := given.get(prefix + name, "").strip():
                is_number = name.startswith(("min_", "max_"))
                if is_number and not re.fullmatch(r"\d{1,18}", text):
                    raise ValueError(f"{name}: found {text!r:.40}, expected a number")
                named[name] = int(text) if is_number else text
        texts = {name: given.get(prefix + name, "").strip() for name in ("where", "session")}
        return cls(**texts, filters=tuple(check_filters(named).items()))


def choose(games: GameTable, selection: Selection) -> NDArray[np.bool_] | None:
    """Return the games of a selection; None: all. A whole label or name selects this player only."""
    if selection == Selection():
        return None
    filters = dict(selection.filters)
    wanted = set(filters.get("player", ()))
    named = [not wanted.isdisjoint((one.label, one.player_name)) for one in games.sessions]
    whole = np.array(named, np.bool_)
    if whole.any():
        del filters["player"]
    columns = session_columns(cast("Any", games), cast("Any", games.sessions))
    where = _compared(games, selection.where)
    until, unwanted = time.monotonic() + _CONDITION_S, stopped.get()
    chosen = choose_runs(
        (selection.where or None) if where is None else where, filters, columns, len(games),
        stop=lambda: unwanted() or time.monotonic() > until,
    )  # fmt: skip
    if wanted and not (whole.any() or chosen.any() or games.waiting):
        _check_players(wanted, games, columns)
    if whole.any():
        chosen &= whole[games["session"]]
    if selection.session:
        chosen &= games["session"] == games.number(selection.session)
    return chosen


def _check_players(wanted: set[str], games: GameTable, columns: Any) -> None:
    if not choose_runs(None, {"player": tuple(wanted)}, columns, len(games)).any():
        known = ", ".join(sorted({one.player_name for one in games.sessions}))
        raise MissingPathError(
            f"no game is of the player {', '.join(sorted(wanted))}", hint=f"Players here: {known}."
        )


_COMPARISON = re.compile(
    r"(?P<column>\w+)\s*(?P<operator>[<>]=?|<>|!=|==?)\s*"
    r"(?:(?P<number>-?\d{1,18})|'(?P<text>[ -&(-~]{0,100})')",
    re.ASCII,
)
_OPERATORS = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
}  # fmt: skip


def _compared(games: GameTable, condition: str) -> NDArray[np.bool_] | None:
    """Evaluate comparisons joined by AND, in 0.05 s for 1e7 games (SQLite: 8 s); None for others."""
    chosen = np.ones(len(games), np.bool_)
    for part in re.split(r"\s+AND\s+", condition.strip(), flags=re.IGNORECASE):
        match = _COMPARISON.fullmatch(part)
        name = match["column"].lower() if match else ""
        if match and match["number"] and name in COLUMNS:
            values = games[name]
            signed = values.view(np.int64) if values.dtype == np.uint64 else values  # as SQLite has them
            chosen &= _OPERATORS[match["operator"]](signed, int(match["number"]))
        elif match and match["text"] is not None and name in {"session", "model", "player", "player_name"}:
            each = cast("Any", {"session": np.arange(len(games.sessions))})
            texts = session_columns(each, cast("Any", games.sessions))[name]()
            chosen &= _OPERATORS[match["operator"]](texts, match["text"]).astype(np.bool_)[games["session"]]
        else:
            return None
    return chosen


def page_of_games(
    games: GameTable, chosen: NDArray[np.bool_] | None, sort: str, page: int, *, descending: bool
) -> NDArray[np.int64]:
    """Return the games on a page; games of equal value keep their order, so that none is on two pages."""
    numbers = None if chosen is None else np.flatnonzero(chosen)
    count = len(games) if numbers is None else len(numbers)
    begin = min(page * PAGE_ROWS, count)
    end = min(begin + PAGE_ROWS, count)
    if sort == "session":  # the order of the games
        places = np.arange(count - end, count - begin)[::-1] if descending else np.arange(begin, end)
    else:
        values = games[sort] if numbers is None else games[sort][numbers]
        if sort in SUMS:  # games without a judgement come last
            values = np.nan_to_num(-values if descending else values, nan=np.inf)
        elif descending:
            values = ~values
        places = _ranked(values, begin, end)
    return places if numbers is None else numbers[places]


def _ranked(values: NDArray[Any], begin: int, end: int) -> NDArray[np.int64]:
    """Return ``np.argsort(values, kind="stable")[begin:end]``, faster: 0.1 s for 1e7 values, not 1.4 s."""
    if begin == end:
        return np.empty(0, np.int64)
    low, high = np.partition(values, (begin, end - 1))[[begin, end - 1]]
    first = begin - int(np.count_nonzero(values < low))
    inside = np.flatnonzero((values >= low) & (values <= high))
    if low != high:
        inside = inside[np.argsort(values[inside], kind="stable")]
    return inside[first : first + end - begin]
