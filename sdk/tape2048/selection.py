"""The base of all sources of rows with a run table: named filters, masks, SQL, phases, and splits.

SQLite evaluates a condition on a table in memory with copies of the columns that the condition names. An
authorizer allows only reading that table and calling functions without side effects.

**Splits** are by the identity of runs, from the run table alone.
A run's identity is the SHA-256 of its player and its seed, wherever it is recorded, copied or merged. A hash
of the identity decides its part, so no game is ever in two parts, and none moves when sessions are added::

    key  = the first 8 bytes of SHA-256("tape2048 split 1" NUL salt NUL player_sha256), as a little-endian u64
    u    = mix64(mix64(seed + key)) / 2**64
    part = the first part with a cumulated share above u

(sums modulo 2**64; ``mix64`` is SplitMix64's finalizer.)
"""

from __future__ import annotations

import collections
import contextlib
import datetime as dt
import difflib
import hashlib
import itertools
import math
import numbers
import operator
import re
import sqlite3
from abc import abstractmethod
from functools import partial
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol, Self, TypeAlias, TypedDict

import msgspec
import numpy as np

from tape2048.base.text import as_int, counted, printable
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.formats.rows import RowView, row_numbers, run_ordinal
from tape2048.formats.session import SESSION_NAME
from tape2048.io.sqlite import insert_rows, limited_work
from tape2048.jit.mix import mix64
from tape2048.settings.fields import show_plain

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
    from typing import SupportsIndex, Unpack

    from numpy.typing import ArrayLike, NDArray


class Named(Protocol):
    """A session: its name and its facts."""

    @property
    def name(self) -> str:
        """The name of its directory."""

    @property
    def meta(self) -> Mapping[str, Any]:
        """The facts."""


#: The values of each run by column name, made when a filter needs them. ``started`` is in seconds since 1970.
Columns: TypeAlias = "Mapping[str, Callable[[], NDArray[Any]]]"

#: Limits of SQLite that bound one step of a condition; :func:`limited_work` counts steps. The longest text is
#: that of a foreign session's facts with room to spare; LIKE takes text times pattern.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 16,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 8,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
}

#: Operations of SQLite's virtual machine for a condition, and for each run. A condition of ten comparisons
#: takes 40 a run. A condition with a subquery over all runs for each run would never end.
OPERATIONS_BASE = 10_000_000
OPERATIONS_PER_RUN = 10_000

#: A name in double quotes; or a string, a name in other quotes, or a comment, which may contain double
#: quotes.
_QUOTED = re.compile(r"""
    " (?P<name> (?: [^"] | "" )* ) "
    | ' (?: [^'] | '' )* ' | ` (?: [^`] | `` )* ` | \[ [^]]* \] | -- [^\n]* | /\* .*? (?: \*/ | \Z )
""", re.VERBOSE | re.DOTALL)  # fmt: skip

_NAMED = 8  # players that a message names
_NAME_CHARS = 40  # of a player's short name
_SPAWNS = ("look_below", "depth")  # parameters of players that look spawns ahead

_REFUSED_FUNCTIONS = frozenset({"load_extension", "writefile", "readfile", "printf", "format"})
_ALLOWED_ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION})


class Filters(TypedDict, total=False):
    """The named filters, which a run has to pass all; see ``Corpus.where``."""

    min_score: int | np.integer[Any] | None
    max_score: int | np.integer[Any] | None
    min_steps: int | np.integer[Any] | None
    max_steps: int | np.integer[Any] | None
    min_tile: int | np.integer[Any] | None
    max_tile: int | np.integer[Any] | None
    model: str | Collection[str] | None
    player: str | Collection[str] | None
    since: str | dt.date | None
    until: str | dt.date | None


