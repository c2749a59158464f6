"""Shared layouts: `.npy` headers, `metadata.db`, manifests, rows of sessions and data sets."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.formats.metadata import read_metadata as read_metadata, write_metadata as write_metadata
    from tape2048.formats.npy import open_rows as open_rows, read_header as read_header
    from tape2048.formats.rows import RowView as RowView
    from tape2048.formats.session import step_dtype as step_dtype
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
