"""Selections of games: by session, player, named filters and a condition in SQL; and pages of sorted games.

Most conditions compare numbers, and NumPy evaluates those a hundred times faster than SQLite, which would get
a copy of each column first. Any other condition is SQLite's, by the same function as :meth:`Corpus.where`.
"""

from __future__ import annotations

import operator
import re
from typing import TYPE_CHECKING, Any, cast

import msgspec
import numpy as np

from tape2048.store.filters import NamedFilters, choose_runs, named_filters

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from numpy.typing import NDArray

    from tape2048_tools.viewer.collection import Games

#: Columns by which games can be sorted.
SORTS = ("max_score", "steps", "highest_tile", "id", "session")

PAGE_ROWS = 50

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
        FilterError: the condition is refused.
        ValueError: a named filter is invalid.
        MissingPathError: the session is gone.
    """
    if selection.is_all:
        return None
    quick = evaluate(selection.where, games) if selection.where else None
    slow = selection.where if selection.where and quick is None else None
    table = cast("Any", games)
    chosen = choose_runs(slow, selection.filters, table, cast("Any", games.sessions))
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

    Only the games up to the page are sorted. Games of one value stand in their own order, so that no game
    stands on two pages.

    Args:
        games: all games.
        chosen: the games to list; None: all.
        sort: one of :data:`SORTS`.
        page: its number, from 0.
        descending: whether the greatest come first.
    """
    begin = page * PAGE_ROWS
    if sort == "session":  # the order of the games
        every = np.arange(len(games)) if chosen is None else np.flatnonzero(chosen)
        return (every[::-1] if descending else every)[begin : begin + PAGE_ROWS]
    numbers = None if chosen is None else np.flatnonzero(chosen)
    values = games[sort] if numbers is None else games[sort][numbers]
    end = min(begin + PAGE_ROWS, len(values))
    if begin >= end:
        return np.empty(0, np.int64)
    if values.dtype.itemsize > 4 and values.max() < 1 << 32:
        values = values.astype(np.uint32)
    if descending:
        values = ~values
    # The values at the ends of the page; then only what lies between them is sorted.
    ranked = np.partition(values, (begin, end - 1))
    low, high = ranked[begin], ranked[end - 1]
    inside = np.flatnonzero((values >= low) & (values <= high))
    before = int(np.count_nonzero(values < low))
    if low != high:
        inside = inside[np.argsort(values[inside], kind="stable")]
    order = inside[begin - before : end - before]
    return order if numbers is None else numbers[order]


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
    try:
        return _Comparison(tokens, games).whole()
    except _OtherSqlError:
        return None


class _OtherSqlError(Exception):
    """The condition is more than comparisons of numbers."""


class _Comparison:
    """A condition, read from its tokens by descent."""

    def __init__(self, tokens: list[str], games: Games) -> None:
        self._tokens = [*tokens, ""]
        self._at = 0
        self._games = games

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
            column = self._games[word]
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
