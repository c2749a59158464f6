"""Detection of games that run tables hold more than once, such as a session and its copy, repacked or merged.

Copies of a game have the same player, seed and outcome. If a session does not record the player's SHA-256,
equal seeds prove nothing: games of two such sessions are the same if the whole run tables are equal.

A corpus takes each game from one session, and leaves it out of the others. The first difference decides:

1. the most rows of the game, since sampled sessions lack some rows;
2. a recorded session, not a conversion;
3. the most columns, without fields whose values are all 0;
4. a session on tape, whose rows take the least memory.

:class:`tape2048.runs.games.SeenGames` compares runs, which have no run table.
"""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any, Protocol

import msgspec
import numpy as np

from tape2048.base.text import counted, printable
from tape2048.jit.mix import mix64
from tape2048.loader.run_columns import RunColumns, facts_of_runs
from tape2048.loader.splits import player_key
from tape2048.session.columns import Columns
from tape2048.session.recorded_order import Named

if TYPE_CHECKING:
    from collections.abc import Collection, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.session.session import Session

_OUTCOME = ("steps", "score", "highest_tile")
_NAMED = 5  # pairs that a message names
_SAMPLE_ROWS = 4096  # of a field, to see whether it holds something
_AGAIN = "which come more than once"


class Holder(Named, Protocol):
    @property
    def path(self) -> Path:
        """Its directory or file."""

    @property
    def runs(self) -> NDArray[np.void]:
        """Its run table."""

    @property
    def tape(self) -> object:
        """None for a session of rows."""

    @property
    def columns(self) -> Collection[str]:
        """The names of its columns; :class:`Columns` of a session whose rows have fields."""


class Doubled(msgspec.Struct, frozen=True):
    """Games that are left out of ``session``, because ``also_in`` holds them, too.

    ``why`` gives the reason for the preference, as a relative clause without "which", and the columns that
    ``also_in`` lacks.
    """

    session: str
    also_in: str
    games: int
    why: str


class Copies:
    """Games that sessions hold more than once, by preference; the first ``held`` sessions come before all."""

    def __init__(self, runs: Any, sessions: Sequence[Holder], held: int = 0) -> None:
        self._sessions, self._count, self._held = sessions, len(runs), held
        self._runs = self._game = self._owner = np.empty(0, np.int64)
        if not sessions:
            return
        hashes = (
            runs.each(lambda table: _game_hashes(table, sessions))
            if isinstance(runs, RunColumns)
            else (_game_hashes(runs, sessions))
        )
        ordered = np.sort(hashes)
        twice = ordered[1:][ordered[1:] == ordered[:-1]]
        if not len(twice):
            return
        some = np.flatnonzero(twice[np.searchsorted(twice[:-1], hashes)] == hashes)
        owner, rows = runs["session"][some].astype(np.int64), runs["rows"][some].astype(np.int64)
        self._columns = {one: _filled(sessions[one].columns) for one in np.unique(owner).tolist()}
        liked = sorted(self._columns, key=lambda one: (*self._merits(one), one))
        rank = np.empty(len(sessions), np.int64)
        rank[liked] = np.arange(len(liked))
        rows[owner < held] = np.iinfo(np.int64).max
        order = np.lexsort((rank[owner], -rows, hashes[some]))
        self._runs, self._owner, self._rows = some[order], owner[order], rows[order]
        of_game = hashes[self._runs]
        self._game = np.append(0, np.cumsum(of_game[1:] != of_game[:-1]))

    def _merits(self, session: int) -> tuple[bool, int, bool]:
        """Return a sort key of sessions with equally many rows of a game: the smallest is preferred."""
        facts = self._sessions[session].meta  # empty for a data set
        is_made = not facts or "converted_from" in facts
        return is_made, -len(self._columns[session]), self._sessions[session].tape is None

    def left_out(self, chosen: NDArray[np.bool_] | None = None) -> tuple[NDArray[np.bool_], list[Doubled]]:
        """Return a mask of the chosen runs (None: all) to leave out, and their number by pair of sessions."""
        mask = np.zeros(self._count, np.bool_)
        kept = np.arange(len(self._runs)) if chosen is None else np.flatnonzero(chosen[self._runs])
        if not len(kept):
            return mask, []
        game, owner, rows = self._game[kept], self._owner[kept], self._rows[kept]
        is_first = np.append(True, game[1:] != game[:-1])
        first = np.maximum.accumulate(np.where(is_first, np.arange(len(kept)), 0))
        is_out = ~is_first
        mask[self._runs[kept[is_out]]] = True
        size = len(self._sessions)
        pairs, which, games = np.unique(
            owner[is_out] * size + owner[first[is_out]], return_inverse=True, return_counts=True
        )
        fewer = np.bincount(which, rows[first[is_out]] > rows[is_out], len(pairs)) > 0
        found = zip(*np.stack(np.divmod(pairs, size)).tolist(), games.tolist(), fewer.tolist(), strict=True)
        return mask, [
            Doubled(self._place(one), self._place(other), count, self._why(one, other, has_fewer=has_fewer))
            for one, other, count, has_fewer in found
        ]

    def same_game(self, run: int) -> NDArray[np.int64]:
        game = self._game[self._runs == run]
        return self._runs[self._game == game[0]] if len(game) else np.array([run])

    def _place(self, session: int) -> str:
        one = self._sessions[session]
        return str(getattr(one, "address", one.path))  # not the name: names may be equal

    def _why(self, session: int, other: int, *, has_fewer: bool) -> str:
        mine, its = self._merits(session), self._merits(other)
        why = "comes first"
        if other < self._held:
            why = "has them already"
        elif has_fewer:
            why = "has more rows of them"
        elif mine[0] != its[0]:
            why = "is the original"
        elif mine[1] != its[1]:
            why = "has more columns"
        elif mine[2] != its[2]:
            why = "is on tape"
        lacking = sorted(self._columns[session] - self._columns[other])
        return f"{why}, but lacks {' and '.join(lacking)}" if lacking else why


