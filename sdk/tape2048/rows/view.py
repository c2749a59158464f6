"""Views of a store: selected runs, and a part of each game, as arrays over runs and segments.

A **view** holds arrays over its runs and segments (see ``row_map``), and neither rows nor an index of rows.
Its rows are numbered run after run, each in step order.

Parts of games need no index of rows either. ``steps`` and ``fraction`` select a range of each run's rows,
which are in step order, so they only cut its segments. ``empties`` depends on each board: it reads all rows
once, and keeps one bit a row and one count every 512 rows (125 MB and 16 MB for 1e9 rows of 28 GB); counting
finds the k-th row of the view. So an epoch serves every row once, as without the filter, and the number of
batches is known beforehand.
"""

from __future__ import annotations

import hashlib
import itertools
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tape2048.base.prompt import facts_table
from tape2048.base.text import as_int
from tape2048.errors import MissingPackageError
from tape2048.formats.session import SAMPLE_RATE_MAX, STEP_DTYPE, step_dtype
from tape2048.rows.row_map import NO_TAPE, RowMap, TapeMap, make_label_guide
from tape2048.selection.filters import session_columns
from tape2048.selection.phase import ALL, Phase
from tape2048.selection.splits import run_hash
from tape2048.selection.view import View, check_some
from tape2048.session import run_table
from tape2048.session.run_table import DEFAULT_THRESHOLDS, exponents_of, game_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.rows.buffers import HeldLoad, RowBuffers
    from tape2048.rows.row_map import Segments
    from tape2048.selection.filters import Columns
    from tape2048.session.session import Session

# Rows whose steps are read together: 4 MB.
_SCAN_ROWS = 1 << 20


class ViewTables:
    """The runs of a view, and where their rows are in memory; for the kernels."""

    def __init__(self, store: RowBuffers, chosen: NDArray[np.int64] | None, phase: Phase) -> None:
        self.store = store
        self.chosen = chosen
        self.phase = phase
        self.runs = store.runs if chosen is None else store.runs[chosen]
        self.runs.flags.writeable = False
        has_runs = np.bincount(self.runs["session"], minlength=len(store.sessions)) > 0
        used = itertools.compress(store.sessions, has_runs)
        self.without_action = [session for session in used if session.dtype == STEP_DTYPE]
        self.dtype = step_dtype(record_action=not self.without_action)

    @cached_property
    def segments(self) -> Segments:
        """The segments of the view's runs, before ``empties``."""
        segments = self.store.segments
        if self.chosen is not None:
            ordinal = np.full(len(self.store.runs), -1, np.int64)
            ordinal[self.chosen] = np.arange(len(self.chosen))
            segments = segments.take(ordinal[segments.run] >= 0)
            segments = segments._replace(run=ordinal[segments.run])
        if self.phase.steps is None and self.phase.fraction is None:
            return segments
        return _cut(segments, self.phase, self.runs, self.store)

    @cached_property
    def rowmap(self) -> RowMap:
        """The tables that locate the view's rows."""
        segments, store = self.segments, self.store
        boards = None if store.boards is None else store.board_addresses(segments, store.boards)
        tape = NO_TAPE
        if (tapes := store.tapes) is not None:
            starts = tapes.starts if self.chosen is None else tapes.starts[self.chosen]
            tape = TapeMap.of(segments, self.runs, starts, tapes.spans)
        rows = RowMap.of(segments, len(self.runs), self.dtype.itemsize, boards, tape)
        if self.phase.empties is not None:
            from tape2048.rows.row_mask import mask_empties

            if boards is None:
                store.check_files()
            with store.hold(np.unique(segments.session).tolist() if boards is None else []):
                rows = mask_empties(rows, *self.phase.empties, store)
        return rows

    @cached_property
    def label_guide(self) -> NDArray[np.uint32]:
        """The guide from rows to labels."""
        return make_label_guide(self.rowmap.guide, exponents_of(self.runs["highest_tile"])[self.rowmap.run])

    def in_place(self, first: int, end: int) -> NDArray[np.void] | None:
        """Return rows [first, end) as a view of the store's memory; None if they are not adjacent there."""
        rows = self.rowmap
        if rows.mask.words.size or self.store.remote:  # rows in the cache come and go
            return None
        a = int(np.searchsorted(rows.guide.starts, np.uint64(first), "right")) - 1
        b = int(np.searchsorted(rows.guide.starts, np.uint64(end), "left"))
        if not (rows.address[a:b] == rows.address[a]).all() or not (rows.end[a:b] == rows.end[a]).all():
            return None
        if (rows.strides[a:b] != rows.row_bytes).any():
            return None
        address = (int(rows.address[a]) + first * rows.row_bytes) % 2**64
        return self.store.bytes_at(address, (end - first) * rows.row_bytes).view(self.dtype)

    def pieces(self, rows_max: int) -> Iterator[slice]:
        """Cut all rows, in order, into slices of at most ``rows_max`` rows that are adjacent in memory."""
        rows, count = self.rowmap, int(self.rowmap.run_starts[-1])
        if rows.mask.words.size:
            edges = np.arange(0, count, rows_max)
        else:
            apart = (rows.address[1:] != rows.address[:-1]) | (rows.end[1:] != rows.end[:-1])
            edges = rows.guide.starts[:-1][np.concatenate(([True], apart))].astype(np.int64)
        for begin, end in itertools.pairwise([*edges.tolist(), count]):
            for first in range(begin, end, rows_max):
                yield slice(first, min(end, first + rows_max))


