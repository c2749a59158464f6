"""The options of batches, their defaults, and the errors for other options."""

from __future__ import annotations

import contextlib
import difflib
from collections.abc import Mapping, Sequence
from typing import Any, Literal, Protocol, TypeAlias, TypedDict, cast, get_args

import numpy as np

from tape2048.session.run_table import DEFAULT_THRESHOLDS

#: Labels as truth values of a byte, or as 0.0 and 1.0 for a loss.
LabelDtype: TypeAlias = Literal["bool", "float32"]


class _TorchDtype(Protocol):
    @property
    def is_floating_point(self) -> bool: ...


#: Such a type, also as NumPy or torch name it.
LabelLike: TypeAlias = LabelDtype | _TorchDtype | np.dtype[Any] | type[np.float32 | np.bool_]


class BatchOptions(TypedDict, total=False):
    """The options of batches.

    Args:
        shuffle: whether each epoch has a new random order. Otherwise, rows keep the order of the corpus.
        seed: seed of all epochs, 0 <= seed < 2**64.
        fields: names out of :data:`tape2048.loader.FIELDS`, and names of columns. A column has values
            ``[B]`` or ``[B, D]``; ``bf16`` values are served as their bits, ``u16``. All sessions of the rows
            need the column, with the same dtype, width and origin.
        thresholds: tiles of the labels.
        label_dtype: ``"bool"`` or ``"float32"``, or such a type of NumPy or torch.
        augment: ``"d4"`` applies a random symmetry of the square to each row's board, moves and masks, drawn
            again in each epoch. It also applies to columns with the fact ``"moves": true``: values of the
            four moves, ``[N, 4]``, and move numbers, ``u8[N]``. Embeddings are an error, and other columns
            stay unchanged.
        drop_last: whether to drop the last batch if it is short.
        rank: index of this loader; by default ``$RANK``, or 0.
        world_size: number of loaders that share each epoch; by default ``$WORLD_SIZE``, or 1.
        pool_rows: with ``shuffle``, maximum number of rows of a pool in memory, from which batches are drawn.
        pool_sessions: with ``pool_rows``, number of adjacent sessions that are read together, in random
            order, before the next ones. Sessions in a store are then fetched once in an epoch.
        extra: a mapping of further fields to arrays, ``[N]`` or ``[N, D]``, with a value for each row of
            :attr:`corpus`. They hide columns of the same names. Pickling includes them.
        weight: name of a column or array of ``[N]`` that the field ``weight`` is multiplied by. A batch with
            an invalid weight raises an error. At least one weight must be positive, and weights are read
            until one is.
        targets: name of a column or array of ``[N, T]`` that replaces the labels, as ``f32[B, T]``. A batch
            with a value that is not a probability raises an error.
        window: number K of boards of the game that are served from each row on. Every field is
            ``[B, K, ...]``. ``row`` is the number of the window's first row, and ``weight`` counts windows.
            Boards come from all rows of the game, also from rows that a phase, a selection or a cap leaves
            out.
        stride: number of recorded rows from a board of a window to the next one.
        pad: whether windows can reach past the end of a game. They repeat its last row, and the field
            ``valid`` is false there. Otherwise, only rows with a whole window start one.
    """

    shuffle: bool
    seed: int
    fields: Sequence[str]
    thresholds: Sequence[int]
    label_dtype: LabelLike
    augment: Literal["d4"] | None
    drop_last: bool
    rank: int | None
    world_size: int | None
    pool_rows: int | None
    pool_sessions: int | None
    extra: Mapping[str, Any] | None
    weight: str | None
    targets: str | None
    window: int | None
    stride: int
    pad: bool


#: The options of :class:`Batches` by default.
DEFAULTS: BatchOptions = {
    "shuffle": True, "seed": 0, "fields": ("tokens", "labels"), "thresholds": DEFAULT_THRESHOLDS,
    "label_dtype": "bool", "augment": None, "drop_last": False, "rank": None, "world_size": None,
    "pool_rows": None, "pool_sessions": None, "extra": None, "weight": None, "targets": None,
    "window": None, "stride": 1, "pad": True,
}  # fmt: skip

#: Options of other loaders, and what to write here.
_ELSEWHERE = {
    "epochs": "An iteration serves one epoch: for epoch in range(3): for batch in loader: ...",
    "num_workers": "Threads fill the batches: CriticLoader(corpus, threads=2).",
    "device": "CriticLoader(corpus, device=...) of tape2048.torch serves tensors.",
    "threads": "CriticLoader(corpus, threads=...) of tape2048.torch fills batches ahead.",
}


def check_options(owner: str, options: BatchOptions, own: Sequence[str] = ("batch_size",)) -> None:
    """Raise TypeError for a keyword that neither ``Batches`` nor its caller (``own``) takes."""
    if unknown := options.keys() - BatchOptions.__annotations__.keys():
        name = min(unknown)
        near = difflib.get_close_matches(name, [*own, *BatchOptions.__annotations__], 1, cutoff=0)[0]
        instead = _ELSEWHERE.get(name, f"The nearest is {near!r}")
        raise TypeError(f"{owner}() got an unexpected keyword argument {name!r}. {instead}")


def as_label_dtype(given: Any) -> LabelDtype:
    """Return the name of a type of labels, also of NumPy or torch; ValueError for another type."""
    name = str(given).removeprefix("torch.")  # torch may not be installed
    if name not in get_args(LabelDtype):
        with contextlib.suppress(TypeError):
            name = np.dtype(given).name
    if name not in get_args(LabelDtype):
        raise ValueError(f"label_dtype={given!r}; expected one of {get_args(LabelDtype)}")
    return cast("LabelDtype", name)
