"""The base of all sources of rows with a run table."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, Any, Self

import numpy as np

from tape2048.base.text import as_int
from tape2048.formats.rows import RowView, row_numbers, run_ordinal
from tape2048.jit.mix import shuffled
from tape2048.rows.filters import check_filters, check_some, choose_runs, number_columns
from tape2048.rows.splits import check_shares, parts_of_hashes

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import SupportsIndex, Unpack

    from numpy.typing import ArrayLike, NDArray

    from tape2048.rows.filters import Columns, Filters


class View(RowView):
    """A sequence of rows and a table of their runs, or a selection of them.

    ``len(view)``, ``view[7]``, ``view[10:20]`` and :meth:`get_batch` count and return rows. :meth:`rows_of`
    returns the rows of one run. :meth:`where` selects runs, :meth:`split` makes training and validation
    parts, and :meth:`batches` serves all rows in a random order. Selections share the rows in memory.

    A subclass has the attributes ``runs`` and ``row_starts``, ``__len__``, ``get_batch`` and
    :meth:`_of_runs`; for :meth:`split`, also :meth:`_run_hashes`.
    """

    if TYPE_CHECKING:

        @property
        def runs(self) -> NDArray[np.void]:
            """One record for each run."""

        @property
        def row_starts(self) -> NDArray[np.int64]:
            """First row of each run in the view, then the number of rows: ``i64[R + 1]``."""

    @abstractmethod
    def _of_runs(self, chosen: NDArray[np.bool_]) -> Self:
        """Return a view of the runs of a mask, ``bool[R]``."""

    def _run_hashes(self, salt: str) -> NDArray[np.uint64]:
        raise NotImplementedError

    def _columns(self) -> Columns:
        names = (*(self.runs.dtype.names or ()), "rows")
        columns = {**number_columns(self.runs), "rows": lambda: self.row_counts}
        return {name: column for name, column in columns.items() if name in names}

    @property
    def row_counts(self) -> NDArray[np.int64]:
        """Rows of each run in the view: ``i64[R]``."""
        return np.diff(self.row_starts)

    def rows_of(self, run: SupportsIndex) -> NDArray[np.void]:
        """Return the rows of one run, in step order.

        Args:
            run: ordinal in :attr:`runs`, 0 <= run < R.

        Raises:
            IndexError: there is no such run.
            TypeError: ``run`` is not an integer.
        """
        ordinal = run_ordinal(run, len(self.runs))
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

    def where(self, where: str | NDArray[np.bool_] | None = None, /, **filters: Unpack[Filters]) -> Self:
        """Select the runs that satisfy a condition and all named filters.

        Args:
            where: SQL over columns of the run table, such as ``"max_score >= 50000 AND highest_tile >=
                8192"``; or a mask ``bool[R]``.
            **filters: ``min_score``, ``max_score``, ``min_steps``, ``max_steps``, ``min_tile``, ``max_tile``
                (inclusive bounds), ``model`` (a tag, or several), ``player`` (as ``ntuple`` or
                ``ntuple@0123456789ab``, or several), ``since`` and ``until`` (the start, ISO 8601, UTC;
                ``until`` is exclusive).

        Raises:
            EmptyCorpusError: no row is left. The message has the counts before.
            ConfigError: SQLite rejects the condition, or it does more than read the run table.
            ValueError: a filter is unknown, a date is invalid, or a mask has another length.

        Example:
            >>> from tape2048 import Corpus
            >>> best = Corpus.open("selfplay").where("highest_tile >= 512", min_steps=100)
            >>> bool((best.runs["highest_tile"] >= 512).all())
            True
        """
        chosen = choose_runs(where, check_filters(filters), self._columns(), len(self.runs))
        self._check_some(chosen, "the filter")
        return self._of_runs(chosen)

    def split(self, *, salt: str = "", **parts: float) -> dict[str, Self]:
        """Split the runs by a hash of their identity, so that a game is always in the same part.

        Args:
            salt: text that selects another split.
            **parts: name and share of each part. The sum is 1.

        Returns:
            A mapping of names to views, in the given order.

        Raises:
            EmptyCorpusError: a part has no row.
            TypeError: a share is not a number, or the salt is not text.
            ValueError: there is no part, a share is not positive, or the sum is not 1.

        Example:
            >>> from tape2048 import Corpus
            >>> parts = Corpus.open("selfplay").split(train=0.8, val=0.2)
            >>> list(parts), sum(len(part.runs) for part in parts.values())
            (['train', 'val'], 200)
        """
        shares = list(parts.values())
        check_shares(shares, parts)
        if not isinstance(salt, str):
            raise TypeError(f"salt={salt!r}; expected text")
        hashes = self._run_hashes(salt)
        part = parts_of_hashes(hashes, shares)
        hint = "Use more games, or a larger share."
        if (different := len(np.unique(hashes))) < len(hashes):
            hint = (
                f"of {len(hashes):,} runs, {different:,} have different identities, and equal runs go to one "
                "part: a foreign session may have the same seed for all its runs"
            )
        found = {}
        for i, (name, share) in enumerate(parts.items()):
            self._check_some(part == i, f"the split's part {name}={share}", hint)
            found[name] = self._of_runs(part == i)
        return found

    def batches(
        self, batch_size: int = 4096, *, shuffle: bool = True, seed: int = 0, drop_last: bool = False
    ) -> Iterable[Any]:
        """Iterate over all rows once, in batches of records. The last batch may be smaller.

        Args:
            batch_size: rows in a batch, at least 1.
            shuffle: use a random order, which takes 8 bytes for each row, instead of the rows' own.
            seed: decides that order, the same on every machine.
            drop_last: leave out a smaller last batch.

        Raises:
            ValueError: ``batch_size`` is not an integer of at least 1.
        """
        batch_size, rows = as_int("batch_size", batch_size), len(self)
        if batch_size < 1:
            raise ValueError(f"batch_size={batch_size}; expected at least 1")
        order = shuffled(rows, as_int("seed", seed)) if shuffle else np.arange(rows)
        end = rows - rows % batch_size if drop_last else rows
        return (self.get_batch(order[at : at + batch_size]) for at in range(0, end, batch_size))

    def _check_some(self, chosen: NDArray[np.bool_], what: str, hint: str | None = None) -> None:
        check_some(self.row_counts, chosen, what, hint)
