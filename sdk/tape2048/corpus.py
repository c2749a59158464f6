"""``Corpus``: many sessions as one sequence of rows and one table of runs, with filtered views."""

from __future__ import annotations

import contextlib
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, SupportsIndex, overload

import numpy as np

from tape2048.base.text import counted
from tape2048.batches import fetch as corpus_rows
from tape2048.batches.fields import check_fields
from tape2048.errors import CorpusError, EmptyCorpusError
from tape2048.formats.rows import run_ordinal
from tape2048.session.labels import DEFAULT_THRESHOLDS, check_thresholds
from tape2048.session.session import Session
from tape2048.store.filters import check_some, choose_runs, named_filters
from tape2048.store.opening import open_sessions
from tape2048.store.phase import ALL, Phase, make_phase
from tape2048.store.splits import assign, check_parts, why_empty
from tape2048.store.store import check_corpus_load, gather_runs, open_store
from tape2048.store.view import CappedView, View

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from numpy.typing import ArrayLike, NDArray

    from tape2048.batches.batches import Batches
    from tape2048.batches.fields import BatchOptions, LabelDtype
    from tape2048.batches.gatherer import Gatherer
    from tape2048.errors import Skipped
    from tape2048.session.session import Rows
    from tape2048.store.filters import Filters
    from tape2048.store.store import CorpusLoad, HeldLoad, Store


