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
from tape2048.formats.session import STEP_DTYPE, step_dtype
from tape2048.rows.phase import cut
from tape2048.rows.row_map import NO_TAPE, RowMap, TapeMap, make_label_guide
from tape2048.selection.filters import session_columns
from tape2048.selection.phase import ALL, Phase
from tape2048.selection.splits import run_hash
from tape2048.selection.view import View, check_some
from tape2048.session import labels
from tape2048.session.labels import DEFAULT_THRESHOLDS, exponents_of, game_facts

if TYPE_CHECKING:
    from collections.abc import Iterator, Sequence

    from numpy.typing import NDArray

    from tape2048.rows.buffers import HeldLoad, RowBuffers
    from tape2048.rows.row_map import Segments
    from tape2048.selection.filters import Columns
    from tape2048.session.session import Session


class BufferView(View):
    """Some runs of a store, or a part of each; immutable.

    Attributes:
        store: the storage that all views of these sessions share.
        game_phase: the part of each game that is in the view.
    """

    def __init__(
        self, store: RowBuffers, chosen: NDArray[np.int64] | None = None, phase: Phase = ALL
    ) -> None:
        """Make a view of the phase of the runs with these ordinals (None: all)."""
        self.store = store
        self.game_phase = phase
        self._chosen = chosen

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All open sessions, with or without runs in the view."""
        return self.store.sessions

    @property
    def load(self) -> HeldLoad:
        """Storage of the rows: ``"mmap"``, ``"packed"`` or ``"ram"``."""
        return self.store.load

    @cached_property
    def dtype(self) -> np.dtype[Any]:
        """The type of a row: ``ACTION_STEP_DTYPE`` if all sessions of the view's runs have the action.

        Otherwise ``STEP_DTYPE``, and the rows of those that have it come without it.
        """
        return step_dtype(record_action=not self.without_action())

    def without_action(self) -> list[Session]:
        """Return the sessions with runs in the view whose rows have no action."""
        has_runs = np.bincount(self.runs["session"], minlength=len(self.sessions)) > 0
        return [s for s in itertools.compress(self.sessions, has_runs) if s.dtype == STEP_DTYPE]

    @cached_property
    def runs(self) -> NDArray[np.void]:
        """The run table, ``CORPUS_RUN_DTYPE[R]``, read-only.

        ``session`` indexes :attr:`sessions`. The other columns are the session's own: ``first_row`` and
        ``rows`` describe the whole run in its session, :attr:`row_counts` its rows in the view.
        """
        if self._chosen is None:
            return self.store.runs
        runs = self.store.runs[self._chosen]
        runs.flags.writeable = False
        return runs

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
    def segments(self) -> Segments:
        """The segments of the view's runs, before ``empties``; for the kernels."""
        segments = self.store.segments
        if self._chosen is not None:
            ordinal = np.full(len(self.store.runs), -1, np.int64)
            ordinal[self._chosen] = np.arange(len(self._chosen))
            segments = segments.take(ordinal[segments.run] >= 0)
            segments = segments._replace(run=ordinal[segments.run])
        return cut(segments, self.game_phase, self.runs, self.store)

    @property
    def used_sessions(self) -> list[int]:
        """The ordinals of the sessions with rows in the view, before ``empties``."""
        found: list[int] = np.unique(self.segments.session).tolist()
        return found

    @cached_property
    def rowmap(self) -> RowMap:
        """The tables that locate the view's rows; for the kernels."""
        segments = self.segments
        boards = self.store.board_addresses(segments)
        tape = NO_TAPE
        if (tapes := self.store.tapes) is not None:
            starts = tapes.starts if self._chosen is None else tapes.starts[self._chosen]
            tape = TapeMap.of(segments, self.runs, starts, tapes.spans)
        rows = RowMap.of(segments, len(self.runs), self.dtype.itemsize, boards, tape)
        if self.game_phase.empties is not None:
            from tape2048.rows.row_mask import mask_empties

            if boards is None:
                self.store.check_files()
            with self.store.hold(self.used_sessions if boards is None else []):
                rows = mask_empties(rows, *self.game_phase.empties, self.store)
        return rows

    @cached_property
    def label_guide(self) -> NDArray[np.uint32]:
        """The guide from rows to labels; for the kernels."""
        return make_label_guide(self.rowmap.guide, exponents_of(self.runs["highest_tile"])[self.rowmap.run])

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """First row of each run in the view, then the number of rows: ``i64[R + 1]``, read-only."""
        starts = self.rowmap.run_starts.astype(np.int64)
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
        return self.rowmap.view_rows

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

    def piece_slices(self, rows_max: int) -> Iterator[slice]:
        """Cut all rows, in order, into slices of at most ``rows_max`` rows that are adjacent in memory."""
        if rows_max < 1:
            raise ValueError(f"rows_max={rows_max}; expected at least 1")
        rows = self.rowmap
        if rows.mask.words.size:
            edges = np.arange(0, len(self), rows_max)
        else:
            apart = (rows.address[1:] != rows.address[:-1]) | (rows.end[1:] != rows.end[:-1])
            edges = rows.guide.starts[:-1][np.concatenate(([True], apart))].astype(np.int64)
        for begin, end in zip(edges.tolist(), [*edges[1:].tolist(), len(self)], strict=True):
            for first in range(begin, end, rows_max):
                yield slice(first, min(end, first + rows_max))

    def run_labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Compare each run's highest tile with each threshold: ``bool[R, T]``, as ``Session.run_labels``."""
        return labels.run_labels(self.runs, thresholds)

    def prevalence(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Compute the share of rows whose label is true, for each threshold: ``f64[T]``; reads no row."""
        return labels.prevalence(self.run_labels(thresholds), self.row_counts)

    def pos_weight(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Compute the rows with a false label per row with a true one: ``f64[T]``; reads no row.

        As a tensor (``torch.from_numpy(...).float()``) for ``BCEWithLogitsLoss(pos_weight=...)``. 1 if all
        labels of a threshold are equal, since no weight can balance them.
        """
        return labels.positive_weights(self.run_labels(thresholds), self.row_counts)


def _checksums(session: Session) -> dict[str, list[int]]:
    """Return size and checksum of each file of rows; empty without a manifest."""
    files = session.manifest.files if session.manifest else {}
    rows = (item for item in sorted(files.items()) if item[0].startswith(("steps", "tape")))
    return {name: [entry.bytes, entry.crc32c] for name, entry in rows}


class CappedView:
    """A view that serves at most ``per_run`` rows of each run in each epoch; see ``tape2048.Capped``.

    Attributes:
        corpus: the view of all rows.
        per_run: K.
        spread: ``"stratified"`` or ``"even"``.

    Raises:
        ValueError: ``per_run`` is below 1, or ``spread`` is invalid.
    """

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
