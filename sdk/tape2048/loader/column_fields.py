"""Columns as fields of batches: files of the sessions, and arrays in memory."""

from __future__ import annotations

import difflib
from typing import TYPE_CHECKING, Any, NamedTuple

import msgspec
import numpy as np

from tape2048.errors import ColumnError, CorpusError
from tape2048.loader.batch import BatchLayout, check_fields
from tape2048.loader.column_kernel import A_MOVE
from tape2048.loader.options import as_label_dtype
from tape2048.loader.plan import ColumnEntries
from tape2048.loader.row_map import address_of, line_of
from tape2048.session.batch_fields import AHEAD, FIELDS, field_of
from tape2048.session.columns import COLUMN_DTYPES, ColumnInfo, Located, check_column_name
from tape2048.session.former_names import name_hint

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from numpy.typing import NDArray

    from tape2048.loader.options import LabelLike
    from tape2048.loader.row_view import ViewTables

#: The facts of columns that are equal in all sessions of a view. If sessions number the same ``names``
#: differently, the numbers of the first session replace the others.
_SHARED_FACTS = ("model_sha", "pooling", "player_sha256", "thresholds", "moves", "names")


class ViewColumn(NamedTuple):
    """A column over the rows of a view; ``kept`` has the arrays that ``entries`` points to."""

    info: ColumnInfo
    entries: ColumnEntries
    paths: Mapping[int, Path]
    kept: Sequence[NDArray[Any]]

    @property
    def path(self) -> Path | None:
        return next(iter(self.paths.values()), None)


def plan_fields(
    tables: ViewTables,
    fields: Sequence[str],
    tiles: NDArray[np.int64],
    label_dtype: LabelLike,
    *,
    extra: Mapping[str, NDArray[Any]] | None = None,
    weight: str | None = None,
    targets: str | None = None,
    turned: bool = False,
) -> tuple[BatchLayout, list[ViewColumn]]:
    names, label_dtype = list(check_fields(fields)), as_label_dtype(label_dtype)
    arrays = dict(extra or {})
    names += [name for name in arrays if name not in {*names, weight, targets}]
    names += [name for name, own in (("weight", weight), ("labels", targets)) if own and name not in names]
    wanted = [*(name for name in names if not field_of(name)), *filter(None, (weight, targets))]
    for name in (*arrays, *wanted):
        check_column_name(name)
    columns = {
        name: _of_array(name, arrays[name], tables) if name in arrays else _of_files(name, tables)
        for name in dict.fromkeys(wanted)
    }
    for each in columns.values() if turned else ():
        info, path = each.info, each.path
        if info.facts["model_sha"]:
            raise CorpusError(
                f"the column {info.name} belongs to unturned boards, but augment turns the boards",
                path=path,
                hint="Pass augment=None, or leave the column out.",
            )
        if info.facts["moves"] and info.width != 4 and (info.dtype, info.width) != ("u8", None):
            found = f"the column {info.name} has moves in {_describe(info)}"
            raise CorpusError(f"{found}; expected [N, 4] or u8 [N]", path=path)
    if weight and (width := columns[weight].info.width) is not None:
        raise ValueError(f"weight={weight!r} has shape [N, {width}]; expected [N]")
    if targets:
        label_dtype = "float32"
        info = columns[targets].info
        if (info.width or 1) != len(tiles):
            raise ValueError(
                f"targets={targets!r} is {_describe(info)}; expected [N, {len(tiles)}], one per threshold"
            )
        if info.facts["thresholds"] not in (None, tiles.tolist()):
            found = f"the column {targets} was made for the thresholds {info.facts['thresholds']}"
            raise CorpusError(
                f"{found}; expected {tiles.tolist()}",
                path=columns[targets].path,
                hint="Pass the column's thresholds.",
            )
    infos = tuple(column.info for column in columns.values())
    return BatchLayout(tuple(names), len(tiles), label_dtype, infos, weight, targets), [*columns.values()]


def _of_array(name: str, array: Any, tables: ViewTables) -> ViewColumn:
    found = np.asarray(array)
    rows = int(tables.rowmap.run_starts[-1])
    dtype = next((key for key, text in COLUMN_DTYPES.items() if found.dtype.newbyteorder("<") == text), None)
    if dtype is None or found.ndim not in {1, 2} or len(found) != rows or 0 in found.shape:
        raise ValueError(
            f"extra: {name} is {found.dtype} of shape {found.shape}; expected numbers of shape ({rows},) or "
            f"({rows}, D), for the {rows} rows of the corpus"
        )
    found = np.ascontiguousarray(found, COLUMN_DTYPES[dtype])
    info = ColumnInfo(
        name, dtype, found.shape[1] if found.ndim == 2 else None, facts=dict.fromkeys(_SHARED_FACTS)
    )
    return ViewColumn(info, _entries(info, address_of(found)), {}, [found])