class Corpus(View):
    """Rows and runs of many sessions, or a part of them; see :meth:`open`.

    A sequence of rows: ``len``, ``corpus[7]``, ``corpus[10:20]``, :meth:`get_batch`. Views and copies share
    the rows. Unpickling opens the sessions again: with ``"ram"`` and ``"packed"``, each spawned worker reads
    a copy of its own (forked ones share); for many workers, use ``load="mmap"``.

    Attributes:
        store: shared by all views of these sessions.
        game_phase: the part of each game that counts.
        skipped: sessions that :meth:`open` skipped with ``damaged="skip"``.

    Example:
        >>> corpus = Corpus.open("selfplay")
        >>> strong = corpus.where("max_score >= 1000")
        >>> strong[0].dtype.names
        ('run_id', 'step_idx', 'exps')
        >>> strong.get_batch([3, 1, 4])["exps"].shape
        (3, 16)
    """

    def __init__(
        self,
        store: Store,
        chosen: NDArray[np.int64] | None = None,
        phase: Phase = ALL,
        skipped: tuple[Skipped, ...] = (),
    ) -> None:
        super().__init__(store, chosen, phase)
        self.skipped = skipped

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        where: str | NDArray[np.bool_] | None = None,
        *,
        load: CorpusLoad = "auto",
        ram_budget: int | None = None,
        damaged: Literal["raise", "skip"] = "raise",
        progress: bool | Callable[[int, int], object] | None = None,
        **filters: Unpack[Filters],
    ) -> Corpus:
        """Open sessions; time and memory grow with their runs, or with rows that are read into memory.

        Args:
            root: a directory of sessions, one session, or several of either.
            where: as for :meth:`where`; with ``load="ram"`` only rows of the chosen runs are read.
            load: ``"ram"`` reads rows into one array; ``"packed"`` maps them, and reads their boards into
                memory at 8 bytes a row, for boards, labels and legal masks; ``"mmap"`` leaves rows in the
                page cache; ``"auto"`` takes the first of these that fits ``ram_budget``.
            ram_budget: bytes for ``"auto"``; by default half of the free memory of the machine or its cgroup,
                divided by ``$LOCAL_WORLD_SIZE`` (processes started by ``torchrun``).
            damaged: ``"raise"`` the error of a session that cannot be opened, or ``"skip"`` it (see
                :attr:`skipped`).
            progress: called with the bytes read and all bytes; True for a progress bar, None for one on a
                terminal.
            **filters: as for :meth:`where`.

        Raises:
            EmptyCorpusError: no session, or a filter leaves nothing.
            MixedRowsError: only some sessions record the action.
            FilterError: see :meth:`where`.
            CorpusError: a session is named twice; with ``"packed"``, a board has an exponent above 15.
            FormatError: one of its subclasses, for a damaged session.
            StorageError: the operating system could not read something.
            ValueError: a wrong argument.

        Example:
            >>> Corpus.open("selfplay", load="mmap", min_score=1).load
            'mmap'
        """
        check_corpus_load(load)
        named = named_filters(filters)
        opened, damage = open_sessions(root, damaged)
        runs = gather_runs(opened)
        chosen = None
        if where is not None or filters:
            chosen = choose_runs(where, named, runs, opened)
            check_some(runs, chosen, "the filter")
        elif not len(runs) or not runs["rows"].any():
            found = f"{counted(len(opened), 'session')}, {counted(len(runs), 'run')}"
            raise EmptyCorpusError(f"{found}, and not one row")
        with _progress_bar(progress) as report:
            store = open_store(opened, runs, chosen, load, ram_budget=ram_budget, progress=report)
        return cls(store, skipped=tuple(damage))

    @cached_property
    def gatherer(self) -> Gatherer:
        """The gatherer of whole rows, for the kernels."""
        from tape2048.batches.gatherer import record_gatherer

        return record_gatherer(self)

    # It is immutable; copied by pickling, it would read all rows into memory again.
    def __copy__(self) -> Corpus:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Corpus:
        return self

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Any, ...]]:
        paths = [str(session.path) for session in self.sessions]
        ids = self.runs[["session", "id"]]
        return _reopen, (paths, self.load, ids, self.game_phase, self.identity)

    def where(self, where: str | NDArray[np.bool_] | None = None, **filters: Unpack[Filters]) -> Corpus:
        """Make the view of the runs that meet a condition and all named filters.

        Args:
            where: SQL, such as ``"max_score >= 50000 AND highest_tile >= 8192"``, over the run's ``id``,
                ``seed`` (signed, as in ``metadata.db``), ``steps``, ``max_score``, ``highest_tile`` and
                ``rows``, and its session's ``session`` (name), ``model`` and ``started`` (such as
                ``2026-11-21T06:00:00Z``); or a mask ``bool[R]``.
            **filters: inclusive bounds ``min_score``, ``max_score``, ``min_steps``, ``max_steps``,
                ``min_tile``, ``max_tile``; ``model`` (a tag, or several); ``since`` and ``until`` (exclusive)
                of the session's start, ISO 8601, UTC.

        Raises:
            EmptyCorpusError: no row is left; the message has the numbers of runs and rows before.
            FilterError: SQL that SQLite refuses, or that would do more than read the run table.
            ValueError: an unknown filter, an invalid date, a mask of another length.

        Example:
            >>> corpus = Corpus.open("selfplay")
            >>> len(corpus.where("steps < 100 AND highest_tile >= 32", max_score=10_000).runs) < 200
            True
        """
        chosen = choose_runs(where, named_filters(filters), self.runs, self.sessions)
        return self._of_runs(chosen, "the filter")

    def phase(
        self,
        *,
        steps: tuple[int | None, int | None] | None = None,
        fraction: tuple[float | None, float | None] | None = None,
        empties: tuple[int | None, int | None] | None = None,
    ) -> Corpus:
        """Make the view of a part of each game. Ranges are half open, ``(first, end)``; None is no bound.

        A range replaces the same one of an earlier call.

        Args:
            steps: range of ``step_idx``.
            fraction: range of ``step_idx / steps``, from 0 to 1; ``(0.5, None)`` is the second half.
            empties: range of the number of empty cells; ``(0, 4)`` is at most three. Reads all rows once.

        Raises:
            EmptyCorpusError: no row is left.
            RowsGoneError: with ``empties``, mapped rows were truncated since the corpus was opened.
            ValueError: an invalid range.

        Example:
            >>> len(corpus.phase(steps=(0, 10)))  # ten rows of each of 200 games
            2000
        """
        phase = make_phase(self.game_phase, steps, fraction, empties)
        view = Corpus(self.store, self._chosen, phase, self.skipped)
        if not len(view):
            raise EmptyCorpusError(
                f"the phase {view.game_phase} leaves no row of {len(self):,}, in {len(self.runs):,} runs"
            )
        return view

    def capped(self, per_run: int, spread: Literal["stratified", "even"] = "stratified") -> Capped:
        """Cap the rows of each run in an epoch; see :class:`Capped`.

        Args:
            per_run: rows of a run, at most.
            spread: ``"stratified"`` or ``"even"``.

        Raises:
            ValueError: ``per_run`` below 1, or another spread.
        """
        return Capped(self, per_run, spread)

    def split(self, *, salt: str = "", **parts: float) -> dict[str, Corpus]:
        """Split the runs by a hash of their identity.

        A run's identity is (``player_sha256`` of its session, ``seed``): a game stays in its part when
        sessions are merged or added. A foreign session without a player counts as one of a nameless player.

        Args:
            salt: another salt makes another split.
            **parts: share of each part by name; their sum is 1.

        Returns:
            The views by name, in the given order.

        Raises:
            EmptyCorpusError: a part has no row.
            TypeError: a share that is not a number, or a salt that is not text.
            ValueError: no parts, a share that is not positive, or shares whose sum is not 1.

        Example:
            >>> list(corpus.split(train=0.9, val=0.1))
            ['train', 'val']
        """
        check_parts(parts)
        owner = assign(self.runs, self.sessions, list(parts.values()), salt)
        try:
            return {
                name: self._of_runs(owner == i, f"the split's part {name}={share}")
                for i, (name, share) in enumerate(parts.items())
            }
        except EmptyCorpusError as error:
            hint = why_empty(self.runs, self.sessions)
            raise EmptyCorpusError(error.message, hint=hint) from None

    def _of_runs(self, chosen: NDArray[np.bool_], what: str) -> Corpus:
        check_some(self.runs, chosen, what, self.row_counts if self.game_phase != ALL else None)
        ordinals = np.flatnonzero(chosen)
        if self._chosen is not None:
            ordinals = self._chosen[ordinals]
        return Corpus(self.store, ordinals, self.game_phase, self.skipped)

    @overload
    def __getitem__(self, row: int | np.integer[Any]) -> np.void: ...

    @overload
    def __getitem__(self, row: slice) -> NDArray[np.void]: ...

    def __getitem__(self, row: SupportsIndex | slice) -> np.void | NDArray[np.void]:
        """Return a row, or the rows of a slice: a read-only view where they are contiguous, else a copy."""
        if isinstance(row, slice):
            first, end, step = row.indices(len(self))
            if step == 1 and first < end:
                together = corpus_rows.in_place(self, first, end)
                if together is not None:
                    return together
            return self.get_batch(np.arange(first, end, step))
        given = corpus_rows.row_number(row)
        number = given + len(self) if given < 0 else given
        if not 0 <= number < len(self):
            raise IndexError(f"row {given}; the corpus has {len(self)}")
        found: np.void = self.get_batch([number])[0]
        return found

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Read whole rows by number, in any order, with repeats: a new array ``dtype[n]``.

        Raises:
            IndexError: a number outside [0, N), negative ones included.
            TypeError: not integers of one dimension.
        """
        return corpus_rows.records(self, self.gatherer, corpus_rows.row_numbers(self, indices))

    def fetch(
        self,
        rows: Rows,
        fields: Sequence[str] = ("tokens", "labels"),
        *,
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelDtype = "bool",
    ) -> dict[str, NDArray[Any]]:
        """Gather fields of any rows, as :meth:`batches` does.

        Args:
            rows: a slice, row numbers, or a mask ``bool[N]``.
            fields: see :meth:`batches`.
            thresholds: tiles of the labels.
            label_dtype: ``"bool"`` or ``"float32"``.

        Returns:
            New arrays by field.

        Raises:
            IndexError: a number outside [0, N), or a mask of another length.
            TypeError: neither a slice, row numbers nor a mask.
            ValueError: an unknown field, or thresholds that are not tiles.
            CorpusError: a field that these sessions do not have.

        Example:
            >>> {name: values.shape for name, values in corpus.fetch(slice(0, 5)).items()}
            {'tokens': (5, 16), 'labels': (5, 3)}
        """
        names = check_fields(fields)
        numbers = corpus_rows.row_numbers(self, rows)
        return corpus_rows.fetch(self, numbers, names, check_thresholds(thresholds), label_dtype)

    def tokens(self, rows: Rows) -> NDArray[np.uint8]:
        """Gather boards of any rows as exponents, ``u8[n, 16]``; errors as for :meth:`fetch`."""
        return self.fetch(rows, ("tokens",))["tokens"]

    def rows_of(self, run: int) -> NDArray[np.void]:
        """Return the view's rows of one run, in step order; without a copy where they are contiguous.

        Raises:
            IndexError: no such run.
            TypeError: not an integer.
        """
        run = run_ordinal(run, len(self.runs))
        return self[int(self.row_starts[run]) : int(self.row_starts[run + 1])]

    def pieces(self, rows_max: int = 1 << 20) -> Iterator[NDArray[np.void]]:
        """Iterate over all rows in order, as read-only arrays of at most ``rows_max``, mostly without copies.

        Contiguous rows come together, across runs.

        Example:
            >>> sum(len(rows) for rows in corpus.pieces()) == len(corpus)
            True
        """
        return (self[rows] for rows in corpus_rows.pieces(self, rows_max))

    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Make batches of all rows, epoch after epoch; options as for :class:`tape2048.batches.Batches`.

        Example:
            >>> next(iter(corpus.batches(256)))["tokens"].shape
            (256, 16)
        """
        from tape2048.batches.batches import Batches

        return Batches(self, batch_size, **options)