class BufferView(View):
    """Some runs of many sessions, or a part of each; immutable. See :class:`tape2048.Corpus`.

    Attributes:
        runs: the run table, ``CORPUS_RUN_DTYPE[R]``, read-only. ``session`` indexes :attr:`sessions`. The
            other columns are the session's own: ``first_row`` and ``rows`` describe the whole run in its
            session, :attr:`row_counts` its rows in the view.
        dtype: the type of a row: ``ACTION_STEP_DTYPE`` if all sessions of the view's runs have the action;
            otherwise ``STEP_DTYPE``, and rows with the action come without it.
        game_phase: the part of each game that is in the view.
    """

    runs: NDArray[np.void]

    def __init__(
        self, store: RowBuffers, chosen: NDArray[np.int64] | None = None, phase: Phase = ALL
    ) -> None:
        """Make a view of the phase of the runs with these ordinals (None: all)."""
        self._tables = ViewTables(store, chosen, phase)
        self.game_phase = phase
        self.runs = self._tables.runs
        self.dtype = self._tables.dtype

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
        """Weight of a row of each run, 1: ``f32[R]``; see :attr:`CappedView.weights`."""
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


def _checksums(session: Session) -> dict[str, list[int]]:
    """Return size and checksum of each file of rows; empty without a manifest."""
    files = session.manifest.files if session.manifest else {}
    rows = (item for item in sorted(files.items()) if item[0].startswith(("steps", "tape")))
    return {name: [entry.bytes, entry.crc32c] for name, entry in rows}


class CappedView:
    """A view that serves at most ``per_run`` rows of each run in each epoch; see ``tape2048.Capped``."""

    corpus: BufferView

    def __init__(self, corpus: BufferView, per_run: int, spread: Literal["stratified", "even"]) -> None:
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
        """Hash of :attr:`BufferView.identity` and the cap."""
        text = f"{self.corpus.identity} capped {self.per_run} {self.spread}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __len__(self) -> int:
        """Number of rows of an epoch."""
        return int(self.starts[-1])

    def __repr__(self) -> str:
        rows = f"{len(self):,} of {len(self.corpus):,} rows, at most {self.per_run:,} a run"
        return f"<{type(self).__name__}: {rows}>"


def check_corpus(source: object, *, or_capped: bool = False) -> None:
    """Raise TypeError unless ``source`` is a corpus (or a capped one)."""
    if not isinstance(source, (BufferView, CappedView) if or_capped else BufferView):
        raise TypeError(f"found {source!r:.200}, expected a Corpus (Corpus.open takes one session, too)")


