"""Corpora: many sessions as one sequence of rows and one table of runs, with filters and batches."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import os
import sys
import zlib
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Never, Self, TypeAlias, TypeVar, get_args

import msgspec
import numpy as np

from tape2048.base.lazy import load_named
from tape2048.base.signatures import lists_options
from tape2048.base.text import as_int, counted, facts_table, printable
from tape2048.errors import CorpusError, EmptyCorpusError, FormatError, Skipped
from tape2048.files.row_source import RowView, row_numbers, run_ordinal, unchecked_numbers
from tape2048.loader.buffers import (
    CorpusLoad,
    absolute_root,
    find_sessions,
    load_rows,
    open_sessions,
    roots_of,
)
from tape2048.loader.duplicates import Copies, warn_of_doubled
from tape2048.loader.filters import (
    Filters,
    check_filters,
    check_some,
    choose_from,
    newest_sessions,
    session_columns,
)
from tape2048.loader.options import DEFAULTS, BatchOptions, check_options
from tape2048.loader.phases import ALL, Phase, make_phase
from tape2048.loader.row_view import ViewTables, tables_of
from tape2048.loader.run_columns import RunColumns, ordinals_of_mask, positive_weights, prevalence
from tape2048.loader.splits import check_shares, parts_of_hashes, run_hash, split_hash, warn_of_unknown_games
from tape2048.loader.stages import even_shares, stage_firsts
from tape2048.players import name_players
from tape2048.session.blocks import impossible_row
from tape2048.session.former_names import NamedRuns
from tape2048.session.layout import STEP_DTYPE
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds, exponents_of, game_facts
from tape2048.session.stored import CACHE_MAX_MB

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from typing import SupportsIndex, Unpack

    from numpy.typing import ArrayLike, NDArray

    from tape2048.loader.batch import Batch
    from tape2048.loader.batches import Batches
    from tape2048.loader.buffers import Found, HeldLoad, RowBuffers
    from tape2048.loader.gatherer import Gatherer
    from tape2048.loader.looking import Description, PlayerTable
    from tape2048.loader.options import LabelLike
    from tape2048.session.columns import ColumnInfo
    from tape2048.session.games import Game
    from tape2048.session.session import Rows, Session


_T = TypeVar("_T")

#: The fields that a person looks at first.
SHOWN = ("run", "step", "steps_left", "tokens", "move", "score")

_HASHED_RUNS = 1 << 20  # runs whose numbers of rows are hashed together


class Corpus(RowView):
    """The rows and runs of many sessions and data sets, or a selection of them. Made by :meth:`open`.

    A row is one position of a game, a run is one game. A corpus is an immutable sequence of rows:
    ``len(corpus)``, ``corpus[7]``, ``corpus[10:20]`` and :meth:`get_batch` return records, :meth:`tokens` and
    :meth:`fetch` return fields. :meth:`where` selects runs, :meth:`phase` a part of each game, :meth:`select`
    any rows, :meth:`split` makes training and validation parts, and :meth:`capped` limits the rows of each
    run. The results are views that share the rows in memory. :meth:`batches` serves shuffled batches, epoch
    after epoch.

    Sessions recorded with and without the action open together. Records contain the action, and the field
    ``action`` is available, if every session of a view's runs has the action, as all sessions on tape have.
    Otherwise, records are copies without the action. The field ``move``, recovered from the boards, is always
    available.

    Sessions on tape serve the same rows as other sessions, and both open together. They are decoded for
    each batch, or once with ``load="packed"``; their records are always copies. A step that the rules do not
    allow raises an error when it is decoded.

    Data sets and pack.dat open as sessions of another program. Their ``ev_values``, ``ev_legal`` and
    ``ev_mask`` are columns. Each of their runs has its own ``player``, ``model`` (the engine) and
    ``started``.

    Pickling sends paths and the selection, and unpickling opens the sessions again with the same ``load``.
    Each spawned worker of a ``"ram"`` or ``"packed"`` corpus therefore reads a separate copy, while forked
    workers share a copy. Use ``load="mmap"`` for many spawned workers. ``copy`` and ``deepcopy`` share the
    rows.

    Attributes:
        runs: the run table, ``CORPUS_RUN_DTYPE[R]``, read-only. ``session`` indexes :attr:`sessions`. The
            other columns are the session's own: ``first_row`` and ``rows`` describe the whole run in its
            session, :attr:`row_counts` its rows in the view. With more than 2**20 runs in all sessions, each
            access reads the table again, at 44 bytes a run, unless you still hold the last result.
        dtype: the type of a row: ``ACTION_STEP_DTYPE`` if all sessions of the view's runs have the action;
            otherwise ``STEP_DTYPE``, and rows with the action come without it.
        game_phase: the part of each game that is in the view.
        skipped: the sessions that :meth:`open` skipped with ``damaged="skip"``.

    Example:
        >>> corpus = Corpus.open("selfplay")
        >>> strong = corpus.where("score >= 1000")
        >>> strong[0].dtype.names
        ('run_id', 'step_idx', 'exps')
        >>> strong.get_batch([3, 1, 4])["exps"].shape
        (3, 16)
        >>> batch = next(iter(strong.batches(64, seed=1)))
        >>> batch["tokens"].shape, batch["labels"].shape
        ((64, 16), (64, 3))
    """

    #: The attributes of a subclass that its views share.
    _kept: ClassVar[tuple[str, ...]] = ()

    #: What :meth:`open` found, and the call that opens it again; None for other views.
    _opening: tuple[set[tuple[str, object]], partial[Corpus]] | None = None

    def __init__(
        self,
        root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        *args: Any,
        **options: Any,
    ) -> None:
        """Open sessions and data sets: ``Corpus("selfplay")`` is ``Corpus.open("selfplay")``."""
        vars(self).update(vars(type(self).open(root, *args, **options)))

    @classmethod
    def _of_store(cls, store: RowBuffers, **view: Any) -> Self:
        made = object.__new__(cls)
        made._set_view(store, **view)
        return made

    def _set_view(
        self,
        store: RowBuffers,
        chosen: NDArray[Any] | None = None,
        phase: Phase = ALL,
        skipped: tuple[Skipped, ...] = (),
        selected: NDArray[np.uint64] | None = None,
    ) -> None:
        """Become a view of the phase and the selected rows of the runs with these ordinals (None: all)."""
        self._tables = ViewTables(store, chosen, phase, selected)
        self.game_phase = phase
        self.dtype = self._tables.dtype
        self.skipped = skipped

    @classmethod
    @lists_options(Filters)
    def open(
        cls,
        root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        where: str | NDArray[np.bool_] | None = None,
        *,
        load: CorpusLoad = "auto",
        ram_budget: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_max_mb: int | None = CACHE_MAX_MB,
        columns: str | os.PathLike[str] | None = None,
        newest_rows: float | None = None,
        damaged: Literal["raise", "skip"] = "raise",
        duplicates: Literal["drop", "keep"] = "drop",
        progress: bool | Callable[[int, int], object] | None = None,
        **filters: Unpack[Filters],
    ) -> Corpus:
        """Open sessions and data sets.

        This reads their run tables, so its time and memory grow with the number of runs. A ``load`` other
        than ``"mmap"`` also reads the rows, and a pack.dat is always read and checked.

        A warning names the players if the selected games have several. If several sessions hold the same
        games, another warning names the sessions, and the reason why one of them serves these games.

        From a store, run tables are fetched first. A session with selected runs is fetched when its rows are
        needed, as a whole. It is verified, and stays in the cache while it is read.

        Args:
            root: a directory of sessions, one session, a data set, a pack.dat, a pack of another program, a
                store (``s3://BUCKET/PREFIX``, ``gs://``, ``az://``, ``hf://datasets/OWNER/NAME``, or the
                directory of a store), or several of any kinds. A session that is found twice, as by a
                symlink, counts once.
            where: condition or mask, as for :meth:`where`; with ``load="ram"``, only rows of the selected
                runs are read.
            load: ``"ram"`` reads the rows into memory, at 28 or 29 bytes a row, or 1.5 on tape. ``"packed"``
                maps the rows and keeps their boards in memory, at 8 bytes a row, which suffices for boards,
                labels and legal masks. ``"mmap"`` leaves the rows in the page cache. ``"auto"`` takes the
                first of these that fits ``ram_budget``. If all sessions are on tape, it tries ``"packed"``
                first. With sessions in stores, it is ``"mmap"``.
            ram_budget: bytes that ``"auto"`` may use; by default half of the free memory of the machine or
                cgroup, divided by ``$LOCAL_WORLD_SIZE`` under ``torchrun``.
            cache: local directory for files that are fetched from stores. Processes can share it. By default
                ``~/.cache/tape2048/sessions``. With it, a directory in ``root`` is read as a store.
            cache_max_mb: maximum size of the cache in MB (10**6 bytes); None: no limit. It must hold all
                selected sessions to serve rows in random order, and only a few with
                ``batches(pool_rows=..., pool_sessions=...)``.
            columns: overlay directory of all sessions' columns; see :meth:`Session.open`. Columns of sessions
                in stores are only in the overlay.
            newest_rows: number of selected rows to open: only the sessions recorded last that together have
                at least so many; see :mod:`tape2048.session.recorded_order`. Sessions are opened as a whole,
                so there may be more rows.
            damaged: ``"raise"`` raises the error of a session that cannot be opened (or, on tape and with
                ``"packed"``, decoded); ``"skip"`` skips the session and lists it in :attr:`skipped`.
            duplicates: ``"drop"`` serves a game that sessions hold more than once only once, from the session
                with the most rows of it. In a tie, a recorded session precedes conversions; then the session
                with the most columns comes first, without fields that are all 0, then a session on tape, then
                the first session. Games are the same if player, seed and outcome are. ``"keep"`` serves all
                copies.
            progress: function that is called with the bytes read and all bytes; True for a bar, None for a
                bar on a terminal.
            **filters: the named filters.

        Raises:
            EmptyCorpusError: there is no session, or a filter leaves no row.
            ConfigError: see :meth:`where`.
            CorpusError: a session was removed from its store, or the cache is too small.
            FormatError: a subclass, for a damaged session, or a block of rows that has another checksum.
            StorageError: the operating system could not read a file, or a store does not answer.
            ValueError: an argument is invalid.
        """
        known = ("load", load, get_args(CorpusLoad)), ("duplicates", duplicates, ("drop", "keep"))
        for name, value, values in known:
            if value not in values:
                raise ValueError(f"{name}={value!r}; expected one of {values}")
        if newest_rows is not None and not newest_rows >= 1:
            raise ValueError(f"newest_rows={newest_rows}; expected at least 1")
        named = check_filters(filters)
        roots = roots_of(root)
        found = find_sessions(roots, cache, cache_max_mb)
        # :meth:`refresh` may be called in another working directory.
        cache, columns = (None if each is None else os.path.abspath(each) for each in (cache, columns))
        opening = partial(
            cls.open, [*map(absolute_root, roots)], where, load=load, ram_budget=ram_budget, cache=cache,
            cache_max_mb=cache_max_mb, columns=columns, newest_rows=newest_rows, damaged=damaged,
            duplicates=duplicates, progress=progress, **filters,
        )  # fmt: skip
        every, damage = open_sessions(found, damaged, columns)
        while True:
            opened, runs = _choose(every, where, named, newest_rows, duplicates)
            try:
                with _progress_bar(progress) as report:
                    store = load_rows(opened, runs, load, ram_budget=ram_budget, progress=report)
            except FormatError as error:  # of a tape, which is decoded only here
                bad = [session for session in opened if session.path == Path(error.path or "").parent]
                if damaged == "raise" or not bad:
                    raise
                every = tuple(session for session in every if session not in bad)
                damage += [Skipped(session.path, error.detach()) for session in bad]
                if not every:
                    raise
            else:
                corpus = cls._of_store(store, skipped=tuple(damage))
                corpus._opening = _places_of(found), opening  # noqa: SLF001 - of this class
                if len(players := runs.players()) > 1:
                    text = "opened games of %s; where(player=...) selects one"
                    logging.getLogger("tape2048").warning(text, name_players(players))
                return corpus

    def refresh(self) -> Corpus:
        """Open the same root again with the same options, if sessions were added or removed since.

        Call it between epochs, on the corpus that :meth:`open` returned, and make views and batches again.
        Rows are read or mapped again, so with ``load="ram"`` the rows of both corpora are in memory together.

        Returns:
            A new corpus, or this one if the sessions are the same. This one stays valid.

        Raises:
            CorpusError: this corpus is a selection, was pickled, or was opened with a mask of runs.
            TapeError: as for :meth:`open`.

        Example:
            >>> corpus = Corpus.open("selfplay", newest_rows=1e6)
            >>> corpus.refresh() is corpus
            True
        """
        if self._opening is None or not isinstance(self._opening[1].args[1], str | None):
            raise CorpusError(
                "only a corpus that Corpus.open returned, without a mask of runs, can be refreshed",
                hint="Keep that corpus, refresh it, and select from it again.",
            )
        found, again = self._opening
        options = again.keywords
        now = find_sessions(again.args[0], options["cache"], options["cache_max_mb"])
        return self if _places_of(now) == found else again()

    @property
    def runs(self) -> NDArray[np.void]:
        """The run table of the view; see the attributes of :class:`Corpus`."""
        return self._tables.runs.table.view(NamedRuns)

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All open sessions, with or without runs in the view."""
        return self._tables.store.sessions

    @property
    def load(self) -> HeldLoad:
        """Storage of the rows: ``"mmap"``, ``"packed"`` or ``"ram"``."""
        return self._tables.store.load

    def check_files(self) -> None:
        """Raise CorpusError if a mapped file was truncated since it was opened."""
        self._tables.store.check_files()

    def runs_frame(self) -> Any:
        """Return the run table as a pandas ``DataFrame``, with names of sessions and players; needs pandas.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        return load_named("tape2048.loader.looking:runs_frame")(self.runs, self.sessions)

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """First row of each run in the view, then the number of rows: ``i64[R + 1]``, read-only."""
        starts = self._tables.rowmap.run_starts.view(np.int64)
        starts.flags.writeable = False
        return starts

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Rows of each run in the view: ``i64[R]``."""
        return np.diff(self.row_starts)

    @cached_property
    def players(self) -> PlayerTable:
        """The players of the games in the view: name, parameters, games, rows and mean score of each.

        Example:
            >>> corpus = Corpus.open("selfplay")
            >>> corpus.players[0].games, len(corpus.where(player=corpus.players[0].player).runs)
            (200, 200)
        """
        found: PlayerTable = load_named("tape2048.loader.looking:players_of")(self._tables, self.row_counts)
        return found

    def describe(self) -> Description:
        """Return one table: games, rows, scores and the shares of games that reached the highest tiles.

        It has a line for each player, and prints in a terminal and in a notebook.

        Example:
            >>> Corpus("selfplay").describe().headings[:4]
            ('>games', '>rows', '>mean score', '>median')
        """
        title, describe = repr(self)[1:-1], load_named("tape2048.loader.looking:describe")
        found: Description = describe(self._tables, title, self.row_counts)
        return found

    @property
    def columns(self) -> dict[str, ColumnInfo]:
        """The columns that all sessions of the view's games have alike, by name, for ``fields``."""
        found: dict[str, ColumnInfo] = load_named("tape2048.loader.looking:columns_of")(self._tables)
        return found

    def game(self, run: SupportsIndex) -> Game:
        """Return a whole game as an object, with its boards, moves and scores; errors as for :meth:`rows_of`.

        Example:
            >>> game = Corpus("selfplay").game(0)
            >>> game.boards.shape == (game.steps, 4, 4), game.score == Corpus("selfplay").runs["score"][0]
            (True, np.True_)
        """
        ordinal = run_ordinal(run, len(self._tables.runs))
        found: Game = load_named("tape2048.loader.looking:game_at")(self._tables, ordinal)
        return found

    def games(self) -> Iterator[Game]:
        """Iterate over the games of :attr:`runs`, as :meth:`game` returns them.

        Nothing of a game is read before it is used, so this suits any number of games.

        Example:
            >>> max(game.score for game in Corpus("selfplay").games()) > 0
            True
        """
        found: Iterator[Game] = load_named("tape2048.loader.looking:games_of")(self._tables)
        return found

    def head(self, n: int = 5, fields: Sequence[str] = SHOWN, **options: Any) -> Batch:
        """Return the first rows, as :meth:`sample` returns rows."""
        return self._fetch(slice(0, n), fields, **options)

    def sample(self, n: int, *, seed: int = 0, fields: Sequence[str] = SHOWN, **options: Any) -> Batch:
        """Draw different rows at random, each row with the same probability.

        Args:
            n: number of rows.
            seed: the same seed draws the same rows of the same corpus.
            fields: names of fields and columns, as for :meth:`fetch`.
            **options: further arguments of :meth:`fetch`.

        Returns:
            A batch, whose fields are arrays of n rows. A notebook shows boards of it.

        Raises:
            ValueError: the corpus has fewer than n rows.

        Example:
            >>> near_death = Corpus("selfplay").phase(rows_left=(0, 20)).sample(100, seed=1)
            >>> near_death.tokens.shape, bool((near_death.steps_left < 20).all())
            ((100, 16), True)
        """
        if not 0 <= as_int("n", n) <= len(self):
            raise ValueError(f"n={n}; expected 0 to {len(self)}, the rows of this corpus")
        return self._fetch(np.random.default_rng(seed).choice(len(self), n, replace=False), fields, **options)

    def to_pandas(self, n: int | None = None, fields: Sequence[str] = SHOWN, **options: Any) -> Any:
        """Return the first n rows, or all, as a pandas ``DataFrame``; arguments as for :meth:`sample`.

        Boards become the columns ``tokens_0`` to ``tokens_15``. :meth:`runs_frame` has a line for each game.

        Raises:
            CorpusError: the frame does not fit into the free memory.
            MissingPackageError: pandas is not installed.

        Example:
            >>> Corpus("selfplay").to_pandas(n=100)["step"].max()
            np.uint32(99)
        """
        row = sum(array.nbytes for array in self.head(1, fields, **options).values())
        n = len(self) if n is None else min(n, len(self))
        load_named("tape2048.loader.looking:check_room")(n, row)
        return self.head(n, fields, **options).to_pandas()

    def __add__(self, other: Corpus) -> Corpus:
        """Return a corpus with the games of both. A game that both hold comes once, as for :meth:`open`.

        With ``load="ram"`` or ``"packed"``, rows of other sessions are read again.

        Raises:
            CorpusError: one has selected rows, or the phases differ.

        Example:
            >>> corpus = Corpus("selfplay")
            >>> parts = corpus.split(train=0.8, val=0.2)
            >>> (parts["train"] + parts["val"]).identity == corpus.identity
            True
        """
        both = self._tables, tables_of(other)
        if any(each.selected is not None or each.phase != self.game_phase for each in both):
            raise CorpusError("these are rows of parts of games", hint="Add the corpora, then select rows.")
        known = {session.path: ordinal for ordinal, session in enumerate(self.sessions)}
        added = [one for one in other.sessions if one.path not in known]
        runs = RunColumns.of((*self.sessions, *added))
        chosen = np.zeros(len(runs), np.bool_)
        for tables in both:
            for ordinal, session in enumerate(tables.store.sessions):
                place = known.setdefault(session.path, len(known))
                own = tables.runs.chosen_of([ordinal])
                mine = chosen[int(runs.firsts[place]) : int(runs.firsts[place + 1])]
                mine[slice(None) if own is None else own] = True
        opened, taken = _choose(tuple(runs.sessions), chosen, {}, None, "drop")
        return Corpus._of_store(load_rows(opened, taken, self.load), phase=self.game_phase)

    def rows_of(self, run: SupportsIndex) -> NDArray[np.void]:
        """Return the rows of one run, in step order.

        Args:
            run: ordinal in :attr:`runs`, 0 <= run < R.

        Raises:
            IndexError: there is no such run.
            TypeError: ``run`` is not an integer.
        """
        ordinal = run_ordinal(run, len(self._tables.runs))
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

    def _run_hashes(self, salt: str) -> NDArray[np.uint64]:
        return self._tables.runs.each(lambda table: run_hash(table, self.sessions, salt))

    def _check_some(
        self, chosen: NDArray[np.bool_], what: str, hint: Callable[[], str] | None = None
    ) -> None:
        is_whole = self.game_phase == ALL and self._tables.selected is None
        rows = self._tables.runs["rows"] if is_whole else self.row_counts
        check_some(rows, chosen, what, hint)

    @cached_property
    def identity(self) -> str:
        """Hash of the view's rows and their order, 64 hexadecimal digits.

        SHA-256 of the view's runs, their numbers of rows, the phase, the mask of the selected rows, and the
        checksums of the sessions' rows; paths and other sessions do not count. A third-party session without
        checksums counts by its run table.
        """
        digest = hashlib.sha256(b"tape2048 corpus 1\n")
        runs = self._tables.runs
        used = np.flatnonzero(np.diff(runs.firsts))
        for ordinal in used.tolist():
            session = self.sessions[ordinal]
            digest.update(msgspec.json.encode([len(session), _checksums(session)]))
        # A tape without the fact `record_action` counts as rows without the action, which it once was: saved
        # states of loaders and trainings contain this hash, and must remain valid.
        tapes = (one for one in map(self.sessions.__getitem__, used.tolist()) if one.tape is not None)
        acting = all(tape.meta.get("record_action") is True for tape in tapes)
        itemsize = self.dtype.itemsize if acting else STEP_DTYPE.itemsize
        # `rows_left` is left out while it is open: older saved states were made before it existed.
        phase = self.game_phase if self.game_phase.rows_left else self.game_phase[:3]
        digest.update(msgspec.json.encode([itemsize, phase, len(runs)]))
        for _, table in runs.chunks():
            numbered = table.copy()
            numbered["session"] = np.searchsorted(used, table["session"])
            digest.update(numbered.tobytes())
        for first in range(0, len(runs), _HASHED_RUNS):
            digest.update(np.diff(self.row_starts[first : first + _HASHED_RUNS + 1]).tobytes())
        if self._tables.selected is not None:
            digest.update(self._tables.rowmap.mask.words.tobytes())
        return digest.hexdigest()

    def session_identities(self) -> dict[str, str]:
        """Return a hash of each session's rows in the view, by its name: 16 hexadecimal digits."""
        found, own = {}, self._tables.runs
        for ordinal in np.flatnonzero(np.diff(own.firsts)).tolist():
            session, runs = self.sessions[ordinal], own.read(ordinal, ordinal + 1)
            if len(runs):
                runs["session"] = 0
                text = msgspec.json.encode([len(session), _checksums(session)])
                found[session.name] = hashlib.sha256(text + runs.tobytes()).hexdigest()[:16]
        return found

    def __len__(self) -> int:
        return int(self._tables.rowmap.run_starts[-1])

    def __repr__(self) -> str:
        runs, players = self._tables.runs, self._tables.runs.players()
        named = f"{counted(len(self), 'row')} of {counted(len(runs), 'game')} in "
        named += f"{counted(len(self.sessions), 'session')}, by "
        named += printable(players[0].player_name) if len(players) == 1 else counted(len(players), "player")
        part = "" if self.game_phase == ALL else f"; {self.game_phase}"
        return f"<{type(self).__name__}: {named}, {self._tables.store.load}{part}>"

    def _repr_html_(self) -> str:
        facts, tiles = game_facts(self._tables.runs)
        players = name_players(self._tables.runs.players())
        sessions = len(self.sessions)
        facts = {"players": players, "sessions": sessions, "rows": len(self), **facts}
        facts["load"] = self._tables.store.load
        if self.game_phase != ALL:
            facts["phase"] = self.game_phase
        return facts_table(type(self).__name__, facts, tiles)

    @property
    def weights(self) -> NDArray[np.float32]:
        """Weight of the rows of each run, all 1: ``f32[R]``; see :attr:`Capped.weights`."""
        return np.ones(len(self._tables.runs), np.float32)

    def run_labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Compare each run's highest tile with each threshold: ``bool[R, T]``, as ``Session.run_labels``."""
        reached: NDArray[np.bool_] = self._tables.exponents[:, None] >= exponents_of(
            check_thresholds(thresholds)
        )
        return reached

    def prevalence(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Compute the share of rows whose label is true, for each threshold: ``f64[T]``; reads no row."""
        return prevalence(self.run_labels(thresholds), self.row_counts)

    def pos_weight(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Compute the number of false labels per true label, for each threshold: ``f64[T]``; reads no row.

        Pass it as a tensor (``torch.from_numpy(...).float()``) to ``BCEWithLogitsLoss(pos_weight=...)``. It
        is 1 if all labels of a threshold are equal, since no weight can balance them.
        """
        return positive_weights(self.run_labels(thresholds), self.row_counts)

    @cached_property
    def _gatherer(self) -> Gatherer:
        from tape2048.loader.gatherer import Gatherer

        return Gatherer(self._tables, (), np.empty(0, np.int64))

    # A corpus is immutable. The default, by pickling, would read all rows into memory again.
    def __copy__(self) -> Self:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Self:
        return self

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Any, ...]]:
        ids, sent, tables = self.runs[["session", "run_id"]], None, self._tables
        if tables.selected is not None:  # by the rows of the runs that are opened again
            whole = ViewTables(tables.store, tables.chosen, ALL, tables.selected)
            sent = zlib.compress(whole.rowmap.mask.words.tobytes(), 1)
        return _reopen, (self.sessions, self.load, ids, self.game_phase, self.identity, sent)

    @lists_options(Filters)
    def where(self, where: str | NDArray[np.bool_] | None = None, /, **filters: Unpack[Filters]) -> Self:
        """Select the runs that satisfy a condition and all named filters.

        Args:
            where: SQL over columns of the run table, such as ``"score >= 50000 AND steps < 9000"``; or a mask
                ``bool[R]``. ``started`` is compared as an instant, with ISO 8601 (UTC without an offset) or
                seconds since 1970. The functions ``julianday``, ``unixepoch``, ``strftime``,
                ``date``, ``time`` and ``datetime`` read it; arithmetic and other functions reject it.
            **filters: the named filters.

        Raises:
            EmptyCorpusError: no row is left. The message has the counts before the filter, and the hint lists
                the players if the filter is of players.
            ConfigError: SQLite rejects the condition, or it does more than read the run table.
            ValueError: a filter is unknown, a date is invalid, or a mask has another length.

        Example:
            >>> best = Corpus.open("selfplay").where("highest_tile >= 512", min_steps=100)
            >>> bool((best.runs["highest_tile"] >= 512).all())
            True
        """
        runs = self._tables.runs
        chosen = choose_from(where, check_filters(filters), runs)
        self._check_some(chosen, "the filter", _players_hint(where, filters, runs))
        return self._of_runs(chosen)

    def split(self, *shares: Never, salt: str = "", **parts: float) -> dict[str, Self]:
        """Split the runs by a hash of their identity, so that a game is always in the same part.

        A game that starts from a given board (``record --from``) is in the part of the board's game. If that
        game is unknown, games from the same board are in the same part, and a warning is logged.

        Args:
            *shares: none, since parts have names.
            salt: text that selects another split.
            **parts: name and share of each part. The sum is 1.

        Returns:
            A mapping of names to views, in the given order. Another name is a KeyError.

        Raises:
            EmptyCorpusError: a part has no row.
            TypeError: a share is not a number or has no name, or the salt is not text.
            ValueError: there is no part, a share is not positive, or the sum is not 1.

        Example:
            >>> parts = Corpus.open("selfplay").split(train=0.8, val=0.2)
            >>> list(parts), sum(len(part.runs) for part in parts.values())
            (['train', 'val'], 200)
        """
        if shares:
            raise TypeError(
                f"split({shares[0]!r}): the parts need names. Write split(train=0.8, val=0.2), or other names"
            )
        each = list(parts.values())
        check_shares(each, parts)
        if not isinstance(salt, str):
            raise TypeError(f"salt={salt!r}; expected text")
        runs = self._tables.runs
        warn_of_unknown_games([self.sessions[each] for each in np.flatnonzero(np.diff(runs.firsts))])

        part = runs.each(
            lambda table: parts_of_hashes(split_hash(table, self.sessions, salt), each).astype(np.uint16)
        )
        found = _Parts[Self]()
        for i, (name, share) in enumerate(parts.items()):
            mine = part == i
            if len(mine) and not mine.any():
                empty_part = load_named("tape2048.loader.empty_part:empty_part")
                raise empty_part(runs.each(lambda table: split_hash(table, self.sessions, salt)), parts, i)
            self._check_some(mine, f"the part {name}={share:g} of the split")
            found[name] = self._of_runs(mine)
        return found

    def phase(
        self,
        *names: Never,
        steps: tuple[int | None, int | None] | None = None,
        fraction: tuple[float | None, float | None] | None = None,
        empties: tuple[int | None, int | None] | None = None,
        rows_left: tuple[int | None, int | None] | None = None,
    ) -> Self:
        """Select a part of each game, by half-open ranges ``(first, end)``; None leaves a side open.

        A range replaces the range of an earlier call.

        Args:
            *names: none, since phases are ranges.
            steps: range of ``step``.
            fraction: range of ``step / steps``, from 0 to 1; ``(0.5, None)`` is the second half.
            empties: range of the number of empty cells; ``(0, 4)`` is at most three. Reads all rows once, or
                decodes them.
            rows_left: range of the number of rows that follow in the game; ``(0, 100)`` is its last 100 rows.

        Raises:
            EmptyCorpusError: no row is left.
            CorpusError: with ``empties``, a mapped file was truncated since the corpus was opened.
            TypeError: an argument has no name.
            ValueError: a range is invalid.

        Example:
            >>> late = Corpus.open("selfplay").phase(fraction=(0.5, None), empties=(0, 4))
            >>> late.game_phase.empties
            (0, 4)
        """
        if names:
            raise TypeError(
                f"phase({names[0]!r}): a phase is a range of steps, fraction, empties or rows_left. Write "
                "phase(fraction=(0.67, None)) for the last third of each game"
            )
        phase = make_phase(self.game_phase, steps, fraction, empties, rows_left)
        tables = self._tables
        view = self._view(tables.chosen, phase, tables.selected)
        if not len(view):
            raise EmptyCorpusError(
                f"the phase {view.game_phase} leaves 0 of {counted(len(self), 'row')} in "
                f"{counted(len(tables.runs), 'run')}"
            )
        return view

    def select(self, rows: ArrayLike) -> Self:
        """Select rows by a mask or by their numbers.

        The view keeps the order of the corpus, and all runs: a run without a selected row has a row count of
        0. It takes one bit of memory for each row of the open sessions.

        Args:
            rows: a mask ``bool[N]``, or different row numbers in any order.

        Raises:
            EmptyCorpusError: no row is selected.
            IndexError: a number is outside [0, N).
            TypeError: ``rows`` is neither a mask nor integers of one dimension.
            ValueError: the mask has another length, or a number comes twice.

        Example:
            >>> corpus = Corpus.open("selfplay")
            >>> early = corpus.select(corpus.fetch(slice(None), ("step",))["step"] < 10)
            >>> len(early) == 10 * len(early.runs)
            True
        """
        from tape2048.loader.boards import bits_of

        return self._of_bits(bits_of(rows, len(self)), "the selection")

    def rows_where(self, condition: str) -> Self:
        """Select the rows that satisfy a condition, on all cores.

        Args:
            condition: a boolean expression of SQL over columns of the sessions (``loss``, ``values[2]``),
                fields of batches (``step``, ``tokens[0]``) and columns of the run table (``score``,
                ``player``), with comparisons, AND, OR, NOT, IN, BETWEEN, IS NULL, ``+ - * / %`` and ABS. NaN
                is NULL. A number is rounded to the type of the column that it is compared with. ``started``
                is an instant, as for :meth:`where`; arithmetic counts its seconds.

        Raises:
            EmptyCorpusError: no row is left.
            ConfigError: the condition is invalid, or names a column that no session has.
            ColumnError: a session lacks a column, or its column is damaged.

        Example:
            >>> corpus = Corpus.open("selfplay")
            >>> late = corpus.rows_where("step >= 100 AND tokens[0] <> 0 AND score > 500")
            >>> bool((late[:]["exps"][:, 0] != 0).all())
            True
        """
        runs = self._tables.runs
        from tape2048.loader.condition import mark_rows

        words = mark_rows(self._tables, condition, session_columns(runs, self.sessions))
        return self._of_bits(words, f"the condition {condition[:200]!r}")

    def unique(self, *, symmetry: bool = False) -> Self:
        """Select the first row of each distinct board, in the order of the corpus.

        All rows are read once, on all cores. The view takes one bit per row, and the search 12 bytes per
        row. If that is more than half of the free memory, the rows are read several times instead.

        A position that occurs in several games keeps only the label of the first one.

        Args:
            symmetry: whether boards that a rotation or a reflection makes equal count as equal.

        Raises:
            CorpusError: a mapped file was truncated.
            FormatError: a row has a board that no game has.

        Example:
            >>> corpus = Corpus.open("selfplay")
            >>> boards, kept = corpus.tokens(slice(None)), corpus.unique()
            >>> len(kept) == len(np.unique(boards, axis=0)) > len(corpus.unique(symmetry=True))
            True
        """
        from tape2048.loader.unique import mark_first

        return self._of_bits(mark_first(self._tables, symmetry=bool(symmetry)), "unique")

    def _of_bits(self, words: NDArray[np.uint64], what: str) -> Self:
        if not words.any():
            raise EmptyCorpusError(f"{what} leaves 0 of {counted(len(self), 'row')}")
        tables = self._tables
        return self._view(tables.chosen, self.game_phase, tables.select(words))

    def capped(self, per_run: int, spread: Spread = "stratified", by: Stages | None = None) -> Capped:
        """Limit each epoch to ``per_run`` rows of each run, drawn again; arguments as for :class:`Capped`."""
        return Capped(self, per_run, spread, by)

    def _of_runs(self, chosen: NDArray[np.bool_]) -> Self:
        ordinals = ordinals_of_mask(chosen)
        if self._tables.chosen is not None:
            ordinals = self._tables.chosen[ordinals]
        return self._view(ordinals, self.game_phase, self._tables.selected)

    def _view(self, chosen: NDArray[Any] | None, phase: Phase, selected: NDArray[np.uint64] | None) -> Self:
        view = object.__new__(type(self))
        for name in self._kept:
            setattr(view, name, getattr(self, name))
        view._set_view(self._tables.store, chosen, phase, self.skipped, selected)
        return view

    def _range(self, first: int, end: int, step: int) -> NDArray[np.void]:
        """Return a read-only view of rows that are adjacent in memory, else a copy."""
        rows = self._tables.in_place(first, end) if step == 1 and first < end else None
        if rows is None:
            return super()._range(first, end, step)
        if (at := impossible_row(rows)) >= 0:
            self._tables.store.raise_defect(self._tables.rowmap, first + at)
        return rows

    def __getitems__(self, rows: Sequence[int]) -> list[Any]:
        """Return rows for torch's ``DataLoader``. The error of its own collation names ``CriticLoader``."""
        joins: Any = sys.modules.get("torch.utils.data._utils.collate")
        if joins is not None:
            joins.default_collate_fn_map[_Row] = _reject_joining
        return [*self.get_batch(rows).view(np.dtype((_Row, self.dtype)))]

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Return whole rows by number, in any order, repeats allowed: ``dtype[n]``, a new array.

        Raises:
            IndexError: a number is outside [0, N); negative numbers do not count from the end.
            TypeError: the numbers are not integers of one dimension.
        """
        numbers = self._row_numbers(indices)
        out = np.empty(len(numbers), self.dtype)
        self._gatherer.gather_records(numbers, out)
        return out

    def _row_numbers(self, rows: Rows) -> NDArray[np.int64]:
        if isinstance(rows, slice):
            return np.arange(*rows.indices(len(self)))
        # A u64 of 2**63 or more becomes negative, and the gather refuses it.
        return np.ascontiguousarray(unchecked_numbers(rows, len(self)), np.int64)

    def fetch(
        self,
        rows: Rows,
        fields: Sequence[str] = ("tokens", "labels"),
        *,
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelLike = "bool",
        targets: str | None = None,
        weight: str | None = None,
    ) -> dict[str, NDArray[Any]]:
        """Return fields of any rows, as in :meth:`batches`.

        Args:
            rows: a slice, row numbers, or a mask ``bool[N]``.
            fields: names of fields; see :class:`tape2048.loader.Batches`.
            thresholds: tiles of the labels.
            label_dtype: ``"bool"`` or ``"float32"``, or such a type of NumPy or torch.
            targets: the column that replaces the labels.
            weight: the column that multiplies the weights.

        Returns:
            New arrays by field.

        Raises:
            IndexError: a number is outside [0, N), or a mask has another length.
            TypeError: ``rows`` is not a selection of rows.
            ValueError: a field or a threshold is invalid.
            CorpusError: these sessions do not have a field.

        Example:
            >>> fields = Corpus.open("selfplay").fetch([0, 5], ("tokens", "step"))
            >>> fields["step"]
            array([0, 5], dtype=uint32)
        """
        options = {"label_dtype": label_dtype, "targets": targets, "weight": weight}
        return self._fetch(rows, fields, thresholds=thresholds, **options).arrays

    def _fetch(
        self, rows: Rows, fields: Sequence[str], *, thresholds: Sequence[int] = DEFAULT_THRESHOLDS, **how: Any
    ) -> Batch:
        from tape2048.loader.batch import Batch
        from tape2048.loader.column_fields import plan_fields
        from tape2048.loader.gatherer import Gatherer

        how = {"label_dtype": "bool"} | how
        numbers, tiles = self._row_numbers(rows), check_thresholds(thresholds)
        layout, columns = plan_fields(self._tables, fields, tiles, **how)
        gatherer = Gatherer(self._tables, layout.fields, tiles, columns=columns)
        batch = Batch.allocate(layout, len(numbers))
        gatherer.gather(numbers, batch)
        return batch

    def discounted(self, discount: float) -> NDArray[np.float32]:
        """Compute each row's discounted return: its move's points plus ``discount`` times the next return.

        All rows are read once, and the result takes 4 bytes per row. The undiscounted points of the next K
        moves need no such table: they are the field ``return_K``.

        Args:
            discount: factor for each move, 0 to 1.

        Returns:
            ``f32[N]``, for ``batches(extra={"value": ...})``.

        Raises:
            CorpusError: the corpus has only a part of its games' rows, or their scores are unknown.
            ValueError: the discount is invalid.

        Example:
            >>> corpus = Corpus.open("selfplay")
            >>> batch = next(iter(corpus.batches(32, extra={"value": corpus.discounted(0.99)})))
            >>> batch.value.shape
            (32,)
        """
        from tape2048.loader.discounting import discounted

        return discounted(self._tables, discount)

    def tokens(self, rows: Rows) -> NDArray[np.uint8]:
        """Return boards as exponents, ``u8[n, 16]``; arguments and errors as for :meth:`fetch`."""
        return self.fetch(rows, ("tokens",))["tokens"]

    def pieces(self, rows_max: int = 1 << 20) -> Iterator[NDArray[np.void]]:
        """Iterate over all rows in order, in read-only arrays of at most ``rows_max`` rows.

        An array can have rows of several runs. Rows that are adjacent in memory are not copied.
        """
        if rows_max < 1:
            raise ValueError(f"rows_max={rows_max}; expected at least 1")
        return (self[rows] for rows in self._tables.pieces(rows_max))

    @lists_options(BatchOptions, DEFAULTS)
    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Serve batches of all rows, epoch after epoch; see :class:`tape2048.loader.Batches`.

        Args:
            batch_size: rows of a batch, at least 1.
            **options: the options.
        """
        from tape2048.loader.batches import Batches

        check_options("batches", options)
        return Batches(self, batch_size, **options)


