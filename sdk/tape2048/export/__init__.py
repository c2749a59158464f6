"""Rows and runs for other tools: Parquet, Arrow, JSON lines, CSV."""

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.export.arrow import record_batches as record_batches
    from tape2048.export.table import run_file_table as run_file_table
    from tape2048.export.write import export as export, write_table as write_table
else:
    __getattr__, __dir__, __all__ = lazy(__name__)
