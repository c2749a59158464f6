"""Filters of runs: by name, by a mask, or by a condition in SQL.

SQLite evaluates a condition on a table in memory with copies of the columns that the condition names. An
authorizer allows only reading that table and calling functions without side effects.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import itertools
import re
import sqlite3
from typing import TYPE_CHECKING, Any, TypedDict

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.formats.session import SESSION_NAME
from tape2048.io.sqlite import insert_rows, limited_work

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence

    from numpy.typing import NDArray

    from tape2048.session.session import Session

#: The names in a condition: columns of the run table, then facts of the run's session.
FILTER_COLUMNS = ("id", "seed", "steps", "max_score", "highest_tile", "rows", "session", "model", "started")
_SESSION_COLUMNS = FILTER_COLUMNS[-3:]

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


def choose_runs(
    where: str | NDArray[np.bool_] | None,
    filters: NamedFilters,
    runs: NDArray[np.void],
    sessions: Sequence[Session],
) -> NDArray[np.bool_]:
    """Select runs by a condition and all named filters: ``bool[R]``; errors as for ``Corpus.where``.

    Args:
        where: SQL over :data:`FILTER_COLUMNS`, a mask ``bool[R]``, or None.
        filters: the named filters.
        runs: ``CORPUS_RUN_DTYPE[R]``.
        sessions: the sessions that ``runs["session"]`` indexes.
    """
    chosen = np.ones(len(runs), np.bool_)
    for column, low, high in (
        ("max_score", filters.min_score, filters.max_score),
        ("steps", filters.min_steps, filters.max_steps),
        ("highest_tile", filters.min_tile, filters.max_tile),
    ):
        if low is not None:
            chosen &= runs[column] >= low
        if high is not None:
            chosen &= runs[column] <= high
    if filters.model is not None:
        tags = {filters.model} if isinstance(filters.model, str) else set(filters.model)
        chosen &= np.array([_session_tag(s) in tags for s in sessions], np.bool_)[runs["session"]]
    if filters.since is not None or filters.until is not None:
        since = _instant(filters.since, "since") or dt.datetime.min.replace(tzinfo=dt.UTC)
        until = _instant(filters.until, "until") or dt.datetime.max.replace(tzinfo=dt.UTC)
        starts = [_session_start(session) for session in sessions]
        counts = [start is not None and since <= start < until for start in starts]
        chosen &= np.array(counts, np.bool_)[runs["session"]]
    if isinstance(where, str):
        chosen &= _by_sql(where, runs, sessions)
    elif where is not None:
        mask = np.asarray(where)
        if mask.dtype != np.bool_ or mask.shape != (len(runs),):
            raise ValueError(
                f"a mask of {mask.dtype} and shape {mask.shape}; expected bool of shape ({len(runs)},), "
                "one for each run"
            )
        chosen &= mask
    return chosen


def check_some(
    runs: NDArray[np.void], chosen: NDArray[np.bool_], what: str, rows: NDArray[np.int64] | None = None
) -> None:
    """Raise EmptyCorpusError if ``what`` leaves no row; ``rows`` of runs are by default the run table's."""
    counts = runs["rows"].astype(np.int64) if rows is None else rows
    left = int(counts[chosen].sum())
    if left == 0:
        raise EmptyCorpusError(
            f"{what} leaves {np.count_nonzero(chosen):,} of {counted(len(runs), 'run')} and "
            f"{left} of {counted(int(counts.sum()), 'row')}"
        )


def _session_tag(session: Session) -> str:
    """Return the model tag from the session's facts, or else from its name, or else an empty text."""
    fact = session.meta.get("model_tag")
    if isinstance(fact, str):
        return fact
    match = SESSION_NAME.fullmatch(session.name)
    return match["tag"] if match else ""


def _session_start(session: Session) -> dt.datetime | None:
    """Return the start from the session's facts, or else from its name; None if neither has it."""
    match = SESSION_NAME.fullmatch(session.name)
    for text in (session.meta.get("started_at"), match["ts"] if match else None):
        if isinstance(text, str):
            with contextlib.suppress(ValueError):
                return _aware(text)
    return None