def tables_of(view: BufferView) -> ViewTables:
    """Return the tables of a view, which are private to the packages that serve batches."""
    return view._tables  # noqa: SLF001


def _cut(segments: Segments, phase: Phase, runs: NDArray[np.void], store: RowBuffers) -> Segments:
    """Cut segments down to the rows within the phase's steps and fraction.

    In a session with a ``sample_rate``, row j of a run is step j x rate, and runs are cut by arithmetic. In a
    foreign session without one, the steps of all rows are read. The phase's ``empties`` are ignored.
    """
    low, high = phase.step_ranges(runs["steps"])
    rates = np.array([_sample_rate(session) for session in store.sessions], np.int64)
    known = rates[segments.session] > 0
    parts = [_cut_whole_runs(segments.take(known), low, high, rates)]
    for owner in np.unique(segments.session[~known]).tolist():
        mine = segments.take(segments.session == owner)
        rows, places = store.rows_of(mine, store.sessions[owner].dtype)
        parts.append(_cut_by_reading(mine, low, high, rows["step_idx"], places))
    if len(parts) == 1:
        return parts[0]
    together = type(segments)(*map(np.concatenate, zip(*parts, strict=True)))
    return together.take(np.argsort(together.run, kind="stable"))


def _sample_rate(session: Session) -> int:
    """Return N if every N-th step is a row; 0 if the rows have to be read to know their steps."""
    rate = session.meta.get("sample_rate")
    if session.tape is not None:
        return 1  # every step is there
    ours = session.blocks is not None and session.contiguous
    if not ours or not isinstance(rate, int) or not 1 <= rate <= SAMPLE_RATE_MAX:
        return 0
    expected = -(-session.runs["steps"].astype(np.int64) // rate)
    return rate if bool((session.runs["rows"] == expected).all()) else 0


def _cut_whole_runs(
    segments: Segments, low: NDArray[Any], high: NDArray[Any], rates: NDArray[Any]
) -> Segments:
    """Cut segments that are whole runs, by arithmetic."""
    rate = rates[segments.session]
    first = np.minimum(-(-low[segments.run] // rate), segments.rows)
    end = np.minimum(-(-high[segments.run] // rate), segments.rows)
    return _narrow(segments, np.arange(len(first)), (first, end))


def _cut_by_reading(
    segments: Segments,
    low: NDArray[np.int64],
    high: NDArray[np.int64],
    steps: NDArray[np.uint32],
    places: NDArray[np.int64],
) -> Segments:
    """Cut segments, which begin at these places in an array of steps; a segment may become several."""
    found: list[tuple[NDArray[np.int64], ...]] = []
    batch_end = np.cumsum(segments.rows) // _SCAN_ROWS
    for batch in np.unique(batch_end).tolist():
        chosen = np.flatnonzero(batch_end == batch)
        counts = segments.rows[chosen]
        which = np.repeat(chosen, counts)
        within = np.arange(len(which)) - np.repeat(np.cumsum(counts) - counts, counts)
        step = steps[places[which] + within]
        run = segments.run[which]
        inside = (low[run] <= step) & (step < high[run])
        edge = np.ones(len(which), np.bool_)
        edge[1:] = (inside[1:] != inside[:-1]) | (which[1:] != which[:-1])
        begins = np.flatnonzero(edge)
        lengths = np.diff(begins, append=len(which))
        kept = inside[begins]
        at, length = begins[kept], lengths[kept]
        found.append((which[at], within[at], within[at] + length))
    if not found:
        return segments
    which, *bounds = (np.concatenate(column) for column in zip(*found, strict=True))
    return _narrow(segments, which, bounds)


def _narrow(segments: Segments, which: NDArray[np.int64], bounds: Any) -> Segments:
    """Take rows [first, end) of some segments, without those that become empty."""
    first, end = bounds
    kept = first < end
    first, end = first[kept], end[kept]
    taken = segments.take(which[kept])
    return taken._replace(
        address=taken.address + (first * taken.stride).astype(np.uint64),
        rows=end - first,
        place=taken.place + first,
    )