def _of_files(name: str, tables: ViewTables) -> ViewColumn:
    rows, sessions = tables.rowmap, tables.store.sessions
    origins = np.empty(len(rows.session), np.uint64)
    located: dict[int, Located] = {}
    info: ColumnInfo | None = None
    paths: dict[int, Path] = {}
    given: dict[int, dict[str, int]] = {}
    kept = []
    for owner in np.unique(rows.session).tolist():
        try:
            located[owner] = sessions[owner].columns.open(name)
        except ColumnError as error:
            if hint := name_hint(name):
                raise ValueError(f"fields: no field {name!r}. {hint}") from error
            near = difflib.get_close_matches(name, [*FIELDS, *(f"{kind}_K" for kind in AHEAD)], 1)
            if near and not any(name in session.columns for session in sessions):
                raise ValueError(f"fields: no field {name!r}. The nearest is {near[0]!r}") from error
            raise
        own, path = located[owner].info, located[owner].path
        shared = {key: own.facts.get(key) for key in _SHARED_FACTS}
        own = ColumnInfo(name, own.dtype, own.width, facts=shared)
        info = info or own
        known, words = names_of(info), names_of(own)
        joint = join_names(known, words, np.iinfo(own.numpy_dtype).max + 1) if known and words else None
        if words and joint is not None:
            given[owner] = words
            info, own = (
                msgspec.structs.replace(each, facts=each.facts | {"names": joint}) for each in (info, own)
            )
        if own != info:
            raise CorpusError(
                f"found {_describe(own)}; expected {_describe(info)}, as in {min(paths.items())[1]}",
                path=path,
                hint=f"Write {name} with the same type and facts in all sessions, or open some of them only.",
            )
        paths[owner] = path
    assert info is not None, "a view without rows"
    names = info.facts["names"]
    others = {owner for owner, own in given.items() if own != names}
    strides = {each.rows.strides[0] for each in located.values()}
    for owner, each in located.items():
        mine = slice(*np.searchsorted(rows.session, (owner, owner + 1)))
        # As for the rows, the address of a line's first row minus its number times the stride, modulo 2**64,
        # is the origin to which a row's number times the stride is added.
        firsts = rows.line_firsts[mine]
        values, at = each.rows, rows.first_row[mine] + firsts.astype(np.int64)
        if not each.linear or len(strides) > 1 or others:
            values = np.ascontiguousarray(sessions[owner].column(name).values)
            values = renumbered(values, given[owner], names, each.path) if owner in others else values
        elif each.index_of is not None:
            at = each.index_of(at)
        first = (at * values.strides[0]).astype(np.uint64) - firsts * np.uint64(values.strides[0])
        origins[mine] = np.uint64(address_of(values)) + first
        kept.append(values)
    stride = kept[0].strides[0]
    line = line_of(origins)
    entries = _entries(info, line, 0 if line else address_of(origins), mapped=1, stride=stride)
    return ViewColumn(info, entries, paths, [*kept, origins])


def names_of(info: ColumnInfo) -> dict[str, int] | None:
    """Return a column's numbers by name; None unless the column is u8 or u16 and the numbers are distinct."""
    names, size = info.facts["names"], {"u8": 1 << 8, "u16": 1 << 16}.get(info.dtype, 0)
    if not isinstance(names, dict) or not all(
        type(each) is int and 0 <= each < size for each in names.values()
    ):
        return None
    return names if len({*names.values()}) == len(names) else None


def join_names(names: dict[str, int], own: dict[str, int], size: int) -> dict[str, int] | None:
    """Join two mappings of names to numbers; new names in ``own`` get free numbers. None if these run out."""
    free = iter({*range(size)}.difference(names.values()))
    joint = names | {each: next(free, -1) for each in own if each not in names}
    return None if -1 in joint.values() else joint


def renumbered(values: NDArray[Any], own: dict[str, int], names: dict[str, int], path: Path) -> NDArray[Any]:
    """Return the values of a column with the numbers that its names have in another mapping."""
    table = np.zeros(np.iinfo(values.dtype).max + 1, values.dtype)
    is_named = np.zeros(len(table), np.bool_)
    numbers = [*own.values()]
    table[numbers], is_named[numbers] = [names[each] for each in own], True
    if not is_named[values].all():
        found = values[is_named[values].argmin()]
        message = f"found the number {found}, which is not among its names {own}"
        raise CorpusError(message, path=path, hint="Open this session alone, or correct its names.")
    found_numbers: NDArray[Any] = table[values]
    return found_numbers


def describe_difference(found: BatchLayout, expected: BatchLayout) -> str:
    pairs = zip(found.columns, expected.columns, strict=True)
    own, other = next((own, other) for own, other in pairs if own != other)
    return f"found {own.name}: {_describe(own)}; expected {_describe(other)}"


def _describe(info: ColumnInfo) -> str:
    shape = "[N]" if info.width is None else f"[N, {info.width}]"
    facts = (f"{key} {value!r}" for key, value in info.facts.items() if value is not None)
    return ", ".join([f"{info.dtype} {shape}", *facts])


def _entries(
    info: ColumnInfo, line: int, origins: int = 0, mapped: int = 0, stride: int = 0
) -> ColumnEntries:
    moves = 0
    if info.facts["moves"]:
        moves = int(A_MOVE) if info.width is None else info.numpy_dtype.itemsize
    return ColumnEntries(line, origins, stride or info.row_bytes, info.row_bytes, moves, mapped)
