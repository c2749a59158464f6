"""The file that holds the games of a session: its name, its rows, its header."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from tape2048.formats.npy import rows_header
from tape2048.formats.session import (
    STEPS_HEADER_BYTES,
    STEPS_NPY,
    TAPE,
    step_dtype,
)
from tape2048.tape.layout import TAPE_DTYPE, TAPE_HEADER_BYTES, TAPE_NPY

if TYPE_CHECKING:
    import numpy as np


class GamesFile(NamedTuple):
    """``steps.npy``, or ``tape.npy`` whose rows are single bytes."""

    name: str
    dtype: np.dtype
    header_bytes: int

    @classmethod
    def of(cls, storage: str, *, record_action: bool) -> GamesFile:
        """Return the file of a session; ``storage`` is the setting, ``"rows"`` or ``"tape"``."""
        if storage == TAPE:
            return cls(TAPE_NPY, TAPE_DTYPE, TAPE_HEADER_BYTES)
        return cls(STEPS_NPY, step_dtype(record_action=record_action), STEPS_HEADER_BYTES)

    @property
    def is_tape(self) -> bool:
        """Whether a row is a step on tape."""
        return self.name == TAPE_NPY

    @property
    def row_bytes(self) -> int:
        """Bytes of a row."""
        return self.dtype.itemsize

    def at(self, row: int) -> int:
        """Return the byte at which a row starts. That of the row after the last one is the file's size."""
        return self.header_bytes + row * self.row_bytes

    def header(self, rows: int) -> bytes:
        """Make the header of a file of this many rows."""
        return rows_header(self.dtype, rows, self.header_bytes)
