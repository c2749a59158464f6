"""The contract that every source of rows keeps; one suite for all of them.

A test module of a source derives :class:`RowSourceContract` and gives it a fixture ``sample``.
"""

from __future__ import annotations

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
        pickles: whether it can be sent to another process.
    """

    source: Any
    boards: np.ndarray
    pickles: bool = True


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

    @pytest.mark.parametrize("dtype", [np.int64, np.uint64, np.int32, np.uint16])
    def test_a_batch_is_the_rows_in_the_order_asked_for(self, sample: Sample, dtype: type) -> None:
        rng = np.random.default_rng(1)
        for size in (1, 7, 300):
            numbers = rng.integers(0, len(sample.boards), size).astype(dtype)
            batch = sample.source.get_batch(numbers)
            assert batch.shape == (size,)
            np.testing.assert_array_equal(boards_of(batch), sample.boards[numbers])

    def test_lists_slices_masks_and_single_rows(self, sample: Sample) -> None:
        source, boards = sample.source, sample.boards
        np.testing.assert_array_equal(boards_of(source.get_batch([5, 0, 5])), boards[[5, 0, 5]])
        np.testing.assert_array_equal(boards_of(source[3:17:2]), boards[3:17:2])
        mask = np.arange(len(boards)) % 3 == 1
        np.testing.assert_array_equal(boards_of(source[mask]), boards[mask])
        assert boards_of(np.array([source[4]]))[0] == boards[4]
        assert boards_of(np.array([source[len(boards) - 1]]))[0] == boards[-1]

    def test_every_row_once(self, sample: Sample) -> None:
        everything = sample.source.get_batch(np.arange(len(sample.boards)))
        np.testing.assert_array_equal(boards_of(everything), sample.boards)

    def test_no_rows(self, sample: Sample) -> None:
        assert len(sample.source.get_batch([])) == 0
        assert sample.source.get_batch(np.empty(0, np.int64)).dtype == sample.source.get_batch([0]).dtype

    def test_a_batch_is_the_caller_s_own(self, sample: Sample) -> None:
        before = sample.source.get_batch([0, 1]).copy()
        batch = sample.source.get_batch([0, 1])
        batch[:] = np.zeros((), batch.dtype)
        np.testing.assert_array_equal(sample.source.get_batch([0, 1]), before)

    @pytest.mark.parametrize("bad", [-1, 2**40, -(2**63)])
    def test_numbers_outside_are_refused(self, sample: Sample, bad: int) -> None:
        numbers = np.full(50, 3, np.int64)
        for place in (0, 25, 49):  # before, within and after what a gather looks ahead
            wrong = numbers.copy()
            wrong[place] = bad
            with pytest.raises(IndexError, match=str(bad)):
                sample.source.get_batch(wrong)
        with pytest.raises(IndexError):
            sample.source.get_batch([len(sample.boards)])

    def test_a_mask_of_another_length_is_refused(self, sample: Sample) -> None:
        with pytest.raises(IndexError):
            sample.source.get_batch(np.ones(len(sample.boards) + 1, np.bool_))

    @pytest.mark.parametrize("bad", [np.zeros((2, 2), np.int64), np.array([0.0]), np.array(["a"])])
    def test_what_are_no_numbers_is_refused(self, sample: Sample, bad: np.ndarray) -> None:
        with pytest.raises(TypeError):
            sample.source.get_batch(bad)

    def test_copies_and_pickles_are_the_same_source(self, sample: Sample) -> None:
        numbers = np.arange(0, len(sample.boards), 3)
        expected = sample.source.get_batch(numbers)
        np.testing.assert_array_equal(copy.copy(sample.source).get_batch(numbers), expected)
        if sample.pickles:
            again = pickle.loads(pickle.dumps(sample.source))  # noqa: S301 - our own
            np.testing.assert_array_equal(again.get_batch(numbers), expected)
