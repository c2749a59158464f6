"""The contract that every source of rows keeps; one suite for all of them.

A test module of a source derives :class:`RowSourceContract` and gives it a fixture ``sample``.
"""

import copy
import pickle
from typing import Any, NamedTuple

import numpy as np
import pytest


class Sample(NamedTuple):
    """A source, and what its rows have to be.

    Attributes:
        source: with at least 20 rows.
        boards: ``u64[N]``: the packed board of each row.
        rows: the rows with all their fields, where a test knows them.
    """

    source: Any
    boards: np.ndarray
    rows: np.ndarray | None = None

    def check(self, found: np.ndarray, which: Any) -> None:
        """``found`` are the rows that ``which`` takes out of all."""
        np.testing.assert_array_equal(boards_of(found), self.boards[which])
        if self.rows is not None:
            assert found.dtype == self.rows.dtype
            np.testing.assert_array_equal(found, self.rows[which])


def boards_of(rows: np.ndarray) -> np.ndarray:
    """Packed boards of rows of any source, worked out cell by cell where they are exponents."""
    if "board" in rows.dtype.names:
        return rows["board"].astype(np.uint64)
    boards = np.zeros(len(rows), np.uint64)
    for cell in range(16):
        boards |= rows["exps"][:, cell].astype(np.uint64) << np.uint64(60 - 4 * cell)
    return boards


class RowSourceContract:
    """What batches and loaders rely on."""

    def test_length(self, sample: Sample) -> None:
        assert len(sample.source) == len(sample.boards) >= 20

    def test_a_row_by_its_number(self, sample: Sample) -> None:
        source, count = sample.source, len(sample.boards)
        for number in (0, 4, count - 1):
            sample.check(np.array([source[number]]), [number])
        for number in (count, -count - 1, 2**62):
            with pytest.raises(IndexError, match=str(number)):
                source[number]

    @pytest.mark.parametrize(
        "rows",
        [slice(None), slice(3, 9), slice(0, 0), slice(5, 2), slice(-7, None), slice(None, None, 3),
         slice(20, 4, -2), slice(10**9, None)],
        ids=str,
    )  # fmt: skip
    def test_slices(self, sample: Sample, rows: slice) -> None:
        source = sample.source
        found = source[rows]
        assert found.dtype == source.get_batch([0]).dtype
        sample.check(found, rows)
        if found.flags.writeable:  # a copy
            found[:] = np.zeros((), found.dtype)
            sample.check(source[rows], rows)

    @pytest.mark.parametrize("dtype", ["<i8", "<u8", "<i4", "<u2", ">i8"])
    def test_a_batch_is_the_rows_in_the_order_requested(self, sample: Sample, dtype: str) -> None:
        rng = np.random.default_rng(1)
        for size in (1, 7, 5000):
            numbers = rng.integers(0, len(sample.boards), size).astype(dtype)
            batch = sample.source.get_batch(numbers)
            assert batch.shape == (size,)
            sample.check(batch, numbers)

    def test_lists_and_strided_numbers(self, sample: Sample) -> None:
        for numbers in ([5, 0, 5], np.arange(20)[::-3]):
            sample.check(sample.source.get_batch(numbers), numbers)

    def test_every_row_once(self, sample: Sample) -> None:
        sample.check(sample.source.get_batch(np.arange(len(sample.boards))), slice(None))

    def test_no_rows(self, sample: Sample) -> None:
        assert sample.source.get_batch([]).shape == (0,)
        assert sample.source.get_batch(np.empty(0, np.int64)).dtype == sample.source.get_batch([0]).dtype

    def test_a_batch_is_the_caller_s_own(self, sample: Sample) -> None:
        before = sample.source.get_batch([0, 1]).copy()
        batch = sample.source.get_batch([0, 1])
        batch[:] = np.zeros((), batch.dtype)
        np.testing.assert_array_equal(sample.source.get_batch([0, 1]), before)

    @pytest.mark.parametrize("bad", [-1, 2**40, -(2**63)])
    def test_numbers_outside_are_refused(self, sample: Sample, bad: int) -> None:
        numbers = np.full(4001, 3, np.int64)
        for place in (0, 25, 49, 4000):  # before, within and after what a gather looks ahead
            wrong = numbers.copy()
            wrong[place] = bad
            with pytest.raises(IndexError, match=str(bad)):
                sample.source.get_batch(wrong)
        with pytest.raises(IndexError):
            sample.source.get_batch([len(sample.boards)])

    @pytest.mark.parametrize("bad", [np.zeros((2, 2), np.int64), [1.5], ["a"], 3], ids=str)
    def test_what_are_no_numbers_is_refused(self, sample: Sample, bad: Any) -> None:
        with pytest.raises(TypeError):
            sample.source.get_batch(bad)

    def test_copies_and_pickles_are_the_same_source(self, sample: Sample) -> None:
        numbers = np.arange(0, len(sample.boards), 3)
        for again in (copy.copy(sample.source), pickle.loads(pickle.dumps(sample.source))):  # noqa: S301 - our own
            sample.check(again.get_batch(numbers), numbers)
