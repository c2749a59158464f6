"""Filters of runs: named filters, masks, and conditions in SQL.

SQLite evaluates a condition on a table in memory, with copies of the columns that the condition names. An
authorizer allows only reads of that table, and calls of functions without side effects.
"""

from __future__ import annotations

import contextlib
import datetime as dt
import difflib
import functools
import re
import sqlite3
from typing import TYPE_CHECKING, Any, TypeAlias, TypedDict

import numpy as np

from tape2048.base.text import counted, iso_seconds, utc_text
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.files.sqlite import limited_work
from tape2048.files.sqlite_writer import insert_rows
from tape2048.loader.run_columns import facts_of_runs
from tape2048.players import is_called, player_label, player_name
from tape2048.session.batch_fields import field_of
from tape2048.session.former_names import first_hint, name_hint
from tape2048.session.layout import SESSION_NAME
from tape2048.session.recorded_order import order_of, session_start

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Mapping, Sequence

    from numpy.typing import NDArray

    from tape2048.loader.run_columns import RunColumns
    from tape2048.session.recorded_order import Named


#: The values of each run by column name, made when a filter needs them. Times are in seconds since 1970.
Columns: TypeAlias = "Mapping[str, Callable[[], NDArray[Any]]]"

#: The columns that are times.
TIMES = ("started",)

#: Limits of SQLite that bound each operation of a condition; :func:`limited_work` counts the operations. The
#: length of a text leaves room for the facts of any session. LIKE takes time in proportion to text times
#: pattern.
_LIMITS = {
    sqlite3.SQLITE_LIMIT_LENGTH: 10_000,
    sqlite3.SQLITE_LIMIT_LIKE_PATTERN_LENGTH: 100,
    sqlite3.SQLITE_LIMIT_EXPR_DEPTH: 500,
    sqlite3.SQLITE_LIMIT_FUNCTION_ARG: 16,
    sqlite3.SQLITE_LIMIT_COMPOUND_SELECT: 8,
    sqlite3.SQLITE_LIMIT_SQL_LENGTH: 1_000_000,
    sqlite3.SQLITE_LIMIT_VDBE_OP: 1_000_000,
}

#: Most operations of SQLite's virtual machine for a condition, and more for each run. A condition of ten
#: comparisons takes 40 for each run. A condition with a subquery over all runs for each run may never end.
OPERATIONS_BASE = 10_000_000
OPERATIONS_PER_RUN = 10_000

#: A name in double quotes; or a string, a name in other quotes, or a comment, which may contain double
#: quotes.
_QUOTED = re.compile(r"""
    " (?P<name> (?: [^"] | "" )* ) "
    | ' (?: [^'] | '' )* ' | ` (?: [^`] | `` )* ` | \[ [^]]* \] | -- [^\n]* | /\* .*? (?: \*/ | \Z )
""", re.VERBOSE | re.DOTALL)  # fmt: skip

#: A token of a condition: a quoted text or name or a comment, as above, a word, an operator or a bracket.
_TOKEN = re.compile(
    rf"(?:{_QUOTED.pattern.replace('?P<name>', '?:')}) | \w+ | <=|>=|<>|!=|==|<<|>>|\|\| | [^\s\w]",
    re.VERBOSE | re.DOTALL,
)
_COMPARING = frozenset({"=", "==", "<>", "!=", "<", "<=", ">", ">="})
#: Tokens after a time, and tokens before it, that compare it with a value.
_TIME_FIRST = _COMPARING | {"IS", "ISNULL", "NOTNULL", "IN", "BETWEEN", "NOT"}
_TIME_LAST = _COMPARING | {"IS", "FROM", "BY", "CASE"}  # IS DISTINCT FROM, ORDER BY, CASE started WHEN
#: Tokens that would use a time as text.
_OF_TEXT = frozenset({*"+-*/%&|~", "<<", ">>", "||", "COLLATE", "LIKE", "GLOB", "REGEXP", "MATCH"})
#: Functions that take a time.
_OF_TIMES = ("julianday", "unixepoch", "strftime", "date", "time", "datetime")
#: Words before a bracket that does not start the arguments of a function.
_NO_CALL = re.compile("AND|OR|NOT|IN|IS|BETWEEN|CASE|WHEN|THEN|ELSE|WHERE|SELECT|EXISTS")

