"""Runs in Parquet: a row for each run, with boards and moves as lists; needs the extra ``arrow``.

The columns hold all data of a run:

* ``steps u32, start_unix_s u64, elapsed_s f32, max_score u64, highest_tile u32, engine string, states
  list<u64>, moves list<u8>``;
* ``branch_values list<f32>`` (up, down, left, right of the first step, then of the second, ...),
  ``branch_legal list<u8>`` (legal masks) and ``has_branches list<u8>``: null for a run without branch values.

The reader ignores other columns. It takes integers and floats of any width, and lists of any kind, if no
value changes. For analysis, ``UNNEST`` in DuckDB makes a row for each step.
"""

from __future__ import annotations

import functools
import itertools
import math
import os
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.errors import FieldError, FormatError
from tape2048.files.durable import new_file
from tape2048.files.expansion import expanded_max
from tape2048.runs import foreign_games
from tape2048.runs.arrow import decoding, pyarrow
from tape2048.runs.run import Run, RunMeta, RunSource, check_meta
from tape2048.session.tape_layout import GAME_STEPS_MAX

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.runs.conversion import Conversion

#: Runs in a row group, which is decoded at once: about 16,000 steps in a hundred kilobytes.
GROUP_RUNS = 16

_META = ("steps", "start_unix_s", "elapsed_s", "max_score", "highest_tile", "engine")
_LISTS = (("states", np.uint64), ("moves", np.uint8))
_BRANCHES = (("branch_values", np.float32), ("branch_legal", np.uint8), ("has_branches", np.uint8))

#: Most values of a run in each list.
_VALUES_MAX = {
    "states": GAME_STEPS_MAX + 1,
    "moves": GAME_STEPS_MAX,
    "branch_values": 4 * GAME_STEPS_MAX,
    "branch_legal": GAME_STEPS_MAX,
    "has_branches": GAME_STEPS_MAX,
}


def _schema(pa: Any) -> Any:
    types = (pa.uint32(), pa.uint64(), pa.float32(), pa.uint64(), pa.uint32(), pa.string())
    fields = [
        pa.field(name, kind, nullable=name == "engine") for name, kind in zip(_META, types, strict=True)
    ]
    for name, dtype in (*_LISTS, *_BRANCHES):
        fields.append(pa.field(name, pa.list_(pa.from_numpy_dtype(dtype))))
    return pa.schema(fields)


def read(path: Path, kind: str, **how: Any) -> RunSource:
    """Open a file for a conversion: of this format, or of another program."""
    with _open(path) as file:
        names = {*file.schema_arrow.names}
    if not {"steps", "states", "moves"} <= names:
        return foreign_games.read(path, "foreign", **how)
    rows = functools.partial(_rows, path, path.absolute())
    return RunSource(path, kind, _count_rows(path), rows, lambda row: (_parse_row(row, path),))


def write(flow: Conversion) -> None:
    """Write a row for each run of a conversion."""
    write_parquet(flow.target, flow.runs())


def write_parquet(path: str | os.PathLike[str], runs: Iterable[Run]) -> int:
    """Write runs to a new file, which appears when it is complete; return their number."""
    pa, parquet = pyarrow()
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
            writer.write_table(pa.Table.from_pylist(list(map(_row, group)), schema))
            count += len(group)
    return count


def _row(run: Run) -> dict[str, Any]:
    row = msgspec.structs.asdict(run.meta)
    for name, dtype in (*_LISTS, *_BRANCHES):
        array = getattr(run, name)
        row[name] = None if array is None else array.reshape(-1).astype(dtype)
    return row


def _count_rows(path: Path) -> int:
    """Check a file's columns; return the number of its runs."""
    pa, _ = pyarrow()
    with decoding(path, "the file"), _open(path) as file:
        found = {field.name: field.type for field in file.schema_arrow}
        for due in _schema(pa):
            if due.name not in found or not _holds(pa.types, found[due.name], due.type):
                raise FormatError(
                    f"column {due.name} is {found.get(due.name, 'missing')}; expected {due.type}", path=path
                )
        rows, groups = file.metadata.num_rows, range(file.num_row_groups)
        if rows != (found_rows := sum(file.metadata.row_group(group).num_rows for group in groups)):
            raise FormatError(f"found {found_rows} rows in row groups. The metadata says {rows}", path=path)
        return int(rows)


def _holds(types: Any, found: Any, due: Any) -> bool:
    """Check that a column's type is of the expected kind, of any width."""
    if types.is_dictionary(found):
        return _holds(types, found.value_type, due)
    if types.is_list(due):
        is_list = types.is_list(found) or types.is_large_list(found) or types.is_fixed_size_list(found)
        return types.is_null(found) or (is_list and _holds(types, found.value_type, due.value_type))
    if types.is_string(due):
        kinds = (types.is_string, types.is_large_string, types.is_string_view, types.is_null)
    else:
        kinds = (types.is_integer, types.is_floating)[: 1 + types.is_floating(due)]
    return any(is_kind(found) for is_kind in kinds)


