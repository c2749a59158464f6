"""At most so many rows of each game in an epoch."""

from __future__ import annotations

import hashlib
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np

from tape2048._text import as_int

if TYPE_CHECKING:
    from typing import Unpack

    from numpy.typing import NDArray

    from tape2048._fields import BatchOptions
    from tape2048.batches import Batches
    from tape2048.corpus import Corpus

__all__ = ["Capped"]


class Capped:
    """A corpus of which each epoch has at most so many rows of each run.

    Positions of one game are alike, and long games have many: practitioners take some hundreds of each.
    A run of at most ``per_run`` rows is served whole. Of a longer one, of m rows, each epoch draws K =
    ``per_run`` different ones, by arithmetic from (seed, epoch, run) alone:

    - ``"stratified"``: the run, as a ring turned by a random offset, is cut into K stretches of m / K
      rows, and one row of each is drawn;
    - ``"even"``: the rows ``floor((i m + u) / K)`` for i = 0 ... K - 1, with one random u < m.

    Either way each row of the run comes up with probability K / m in each epoch (in the second because
    the K m numbers ``i m + u`` hit each row K times; in the first because the ring's offset is uniform).

    Which rows a number stands for depends on the epoch, so there is no access by number; that is for
    :attr:`corpus`.

    Attributes:
        corpus: all the rows.
        per_run: K.
        spread: ``"stratified"`` or ``"even"``.

    Raises:
        ValueError: ``per_run`` below 1, or another spread.
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
        """First number of each run's rows of an epoch, and how many an epoch has: ``i8[R + 1]``."""
        taken = np.minimum(self.corpus.row_counts, min(self.per_run, len(self.corpus)))
        return np.concatenate((np.zeros(1, np.int64), np.cumsum(taken)))

    @property
    def identity(self) -> str:
        """As :attr:`Corpus.identity`, with the cap."""
        text = f"{self.corpus.identity} capped {self.per_run} {self.spread}"
        return hashlib.sha256(text.encode()).hexdigest()

    def __len__(self) -> int:
        """Rows of an epoch."""
        return int(self.starts[-1])

    def __repr__(self) -> str:
        return f"<Capped: {len(self):,} of {len(self.corpus):,} rows, at most {self.per_run:,} a run>"

    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """As :meth:`Corpus.batches`."""
        from tape2048.batches import Batches

        return Batches(self, batch_size, **options)
