"""Access to the runs of a pack, or of a part of one: by number, in batches of runs and of steps; splits."""

from __future__ import annotations

import itertools
import operator
import secrets
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np

from tape2048.base.text import as_int, counted
from tape2048.base.threads import map_ordered
from tape2048.formats.rows import ROW_DTYPE
from tape2048.runs.run import RunRows

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import SupportsIndex

    from numpy.typing import NDArray

    from tape2048.runs.a2run2 import RunV2


class PackedRuns(ABC):
    """Base class of packs and their views: a sequence of runs, made of ``decode``."""

    @abstractmethod
    def __len__(self) -> int:
        """Number of runs."""

    @abstractmethod
    def decode(self, i: SupportsIndex) -> RunV2:
        """Decode a run."""

    @abstractmethod
    def _choose(self, chosen: NDArray[np.bool_]) -> PackView:
        """Return a view of the runs where ``bool[R]`` is set."""

    @property
    @abstractmethod
    def indices(self) -> NDArray[np.int64]:
        """``i64[R]``: the runs' entry numbers in the pack."""

    def __getitem__(self, i: SupportsIndex) -> RunV2:
        """Decode a run; see :meth:`decode`."""
        return self.decode(i)

    def decode_batch(self, indices: Iterable[int], workers: int | None = 1) -> list[RunV2]:
        """Decode several runs.

        Args:
            indices: run numbers, in any order, repeats allowed.
            workers: threads; None: one for each core.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first defective one.
        """
        return list(map_ordered(self.decode, indices, workers))

    def __iter__(self) -> Iterator[RunV2]:
        """Every run, in order."""
        return map(self.decode, range(len(self)))

    def iter_indices(self, indices: Iterable[int]) -> Iterator[RunV2]:
        """Iterate over the runs with these numbers, in this order; each is decoded when it is reached."""
        return map(self.decode, indices)

    def iter_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - the original design's signature
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[list[RunV2]]:
        """Iterate over all runs once, in batches; the last batch may be smaller.

        Args:
            batch_size: runs in a batch, at least 1.
            shuffle: use a random order in place of the pack's.
            seed: decides that order, the same on every machine and for any number of workers; None: a
                fresh one.
            workers: threads that decode; None: one for each core.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is not an integer of at least 1.
            FormatError: as :meth:`decode`, when the run is reached.
        """
        batch_size = _at_least_1("batch_size", batch_size)
        order = _shuffled(len(self), seed).tolist() if shuffle else range(len(self))
        runs = map_ordered(self.decode, order, workers)
        return iter(lambda: list(itertools.islice(runs, batch_size)), [])

    def iter_step_batches(
        self,
        batch_size: int,
        shuffle: bool = False,  # noqa: FBT001, FBT002 - as iter_batches
        seed: int | None = None,
        workers: int | None = None,
    ) -> Iterator[NDArray[np.void]]:
        """Iterate over the steps of all runs once, in batches; the last batch may be smaller.

        Memory: a few runs. With ``shuffle``, 42 bytes for each step, and as much again while they are
        decoded; a data set, a pack.dat or a corpus shuffles more steps than that leaves room for.

        Args:
            batch_size: steps in a batch, at least 1.
            shuffle: use one random order of all steps, in place of run after run.
            seed: decides that order, the same on every machine and for any number of workers; None: a
                fresh one.
            workers: threads that decode; None: one for each core.

        Returns:
            For each batch, ``ROW_DTYPE[batch_size]``: see :mod:`tape2048.formats.rows`. ``run_id`` is the
            run's entry number in the pack.

        Raises:
            ValueError: ``batch_size`` or ``workers`` is not an integer of at least 1.
            FormatError: as :meth:`decode`, when the run is reached; with ``shuffle`` at the first batch.

        Example:
            >>> from tape2048.packs import PackReader, pack_directory
            >>> _ = pack_directory("runs", "steps.a2pack")
            >>> batches = PackReader.open("steps.a2pack").iter_step_batches(8, shuffle=True, seed=1)
            >>> next(batches)["board"].shape
            (8,)
        """
        batch_size = _at_least_1("batch_size", batch_size)
        numbers = self.indices

        def rows_of(i: int) -> NDArray[np.void]:
            rows = self.decode(i)[:]
            rows["run_id"] = numbers[i]
            return rows

        runs = map_ordered(rows_of, range(len(numbers)), workers)
        return _shuffled_steps(runs, batch_size, seed) if shuffle else _steps_in_order(runs, batch_size)

    def rows(self, indices: Iterable[int] | None = None, workers: int | None = None) -> RunRows:
        """Decode all runs (or some) into memory, as one source of rows; a step takes 23 to 27 bytes.

        Args:
            indices: run numbers; a row's ``run_id`` is the ordinal among them. None: all runs.
            workers: threads that decode; None: one for each core.

        Raises:
            IndexError, FormatError: as :meth:`decode`, for the first defective one.
        """
        return RunRows(self.decode_batch(range(len(self)) if indices is None else indices, workers))

    def split(
        self,
        unit: str = "run",
        test_pct: float | None = None,
        test_size: int | None = None,
        seed: int | None = 0,
        order: str = "random",
    ) -> tuple[PackView, PackView]:
        """Split the runs into a part to train with and a part to test with; every run is in one of them.

        The numbers are exact and hold for this pack alone. To keep a game on its side when others are added,
        split a corpus (:meth:`tape2048.Corpus.split`).

        Args:
            unit: of ``test_size`` and ``test_pct``: ``"run"``, or ``"step"``, for which all runs are decoded.
            test_pct: the test part's share, between 0 and 1, rounded down.
            test_size: the test part's runs or steps, in place of a share.
            seed: decides which runs are drawn, the same on every machine; None: fresh ones.
            order: ``"random"``, or ``"sequential"``: the first runs are the test part.

        Returns:
            The training part and the test part, both in the pack's order. The test part has a run or more, of
            steps at least so many, since runs are whole; it may have all of them.

        Raises:
            ValueError: an unknown ``unit`` or ``order``, both sizes or none, or one out of range.
            FormatError: as :meth:`decode`, with ``unit="step"``.

        Example:
            >>> from tape2048.packs import PackReader, pack_directory
            >>> _ = pack_directory("runs", "split.a2pack")
            >>> train, test = PackReader.open("split.a2pack").split(test_pct=0.5, seed=42)
            >>> len(train), len(test), set(train.indices) & set(test.indices)
            (1, 1, set())
        """
        if unit not in {"run", "step"}:
            raise ValueError(f"unit={unit!r}; expected 'run' or 'step'")
        if order not in {"random", "sequential"}:
            raise ValueError(f"order={order!r}; expected 'random' or 'sequential'")
        if (test_pct is None) == (test_size is None):
            raise ValueError(f"test_pct={test_pct}, test_size={test_size}; expected one of them")
        if test_pct is not None and not 0 < test_pct < 1:
            raise ValueError(f"test_pct={test_pct}; expected a share between 0 and 1")
        target = 0 if test_size is None else _at_least_1("test_size", test_size)
        count = len(self)
        sizes = np.ones(count, np.int64)
        if unit == "step":
            sizes[:] = list(map_ordered(lambda i: len(self.decode(i)), range(count)))
        if test_pct is not None:
            target = max(1, int(test_pct * int(sizes.sum())))
        drawn = _shuffled(count, seed) if order == "random" else np.arange(count)
        # The first whole runs that have so many together.
        chosen = drawn[: int(np.searchsorted(np.cumsum(sizes[drawn]), target)) + 1]
        in_test = np.zeros(count, np.bool_)
        in_test[chosen] = True
        return self._choose(~in_test), self._choose(in_test)

    def _number(self, i: SupportsIndex) -> int:
        number = operator.index(i)
        if not 0 <= number < len(self):
            raise IndexError(f"entry {number}; expected 0 <= entry < {len(self)}")
        return number


