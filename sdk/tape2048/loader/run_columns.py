"""The run table of many sessions as columns, in memory or read from the sessions on demand."""

from __future__ import annotations

import weakref
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.players import PlayedBy, identity_of_player
from tape2048.session.layout import RUN_DTYPE

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.session.recorded_order import Named
    from tape2048.session.session import Session

#: Most games of a run table that stays in memory, at 44 bytes each. A larger table is read again from the
#: sessions, about this number of games at a time.
KEPT_RUNS = 1 << 20
_MASKED = 1 << 20  # entries of a mask that are converted to ordinals together

#: One run of a corpus: the ordinal of its session, and the session's row for the run.
CORPUS_RUN_DTYPE = np.dtype([("session", "<u4"), *RUN_DTYPE.descr])
assert CORPUS_RUN_DTYPE.itemsize == 44


class RunColumns:
    """The run table of sessions, or a selection of its runs. ``columns[name]`` has the shape ``[R]``.

    ``chosen`` are the ordinals of the selected runs, ascending; None: all. ``firsts`` (``i64[S + 1]``) is the
    first run of each session.
    """

    def __init__(
        self,
        sessions: Sequence[Session],
        counts: Sequence[int] | NDArray[np.int64],
        chosen: NDArray[np.uint32] | None = None,
        table: NDArray[np.void] | None = None,
    ) -> None:
        """Keep the arguments. ``counts`` are the runs of each session; ``table`` is for a table in memory."""
        self.sessions, self.chosen = sessions, chosen
        self._starts = np.append(0, np.cumsum(counts, dtype=np.int64))
        self.firsts = self._starts if chosen is None else np.searchsorted(chosen, self._starts)
        self._kept = table
        self._lent: weakref.ref[NDArray[np.void]] | None = None

    @classmethod
    def of(cls, sessions: Sequence[Session]) -> RunColumns:
        found = cls(sessions, [session.run_count for session in sessions])
        found._kept = found.read(0, len(sessions)) if len(found) <= KEPT_RUNS else None
        return found

    @classmethod
    def of_table(cls, sessions: Sequence[Session], table: NDArray[np.void]) -> RunColumns:
        return cls(sessions, np.bincount(table["session"], minlength=len(sessions)), None, table)

    @property
    def in_memory(self) -> bool:
        return self._kept is not None

    def take(self, chosen: NDArray[Any]) -> RunColumns:
        """Select runs by a mask or by ascending ordinals."""
        ordinals = (
            ordinals_of_mask(chosen) if chosen.dtype == np.bool_ else chosen.astype(np.uint32, copy=False)
        )
        ordinals = ordinals if self.chosen is None else self.chosen[ordinals]
        kept = None if self._kept is None else self._kept[chosen]
        return RunColumns(self.sessions, np.diff(self._starts), ordinals, kept)

    def chosen_of(self, owners: Sequence[int]) -> NDArray[np.int64] | None:
        """Return ordinals of the selected runs among all runs of some sessions; None: all runs."""
        if self.chosen is None:
            return None
        ends, found = np.cumsum([0, *(self._starts[each + 1] - self._starts[each] for each in owners)]), []
        for end, owner in zip(ends.tolist(), owners, strict=False):
            mine = self.chosen[self.firsts[owner] : self.firsts[owner + 1]].astype(np.int64)
            found.append(mine - self._starts[owner] + end)
        return np.concatenate([np.empty(0, np.int64), *found])

    def place_of(self, run: int) -> tuple[int, int]:
        """Return the session of a run, and the run's ordinal among all runs of that session."""
        own = run if self.chosen is None else int(self.chosen[run])
        session = int(np.searchsorted(self._starts, own, "right")) - 1
        return session, own - int(self._starts[session])

    def __len__(self) -> int:
        return int(self.firsts[-1])

    def __getitem__(self, name: str) -> NDArray[Any]:
        """Return a column. If the table is not in memory, the column is read from all sessions."""
        if self._kept is not None:
            return self._kept[name]
        if name == "session":
            return np.repeat(np.arange(len(self.sessions), dtype=np.uint32), np.diff(self.firsts))
        return self.each(lambda table: table[name])

    @property
    def table(self) -> NDArray[np.void]:
        """All columns, ``CORPUS_RUN_DTYPE[R]``, read-only; read again unless an earlier result is in use."""
        found = self._kept if self._lent is None else self._lent()
        if found is None:
            found = self.read(0, len(self.sessions))
            self._lent = weakref.ref(found)
        found.flags.writeable = False
        return found

    def players(self) -> list[PlayedBy]:
        """Return the players of the games, starting with the player of the most games."""
        found: dict[str, PlayedBy] = {}
        counts = np.diff(self.firsts).tolist()
        for ordinal, (session, games) in enumerate(zip(self.sessions, counts, strict=True)):
            pairs: list[tuple[Mapping[str, Any], int]] = [(session.meta, games)]
            if games and session.dataset is not None:  # which has a player for each engine
                table, identities = session.dataset.table, session.dataset.table.identities
                ids = self.read(ordinal, ordinal + 1)["run_id"]
                own = np.bincount(identities.player[table.ordinals(ids)], minlength=len(identities.facts))
                pairs = [*zip(identities.facts, own.tolist(), strict=True)]
            for facts, count in pairs:
                if count:
                    name, sha256 = identity_of_player(facts)
                    before = found.setdefault(sha256 or name, PlayedBy(name, sha256, 0))
                    found[sha256 or name] = PlayedBy(before.name, sha256, before.games + count)
        return sorted(found.values(), key=lambda player: -player.games)

    def chunks(self) -> Iterator[tuple[slice, NDArray[np.void]]]:
        """Yield the table of some sessions at a time, each with the range of its runs."""
        if self._kept is not None:
            yield slice(0, len(self)), self._kept
            return
        for begin, end in self.groups():
            if self.firsts[begin] < self.firsts[end]:
                yield slice(*self.firsts[[begin, end]].tolist()), self.read(begin, end)

    def groups(self) -> Iterator[tuple[int, int]]:
        begin, count = 0, len(self.sessions)
        while begin < count:
            most = self._starts[begin] + KEPT_RUNS
            end = max(begin + 1, int(np.searchsorted(self._starts, most, "right")) - 1)
            yield begin, end
            begin = end

    def each(self, make: Callable[[NDArray[np.void]], NDArray[Any]]) -> NDArray[Any]:
        """Return a value of each run, ``[R]``, which ``make`` computes part by part to save memory."""
        values: NDArray[Any] | None = None
        for where, table in self.chunks():
            made = make(table)
            if len(made) == len(self):
                return made
            values = np.empty(len(self), made.dtype) if values is None else values
            values[where] = made
            self._drop(table)
        return np.empty(0, np.uint64) if values is None else values

    def read(self, begin: int, end: int) -> NDArray[np.void]:
        """Read the table of the sessions from ``begin`` to ``end`` (exclusive)."""
        first = int(self.firsts[begin])
        runs = np.empty(int(self.firsts[end]) - first, CORPUS_RUN_DTYPE)
        # As bytes: NumPy joins structured arrays field by field, in 0.3 s for 800,000 runs.
        rows = runs.view(np.uint8).reshape(-1, CORPUS_RUN_DTYPE.itemsize)
        for ordinal in range(begin, end):
            mine = slice(*(self.firsts[[ordinal, ordinal + 1]] - first).tolist())
            if mine.start == mine.stop:
                continue
            own = self.sessions[ordinal].runs
            if self.chosen is not None:
                own = own[self.chosen[mine.start + first : mine.stop + first] - self._starts[ordinal]]
            runs["session"][mine] = ordinal
            rows[mine, 4:] = np.ascontiguousarray(own).view(np.uint8).reshape(-1, RUN_DTYPE.itemsize)
            if int(self._starts[-1]) > KEPT_RUNS:
                self.sessions[ordinal].drop_runs()
        return runs

    def _drop(self, table: NDArray[np.void]) -> None:
        for ordinal in np.unique(table["session"]).tolist():
            self.sessions[ordinal].drop_runs()


