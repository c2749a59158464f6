"""Rows and runs for other tools: Parquet, Arrow, JSON lines.

- `export`: writes one file in a format.
- `write_jsonl`: writes JSON lines.
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
    from tape2048.export.write import export as export
    from tape2048.export.write import write_jsonl as write_jsonl
else:
    __getattr__, __dir__, __all__ = lazy(
        __name__, write="export write_jsonl", arrow="record_batches schema write_arrow write_parquet"
    )
