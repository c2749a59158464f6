"""What a batch can hold: the fields, their types, and the buffers that the gather fills."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, TypeAlias, TypedDict, get_args

import numpy as np

from tape2048.base.text import counted
from tape2048.batches.plan import Outputs, address_of

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from numpy.typing import NDArray

__all__ = ["FIELDS", "Batch", "BatchOptions", "LabelDtype", "Layout", "check_fields", "check_label_dtype"]

#: Labels as truth values (a byte each), or as the 0.0 and 1.0 that a loss takes.
LabelDtype: TypeAlias = Literal["bool", "float32"]

#: Fields of one value or one board a row: dtype, and shape of an entry.
_PLAIN: dict[str, tuple[str, tuple[int, ...]]] = {
    "tokens": ("|u1", (16,)),
    "row": ("<i8", ()),
    "run": ("<u4", ()),
    "step": ("<u4", ()),
    "action": ("|u1", ()),
    "legal": ("|u1", ()),
    "move": ("|u1", ()),
    "symmetry": ("|u1", ()),
}

#: All fields that a batch can have.
FIELDS = ("tokens", "labels", *(name for name in _PLAIN if name != "tokens"), "embeddings")


class Layout(NamedTuple):
    """The fields of a batch, and the sizes that are not the same for all batches.

    Attributes:
        fields: names out of :data:`FIELDS`, each once.
        thresholds: T, the number of labels.
        label_dtype: of the labels.
        embedding_width: D.
    """

    fields: tuple[str, ...]
    thresholds: int
    label_dtype: LabelDtype
    embedding_width: int = 0

    def type_of(self, field: str) -> tuple[np.dtype[Any], tuple[int, ...]]:
        """Dtype and entry shape of a field."""
        if field == "labels":
            return np.dtype(self.label_dtype), (self.thresholds,)
        if field == "embeddings":
            return np.dtype("<u2"), (self.embedding_width,)
        dtype, shape = _PLAIN[field]
        return np.dtype(dtype), shape


class BatchOptions(TypedDict, total=False):
    """The keywords of ``Batches``, which a corpus and the loader of PyTorch pass on."""

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


def check_fields(fields: Sequence[str]) -> tuple[str, ...]:
    """The fields as a tuple; ValueError for an unknown one, for one that is named twice, and for none."""
    names = (fields,) if isinstance(fields, str) else tuple(fields)
    unknown = [name for name in names if name not in FIELDS]
    if unknown or not names or len(set(names)) != len(names):
        raise ValueError(f"fields={names!r}; expected one or more of {FIELDS}, each once")
    return names


def check_label_dtype(label_dtype: str) -> None:
    """Raise ValueError unless ``label_dtype`` is one of :data:`LabelDtype`."""
    if label_dtype not in get_args(LabelDtype):
        raise ValueError(f"label_dtype={label_dtype!r}; expected one of {get_args(LabelDtype)}")


class Batch(Mapping[str, "NDArray[Any]"]):
    """Some rows, field by field: ``batch["tokens"]`` or ``batch.tokens``.

    It is also the buffer: a batch is filled again and again, and what its fields return are views of
    the rows that are in it now.

    Args:
        arrays: one for each field of the layout, C-ordered and writable, each with the same number of rows.
        layout: what the fields have to be.

    Attributes:
        rows: how many rows are in it; at most :attr:`capacity`.
        capacity: how many fit.
        layout: as given.

    Raises:
        ValueError: an array is missing, or is not of its field's type, shape or order.
    """

    __slots__ = ("_arrays", "_places", "_targets", "capacity", "layout", "rows", "words")

    def __init__(self, arrays: Mapping[str, NDArray[Any]], layout: Layout) -> None:
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
            # Where the rows' embeddings lie follows from these.
            self._places = np.empty(self.capacity, np.uint32), np.empty(self.capacity, np.int64)
            targets["segment"], targets["base"] = self._places
        self._targets = targets
        #: What the gather takes.
        self.words = self.words_from(0)

    @classmethod
    def allocate(cls, layout: Layout, capacity: int) -> Batch:
        """A batch with buffers of its own."""
        types = {name: layout.type_of(name) for name in layout.fields}
        return cls(
            {name: np.empty((capacity, *shape), dtype) for name, (dtype, shape) in types.items()}, layout
        )

    def words_from(self, row: int) -> NDArray[np.uint64]:
        """What the gather takes to fill it from a row on."""
        addresses = {name: address_of(array[row:]) for name, array in self._targets.items()}
        return np.array(Outputs(**addresses), np.uint64)

    @property
    def places(self) -> tuple[NDArray[np.uint32], NDArray[np.int64]]:
        """Segment and number in the map of each row; only a batch with embeddings has them."""
        assert self._places is not None
        segment, base = self._places
        return segment[: self.rows], base[: self.rows]

    @property
    def arrays(self) -> dict[str, NDArray[Any]]:
        """The whole buffers by field, whatever is in them."""
        return dict(self._arrays)

    def copy(self) -> dict[str, NDArray[Any]]:
        """The rows as arrays of their own, which the next batch leaves alone."""
        return {name: array[: self.rows].copy() for name, array in self._arrays.items()}

    def __reduce__(self) -> tuple[Callable[..., Batch], tuple[Any, ...]]:
        return _restore, (self._arrays, self.layout, self.rows)

    def __getitem__(self, field: str) -> NDArray[Any]:
        return self._arrays[field][: self.rows]

    def __getattr__(self, field: str) -> NDArray[Any]:
        if field in FIELDS and field in self._arrays:
            return self._arrays[field][: self.rows]
        raise AttributeError(f"no field {field!r} in this batch; it has {', '.join(self._arrays)}")

    def __iter__(self) -> Iterator[str]:
        return iter(self._arrays)

    def __len__(self) -> int:
        return len(self._arrays)

    def __repr__(self) -> str:
        return f"<Batch of {counted(self.rows, 'row')}: {', '.join(self._arrays)}>"


def _restore(arrays: Mapping[str, NDArray[Any]], layout: Layout, rows: int) -> Batch:
    """A batch that was copied or pickled: the addresses that it is filled by are those of its own arrays."""
    batch = Batch(arrays, layout)
    batch.rows = rows
    return batch
