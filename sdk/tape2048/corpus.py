"""Corpora: many sessions as one sequence of rows and one table of runs, with filters and batches."""

from __future__ import annotations

import contextlib
import hashlib
import sys
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, get_args

import msgspec
import numpy as np

from tape2048.base.text import as_int, counted, facts_table
from tape2048.batches.fields import Batch, BatchLayout, BatchOptions, check_fields, check_options
from tape2048.errors import CorpusError, EmptyCorpusError, FormatError, MissingPackageError, Skipped
from tape2048.formats.rows import unchecked_numbers
from tape2048.rows.buffers import CorpusLoad, gather_runs, open_sessions, open_store
from tape2048.rows.view import ViewTables
from tape2048.selection import (
    ALL,
    Filters,
    Phase,
    View,
    check_filters,
    check_some,
    choose_runs,
    make_phase,
    run_hash,
    session_columns,
)
from tape2048.session import run_table
from tape2048.session.remote import CACHE_MAX_MB
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds, game_facts

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Sequence
    from typing import Unpack

    from numpy.typing import ArrayLike, NDArray

    from tape2048.batches.batches import Batches
    from tape2048.batches.fields import LabelDtype
    from tape2048.batches.gatherer import Gatherer
    from tape2048.rows.buffers import HeldLoad, RowBuffers
    from tape2048.selection import Columns
    from tape2048.session.session import Rows, Session


