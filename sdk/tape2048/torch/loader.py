"""Batches as PyTorch tensors, prefetched by threads, and a data set for torch's ``DataLoader``.

Needs torch (``pip install 'tape2048[torch]'``)::

    loader = CriticLoader(corpus, batch_size=4096, seed=7, label_dtype="float32", device="cuda")
    for epoch in range(2):
        for batch in loader:                       # the rest of the epoch
            train(batch["tokens"], batch["labels"])
            torch.save({"loader": loader.state_dict(), ...}, path)

Tensors view the buffers that the gather fills without the GIL: threads suffice, and nothing is copied. A
buffer is filled again once nothing refers to its tensors or to views of them, so every batch that you hold
stays unchanged. With a CUDA ``device``, batches are copied there asynchronously, from pinned memory.

**Torch's DataLoader.** ``DataLoader(loader, batch_size=None, num_workers=W)`` gives the same batches for any
W. Any other ``batch_size`` is an error: the loader's batches are complete. Worker processes have copies of
the loader, so iterate over ``loader.counting(data_loader)``: passes start at this loader's state, and count
in it. Without it, each pass is the next epoch, and the state stays.
"""

from __future__ import annotations

import sys
import time
import zlib
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Literal, cast, overload

import numpy as np
import torch
from torch.utils.data import Dataset, IterableDataset, default_collate, get_worker_info
from torch.utils.data._utils.collate import default_collate_fn_map

from tape2048.base.text import as_int
from tape2048.base.threads import Prefetcher
from tape2048.batches.batch import BatchOptions, BatchPool, check_options
from tape2048.batches.batches import Batches
from tape2048.batches.columns import plan_fields
from tape2048.corpus import Capped
from tape2048.errors import ConfigError, CorpusError
from tape2048.formats.batch_fields import field_of
from tape2048.mixture import Mixture
from tape2048.rows.view import tables_of
from tape2048.session.run_table import DEFAULT_THRESHOLDS, check_thresholds, run_labels, warn_of_constants
from tape2048.torch.tower import pick_device

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping
    from typing import Unpack

    from numpy.typing import NDArray

    from tape2048.batches.batch import Batch, BatchLayout, LabelDtype
    from tape2048.corpus import Corpus

#: Tensors by field, of the fields' types. Unsigned integers of more than a byte become signed, and columns of
#: ``bf16`` become bfloat16. Columns ``u16`` and ``u32`` are widened.
Tensors = dict[str, torch.Tensor]

# Torch has few operations for unsigned types other than uint8; NumPy has no bfloat16, whose bits are uint16.
_SIGNED = {np.dtype(f"u{size}"): np.dtype(f"i{size}") for size in (2, 4, 8)}
#: The wider types of columns, and the bits of their values.
_WIDENED = {"u16": (torch.int32, 0xFFFF), "u32": (torch.int64, 0xFFFFFFFF)}

_MOVED = "the loader was moved, or iterated over again, while this iteration continued"

#: Bits of words of :attr:`CriticLoader._shared`. First word: the number of the state, and above it a checksum
#: of the state. Last word: a pass, its number, and above them the last bits of the number of its state.
_STATE_BITS = 32
_PASS_BITS, _NUMBER_BITS = 32, 16


class _Served(Tensors):
    """A complete batch, which a ``DataLoader`` must not join with others."""


def _reject_joining(batches: Sequence[Any], **_: Any) -> Tensors:
    raise ValueError(
        f"the DataLoader has batch_size={len(batches)}; expected None: a CriticLoader makes whole batches"
    )


default_collate_fn_map[_Served] = _reject_joining


