"""Network files: safetensors, compressed with xz where they are shipped.

One array for each stage and tuple, called ``<stage>/<tuple>`` (``0/01245``), ``f32`` or ``i16``, all of
one type, and ``scales`` (``f32[S, T]``); in the header's table of text, ``format`` is ``tape2048 n-tuple
network 1``, ``stages`` the tiles at which stages begin (``8192 16384``) and ``facts`` a JSON object of how
it was trained. Files that would expand to 4 GiB or more are not compressed: no reader would expand them.
"""

from __future__ import annotations

import hashlib
import importlib.resources
import lzma
import stat
from pathlib import Path
from typing import TYPE_CHECKING, Any

import msgspec
import numpy as np

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, ConfigError, NetworkError, TrailingBytesError, TruncatedError
from tape2048.io.durable import publishing_file
from tape2048.io.safetensors import decode, encode, map_file
from tape2048.ntuple.layout import Layout, tuple_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tape2048.ntuple.network import Network

#: Networks that come with the package, by the name that stands for them.
SHIPPED = {"default": "default.ntuple", "fast": "fast.ntuple"}

FORMAT = "tape2048 n-tuple network 1"

#: The largest value of a board. Games score up to 4e6; whoever compares and adds up values stays in float32.
VALUE_MAX = 1e30

_XZ_MAGIC = b"\xfd7zXZ\x00"

#: What a compressed file may expand to; the largest preset has 3 GB.
EXPANDED_BYTES_MAX = 4 << 30

#: What expanding may keep in memory beside it; `xz -9` needs 65 MB.
_XZ_MEMORY_MAX = 256 << 20


def network_path(name: str) -> Path:
    """The file of the network that ships under this name, or else the file at this path.

    Raises:
        ConfigError: neither.
    """
    path = Path(name)
    if name in SHIPPED:
        path = Path(str(importlib.resources.files(__package__))) / "weights" / SHIPPED[name]
    try:
        is_file = stat.S_ISREG(path.stat().st_mode)
    except (OSError, ValueError) as error:
        reason = getattr(error, "strerror", None) or error
    else:
        if is_file:
            return path
        reason = "not a file"
    raise ConfigError(
        f"found no network at {name!r} ({reason})",
        hint=f"weights is a path, or one of the networks that ship: {', '.join(SHIPPED)};"
        " `tape2048 train-player` makes others (--preset strong)",
    )


def load_network(name: str) -> Network:
    """The network that ships under this name, or else of the file at this path.

    Raises:
        ConfigError: neither.
        FormatError: the file is not a whole network.
    """
    return read_network(_bytes_of(name), name)


def file_facts(name: str) -> dict[str, Any]:
    """``bytes`` and ``sha256`` of the file of a network, named as for :func:`load_network`."""
    data = _bytes_of(name)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _bytes_of(name: str) -> memoryview:
    path = network_path(name)
    try:
        return map_file(path, "a network")
    except OSError as error:
        raise ConfigError(f"the network cannot be read: {error.strerror or error}", path=path) from error


def _expanded(data: memoryview | bytes, path: str) -> memoryview | bytes:
    if bytes(data[: len(_XZ_MAGIC)]) != _XZ_MAGIC:
        return data
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_MAX)
    try:
        expanded = decompressor.decompress(data, max_length=EXPANDED_BYTES_MAX)
    except lzma.LZMAError as error:
        raise ChecksumError(f"the compressed network is damaged: {error}", path=path) from error
    if decompressor.unused_data:
        rest = counted(len(decompressor.unused_data), "byte")
        raise TrailingBytesError(
            f"the file goes on for {rest} behind its compressed network",
            path=path,
        )
    if not decompressor.eof and len(expanded) < EXPANDED_BYTES_MAX:
        raise TruncatedError("the compressed network is cut off", path=path)
    if not decompressor.eof:
        raise NetworkError(f"it expands to more than {EXPANDED_BYTES_MAX:,} bytes", path=path)
    return expanded


def read_network(data: memoryview | bytes, path: str) -> Network:
    """A network from the bytes of a file.

    Raises:
        FormatError: :class:`NetworkError` where it is whole and not a network, or has values that are not
            finite; others where it is damaged.
    """
    # Here and not above, so that a network's path can be checked without loading the compiler.
    from tape2048.ntuple.network import Network

    arrays, texts = decode(_expanded(data, path), path)
    if texts.get("format") != FORMAT:
        raise NetworkError(
            f"found the format {texts.get('format')!r}, expected {FORMAT!r}",
            path=path,
            hint="`tape2048 train-player` makes networks",
        )
    try:
        facts = msgspec.json.decode(texts.get("facts", "{}"), type=dict[str, Any])
        stages = [int(tile) for tile in texts.get("stages", "").split()]
        names = [name.partition("/")[2] for name in arrays if name.startswith("0/")]
        layout = Layout.of(names, stages)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise NetworkError(f"the header's table does not describe a network: {error}", path=path) from error
    return Network(layout, *_checked(arrays, layout, path), facts)


