"""Loaders of batches as PyTorch tensors, prefetched by threads, and a data set for torch's ``DataLoader``.

Needs torch (``pip install 'tape2048[torch]'``)::

    loader = CriticLoader(corpus, batch_size=4096, seed=7, device="cuda")
    for epoch in range(2):
        for batch in loader:                       # the rest of the epoch
            train(batch.tokens, batch.labels)
            torch.save({"loader": loader.state_dict(), ...}, path)

The tensors are views of buffers that threads fill without the GIL, so nothing is copied. A buffer is filled
again only after its tensors and all views of them are freed: a batch that you hold never changes. With a CUDA
``device``, batches are copied there asynchronously, from pinned memory.

**Torch's DataLoader.** ``DataLoader(loader, batch_size=None, num_workers=W)`` gives the same batches for any
W. Any other ``batch_size`` is an error, since the loader makes whole batches. Worker processes have copies of
the loader, and do not change its state. To start at the loader's state and count the batches in it, iterate
over ``loader.counting(data_loader)``. Without ``counting``, each pass is the next epoch.
"""

from __future__ import annotations

import os
import sys
import time
import zlib
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, TypeAlias, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from tape2048.base.signatures import lists_options
from tape2048.base.text import as_int
from tape2048.base.threads import OVER, Prefetcher
from tape2048.corpus import Capped, Corpus
from tape2048.errors import ConfigError, CorpusError
from tape2048.loader.batch import BatchPool
from tape2048.loader.batches import Batches
from tape2048.loader.column_fields import plan_fields
from tape2048.loader.mixture import Mixture
from tape2048.loader.options import DEFAULTS, BatchOptions, LabelLike, as_label_dtype, check_options
from tape2048.loader.row_view import tables_of
from tape2048.session.batch_fields import field_of
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds, run_labels, warn_of_constants
from tape2048.session.session import Session
from tape2048.torch.tower import pick_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from tape2048.loader.batch import Batch, BatchLayout

#: Tensors by field, in the types of the fields. Exceptions: unsigned integers of more than a byte become
#: signed, columns of ``u16`` and ``u32`` are widened, and columns of ``bf16`` become bfloat16.
Tensors = dict[str, torch.Tensor]

#: What :class:`CriticLoader` serves: rows, or what :meth:`Corpus.open` opens.
Source: TypeAlias = "Corpus | Capped | Mixture | Session | str | os.PathLike[str] | Sequence[Any]"

# Torch has few operations for unsigned types other than uint8; NumPy has no bfloat16, whose bits are uint16.
_SIGNED = {np.dtype(f"u{size}"): np.dtype(f"i{size}") for size in (2, 4, 8)}
#: The wider types of columns, and the bits of their values.
_WIDENED = {"u16": (torch.int32, 0xFFFF), "u32": (torch.int64, 0xFFFFFFFF)}

#: Bits of words of :attr:`CriticLoader._shared`. The first word has, from the lowest bit, the number of the
#: state and a checksum of the state. The last word has a pass, its number, and the last bits of the number of
#: its state.
_STATE_BITS = 32
_PASS_BITS, _NUMBER_BITS = 32, 16


_BY_DEFAULT: BatchOptions = {**DEFAULTS, "label_dtype": "float32"}


class TensorBatch(Tensors):
    """The tensors of a batch by field: ``batch["tokens"]`` or ``batch.tokens``.

    A ``DataLoader`` does not join it with other batches. With the column ``values``, ``batch.values`` is this
    column, and the method of dictionaries is missing.

    Example:
        >>> from tape2048.torch import CriticLoader
        >>> next(iter(CriticLoader("selfplay", 64))).labels.dtype
        torch.float32
    """

    @property
    def values(self) -> Any:
        """The field ``values``; in a batch without it, the method of a dictionary."""
        return self["values"] if "values" in self else super().values

    def __getattr__(self, field: str) -> torch.Tensor:
        if field in self:
            return self[field]
        raise AttributeError(f"no field {field!r} in this batch. It has {', '.join(self)}")