#: Words that mean the table of all runs.
_OF_ALL_RUNS = re.compile(r"\b(select|run)\b", re.IGNORECASE)

_REFUSED_FUNCTIONS = frozenset({"load_extension", "writefile", "readfile", "printf", "format"})
_ALLOWED_ACTIONS = frozenset({sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION})


class Filters(TypedDict, total=False):
    """The named filters of ``Corpus.where``. A run must pass all of them.

    Args:
        min_score, max_score: bounds of the final score, inclusive, as are the other bounds.
        min_steps, max_steps: bounds of the number of moves.
        min_highest_tile, max_highest_tile: bounds of the highest tile, such as 8192.
        model: tag of the model, or several tags.
        player: name that ``tape2048 list`` shows, its first words, or ``ntuple@0123456789ab``; or several.
        since: first start of a run, ISO 8601, UTC by default.
        until: end of the starts, exclusive.
    """

    min_score: int | np.integer[Any] | None
    max_score: int | np.integer[Any] | None
    min_steps: int | np.integer[Any] | None
    max_steps: int | np.integer[Any] | None
    min_highest_tile: int | np.integer[Any] | None
    max_highest_tile: int | np.integer[Any] | None
    model: str | Collection[str] | None
    player: str | Collection[str] | None
    since: str | dt.date | None
    until: str | dt.date | None


def check_filters(filters: Mapping[str, Any]) -> dict[str, Any]:
    """Return filters that are not None, dates as text and names as tuples; ValueError for invalid ones."""
    if hint := first_hint(filters.keys() - Filters.__annotations__.keys()):
        raise ValueError(f"filters {filters!r}: {hint}")
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
            raise ValueError(f"filters {filters!r}: found {name}={value!r}, expected the filters {names}")
    return found


def session_columns(runs: NDArray[np.void] | RunColumns, sessions: Sequence[Named]) -> Columns:
    """Return the columns of runs, with the facts of the sessions that ``runs["session"]`` indexes."""

    def spread(
        fact: Callable[[Named], Any], of_run: Callable[[Any], NDArray[Any]] | None = None, dtype: Any = object
    ) -> NDArray[Any]:
        values: NDArray[Any] = np.array([fact(session) for session in sessions], dtype)[runs["session"]]
        for ordinal, session in enumerate(sessions):
            if of_run is not None and (dataset := getattr(session, "dataset", None)) is not None:
                mine = runs["session"] == ordinal
                values[mine] = of_run(dataset.table)[dataset.table.ordinals(runs["run_id"][mine])]
        return values

    def players(named: Callable[[Mapping[str, Any]], str]) -> NDArray[Any]:
        facts, index = facts_of_runs(runs, sessions)
        names: NDArray[Any] = np.array([named(each) for each in facts], object)[index]
        return names

    numbers = ("run_id", "seed", "steps", "score", "highest_tile", "rows")
    return {
        "run": lambda: np.arange(len(runs)),
        **{name: functools.partial(runs.__getitem__, name) for name in numbers},
        "session": lambda: spread(lambda session: session.name),
        "model": lambda: spread(_session_tag, lambda table: np.array(table.engine_names(), object)),
        "player": functools.partial(players, player_label),
        "player_name": functools.partial(players, player_name),
        "started": lambda: spread(session_start, lambda table: table.starts(), np.float64),
    }


def choose_runs(
    where: str | NDArray[np.bool_] | None,
    filters: Mapping[str, Any],
    columns: Columns,
    count: int,
    *,
    stop: Callable[[], bool] = lambda: False,
) -> NDArray[np.bool_]:
    """Return a mask of the runs that pass a condition or mask, and all filters; ``stop`` interrupts it."""
    chosen = np.ones(count, np.bool_)
    for name, value in filters.items():
        bound, _, of = name.partition("_")
        if name == "player":
            texts = columns[name]()
            several = set(zip(texts.tolist(), columns["player_name"]().tolist(), strict=True))
            named = [pair[0] for pair in several if any(is_called(each, *pair) for each in value)]
            chosen &= np.isin(texts, np.array(named, object))
        elif name == "model":
            texts, begins = columns[name](), tuple(f"{each}{mark}" for each in value for mark in "@:")
            named = [each for each in set(texts.tolist()) if each in value or (each or "").startswith(begins)]
            chosen &= np.isin(texts, np.array(named, object))
        elif bound == "min":
            chosen &= columns[of]() >= value
        elif bound == "max":
            chosen &= columns[of]() <= value
        elif name == "since":
            chosen &= columns["started"]() >= _instant(value, name)
        else:
            chosen &= columns["started"]() < _instant(value, name)
    if isinstance(where, str):
        chosen &= _by_sql(where, columns, count, stop)
    elif where is not None:
        chosen &= _checked_mask(where, count)
    return chosen