def check_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return the given filters, dates as text and names as a tuple; ValueError for other names or types."""
    found: dict[str, Any] = {}
    for name, value in filters.items():
        if value is None and name in Filters.__annotations__:
            continue
        if name.startswith(("min_", "max_")):
            valid = isinstance(value, int | np.integer) and not isinstance(value, bool)
            found[name] = value
        elif name in {"model", "player"}:
            several = np.iterable(value) and not isinstance(value, str)
            found[name] = tuple(value) if several else (value,)
            valid = all(isinstance(each, str) for each in found[name])
        else:
            found[name] = value.isoformat() if isinstance(value, dt.date) else value  # or a datetime
            valid = isinstance(found[name], str)
        if not valid or name not in Filters.__annotations__:
            names = ", ".join(Filters.__annotations__)
            raise ValueError(f"filters {filters!r}: found {name}={value!r}. The filters are {names}")
    return found


def number_columns(runs: NDArray[np.void]) -> dict[str, Callable[[], NDArray[Any]]]:
    """Return the columns of a run table."""
    names = ("id", "seed", "steps", "max_score", "highest_tile", "rows")
    return {name: partial(runs.__getitem__, name) for name in names}


def session_columns(runs: NDArray[np.void], sessions: Sequence[Named]) -> Columns:
    """Return the columns of runs, and the facts of the sessions that ``runs["session"]`` indexes."""

    def spread(fact: Callable[[Named], Any], dtype: Any = object) -> NDArray[Any]:
        values: NDArray[Any] = np.array([fact(session) for session in sessions], dtype)[runs["session"]]
        return values

    return {
        **number_columns(runs),
        "session": lambda: spread(lambda session: session.name),
        "model": lambda: spread(_session_tag),
        "player": lambda: spread(lambda session: player_label(session.meta)),
        "started": lambda: spread(_session_start, np.float64),
    }


def choose_runs(
    where: str | NDArray[np.bool_] | None,
    filters: Mapping[str, Any],
    columns: Columns,
    count: int,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> NDArray[np.bool_]:
    """Select runs by a condition, or a mask ``bool[R]``, and all checked filters: ``bool[R]``.

    ``stop`` is called now and then. A condition is refused once it returns true.
    """
    chosen = np.ones(count, np.bool_)
    names = {"score": "max_score", "steps": "steps", "tile": "highest_tile"}
    for name, value in filters.items():
        bound, _, of = name.partition("_")
        if name in {"model", "player"}:
            texts, begins = columns[name](), tuple(f"{each}{mark}" for each in value for mark in "@:")
            named = [each for each in set(texts.tolist()) if each in value or (each or "").startswith(begins)]
            chosen &= np.isin(texts, np.array(named, object))
        elif bound == "min":
            chosen &= columns[names[of]]() >= value
        elif bound == "max":
            chosen &= columns[names[of]]() <= value
        elif name == "since":
            chosen &= columns["started"]() >= _instant(value, name)
        else:
            chosen &= columns["started"]() < _instant(value, name)
    if isinstance(where, str):
        chosen &= _by_sql(where, columns, count, stop)
    elif where is not None:
        mask = np.asarray(where)
        if mask.dtype != np.bool_ or mask.shape != (count,):
            raise ValueError(
                f"a mask of {mask.dtype} and shape {mask.shape}; expected bool of shape ({count},), "
                "an entry for each run"
            )
        chosen &= mask
    return chosen


def _session_tag(session: Named) -> str:
    """Return the model tag from the session's facts, or else from its name, or else an empty text."""
    fact, match = session.meta.get("model_tag"), SESSION_NAME.fullmatch(session.name)
    return fact if isinstance(fact, str) else match["tag"] if match else ""


def player_text(facts: Mapping[str, Any]) -> str:
    """Return the player of a session's facts with its parameters, as ``record`` takes it; empty for none."""
    name, args = _player_args(facts)
    return f"{name}:{','.join(f'{key}={show_plain(each)}' for key, each in args.items())}" if args else name


def _player_args(facts: Mapping[str, Any]) -> tuple[str, Mapping[str, Any]]:
    name, config = facts.get("player"), facts.get("config")
    args = facts.get("player_args", config.get("player_args") if isinstance(config, dict) else None)
    return (name, args if isinstance(args, dict) else {}) if isinstance(name, str) else ("", {})


