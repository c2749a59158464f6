"""Mixtures: several corpora that share each batch."""

from __future__ import annotations

import hashlib
import logging
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.batches.batch import check_options
from tape2048.rows.splits import check_shares
from tape2048.rows.view import tables_of

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from tape2048.batches.batch import BatchOptions
    from tape2048.batches.batches import Batches


class Mixture:
    """Several corpora that share each batch in fixed proportions.

    Games that are in several sources are logged in one line. Each of these sources serves their rows.

    Args:
        sources: pairs of a corpus, or ``corpus.capped(...)``, and its share. The sum of the shares is 1.

    Attributes:
        sources: the corpora.
        shares: the share of each one.

    Raises:
        TypeError: a source is not a corpus, or a share is not a number.
        ValueError: there is no source, a share is not positive, or the sum is not 1.

    Example:
        >>> from tape2048 import Corpus, Mixture
        >>> parts = Corpus.open("selfplay").split(new=0.5, old=0.5)
        >>> mixture = Mixture([(parts["new"], 0.7), (parts["old"].capped(20), 0.3)])
        >>> mixture.rows_of_batch(256), next(iter(mixture.batches(256))).rows
        ((179, 77), 256)
    """

    def __init__(self, sources: Iterable[tuple[Any, float]]) -> None:
        pairs = [tuple(pair) for pair in sources]
        self.sources = tuple(source for source, _ in pairs)
        self.shares = tuple(share for _, share in pairs)
        hashes = []
        for corpus in (getattr(source, "corpus", source) for source in self.sources):
            tables_of(corpus)
            hashes.append(np.unique(corpus._run_hashes("")[corpus.row_counts > 0]))  # noqa: SLF001
        check_shares(self.shares, self.shares)
        if shared := int((np.unique(np.concatenate(hashes), return_counts=True)[1] > 1).sum()):
            text = "the corpora of a mixture overlap: %s in more than one corpus"
            logging.getLogger("tape2048").warning(text, counted(shared, "game"))

    def __len__(self) -> int:
        """Number of rows of all sources."""
        return sum(map(len, self.sources))

    @property
    def identity(self) -> str:
        """Hash of the sources' identities and the shares."""
        text = msgspec.json.encode([[source.identity for source in self.sources], self.shares])
        return hashlib.sha256(b"tape2048 mixture 1" + text).hexdigest()

    def rows_of_batch(self, batch_size: int) -> tuple[int, ...]:
        """Return the rows of each source in every batch: its share, rounded by largest remainder.

        Raises:
            ValueError: a source has no row in a batch.
        """
        exact = [share / sum(self.shares) * batch_size for share in self.shares]
        rows = list(map(int, exact))
        by_remainder = sorted(range(len(rows)), key=lambda i: rows[i] - exact[i])
        for i in by_remainder[: batch_size - sum(rows)]:
            rows[i] += 1
        if min(rows) < 1:
            raise ValueError(
                f"batch_size={batch_size}. The shares {self.shares} leave a source without a row"
            )
        return tuple(rows)

    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Serve batches of all sources, epoch after epoch; options as for :class:`tape2048.batches.Batches`.

        In each batch, the rows of the first source come first. ``row`` and ``run`` are numbers in the row's
        source. ``weight`` is divided by its mean in the source, so that each source has its share of a
        weighted loss; the means are in ``mean_weights`` of the result. ``extra`` maps each name to a list of
        arrays, an array per source. With ``pool_rows``, which the sources share, each rank reads all chunks.
        """
        from tape2048.batches.batches import MixedBatches

        check_options("batches", options)
        return MixedBatches(self, batch_size, **options)
