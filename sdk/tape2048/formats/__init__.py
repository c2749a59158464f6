"""Layouts shared by several rooms: `.npy` headers, `metadata.db`, manifests, rows of sessions and data sets.

- `RowView`: indexing of all row sources.
- `read_header`: reads and checks the header of an open `.npy` file.
- `open_rows`: opens the rows of a `.npy` file.
- `read_metadata`: reads a session's `metadata.db`.
- `write_metadata`: writes a session's `metadata.db`.
- `step_dtype`: the row type of `steps.npy`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.formats.metadata import read_metadata as read_metadata
    from tape2048.formats.metadata import write_metadata as write_metadata
    from tape2048.formats.npy import open_rows as open_rows
    from tape2048.formats.npy import read_header as read_header
    from tape2048.formats.rows import RowView as RowView
    from tape2048.formats.session import step_dtype as step_dtype
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        rows="RowView",
        npy="read_header open_rows",
        metadata="read_metadata write_metadata",
        session="step_dtype",
    )
