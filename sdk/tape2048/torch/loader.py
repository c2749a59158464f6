"""Batches as PyTorch tensors, made ahead by threads, and a data set for torch's ``DataLoader``.

Needs torch (``pip install 'tape2048[torch]'``)::

    loader = CriticLoader(corpus, batch_size=4096, seed=7, label_dtype="float32", device="cuda")
    for epoch in range(2):
        for batch in loader:                       # the rest of the epoch
            train(batch["tokens"], batch["labels"])
            torch.save({"loader": loader.state_dict(), ...}, path)

Tensors view the buffers that the gather fills, so that nothing is copied. Threads suffice to make them, since
the gather runs without the GIL; there is no process to start and nothing to send.

**How long a batch is valid.** Without ``device``, or on the CPU, its tensors are a buffer of a ring: they are
overwritten when ``keep`` more batches have been asked for. Copy what is to live longer, or what a GPU
still copies from. With a CUDA ``device``, batches are copied there asynchronously, from pinned memory,
and are the caller's: a buffer is filled anew only after the copy from it is done.

**With torch's DataLoader.** ``DataLoader(loader, batch_size=None, num_workers=W)`` gives the same batches
in the same order for every W. Its worker processes have copies of the loader, so iterate over
``loader.counting(data_loader)``: then this one counts what was handed out, its state says so, and the workers
begin each pass where it is. Without, each pass is the next epoch, and the state stays where it was.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info

from tape2048.base.prefetch import Prefetcher
from tape2048.base.text import as_int
from tape2048.batches.batches import Batches
from tape2048.batches.fields import check_fields, check_label_dtype
from tape2048.corpus import Capped
from tape2048.errors import DeviceError
from tape2048.session.labels import DEFAULT_THRESHOLDS, check_thresholds
from tape2048.store.view import check_corpus
from tape2048.torch.support import pick_device

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from tape2048.batches.fields import Batch, BatchOptions, LabelDtype
    from tape2048.corpus import Corpus

#: Tensors by field. Types are those of the batch's fields, but for what torch knows better by another
#: name: ``run`` and ``step`` are int32, ``embeddings`` bfloat16.
Tensors = dict[str, torch.Tensor]

# What torch calls an array's type, where it is not the same: it has few operations for unsigned types
# other than uint8, and NumPy has no bfloat16.
_NUMPY_TYPES = {"<u4": "<i4", "<u2": "<i2"}

_MOVED = "the loader was moved, or iterated over again, while this iteration went on"

#: Bits of ``_Told.uncounted`` that say which pass it is; its number stands above.
_PASS_BITS = 48


class _Told(NamedTuple):
    """What the loader tells the workers of a DataLoader, and they each other, in shared memory.

    Attributes:
        times: how often the rest was told.
        seed: the loader's, as a signed number.
        epoch: where the next pass begins, as a signed number.
        position: where the next pass begins.
        counted: whether :meth:`CriticLoader.counting` is at it.
        uncounted: the newest pass of new workers since that nobody counts, and its number; 0: none yet.
            One word, so that all workers of a pass write the same and none sees half of it.
    """

    times: int
    seed: int
    epoch: int
    position: int
    counted: int
    uncounted: int


class _Slot:
    """A buffer of the ring, and its tensors.

    Attributes:
        batch: what :meth:`Batches.fill` fills.
        tensors: views of it, of ``batch_size`` rows.
        copied: what to wait for before it is filled anew: an asynchronous copy from it.
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
        """The tensors, cut to the rows that the batch has."""
        rows = self.batch.rows
        if rows == self.batch.capacity:
            return dict(self.tensors)
        return {name: tensor[:rows] for name, tensor in self.tensors.items()}