def player_name(facts: Mapping[str, Any]) -> str:
    """Return the short name of a session's player: kind, network and look-ahead, as ``ntuple fast, 2-ply``.

    A ply is a move with the spawn before it: ``1-ply`` compares the boards after each move, and every spawn
    that the player looks ahead adds a ply. The name tells the deepest search of the player.

    Args:
        facts: A session's facts.

    Returns:
        At most 40 characters; ``unknown player`` if the facts have no player.

    Example:
        >>> player_name({"player": "ntuple", "player_args": {"weights": "nets/my.npz", "look_below": 0}})
        'ntuple my, 1-ply'
    """
    kind, args = _player_args(facts)
    words = [":".join(kind.split(":")[-2:]) or "unknown player"]
    networks = [args[key] for key in ("critic", "weights") if isinstance(args.get(key), str)]
    words += [re.split(r"[/\\]", each)[-1].split(".")[0] for each in networks[:1]]
    spawns = [args[key] for key in _SPAWNS if isinstance(args.get(key), int)]
    name, plies = " ".join(words), "" if not spawns else f", {plies_of(kind, args)}-ply"
    return (
        f"{name[: _NAME_CHARS - len(plies) - 1]}…{plies}" if len(name + plies) > _NAME_CHARS else name + plies
    )


def plies_of(kind: str, args: Mapping[str, Any]) -> int:
    """Return the plies of the deepest search of a player; see :func:`player_name`."""

    def of(key: str) -> int:
        value = args.get(key)
        return value if isinstance(value, int) else 0

    if not of("look_below"):
        return 1 + of("depth") + (kind == "critic")
    deeper = of("look_spawns") + (of("look_deeper_from") > 0) if of("look_twice_below") else 1
    return 1 + deeper + (kind == "critic")


def player_names(several: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """Return the short name of each player by its label, with some digits of the SHA-256 where two share one.

    Args:
        several: The facts of sessions.

    Returns:
        Names by :func:`player_label`, in the order of the facts.
    """
    found = {player_label(facts): player_name(facts) for facts in several}
    shared = collections.Counter(found.values())
    return {label: f"{name} @{_digits(label)}" if shared[name] > 1 else name for label, name in found.items()}


def _digits(label: str) -> str:
    return (label.rpartition("@")[2] if "@" in label else hashlib.sha256(label.encode()).hexdigest())[:6]


def player_label(facts: Mapping[str, Any]) -> str:
    """Return the player of a session's facts for the column ``player``, as ``ntuple@0123456789ab``.

    That is a short name and 12 digits of the SHA-256; without a SHA-256 it is :func:`player_text`.
    """
    text, sha256 = player_text(facts), facts.get("player_sha256")
    if not isinstance(sha256, str) or not sha256:
        return text
    words = text.split(":")
    name = ":".join(words[1:3]).rpartition("/")[2] if words[0] == "python" else words[0]
    return f"{name}@{sha256[:12]}"


class PlayedBy(msgspec.Struct, frozen=True):
    """A player whose games are in a corpus."""

    name: str  # with its parameters, as its sessions say; empty where they do not
    sha256: str  # of the player; empty in sessions without it, which are taken for one player's by name
    games: int  # number of its games

    @property
    def label(self) -> str:
        """The player in the column ``player``."""
        return player_label({"player": self.name, "player_sha256": self.sha256})

    def __str__(self) -> str:
        return f"{printable(self.label)[:99] or 'a player without a name'} ({counted(self.games, 'game')})"


def players_of(runs: NDArray[np.void], sessions: Sequence[Named]) -> list[PlayedBy]:
    """Return the players of the games of a run table, starting with the player of the most games."""
    games = np.bincount(runs["session"], minlength=len(sessions))
    found: dict[str, PlayedBy] = {}
    for session, count in zip(sessions, games.tolist(), strict=True):
        if count:
            given, name = session.meta.get("player_sha256"), player_text(session.meta)
            sha256 = given if isinstance(given, str) else ""
            before = found.setdefault(sha256 or name, PlayedBy(name, sha256, 0))
            found[sha256 or name] = PlayedBy(before.name, sha256, before.games + count)
    return sorted(found.values(), key=lambda player: -player.games)


def only_player(player: PlayedBy) -> str:
    """Return the condition in SQL that selects a player's games."""
    quoted = player.label.replace("'", "''")
    return f"player = '{quoted}'"


def name_players(players: Sequence[PlayedBy], names: Mapping[str, str] = MappingProxyType({})) -> str:
    """Return the number of players, and the first of them with their games, as short ``names`` by label."""
    more = f" and {len(players) - _NAMED} more" if len(players) > _NAMED else ""
    shown = [
        f"{names[one.label]} ({counted(one.games, 'game')})" if one.label in names else str(one)
        for one in players[:_NAMED]
    ]
    return f"{counted(len(players), 'player')}: {'; '.join(shown)}{more}"


def newest_sessions(sessions: Sequence[Named], rows: NDArray[Any], rows_min: float) -> list[int]:
    """Return the ordinals of the newest sessions that have ``rows_min`` of these ``rows`` together."""
    starts = np.nan_to_num([_session_start(session) for session in sessions], nan=-np.inf)
    newest = sorted(range(len(sessions)), key=lambda i: (starts[i], sessions[i].name), reverse=True)
    return sorted(newest[: 1 + int(np.searchsorted(np.cumsum(rows[newest]), rows_min))])


def _session_start(session: Named) -> float:
    """Return the start from the session's facts, or else from its name; NaN if neither has it."""
    match, told = SESSION_NAME.fullmatch(session.name), unix_s(session.meta.get("started_at"))
    return unix_s(match["ts"]) if match and math.isnan(told) else told


def unix_s(text: Any) -> float:
    """Return a time in ISO 8601 in seconds since 1970, in UTC without an offset. NaN for other text."""
    try:
        return _seconds(text)
    except (TypeError, ValueError, OverflowError):
        return math.nan


def _instant(value: str, name: str) -> float:
    try:
        return _seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}; expected a date as 2026-11-21 or 2026-11-21T06:00") from error