def _reject_joining(batches: Sequence[Any], **_: Any) -> Tensors:
    raise ValueError(
        f"the DataLoader has batch_size={len(batches)}; expected None: a CriticLoader makes whole batches"
    )


default_collate_fn_map[TensorBatch] = _reject_joining


@lists_options(BatchOptions, _BY_DEFAULT)
class CriticLoader(IterableDataset[TensorBatch]):
    """A loader of the batches of a corpus as prefetched tensors.

    Each iteration serves the rest of the current epoch. The batches depend only on the seed and the state,
    and not on the number of threads or workers.

    Args:
        source: a corpus, ``corpus.capped(...)``, a mixture, a session, or what :meth:`Corpus.open` opens.
        batch_size: rows of a batch, at least 1.
        threads: number of threads; 0: each batch is made on demand.
        prefetch: number of batches made in advance, at least 1.
        device: device to copy the batches to. None and the CPU copy nothing.
        pin_memory: whether batches are in pinned memory; by default if CUDA is available.
        **options: the options of :class:`tape2048.loader.Batches`.

    Yields:
        :class:`TensorBatch`, tensors by field, ``[B, ...]``, or ``[B, K, ...]`` with ``window=K``. ``tokens``
        are uint8, ``labels`` float32 or bool, ``valid`` bool and ``weight`` float32. ``row`` and ``seed``
        (its 64 bits) are int64. Steps, points, tiles and ``run`` are int32, and other built-in fields uint8.
        Columns have the type of their file, except for ``u16`` (int32), ``u32`` and ``u64`` (int64) and
        ``bf16`` (bfloat16).

    Attributes:
        batches: object that numbers and fills the batches, and has the loader's state.
        corpus: the corpus or view of the rows.

    Raises:
        ConfigError: there is no such device.
        CorpusError: when an iteration starts: mapped rows were truncated since the corpus was opened.
        CorpusError: a value of a batch is too large for the type of its tensor.
        ValueError: an invalid argument. Otherwise, as for :class:`tape2048.loader.batches.Batches`.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticLoader
        >>> loader = CriticLoader(Corpus.open("selfplay"), batch_size=64)
        >>> {field: tuple(tensor.shape) for field, tensor in next(iter(loader)).items()}
        {'tokens': (64, 16), 'labels': (64, 3)}
    """

    def __init__(
        self,
        source: Source,
        batch_size: int = 4096,
        *,
        threads: int = 1,
        prefetch: int = 4,
        device: str | torch.device | None = None,
        pin_memory: bool | None = None,
        **options: Unpack[BatchOptions],
    ) -> None:
        check_options("CriticLoader", options, ["batch_size", "threads", "prefetch", "device", "pin_memory"])
        self.threads = as_int("threads", threads)
        self.prefetch = as_int("prefetch", prefetch)
        for name, least in (("threads", 0), ("prefetch", 1)):
            if getattr(self, name) < least:
                raise ValueError(f"{name}={getattr(self, name)}; expected at least {least}")
        source = _opened(source)
        make = source.batches if isinstance(source, Mixture) else partial(Batches, source)
        self.batches = make(batch_size, **(_BY_DEFAULT | options))
        self.corpus = source.corpus if isinstance(source, Capped) else source
        try:
            self.device = None if device is None else torch.device(device)
        except (RuntimeError, TypeError) as error:
            raise ConfigError(
                f"found the device {device!r}, expected a name such as cpu, cuda or cuda:1",
                hint="Name an available device, or auto. `tape2048 doctor` lists them.",
            ) from error
        if self.device is not None and self.device.type == "cuda":
            pick_device(str(self.device))  # raises ConfigError now, instead of at the first batch
        self.pin_memory = torch.cuda.is_available() if pin_memory is None else pin_memory
        self._pool = BatchPool(2 * self.prefetch)  # twice, since copies to the device may be in progress
        self._sent: deque[tuple[Any, Batch]] = deque()  # batches being copied, with the events of their ends
        self._prefetcher: Prefetcher[Batch] | None = None
        self._waits = [0.0, 0.0]  # the waits of the prefetchers of all iterations
        self._ended = 0  # number of ended iterations, by which an older iteration finds that it is over
        # Words in shared memory (u64) for the workers of a DataLoader: the number of the state, the seed, the
        # position where the next pass starts, and the newest uncounted pass of new workers since then. A
        # worker may read them while they are written, and may see the writes in any order. The first word
        # therefore has a checksum of the state, and the facts about a pass are all in one word.
        self._shared: torch.Tensor = torch.zeros(
            3 + len(self.batches.here), dtype=torch.int64
        ).share_memory_()  # type: ignore[no-untyped-call]
        self._state = 0  # first word of the state of this copy of the loader
        self._has_passed = False  # whether this copy, in a worker, has made batches

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.batches.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, counted from 0. An iteration in progress ends with an error."""
        epoch = as_int("epoch", epoch)
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch={epoch}; expected 0 <= epoch < 2**64")
        self._end_iteration()
        self.batches.go_to(*self.batches.start_of(epoch))
        self._publish()

    def __len__(self) -> int:
        return len(self.batches)

    def __repr__(self) -> str:
        where = "" if self.device is None else f", on {self.device}"
        return f"<CriticLoader of {self.batches!r}{where}>"

    def _repr_html_(self) -> str:
        return self.batches._repr_html_()

    def __iter__(self) -> Iterator[TensorBatch]:
        worker = get_worker_info()
        if worker is None:
            return self._iterate()
        # A worker's seed is its number plus a random number of the DataLoader's pass.
        return self._in_worker(worker.id, worker.num_workers, worker.seed - worker.id)

    def _iterate(self) -> Iterator[TensorBatch]:
        self._end_iteration()
        batches = self.batches
        batches.begin()
        batches.check_files()
        epoch, pool = batches.epoch, self._pool
        new = partial(_buffer, batches, pinned=self.pin_memory and self._copies)
        serve = self._copied if self._copies else _pinned if self.pin_memory else _tensors_of

        def make(index: int) -> Batch:
            batch = pool.take(new)
            batches.fill(batch, epoch=epoch, index=index)
            return batch

        prefetcher = Prefetcher(
            make, batches.position, len(batches), self.threads,
            ahead=self.prefetch, group=max(1, self.prefetch // 2), waits=self._waits,
        )  # fmt: skip
        self._prefetcher = prefetcher
        try:
            while batches.position < len(batches):
                batch = prefetcher.take()
                # Counted before the yield, so that a state saved in the loop's body is after this batch.
                batches.advance()
                yield serve(batch)
                if self._prefetcher is not prefetcher:
                    raise RuntimeError(OVER)
            batches.next_epoch()
        finally:
            prefetcher.close()
            if self._prefetcher is prefetcher:  # it refers to this loader: break the cycle to free memory
                self._prefetcher = None
            self._publish()

    @property
    def _copies(self) -> bool:
        return self.device is not None and self.device.type != "cpu"

    def _copied(self, batch: Batch) -> TensorBatch:
        """Copy a batch to the device. From pinned memory, the copy may still be in progress."""
        there = _tensors_of(batch)
        there.update((name, tensor.to(self.device, non_blocking=True)) for name, tensor in there.items())
        if self.device is not None and self.device.type == "cuda":
            if len(self._sent) > self.prefetch:
                self._sent.popleft()[0].synchronize()
            # Blocking: the thread that waits for the event sleeps instead of using its core.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self._sent.append((event, batch))
        return there

    def _end_iteration(self) -> None:
        self._ended += 1
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _in_worker(self, worker: int, workers: int, reader: int) -> Iterator[TensorBatch]:
        """Yield every ``workers``-th batch: torch's DataLoader takes batches from its workers in turn."""
        if self.batches.sessions:
            raise ValueError(
                "found a source that grows in a worker process, where each worker would open different "
                "sessions; expected num_workers=0"
            )
        if self._copies:
            raise ValueError(
                f"found device={str(self.device)!r} in a worker process, expected None: copy the batches to "
                "the device in the main process"
            )
        self._go_to_pass(reader)
        batches = self.batches
        batches.check_files()
        for index in range(batches.position + worker, len(batches), workers):
            # Each batch in new memory: torch moves the tensors into shared memory, where they stay.
            batch = _buffer(batches)
            batches.fill(batch, epoch=batches.epoch, index=index)
            yield _tensors_of(batch)

    def _publish(self, *, counted: bool = False) -> None:
        if sys.is_finalizing():  # an iteration that was not finished ends after torch: no worker reads this
            return
        batches = self.batches
        here = batches.start_of(batches.epoch + 1) if batches.is_over else batches.here
        shared = self._shared.numpy().view(np.uint64)
        words = [batches.seed, here[0] % (1 << 64), *here[1:]]
        # The lowest bit is set for a counted pass, which starts at this state even if the worker has read on.
        number = ((int(shared[0]) | 1) + 1 + counted) % (1 << _STATE_BITS)
        self._state = _checksum(words) << _STATE_BITS | number
        shared[:] = [self._state, *words, 0]

    def _go_to_pass(self, reader: int) -> None:
        """Go to the start of this pass. A worker's copy of the loader has the state of the worker's start."""
        shared, batches = self._shared.numpy().view(np.uint64), self.batches
        state, *words, newest = shared.tolist()
        is_first, self._has_passed = not self._has_passed, True
        if state & 1 or state != self._state:
            # The loader was moved after this pass started: its batches are dropped, and the next pass moves.
            if (is_first and state != self._state) or state >> _STATE_BITS != _checksum(words):
                return
            batches.seed = words[0]
            batches.go_to(*words[1:])
        elif is_first:  # in a new worker, whose copy lacks only the uncounted passes
            batches.begin()
            # All workers of a pass write the same word. A late worker may have read an earlier state.
            of, number, before = state % (1 << _NUMBER_BITS), 0, 0
            if newest >> (_PASS_BITS + _NUMBER_BITS) == of:
                number, before = divmod(newest % (1 << (_PASS_BITS + _NUMBER_BITS)), 1 << _PASS_BITS)
            name = reader % (1 << _PASS_BITS) or 1
            if before != name:
                number += before != 0
                shared[-1] = (of << _NUMBER_BITS | number % (1 << _NUMBER_BITS)) << _PASS_BITS | name
            if number:
                batches.go_to(*batches.start_of(batches.epoch + number))
        else:
            batches.next_epoch()
        self._state = state

    def counting(self, data_loader: Iterable[TensorBatch]) -> Iterator[TensorBatch]:
        """Iterate over a ``DataLoader`` of this loader, and count its batches in this loader's state.

        Raises:
            RuntimeError: the loader was moved, or iterated over again, during this iteration.
            ValueError: the ``DataLoader`` has a ``batch_size``.
        """
        if (size := getattr(data_loader, "batch_size", None)) is not None:
            _reject_joining(range(size))
        if getattr(data_loader, "num_workers", 0) == 0:
            yield from data_loader
            return
        self._end_iteration()
        ended = self._ended
        self.batches.begin()
        self._publish(counted=True)
        try:
            begin = time.perf_counter()
            for batch in data_loader:
                self._waits[0] += time.perf_counter() - begin
                if self._ended != ended:
                    raise RuntimeError(OVER)
                self.batches.advance()
                yield batch
                begin = time.perf_counter()
                if self._ended != ended:
                    raise RuntimeError(OVER)
            self.batches.next_epoch()
        finally:
            if self._ended == ended:  # otherwise, the move has published the state
                self._publish()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch as plain values; see :meth:`Batches.state_dict`.

        Raises:
            ValueError: the call is from a worker process, as from torchdata's ``StatefulDataLoader``.
        """
        if worker := get_worker_info():
            raise ValueError(
                f"num_workers={worker.num_workers}; expected 0 for a DataLoader that saves the state: the "
                "copies of the CriticLoader in workers have no position"
            )
        return self.batches.state_dict()

    def stats(self) -> dict[str, Any]:
        """Return :meth:`Batches.stats`, and the waits so far, in seconds.

        ``for_producer_s`` is the time that the caller waited for batches, and ``for_consumer_s`` the time
        that the threads waited for the caller.
        """
        return {**self.batches.stats(), "for_producer_s": self._waits[0], "for_consumer_s": self._waits[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state. An iteration in progress ends with an error.

        Raises:
            StateError: the state is of other rows or options; see :meth:`Batches.load_state_dict`.
        """
        self._end_iteration()
        self.batches.load_state_dict(state)
        self._publish()

    def __getstate__(self) -> dict[str, Any]:
        return {**self.__dict__, "_pool": BatchPool(2 * self.prefetch), "_sent": deque(), "_prefetcher": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._shared.share_memory_()  # type: ignore[no-untyped-call]


def _checksum(words: Sequence[int]) -> int:
    return zlib.crc32(np.array(words, np.uint64).tobytes())


class RowBatch(Sequence[Tensors]):
    """A sequence of rows that were fetched together.

    Attributes:
        tensors: tensors of all rows by field, ``[n, ...]``.

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

    Torch's own collation also works, but joins the batch row by row. This function does so only for single
    rows, as from a ``ConcatDataset``.

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
    """A data set of the rows of a corpus by number, for ``DataLoader(..., collate_fn=collate)``.

    With it, a ``DataLoader`` keeps a list of all row numbers, and cannot resume at a position. Use a
    :class:`CriticLoader` to avoid both.

    Args:
        corpus: source of the rows: a corpus, a :class:`tape2048.runs.Dataset`, a
            :class:`tape2048.runs.DataPack`, or a view of it; a session, or what :meth:`Corpus.open` opens.
        fields: fields of a row, as for :class:`tape2048.loader.batches.Batches`.
        thresholds: tiles of the labels.
        label_dtype: type of the labels, ``"float32"`` or ``"bool"``.

    Raises:
        TypeError: ``corpus`` is of another type.
        ValueError: an unknown field or type, or invalid thresholds.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticDataset
        >>> CriticDataset(Corpus.open("selfplay"), thresholds=(8192,))[0]["labels"]
        tensor([0.])
    """

    def __init__(
        self,
        corpus: Source,
        *,
        fields: Sequence[str] = ("tokens", "labels"),
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelLike = "float32",
    ) -> None:
        rows: Any = _opened(corpus)
        tiles = check_thresholds(thresholds)
        layout, _ = plan_fields(tables_of(rows), fields, tiles, label_dtype)
        self.fields, self._layout = layout.fields, layout
        self.corpus: Corpus = rows
        self.thresholds = tuple(tiles.tolist())
        self.label_dtype = as_label_dtype(label_dtype)
        if "labels" in self.fields:
            warn_of_constants(run_labels(rows.runs, self.thresholds), self.thresholds)

    def __len__(self) -> int:
        return len(self.corpus)

    def __repr__(self) -> str:
        return f"<CriticDataset of {self.corpus!r}: {', '.join(self.fields)}>"

    def __getitem__(self, row: int) -> Tensors:
        """Return a row, as tensors without the first dimension."""
        return cast("Tensors", self.__getitems__([row])[0])

    def __getitems__(self, rows: Sequence[int]) -> RowBatch:
        arrays = self.corpus.fetch(
            rows, self.fields, thresholds=self.thresholds, label_dtype=self.label_dtype
        )
        return RowBatch(_typed(zip(arrays, map(_tensor_of, arrays.values()), strict=True), self._layout))


class LoaderOptions(BatchOptions, total=False):
    """The options of a :class:`CriticLoader`.

    Args:
        fields, thresholds, label_dtype: as for :class:`CriticDataset`.
        batch_size, threads, prefetch, device, pin_memory, shuffle, seed: as for :class:`CriticLoader`.
        augment, drop_last, rank, world_size, pool_rows, pool_sessions: likewise.
        extra, weight, targets, window, stride, pad: likewise.
    """

    batch_size: int
    threads: int
    prefetch: int
    device: str | torch.device | None
    pin_memory: bool | None


@overload
def as_torch_dataset(
    corpus: Source, *, map_style: Literal[True] = True, **options: Unpack[LoaderOptions]
) -> CriticDataset: ...


@overload
def as_torch_dataset(
    corpus: Source, *, map_style: Literal[False], **options: Unpack[LoaderOptions]
) -> CriticLoader: ...


@lists_options(LoaderOptions, {**_BY_DEFAULT, "batch_size": 4096, "threads": 1, "prefetch": 4})
def as_torch_dataset(
    corpus: Any, *, map_style: bool = True, **options: Unpack[LoaderOptions]
) -> CriticDataset | CriticLoader:
    """Return a corpus, data set or pack.dat as a PyTorch data set.

    Args:
        corpus: source of the rows, as for :class:`CriticDataset`; for a :class:`CriticLoader` also
            ``corpus.capped(...)``, whose rows have a ``weight``.
        map_style: whether to return a :class:`CriticDataset`, which serves rows by number. Otherwise, a
            :class:`CriticLoader` is returned, which serves batches.
        **options: the options.

    Raises:
        TypeError: ``corpus`` is of another type.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import as_torch_dataset
        >>> corpus = Corpus.open("selfplay")
        >>> len(as_torch_dataset(corpus)) == len(corpus)
        True
    """
    if map_style:
        of_rows: Any = options
        return CriticDataset(corpus, **of_rows)
    return CriticLoader(corpus, **options)


def _opened(source: Source) -> Corpus | Capped | Mixture:
    if not isinstance(source, str | os.PathLike | Session | Sequence):
        return source
    several: Sequence[Any] = source if isinstance(source, list | tuple) else [source]
    return Corpus.open([each.path if isinstance(each, Session) else each for each in several])


def _buffer(batches: Batches, *, pinned: bool = False) -> Batch:
    arrays = batches.buffer().arrays
    for field, array in arrays.items():
        made = torch.empty_like(_tensor_of(array), pin_memory=pinned)
        arrays[field] = made.numpy().view(array.dtype)
    return batches.buffer(arrays)


def _tensors_of(batch: Batch) -> TensorBatch:
    owners, rows = batch.owners, batch.rows
    if rows < batch.capacity:
        owners = [array[:rows] for array in owners]
    return _typed(zip(batch.layout.fields, map(torch.from_numpy, owners), strict=True), batch.layout)


def _pinned(batch: Batch) -> TensorBatch:
    """Copy a batch to pinned memory of torch, which frees it only after transfers that the caller starts."""
    return TensorBatch((field, tensor.pin_memory()) for field, tensor in _tensors_of(batch).items())


def _tensor_of(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.view(_SIGNED.get(array.dtype, array.dtype)))


def _typed(tensors: Iterable[tuple[str, torch.Tensor]], layout: BatchLayout) -> TensorBatch:
    """Convert tensors of a batch's arrays, which have signed types for unsigned integers, to their types."""
    types, found = {info.name: info.dtype for info in layout.columns}, TensorBatch()
    for name, each in tensors:
        dtype = types.get(name, "")
        if dtype == "bf16":
            found[name] = each.view(torch.bfloat16)
        elif dtype in _WIDENED:
            wide, bits = _WIDENED[dtype]
            found[name] = each.to(wide) & bits
        else:
            if dtype == "u64" or ((field := field_of(name)) and field.dtype is np.uint32):
                _check_sign(name, each)
            found[name] = each
    return found


def _check_sign(name: str, tensor: torch.Tensor) -> None:
    if tensor.numel() and tensor.min() < 0:
        bits = 8 * tensor.element_size()
        raise CorpusError(
            f"{name} is {int(tensor.min()) + (1 << bits)}; a tensor of {tensor.dtype} holds at most "
            f"{(1 << bits - 1) - 1}",
            hint="take the field from Corpus.batches, whose NumPy arrays are unsigned",
        )
