"""Batches: the types of their fields, and the buffers that the gather fills."""

from __future__ import annotations

import itertools
from collections import deque, namedtuple
from collections.abc import Callable, Iterator, Mapping, Sequence
from sys import getrefcount
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from tape2048.base.drawing import Drawing, boards_html
from tape2048.base.lazy import load_named
from tape2048.base.text import counted, facts_table
from tape2048.loader.row_map import address_of
from tape2048.session.batch_fields import FIELDS, field_of
from tape2048.session.former_names import name_hint

if TYPE_CHECKING:
    from numpy.typing import NDArray

    from tape2048.loader.options import LabelDtype
    from tape2048.session.columns import ColumnInfo


class BatchLayout(NamedTuple):
    """The fields of a batch, and the parameters of their types.

    ``columns`` are all that are gathered: ``weight`` multiplies the weights, and ``targets`` replaces the
    labels. ``window`` is K of ``[B, K, ...]``; None for single rows, ``[B, ...]``.
    """

    fields: tuple[str, ...]
    thresholds: int
    label_dtype: LabelDtype
    columns: tuple[ColumnInfo, ...] = ()
    weight: str | None = None
    targets: str | None = None
    window: int | None = None

    def type_of(self, field: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        of_windows = () if self.window is None else (self.window,)
        if field == "labels":
            return np.dtype(self.label_dtype), (*of_windows, self.thresholds)
        if (found := field_of(field)) is not None:
            return np.dtype(found.dtype), (*of_windows, *(() if found.width is None else (found.width,)))
        info = next(info for info in self.columns if info.name == field)
        return info.numpy_dtype, (*of_windows, *info.shape[1:])

    def empty(self, field: str, rows: int) -> NDArray[Any]:
        dtype, shape = self.type_of(field)
        return np.empty((rows, *shape), dtype)

    @property
    def halves(self) -> frozenset[str]:
        """Names of the columns of ``bf16``, which are served as their bits."""
        return frozenset(found.name for found in self.columns if found.dtype == "bf16")


def check_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """Return the names of fields and columns; ValueError for no name, or for one twice."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    if not names or len(set(names)) != len(names) or not all(isinstance(name, str) for name in names):
        raise ValueError(f"fields={names!r}; expected one or more of {tuple(FIELDS)} or columns, each once")
    return names


#: The entries of a target, ``u64``: addresses of C-ordered arrays, 0 for an output that is not wanted.
#:
#: ``records`` u8[B, row_bytes] and ``boards`` u64[B] have ``stride`` bytes from one to the next; ``flags``
#: bool[B, T] and ``targets`` f32[B, T] are labels; ``base`` i64[B] are numbers in the map. The others are
#: fields of the batch. Two entries for each of the plan's columns follow: the address of its first value, and
#: the bytes from a row to the next one.
_OUTPUTS = ["records", "boards", "stride", "flags", "targets", "base"]
_OUTPUTS += [name for name, field in FIELDS.items() if field.dtype and field[-2:] == (None, None)]
_named: Any = namedtuple  # noqa: PYI024 - names from FIELDS, which no type checker knows
Outputs = _named("Outputs", _OUTPUTS, defaults=[0] * len(_OUTPUTS))


#: The rows that windows start from.
FIRSTS = BatchLayout(("row", "run", "weight"), 0, "bool")


class Batch(Mapping[str, "NDArray[Any]"]):
    """Rows, field by field: ``batch["tokens"]`` or ``batch.tokens``. Made by ``Batches.buffer``.

    A batch is a mapping and a buffer. Its fields are views of the current rows; :meth:`copy` makes copies.
    With the column ``values``, ``batch.values`` is this column, and the method of mappings is missing.

    Args:
        arrays: a C-ordered, writable array for each field of the layout, each with the same number of rows.
        layout: the fields and their types.

    Attributes:
        rows: number of current rows, at most :attr:`capacity`.
        capacity: rows of the buffers.
        layout: as given.
        owners: by field, the array itself, or the array of which it is a view.

    Raises:
        ValueError: an array is missing, or has another type, shape or order than its field.

    Example:
        >>> from tape2048 import Corpus
        >>> batch = next(iter(Corpus.open("selfplay").batches(32)))
        >>> batch.rows, list(batch), batch.tokens.shape
        (32, ['tokens', 'labels'], (32, 16))
    """

    __slots__ = (
        "_arrays", "_columns", "_made", "_targets", "_unused", "_windows", "_words", "capacity", "layout",
        "owners", "rows",
    )  # fmt: skip

    def __init__(self, arrays: Mapping[str, NDArray[Any]], layout: BatchLayout) -> None:
        if set(arrays) != set(layout.fields):
            raise ValueError(f"buffers for {sorted(arrays)}; expected {sorted(layout.fields)}")
        self.capacity = _capacity_of(arrays, layout)
        self.layout = layout
        self._arrays = {name: arrays[name] for name in layout.fields}
        self.rows = 0
        # Views of an array refer to the array that owns the memory.
        self.owners = [array if array.base is None else array.base for array in self._arrays.values()]
        self._unused = 0  # references while only a pool has the batch
        self._windows: tuple[Batch, Batch] | None = None
        if layout.window is not None:
            flat = {
                name: array.reshape(self.capacity * layout.window, *array.shape[2:])
                for name, array in self._arrays.items()
            }
            self._windows = Batch.allocate(FIRSTS, self.capacity), Batch(flat, layout._replace(window=None))
            return
        built_in = {name: found for name in layout.fields if (found := field_of(name))}
        self._targets = {name: self._arrays[name] for name in built_in if name in Outputs._fields}
        if "labels" in self._arrays and not layout.targets:
            self._targets["flags" if layout.label_dtype == "bool" else "targets"] = self._arrays["labels"]
        self._made = {name: field for name, field in built_in.items() if field.make is not None}
        needed = {name for field in built_in.values() for name in field.needs}
        if layout.targets or (layout.weight and "weight" in built_in):
            needed.add("row")  # which the error of an invalid value names
        if layout is FIRSTS or any(field.moves is not None for field in built_in.values()):
            self._targets["base"] = np.empty(self.capacity, np.int64)
        for name in needed:
            self._targets.setdefault(name, layout.empty(name, self.capacity))
        # Columns that serve only as weights or targets are not fields.
        self._columns = {
            name: arrays[name] if name in arrays else layout.empty(name, self.capacity)
            for name in (each.name for each in layout.columns)
        }
        self._words = self._words_from(0)

    @classmethod
    def allocate(cls, layout: BatchLayout, capacity: int) -> Batch:
        """Make a batch with new buffers."""
        return cls({name: layout.empty(name, capacity) for name in layout.fields}, layout)

    def _words_from(self, row: int) -> NDArray[np.uint64]:
        addresses = {name: address_of(array[row:]) for name, array in self._targets.items()}
        columns = [(address_of(array[row:]), array.strides[0]) for array in self._columns.values()]
        return np.array([*Outputs(**addresses), *itertools.chain(*columns)], np.uint64)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole buffers by field."""
        return dict(self._arrays)

    def copy(self) -> dict[str, NDArray[Any]]:
        """Copy the current rows to new arrays by field."""
        return {name: array[: self.rows].copy() for name, array in self._arrays.items()}

    def __reduce__(self) -> tuple[Any, ...]:
        return Batch, (self._arrays, self.layout), (None, {"rows": self.rows})

    def __getitem__(self, field: str) -> NDArray[Any]:
        return self._arrays[field][: self.rows]

    @property
    def values(self) -> Any:
        """The field ``values``; in a batch without it, the method of a mapping."""
        return self["values"] if "values" in self._arrays else super().values

    def __getattr__(self, field: str) -> NDArray[Any]:
        if not field.startswith("_") and field in self._arrays:
            return self._arrays[field][: self.rows]
        it_has = name_hint(field) or f"It has {', '.join(self._arrays)}"
        raise AttributeError(f"no field {field!r} in this batch. {it_has}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._arrays})

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Batch of {counted(self.rows, 'row')}: {', '.join(self._arrays)}>"

    def show(self, count: int = 8) -> Drawing:
        """Show the first rows as boards with their other fields, in a notebook.

        Args:
            count: number of rows.

        Raises:
            ValueError: the batch has no field ``tokens``.

        Example:
            >>> from tape2048 import Corpus
            >>> next(iter(Corpus.open("selfplay").batches(32))).show(2)._repr_html_().count("<svg")
            2
        """
        if self._windows is not None:
            return self._windows[1].show(count)
        if "tokens" not in self._arrays:
            raise ValueError(f"found the fields {', '.join(self._arrays)}; expected tokens among them")
        captions = [f"row {i}" for i in range(min(count, self.rows))]
        for name in self._arrays:
            if name != "tokens" and self[name].ndim <= 2:
                captions = [f"{text} · {name} {self[name][i].tolist()}" for i, text in enumerate(captions)]
        return Drawing(boards_html(zip(self["tokens"].tolist(), captions, strict=False)))

    def to_pandas(self) -> Any:
        """Return the rows as a pandas ``DataFrame``; ``tokens`` becomes ``tokens_0`` to ``tokens_15``.

        Raises:
            MissingPackageError: pandas is not installed.
        """
        halves = {name: floats_of(self, name) for name in self.layout.halves & self.keys()}
        return load_named("tape2048.base.notebook:frame_of")({**self, **halves})

    def _repr_html_(self) -> str:
        facts = {name: f"{array.dtype} {array.shape}" for name, array in self.items()}
        boards = self.show(4).html if "tokens" in self._arrays else ""
        return facts_table(f"Batch of {counted(self.rows, 'row')}", facts) + boards


def _capacity_of(arrays: Mapping[str, NDArray[Any]], layout: BatchLayout) -> int:
    """Return the rows of buffers; raise ValueError if one does not fit its field."""
    for name, array in arrays.items():
        if not isinstance(array, np.ndarray) or not array.ndim:
            raise ValueError(f"the buffer for {name} is {array!r:.80}; expected a NumPy array")
    capacity = min(len(array) for array in arrays.values())
    for name, array in arrays.items():
        dtype, shape = layout.type_of(name)
        fits = array.dtype == dtype and array.shape == (capacity, *shape)
        if not (fits and array.flags.c_contiguous and array.flags.writeable):
            raise ValueError(
                f"the buffer for {name} is {array.dtype} of shape {array.shape}; "
                f"expected writable, C-ordered {dtype} of shape {(capacity, *shape)}"
            )
    return capacity


class BatchPool:
    """Buffers that are filled again once nothing refers to them, to their owners or to owners' views."""

    #: Buffers to recycle beside the buffers that are made ahead. A caller that holds more gets new memory.
    SPARE_MAX = 8

    def __init__(self, ahead: int = 0) -> None:
        self._batches: deque[Batch] = deque(maxlen=ahead + self.SPARE_MAX)

    def take(self, make: Callable[[], Batch]) -> Batch:
        """Return a free buffer, or make one; thread-safe."""
        for _ in range(len(self._batches)):
            self._batches.rotate(-1)  # the batch that was served longest ago comes first
            batch = self._batches[-1]
            if _references(batch) == batch._unused:  # noqa: SLF001 - of this module
                return batch
        batch = make()
        as_in_pool = [batch]  # counted before another thread can see the batch, and refer to it
        batch._unused = _references(batch)  # noqa: SLF001
        self._batches.extend(as_in_pool)
        return batch


def _references(batch: Batch) -> int:
    """Count the references to a batch and to its owners, the caller's included."""
    return sum(map(getrefcount, batch.owners), getrefcount(batch))


def floats_of(batch: Batch, name: str) -> NDArray[np.float32]:
    values: NDArray[Any] = batch._columns[name][: batch.rows]  # noqa: SLF001 - of this module
    if name in batch.layout.halves:
        return (values.astype(np.uint32) << np.uint32(16)).view(np.float32)
    return values.astype(np.float32, copy=False)


def make_fields(batch: Batch, runs: Any) -> None:
    for name, field in batch._made.items():  # noqa: SLF001 - of this module
        if field.make is not None:
            batch[name][:] = field.make(runs, *(output_of(batch, need) for need in field.needs))


def output_of(batch: Batch, name: str) -> NDArray[Any]:
    """Return the current rows of a field that the kernel has written, even if the caller did not want it."""
    values: NDArray[Any] = batch._targets[name][: batch.rows]  # noqa: SLF001 - of this module
    return values


def windows_of(batch: Batch) -> tuple[Batch, Batch] | None:
    """Return the rows that windows start from, and all their boards as rows, in the same buffers."""
    return batch._windows  # noqa: SLF001 - of this module


def words_of(batch: Batch, row: int = 0) -> NDArray[np.uint64]:
    """Return the entries of the ``Outputs`` that fill a batch from a row on."""
    return batch._words_from(row) if row else batch._words  # noqa: SLF001 - of this module
