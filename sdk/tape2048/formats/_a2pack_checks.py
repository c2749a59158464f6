"""Everything that can be said against a pack once every byte of it is read."""

from __future__ import annotations

from typing import TYPE_CHECKING

import msgspec
from crc32c import crc32c

from tape2048.errors import BookkeepingError, ChecksumError, FieldError
from tape2048.formats._a2pack_layout import HEADER_BYTES, INDEX_DTYPE
from tape2048.formats._a2pack_stats import StatsCounter, parse_stats

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    import numpy as np
    from numpy.typing import NDArray

    from tape2048.formats._a2pack_layout import Layout
    from tape2048.formats.a2pack import PackReader

__all__ = ["check_pack"]


def check_pack(
    pack: PackReader,
    data: NDArray[np.uint8],
    layout: Layout,
    progress: Callable[[int, int], object] | None,
) -> None:
    """Raise for the first defect; see :meth:`PackReader.validate`."""
    counter = StatsCounter()
    end = HEADER_BYTES + INDEX_DTYPE.itemsize * len(pack)
    for i in range(len(pack)):
        info = pack.info(i)
        _check_zeros(data, end, info.offset, pack.path)
        end = info.offset + info.length
        _check_crc(data[info.offset : end], info.crc32c, f"entry {i}", info.offset, pack.path)
        counter.add(pack.decode(i).meta)
        if progress is not None:
            progress(i + 1, len(pack))
    _check_zeros(data, end, layout.data_end, pack.path)
    _check_crc(
        data[layout.data_begin : layout.data_end], layout.data_crc, "the data", layout.data_begin, pack.path
    )
    if layout.stats is not None:
        _check_object(layout.stats, layout.data_end, pack.path)
    found = None if layout.stats is None else parse_stats(layout.stats)
    if found is not None and found != counter.result():
        raise BookkeepingError(
            f"the stats say {found}; the runs say {counter.result()}", path=pack.path, offset=layout.data_end
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