def _checked_mask(where: Any, count: int) -> NDArray[np.bool_]:
    mask = np.asarray(where)
    if mask.dtype != np.bool_ or mask.shape != (count,):
        raise ValueError(
            f"found a mask of {mask.dtype} and shape {mask.shape}, expected bool of shape ({count},), "
            "an entry for each run"
        )
    return mask


def choose_from(
    where: str | NDArray[np.bool_] | None, filters: Mapping[str, Any], runs: RunColumns
) -> NDArray[np.bool_]:
    """Select runs as :func:`choose_runs` does, for some sessions at a time to save memory."""
    if isinstance(where, str) and _OF_ALL_RUNS.search(where):
        return choose_runs(where, filters, session_columns(runs, runs.sessions), len(runs))
    condition = where if isinstance(where, str) else None
    chosen = runs.each(
        lambda table: choose_runs(condition, filters, session_columns(table, runs.sessions), len(table))
    )
    return chosen if where is condition else chosen & _checked_mask(where, len(runs))


def _session_tag(session: Named) -> str:
    """Return the model tag from the session's facts or, without it, from its name; empty if unknown."""
    fact, match = session.meta.get("model_tag"), SESSION_NAME.fullmatch(session.name)
    return fact if isinstance(fact, str) else match["tag"] if match else ""


def newest_sessions(runs: RunColumns, rows: NDArray[Any], rows_min: float) -> list[int]:
    """Return the ordinals of the sessions recorded last that have ``rows_min`` of the ``rows`` together.

    ``runs`` are all runs of the sessions.
    """
    newest = order_of(runs.sessions, np.split(runs["run_id"], runs.firsts[1:-1]))[::-1]
    return sorted(newest[: 1 + int(np.searchsorted(np.cumsum(rows[newest]), rows_min))])


def _instant(value: str, name: str) -> float:
    try:
        return iso_seconds(value)
    except ValueError as error:
        raise ValueError(f"{name}={value!r}; expected a date like 2026-11-21 or 2026-11-21T06:00") from error


def as_instant(text: str) -> float:
    """Parse ISO 8601, by default in UTC, or seconds since 1970, into seconds; ValueError for other text."""
    try:
        return iso_seconds(text)
    except ValueError as error:
        if re.fullmatch(r"-?\d+(\.\d+)?(e\+?\d+)?", text, re.ASCII):
            return float(text)
        found = f"a time is compared with {text!r:.40}"
        raise ValueError(f"{found}; expected 2026-11-21T06:00:00Z, or seconds since 1970") from error


def _check_times(condition: str) -> None:
    """Raise ConfigError for a condition that uses a time as a number or as plain text.

    SQLite has no type for times: the column is text, with a collation that compares instants. Operators and
    functions would see the text, so ``started + 0`` would be the year.
    """
    tokens = [one[0] for one in _TOKEN.finditer(condition) if not one[0].startswith(("--", "/*"))]
    words = [token if token[0] == "'" else token.strip('"`[]').upper() for token in tokens]
    words = ["", *words, "", ""]
    calls: list[str] = []  # of each open bracket, the function before it
    for at, word in enumerate(words):
        if word == "(":
            before = words[at - 1]
            calls.append(before.lower() if before.isidentifier() and not _NO_CALL.fullmatch(before) else "")
        elif word == ")" and calls:
            calls.pop()
        elif word.lower() in TIMES and not _is_time(words, at, calls):
            found = f"found {' '.join(tokens[max(0, at - 3) : at + 2])!r:.80}"
            raise ConfigError(
                f"the condition {condition[:200]!r} is rejected: {found}, but {word.lower()} is a time, "
                "not a number or text",
                hint="Compare it with a time, as in started >= '2026-11-21 06:00', or seconds since 1970. "
                f"Or pass it to a function of times: {', '.join(_OF_TIMES)}.",
            )