def _rows(path: Path, whole: Path) -> Iterator[tuple[str, dict[str, Any] | FormatError]]:
    """Yield the names and rows; instead of the rows of a group that cannot be read, the error."""
    pa, _ = pyarrow()
    with _open(whole) as file:
        for group in range(file.num_row_groups):
            name, done, count = f"{path}: row group {group}", 0, file.metadata.row_group(group).num_rows
            try:
                with decoding(path, f"row group {group}"):
                    _check_group(file.metadata.row_group(group), path, whole)
                    for rows in file.iter_batches(GROUP_RUNS, [group], _schema(pa).names):
                        long = _find_long(rows, path)
                        for i in range(len(rows)):
                            row = long[i] if i in long else rows.slice(i, 1).to_pylist()[0]
                            yield f"{name}, row {done + i}", row
                        done += len(rows)
                    if done != count:
                        raise ValueError(f"it ends after {done} of {count} rows")
            except FormatError as error:
                yield f"{name}, rows {done} to {count - 1}", error.detach()


def _check_group(group: Any, path: Path, whole: Path) -> None:
    """Raise FormatError for a row group with more values than its games can have, before it is read."""
    needed = stored = 0
    for chunk in map(group.column, range(group.num_columns)):
        name = chunk.path_in_schema.partition(".")[0]
        if name not in {*_META, *_VALUES_MAX}:
            continue
        most = group.num_rows * _VALUES_MAX.get(name, 1)
        if chunk.num_values > most:
            text = f"{name} has {chunk.num_values} values for {group.num_rows} rows; expected at most {most}"
            raise FieldError(text, path=path)
        needed += max(8 * chunk.num_values, chunk.total_uncompressed_size)
        stored += chunk.total_compressed_size
    if needed > (most := expanded_max(min(stored, whole.stat().st_size))):
        text = f"{stored} bytes of a row group expand to {needed}; expected at most {most}"
        raise FormatError(text, path=path)


def _find_long(rows: Any, path: Path) -> dict[int, FieldError]:
    """Return the errors of the rows that have more values than a game can have, by row."""
    from pyarrow import compute, types

    found = {}
    for name, most in _VALUES_MAX.items():
        lists = rows.column(name)
        if types.is_null(lists.type):
            continue
        for row in np.flatnonzero(compute.fill_null(compute.list_value_length(lists), 0).to_numpy() > most):
            text = f"{name} has {len(lists[int(row)])} values; expected at most {most}, as no game is longer"
            found[int(row)] = FieldError(text, path=path)
    return found


def _open(path: Path) -> Any:
    _, parquet = pyarrow()
    with decoding(path, "the file"):
        return parquet.ParquetFile(path)


def _parse_row(row: dict[str, Any] | FormatError, path: Path) -> Run:
    """Make a run from a row, or raise the error of its row group. Errors name the path."""
    if isinstance(row, FormatError):
        raise row
    meta = RunMeta(*(row[name] for name in _META))
    check_meta(meta, path)
    lists = ((name, dtype) for name, dtype in (*_LISTS, *_BRANCHES) if row[name] is not None)
    arrays: dict[str, Any] = {name: _numbers(name, row[name], dtype, path) for name, dtype in lists}
    if "branch_values" in arrays and len(arrays["branch_values"]) == 4 * meta.steps:
        arrays["branch_values"] = arrays["branch_values"].reshape(-1, 4)
    if "has_branches" in arrays:
        arrays["has_branches"] = arrays["has_branches"].astype(np.bool_)
    try:
        run = Run(meta=meta, **arrays)
    except (TypeError, ValueError) as error:
        raise FieldError(f"the lists do not fit {meta.steps} steps: {error}", path=path) from error
    if run.branch_legal is not None and int(run.branch_legal.max(initial=0)) > 15:
        raise FieldError(f"a branch_legal is {run.branch_legal.max()}; expected 0 to 15", path=path)
    return run


def _numbers(name: str, values: list[Any], dtype: Any, path: Path) -> NDArray[Any]:
    if None in values:  # NumPy would make it NaN, or raise TypeError
        raise FieldError(f"{name} is null at index {values.index(None)}; expected a number", path=path)
    try:
        with np.errstate(over="ignore"):
            array = np.array(values, dtype)
        held = array.tolist()
    except OverflowError:
        held = [None] * len(values)
    for value, now in zip(values, held, strict=True):
        if value != now and not math.isnan(value):
            raise FieldError(f"{name} has {value}, which a {np.dtype(dtype)} cannot hold", path=path)
    return array