def _seconds(text: str) -> float:
    found = dt.datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).timestamp()


def _by_sql(condition: str, columns: Columns, count: int, stop: Callable[[], bool]) -> NDArray[np.bool_]:
    read: set[str] = set()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f"CREATE TABLE runs(ordinal INTEGER PRIMARY KEY, {', '.join(columns)})")
        for limit, value in _LIMITS.items():
            database.setlimit(limit, value)
        # The newline ends a comment. The probe rejects a text that closes the brackets to leave the
        # expression, such as "1) LIMIT (5".
        expression = f"({_QUOTED.sub(_backquoted, condition)}\n)"
        query = f"SELECT ordinal FROM runs WHERE {expression}"  # noqa: S608 - conditions are SQL
        probe = f"SELECT CASE WHEN {expression} THEN 1 END FROM runs"  # noqa: S608
        _only_reading(database, read)
        try:
            for statement in (query, probe):
                database.execute(f"EXPLAIN {statement}").fetchall()
            database.set_authorizer(None)
            names = sorted(read & columns.keys())
            values = zip(range(count), *(sql_values(columns[name]()) for name in names), strict=True)
            chosen = np.zeros(count, np.bool_)
            with limited_work(database, OPERATIONS_BASE + OPERATIONS_PER_RUN * count, stop):
                database.execute("BEGIN")
                insert_rows(database, "runs", ["ordinal", *names], itertools.chain.from_iterable(values))
                database.execute("COMMIT")
                _only_reading(database, read)
                chosen[[row[0] for row in database.execute(query)]] = True
        except (sqlite3.Error, sqlite3.Warning, ValueError, RecursionError) as error:
            raise _refused(condition, error, list(columns)) from error
    return chosen


def sql_values(column: NDArray[Any], null: Any = None) -> list[Any]:
    """Return a column as SQLite takes it: signed integers, as in metadata.db, and times as text or null."""
    if column.dtype != np.float64:
        found: list[Any] = (column if column.dtype == object else column.astype(np.int64)).tolist()
        return found
    moments, which = np.unique(column, return_inverse=True)
    texts = [
        null if math.isnan(each) else dt.datetime.fromtimestamp(each, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for each in moments.tolist()
    ]
    return [texts[each] for each in which.tolist()]


def _backquoted(match: re.Match[str]) -> str:
    """Put a name into backquotes: in double quotes, SQLite takes an unknown name for text."""
    if match["name"] is None:
        return match[0]
    name = match["name"].replace('""', '"').replace("`", "``")
    return f"`{name}`"


def _only_reading(database: sqlite3.Connection, read: set[str]) -> None:
    def authorize(
        action: int, table: str | None, column: str | None, schema: str | None, _inner: str | None
    ) -> int:
        if action == sqlite3.SQLITE_READ:
            if table != "runs" or schema not in {"main", None}:
                return sqlite3.SQLITE_DENY
            read.add(column or "")
        # The precision of printf is a number of steps that no limit bounds.
        if action == sqlite3.SQLITE_FUNCTION and column in _REFUSED_FUNCTIONS:
            return sqlite3.SQLITE_DENY
        return sqlite3.SQLITE_OK if action in _ALLOWED_ACTIONS else sqlite3.SQLITE_DENY

    database.set_authorizer(authorize)


def _refused(condition: str, error: Exception, columns: list[str]) -> ConfigError:
    message = str(error)
    hint = f"columns: {', '.join(columns)}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    unknown = re.match(r"no such column: \"?(\w+)", message)
    if unknown:
        near = difflib.get_close_matches(unknown[1], columns, 1)
        if near:
            hint = f"did you mean {near[0]}? {hint}"
        elif any((match["name"] or "").startswith(unknown[1]) for match in _QUOTED.finditer(condition)):
            hint = f"put text in single quotes; {hint}"
    elif code == sqlite3.SQLITE_AUTH:
        hint = f"a condition can only compare columns of the run table; {hint}"
    elif code == sqlite3.SQLITE_INTERRUPT:
        message = "it takes more work than a condition on so many runs can need"
    return ConfigError(f"the condition {condition[:200]!r} is refused: {message}", hint=hint)