def _checked(arrays: Mapping[str, Any], layout: Layout, path: str) -> tuple[Any, Any]:
    """The table and the scales, which have to be those of the layout."""
    expected = _names(layout)
    found = {name: array for name, array in arrays.items() if name != "scales"}
    if list(found) != expected:
        raise NetworkError(f"found arrays {list(found)}, expected {expected}", path=path)
    dtypes = {array.dtype for array in found.values()}
    if dtypes not in ({np.dtype("<f4")}, {np.dtype("<i2")}):
        raise NetworkError(f"found tables of {dtypes}, expected all float32 or all int16", path=path)
    sizes = layout.sizes * layout.stage_count
    for (name, array), size in zip(found.items(), sizes, strict=True):
        if array.shape != (size,):
            raise NetworkError(f"{name} has the shape {array.shape}, expected {(size,)}", path=path)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise NetworkError(f"{name} has values that are not finite", path=path)
    scales = arrays.get("scales")
    shape = (layout.stage_count, len(layout.tuples))
    if scales is None or scales.dtype != np.float32 or scales.shape != shape:
        raise NetworkError(f"scales are missing or not float32 of shape {shape}", path=path)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise NetworkError("scales are not all above 0", path=path)
    bounds = np.array([_bound(array) for array in found.values()]).reshape(shape) * scales
    if (bound := float(bounds.sum(axis=1).max())) > VALUE_MAX:
        raise NetworkError(
            f"boards may have values up to {bound:.1e}, expected at most {VALUE_MAX:.0e} points",
            path=path,
            hint="sums of such values over moves and spawns are no numbers, and no move is the best one",
        )
    # One array of its own: contiguous, aligned, and in huge pages where the system has them.
    return np.concatenate(list(found.values())), np.array(scales)


def _bound(table: Any) -> float:
    """What the eight entries of a board in one table come to at most, in its steps."""
    return 8.0 * max(float(table.max()), -float(table.min()))


def _names(layout: Layout) -> list[str]:
    return [f"{stage}/{tuple_text(cells)}" for stage in range(layout.stage_count) for cells in layout.tuples]


def save_network(
    network: Network,
    path: str | os.PathLike[str],
    *,
    compress: bool = True,
    interrupted: Callable[[], bool] = lambda: False,
) -> int:
    """Write a network in the place of what stands at ``path``; returns the file's bytes.

    ``compress`` is for files below :data:`EXPANDED_BYTES_MAX`; a larger one is written as it is. Compressing
    asks every second or so whether it is ``interrupted``.

    Raises:
        StorageError: the operating system said no; what stood there still does.
        KeyboardInterrupt: compressing was interrupted; what stood there still does.
    """
    layout = network.layout
    arrays = dict(zip(_names(layout), layout.tables(network.table).values(), strict=True))
    texts = {
        "format": FORMAT,
        "stages": " ".join(str(tile) for tile in layout.stages),
        "facts": msgspec.json.encode(network.facts).decode(),
    }
    parts: Iterable[bytes | memoryview] = list(encode({**arrays, "scales": network.scales}, texts))
    if compress and sum(len(part) for part in parts) < EXPANDED_BYTES_MAX:
        parts = _compressed(parts, 6 if network.table.nbytes <= _LARGE_BYTES else 1, interrupted)
    with publishing_file(path, replace=True) as file:
        file.writelines(parts)
        return file.tell()


def _compressed(
    parts: Iterable[bytes | memoryview], preset: int, interrupted: Callable[[], bool]
) -> Iterator[bytes]:
    """As xz, part by part: joined first, they would be in memory twice."""
    filters = [{**_FILTER, "preset": preset}]
    compressor = lzma.LZMACompressor(lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters)
    for part in parts:
        data = memoryview(part).cast("B")
        for begin in range(0, len(data), _COMPRESSED_BYTES):
            if interrupted():
                raise KeyboardInterrupt
            yield compressor.compress(data[begin : begin + _COMPRESSED_BYTES])
    yield compressor.flush()


#: Bytes that are compressed at a time: a second of xz -6.
_COMPRESSED_BYTES = 1 << 20

#: Literals are pairs of bytes, and values of neighbouring entries are alike.
_FILTER = {"id": lzma.FILTER_LZMA2, "lp": 1, "lc": 2, "pb": 1}

#: From here on a fifth more bytes are better than minutes: 100 MB take 80 s with xz -6, and 8 s with -1.
_LARGE_BYTES = 64 << 20
