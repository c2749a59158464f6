"""Views of a store: which runs count, and which part of each game, as arrays over runs and segments.

A **view** holds arrays over its runs and segments (see ``row_map``), and neither rows nor an index of rows.
Its rows are numbered run after run, each in step order.

Parts of games work without an index of rows, too. ``steps`` and ``fraction`` select a range of each run's
rows, which stand in step order, so that they only cut its segments. ``empties`` depends on each
board: it reads all rows once, and keeps one bit a row and one count every 512 rows (125 MB and 16 MB for
1e9 rows, beside 28 GB); the k-th row of the view is found by counting. So every row that holds is served
exactly once an epoch, as without the filter, and the number of batches is known beforehand.
"""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Any, Literal

import msgspec
import numpy as np

from tape2048.base.text import as_int
from tape2048.session.labels import (
    DEFAULT_THRESHOLDS,
    check_thresholds,
    exponents_of,
    positive_weights,
    prevalence,
)
from tape2048.store.phase import ALL, Phase, cut
from tape2048.store.row_map import RowMap, make_label_guide

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from tape2048.session.session import Session
    from tape2048.store.row_map import Segments
    from tape2048.store.store import HeldLoad, Store


class View:
    """Some runs of a store, or a part of each; immutable.

    Attributes:
        store: what all views of these sessions share.
        game_phase: which part of each game counts.
    """

    def __init__(self, store: Store, chosen: NDArray[np.int64] | None = None, phase: Phase = ALL) -> None:
        """Make a view of the runs with these ordinals (None: all), and of these parts of them."""
        self.store = store
        self.game_phase = phase
        self._chosen = chosen

    @property
    def sessions(self) -> tuple[Session, ...]:
        """All sessions that were opened, whether or not the view has runs of them."""
        return self.store.sessions

    @property
    def load(self) -> HeldLoad:
        """How the rows are held."""
        return self.store.load

    @property
    def dtype(self) -> np.dtype[Any]:
        """The type of a row: ``STEP_DTYPE`` or ``ACTION_STEP_DTYPE``."""
        return self.store.row_dtype

    @cached_property
    def runs(self) -> NDArray[np.void]:
        """One row for each run of the view, ``CORPUS_RUN_DTYPE[R]``, read-only.

        ``session`` counts :attr:`sessions`; the other columns are the session's own, so ``first_row`` and
        ``rows`` say where the whole run lies in its session, and :attr:`row_counts` how many rows the
        view has of it.
        """
        if self._chosen is None:
            return self.store.runs
        runs = self.store.runs[self._chosen]
        runs.flags.writeable = False
        return runs

    @cached_property
    def segments(self) -> Segments:
        """The stretches of rows of the view's runs, before ``empties``; for the kernels."""
        segments = self.store.segments
        if self._chosen is not None:
            ordinal = np.full(len(self.store.runs), -1, np.int64)
            ordinal[self._chosen] = np.arange(len(self._chosen))
            segments = segments.take(ordinal[segments.run] >= 0)
            segments = segments._replace(run=ordinal[segments.run])
        return cut(segments, self.game_phase, self.runs, self.store)

    @cached_property
    def rowmap(self) -> RowMap:
        """Where the view's rows are; for the kernels."""
        segments = self.segments
        boards = self.store.board_addresses(segments)
        rows = RowMap.of(segments, len(self.runs), self.dtype.itemsize, boards)
        if self.game_phase.empties is not None:
            from tape2048.store.row_mask import mask_empties

            if boards is None:
                self.store.check_files()
            rows = mask_empties(rows, *self.game_phase.empties)
        return rows

    @cached_property
    def label_guide(self) -> NDArray[np.uint32]:
        """The fastest look-up of a row's label; for the kernels."""
        return make_label_guide(self.rowmap.guide, exponents_of(self.runs["highest_tile"])[self.rowmap.run])

    @cached_property
    def row_starts(self) -> NDArray[np.int64]:
        """First row of each run in the view, and the number of rows: ``i64[R + 1]``, read-only."""
        starts = self.rowmap.run_starts.astype(np.int64)
        starts.flags.writeable = False
        return starts

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """How many rows the view has of each run: ``i64[R]``."""
        return np.diff(self.row_starts)

    @cached_property
    def identity(self) -> str:
        """What the view serves, as 64 hexadecimal digits: equal if and only if rows and order are.

        SHA-256 over the chosen runs, how many rows each has, the phase, and the checksums of the sessions'
        rows. Paths and other sessions do not count. Where a session of others has no checksums, its run
        table alone stands for its rows.
        """
        digest = hashlib.sha256(b"tape2048 corpus 1\n")
        runs = self.runs.copy()
        used, runs["session"] = np.unique(runs["session"], return_inverse=True)
        for ordinal in used.tolist():
            session = self.sessions[ordinal]
            files = session.manifest.files if session.manifest else {}
            sums = {
                name: [entry.bytes, entry.crc32c] for name, entry in files.items() if name.startswith("steps")
            }
            digest.update(msgspec.json.encode([len(session), dict(sorted(sums.items()))]))
        digest.update(msgspec.json.encode([self.dtype.itemsize, list(self.game_phase), len(runs)]))
        digest.update(runs.tobytes())
        digest.update(self.row_counts.tobytes())
        return digest.hexdigest()

    def __len__(self) -> int:
        """Number of rows, N."""
        return self.rowmap.view_rows

    def __repr__(self) -> str:
        named = f"{len(self):,} rows, {len(self.runs):,} runs, {len(self.sessions):,} sessions, {self.load}"
        part = "" if self.game_phase == ALL else f"; {self.game_phase}"
        return f"<{type(self).__name__}: {named}{part}>"

    # -------------------------------------------------------------------------------------- labels

    def run_labels(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.bool_]:
        """Whether each run reached each tile: ``bool[R, T]``; ValueError as for ``Session.run_labels``."""
        reached: NDArray[np.bool_] = self.runs["highest_tile"][:, None] >= check_thresholds(thresholds)
        return reached

    def prevalence(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """The share of the view's rows whose label is true, for each tile: ``f64[T]``; no row is read."""
        return prevalence(self.run_labels(thresholds), self.row_counts)

    def pos_weight(self, thresholds: Sequence[int] = DEFAULT_THRESHOLDS) -> NDArray[np.float64]:
        """Rows whose label is false for each whose label is true: ``f64[T]``, no row is read.

        As a tensor (``torch.from_numpy(...).float()``), what ``BCEWithLogitsLoss(pos_weight=...)`` takes. 1
        where all labels are the same: no weight of the true ones could balance them.
        """
        return positive_weights(self.run_labels(thresholds), self.row_counts)


class CappedView:
    """A view of which each epoch has at most ``per_run`` rows of each run.

    Which ones, is drawn by arithmetic from (seed, epoch, run) alone; see ``tape2048.Capped``.

    Attributes:
        corpus: the view of all the rows.
        per_run: K.
        spread: ``"stratified"`` or ``"even"``.

    Raises:
        ValueError: ``per_run`` below 1, or another spread.
    """

    corpus: View

    def __init__(self, corpus: View, per_run: int, spread: Literal["stratified", "even"]) -> None:
        self.per_run = as_int("per_run", per_run)
        if self.per_run < 1:
            raise ValueError(f"per_run={per_run}; expected at least 1")
        if spread not in {"stratified", "even"}:
            raise ValueError(f"spread={spread!r}; expected 'stratified' or 'even'")
        self.corpus = corpus
        self.spread = spread

    @cached_property
    def starts(self) -> NDArray[np.int64]:
        """First number of each run's rows of an epoch, and how many an epoch has: ``i64[R + 1]``."""
        taken = np.minimum(self.corpus.row_counts, min(self.per_run, len(self.corpus)))
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(taken)))

    @property
    def identity(self) -> str:
        """As :attr:`View.identity`, with the cap."""
        text = f"{self.corpus.identity} capped {self.per_run} {self.spread}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __len__(self) -> int:
        """Rows of an epoch."""
        return int(self.starts[-1])

    def __repr__(self) -> str:
        rows = f"{len(self):,} of {len(self.corpus):,} rows, at most {self.per_run:,} a run"
        return f"<{type(self).__name__}: {rows}>"


def check_corpus(source: object, *, or_capped: bool = False) -> None:
    """Raise TypeError unless it is a corpus (or a capped one)."""
    if not isinstance(source, (View, CappedView) if or_capped else View):
        raise TypeError(f"found {source!r:.200}, expected a Corpus (Corpus.open takes one session, too)")