class Corpus(View):
    """The rows and runs of many sessions, or a selection of them. Made by :meth:`open`.

    A row is one position of a game, a run is one game. A corpus is an immutable sequence of rows:
    ``len(corpus)``, ``corpus[7]``, ``corpus[10:20]`` and :meth:`get_batch` return records, :meth:`tokens` and
    :meth:`fetch` return fields. :meth:`where` selects runs, :meth:`phase` a part of each game, :meth:`split`
    makes training and validation parts, and :meth:`capped` limits the rows of each run; the results are views
    that share the rows in memory. :meth:`batches` serves shuffled batches, epoch after epoch.

    Sessions recorded with the action and without it open together. Records and the field ``action`` have it
    where every session of a view's runs has it; the field ``move``, recovered from the boards, is always
    there. In other views, records of the sessions with the action are copies without it.

    Sessions on tape serve the same as sessions of rows, and both open together. Their boards are decoded for
    each batch, or once with ``load="packed"``; their records are always copies. A step that the rules do not
    allow is an error of whatever decodes it.

    Pickling sends paths and the selection, and unpickling opens the sessions again with the same ``load``. So
    each spawned worker of a ``"ram"`` or ``"packed"`` corpus reads a copy of its own, where forked workers
    share one; use ``load="mmap"`` for many spawned workers. ``copy`` and ``deepcopy`` share the rows.

    Attributes:
        runs: the run table, ``CORPUS_RUN_DTYPE[R]``, read-only. ``session`` indexes :attr:`sessions`. The
            other columns are the session's own: ``first_row`` and ``rows`` describe the whole run in its
            session, :attr:`row_counts` its rows in the view.
        dtype: the type of a row: ``ACTION_STEP_DTYPE`` if all sessions of the view's runs have the action;
            otherwise ``STEP_DTYPE``, and rows with the action come without it.
        game_phase: the part of each game that is in the view.
        skipped: the sessions that :meth:`open` skipped with ``damaged="skip"``.

    Example:
        >>> corpus = Corpus.open("selfplay")
        >>> strong = corpus.where("max_score >= 1000")
        >>> strong[0].dtype.names
        ('run_id', 'step_idx', 'exps')
        >>> strong.get_batch([3, 1, 4])["exps"].shape
        (3, 16)
        >>> batch = next(iter(strong.batches(64, seed=1)))
        >>> batch["tokens"].shape, batch["labels"].shape
        ((64, 16), (64, 3))
    """

    runs: NDArray[np.void]

    def __init__(
        self,
        store: RowBuffers,
        chosen: NDArray[np.int64] | None = None,
        phase: Phase = ALL,
        skipped: tuple[Skipped, ...] = (),
    ) -> None:
        """Make a view of the phase of the runs with these ordinals (None: all)."""
        self._tables = ViewTables(store, chosen, phase)
        self.game_phase = phase
        self.runs = self._tables.runs
        self.dtype = self._tables.dtype
        self.skipped = skipped

    @classmethod
    def open(
        cls,
        root: str | os.PathLike[str] | Iterable[str | os.PathLike[str]],
        where: str | NDArray[np.bool_] | None = None,
        *,
        load: CorpusLoad = "auto",
        ram_budget: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        cache_max_mb: int | None = CACHE_MAX_MB,
        damaged: Literal["raise", "skip"] = "raise",
        progress: bool | Callable[[int, int], object] | None = None,
        **filters: Unpack[Filters],
    ) -> Corpus:
        """Open sessions, in time and memory that grow with their runs, unless ``load`` reads their rows.

        Of a store, the run tables are fetched first. Sessions with selected runs follow as a whole when
        their rows are wanted, are verified, and stay while they are read.

        Args:
            root: a directory of sessions, one session, a store (``s3://bucket/prefix``, or a fleet's
                directory), or several.
            where: as for :meth:`where`; with ``load="ram"``, only rows of the selected runs are read.
            load: ``"ram"`` reads the rows into memory, at 28 or 29 bytes a row, or 1.5 on tape. ``"packed"``
                maps them, and reads or decodes their boards into memory at 8 bytes a row, which serve boards,
                labels and legal masks. ``"mmap"`` leaves the rows in the page cache. ``"auto"`` takes the
                first of these that fits ``ram_budget``; where all sessions are on tape, it tries ``"packed"``
                first, and with sessions in stores it is ``"mmap"``.
            ram_budget: bytes that ``"auto"`` may use; by default half of the free memory of the machine or
                cgroup, divided by ``$LOCAL_WORLD_SIZE`` under ``torchrun``.
            cache: local directory for what is fetched from stores, which processes may share; by default
                ``~/.cache/tape2048/sessions``. With it, a directory in ``root`` is read as a store.
            cache_max_mb: bound of the cache in MB (10**6 bytes); None for none. Rows in a random order need
                all selected sessions at once; ``batches(pool_rows=..., pool_sessions=...)`` needs a few.
            damaged: raise the error of a session that cannot be opened (or, on tape and ``"packed"``,
                decoded), or skip the session and list it in :attr:`skipped`.
            progress: called with the bytes read and all bytes; True for a bar, None for a bar on a terminal.
            **filters: as for :meth:`where`.

        Raises:
            EmptyCorpusError: there is no session, or a filter leaves no row.
            ConfigError: see :meth:`where`.
            CorpusError: a session is named twice; with ``"packed"``, a board has an exponent above 15; the
                cache is too small.
            CorpusError: a session was removed from its store.
            FormatError: one of its subclasses, for a damaged session.
            StorageError: the operating system could not read a file, or a store does not answer.
            ValueError: an argument is invalid.
        """
        if load not in get_args(CorpusLoad):
            raise ValueError(f"load={load!r}; expected one of {get_args(CorpusLoad)}")
        named = check_filters(filters)
        opened, damage = open_sessions(root, damaged, cache, cache_max_mb)
        while True:
            runs = gather_runs(opened)
            chosen = None
            if where is not None or filters:
                chosen = choose_runs(where, named, session_columns(runs, opened), len(runs))
                check_some(runs["rows"].astype(np.int64), chosen, "the filter")
            elif not len(runs) or not runs["rows"].any():
                found = f"{counted(len(opened), 'session')}, {counted(len(runs), 'run')}"
                raise EmptyCorpusError(f"{found}, and not one row")
            try:
                with _progress_bar(progress) as report:
                    store = open_store(opened, runs, chosen, load, ram_budget=ram_budget, progress=report)
            except FormatError as error:  # of a tape, which is decoded only here
                bad = [session for session in opened if session.path == Path(error.path or "").parent]
                if damaged == "raise" or not bad:
                    raise
                opened = tuple(session for session in opened if session not in bad)
                damage += [Skipped(session.path, error.detach()) for session in bad]
                if not opened:
                    raise
            else:
                return cls(store, skipped=tuple(damage))

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
        """Return the run table as a pandas ``DataFrame``, with the sessions' names; needs pandas.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        try:
            import pandas as pd
        except ModuleNotFoundError as error:
            raise MissingPackageError(
                "found no pandas, which makes the frame", hint="pip install pandas"
            ) from error
        frame = pd.DataFrame({name: self.runs[name] for name in self.runs.dtype.names or ()})
        names = [session.name for session in self.sessions]
        return frame.assign(session=pd.Categorical.from_codes(self.runs["session"], names))

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """First row of each run in the view, then the number of rows: ``i64[R + 1]``, read-only."""
        starts = self._tables.rowmap.run_starts.astype(np.int64)
        starts.flags.writeable = False
        return starts

    def _columns(self) -> Columns:
        return session_columns(self.runs, self.sessions)

    def _run_hashes(self, salt: str) -> NDArray[np.uint64]:
        return run_hash(self.runs, self.sessions, salt)

    def _check_some(self, chosen: NDArray[np.bool_], what: str, hint: str | None = None) -> None:
        rows = self.runs["rows"].astype(np.int64) if self.game_phase == ALL else self.row_counts
        check_some(rows, chosen, what, hint)

    @cached_property
    def identity(self) -> str:
        """Hash of the view's rows and their order, 64 hexadecimal digits.

        SHA-256 of the view's runs, their numbers of rows, the phase, and the checksums of the sessions' rows;
        paths and other sessions do not count. A foreign session without checksums counts by its run table.
        """
        digest = hashlib.sha256(b"tape2048 corpus 1\n")
        runs = self.runs.copy()
        used, runs["session"] = np.unique(runs["session"], return_inverse=True)
        for ordinal in used.tolist():
            session = self.sessions[ordinal]
            digest.update(msgspec.json.encode([len(session), _checksums(session)]))
        digest.update(msgspec.json.encode([self.dtype.itemsize, list(self.game_phase), len(runs)]))
        digest.update(runs.tobytes())
        digest.update(self.row_counts.tobytes())
        return digest.hexdigest()

    def session_identities(self) -> dict[str, str]:
        """Return a hash of each session's rows in the view, by its name: 16 hexadecimal digits."""
        found = {}
        starts = np.searchsorted(self.runs["session"], np.arange(len(self.sessions) + 1))
        for ordinal, session in enumerate(self.sessions):
            runs = self.runs[starts[ordinal] : starts[ordinal + 1]].copy()
            if len(runs):
                runs["session"] = 0
                text = msgspec.json.encode([len(session), _checksums(session)])
                found[session.name] = hashlib.sha256(text + runs.tobytes()).hexdigest()[:16]
        return found

    def __len__(self) -> int:
        """Number of rows, N."""
        return int(self._tables.rowmap.run_starts[-1])

    def __repr__(self) -> str:
        named = f"{len(self):,} rows, {len(self.runs):,} runs, {len(self.sessions):,} sessions, {self.load}"
        part = "" if self.game_phase == ALL else f"; {self.game_phase}"
        return f"<{type(self).__name__}: {named}{part}>"

    def _repr_html_(self) -> str:
        facts, tiles = game_facts(self.runs)
        facts = {"sessions": len(self.sessions), "rows": len(self), **facts, "load": self.load}
        if self.game_phase != ALL:
            facts["phase"] = self.game_phase
        return facts_table(type(self).__name__, facts, tiles)

    @property
    def weights(self) -> NDArray[np.float32]:
        """Weight of a row of each run, 1: ``f32[R]``; see :attr:`Capped.weights`."""
        return np.ones(len(self.runs), np.float32)

    def run_labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Compare each run's highest tile with each threshold: ``bool[R, T]``, as ``Session.run_labels``."""
        return run_table.run_labels(self.runs, thresholds)

    def prevalence(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Compute the share of rows whose label is true, for each threshold: ``f64[T]``; reads no row."""
        return run_table.prevalence(self.run_labels(thresholds), self.row_counts)

    def pos_weight(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Compute the rows with a false label per row with a true one: ``f64[T]``; reads no row.

        As a tensor (``torch.from_numpy(...).float()``) for ``BCEWithLogitsLoss(pos_weight=...)``. 1 if all
        labels of a threshold are equal, since no weight can balance them.
        """
        return run_table.positive_weights(self.run_labels(thresholds), self.row_counts)

    @cached_property
    def _gatherer(self) -> Gatherer:
        from tape2048.batches.gatherer import Gatherer

        return Gatherer(self._tables, (), np.empty(0, np.int64))

    # A corpus is immutable. The default, by pickling, would read all rows into memory again.
    def __copy__(self) -> Corpus:
        return self

    def __deepcopy__(self, memo: dict[int, Any]) -> Corpus:
        return self

    def __reduce__(self) -> tuple[Callable[..., Corpus], tuple[Any, ...]]:
        ids = self.runs[["session", "id"]]
        return _reopen, (self.sessions, self.load, ids, self.game_phase, self.identity)

    def phase(
        self,
        *,
        steps: tuple[int | None, int | None] | None = None,
        fraction: tuple[float | None, float | None] | None = None,
        empties: tuple[int | None, int | None] | None = None,
    ) -> Corpus:
        """Select a part of each game, by half-open ranges ``(first, end)``; None leaves a side open.

        A range replaces that of an earlier call.

        Args:
            steps: range of ``step_idx``.
            fraction: range of ``step_idx / steps``, from 0 to 1; ``(0.5, None)`` is the second half.
            empties: range of the number of empty cells; ``(0, 4)`` is at most three. Reads all rows once, or
                decodes them.

        Raises:
            EmptyCorpusError: no row is left.
            CorpusError: with ``empties``, a mapped file was truncated since the corpus was opened.
            ValueError: a range is invalid.

        Example:
            >>> late = Corpus.open("selfplay").phase(fraction=(0.5, None), empties=(0, 4))
            >>> late.game_phase.empties
            (0, 4)
        """
        phase = make_phase(self.game_phase, steps, fraction, empties)
        view = Corpus(self._tables.store, self._tables.chosen, phase, self.skipped)
        if not len(view):
            raise EmptyCorpusError(
                f"the phase {view.game_phase} leaves no row of {len(self):,}, in {len(self.runs):,} runs"
            )
        return view

    def capped(self, per_run: int, spread: Literal["stratified", "even"] = "stratified") -> Capped:
        """Limit each epoch to ``per_run`` rows of each run, drawn anew; arguments as for :class:`Capped`."""
        return Capped(self, per_run, spread)

    def _of_runs(self, chosen: NDArray[np.bool_]) -> Corpus:
        ordinals = np.flatnonzero(chosen)
        if self._tables.chosen is not None:
            ordinals = self._tables.chosen[ordinals]
        return Corpus(self._tables.store, ordinals, self.game_phase, self.skipped)

    def _range(self, first: int, end: int, step: int) -> NDArray[np.void]:
        """Return a read-only view of rows that are adjacent in memory, else a copy."""
        rows = self._tables.in_place(first, end) if step == 1 and first < end else None
        return super()._range(first, end, step) if rows is None else rows

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
        """Return the numbers of a selection of rows, which the gather checks."""
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
        label_dtype: LabelDtype = "bool",
    ) -> dict[str, NDArray[Any]]:
        """Return fields of any rows, as in :meth:`batches`.

        Args:
            rows: a slice, row numbers, or a mask ``bool[N]``.
            fields: names of fields; see :class:`tape2048.batches.Batches`.
            thresholds: tiles of the labels.
            label_dtype: ``"bool"`` or ``"float32"``.

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
        from tape2048.batches.gatherer import Gatherer

        names, numbers = check_fields(fields, label_dtype), self._row_numbers(rows)
        tiles = check_thresholds(thresholds)
        gatherer = Gatherer(self._tables, names, tiles)
        layout = BatchLayout(names, len(tiles), label_dtype, gatherer.embedding_width)
        batch = Batch.allocate(layout, len(numbers))
        gatherer.gather(numbers, batch)
        return batch.arrays

    def tokens(self, rows: Rows) -> NDArray[np.uint8]:
        """Return boards as exponents, ``u8[n, 16]``; arguments and errors as for :meth:`fetch`."""
        return self.fetch(rows, ("tokens",))["tokens"]

    def pieces(self, rows_max: int = 1 << 20) -> Iterator[NDArray[np.void]]:
        """Iterate over all rows in order, as read-only arrays of at most ``rows_max``, if possible uncopied.

        A piece is a stretch of rows that are adjacent in memory, of any runs.
        """
        if rows_max < 1:
            raise ValueError(f"rows_max={rows_max}; expected at least 1")
        return (self[rows] for rows in self._tables.pieces(rows_max))

    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Serve batches of all rows, epoch after epoch; options as for :class:`tape2048.batches.Batches`."""
        from tape2048.batches.batches import Batches

        check_options("batches", options)
        return Batches(self, batch_size, **options)