def _is_time(words: list[str], at: int, calls: list[str]) -> bool:
    first, last, depth = at - 1, at + 1, len(calls)
    while words[first] == ".":  # runs.started
        first -= 2
    while words[first] == "(" and words[last] == ")" and not calls[depth - 1]:
        first, last, depth = first - 1, last + 1, depth - 1
    ends = words[first], words[last]
    if ends[0] in {"(", ","} and ends[1] in {")", ","} and depth:
        return calls[depth - 1] in _OF_TIMES
    is_compared = ends[0] in _TIME_LAST or ends[1] in _TIME_FIRST
    return is_compared and _OF_TEXT.isdisjoint({*ends, words[last + 1]})


def _by_sql(condition: str, columns: Columns, count: int, stop: Callable[[], bool]) -> NDArray[np.bool_]:
    _check_times(condition)
    read: set[str] = set()
    no_times: list[ValueError] = []
    instant = functools.cache(as_instant)

    def in_time(one: str, other: str) -> int:
        try:
            return (instant(one) > instant(other)) - (instant(one) < instant(other))
        except ValueError as error:  # SQLite would drop it
            no_times.append(error)
            return 0

    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as database:
        database.create_collation("in_time", in_time)
        # By the type TEXT, SQLite turns a number that is compared with a time into text for the collation.
        typed = [f"{name} TEXT COLLATE in_time" if name in TIMES else name for name in columns]
        database.execute(f"CREATE TABLE runs(ordinal INTEGER PRIMARY KEY, {', '.join(typed)})")
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
            chosen = np.zeros(count, np.bool_)
            with limited_work(database, OPERATIONS_BASE + OPERATIONS_PER_RUN * count, stop):
                database.execute("BEGIN")
                insert_rows(database, "runs", ["ordinal", *names], values)
                database.execute("COMMIT")
                _only_reading(database, read)
                chosen[[row[0] for row in database.execute(query)]] = True
            if no_times:
                raise no_times[0]
        except (sqlite3.Error, sqlite3.Warning, ValueError, RecursionError) as error:
            raise _refused(condition, error, list(columns)) from error
    return chosen


def _sql_values(column: NDArray[Any]) -> list[Any]:
    """Return a column for SQLite: signed integers, as in metadata.db, and times as text or null."""
    if column.dtype != np.float64:
        found: list[Any] = (column if column.dtype == object else column.astype(np.int64)).tolist()
        return found
    moments, which = np.unique(column, return_inverse=True)
    texts = [utc_text(each) for each in moments.tolist()]  # None for NaN, too
    return [texts[each] for each in which.tolist()]


def _backquoted(match: re.Match[str]) -> str:
    """Put a name into backquotes, since SQLite takes an unknown name in double quotes for text."""
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
        # printf takes time in proportion to its precision, which no limit bounds.
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
        if renamed := name_hint(unknown[1]):
            hint = renamed
        elif field_of(unknown[1].lower()):
            hint = f"{unknown[1]} is of a row: select rows with corpus.rows_where({condition!r:.200})"
        elif near:
            hint = f"did you mean {near[0]}? {hint}"
        elif any((match["name"] or "").startswith(unknown[1]) for match in _QUOTED.finditer(condition)):
            hint = f"put text in single quotes; {hint}"
    elif code == sqlite3.SQLITE_AUTH:
        hint = f"a condition can only compare columns of the run table; {hint}"
    elif code == sqlite3.SQLITE_INTERRUPT:
        message = "it takes too much work for this number of runs"
    return ConfigError(f"the condition {condition[:200]!r} is rejected: {message}", hint=hint)


def check_some(
    rows: NDArray[Any], chosen: NDArray[np.bool_], what: str, hint: Callable[[], str] | None = None
) -> None:
    """Raise EmptyCorpusError if no chosen run has rows; ``what`` names the selection."""
    if not rows[chosen].any():
        raise EmptyCorpusError(
            f"{what} leaves {np.count_nonzero(chosen):,} of {counted(len(rows), 'run')} and "
            f"0 of {counted(int(rows.sum(dtype=np.int64)), 'row')}",
            hint=None if hint is None else hint(),
        )