# Beyond every step_idx.
_STEPS_MAX = 1 << 32


class Phase(NamedTuple):
    """Half-open ranges; None for no condition.

    Attributes:
        steps: of ``step_idx``.
        fraction: of ``step_idx / steps``.
        empties: of the number of empty cells.
    """

    steps: tuple[int, int] | None = None
    fraction: tuple[float, float] | None = None
    empties: tuple[int, int] | None = None

    def __str__(self) -> str:
        ranges = self._asdict().items()
        return ", ".join(f"{bounds[0]} <= {name} < {bounds[1]}" for name, bounds in ranges if bounds)

    def step_ranges(self, steps: NDArray[Any]) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
        """Compute first step and end of the part of each run, of runs with so many ``steps``.

        A fraction starts at the smallest s with s >= fraction x steps (in float64). ``empties`` do not count.
        """
        low = np.zeros(len(steps), np.int64)
        high = np.full(len(steps), _STEPS_MAX, np.int64)
        if self.steps is not None:
            low[:], high[:] = self.steps
        if self.fraction is not None:
            first, end = (
                np.ceil(bound * steps.astype(np.float64)).astype(np.int64) for bound in self.fraction
            )
            low, high = np.maximum(low, first), np.minimum(high, end)
        return low, high


#: Whole games.
ALL = Phase()


def make_phase(before: Phase, steps: Any, fraction: Any, empties: Any) -> Phase:
    """Replace the given ranges of ``before``; raise ValueError for an invalid range."""
    limits: Any = {"steps": (steps, _STEPS_MAX), "fraction": (fraction, 1.0), "empties": (empties, 17)}
    ranges: dict[str, Any] = {}
    for name, (value, most) in limits.items():
        if value is None:
            continue
        try:
            low, high = value
            number = operator.index if isinstance(most, int) else float
            low, high = number(0 if low is None else low), number(most if high is None else high)
            valid = 0 <= low < high <= most
        except (TypeError, ValueError):
            valid = False
        if not valid:
            kind = "whole numbers " if isinstance(most, int) else ""
            raise ValueError(f"{name}={value!r}; expected {kind}(first, end) with 0 <= first < end <= {most}")
        ranges[name] = (low, high)
    return before._replace(**ranges)


#: Tolerance of the shares' sum: 0.7 + 0.2 + 0.1 is not 1 in floating point.
_SHARES_TOLERANCE = 1e-6


def check_shares(shares: Sequence[Any], shown: object) -> None:
    """Raise TypeError or ValueError unless shares are positive numbers whose sum is 1."""
    if not all(isinstance(share, numbers.Real) for share in shares):
        raise TypeError(f"shares {shown}; expected numbers")
    if not shares or not all(share > 0 for share in shares) or abs(sum(shares) - 1) > _SHARES_TOLERANCE:
        raise ValueError(f"shares {shown}; expected positive shares with the sum 1")


