"""Full check of a pack: every byte and every run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from crc32c import crc32c

from tape2048.errors import BookkeepingError, FieldError
from tape2048.io.crc import check_crc
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

    ``data`` is the whole pack; the metadata of a run is taken after the check of its entry's bytes.
    """
    counter = StatsCounter()
    count = len(layout.entries)
    end = HEADER_BYTES + INDEX_DTYPE.itemsize * count
    following = iter(metas)
    for i, entry in enumerate(layout.entries):
        begin = int(entry["offset"])
        _check_zeros(data, end, begin, path)
        end = begin + int(entry["length"])
        if entry["crc32c"]:
            check_crc(
                crc32c(data[begin:end].data), int(entry["crc32c"]), f"entry {i}", path=path, offset=begin
            )
        counter.add(next(following))
        if progress is not None:
            progress(i + 1, count)
    _check_zeros(data, end, layout.data_end, path)
    begin, end = layout.data_begin, layout.data_end
    if layout.data_crc:
        check_crc(crc32c(data[begin:end].data), layout.data_crc, "the data", path=path, offset=begin)
    if layout.stats is None:
        return
    try:
        found = parse_stats(layout.stats)
    except FieldError as error:
        raise FieldError(error.message, path=path, offset=end) from error
    if found is not None and not counter.agrees(found):
        raise BookkeepingError(
            f"the stats say {found}; the runs say {counter.result()}", path=path, offset=end
        )


def _check_zeros(data: NDArray[np.uint8], begin: int, end: int, path: Path) -> None:
    padding = data[begin:end]
    if padding.any():
        at = begin + int(padding.argmax())
        raise FieldError(f"byte {data[at]:#04x} in the padding; expected zeros", path=path, offset=at)
