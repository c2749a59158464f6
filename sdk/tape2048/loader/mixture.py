"""Mixtures: several corpora that share each batch."""

from __future__ import annotations

import copy
import hashlib
import logging
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, TypeAlias

import msgspec
import numpy as np

from tape2048.base.signatures import lists_options
from tape2048.base.text import counted
from tape2048.errors import StateError
from tape2048.loader.options import DEFAULTS, BatchOptions, check_options
from tape2048.loader.row_view import tables_of
from tape2048.loader.splits import TOLERANCE, check_shares

if TYPE_CHECKING:
    from collections.abc import Iterable
    from typing import Unpack

    from tape2048.loader.batches import Batches

#: A function of the epoch, and of the batch's number in it, that returns the share of each source.
Shares: TypeAlias = Callable[[int, int], Sequence[float]]

_NAMED = 5  # sessions that an error names


class Mixture:
    """Several corpora that share each batch.

    Games that are in several sources are served by each of them; a warning has their number.

    Args:
        sources: pairs of a source and its share; with ``shares``, the sources alone. A source is a corpus,
            or ``corpus.capped(...)``. For a directory that grows, it is a function that opens the corpus,
            and is called again before each epoch. The sum of the shares is 1.
        shares: for shares that change, a function of the epoch and of the number of the batch in it, both
            from 0. It returns a share of at least 0 for each source. For a training to resume exactly, it
            must return the same shares again.

    Attributes:
        sources: the corpora.
        shares: the share of each source, or the function.

    Raises:
        TypeError: a source is not a corpus, or a share is not a number.
        ValueError: there is no source, a share is not positive, or the sum is not 1.

    Example:
        >>> from tape2048 import Corpus, Mixture
        >>> parts = Corpus.open("selfplay").split(new=0.5, old=0.5)
        >>> mixture = Mixture([(parts["new"], 0.7), (parts["old"].capped(20), 0.3)])
        >>> mixture.rows_of_batch(256), next(iter(mixture.batches(256))).rows
        ((179, 77), 256)
        >>> def rising(epoch, step):
        ...     new = min(1, 0.2 + 0.1 * epoch)
        ...     return new, 1 - new
        >>> Mixture([parts["new"], parts["old"]], rising).rows_of_batch(100, epoch=3)
        (50, 50)
    """

    def __init__(self, sources: Iterable[Any], shares: Shares | None = None) -> None:
        pairs = [(each, None) for each in sources] if shares else [tuple(pair) for pair in sources]
        self._given = tuple(source for source, _ in pairs)
        self.sources = tuple(_opened(source) for source in self._given)
        self.shares: Any = shares or tuple(share for _, share in pairs)
        if shares is None:
            fixed = [share for _, share in pairs]
            check_shares(fixed, self.shares)
        else:
            self.rows_of_batch(1)
        _warn_of_overlap(self.sources)

    @property
    def grows(self) -> bool:
        """Whether a source is a function, which is called again before each epoch."""
        return any(map(callable, self._given))

    def refresh(self) -> Mixture:
        """Call the sources that are functions again.

        Returns:
            A new mixture with their corpora, or this one if all rows are the same.
        """
        return self._replaced([_opened(given) if callable(given) else None for given in self._given])

    def sessions(self) -> list[list[str]]:
        """Return the names of the sessions of each source that is a function; empty for other sources."""
        return [
            [*getattr(source, "corpus", source).session_identities()] if callable(given) else []
            for given, source in zip(self._given, self.sources, strict=True)
        ]

    def of_sessions(self, names: Sequence[Sequence[str]]) -> Mixture:
        """Return a mixture with only these sessions in the sources that are functions, to load a state.

        Raises:
            StateError: a session is missing.
        """
        found: list[Any] = []
        for number, (given, source) in enumerate(zip(self._given, self.sources, strict=True)):
            found.append(_of_sessions(source, names[number], number) if callable(given) else None)
        return self._replaced(found)

    def _replaced(self, sources: Sequence[Any]) -> Mixture:
        pairs = [*zip(sources, self.sources, strict=True)]
        new = [old if one is None or one.identity == old.identity else one for one, old in pairs]
        if all(one is old for one, old in zip(new, self.sources, strict=True)):
            return self
        mixture = copy.copy(self)
        mixture.sources = tuple(new)
        _warn_of_overlap(mixture.sources)
        return mixture

    def __len__(self) -> int:
        return sum(map(len, self.sources))

    @property
    def identity(self) -> str:
        """Hash of the sources' identities and the shares."""
        shares = "of a function" if callable(self.shares) else self.shares
        text = msgspec.json.encode([[source.identity for source in self.sources], shares])
        return hashlib.sha256(b"tape2048 mixture 1" + text).hexdigest()

    def rows_of_batch(self, batch_size: int, *, epoch: int = 0, step: int = 0) -> tuple[int, ...]:
        """Return the rows of each source in a batch: its share, rounded by largest remainder.

        Args:
            batch_size: rows of the batch.
            epoch: for shares that change, the epoch.
            step: the number of the batch in its epoch, of any rank.

        Raises:
            ValueError: fixed shares leave a source without a row, or the function did not return numbers of
                at least 0 with the sum 1.
        """
        is_fixed = not callable(self.shares)
        shares = self.shares if is_fixed else self._shares_at(epoch, step)
        total = sum(shares)
        exact = [share / total * batch_size for share in shares]
        rows = list(map(int, exact))
        by_remainder = sorted(range(len(rows)), key=lambda i: rows[i] - exact[i])
        for i in by_remainder[: batch_size - sum(rows)]:
            rows[i] += 1
        if is_fixed and min(rows) < 1:
            raise ValueError(
                f"batch_size={batch_size} with the shares {self.shares} has {rows} rows of the sources; "
                "expected at least 1 of each"
            )
        return tuple(rows)

    def _shares_at(self, epoch: int, step: int) -> list[float]:
        given = self.shares(epoch, step)
        try:
            shares = [float(share) for share in given]
            valid = (
                len(shares) == len(self.sources) and min(shares) >= 0 and abs(sum(shares) - 1) <= TOLERANCE
            )
        except (TypeError, ValueError):
            valid = False
        if not valid:
            msg = f"epoch {epoch}, step {step}: the shares are {given!r}"
            raise ValueError(f"{msg}; expected {len(self.sources)} numbers of at least 0 with the sum 1")
        return shares

    @lists_options(BatchOptions, DEFAULTS)
    def batches(self, batch_size: int = 4096, **options: Unpack[BatchOptions]) -> Batches:
        """Serve batches of all sources, epoch after epoch; see :class:`tape2048.loader.Batches`.

        In each batch, the rows of the first source come first. ``row`` and ``run`` are numbers in the row's
        source. ``weight`` is divided by its mean in the source, so that each source has its share of a
        weighted loss; the means are in ``mean_weights`` of the result. ``extra`` maps each name to a list of
        arrays, an array per source. ``pool_rows`` is shared among the sources, and each rank reads all
        chunks.

        Sources that are functions are called again at the end of each epoch. If a source then has other
        rows, its own epoch starts again, and ``source`` of the result is the new mixture. A state names the
        sessions of these sources. It can be loaded as long as these sessions exist; new sessions are used
        from the next epoch on.

        Args:
            batch_size: rows of a batch, at least 1.
            **options: the options.
        """
        from tape2048.loader.batches import MixedBatches

        check_options("batches", options)
        return MixedBatches(self, batch_size, **options)


