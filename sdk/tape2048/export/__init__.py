"""Rows and runs for other tools: Parquet, Arrow, JSON lines, CSV.

- `export`: writes one file in a format.
- `run_file_table`: sums up run files as a table.
- `write_table`: writes one table in a format.
- `write_jsonl`: writes JSON lines.
- `write_csv`: writes comma-separated values.
- `record_batches`: a corpus as Arrow record batches.
- `schema`: the Arrow schema of a table.
- `write_arrow`: writes an Arrow IPC file.
- `write_parquet`: writes a Parquet file.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from tape2048.base.lazy import lazy

if TYPE_CHECKING:
    from tape2048.export.arrow import record_batches as record_batches
    from tape2048.export.arrow import schema as schema
    from tape2048.export.arrow import write_arrow as write_arrow
    from tape2048.export.arrow import write_parquet as write_parquet
    from tape2048.export.table import run_file_table as run_file_table
    from tape2048.export.write import export as export
    from tape2048.export.write import write_csv as write_csv
    from tape2048.export.write import write_jsonl as write_jsonl
    from tape2048.export.write import write_table as write_table
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__,
        table="run_file_table",
        write="export write_table write_jsonl write_csv",
        arrow="record_batches schema write_arrow write_parquet",
    )
