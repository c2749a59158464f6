"""Selections of games: by session, player, named filters and a condition in SQL; and pages of sorted games.

Most conditions compare numbers, and NumPy evaluates those a hundred times faster than SQLite, which would get
a copy of each column first. Any other condition is SQLite's, by the same function as :meth:`Corpus.where`.
"""

from __future__ import annotations

import math
import operator
import re
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from tape2048.selection.filters import NamedFilters, choose_runs, named_filters, session_columns

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tape2048_tools.viewer.collection import Games

#: Columns by which games can be sorted.
SORTS = ("max_score", "steps", "highest_tile", "id", "session")

PAGE_ROWS = 50

#: Games that are compared at a time: what comes of it stays in the processor's cache.
_PIECE_GAMES = 1 << 17

#: Values from which the places of a page's values are estimated.
_SAMPLE = 16_384

_TOKEN = re.compile(r"\s*(?:(?P<number>-?\d+)|(?P<name>[A-Za-z_]+)|(?P<sign><=|>=|<>|!=|==|[<>=(),]))")
_COMPARE: dict[str, Callable[[Any, Any], Any]] = {
    "<": operator.lt, "<=": operator.le, ">": operator.gt, ">=": operator.ge,
    "=": operator.eq, "==": operator.eq, "!=": operator.ne, "<>": operator.ne,
}  # fmt: skip
_NUMBERS = frozenset({"id", "seed", "steps", "max_score", "highest_tile", "rows"})
_INT64 = 1 << 63


class Selection(msgspec.Struct, frozen=True):
    """A choice of games.

    Attributes:
        where: a condition in SQL; empty: none.
        session: id of a session; empty: all.
        player: id of a player; empty: all.
        filters: the named filters.
    """

    where: str = ""
    session: str = ""
    player: str = ""
    filters: NamedFilters = NamedFilters()

    @classmethod
    def of(cls, given: Mapping[str, str], prefix: str = "") -> Selection:
        """Read a selection from the parameters of a link whose names begin with ``prefix``.

        Raises:
            ValueError: a parameter is not what it has to be.
        """
        named: dict[str, Any] = {}
        for name in NamedFilters.__struct_fields__:
            if text := given.get(prefix + name, "").strip():
                is_number = name.startswith(("min_", "max_"))
                if is_number and not re.fullmatch(r"\d{1,18}", text):
                    raise ValueError(f"{name}: found {text!r:.40}, expected a number")
                named[name] = int(text) if is_number else text
        where, session, player = (
            given.get(prefix + name, "").strip() for name in ("where", "session", "player")
        )
        return cls(where, session, player, named_filters(cast("Any", named)))

    @property
    def is_all(self) -> bool:
        """Whether it leaves nothing out."""
        return self == Selection()


def choose(games: Games, selection: Selection) -> NDArray[np.bool_] | None:
    """Return the games of a selection, ``bool[R]``; None: all.

    Raises:
        ConfigError: the condition is refused.
        ValueError: a named filter is invalid.
        MissingPathError: the session is gone.
    """
    if selection.is_all:
        return None
    quick = evaluate(selection.where, games) if selection.where else None
    slow = selection.where if selection.where and quick is None else None
    table = cast("Any", games)
    chosen = choose_runs(
        slow, selection.filters, session_columns(table, cast("Any", games.sessions)), len(table)
    )
    if quick is not None:
        chosen &= quick
    if selection.session:
        number = games.number(selection.session)
        mine = slice(games.starts[number], games.starts[number + 1])
        within = chosen[mine].copy()
        chosen[:] = False
        chosen[mine] = within
    if selection.player:
        of_player = [one.player_id == selection.player for one in games.sessions]
        chosen &= np.array(of_player, np.bool_)[games["session"]]
    return chosen


def page_of_games(
    games: Games, chosen: NDArray[np.bool_] | None, sort: str, page: int, *, descending: bool
) -> NDArray[np.int64]:
    """Return the numbers of the games on a page of the sorted list.

    Only the games of the page are sorted. Games of one value stand in their own order, so that no game
    stands on two pages.

    Args:
        games: all games.
        chosen: the games to list; None: all.
        sort: one of :data:`SORTS`.
        page: its number, from 0.
        descending: whether the greatest come first.
    """
    count = len(games) if chosen is None else int(np.count_nonzero(chosen))
    begin = min(page * PAGE_ROWS, count)
    end = min(begin + PAGE_ROWS, count)
    if sort != "session":
        return ranked(games[sort], begin, end, chosen=chosen, descending=descending)
    if descending:  # the order of the games, from its end
        begin, end = count - end, count - begin
    order = np.arange(begin, end) if chosen is None else np.flatnonzero(chosen)[begin:end]
    return order[::-1] if descending else order