class CriticLoader(IterableDataset[Tensors]):
    """The batches of a corpus as tensors, made ahead; see the module.

    Each iteration serves the rest of the current epoch. What is served is decided by the seed and the
    state alone, whatever the number of threads or workers.

    Args:
        source: a corpus, or ``corpus.capped(...)``.
        batch_size: rows of a batch, >= 1.
        threads: how many make batches; with 0, each is made when it is asked for.
        prefetch: batches made or in the making ahead of the one handed out, >= 1.
        keep: batches that stay valid, the newest included, >= 1.
        device: where batches are copied; None and the CPU leave them in the ring's memory.
        pin_memory: whether the ring's memory is pinned; by default where CUDA is there.
        **options: as for :class:`tape2048.batches.batches.Batches`: ``shuffle, seed, fields, thresholds,
            label_dtype, augment, drop_last, rank, world_size, pool_rows``.

    Yields:
        ``dict`` of tensors by field, ``[B, ...]``: ``tokens`` uint8, ``labels`` bool or float32, ``row``
        int64, ``run`` and ``step`` int32, ``embeddings`` bfloat16, the others uint8.

    Attributes:
        batches: what numbers and fills them; its state is the loader's.
        corpus: the view whose rows these are.

    Raises:
        DeviceError: no such device.
        RowsGoneError: where an iteration begins, mapped rows were truncated since the corpus was opened.
        ValueError: a wrong argument; else as for :class:`tape2048.batches.batches.Batches`.
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
            raise DeviceError(
                f"found the device {device!r}, expected a name such as cpu, cuda or cuda:1"
            ) from error
        if self.device is not None and self.device.type == "cuda":
            pick_device(str(self.device))  # refused here, and not by the first batch
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._ring: list[_Slot] = []
        self._held: deque[_Slot] = deque()  # what the last batches are in
        self._ahead: Prefetcher[_Slot] | None = None
        self._ended = 0  # iterations, of this or of a DataLoader: tells one whether it still goes on
        self._told = _shared(torch.zeros(len(_Told._fields), dtype=torch.int64))
        self._heard: int | None = None  # in a worker: how often it had been told

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.batches.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the beginning of an epoch, >= 0; an iteration that is under way ends with an error."""
        epoch = as_int("epoch", epoch)
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch={epoch}; expected 0 <= epoch < 2**64")
        self._end_iteration()
        self.batches.go_to(epoch, 0)
        self._tell()

    def __len__(self) -> int:
        """Batches of a whole epoch."""
        return len(self.batches)

    def __repr__(self) -> str:
        where = "" if self.device is None else f", on {self.device}"
        return f"<CriticLoader of {self.batches!r}{where}>"

    def __iter__(self) -> Iterator[Tensors]:
        worker = get_worker_info()
        if worker is None:
            return self._iterate()
        # A worker's seed is its own number and the random one of its DataLoader's pass.
        return self._in_worker(worker.id, worker.num_workers, worker.seed - worker.id)

    def _iterate(self) -> Iterator[Tensors]:
        self._end_iteration()
        batches = self.batches
        batches.begin()
        batches.check_files()
        size = self.keep + self.prefetch if self.threads else self.keep
        self._ring = self._ring or [_Slot(batches, pin_memory=self.pin_memory) for _ in range(size)]
        # The batches that were handed out last stay valid, also across epochs.
        held = self._held
        ahead = Prefetcher(
            [slot for slot in self._ring if slot not in held], self._maker(batches.epoch), batches.position,
            len(batches), self.threads, group=max(1, self.prefetch // 2),
        )  # fmt: skip
        self._ahead = ahead
        try:
            while batches.position < len(batches):
                if len(held) == self.keep:
                    ahead.give_back(held.popleft())
                slot = ahead.take()
                held.append(slot)
                # Counted as it is handed out: a state taken in the loop's body has this one behind it.
                batches.advance()
                yield self._copied(slot) if self._copies else slot.view()
                if self._ahead is not ahead:
                    raise RuntimeError(_MOVED)
            batches.next_epoch()
        finally:
            ahead.close()
            if self._ahead is ahead:  # it has this loader's method: memory of a cycle waits for the collector
                self._ahead = None
            self._tell()

    def _maker(self, epoch: int) -> Callable[[_Slot, int], object]:
        def make(slot: _Slot, index: int) -> None:
            if slot.copied is not None:
                slot.copied.synchronize()
            self.batches.fill(slot.batch, epoch=epoch, index=index)

        return make

    @property
    def _copies(self) -> bool:
        return self.device is not None and self.device.type != "cpu"

    def _copied(self, slot: _Slot) -> Tensors:
        """The batch on the device; from pinned memory, the copy may still be under way."""
        there = {name: tensor.to(self.device, non_blocking=True) for name, tensor in slot.view().items()}
        if self.device is not None and self.device.type == "cuda":
            # Blocking: the thread that waits for it sleeps, and leaves its core to the others.
            slot.copied = slot.copied or torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            slot.copied.record(torch.cuda.current_stream(self.device))
        return there

    def _end_iteration(self) -> None:
        self._ended += 1
        if self._ahead is not None:
            self._ahead.close()
            self._ahead = None

    def _in_worker(self, worker: int, workers: int, reader: int) -> Iterator[Tensors]:
        """Every ``workers``-th batch: torch's DataLoader takes them from its workers in turns."""
        if self._copies:
            raise ValueError("device: a worker process leaves batches in memory; copy them where they arrive")
        self._listen(reader)
        batches = self.batches
        batches.check_files()
        for index in range(batches.position + worker, len(batches), workers):
            # Each in memory of its own: torch moves what it sends into shared memory, and leaves it there.
            slot = _Slot(batches, pin_memory=False)
            batches.fill(slot.batch, epoch=batches.epoch, index=index)
            yield slot.view()

    def _tell(self, *, counted: bool = False) -> None:
        """Say where the next pass of a DataLoader's workers begins."""
        if sys.is_finalizing():  # an iteration that was left alone ends after torch: nobody listens any more
            return
        batches = self.batches
        next_, position = (batches.epoch + 1, 0) if batches.is_over else (batches.epoch, batches.position)
        seed, epoch = ((n + (1 << 63)) % (1 << 64) - (1 << 63) for n in (batches.seed, next_))
        told = _Told(int(self._told[0]) + 1, seed, epoch, position, counted, 0)
        self._told.copy_(torch.tensor(told))

    def _listen(self, reader: int) -> None:
        """Be where this pass begins; in a worker, whose copy of the loader is as old as the worker."""
        told = _Told(*self._told.tolist())
        batches = self.batches
        if self._heard is None:
            batches.begin()
            if not told.counted and (number := self._number_of(reader, told)):
                batches.go_to(batches.epoch + number, 0)
        elif self._heard != told.times:
            batches.seed = told.seed % (1 << 64)
            batches.go_to(told.epoch % (1 << 64), told.position)
        else:
            batches.next_epoch()
        self._heard = told.times

    def _number_of(self, reader: int, told: _Told) -> int:
        """Which pass of new workers this is, from 0, since the loader told where it is."""
        name = reader % (1 << _PASS_BITS) or 1
        number, before = divmod(told.uncounted, 1 << _PASS_BITS)
        if before != name:
            number += before != 0
            self._told[-1] = number << _PASS_BITS | name
        return number

    def counting(self, data_loader: Iterable[Tensors]) -> Iterator[Tensors]:
        """Hand on the batches of a ``DataLoader`` over this loader, and count them in its state.

        With worker processes, they count copies of it; without, the loader counts by itself.

        Raises:
            RuntimeError: the loader was moved, or iterated over again, while this iteration went on.
        """
        if getattr(data_loader, "num_workers", 0) == 0:
            yield from data_loader
            return
        self._end_iteration()
        ended = self._ended
        self.batches.begin()
        self._tell(counted=True)
        try:
            for batch in data_loader:
                self.batches.advance()
                yield batch
                if self._ended != ended:
                    raise RuntimeError(_MOVED)
            self.batches.next_epoch()
        finally:
            if self._ended == ended:  # else whoever moved the loader has told
                self._tell()

    def state_dict(self) -> dict[str, Any]:
        """Where the next batch comes from: plain values; see :meth:`Batches.state_dict`."""
        return self.batches.state_dict()

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Go on from a state; an iteration that is under way ends with an error.

        Raises:
            LoaderStateError: a state of something else; see :meth:`Batches.load_state_dict`.
        """
        self._end_iteration()
        self.batches.load_state_dict(state)
        self._tell()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_ring": [], "_held": deque(), "_ahead": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._told = _shared(self._told)


class RowBatch(Sequence[Tensors]):
    """Rows that were taken together: a sequence of rows, and :attr:`tensors` of all of them.

    Attributes:
        tensors: by field, ``[n, ...]``.
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
    """The batch that :meth:`CriticDataset.__getitems__` made: ``DataLoader(..., collate_fn=collate)``.

    Torch's own collation works too, and takes the batch apart and puts it together again row by row; so does
    this where the rows came one by one (from a ``ConcatDataset``).
    """
    if isinstance(rows, RowBatch):
        return rows.tensors
    return cast("Tensors", default_collate(list(rows)))


class CriticDataset(Dataset[Tensors]):
    """A corpus's rows by number, for ``DataLoader(dataset, shuffle=True, collate_fn=collate)``.

    ``DataLoader`` then keeps a list of all row numbers and knows no position to resume at;
    :class:`CriticLoader` does without either.

    Args:
        corpus: whose rows.
        fields: as for :class:`tape2048.batches.batches.Batches`.
        thresholds: tiles of the labels.
        label_dtype: ``"bool"`` or ``"float32"``.

    Raises:
        TypeError: ``corpus`` is something else.
        ValueError: an unknown field or type, or thresholds that are no tiles.
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        fields: Sequence[str] = ("tokens", "labels"),
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelDtype = "bool",
    ) -> None:
        check_corpus(corpus)
        check_label_dtype(label_dtype)
        self.corpus = corpus
        self.fields = check_fields(fields)
        self.thresholds = tuple(check_thresholds(thresholds).tolist())
        self.label_dtype: LabelDtype = label_dtype

    def __len__(self) -> int:
        return len(self.corpus)

    def __repr__(self) -> str:
        return f"<CriticDataset of {self.corpus!r}: {', '.join(self.fields)}>"

    def __getitem__(self, row: int) -> Tensors:
        """One row: tensors without the first dimension."""
        return cast("Tensors", self.__getitems__([row])[0])

    def __getitems__(self, rows: Sequence[int]) -> RowBatch:
        """Many rows at once, as ``DataLoader`` asks for them."""
        arrays = self.corpus.fetch(
            rows, self.fields, thresholds=self.thresholds, label_dtype=self.label_dtype
        )
        return RowBatch({name: _as_tensor(name, array) for name, array in arrays.items()})


@overload
def as_torch_dataset(corpus: Corpus, *, map_style: Literal[True] = True, **options: Any) -> CriticDataset: ...


@overload
def as_torch_dataset(corpus: Corpus, *, map_style: Literal[False], **options: Any) -> CriticLoader: ...


@overload
def as_torch_dataset(corpus: Corpus, *, map_style: bool, **options: Any) -> CriticDataset | CriticLoader: ...


def as_torch_dataset(
    corpus: Corpus, *, map_style: bool = True, **options: Any
) -> CriticDataset | CriticLoader:
    """A corpus as a data set of torch's kinds.

    Args:
        corpus: whose rows.
        map_style: rows by number (:class:`CriticDataset`); else batches one after the other
            (:class:`CriticLoader`).
        **options: of the class.
    """
    return CriticDataset(corpus, **options) if map_style else CriticLoader(corpus, **options)


def _shared(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor, in memory that this process shares with those that it starts."""
    there: torch.Tensor = tensor.share_memory_()  # type: ignore[no-untyped-call]
    return there


def _as_tensor(field: str, array: NDArray[Any]) -> torch.Tensor:
    """The array as a tensor of the type that torch has for it, without a copy."""
    kind = _NUMPY_TYPES.get(array.dtype.str)
    tensor = torch.from_numpy(array if kind is None else array.view(kind))
    return tensor.view(torch.bfloat16) if field == "embeddings" else tensor
