"""The indexing of all row sources: a length, rows by number, batches of rows."""

from __future__ import annotations

import operator
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING, Any, SupportsIndex, overload

import numpy as np

from tape2048.base.text import counted

if TYPE_CHECKING:
    from numpy.typing import ArrayLike, NDArray


class RowView(ABC):
    """Base class of all row sources; implements indexing with :meth:`get_batch`.

    Example:
        >>> from tape2048 import Session, sessions
        >>> session = Session.open(sessions("selfplay")[0])
        >>> isinstance(session, RowView), len(session[10:20]), session.get_batch([7, 7]).shape
        (True, 10, (2,))
    """

    @abstractmethod
    def __len__(self) -> int:
        """Number of rows, N."""

    @abstractmethod
    def get_batch(self, indices: ArrayLike) -> NDArray[np.void]:
        """Read rows by number, in the given order.

        Args:
            indices: row numbers (integers of one dimension, repeats allowed) or a mask ``bool[N]``.
                Negative numbers are errors, and do not count from the end.

        Returns:
            A new structured array ``[len(indices)]``.

        Raises:
            IndexError: a number is outside [0, N), or a mask has another length.
            TypeError: the indices are not integers of one dimension.
        """

    @overload  # an integer is also an ArrayLike: the first overload that fits counts
    def __getitem__(self, rows: int | np.integer[Any]) -> np.void: ...

    @overload
    def __getitem__(self, rows: slice | ArrayLike) -> NDArray[np.void]: ...

    def __getitem__(self, rows: SupportsIndex | slice | ArrayLike) -> np.void | NDArray[np.void]:
        """Return a row as a record, or several as :meth:`get_batch`; -1 is the last row."""
        if isinstance(rows, slice):
            return self._range(*rows.indices(len(self)))
        try:
            given = operator.index(rows)  # type: ignore[arg-type]
        except TypeError:
            return self.get_batch(rows)  # type: ignore[arg-type]
        number = given + len(self) if given < 0 else given
        if not 0 <= number < len(self):
            raise IndexError(f"row {given}; expected {-len(self)} <= row < {len(self)}")
        row: np.void = self.get_batch(np.array([number]))[0]
        return row

    def _range(self, first: int, end: int, step: int) -> NDArray[np.void]:
        return self.get_batch(np.arange(first, end, step, dtype=np.int64))


def run_ordinal(run: SupportsIndex, count: int) -> int:
    """Check the ordinal of a run; IndexError for an unknown run, TypeError if it is not an integer."""
    try:
        ordinal = operator.index(run)
    except TypeError:
        raise TypeError(f"run ordinal {run!r}; expected a whole number") from None
    if not 0 <= ordinal < count:
        raise IndexError(f"run ordinal {ordinal}; expected 0 <= ordinal < {count}")
    return ordinal


def row_numbers(rows: ArrayLike, count: int) -> NDArray[np.int64]:
    """Convert row numbers, or a mask ``bool[count]``, to ``i64[n]``; errors: :meth:`RowView.get_batch`."""
    numbers = unchecked_numbers(rows, count)
    if len(numbers):
        lowest, highest = int(numbers.min()), int(numbers.max())
        if lowest < 0 or highest >= count:
            raise IndexError(f"row {lowest if lowest < 0 else highest}; expected 0 <= row < {count}")
    return numbers.astype(np.int64, copy=False)


def unchecked_numbers(rows: ArrayLike, count: int) -> NDArray[np.integer[Any]]:
    """Convert as :func:`row_numbers`, of any integer type, without the check against ``count``."""
    numbers = np.asarray(rows)
    if numbers.ndim == 1 and numbers.size == 0 and numbers.dtype != np.bool_:
        return np.empty(0, np.int64)  # NumPy takes [] for floats
    if numbers.ndim != 1 or numbers.dtype.kind not in "biu":
        found = f"found {numbers.dtype} of shape {numbers.shape}"
        raise TypeError(f"{found}; expected row numbers or a mask, of one dimension")
    if numbers.dtype == np.bool_:
        if len(numbers) != count:
            raise IndexError(f"a mask of {counted(len(numbers), 'row')}; expected {count}, one for each row")
        return np.flatnonzero(numbers)
    return numbers
