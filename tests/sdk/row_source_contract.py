"""What every source of rows keeps to; subclass ``RowSourceContract`` and give it ``source`` and ``expected``.

A source of rows has ``__len__``, ``__getitem__`` (a number or a slice) and ``get_batch`` (numbers in any
order, repeats allowed), and gives records of one dtype.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
import pytest

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class RowSource(Protocol):
    """A sequence of rows."""

    def __len__(self) -> int: ...

    def __getitem__(self, row: Any) -> Any: ...

    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]: ...


class RowSourceContract:
    """Tests against ``expected``, all rows as one array; at least 30 of them."""

    @pytest.fixture
    def source(self) -> RowSource:
        raise NotImplementedError

    @pytest.fixture
    def expected(self) -> NDArray[np.void]:
        raise NotImplementedError

    def test_length(self, source: RowSource, expected: NDArray[np.void]) -> None:
        assert len(source) == len(expected) >= 30

    def test_every_row_by_its_number(self, source: RowSource, expected: NDArray[np.void]) -> None:
        for number in {0, 1, len(expected) // 2, len(expected) - 1}:
            assert source[number] == expected[number]
            assert source[number].dtype == expected.dtype
        assert source[-1] == expected[-1]
        assert source[-len(expected)] == expected[0]

    def test_no_such_row(self, source: RowSource, expected: NDArray[np.void]) -> None:
        for number in (len(expected), -len(expected) - 1, 2**62):
            with pytest.raises(IndexError, match=str(number)):
                source[number]

    @pytest.mark.parametrize(
        "rows",
        [slice(None), slice(3, 9), slice(0, 0), slice(5, 2), slice(-7, None), slice(None, None, 3),
         slice(20, 4, -2), slice(10**9, None)],
        ids=str,
    )  # fmt: skip
    def test_slices(self, source: RowSource, expected: NDArray[np.void], rows: slice) -> None:
        found = source[rows]
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected[rows])

    def test_rows_cannot_be_written_through_a_slice(self, source: RowSource) -> None:
        found = source[2:5]
        if found.flags.writeable:  # a copy
            before = source[2]
            found[:] = np.zeros(1, found.dtype)
            assert source[2] == before

    @pytest.mark.parametrize("dtype", ["<i8", "<i4", "<u8", "<u2", ">i8"])
    def test_batch_in_any_order(self, source: RowSource, expected: NDArray[np.void], dtype: str) -> None:
        numbers = np.random.default_rng(0).integers(0, len(expected), 5000).astype(dtype)
        found = source.get_batch(numbers)
        assert found.dtype == expected.dtype
        np.testing.assert_array_equal(found, expected[numbers])

    def test_batch_of_what_numpy_makes_an_array_of(
        self, source: RowSource, expected: NDArray[np.void]
    ) -> None:
        np.testing.assert_array_equal(source.get_batch([7, 3, 3]), expected[[7, 3, 3]])
        np.testing.assert_array_equal(source.get_batch(np.arange(20)[::-3]), expected[np.arange(20)[::-3]])
        assert source.get_batch([]).shape == (0,)
        assert source.get_batch([]).dtype == expected.dtype

    @pytest.mark.parametrize("place", [0, 1, 4000])
    def test_wrong_number_in_a_batch(self, source: RowSource, expected: NDArray[np.void], place: int) -> None:
        for wrong in (-1, len(expected), 2**62, -(2**62)):
            numbers = np.zeros(4001, np.int64)
            numbers[place] = wrong
            with pytest.raises(IndexError, match=str(wrong)):
                source.get_batch(numbers)

    @pytest.mark.parametrize("numbers", [[1.5], [[1, 2]], ["a"], 3], ids=str)
    def test_what_is_no_list_of_numbers(self, source: RowSource, numbers: Any) -> None:
        with pytest.raises(TypeError):
            source.get_batch(numbers)