def keep_runs(session: Session, games: int) -> int:
    """Return ``games`` plus a session's games; drop the session's table if these are too many."""
    games += session.run_count
    if games > KEPT_RUNS:
        session.drop_runs()
    return games


def ordinals_of_mask(mask: NDArray[np.bool_]) -> NDArray[np.uint32]:
    """Return the ordinals of a mask's set entries, part by part: NumPy's ordinals take twice the memory."""
    found, done = np.empty(np.count_nonzero(mask), np.uint32), 0
    for first in range(0, len(mask), _MASKED):
        some = np.flatnonzero(mask[first : first + _MASKED])
        found[done : done + len(some)] = some + first
        done += len(some)
    return found


def facts_of_runs(runs: Any, sessions: Sequence[Named]) -> tuple[list[Mapping[str, Any]], NDArray[np.int64]]:
    """Return players' facts, and each run's index in them; a data set has a player for each engine."""
    facts, index = [session.meta for session in sessions], runs["session"].astype(np.int64)
    for ordinal, session in enumerate(sessions):
        if (dataset := getattr(session, "dataset", None)) is not None:
            mine = runs["session"] == ordinal
            identities = dataset.table.identities
            index[mine] = len(facts) + identities.player[dataset.table.ordinals(runs["run_id"][mine])]
            facts += identities.facts
    return facts, index


def prevalence(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the share of rows, ``f64[T]``, whose run has a true label, ``bool[R, T]``."""
    shares: NDArray[np.float64] = _true_rows(run_labels, row_counts) / row_counts.sum()
    return shares


def positive_weights(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.float64]:
    """Return the false rows per true row, ``f64[T]``: 1 if all labels are equal; see :func:`prevalence`."""
    true = _true_rows(run_labels, row_counts)
    false = row_counts.sum() - true
    one_kind = (true == 0) | (false == 0)
    return np.where(one_kind, 1.0, false / np.where(one_kind, 1, true))


def _true_rows(run_labels: NDArray[np.bool_], row_counts: NDArray[np.int64]) -> NDArray[np.int64]:
    # Not a matrix product: NumPy has no fast matrix product for integers.
    return np.array([row_counts[column].sum() for column in run_labels.T], np.int64)
