"""Fields of a batch, their types, the buffers that the gather fills, and the arguments of its kernel.

A call with 26 arrays takes 14 us before it does anything, with five 2 us; a batch takes 50 to 100. The arrays
of a view do not change, so their addresses are written once into one array. :class:`PlanEntries`,
:class:`Order` and :class:`Outputs` define the order of its entries.
"""

from __future__ import annotations

from collections import namedtuple
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

import numpy as np

from tape2048.base.text import counted
from tape2048.rows.row_map import address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

#: Labels as truth values of a byte, or as 0.0 and 1.0 for a loss.
LabelDtype: TypeAlias = Literal["bool", "float32"]

#: Dtype of the fields that have the same shape in all batches: a value, or for ``tokens`` 16, in each row.
_PLAIN = {
    "tokens": np.uint8,
    "weight": np.float32,
    "row": np.int64,
    "run": np.uint32,
    "step": np.uint32,
    "action": np.uint8,
    "legal": np.uint8,
    "move": np.uint8,
    "symmetry": np.uint8,
}

#: The names of all fields of a batch.
FIELDS = (*_PLAIN, "labels", "embeddings")


class BatchLayout(NamedTuple):
    """The fields of a batch, and the parameters of their types.

    Attributes:
        fields: names out of :data:`FIELDS`, each once.
        thresholds: T, the number of labels.
        label_dtype: dtype of the labels.
        embedding_width: D.
    """

    fields: tuple[str, ...]
    thresholds: int
    label_dtype: LabelDtype
    embedding_width: int = 0

    def type_of(self, field: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Return dtype and shape of a row's entry in a field."""
        if field == "labels":
            return np.dtype(self.label_dtype), (self.thresholds,)
        if field == "embeddings":
            return np.dtype(np.uint16), (self.embedding_width,)
        return np.dtype(_PLAIN[field]), (16,) if field == "tokens" else ()


class BatchOptions(TypedDict, total=False):
    """The keyword arguments of ``Batches``, which a corpus and the PyTorch loader pass on."""

    shuffle: bool
    seed: int
    fields: Sequence[str]
    thresholds: Sequence[int]
    label_dtype: LabelDtype
    augment: Literal["d4"] | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    pool_rows: int | None
    pool_sessions: int | None


def check_options(owner: str, options: BatchOptions) -> None:
    """Raise TypeError for a keyword that ``Batches`` does not take, in the name of its caller."""
    if unknown := options.keys() - BatchOptions.__annotations__.keys():
        names = ", ".join(BatchOptions.__annotations__)
        raise TypeError(
            f"{owner}() got an unexpected keyword argument {min(unknown)!r}; the others are {names}"
        )


def check_fields(fields: Sequence[str], label_dtype: str, known: Sequence[str] = FIELDS) -> tuple[str, ...]:
    """Return the fields as a tuple; raise ValueError for invalid fields or another type of labels."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    unknown = [name for name in names if name not in known]
    if unknown or not names or len(set(names)) != len(names):
        raise ValueError(f"fields={names!r}; expected one or more of {known}, each once")
    if label_dtype not in get_args(LabelDtype):
        raise ValueError(f"label_dtype={label_dtype!r}; expected one of {get_args(LabelDtype)}")
    return names


#: The entries of a plan, ``u64``, most of them addresses (0: there is no such table).
#:
#: ``limit`` bounds the numbers of the view's rows, ``rows`` those of the map. ``packed`` is 1 where boards
#: are served as words. ``exponents`` and ``weights`` are by segment, so most batches need no run.
#: ``patterns`` has a row's labels for each exponent, as the bytes of a word; 0 if they do not fit.
PlanEntries = namedtuple(  # noqa: PYI024 - thirty-five entries of one type, u64
    "PlanEntries",
    "limit entries starts shift line address strides packed board_line board run end rows row_bytes "
    "run_starts words ranks samples cap_entries cap_starts cap_shift cap_evenly pool pool_firsts "
    "pool_shift pool_rows labels exponents thresholds threshold_count patterns weights tape runs "
    "run_bytes",
)


class Order(NamedTuple):
    """The entries of an order, ``u64``.

    Attributes:
        kind: ``gather_kernel.STRAIGHT``, SHUFFLED or LISTED.
        listed: address of the listed places, ``i64``.
        cap_key: key of the capped rows.
        symmetry_key: key of the symmetries; 0 leaves boards as they are.
    """

    kind: Any
    listed: Any = 0
    cap_key: Any = 0
    symmetry_key: Any = 0


#: The entries of a target: addresses of C-ordered arrays, 0 for an output that is not wanted.
#:
#: ``records`` u8[B, row_bytes]; ``flags`` bool[B, T] and ``targets`` f32[B, T] are labels; ``segment``
#: u32[B]; ``base`` i64[B], number in the map; ``boards`` u64[B]; the others as the fields of a batch.
Outputs = namedtuple(  # noqa: PYI024 - fifteen entries of one type, u64
    "Outputs",
    "records tokens flags targets weight row run step action legal move symmetry segment base boards",
    defaults=[0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0],
)


class Batch(Mapping[str, "NDArray[Any]"]):
    """Rows, field by field: ``batch["tokens"]`` or ``batch.tokens``. Made by ``Batches.buffer``.

    A batch is a mapping and a buffer, which is filled again and again. Its fields are views of the current
    rows; :meth:`copy` makes copies.

    Args:
        arrays: a C-ordered, writable array for each field of the layout, each with the same number of rows.
        layout: the fields and their types.

    Attributes:
        rows: number of current rows, at most :attr:`capacity`.
        capacity: rows of the buffers.
        layout: as given.

    Raises:
        ValueError: an array is missing, or has another type, shape or order than its field.

    Example:
        >>> from tape2048 import Corpus
        >>> batch = next(iter(Corpus.open("selfplay").batches(32)))
        >>> batch.rows, list(batch), batch.tokens.shape
        (32, ['tokens', 'labels'], (32, 16))
    """

    __slots__ = ("_arrays", "_places", "_targets", "_words", "capacity", "layout", "rows")

    def __init__(self, arrays: Mapping[str, NDArray[Any]], layout: BatchLayout) -> None:
        if set(arrays) != set(layout.fields):
            raise ValueError(f"buffers for {sorted(arrays)}; expected {sorted(layout.fields)}")
        for name, array in arrays.items():
            if not isinstance(array, np.ndarray) or not array.ndim:
                raise ValueError(f"the buffer for {name} is {array!r:.80}; expected an array of NumPy's")
        self.capacity = min(len(array) for array in arrays.values())
        for name, array in arrays.items():
            dtype, shape = layout.type_of(name)
            fits = array.dtype == dtype and array.shape == (self.capacity, *shape)
            if not (fits and array.flags.c_contiguous and array.flags.writeable):
                raise ValueError(
                    f"the buffer for {name} is {array.dtype} of shape {array.shape}; "
                    f"expected writable, C-ordered {dtype} of shape {(self.capacity, *shape)}"
                )
        self.layout = layout
        self._arrays = {name: arrays[name] for name in layout.fields}
        self.rows = 0
        targets = {name: array for name, array in self._arrays.items() if name in _PLAIN}
        if "labels" in self._arrays:
            targets["flags" if layout.label_dtype == "bool" else "targets"] = self._arrays["labels"]
        self._places = None
        if "embeddings" in self._arrays:
            # These give the addresses of the rows' embeddings.
            self._places = np.empty(self.capacity, np.uint32), np.empty(self.capacity, np.int64)
            targets["segment"], targets["base"] = self._places
        self._targets = targets
        self._words = self._words_from(0)

    @classmethod
    def allocate(cls, layout: BatchLayout, capacity: int) -> Batch:
        """Make a batch with new buffers."""
        arrays = {}
        for name in layout.fields:
            dtype, shape = layout.type_of(name)
            arrays[name] = np.empty((capacity, *shape), dtype)
        return cls(arrays, layout)

    def _words_from(self, row: int) -> NDArray[np.uint64]:
        addresses = {name: address_of(array[row:]) for name, array in self._targets.items()}
        return np.array(Outputs(**addresses), np.uint64)

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole buffers by field."""
        return dict(self._arrays)

    def copy(self) -> dict[str, NDArray[Any]]:
        """Copy the current rows to new arrays by field."""
        return {name: array[: self.rows].copy() for name, array in self._arrays.items()}

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        return _restore, (self._arrays, self.layout, self.rows)

    def __getitem__(self, field: str) -> NDArray[Any]:
        return self._arrays[field][: self.rows]

    def __getattr__(self, field: str) -> NDArray[Any]:
        if field in FIELDS and field in self._arrays:
            return self._arrays[field][: self.rows]
        raise AttributeError(f"no field {field!r} in this batch; it has {', '.join(self._arrays)}")

    def __dir__(self) -> list[str]:
        return sorted({*super().__dir__(), *self._arrays})

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Batch of {counted(self.rows, 'row')}: {', '.join(self._arrays)}>"


def _restore(arrays: Mapping[str, NDArray[Any]], layout: BatchLayout, rows: int) -> Batch:
    """Restore a copied or pickled batch, with the addresses of its own arrays."""
    batch = Batch(arrays, layout)
    batch.rows = rows
    return batch


def words_of(batch: Batch, row: int = 0) -> NDArray[np.uint64]:
    """Return the entries of the ``Outputs`` that fill a batch from a row on."""
    return batch._words_from(row) if row else batch._words  # noqa: SLF001 - of this module


def places_of(batch: Batch) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
    """Return segment and number in the map of each row; only of a batch with embeddings."""
    assert batch._places is not None  # noqa: SLF001
    segment, base = batch._places  # noqa: SLF001
    return segment[: batch.rows], base[: batch.rows]