class CriticLoader(IterableDataset[Tensors]):
    """Batches of a corpus as prefetched tensors; see the module.

    Each iteration serves the rest of the current epoch. The seed and the state alone decide the batches. The
    number of threads or workers does not matter.

    Args:
        source: a corpus, ``corpus.capped(...)``, or a mixture.
        batch_size: rows of a batch, >= 1.
        threads: number of threads; 0: each batch is made on demand.
        prefetch: batches made ahead of the newest one handed out, >= 1.
        device: target of the copies; None and the CPU copy nothing.
        pin_memory: whether batches are in pinned memory; by default if CUDA is available.
        **options: as for :class:`tape2048.batches.batches.Batches`.

    Yields:
        ``dict`` of tensors by field, ``[B, ...]``, or ``[B, K, ...]`` with ``window=K``: ``tokens`` uint8,
        ``labels`` bool or float32, ``valid`` bool, ``weight`` float32, ``row`` and ``seed`` (its 64 bits)
        int64, steps, points and ``run`` int32, columns as in their files (``u16`` as int32, ``u32`` and
        ``u64`` as int64, ``bf16`` as bfloat16), the others uint8.

    Attributes:
        batches: numbers and fills the batches; its state is the loader's.
        corpus: the corpus or view of the rows.

    Raises:
        ConfigError: no such device.
        CorpusError: when an iteration starts: mapped rows were truncated since the corpus was opened.
        CorpusError: a batch has a number above the largest of its tensor's type.
        ValueError: an invalid argument. Otherwise, as for :class:`tape2048.batches.batches.Batches`.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticLoader
        >>> loader = CriticLoader(Corpus.open("selfplay"), batch_size=64, label_dtype="float32")
        >>> {field: tuple(tensor.shape) for field, tensor in next(iter(loader)).items()}
        {'tokens': (64, 16), 'labels': (64, 3)}
    """

    def __init__(
        self,
        source: Corpus | Capped | Mixture,
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
        make = source.batches if isinstance(source, Mixture) else partial(Batches, source)
        self.batches = make(batch_size, **options)
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
        self._pool = BatchPool(2 * self.prefetch)  # as many may be under way to the device
        self._sent: deque[tuple[Any, Batch]] = deque()  # copies to the device, and the events of their ends
        self._prefetcher: Prefetcher[Batch] | None = None
        self._waits = [0.0, 0.0]  # as a prefetcher's, of all iterations
        self._ended = 0  # iterations, of this or of a DataLoader: an older one finds that it is over
        # u64 in shared memory, for a DataLoader's workers: which state the next ones are, the seed, where the
        # next pass starts, and the newest uncounted pass of new workers since then. A worker can read them
        # while they are written, and some processors show the words of another one in any order. Therefore
        # the first word has a checksum, and all that is said of a pass is in one word.
        self._shared: torch.Tensor = torch.zeros(
            3 + len(self.batches.here), dtype=torch.int64
        ).share_memory_()  # type: ignore[no-untyped-call]
        self._state = 0  # the first word of the state that this copy of the loader has
        self._has_passed = False  # whether it is the copy of a worker that has made batches

    @property
    def epoch(self) -> int:
        """The current epoch, from 0."""
        return self.batches.epoch

    def set_epoch(self, epoch: int) -> None:
        """Go to the start of an epoch, >= 0; an iteration under way ends with an error."""
        epoch = as_int("epoch", epoch)
        if not 0 <= epoch < 1 << 64:
            raise ValueError(f"epoch={epoch}; expected 0 <= epoch < 2**64")
        self._end_iteration()
        self.batches.go_to(*self.batches.start_of(epoch))
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
        # A worker's seed is its number plus a random number of the DataLoader's pass.
        return self._in_worker(worker.id, worker.num_workers, worker.seed - worker.id)

    def _iterate(self) -> Iterator[Tensors]:
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
                # Counted before the yield: a state taken in the loop's body is behind this batch.
                batches.advance()
                yield serve(batch)
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

    def _copied(self, batch: Batch) -> Tensors:
        """Copy the batch to the device; from pinned memory, the copy may still be under way."""
        there = _tensors_of(batch)
        there.update((name, tensor.to(self.device, non_blocking=True)) for name, tensor in there.items())
        if self.device is not None and self.device.type == "cuda":
            if len(self._sent) > self.prefetch:
                self._sent.popleft()[0].synchronize()
            # Blocking: the thread that waits for the event sleeps, and frees its core.
            event = torch.cuda.Event(blocking=True)  # type: ignore[no-untyped-call]
            event.record(torch.cuda.current_stream(self.device))
            self._sent.append((event, batch))
        return there

    def _end_iteration(self) -> None:
        self._ended += 1
        if self._prefetcher is not None:
            self._prefetcher.close()
            self._prefetcher = None

    def _in_worker(self, worker: int, workers: int, reader: int) -> Iterator[Tensors]:
        """Make every ``workers``-th batch: torch's DataLoader takes them from its workers in turns."""
        if self.batches.sessions:
            raise ValueError(
                "sources that grow are for threads; each worker process would open other sessions"
            )
        if self._copies:
            raise ValueError("device: a worker process leaves batches in memory; copy them where they arrive")
        self._go_to_pass(reader)
        batches = self.batches
        batches.check_files()
        for index in range(batches.position + worker, len(batches), workers):
            # Each batch in new memory: torch moves sent tensors into shared memory, and leaves them there.
            batch = _buffer(batches)
            batches.fill(batch, epoch=batches.epoch, index=index)
            yield _tensors_of(batch)

    def _publish(self, *, counted: bool = False) -> None:
        if sys.is_finalizing():  # an abandoned iteration ends after torch, and no worker reads this
            return
        batches = self.batches
        here = batches.start_of(batches.epoch + 1) if batches.is_over else batches.here
        shared = self._shared.numpy().view(np.uint64)
        words = [batches.seed, here[0] % (1 << 64), *here[1:]]
        # The lowest bit: a counted pass starts there, even if the worker has read more.
        number = ((int(shared[0]) | 1) + 1 + counted) % (1 << _STATE_BITS)
        self._state = _checksum(words) << _STATE_BITS | number
        shared[:] = [self._state, *words, 0]

    def _go_to_pass(self, reader: int) -> None:
        """Go to where this pass starts. A worker's copy of the loader is as old as the worker."""
        shared, batches = self._shared.numpy().view(np.uint64), self.batches
        state, *words, newest = shared.tolist()
        is_first, self._has_passed = not self._has_passed, True
        if state & 1 or state != self._state:
            # Moved since this pass began: its batches are not taken, and the next pass goes there.
            if (is_first and state != self._state) or state >> _STATE_BITS != _checksum(words):
                return
            batches.seed = words[0]
            batches.go_to(*words[1:])
        elif is_first:  # in a new worker, whose copy lacks uncounted passes alone
            batches.begin()
            # All workers of a pass write the same word. One that is late may have read an earlier state.
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

    def counting(self, data_loader: Iterable[Tensors]) -> Iterator[Tensors]:
        """Iterate over a ``DataLoader`` of this loader, and count its batches in this loader's state.

        Raises:
            RuntimeError: the loader was moved, or iterated over again, while this iteration continued.
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
                self.batches.advance()
                yield batch
                begin = time.perf_counter()
                if self._ended != ended:
                    raise RuntimeError(_MOVED)
            self.batches.next_epoch()
        finally:
            if self._ended == ended:  # else the move has published the state
                self._publish()

    def state_dict(self) -> dict[str, Any]:
        """Return the position of the next batch as plain values; see :meth:`Batches.state_dict`.

        Raises:
            ValueError: the call is from a worker process, as torchdata's ``StatefulDataLoader`` makes it.
        """
        if worker := get_worker_info():
            raise ValueError(
                f"num_workers={worker.num_workers}; expected 0 where a DataLoader saves the state: "
                "a worker's copy of the CriticLoader has no position"
            )
        return self.batches.state_dict()

    def stats(self) -> dict[str, Any]:
        """Return :meth:`Batches.stats`, and the seconds that were spent waiting so far.

        In ``for_producer_s`` the caller waited for batches; in ``for_consumer_s`` the threads waited for it.
        """
        return {**self.batches.stats(), "for_producer_s": self._waits[0], "for_consumer_s": self._waits[1]}

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Resume from a state; an iteration under way ends with an error.

        Raises:
            StateError: the state is of something else; see :meth:`Batches.load_state_dict`.
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

    Torch's own collation also works, and splits and joins the batch row by row. This function does the same
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
        fields: as for :class:`tape2048.batches.batches.Batches`.
        thresholds: tiles of the labels.
        label_dtype: ``"bool"`` or ``"float32"``.

    Raises:
        TypeError: ``corpus`` is of another type.
        ValueError: an unknown field or type, or invalid thresholds.

    Example:
        >>> from tape2048 import Corpus
        >>> from tape2048.torch import CriticDataset
        >>> CriticDataset(Corpus.open("selfplay"), thresholds=(8192,))[0]["labels"]
        tensor([False])
    """

    def __init__(
        self,
        corpus: Corpus,
        *,
        fields: Sequence[str] = ("tokens", "labels"),
        thresholds: Sequence[int] = DEFAULT_THRESHOLDS,
        label_dtype: LabelDtype = "bool",
    ) -> None:
        tiles = check_thresholds(thresholds)
        layout, _ = plan_fields(tables_of(corpus), fields, tiles, label_dtype)
        self.fields, self._layout = layout.fields, layout
        self.corpus = corpus
        self.thresholds = tuple(tiles.tolist())
        self.label_dtype: LabelDtype = label_dtype
        if "labels" in self.fields:
            warn_of_constants(run_labels(corpus.runs, self.thresholds), self.thresholds)

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
        return RowBatch(_typed(zip(arrays, map(_tensor_of, arrays.values()), strict=True), self._layout))


@overload
def as_torch_dataset(corpus: Corpus, *, map_style: Literal[True] = True, **options: Any) -> CriticDataset: ...


@overload
def as_torch_dataset(
    corpus: Corpus | Capped, *, map_style: Literal[False], **options: Any
) -> CriticLoader: ...


def as_torch_dataset(corpus: Any, *, map_style: bool = True, **options: Any) -> CriticDataset | CriticLoader:
    """Return a corpus, data set or pack.dat as a PyTorch data set.

    Args:
        corpus: the source of the rows, as for :class:`CriticDataset`; for a :class:`CriticLoader` also
            ``corpus.capped(...)``, whose rows have a ``weight``.
        map_style: rows by number. Otherwise, batches in turn (:class:`CriticLoader`).
        **options: of the class.

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
        return CriticDataset(corpus, **options)
    return CriticLoader(corpus, **options)


def _buffer(batches: Batches, *, pinned: bool = False) -> Batch:
    arrays = batches.buffer().arrays
    for field, array in arrays.items():
        made = torch.empty_like(_tensor_of(array), pin_memory=pinned)
        arrays[field] = made.numpy().view(array.dtype)
    return batches.buffer(arrays)


def _tensors_of(batch: Batch) -> Tensors:
    owners, rows = batch.owners, batch.rows
    if rows < batch.capacity:
        owners = [array[:rows] for array in owners]
    return _typed(zip(batch.layout.fields, map(torch.from_numpy, owners), strict=True), batch.layout)


def _pinned(batch: Batch) -> Tensors:
    """Copy a batch: only torch knows when a transfer ends that the caller starts from pinned memory."""
    return _Served((field, tensor.pin_memory()) for field, tensor in _tensors_of(batch).items())


def _tensor_of(array: NDArray[Any]) -> torch.Tensor:
    return torch.from_numpy(array.view(_SIGNED.get(array.dtype, array.dtype)))


def _typed(tensors: Iterable[tuple[str, torch.Tensor]], layout: BatchLayout) -> Tensors:
    """Return the tensors of a batch from those of its arrays, whose unsigned integers have signed types."""
    types, found = {info.name: info.dtype for info in layout.columns}, _Served()
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
