"""The contract that every source of rows keeps; one function checks all of it."""

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


SLICES = (
    slice(None), slice(3, 9), slice(0, 0), slice(5, 2), slice(-7, None), slice(None, None, 3),
    slice(20, 4, -2), slice(10**9, None),
)  # fmt: skip


def check_contract(sample: Sample) -> None:
    """Check what batches and loaders rely on."""
    source, count = sample.source, len(sample.boards)
    assert len(source) == count >= 20
    dtype = source.get_batch([0]).dtype
    _check_single_rows(sample)
    for rows in SLICES:
        found = source[rows]
        assert found.dtype == dtype
        sample.check(found, rows)
        if found.flags.writeable:  # a copy
            found[:] = np.zeros((), found.dtype)
            sample.check(source[rows], rows)

    rng = np.random.default_rng(1)
    for kind in ("<i8", "<u8", "<i4", "<u2", ">i8"):
        for size in (1, 7, 5000):
            numbers = rng.integers(0, count, size).astype(kind)
            batch = source.get_batch(numbers)
            assert batch.shape == (size,)
            sample.check(batch, numbers)
    for numbers in ([5, 0, 5], np.arange(20)[::-3]):
        sample.check(source.get_batch(numbers), numbers)
    sample.check(source.get_batch(np.arange(count)), slice(None))
    mask = np.arange(count) % 3 == 1
    sample.check(source[mask], mask)
    assert source.get_batch([]).shape == (0,)
    assert source.get_batch(np.empty(0, np.int64)).dtype == dtype
    batch = source.get_batch([0, 1])  # the caller's own
    before = batch.copy()
    batch[:] = np.zeros((), batch.dtype)
    np.testing.assert_array_equal(source.get_batch([0, 1]), before)

    _check_refusals(source, count)
    numbers = np.arange(0, count, 3)
    for again in (copy.copy(source), pickle.loads(pickle.dumps(source))):  # noqa: S301 - our own
        sample.check(again.get_batch(numbers), numbers)


def _check_single_rows(sample: Sample) -> None:
    count = len(sample.boards)
    for number in (0, 4, count - 1, -1, -count):
        sample.check(np.array([sample.source[number]]), [number])
    for number in (count, -count - 1, 2**62):
        with pytest.raises(IndexError, match=str(number)):
            sample.source[number]


def _check_refusals(source: Any, count: int) -> None:
    for bad in (-1, 2**40, -(2**63)):
        for place in (0, 25, 49, 4000):  # before, within and after what a gather looks ahead
            wrong = np.full(4001, 3, np.int64)
            wrong[place] = bad
            with pytest.raises(IndexError, match=str(bad)):
                source.get_batch(wrong)
    for outside in ([count], np.ones(count + 1, np.bool_)):
        with pytest.raises(IndexError):
            source.get_batch(outside)
    for no_numbers in (np.zeros((2, 2), np.int64), [1.5], ["a"], 3):
        with pytest.raises(TypeError):
            source.get_batch(no_numbers)