def _instant(value: str | None, name: str) -> dt.datetime | None:
    try:
        return None if value is None else _aware(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}; expected a date as 2026-11-21 or 2026-11-21T06:00") from error


def _aware(text: str) -> dt.datetime:
    found = dt.datetime.fromisoformat(text)
    return found if found.tzinfo is not None else found.replace(tzinfo=dt.UTC)


def _by_sql(condition: str, runs: NDArray[np.void], sessions: Sequence[Session]) -> NDArray[np.bool_]:
    read: set[str] = set()
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.execute(f"CREATE TABLE runs(ordinal INTEGER PRIMARY KEY, {', '.join(FILTER_COLUMNS)})")
        for limit, value in _LIMITS.items():
            database.setlimit(limit, value)
        # The newline ends a comment. The probe refuses a text that closes the brackets to leave the
        # expression, such as "1) LIMIT (5".
        expression = f"({_QUOTED.sub(_backquoted, condition)}\n)"
        query = f"SELECT ordinal FROM runs WHERE {expression}"  # noqa: S608 - conditions are SQL
        probe = f"SELECT CASE WHEN {expression} THEN 1 END FROM runs"  # noqa: S608
        _only_reading(database, read)
        try:
            for statement in (query, probe):
                database.execute(f"EXPLAIN {statement}").fetchall()
            database.set_authorizer(None)
            _fill(database, sorted(read & set(FILTER_COLUMNS)), runs, sessions)
            _only_reading(database, read)
            chosen = np.zeros(len(runs), np.bool_)
            with limited_work(database, OPERATIONS_BASE + OPERATIONS_PER_RUN * len(runs)):
                chosen[[row[0] for row in database.execute(query)]] = True
        except (sqlite3.Error, sqlite3.Warning, ValueError, UnicodeError) as error:
            raise _refused(condition, error) from error
    return chosen


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


def _fill(
    database: sqlite3.Connection, columns: list[str], runs: NDArray[np.void], sessions: Sequence[Session]
) -> None:
    """Copy the columns that the condition reads."""
    values: list[list[Any]] = [list(range(len(runs)))]
    for name in columns:
        if name in _SESSION_COLUMNS:
            facts = [_session_fact(session, name) for session in sessions]
            values.append([facts[owner] for owner in runs["session"].tolist()])
        else:
            values.append(runs[name].astype(np.int64).tolist())  # signed, as in metadata.db
    database.execute("BEGIN")
    rows = zip(*values, strict=True)
    insert_rows(database, "runs", ["ordinal", *columns], itertools.chain.from_iterable(rows))
    database.execute("COMMIT")


def _session_fact(session: Session, name: str) -> str | None:
    if name == "session":
        return session.name
    if name == "model":
        return _session_tag(session)
    start = _session_start(session)
    return None if start is None else start.astimezone(dt.UTC).strftime("%Y-%m-%dT%H:%M:%SZ")


def _refused(condition: str, error: Exception) -> ConfigError:
    message = str(error)
    hint = f"columns: {', '.join(FILTER_COLUMNS)}"
    code = getattr(error, "sqlite_errorcode", 0) & 0xFF
    unknown = re.match(r"no such column: \"?(\w+)", message)
    if unknown:
        near = difflib.get_close_matches(unknown[1], FILTER_COLUMNS, 1)
        if near:
            hint = f"did you mean {near[0]}? {hint}"
        elif any((match["name"] or "").startswith(unknown[1]) for match in _QUOTED.finditer(condition)):
            hint = f"text stands in single quotes; {hint}"
    elif code == sqlite3.SQLITE_AUTH:
        hint = f"a condition can only compare columns of the run table; {hint}"
    elif code == sqlite3.SQLITE_INTERRUPT:
        message = "it takes more work than a condition on so many runs can need"
    return ConfigError(f"the condition {condition[:200]!r} is refused: {message}", hint=hint)