# Notebooks show the arguments of `open` for `Corpus(`.
Corpus.__init__.__wrapped__ = Corpus.open.__func__  # type: ignore[attr-defined]


def sample() -> Corpus:
    """Open the small recording that is installed with the package, for a first look without a recording.

    It has 100 games of two players: 28 of ``ntuple``, the default player, and 72 of its smallest network
    with a 1-ply search. ``make sample`` recorded them.

    Example:
        >>> from tape2048 import sample
        >>> [player.games for player in sample().players]
        [72, 28]
    """
    return Corpus.open(Path(__file__).with_name("sample_games"))


#: Ways to draw the rows of a run, and to separate its stages.
Spread: TypeAlias = Literal["stratified", "even"]
Stages: TypeAlias = Literal["highest"]


class Capped:
    """A corpus that serves at most ``per_run`` rows of each run in each epoch. Made by :meth:`Corpus.capped`.

    Positions of one game are similar, so a few hundred of each game usually suffice. A run of at most
    K = ``per_run`` rows is served completely. From a longer run of m rows, each epoch draws K different
    rows, which depend on (seed, epoch, run) alone:

    - ``"stratified"``: the run, as a ring with a random offset, is cut into K ranges of m / K rows, and one
      row of each range is drawn;
    - ``"even"``: the rows ``floor((i m + u) / K)`` for i = 0 ... K - 1, with one random u < m.

    Both draw each row with probability K / m (``"even"``: the K m numbers ``i m + u`` hit each row K times;
    ``"stratified"``: the offset is uniform).

    A drawn row therefore represents m / K rows of its run, its ``weight``. Weighted means estimate the means
    of all rows. Unweighted means would count a position of a short run more than a position of a long run.

    With ``by="highest"``, the K rows are spread evenly over the stages of the run. A stage is the rows with
    the same highest tile on the board. A stage with fewer rows than its share is served completely, and the
    other stages share the rest. Within a stage, rows are drawn as from a run above. If a run has more than K
    stages, its earliest stages count as one. The first use of the sample finds the stages by binary search.

    A row number would mean another row in each epoch, so only :attr:`corpus` has access by number.

    Attributes:
        corpus: the corpus with all rows.
        per_run: K.
        spread: ``"stratified"`` or ``"even"``.
        by: None, or ``"highest"``.

    Raises:
        ValueError: ``per_run`` is below 1, or ``spread`` or ``by`` is invalid.

    Example:
        >>> capped = Corpus.open("selfplay").capped(20)
        >>> len(capped) <= 20 * 200
        True
        >>> batch = next(iter(capped.batches(10_000, fields=("labels", "weight"), thresholds=(256,))))
        >>> share = np.average(batch["labels"], axis=0, weights=batch["weight"])
        >>> bool(np.isclose(share, capped.corpus.prevalence((256,))).all())
        True
    """

    def __init__(self, corpus: Corpus, per_run: int, spread: Spread, by: Stages | None = None) -> None:
        self.per_run = as_int("per_run", per_run)
        if self.per_run < 1:
            raise ValueError(f"per_run={per_run}; expected at least 1")
        if spread not in {"stratified", "even"}:
            raise ValueError(f"spread={spread!r}; expected 'stratified' or 'even'")
        if by not in {None, "highest"}:
            raise ValueError(f"by={by!r}; expected None or 'highest'")
        self.corpus = corpus
        self.spread = spread
        self.by = by

    @cached_property
    def firsts(self) -> NDArray[np.int64]:
        """First row in :attr:`corpus` of each run, or of each stage of each run, then N: ``i64[n + 1]``."""
        if self.by is None:
            return self.corpus.row_starts
        starts = self.corpus.row_starts
        firsts = stage_firsts(self.corpus._gatherer, starts)  # noqa: SLF001 - of this module
        run = np.searchsorted(starts, firsts, "right") - 1
        later = np.searchsorted(firsts, starts[run + 1]) - np.arange(len(firsts))  # stages, with this one
        return np.append(firsts[(later < self.per_run) | (firsts == starts[run])], starts[-1])

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First row of each run or stage among the rows of an epoch, then their number: ``i64[n + 1]``."""
        taken = np.minimum(self.corpus.row_counts, min(self.per_run, len(self.corpus)))
        if self.by is not None:
            begins = np.searchsorted(self.firsts, self.corpus.row_starts)
            taken = even_shares(np.diff(self.firsts), begins, taken)
        return np.append(0, np.cumsum(taken))

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Rows of the view that a drawn row of each run or stage represents: ``f32[n]``, read-only.

        That is the number of rows of the run or stage in the view, divided by the number of rows that an
        epoch draws from it.
        """
        weights = (np.diff(self.firsts) / np.maximum(np.diff(self.starts), 1)).astype(np.float32)
        weights.flags.writeable = False
        return weights

    @property
    def identity(self) -> str:
        """Hash of :attr:`Corpus.identity` and the cap."""
        text = f"{self.corpus.identity} capped {self.per_run} {self.spread}" + (self.by or "")
        return hashlib.sha256(text.encode()).hexdigest()

    def __len__(self) -> int:
        return int(self.starts[-1])

    def __repr__(self) -> str:
        rows = f"{len(self):,} of {len(self.corpus):,} rows, at most {self.per_run:,} a run"
        rows += "" if self.by is None else f", by {self.by}"
        return f"<{type(self).__name__}: {rows}>"

    def _repr_html_(self) -> str:
        batch = next(iter(self.batches(4, fields=("tokens", "run", "step"))))
        facts = {
            "rows": len(self),
            "of": len(self.corpus),
            "rows a game, at most": self.per_run,
            "spread": self.spread,
        }
        return facts_table("Capped", facts) + batch.show().html

    @lists_options(BatchOptions, DEFAULTS)
    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Serve batches of the sample, epoch after epoch; see :class:`tape2048.loader.Batches`.

        Args:
            batch_size: rows of a batch, at least 1.
            **options: the options.
        """
        from tape2048.loader.batches import Batches

        check_options("batches", options)
        return Batches(self, batch_size, **options)


class _Parts(dict[str, _T]):
    def __missing__(self, name: str) -> Never:
        has = ", ".join(map(repr, self))
        raise KeyError(f"no part {name!r}: this split has {has}. Write split(train=0.8, {name}=0.2) for it")


class _Row(np.void):  # type: ignore[misc]  # NumPy subclasses it, too
    """A row of a corpus, which torch can tell from rows of other arrays."""


def _reject_joining(_rows: Sequence[Any], **_: Any) -> Never:
    raise TypeError(
        "DataLoader(corpus) has no tensors: write CriticLoader(corpus, batch_size) of tape2048.torch"
    )


def _choose(
    opened: tuple[Session, ...],
    where: Any,
    filters: Mapping[str, Any],
    newest_rows: float | None,
    duplicates: str,
) -> tuple[tuple[Session, ...], RunColumns]:
    """Return the sessions to read, and their selected runs."""
    runs = RunColumns.of(opened)
    chosen = None
    if where is not None or filters:
        chosen = choose_from(where, filters, runs)
        check_some(runs["rows"], chosen, "the filter", _players_hint(where, filters, runs))
    elif not any(map(len, opened)):
        found = f"{counted(len(opened), 'session')} with {counted(len(runs), 'run')}"
        raise EmptyCorpusError(f"found 0 rows in {found}; expected at least 1")
    used = [*range(len(opened))]
    is_doubled, doubled = Copies(runs, opened if duplicates == "drop" else ()).left_out(chosen)
    if doubled:
        warn_of_doubled(doubled)
        chosen = ~is_doubled if chosen is None else chosen & ~is_doubled
        of_session = runs["session"]
        needless = {*of_session[is_doubled].tolist()} - {*of_session[chosen].tolist()}
        used = [i for i in used if i not in needless]
    if newest_rows is not None:
        rows = np.array([len(session) for session in opened])
        if chosen is not None:
            rows = np.bincount(runs["session"][chosen], runs["rows"][chosen], len(opened))
        newest = newest_sessions(runs, rows, newest_rows)
        used = [i for i in newest if i in used]
    if len(used) < len(opened):
        if chosen is not None:
            chosen = chosen[np.isin(runs["session"], used)]
        opened = tuple(opened[i] for i in used)
        runs = RunColumns.of(opened)
    return opened, runs if chosen is None else runs.take(chosen)


def _players_hint(where: Any, filters: Mapping[str, Any], runs: RunColumns) -> Callable[[], str] | None:
    if filters.get("player") is None and not (isinstance(where, str) and "player" in where):
        return None
    return lambda: f"The games are of {name_players(runs.players())}. `corpus.players` lists them."


def _places_of(found: Iterable[Found]) -> set[tuple[str, object]]:
    """Return path and identity of each session. Both, since a new directory can reuse an inode."""
    return {(str(path), place) for path, place, _ in found}


def _checksums(session: Session) -> dict[str, list[int]]:
    """Return size and checksum of each file of rows; empty without a manifest."""
    rows = (
        item for item in sorted(session.files.items()) if item[0].startswith(("steps", "tape", "shards/"))
    )
    return {name: [entry.bytes, entry.crc32c] for name, entry in rows}


def _reopen(  # noqa: PLR0917 - as pickled
    opened: tuple[Session, ...], load: HeldLoad, ids: Any, phase: Phase, identity: str, sent: bytes | None
) -> Corpus:
    """Unpickle a corpus; raise CorpusError if its sessions, which were opened again, have changed."""
    runs = RunColumns.of(opened)
    if len(ids) != len(runs):
        known = set(ids.tolist())

        def is_known(table: NDArray[np.void]) -> NDArray[np.bool_]:
            return np.array([run in known for run in table[["session", "run_id"]].tolist()], np.bool_)

        runs = runs.take(runs.each(is_known))
    selected = None if sent is None else np.frombuffer(bytearray(zlib.decompress(sent)), np.uint64)
    store = load_rows(opened, runs, load)
    corpus = Corpus._of_store(store, phase=phase, selected=selected)  # noqa: SLF001 - of this module
    if corpus.identity != identity:
        raise CorpusError(
            "the sessions have changed since the corpus was pickled", path=opened[0].path.parent
        )
    return corpus


@contextlib.contextmanager
def _progress_bar(
    progress: Callable[[int, int], object] | bool | None,  # noqa: FBT001 - as in Corpus.open
) -> Iterator[Callable[[int, int], object] | None]:
    """Yield the function to call with bytes done and total: the caller's, a bar's, or None."""
    if callable(progress) or progress is False or (progress is None and not sys.stderr.isatty()):
        yield progress if callable(progress) else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("reading rows"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
