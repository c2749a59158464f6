"""Batches as PyTorch tensors, prefetched by threads, and a data set for torch's ``DataLoader``.

Needs torch (``pip install 'tape2048[torch]'``)::

    loader = CriticLoader(corpus, batch_size=4096, seed=7, label_dtype="float32", device="cuda")
    for epoch in range(2):
        for batch in loader:                       # the rest of the epoch
            train(batch["tokens"], batch["labels"])
            torch.save({"loader": loader.state_dict(), ...}, path)

Tensors view the buffers that the gather fills without the GIL: threads suffice, and nothing is copied.

**Lifetime of a batch.** Without ``device``, or on the CPU, its tensors are a buffer of a ring, which is
overwritten when ``keep`` more batches have been taken. Copy tensors that must live longer. With a CUDA
``device``, batches are copied there asynchronously, from pinned memory, and belong to the caller.

**Torch's DataLoader.** ``DataLoader(loader, batch_size=None, num_workers=W)`` gives the same batches for any
W. Its processes have copies of the loader, so iterate over ``loader.counting(data_loader)``: passes begin at
this loader's state, and count in it. Without it, each pass is the next epoch, and the state stays.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from tape2048.base.text import as_int
from tape2048.base.threads import Prefetcher
from tape2048.batches.batches import Batches
from tape2048.batches.fields import FIELDS, BatchOptions, check_fields, check_options
from tape2048.corpus import Capped
from tape2048.datasets.table_rows import TABLE_FIELDS, TableRows
from tape2048.errors import ConfigError
from tape2048.rows.view import tables_of
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds
from tape2048.torch.tower import pick_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from tape2048.batches.fields import Batch, LabelDtype
    from tape2048.corpus import Corpus

#: Tensors by field, of the fields' types except ``run`` and ``step`` (int32) and ``embeddings`` (bfloat16).
Tensors = dict[str, torch.Tensor]

# Torch has few operations for unsigned types other than uint8, and NumPy has no bfloat16.
_NUMPY_TYPES = {"<u4": "<i4", "<u2": "<i2"}

_MOVED = "the loader was moved, or iterated over again, while this iteration went on"

#: Bits of the last word of :attr:`CriticLoader._shared` that identify a pass; its number is above them.
_PASS_BITS = 48


class _Slot:
    """A buffer of the ring, and its tensors.

    ``copied`` is the event of an asynchronous copy from the buffer, which has to end before the next fill.
    """

    def __init__(self, batches: Batches, *, pin_memory: bool) -> None:
        arrays = {}
        self.tensors: Tensors = {}
        for field in batches.layout.fields:
            dtype, shape = batches.layout.type_of(field)
            count = int(np.prod((batches.batch_size, *shape))) * dtype.itemsize
            memory = torch.empty(count, dtype=torch.uint8, pin_memory=pin_memory)
            arrays[field] = memory.numpy().view(dtype).reshape(batches.batch_size, *shape)
            self.tensors[field] = _as_tensor(field, arrays[field])
        self.batch: Batch = batches.buffer(arrays)
        self.copied: torch.cuda.Event | None = None

    def view(self) -> Tensors:
        """Return the tensors, cut to the batch's number of rows."""
        rows = self.batch.rows
        if rows == self.batch.capacity:
            return dict(self.tensors)
        return {name: tensor[:rows] for name, tensor in self.tensors.items()}


