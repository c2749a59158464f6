"""Files: durable writes, bounded reads of untrusted files, `.npy`, SQLite, safetensors, locks.

Paths and arrays come in. Files that are complete or absent come out, and arrays whose sizes were compared
with the file. Errors name the path and the offset. Open ``durable.py`` first for writing, ``reading.py``
for reading.
"""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.files.npy import open_rows as open_rows, read_header as read_header
    from tape2048.files.row_source import RowView as RowView
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
