"""Filters of runs: by name, by a mask, or by a condition in SQL.

SQLite evaluates a condition on a table in memory with copies of the columns that the condition names. An
authorizer allows only reading that table and calling functions without side effects.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import itertools
import math
import re
import sqlite3
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol, TypeAlias, TypedDict

import msgspec
import numpy as np

from tape2048.errors import ConfigError
from tape2048.formats.session import SESSION_NAME
from tape2048.io.sqlite import insert_rows, limited_work

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray


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
#: takes 40 a run; one with a subquery over all runs for each run would never end.
OPERATIONS_BASE = 10_000_000
OPERATIONS_PER_RUN = 10_000

#: A name in double quotes; or a string, a name in other quotes, or a comment, which may contain double
#: quotes.
_QUOTED = re.compile(r"""
    " (?P<name> (?: [^"] | "" )* ) "
    | ' (?: [^'] | '' )* ' | ` (?: [^`] | `` )* ` | \[ [^]]* \] | -- [^\n]* | /\* .*? (?: \*/ | \Z )
""", re.VERBOSE | re.DOTALL)  # fmt: skip

_ALLOWED_ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION})


class NamedFilters(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The named filters, which a run has to pass all; see ``Corpus.where``."""

    min_score: int | None = None
    max_score: int | None = None
    min_steps: int | None = None
    max_steps: int | None = None
    min_tile: int | None = None
    max_tile: int | None = None
    model: str | tuple[str, ...] | None = None
    since: str | None = None
    until: str | None = None


class Filters(TypedDict, total=False):
    """The keyword arguments that become :class:`NamedFilters`."""

    min_score: int | np.integer[Any] | None
    max_score: int | np.integer[Any] | None
    min_steps: int | np.integer[Any] | None
    max_steps: int | np.integer[Any] | None
    min_tile: int | np.integer[Any] | None
    max_tile: int | np.integer[Any] | None
    model: str | Collection[str] | None
    since: str | dt.date | None
    until: str | dt.date | None


def named_filters(filters: Filters) -> NamedFilters:
    """Convert keyword arguments; raise ValueError for an unknown name or a value of a wrong type."""
    given: dict[str, object] = {name: value for name, value in filters.items() if value is not None}
    for name, value in given.items():
        if isinstance(value, list):
            given[name] = tuple(value)
        elif isinstance(value, dt.date):  # or a datetime, its subclass
            given[name] = value.isoformat()
        elif isinstance(value, np.integer):
            given[name] = int(value)
    try:
        return msgspec.convert(given, NamedFilters)
    except msgspec.ValidationError as error:
        names = ", ".join(NamedFilters.__struct_fields__)
        raise ValueError(f"filters {filters!r}: {error}; the filters are {names}") from error


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
        "started": lambda: spread(_session_start, np.float64),
    }


def choose_runs(
    where: str | NDArray[np.bool_] | None, filters: NamedFilters, columns: Columns, count: int
) -> NDArray[np.bool_]:
    """Select runs by a condition, or a mask ``bool[R]``, and all named filters: ``bool[R]``."""
    chosen = np.ones(count, np.bool_)
    for column, low, high in (
        ("max_score", filters.min_score, filters.max_score),
        ("steps", filters.min_steps, filters.max_steps),
        ("highest_tile", filters.min_tile, filters.max_tile),
    ):
        if low is not None:
            chosen &= columns[column]() >= low
        if high is not None:
            chosen &= columns[column]() <= high
    if filters.model is not None:
        chosen &= np.isin(columns["model"](), np.array([filters.model], object).reshape(-1))
    if filters.since is not None:
        chosen &= columns["started"]() >= _instant(filters.since, "since")
    if filters.until is not None:
        chosen &= columns["started"]() < _instant(filters.until, "until")
    if isinstance(where, str):
        chosen &= _by_sql(where, columns, count)
    elif where is not None:
        mask = np.asarray(where)
        if mask.dtype != np.bool_ or mask.shape != (count,):
            raise ValueError(
                f"a mask of {mask.dtype} and shape {mask.shape}; expected bool of shape ({count},), "
                "one for each run"
            )
        chosen &= mask
    return chosen


def _session_tag(session: Named) -> str:
    """Return the model tag from the session's facts, or else from its name, or else an empty text."""
    fact = session.meta.get("model_tag")
    if isinstance(fact, str):
        return fact
    match = SESSION_NAME.fullmatch(session.name)
    return match["tag"] if match else ""


def _session_start(session: Named) -> float:
    """Return the start from the session's facts, or else from its name; NaN if neither has it."""
    match = SESSION_NAME.fullmatch(session.name)
    for text in (session.meta.get("started_at"), match["ts"] if match else None):
        if isinstance(text, str):
            with contextlib.suppress(ValueError):
                return _seconds(text)
    return math.nan


def _instant(value: str, name: str) -> float:
    try:
        return _seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}; expected a date as 2026-11-21 or 2026-11-21T06:00") from error


def _seconds(text: str) -> float:
    found = dt.datetime.fromisoformat(text)
    return (found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)).timestamp()


def _by_sql(condition: str, columns: Columns, count: int) -> NDArray[np.bool_]:
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
            values = zip(range(count), *(_sql_values(columns[name]()) for name in names), strict=True)
            database.execute("BEGIN")
            insert_rows(database, "runs", ["ordinal", *names], itertools.chain.from_iterable(values))
            database.execute("COMMIT")
            _only_reading(database, read)
            chosen = np.zeros(count, np.bool_)
            with limited_work(database, OPERATIONS_BASE + OPERATIONS_PER_RUN * count):
                chosen[[row[0] for row in database.execute(query)]] = True
        except (sqlite3.Error, sqlite3.Warning, ValueError, UnicodeError) as error:
            raise _refused(condition, error, list(columns)) from error
    return chosen


def _sql_values(column: NDArray[Any]) -> list[Any]:
    """Return a column as SQLite takes it: signed integers, as in metadata.db, and times as text."""
    if column.dtype != np.float64:
        found: list[Any] = (column if column.dtype == object else column.astype(np.int64)).tolist()
        return found
    moments, which = np.unique(column, return_inverse=True)
    texts = [
        None if math.isnan(each) else dt.datetime.fromtimestamp(each, dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
        for each in moments.tolist()
    ]
    return [texts[each] for each in which.tolist()]


def _backquoted(match: re.Match[str]) -> str:
    """Put a name into backquotes: in double quotes, SQLite takes an unknown one for text."""
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
        if action == sqlite3.SQLITE_FUNCTION and column in {"load_extension", "writefile", "readfile"}:
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
            hint = f"text stands in single quotes; {hint}"
    elif code == sqlite3.SQLITE_AUTH:
        hint = f"a condition can only compare columns of the run table; {hint}"
    elif code == sqlite3.SQLITE_INTERRUPT:
        message = "it takes more work than a condition on so many runs can need"
    return ConfigError(f"the condition {condition[:200]!r} is refused: {message}", hint=hint)