class Capped(CappedView):
    """A corpus with at most ``per_run`` rows of each run in an epoch, drawn anew for each.

    Positions of one game are alike, and long games have many: practitioners take some hundreds of each. A
    shorter run is served whole. Of a longer one, of m rows, each epoch draws K = ``per_run`` different ones,
    determined by (seed, epoch, run):

    - ``"stratified"``: the run, as a ring turned by a random offset, is cut into K stretches of m / K rows,
      and one row of each is drawn;
    - ``"even"``: the rows ``floor((i m + u) / K)`` for i = 0 ... K - 1, with one random u < m.

    Either way each row has probability K / m in each epoch: the ring's offset is uniform, and the K m numbers
    ``i m + u`` hit each row K times.

    Row numbers depend on the epoch, so there is no access by number, except by :attr:`corpus`.

    Attributes:
        corpus: all rows.
        per_run: K.
        spread: ``"stratified"`` or ``"even"``.

    Example:
        >>> len(corpus.capped(10))  # of 200 games
        2000
    """

    corpus: Corpus

    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Make batches, as :meth:`Corpus.batches`."""
        from tape2048.batches.batches import Batches

        return Batches(self, batch_size, **options)


def _reopen(paths: list[str], load: HeldLoad, ids: NDArray[np.void], phase: Phase, identity: str) -> Corpus:
    """Open a pickled corpus; CorpusError if its sessions have changed."""
    opened = tuple(map(Session.open, paths))
    runs = gather_runs(opened)
    chosen = None
    if len(ids) != len(runs):
        known = set(ids.tolist())
        chosen = np.array([run in known for run in runs[["session", "id"]].tolist()], np.bool_)
    corpus = Corpus(open_store(opened, runs, chosen, load), phase=phase)
    if corpus.identity != identity:
        raise CorpusError("the sessions are not those that were pickled", path=Path(paths[0]).parent)
    return corpus


@contextlib.contextmanager
def _progress_bar(
    progress: Callable[[int, int], object] | bool | None,  # noqa: FBT001  (passed on)
) -> Iterator[Callable[[int, int], object] | None]:
    """Choose the callback of bytes done and all bytes: the caller's, a bar's, or none."""
    if callable(progress) or progress is False or (progress is None and not sys.stderr.isatty()):
        yield progress if callable(progress) else None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, Progress, TextColumn, TransferSpeedColumn

    columns = TextColumn("reading rows"), BarColumn(), DownloadColumn(), TransferSpeedColumn()
    with Progress(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task("", total=None)
        yield lambda done, total: bar.update(task, completed=done, total=total)