def run_hash(runs: NDArray[np.void], sessions: Sequence[Named], salt: str = "") -> NDArray[np.uint64]:
    """Hash the identity of each run with a salt: ``u64[R]``, uniform."""
    players = [session.meta.get("player_sha256") for session in sessions]
    keys = np.array([player_key(sha if isinstance(sha, str) else "", salt) for sha in players], np.uint64)
    # Twice: seeds are often consecutive, and the keys of two salts may be close.
    hashed: NDArray[np.uint64] = mix64(mix64(runs["seed"] + keys[runs["session"]]))
    return hashed


def parts_of_seeds(
    seeds: NDArray[np.uint64], player_sha256: str, shares: Sequence[float], salt: str = ""
) -> NDArray[np.int64]:
    """Return the part of each game of one player once it is recorded: ``i64[R]``."""
    return parts_of_hashes(mix64(mix64(seeds + np.uint64(player_key(player_sha256, salt)))), shares)


def parts_of_hashes(hashes: NDArray[np.uint64], shares: Sequence[float]) -> NDArray[np.int64]:
    """Return the part of each hash, as an index into the shares."""
    # A double holds the upper 53 bits exactly.
    position = (hashes >> np.uint64(11)).astype(np.float64) / 2**53
    ends = np.cumsum(np.asarray(shares, np.float64))
    ends[-1] = 1.0
    return np.searchsorted(ends, position, "right")


def player_key(player_sha256: str, salt: str) -> int:
    """Return the number that a player and a salt add to the seeds of the player's games."""
    text = f"tape2048 split 1\0{salt}\0{player_sha256}"
    return int.from_bytes(hashlib.sha256(text.encode()).digest()[:8], "little")