class PackView(PackedRuns):
    """Some runs of a pack, numbered from 0; made by :meth:`PackReader.split`.

    Example:
        >>> from tape2048.packs import PackReader, pack_directory
        >>> _ = pack_directory("runs", "view.a2pack")
        >>> pack = PackReader.open("view.a2pack")
        >>> train, test = pack.split(test_size=1, order="sequential")
        >>> train, train.indices, train[0].equals(pack[1])
        (<PackView of <PackReader view.a2pack: 2 runs>: 1 run>, array([1]), True)
    """

    def __init__(self, pack: PackedRuns, indices: NDArray[np.int64]) -> None:
        """Assemble a view; :meth:`PackReader.split` is the public way."""
        self._pack = pack
        self._indices = indices

    @property
    def indices(self) -> NDArray[np.int64]:
        """``i64[R]``: the runs' entry numbers in the pack, ascending."""
        return self._indices

    def __len__(self) -> int:
        """Number of runs."""
        return len(self._indices)

    def __repr__(self) -> str:
        return f"<PackView of {self._pack!r}: {counted(len(self), 'run')}>"

    def decode(self, i: SupportsIndex) -> RunV2:
        """Decode a run; errors as :meth:`PackReader.decode`."""
        return self._pack.decode(int(self._indices[self._number(i)]))

    def _choose(self, chosen: NDArray[np.bool_]) -> PackView:
        return PackView(self._pack, self._indices[chosen])


def _at_least_1(name: str, value: int) -> int:
    value = as_int(name, value)
    if value < 1:
        raise ValueError(f"{name}={value}; expected at least 1")
    return value


def _steps_in_order(runs: Iterator[NDArray[np.void]], batch_size: int) -> Iterator[NDArray[np.void]]:
    parts: list[NDArray[np.void]] = []
    count = 0
    for rows in runs:
        parts.append(rows)
        count += len(rows)
        if count < batch_size:
            continue
        joined = np.concatenate(parts)
        whole = count - count % batch_size
        for begin in range(0, whole, batch_size):
            yield joined[begin : begin + batch_size]
        parts, count = [joined[whole:]], count - whole
    if count:
        yield np.concatenate(parts)


def _shuffled_steps(
    runs: Iterator[NDArray[np.void]], batch_size: int, seed: int | None
) -> Iterator[NDArray[np.void]]:
    rows = np.concatenate([np.empty(0, ROW_DTYPE), *runs])
    order = _shuffled(len(rows), seed)
    for begin in range(0, len(rows), batch_size):
        yield rows.take(order[begin : begin + batch_size])  # a ninth of the time of rows[...]


def _shuffled(count: int, seed: int | None) -> NDArray[np.int64]:
    """Permute [0, count) by a hash of seed and number, independent of NumPy's generators."""
    key = secrets.randbits(64) if seed is None else seed & (2**64 - 1)
    # SplitMix64's sequence and finaliser (Steele, Lea, Flood 2014), a bijection: no two are equal.
    z = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15) + np.uint64(key)
    z = (z ^ z >> np.uint64(30)) * np.uint64(0xBF58476D1CE4E5B9)
    z = (z ^ z >> np.uint64(27)) * np.uint64(0x94D049BB133111EB)
    return np.argsort(z ^ z >> np.uint64(31))
