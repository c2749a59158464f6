"""What a corpus shows people: its games one by one, its players, and a table of both."""

from __future__ import annotations

import copy
import html
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.notebook import frame_of
from tape2048.base.resources import ram_available
from tape2048.base.text import aligned, counted, html_table, printable
from tape2048.errors import CorpusError
from tape2048.loader.run_columns import facts_of_runs
from tape2048.players import identity_of_player, player_label
from tape2048.session.column_draft import shared_columns
from tape2048.session.games import Game
from tape2048.session.tiles_shown import tiles_shown

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.loader.row_view import ViewTables
    from tape2048.players import PlayedBy
    from tape2048.session.columns import ColumnInfo
    from tape2048.session.session import Session


class PlayerGames(NamedTuple):
    player: str  #: full name; selects the games with ``where(player=...)``
    spec: str  #: the player with its parameters, as ``record --player`` takes it; empty if unknown
    games: int  #: number of games
    rows: int  #: rows of these games in the view
    mean_score: float  #: mean final score


class PlayerTable(tuple[PlayerGames, ...]):
    """The players of a corpus, starting with the player of the most games. Prints as a table."""

    __slots__ = ()

    def _cells(self) -> list[tuple[str, ...]]:
        numbers = ((f"{one.games:,}", f"{one.rows:,}", f"{one.mean_score:,.0f}") for one in self)
        names = (printable(one.player) for one in self)
        cells = [(*row, name) for row, name in zip(numbers, names, strict=True)]
        return [("games", "rows", "mean score", "player"), *cells]

    def __repr__(self) -> str:
        cells = self._cells()
        widths = [max(map(len, column)) for column in zip(*cells, strict=True)][:3]
        return "\n".join("  ".join([*map(str.rjust, row, widths), row[3]]) for row in cells)

    def _repr_html_(self) -> str:
        rows = ("".join(f"<td>{html.escape(text)}</td>" for text in row) for row in self._cells())
        return f"<table>{''.join(f'<tr>{row}</tr>' for row in rows)}</table>"


def _reader_of(session: Session) -> Session | None:
    return copy.copy(session) if session.is_remote else None


def game_at(tables: ViewTables, run: int) -> Game:
    ordinal, own = tables.runs.place_of(run)
    session = tables.store.sessions[ordinal]
    return Game(session, own, run, _reader_of(session))


def games_of(tables: ViewTables) -> Iterator[Game]:
    runs = tables.runs
    for ordinal in np.flatnonzero(np.diff(runs.firsts)).tolist():
        session = tables.store.sessions[ordinal]
        chosen, reader = runs.chosen_of([ordinal]), _reader_of(session)
        first, end = runs.firsts[[ordinal, ordinal + 1]].tolist()
        for i in range(end - first):
            yield Game(session, i if chosen is None else int(chosen[i]), first + i, reader)
        if not runs.in_memory:
            session.drop_runs()


def columns_of(tables: ViewTables) -> dict[str, ColumnInfo]:
    used = np.flatnonzero(np.diff(tables.runs.firsts)).tolist()
    return shared_columns([tables.store.sessions[ordinal].columns for ordinal in used])[0]


def _by_player(tables: ViewTables) -> tuple[list[PlayedBy], NDArray[np.int64]]:
    """Return the players, and the index of each run's player: ``i64[R]``."""
    found = tables.runs.players()
    place = {(one.sha256 or one.name): number for number, one in enumerate(found)}

    def index_of(table: NDArray[np.void]) -> NDArray[np.int64]:
        facts, index = facts_of_runs(table, tables.store.sessions)
        of_facts = [place.get(sha256 or name, 0) for name, sha256 in map(identity_of_player, facts)]
        return np.array(of_facts)[index]

    return found, tables.runs.each(index_of).astype(np.int64)


def players_of(tables: ViewTables, row_counts: NDArray[np.int64]) -> PlayerTable:
    found, player = _by_player(tables)
    counts = [np.bincount(player, given, len(found)) for given in (row_counts, tables.runs["score"])]
    return PlayerTable(
        PlayerGames(one.player_name, one.name, one.games, int(rows), float(score) / one.games)
        for one, rows, score in zip(found, *counts, strict=True)
    )


class Description:
    """A table of the games of a corpus, with a line for each player. Prints as a table."""

    def __init__(self, title: str, headings: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
        self.title, self.headings, self.rows = title, tuple(headings), tuple(rows)

    def __repr__(self) -> str:
        return f"{self.title}\n{aligned(self.headings, self.rows)}".rstrip()

    def _repr_html_(self) -> str:
        return html_table(self.title, self.headings, self.rows)


def describe(tables: ViewTables, title: str, row_counts: NDArray[np.int64]) -> Description:
    players, player = _by_player(tables)
    scores, steps, exponents = tables.runs["score"], tables.runs["steps"], tables.exponents
    parts: list[tuple[Any, str]] = [(player == i, one.player_name) for i, one in enumerate(players)]
    parts += [(slice(None), "all players")] if len(players) > 1 else []
    reach = [{exp: float((exponents[mine] >= exp).mean()) for exp in range(5, 17)} for mine, _ in parts]
    tiles = tiles_shown(reach[: len(players)])

    def line(mine: Any, name: str, reached: dict[int, float]) -> tuple[str, ...]:
        score = scores[mine]
        facts = (len(score), row_counts[mine].sum(), *(f(score) for f in (np.mean, np.median, np.max)))
        numbers = (f"{fact:,.0f}" for fact in (*facts, steps[mine].mean()))
        return (*numbers, *(f"{reached[exp]:.1%}" for exp in tiles), printable(name))

    lines = [line(*part, shares) for part, shares in zip(parts, reach, strict=True)]
    headings = (">games", ">rows", ">mean score", ">median", ">best", ">moves a game")
    return Description(title, (*headings, *(f">{1 << exp}" for exp in tiles), "player"), lines)


def runs_frame(runs: NDArray[np.void], sessions: Sequence[Session]) -> Any:
    frame = frame_of({name: runs[name] for name in runs.dtype.names or ()})
    import pandas as pd

    labels, codes = np.unique([player_label(one.meta) for one in sessions], return_inverse=True)
    return frame.assign(
        session=pd.Categorical.from_codes(runs["session"], [session.name for session in sessions]),
        player=pd.Categorical.from_codes(codes[runs["session"]], labels),
    )


def check_room(rows: int, row_bytes: int) -> None:
    """Raise CorpusError for a frame that the free memory cannot hold beside the arrays it is made of."""
    needed, free = 2 * rows * row_bytes, ram_available()
    if needed > free:
        text = f"{counted(rows, 'row')} take {needed / 1e9:.1f} GB as a frame; found {free / 1e9:.1f} GB free"
        raise CorpusError(text, hint="Pass n=1000, call sample(1000).to_pandas(), or use `tape2048 export`.")
