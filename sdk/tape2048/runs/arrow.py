"""pyarrow, which reads and writes Parquet, Arrow and CSV; needs the extra ``arrow``."""

from __future__ import annotations

import contextlib
from typing import TYPE_CHECKING, Any

from tape2048.errors import FormatError, MissingPackageError, TapeError

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            "Parquet, Arrow and CSV need pyarrow, which is not installed",
            hint="pip install 'tape2048[arrow]'",
        ) from error
    return pa, parquet


@contextlib.contextmanager
def decoding(path: Path, what: str, kind: str = "Parquet") -> Iterator[None]:
    try:
        yield
    except TapeError:
        raise
    except Exception as error:  # of Arrow, Python's text decoder, and others: it depends on the damage
        raise FormatError(f"{what} is not readable as {kind}: {error}", path=path) from error