def _warn_of_overlap(sources: Sequence[Any]) -> None:
    hashes = []
    for corpus in (getattr(source, "corpus", source) for source in sources):
        tables_of(corpus)
        hashes.append(np.unique(corpus._run_hashes("")[corpus.row_counts > 0]))  # noqa: SLF001
    if shared := int((np.unique(np.concatenate(hashes), return_counts=True)[1] > 1).sum()):
        text = "the corpora of a mixture overlap: %s in more than one corpus"
        logging.getLogger("tape2048").warning(text, counted(shared, "game"))


def _opened(source: Any) -> Any:
    return source() if callable(source) else source


def _of_sessions(source: Any, names: Sequence[str], number: int) -> Any:
    corpus = getattr(source, "corpus", source)
    known = [session.name for session in corpus.sessions]
    if missing := [name for name in names if name not in known]:
        raise StateError(
            f"source {number} of the mixture lacks {counted(len(missing), 'session')} of the state: "
            f"{', '.join(missing[:_NAMED])}",
            hint="Restore them, or start the epoch again.",
        )
    kept = np.isin(known, names)
    if kept.all():
        return source
    part = corpus.where(kept[tables_of(corpus).runs["session"]])
    return part if source is corpus else part.capped(source.per_run, source.spread, source.by)
