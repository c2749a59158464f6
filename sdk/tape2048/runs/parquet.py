"""Runs in Parquet, one run a row, boards and moves as lists; needs the extra ``arrow``.

Columns: ``steps u32, start_unix_s u64, elapsed_s f32, max_score u64, highest_tile u32, engine string,
states list<u64>, moves list<u8>``, and, null where a run has no branch values, ``branch_values
list<f32>`` (up, down, left, right of the first step, then of the second, ...), ``branch_legal list<u8>``
(legal masks) and ``has_branches list<u8>``. The columns hold all data of a run.

For analysis, ``UNNEST`` in DuckDB makes a row of each step.
"""

from __future__ import annotations

import itertools
import os
from typing import TYPE_CHECKING, Any

import numpy as np

from tape2048.errors import FieldError, FormatError, MissingPackageError
from tape2048.io.durable import new_file
from tape2048.runs.run import Run, RunMeta, check_meta

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

#: Runs in a row group: about 16,000 steps, some hundred kilobytes, to decode at once.
GROUP_RUNS = 16

_META = ("steps", "start_unix_s", "elapsed_s", "max_score", "highest_tile", "engine")
_LISTS = (("states", np.uint64), ("moves", np.uint8))
_BRANCHES = (("branch_values", np.float32), ("branch_legal", np.uint8), ("has_branches", np.uint8))


def _pyarrow() -> tuple[Any, Any]:
    try:
        import pyarrow as pa
        from pyarrow import parquet
    except ImportError as error:
        raise MissingPackageError(
            "Parquet needs pyarrow, which is not installed", hint="pip install 'tape2048[arrow]'"
        ) from error
    return pa, parquet


def _schema(pa: Any) -> Any:
    types = (pa.uint32(), pa.uint64(), pa.float32(), pa.uint64(), pa.uint32(), pa.string())
    fields = [
        pa.field(name, kind, nullable=name == "engine") for name, kind in zip(_META, types, strict=True)
    ]
    for name, dtype in (*_LISTS, *_BRANCHES):
        fields.append(pa.field(name, pa.list_(pa.from_numpy_dtype(dtype))))
    return pa.schema(fields)


def write_parquet(path: str | os.PathLike[str], runs: Iterable[Run]) -> int:
    """Write runs to a new file, which appears when it is complete; return their number."""
    pa, parquet = _pyarrow()
    schema = _schema(pa)
    count = 0
    with (
        new_file(path) as fd,
        os.fdopen(os.dup(fd), "wb") as file,
        parquet.ParquetWriter(file, schema, compression="zstd") as writer,
    ):
        remaining = iter(runs)
        while group := list(itertools.islice(remaining, GROUP_RUNS)):
            for run in group:
                check_meta(run.meta)
            writer.write_table(_table(pa, schema, group))
            count += len(group)
    return count


def _table(pa: Any, schema: Any, runs: list[Run]) -> Any:
    columns = [pa.array([getattr(run.meta, name) for run in runs], schema.field(name).type) for name in _META]
    for name, dtype in (*_LISTS, *_BRANCHES):
        arrays: list[NDArray[Any] | None] = [getattr(run, name) for run in runs]
        missing = np.array([array is None for array in arrays])
        flat = [np.empty(0, dtype) if array is None else array.reshape(-1) for array in arrays]
        offsets = np.cumsum([0, *(len(part) for part in flat)]).astype(np.int32)
        values = pa.array(np.concatenate(flat).astype(dtype, copy=False))
        columns.append(pa.ListArray.from_arrays(pa.array(offsets), values, mask=pa.array(missing)))
    return pa.table(columns, schema=schema)


def count_rows(path: Path) -> int:
    """Check a file's columns; return the number of its rows, which are runs."""
    pa, _ = _pyarrow()
    with _open(path) as file:
        if not file.schema_arrow.equals(_schema(pa)):
            names = ", ".join(file.schema_arrow.names)
            raise FormatError(f"columns {names}; expected {', '.join(_schema(pa).names)}", path=path)
        return int(file.metadata.num_rows)


def row_groups(path: Path) -> Iterator[list[tuple[str, dict[str, Any] | FormatError]]]:
    """Read rows for :func:`parse_row`, a row group at a time, with their names; or the group's error."""
    pa, _ = _pyarrow()
    with _open(path) as file:
        for group in range(file.num_row_groups):
            name = f"{path}: row group {group}"
            try:
                rows = file.read_row_group(group).to_pylist()
            except (pa.ArrowException, OSError) as error:
                found = FormatError(f"row group {group} is not readable: {error}", path=path)
                yield [(name, found.detach())]
            else:
                yield [(f"{name}, row {number}", row) for number, row in enumerate(rows)]


def _open(path: Path) -> Any:
    pa, parquet = _pyarrow()
    try:
        return parquet.ParquetFile(path)
    except (pa.ArrowException, OSError) as error:
        raise FormatError(f"not readable as Parquet: {error}", path=path) from error


def parse_row(row: dict[str, Any], path: Path) -> Run:
    """Make a run of a row; errors name the path."""
    meta = RunMeta(*(row[name] for name in _META))
    check_meta(meta, path)
    lists = {name: (row[name], dtype) for name, dtype in (*_LISTS, *_BRANCHES) if row[name] is not None}
    for name, (values, _) in lists.items():
        if None in values:  # NumPy would make it NaN, or raise TypeError
            raise FieldError(f"{name} has no value at {values.index(None)}", path=path)
    arrays: dict[str, Any] = {name: np.array(values, dtype) for name, (values, dtype) in lists.items()}
    if "branch_values" in arrays and len(arrays["branch_values"]) == 4 * meta.steps:
        arrays["branch_values"] = arrays["branch_values"].reshape(-1, 4)
    if "has_branches" in arrays:
        arrays["has_branches"] = arrays["has_branches"].astype(np.bool_)
    try:
        run = Run(meta=meta, **arrays)
    except (TypeError, ValueError) as error:
        raise FieldError(f"the lists do not fit {meta.steps} steps: {error}", path=path) from error
    if len(run) and int(run.moves.max()) > 3:
        raise FieldError(f"a move is {run.moves.max()}; expected 0 to 3", path=path)
    if run.branch_legal is not None and int(run.branch_legal.max(initial=0)) > 15:
        raise FieldError(f"a branch_legal is {run.branch_legal.max()}; expected 0 to 15", path=path)
    return run
