"""The full check of a pack, every byte and run of it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from tape2048.errors import BookkeepingError, ChecksumError, FieldError
from tape2048.packs.layout import HEADER_BYTES, INDEX_DTYPE
from tape2048.packs.stats import StatsCounter, parse_stats

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tape2048.packs.layout import Layout
    from tape2048.runs.run import RunMeta


def check_pack(
    data: NDArray[np.uint8],
    layout: Layout,
    metas: Iterable[RunMeta],
    path: Path,
    progress: Callable[[int, int], object] | None,
) -> None:
    """Raise for the first defect; see :meth:`PackReader.validate`.

    Args:
        data: ``u8[bytes]``, the whole pack.
        layout: of these bytes.
        metas: of the runs; the next one is taken once the bytes of its entry are checked.
        path: named in errors.
        progress: called with runs done and runs in all.
    """
    counter = StatsCounter()
    count = len(layout.entries)
    end = HEADER_BYTES + INDEX_DTYPE.itemsize * count
    following = iter(metas)
    for i, entry in enumerate(layout.entries):
        begin = int(entry["offset"])
        _check_zeros(data, end, begin, path)
        end = begin + int(entry["length"])
        _check_crc(data[begin:end], int(entry["crc32c"]), f"entry {i}", begin, path)
        counter.add(next(following))
        if progress is not None:
            progress(i + 1, count)
    _check_zeros(data, end, layout.data_end, path)
    begin, end = layout.data_begin, layout.data_end
    _check_crc(data[begin:end], layout.data_crc, "the data", begin, path)
    if layout.stats is None:
        return
    _check_object(layout.stats, end, path)
    found = parse_stats(layout.stats)
    if found is not None and found != counter.result():
        raise BookkeepingError(
            f"the stats say {found}; the runs say {counter.result()}", path=path, offset=end
        )


def _check_object(stats: bytes, offset: int, path: Path) -> None:
    """Raise unless the stats are a JSON object, whatever it says."""
    try:
        msgspec.json.decode(stats, type=dict[str, msgspec.Raw])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError) as error:
        raise FieldError(f"the stats are no JSON object: {error}", path=path, offset=offset) from error


def _check_zeros(data: NDArray[np.uint8], begin: int, end: int, path: Path) -> None:
    padding = data[begin:end]
    if padding.any():
        at = begin + int(padding.argmax())
        raise FieldError(f"byte {data[at]:#04x} in the padding; expected zeros", path=path, offset=at)


def _check_crc(part: NDArray[np.uint8], stored: int, what: str, offset: int, path: Path) -> None:
    if stored == 0:
        return
    computed = crc32c(part.data)
    if computed != stored:
        raise ChecksumError(
            f"CRC-32C of {what} is {computed:#010x}; the file says {stored:#010x}", path=path, offset=offset
        )