class View(RowView):
    """A sequence of rows and a table of their runs, or a selection of them.

    ``len(view)``, ``view[7]``, ``view[10:20]`` and :meth:`get_batch` count and return rows. :meth:`rows_of`
    returns the rows of one run. :meth:`where` selects runs, :meth:`split` makes training and validation
    parts, and :meth:`batches` serves all rows in a random order. Selections share the rows in memory.

    A subclass has the attributes ``runs`` and ``row_starts``, ``__len__``, ``get_batch`` and
    :meth:`_of_runs`; for :meth:`split`, also :meth:`_run_hashes`.
    """

    if TYPE_CHECKING:

        @property
        def runs(self) -> NDArray[np.void]:
            """One record for each run."""

        @property
        def row_starts(self) -> NDArray[np.int64]:
            """First row of each run in the view, then the number of rows: ``i64[R + 1]``."""

    @abstractmethod
    def _of_runs(self, chosen: NDArray[np.bool_]) -> Self:
        """Return a view of the runs of a mask, ``bool[R]``."""

    def _run_hashes(self, salt: str) -> NDArray[np.uint64]:
        raise NotImplementedError

    def _columns(self) -> Columns:
        names = (*(self.runs.dtype.names or ()), "rows")
        columns = {**number_columns(self.runs), "rows": lambda: self.row_counts}
        return {name: column for name, column in columns.items() if name in names}

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Rows of each run in the view: ``i64[R]``."""
        return np.diff(self.row_starts)

    def rows_of(self, run: SupportsIndex) -> NDArray[np.void]:
        """Return the rows of one run, in step order.

        Args:
            run: ordinal in :attr:`runs`, 0 <= run < R.

        Raises:
            IndexError: there is no such run.
            TypeError: ``run`` is not an integer.
        """
        ordinal = run_ordinal(run, len(self.runs))
        return self[int(self.row_starts[ordinal]) : int(self.row_starts[ordinal + 1])]

    def run_index(self, rows: slice | ArrayLike) -> NDArray[np.int64]:
        """Return the run of each given row, as its ordinal in :attr:`runs`: ``i64[n]``.

        Args:
            rows: a slice, row numbers, or a mask, with the errors of :meth:`get_batch`.
        """
        if isinstance(rows, slice):
            numbers = np.arange(*rows.indices(len(self)))
        else:
            numbers = row_numbers(rows, len(self))
        found: NDArray[np.int64] = np.searchsorted(self.row_starts, numbers, "right") - 1
        return found

    def where(self, where: str | NDArray[np.bool_] | None = None, /, **filters: Unpack[Filters]) -> Self:
        """Select the runs that satisfy a condition and all named filters.

        Args:
            where: SQL over columns of the run table, such as ``"max_score >= 50000 AND highest_tile >=
                8192"``; or a mask ``bool[R]``.
            **filters: ``min_score``, ``max_score``, ``min_steps``, ``max_steps``, ``min_tile``, ``max_tile``
                (inclusive bounds), ``model`` (a tag, or several), ``player`` (as ``ntuple`` or
                ``ntuple@0123456789ab``, or several), ``since`` and ``until`` (the start, ISO 8601, UTC;
                ``until`` is exclusive).

        Raises:
            EmptyCorpusError: no row is left. The message has the counts before.
            ConfigError: SQLite rejects the condition, or it does more than read the run table.
            ValueError: a filter is unknown, a date is invalid, or a mask has another length.

        Example:
            >>> from tape2048 import Corpus
            >>> best = Corpus.open("selfplay").where("highest_tile >= 512", min_steps=100)
            >>> bool((best.runs["highest_tile"] >= 512).all())
            True
        """
        chosen = choose_runs(where, check_filters(filters), self._columns(), len(self.runs))
        self._check_some(chosen, "the filter")
        return self._of_runs(chosen)

    def split(self, *, salt: str = "", **parts: float) -> dict[str, Self]:
        """Split the runs by a hash of their identity, so that a game is always in the same part.

        Args:
            salt: text that selects another split.
            **parts: name and share of each part. The sum is 1.

        Returns:
            A mapping of names to views, in the given order.

        Raises:
            EmptyCorpusError: a part has no row.
            TypeError: a share is not a number, or the salt is not text.
            ValueError: there is no part, a share is not positive, or the sum is not 1.

        Example:
            >>> from tape2048 import Corpus
            >>> parts = Corpus.open("selfplay").split(train=0.8, val=0.2)
            >>> list(parts), sum(len(part.runs) for part in parts.values())
            (['train', 'val'], 200)
        """
        shares = list(parts.values())
        check_shares(shares, parts)
        if not isinstance(salt, str):
            raise TypeError(f"salt={salt!r}; expected text")
        hashes = self._run_hashes(salt)
        part = parts_of_hashes(hashes, shares)
        hint = "Use more games, or a larger share."
        if (different := len(np.unique(hashes))) < len(hashes):
            hint = (
                f"of {len(hashes):,} runs, {different:,} have different identities, and equal runs go to one "
                "part: a foreign session may have the same seed for all its runs"
            )
        found = {}
        for i, (name, share) in enumerate(parts.items()):
            self._check_some(part == i, f"the split's part {name}={share}", hint)
            found[name] = self._of_runs(part == i)
        return found

    def batches(
        self, batch_size: int = 4096, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> Iterable[Any]:
        """Iterate over all rows once, in batches of records. The last batch may be smaller.

        Args:
            batch_size: rows in a batch, at least 1.
            shuffle: use a random order, which takes 8 bytes for each row, instead of the rows' own.
            seed: decides that order, the same on every machine.
            drop_last: leave out a smaller last batch.

        Raises:
            ValueError: ``batch_size`` is not an integer of at least 1.
        """
        batch_size, rows = as_int("batch_size", batch_size), len(self)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        order = shuffled(rows, as_int("seed", seed)) if shuffle else np.arange(rows)
        end = rows - rows % batch_size if drop_last else rows
        return (self.get_batch(order[at : at + batch_size]) for at in range(0, end, batch_size))

    def _check_some(self, chosen: NDArray[np.bool_], what: str, hint: str | None = None) -> None:
        check_some(self.row_counts, chosen, what, hint)


def check_some(
    rows: NDArray[np.int64], chosen: NDArray[np.bool_], what: str, hint: str | None = None
) -> None:
    """Raise EmptyCorpusError if ``what`` leaves no row of runs with so many rows."""
    if not rows[chosen].any():
        raise EmptyCorpusError(
            f"{what} leaves {np.count_nonzero(chosen):,} of {counted(len(rows), 'run')} and "
            f"0 of {counted(int(rows.sum()), 'row')}",
            hint=hint,
        )


def shuffled(count: int, seed: int) -> NDArray[np.int64]:
    """Permute [0, count) by a hash of seed and number, independent of NumPy's generators."""
    # SplitMix64's sequence and finaliser (Steele, Lea, Flood 2014), a bijection: no two are equal.
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return np.argsort(mix64(z + np.uint64(seed & (2**64 - 1))))