class Capped:
    """A corpus that serves at most ``per_run`` rows of each run in each epoch. Made by :meth:`Corpus.capped`.

    Positions of one game are similar, and long games have many; a few hundred of each are usual. A run of at
    most K = ``per_run`` rows is served completely. Of a longer run, of m rows, each epoch draws K different
    rows, by arithmetic from (seed, epoch, run) alone:

    - ``"stratified"``: the run, as a ring with a random offset, is cut into K stretches of m / K rows, and
      one row of each is drawn;
    - ``"even"``: the rows ``floor((i m + u) / K)`` for i = 0 ... K - 1, with one random u < m.

    A row then stands for m / K rows of its run (the field ``weight``): weighted means estimate those of all
    rows. Unweighted ones would count a position of a short run for more than one of a long run.

    Both draw each row with probability K / m (``"even"``: the K m numbers ``i m + u`` hit each row K times;
    ``"stratified"``: the offset is uniform).

    The row behind a number depends on the epoch, so there is no access by number but in :attr:`corpus`.

    Attributes:
        corpus: the corpus with all rows.
        per_run: K.
        spread: ``"stratified"`` or ``"even"``.

    Raises:
        ValueError: ``per_run`` is below 1, or ``spread`` is invalid.

    Example:
        >>> capped = Corpus.open("selfplay").capped(20)
        >>> len(capped) <= 20 * 200
        True
        >>> batch = next(iter(capped.batches(10_000, fields=("labels", "weight"), thresholds=(256,))))
        >>> share = np.average(batch["labels"], axis=0, weights=batch["weight"])
        >>> bool(np.isclose(share, capped.corpus.prevalence((256,))).all())
        True
    """

    def __init__(self, corpus: Corpus, per_run: int, spread: Literal["stratified", "even"]) -> None:
        self.per_run = as_int("per_run", per_run)
        if self.per_run < 1:
            raise ValueError(f"per_run={per_run}; expected at least 1")
        if spread not in {"stratified", "even"}:
            raise ValueError(f"spread={spread!r}; expected 'stratified' or 'even'")
        self.corpus = corpus
        self.spread = spread

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First number of each run's rows of an epoch, then their number: ``i64[R + 1]``."""
        taken = np.minimum(self.corpus.row_counts, min(self.per_run, len(self.corpus)))
        return np.append(0, np.cumsum(taken))

    @cached_property
    def weights(self) -> NDArray[np.float32]:
        """Rows of the view that a drawn row of each run stands for: ``f32[R]``, read-only.

        The rows of the run in the view / those drawn in an epoch, since each is drawn with equal probability.
        """
        weights = (self.corpus.row_counts / np.maximum(np.diff(self.starts), 1)).astype(np.float32)
        weights.flags.writeable = False
        return weights

    @property
    def identity(self) -> str:
        """Hash of :attr:`Corpus.identity` and the cap."""
        text = f"{self.corpus.identity} capped {self.per_run} {self.spread}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __len__(self) -> int:
        """Number of rows of an epoch."""
        return int(self.starts[-1])

    def __repr__(self) -> str:
        rows = f"{len(self):,} of {len(self.corpus):,} rows, at most {self.per_run:,} a run"
        return f"<{type(self).__name__}: {rows}>"

    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """As :meth:`Corpus.batches`."""
        from tape2048.batches.batches import Batches

        check_options("batches", options)
        return Batches(self, batch_size, **options)


def _checksums(session: Session) -> dict[str, list[int]]:
    """Return size and checksum of each file of rows; empty without a manifest."""
    files = session.manifest.files if session.manifest else {}
    rows = (item for item in sorted(files.items()) if item[0].startswith(("steps", "tape")))
    return {name: [entry.bytes, entry.crc32c] for name, entry in rows}


def _reopen(
    opened: tuple[Session, ...], load: HeldLoad, ids: NDArray[np.void], phase: Phase, identity: str
) -> Corpus:
    """Unpickle a corpus; raise CorpusError if its sessions, which were opened again, have changed."""
    runs = gather_runs(opened)
    chosen = None
    if len(ids) != len(runs):
        known = set(ids.tolist())
        chosen = np.array([run in known for run in runs[["session", "id"]].tolist()], np.bool_)
    corpus = Corpus(open_store(opened, runs, chosen, load), phase=phase)
    if corpus.identity != identity:
        raise CorpusError("the sessions are not those that were pickled", path=opened[0].path.parent)
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
