"""The files of a session that grow with its rows: the games, and the columns recorded with them."""

from __future__ import annotations

from typing import NamedTuple, Self

import numpy as np

from tape2048.files.npy import rows_header
from tape2048.session.column_draft import COLUMN_HEADER_BYTES
from tape2048.session.columns import ColumnInfo
from tape2048.session.layout import (
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    TAPE,
    step_dtype,
)
from tape2048.session.tape_layout import TAPE_DTYPE, TAPE_HEADER_BYTES, TAPE_NPY

#: The columns that a recorder can write beside the rows: the values of the moves, and the loss of the move.
COLUMNS = {
    "values": ColumnInfo("values", "f32", 4, facts={"moves": True}),
    "loss": ColumnInfo("loss", "f32"),
}


class RowsFile(NamedTuple):
    """A file with one item per row: ``steps.npy``, ``tape.npy`` (one byte per row), or a column."""

    name: str
    dtype: np.dtype
    header_bytes: int

    @classmethod
    def of(cls, storage: str, *, record_action: bool) -> Self:
        if storage == TAPE:
            return cls(TAPE_NPY, TAPE_DTYPE, TAPE_HEADER_BYTES)
        return cls(STEPS_NPY, step_dtype(record_action=record_action), STEPS_HEADER_BYTES)

    @classmethod
    def of_column(cls, column: ColumnInfo) -> Self:
        dtype = np.dtype((column.numpy_dtype, column.shape[1:]))
        return cls(column.npy_name, dtype, COLUMN_HEADER_BYTES)

    @property
    def is_tape(self) -> bool:
        return self.name == TAPE_NPY

    @property
    def row_bytes(self) -> int:
        return self.dtype.itemsize

    def at(self, row: int) -> int:
        """Return the byte offset of a row. For the number of rows, it is the file's size."""
        return self.header_bytes + row * self.row_bytes

    def header(self, rows: int) -> bytes:
        return rows_header(self.dtype.base, rows, self.header_bytes, *self.dtype.shape)