def ranked(
    values: NDArray[Any],
    begin: int,
    end: int,
    *,
    chosen: NDArray[np.bool_] | None = None,
    descending: bool = False,
) -> NDArray[np.int64]:
    """Return the positions of the values from one rank up to another, ``i64[end - begin]``.

    As ``np.argsort(kind="stable")[begin:end]``; descending, equal values still stand in their order. Two
    values of a sample enclose those ranks, and only what lies between is sorted: partitioning ten million
    values takes ten times as long.

    Args:
        values: unsigned integers ``[n]``.
        begin: the first rank.
        end: the rank after the last.
        chosen: the values that have ranks, ``bool[n]``; None: all.
        descending: whether rank 0 is the greatest value.
    """
    if begin >= end:
        return np.empty(0, np.int64)
    count = len(values) if chosen is None else int(np.count_nonzero(chosen))
    first, last = (count - end, count - 1 - begin) if descending else (begin, end - 1)  # ascending ranks
    every = slice(None, None, max(1, len(values) // _SAMPLE))
    sample = np.sort(values[every] if chosen is None else values[every][chosen[every]])
    deviations = 4.0
    while True:
        low = _enclosing(sample, first / count, -deviations, 0)
        high = _enclosing(sample, last / count, deviations, np.iinfo(values.dtype).max)
        below, inside = _between(values, chosen, low, high)
        if below <= first and below + len(inside) > last:
            break
        deviations *= 4
    if low != high:  # the same among these few, with the values that have the ranks
        found = values[inside]
        low, high = np.partition(found, (first - below, last - below))[[first - below, last - below]]
        below += int(np.count_nonzero(found < low))
        kept = (found >= low) & (found <= high)
        inside, found = inside[kept], found[kept]
        if low != high:
            inside = inside[np.argsort(~found if descending else found, kind="stable")]
    at = begin - (count - below - len(inside)) if descending else begin - below
    return inside[at : at + end - begin]


def _enclosing(sample: NDArray[Any], share: float, deviations: float, beyond: int) -> Any:
    """Return the value of a sorted sample so many standard deviations from a quantile, or ``beyond`` it."""
    size = len(sample)
    off = 1 + abs(deviations) * math.sqrt(1 + size * share * (1 - share))
    at = math.floor(size * share + math.copysign(off, deviations))
    return sample[at] if 0 <= at < size else sample.dtype.type(beyond)


def _between(
    values: NDArray[Any], chosen: NDArray[np.bool_] | None, low: Any, high: Any
) -> tuple[int, NDArray[np.int64]]:
    """Return the number of chosen values below ``low``, and the positions of those from it to ``high``."""
    below, inside = 0, []
    for first in range(0, len(values), _PIECE_GAMES):
        piece = values[first : first + _PIECE_GAMES]
        less, within = piece < low, (piece >= low) & (piece <= high)
        if chosen is not None:
            less &= chosen[first : first + _PIECE_GAMES]
            within &= chosen[first : first + _PIECE_GAMES]
        below += int(np.count_nonzero(less))
        inside.append(np.flatnonzero(within) + first)
    return below, np.concatenate(inside)


def evaluate(condition: str, games: Games) -> NDArray[np.bool_] | None:
    """Evaluate a condition that only compares numbers, ``bool[R]``; None if it does anything else."""
    tokens: list[str] = []
    at = 0
    while at < len(condition.rstrip()):
        match = _TOKEN.match(condition, at)
        if match is None:
            return None
        tokens.append(match[0].strip())
        at = match.end()
    found = np.empty(len(games), np.bool_)
    try:
        for first in range(0, max(1, len(games)), _PIECE_GAMES):
            piece = slice(first, first + _PIECE_GAMES)
            found[piece] = _Comparison(tokens, games, piece).whole()
    except _OtherSqlError:
        return None
    return found


class _OtherSqlError(Exception):
    """The condition is more than comparisons of numbers."""


class _Comparison:
    """A condition, read from its tokens by descent."""

    def __init__(self, tokens: list[str], games: Games, piece: slice) -> None:
        self._tokens = [*tokens, ""]
        self._at = 0
        self._games = games
        self._piece = piece

    def whole(self) -> NDArray[np.bool_]:
        found = self._either()
        if self._word():
            raise _OtherSqlError
        return found

    def _word(self) -> str:
        return self._tokens[self._at].lower()

    def _take(self, *words: str) -> bool:
        if self._word() not in words:
            return False
        self._at += 1
        return True

    def _either(self) -> NDArray[np.bool_]:
        found = self._both()
        while self._take("or"):
            found = found | self._both()
        return found

    def _both(self) -> NDArray[np.bool_]:
        found = self._not()
        while self._take("and"):
            found = found & self._not()
        return found

    def _not(self) -> NDArray[np.bool_]:
        return ~self._not() if self._take("not") else self._compared()

    def _compared(self) -> NDArray[np.bool_]:
        if self._take("("):
            found = self._either()
            self._need(")")
            if self._word() not in {"", "and", "or", ")"}:
                raise _OtherSqlError  # a comparison of truth values
            return found
        left = self._value()
        if self._take("between"):
            low = self._value()
            self._need("and")
            return self._column_of(left, ">=", low) & self._column_of(left, "<=", self._value())
        negated = self._take("not")
        if self._take("in"):
            self._need("(")
            found = self._column_of(left, "=", self._value())
            while self._take(","):
                found = found | self._column_of(left, "=", self._value())
            self._need(")")
            return ~found if negated else found
        sign = self._word()
        if negated or sign not in _COMPARE:
            raise _OtherSqlError
        self._at += 1
        found = self._column_of(left, sign, self._value())
        if self._word() in _COMPARE:
            raise _OtherSqlError
        return found

    def _need(self, word: str) -> None:
        if not self._take(word):
            raise _OtherSqlError

    def _value(self) -> Any:
        word = self._word()
        self._at += 1
        if word in _NUMBERS:
            column = self._games[word][self._piece]
            return column.view(np.int64) if column.dtype == np.uint64 else column  # signed, as in metadata.db
        if re.fullmatch(r"-?\d+", word) and -_INT64 <= int(word) < _INT64:
            return int(word)
        self._at -= 1
        raise _OtherSqlError

    def _column_of(self, left: Any, sign: str, right: Any) -> NDArray[np.bool_]:
        if isinstance(left, int) and isinstance(right, int):
            raise _OtherSqlError
        found: NDArray[np.bool_] = _COMPARE[sign](left, right)
        return found