class CriticLoader(IterableDataset[Tensors]):
    """Batches of a corpus as prefetched tensors; see the module.

    Each iteration serves the rest of the current epoch. The seed and the state alone decide the batches,
    whatever the number of threads or workers.

    Args:
        source: a corpus, or ``corpus.capped(...)``.
        batch_size: rows of a batch, >= 1.
        threads: number of threads; 0: each batch is made on demand.
        prefetch: batches made ahead of the newest one handed out, >= 1.
        keep: batches that stay valid, the newest included, >= 1.
        device: target of the copies; None and the CPU leave batches in the ring's memory.
        pin_memory: whether the ring's memory is pinned; by default if CUDA is available.
        **options: as for :class:`tape2048.batches.batches.Batches`.

    Yields:
        ``dict`` of tensors by field, ``[B, ...]``: ``tokens`` uint8, ``labels`` bool or float32, ``weight``
        float32, ``row`` int64, ``run`` and ``step`` int32, ``embeddings`` bfloat16, the others uint8.

    Attributes:
        batches: numbers and fills the batches; its state is the loader's.
        corpus: the corpus or view of the rows.

    Raises:
        ConfigError: no such device.
        CorpusError: when an iteration begins: mapped rows were truncated since the corpus was opened.
        ValueError: an invalid argument; else as for :class:`tape2048.batches.batches.Batches`.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticLoader
        >>> loader = CriticLoader(Corpus.open("selfplay"), batch_size=64, label_dtype="float32")
        >>> {field: tuple(tensor.shape) for field, tensor in next(iter(loader)).items()}
        {'tokens': (64, 16), 'labels': (64, 3)}
    """

    def __init__(
        self,
        source: Corpus | Capped,
        batch_size: int = 4096,
        *,
        threads: int = 1,
        prefetch: int = 4,
        keep: int = 2,
        device: str | torch.device | None = None,
        pin_memory: bool | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        check_options("CriticLoader", options)
        self.threads = as_int("threads", threads)
        self.prefetch = as_int("prefetch", prefetch)
        self.keep = as_int("keep", keep)
        for name, least in (("threads", 0), ("prefetch", 1), ("keep", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}; expected at least {least}")
        self.batches = Batches(source, batch_size, **options)
        self.corpus = source.corpus if isinstance(source, Capped) else source
        try:
            self.device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(
                f"found the device {device!r}, expected a name such as cpu, cuda or cuda:1",
                hint="Name an available device, or auto. `tape2048 doctor` lists them.",
            ) from error
        if self.device is not None and self.device.type == "cuda":
            pick_device(str(self.device))  # refused here, and not by the first batch
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._ring: list[_Slot] = []
        self._held: deque[_Slot] = deque()  # slots of the last batches
        self._prefetcher: Prefetcher[_Slot] | None = None
        self._ended = 0  # iterations, of this or of a DataLoader: an older one finds that it is over
        # Five u64 in shared memory, for a DataLoader's workers: the version of the next three, the seed, the
        # epoch and position of the next pass, and the newest uncounted pass of new workers since then.
        self._shared: torch.Tensor = torch.zeros(5, dtype=torch.int64).share_memory_()  # type: ignore[no-untyped-call]
        self._version: int | None = None  # of the shared state that a worker has read

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.batches.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, >= 0; an iteration under way ends with an error."""
        epoch = as_int("epoch", epoch)
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch={epoch}; expected 0 <= epoch < 2**64")
        self._end_iteration()
        self.batches.go_to(epoch, 0)
        self._publish()

    def __len__(self) -> int:
        """Return the number of batches of an epoch."""
        return len(self.batches)

    def __repr__(self) -> str:
        where = "" if self.device is None else f", on {self.device}"
        return f"<CriticLoader of {self.batches!r}{where}>"

    def _repr_html_(self) -> str:
        return self.batches._repr_html_()

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        if worker is None:
            return self._iterate()
        # A worker's seed is its number plus a random one of its DataLoader's pass.
        return self._in_worker(worker.id, worker.num_workers, worker.seed - worker.id)

    def _iterate(self) -> Iterator[Tensors]:
        self._end_iteration()
        batches = self.batches
        batches.begin()
        batches.check_files()
        size = self.keep + self.prefetch if self.threads else self.keep
        self._ring = self._ring or [_Slot(batches, pin_memory=self.pin_memory) for _ in range(size)]
        # The last batches handed out stay valid, also across epochs.
        held, epoch = self._held, batches.epoch

        def make(slot: _Slot, index: int) -> None:
            if slot.copied is not None:
                slot.copied.synchronize()
            batches.fill(slot.batch, epoch=epoch, index=index)

        prefetcher = Prefetcher(
            [slot for slot in self._ring if slot not in held], make, batches.position,
            len(batches), self.threads, group=max(1, self.prefetch // 2),
        )  # fmt: skip
        self._prefetcher = prefetcher
        try:
            while batches.position < len(batches):
                if len(held) == self.keep:
                    prefetcher.give_back(held.popleft())
                slot = prefetcher.take()
                held.append(slot)
                # Counted before the yield: a state taken in the loop's body is behind this batch.
                batches.advance()
                yield self._copied(slot) if self._copies else slot.view()
                if self._prefetcher is not prefetcher:
                    raise RuntimeError(_MOVED)
            batches.next_epoch()
        finally:
            prefetcher.close()
            if self._prefetcher is prefetcher:  # its function refers to this loader: a cycle keeps memory
                self._prefetcher = None
            self._publish()

    @property
    def _copies(self) -> bool:
        return self.device is not None and self.device.type != "cpu"

    def _copied(self, slot: _Slot) -> Tensors:
        """Copy the batch to the device; from pinned memory, the copy may still be under way."""
        there = {name: tensor.to(self.device, non_blocking=True) for name, tensor in slot.view().items()}
        if self.device is not None and self.device.type == "cuda":
            # Blocking: the thread that waits for the event sleeps, and frees its core.
            slot.copied = slot.copied or torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            slot.copied.record(torch.cuda.current_stream(self.device))
        return there

    def _end_iteration(self) -> None:
        self._ended += 1
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _in_worker(self, worker: int, workers: int, reader: int) -> Iterator[Tensors]:
        """Make every ``workers``-th batch: torch's DataLoader takes them from its workers in turns."""
        if self._copies:
            raise ValueError("device: a worker process leaves batches in memory; copy them where they arrive")
        self._go_to_pass(reader)
        batches = self.batches
        batches.check_files()
        for index in range(batches.position + worker, len(batches), workers):
            # Each batch in new memory: torch moves sent tensors into shared memory, and leaves them there.
            slot = _Slot(batches, pin_memory=False)
            batches.fill(slot.batch, epoch=batches.epoch, index=index)
            yield slot.view()

    def _publish(self) -> None:
        if sys.is_finalizing():  # an abandoned iteration ends after torch, and no worker reads this
            return
        batches = self.batches
        epoch, position = (batches.epoch + 1, 0) if batches.is_over else (batches.epoch, batches.position)
        shared = self._shared.numpy().view(np.uint64)
        shared[:] = [int(shared[0]) + 1, batches.seed, epoch % (1 << 64), position, 0]

    def _go_to_pass(self, reader: int) -> None:
        """Go to where this pass begins; a worker's copy of the loader is as old as the worker."""
        shared, batches = self._shared.numpy().view(np.uint64), self.batches
        version, seed, epoch, position, newest = shared.tolist()
        if self._version is None:  # in a new worker, whose copy lacks uncounted passes alone
            batches.begin()
            # Number and name of a pass are one word, which all its workers write alike, and none reads half.
            name = reader % (1 << _PASS_BITS) or 1
            number, before = divmod(newest, 1 << _PASS_BITS)
            if before != name:
                number += before != 0
                shared[-1] = number << _PASS_BITS | name
            if number:
                batches.go_to(batches.epoch + number, 0)
        elif self._version != version:
            batches.seed = seed
            batches.go_to(epoch, position)
        else:
            batches.next_epoch()
        self._version = version

    def counting(self, data_loader: Iterable[Tensors]) -> Iterator[Tensors]:
        """Iterate over a ``DataLoader`` of this loader, and count its batches in this loader's state.

        Raises:
            RuntimeError: the loader was moved, or iterated over again, while this iteration went on.
        """
        if getattr(data_loader, "num_workers", 0) == 0:
            yield from data_loader
            return
        self._end_iteration()
        ended = self._ended
        self.batches.begin()
        self._publish()
        try:
            for batch in data_loader:
                self.batches.advance()
                yield batch
                if self._ended != ended:
                    raise RuntimeError(_MOVED)
            self.batches.next_epoch()
        finally:
            if self._ended == ended:  # else the move has published the state
                self._publish()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch as plain values; see :meth:`Batches.state_dict`."""
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; an iteration under way ends with an error.

        Raises:
            StateError: the state is of something else; see :meth:`Batches.load_state_dict`.
        """
        self._end_iteration()
        self.batches.load_state_dict(state)
        self._publish()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ring": [], "_held": deque(), "_prefetcher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]


class RowBatch(Sequence[Tensors]):
    """Rows that were fetched together: a sequence of rows, and :attr:`tensors` of all of them.

    Attributes:
        tensors: by field, ``[n, ...]``.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticDataset
        >>> CriticDataset(Corpus.open("selfplay"), fields=("row", "tokens")).__getitems__([5, 7])
        <RowBatch of 2 rows: row, tokens>
    """

    def __init__(self, tensors: Tensors) -> None:
        self.tensors = tensors

    def __len__(self) -> int:
        return len(next(iter(self.tensors.values())))

    def __repr__(self) -> str:
        return f"<RowBatch of {len(self):,} rows: {', '.join(self.tensors)}>"

    def __getitem__(self, i: Any) -> Any:
        return {name: tensor[i] for name, tensor in self.tensors.items()}


def collate(rows: Sequence[Tensors]) -> Tensors:
    """Return the batch that :meth:`CriticDataset.__getitems__` made, without a copy.

    Torch's own collation also works, and splits and joins the batch row by row; this function does the same
    where rows came one by one (from a ``ConcatDataset``).

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticDataset, collate
        >>> from torch.utils.data import DataLoader
        >>> rows = CriticDataset(Corpus.open("selfplay"))
        >>> next(iter(DataLoader(rows, batch_size=8, shuffle=True, collate_fn=collate)))["tokens"].shape
        torch.Size([8, 16])
    """
    if isinstance(rows, RowBatch):
        return rows.tensors
    return cast("Tensors", default_collate(list(rows)))


class CriticDataset(Dataset[Tensors]):
    """Rows of a corpus, data set or pack.dat by number, for ``DataLoader(..., collate_fn=collate)``.

    ``DataLoader`` then keeps a list of all row numbers and cannot resume at a position, unlike
    :class:`CriticLoader`.

    Args:
        corpus: the source of the rows: a corpus, :class:`tape2048.datasets.Dataset` or
            :class:`tape2048.datasets.DataPack`, or a view of one.
        fields: as for :class:`tape2048.batches.batches.Batches`; of data sets and packs as for
            :meth:`tape2048.datasets.Dataset.fetch`.
        thresholds: tiles of the labels.
        label_dtype: ``"bool"`` or ``"float32"``.

    Raises:
        TypeError: ``corpus`` is none of these.
        ValueError: an unknown field or type, or invalid thresholds.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticDataset
        >>> CriticDataset(Corpus.open("selfplay"), thresholds=(8192,))[0]["labels"]
        tensor([False])
    """

    def __init__(
        self,
        corpus: Corpus | TableRows,
        *,
        fields: Sequence[str] = ("tokens", "labels"),
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelDtype = "bool",
    ) -> None:
        is_table = isinstance(corpus, TableRows)
        if not is_table:
            tables_of(corpus)
        self.fields = check_fields(fields, label_dtype, TABLE_FIELDS if is_table else FIELDS)
        self.corpus = corpus
        self.thresholds = tuple(check_thresholds(thresholds).tolist())
        self.label_dtype: LabelDtype = label_dtype

    def __len__(self) -> int:
        return len(self.corpus)

    def __repr__(self) -> str:
        return f"<CriticDataset of {self.corpus!r}: {', '.join(self.fields)}>"

    def __getitem__(self, row: int) -> Tensors:
        """Return one row: tensors without the first dimension."""
        return cast("Tensors", self.__getitems__([row])[0])

    def __getitems__(self, rows: Sequence[int]) -> RowBatch:
        """Return many rows at once, for ``DataLoader``."""
        arrays = self.corpus.fetch(
            rows, self.fields, thresholds=self.thresholds, label_dtype=self.label_dtype
        )
        return RowBatch({name: _as_tensor(name, array) for name, array in arrays.items()})


@overload
def as_torch_dataset(
    corpus: Corpus | TableRows, *, map_style: Literal[True] = True, **options: Any
) -> CriticDataset: ...


@overload
def as_torch_dataset(
    corpus: Corpus | Capped, *, map_style: Literal[False], **options: Any
) -> CriticLoader: ...


def as_torch_dataset(corpus: Any, *, map_style: bool = True, **options: Any) -> CriticDataset | CriticLoader:
    """Return a corpus, data set or pack.dat as a data set of one of torch's kinds.

    Args:
        corpus: the source of the rows, as for :class:`CriticDataset`; for a :class:`CriticLoader` also
            ``corpus.capped(...)``, whose rows have a ``weight``.
        map_style: rows by number; else, of a corpus alone, batches in turn (:class:`CriticLoader`).
        **options: of the class.

    Raises:
        TypeError: ``corpus`` is none of these, or no corpus without ``map_style``.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import as_torch_dataset
        >>> corpus = Corpus.open("selfplay")
        >>> len(as_torch_dataset(corpus)) == len(corpus)
        True
    """
    if map_style:
        return CriticDataset(corpus, **options)
    if isinstance(corpus, TableRows):
        raise TypeError(f"found {corpus!r:.200}, expected a Corpus; map_style=True and a DataLoader batch it")
    return CriticLoader(corpus, **options)


def _as_tensor(field: str, array: NDArray[Any]) -> torch.Tensor:
    """View the array as a tensor of torch's type for the field."""
    kind = _NUMPY_TYPES.get(array.dtype.str)
    tensor = torch.from_numpy(array if kind is None else array.view(kind))
    return tensor.view(torch.bfloat16) if field == "embeddings" else tensor