def _filled(columns: Collection[str]) -> set[str]:
    """Return the columns that hold something: all but fields of rows that are 0 in a sample of the rows."""
    found = {*columns}
    if isinstance(columns, Columns) and columns.foreign is not None and columns.rows:
        sample = np.linspace(0, columns.rows - 1, _SAMPLE_ROWS).astype(np.int64)
        rows, made = columns.foreign.rows[columns.foreign.index_of(sample)], columns.foreign.made
        for name in filter(columns.is_field, columns):
            if not (made[name](rows) if name in made else rows[name]).any():
                found.remove(name)
    return found


def _game_hashes(runs: Any, sessions: Sequence[Holder]) -> NDArray[np.uint64]:
    """Return a hash of each run's game, ``u64[R]``: equal for runs of the same game."""
    facts, index = facts_of_runs(runs, sessions)
    players = [each.get("player_sha256") for each in facts]
    is_known = np.array([isinstance(sha, str) and sha != "" for sha in players])[index]
    keys = np.array([player_key(str(sha), "") for sha in players], np.uint64)[index]
    digests = np.zeros(len(sessions), np.uint64)
    for ordinal, session in enumerate(sessions):
        if (dataset := getattr(session, "dataset", None)) is not None:
            mine = runs["session"] == ordinal
            is_known[mine] &= dataset.table.identities.known[dataset.table.ordinals(runs["run_id"][mine])]
    for ordinal in np.unique(runs["session"][~is_known]).tolist():
        table = sessions[ordinal].runs
        text = b"".join(table[name].tobytes() for name in ("run_id", "seed", *_OUTCOME))
        digests[ordinal] = int.from_bytes(hashlib.sha256(text).digest()[:8], "little")
    keys[~is_known] = digests[runs["session"][~is_known]]
    hashes: NDArray[np.uint64] = mix64(mix64(np.where(is_known, runs["seed"], runs["run_id"]) + keys))
    for name, factor in zip(
        _OUTCOME, (0x9E3779B97F4A7C15, 0xC2B2AE3D27D4EB4F, 0x165667B19E3779F9), strict=True
    ):
        hashes ^= mix64(runs[name].astype(np.uint64) * np.uint64(factor))
    return hashes


def describe_doubled(several: Sequence[Doubled]) -> str:
    texts = [
        f"{counted(one.games, 'game')} of {printable(one.session)}, "
        + (f"also in {printable(one.also_in)}, which {one.why}" if one.session != one.also_in else _AGAIN)
        for one in several[:_NAMED]
    ]
    more = f"; and {len(several) - _NAMED} more pairs" if len(several) > _NAMED else ""
    return "; ".join(texts) + more


def warn_of_doubled(several: Sequence[Doubled], what: str = "left out") -> None:
    if several:
        logging.getLogger("tape2048").warning("%s: %s", what, describe_doubled(several))


def distinct_runs(sessions: Sequence[Session]) -> list[NDArray[np.bool_]]:
    """Return masks of the runs of each session without duplicates; log a warning about the duplicates."""
    doubled, several = Copies(RunColumns.of(sessions), sessions).left_out()
    warn_of_doubled(several)
    return np.split(~doubled, np.cumsum([one.run_count for one in sessions])[:-1])
