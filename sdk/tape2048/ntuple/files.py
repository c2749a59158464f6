"""Reader and writer of network files: safetensors, optionally compressed with xz.

The arrays are one for each stage and tuple, named ``<stage>/<tuple>`` (``0/01245``), all ``f32`` or all
``i16``, and ``scales`` (``f32[S, T]``). In the header's metadata, ``format`` is ``tape2048 n-tuple network
1``, ``stages`` lists the tiles at which stages begin (``8192 16384``), and ``facts`` is a JSON object about
the training. Files that would expand to 4 GiB or more are not compressed: no reader would expand them.
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
from tape2048.errors import ChecksumError, ConfigError, FormatError, ModelError, TruncatedError
from tape2048.io.durable import publishing_file
from tape2048.io.safetensors import decode, encode, map_file
from tape2048.ntuple.layout import NetworkLayout, tuple_text

if TYPE_CHECKING:
    import os
    from collections.abc import Callable, Iterable, Iterator, Mapping

    from tape2048.ntuple.network import Network

#: The files of the networks that ship with the package, by name.
SHIPPED = {"default": "default.ntuple", "fast": "fast.ntuple", "strong": "strong.ntuple"}

FORMAT = "tape2048 n-tuple network 1"

#: The largest value of a board. Games score up to 4e6; sums of values stay within float32.
VALUE_MAX = 1e30

#: The largest size that a compressed file may expand to; the largest preset has 1.1 GB.
EXPANDED_BYTES_MAX = 4 << 30

_XZ_MAGIC = b"\xfd7zXZ\x00"

#: Memory that the decompressor may take beside its output; `xz -9` needs 65 MB.
_XZ_MEMORY_MAX = 256 << 20

#: Literals are pairs of bytes, and the values of neighbouring entries are alike.
_FILTER = {"id": lzma.FILTER_LZMA2, "lp": 1, "lc": 2, "pb": 1}

#: Bytes compressed at a time: a second of xz -6.
_COMPRESSED_BYTES = 1 << 20

#: Bytes of entries other than 0 above which a fifth more bytes cost less than the time: 100 MB take 80 s with
#: xz -6, and 8 s with -1.
_LARGE_BYTES = 64 << 20


def network_path(name: str) -> Path:
    """Return the file of the network that ships under this name, or at this path; raise ConfigError."""
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
        " `tape2048 train-player` makes others",
    )


def load_network(name: str) -> Network:
    """Load the network that ships under this name, or the one in the file at this path.

    Raises:
        ConfigError: there is neither.
        FormatError: the file is not a complete network.

    Example:
        >>> from tape2048.ntuple import load_network
        >>> load_network("fast").layout.tuples[0]
        (0, 1, 2, 3)
    """
    return read_network(_mapped(name), name)


def file_facts(name: str) -> dict[str, Any]:
    """Return ``bytes`` and ``sha256`` of a network's file, named as for :func:`load_network`.

    Raises:
        ConfigError: there is no such file.

    Example:
        >>> from tape2048.ntuple import file_facts
        >>> file_facts("fast")["bytes"]
        182300
    """
    data = _mapped(name)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def _mapped(name: str) -> memoryview:
    path = network_path(name)
    try:
        return map_file(path, "a network")
    except OSError as error:
        raise ConfigError(f"the network cannot be read: {error.strerror or error}", path=path) from error


def expanded(data: memoryview | bytes, path: str) -> memoryview | bytes:
    """Return the bytes of a file that may be compressed with xz; FormatError if they are damaged."""
    if bytes(data[: len(_XZ_MAGIC)]) != _XZ_MAGIC:
        return data
    decompressor = lzma.LZMADecompressor(lzma.FORMAT_XZ, memlimit=_XZ_MEMORY_MAX)
    try:
        expanded = decompressor.decompress(data, max_length=EXPANDED_BYTES_MAX)
    except lzma.LZMAError as error:
        raise ChecksumError(f"the compressed file is damaged: {error}", path=path) from error
    if decompressor.unused_data:
        rest = counted(len(decompressor.unused_data), "byte")
        raise FormatError(f"the file goes on for {rest} behind its compressed part", path=path)
    if not decompressor.eof and len(expanded) < EXPANDED_BYTES_MAX:
        raise TruncatedError("the compressed file is cut off", path=path)
    if not decompressor.eof:
        raise ModelError(f"it expands to more than {EXPANDED_BYTES_MAX:,} bytes", path=path)
    return expanded


def read_network(data: memoryview | bytes, path: str) -> Network:
    """Decode the bytes of a network file; ``path`` is for messages.

    Raises:
        FormatError: :class:`ModelError` where the file is intact and not a network, or has values that are
            not finite; other classes where it is damaged.
    """
    # Imported here, so that a network's path can be checked without loading the compiler.
    from tape2048.ntuple.network import Network

    arrays, texts = decode(expanded(data, path), path)
    if texts.get("format") != FORMAT:
        raise ModelError(
            f"found the format {texts.get('format')!r}, expected {FORMAT!r}",
            path=path,
            hint="`tape2048 train-player` makes networks",
        )
    try:
        facts = msgspec.json.decode(texts.get("facts", "{}"), type=dict[str, Any])
        stages = [int(tile) for tile in texts.get("stages", "").split()]
        names = [name.partition("/")[2] for name in arrays if name.startswith("0/")]
        layout = NetworkLayout.of(names, stages)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise ModelError(f"the metadata does not describe a network: {error}", path=path) from error
    return Network(layout, *_checked(arrays, layout, path), facts)


def _checked(arrays: Mapping[str, Any], layout: NetworkLayout, path: str) -> tuple[Any, Any]:
    """Return the table and the scales, checked against the layout."""
    expected = _names(layout)
    found = {name: array for name, array in arrays.items() if name != "scales"}
    if list(found) != expected:
        raise ModelError(f"found arrays {list(found)}, expected {expected}", path=path)
    dtypes = {array.dtype for array in found.values()}
    if dtypes not in ({np.dtype("<f4")}, {np.dtype("<i2")}):
        raise ModelError(f"found tables of {dtypes}, expected all float32 or all int16", path=path)
    sizes = layout.sizes * layout.stage_count
    for (name, array), size in zip(found.items(), sizes, strict=True):
        if array.shape != (size,):
            raise ModelError(f"{name} has the shape {array.shape}, expected {(size,)}", path=path)
        if array.dtype.kind == "f" and not np.isfinite(array).all():
            raise ModelError(f"{name} has values that are not finite", path=path)
    scales = arrays.get("scales")
    shape = (layout.stage_count, len(layout.tuples))
    if scales is None or scales.dtype != np.float32 or scales.shape != shape:
        raise ModelError(f"scales are missing or not float32 of shape {shape}", path=path)
    if not (np.isfinite(scales).all() and (scales > 0).all()):
        raise ModelError("scales are not all above 0", path=path)
    # A board has eight entries in each table.
    bounds = np.array([8.0 * max(float(t.max()), -float(t.min())) for t in found.values()])
    if (bound := float((bounds.reshape(shape) * scales).sum(axis=1).max())) > VALUE_MAX:
        raise ModelError(
            f"boards may have values up to {bound:.1e}, expected at most {VALUE_MAX:.0e} points",
            path=path,
            hint="sums of such values over moves and spawns overflow, and no move is the best one",
        )
    # Copied into one array: contiguous, aligned, and in huge pages where the system has them.
    return np.concatenate(list(found.values())), np.array(scales)


def _names(layout: NetworkLayout) -> list[str]:
    return [f"{stage}/{tuple_text(cells)}" for stage in range(layout.stage_count) for cells in layout.tuples]


def save_network(
    network: Network,
    path: str | os.PathLike[str],
    *,
    compress: bool = True,
    interrupted: Callable[[], bool] = lambda: False,
) -> int:
    """Write a network's file and replace any file at ``path``; return its size in bytes.

    Args:
        network: the network.
        path: of the file.
        compress: whether to compress files below :data:`EXPANDED_BYTES_MAX`; larger ones never are.
        interrupted: called about once a second while the network is compressed; true ends the call.

    Raises:
        StorageError: the operating system refused; the old file stays.
        KeyboardInterrupt: ``interrupted()`` was true; the old file stays.

    Example:
        >>> from tape2048.ntuple import NetworkLayout, Network, load_network, save_network
        >>> size = save_network(Network.empty(NetworkLayout.of(["0123"])), "empty.ntuple")
        >>> load_network("empty.ntuple").layout.tuples
        ((0, 1, 2, 3),)
    """
    parts = _parts(network, compress=compress, interrupted=interrupted)
    with publishing_file(path, replace=True) as file:
        file.writelines(parts)
        return file.tell()


def file_bytes(network: Network) -> int:
    """Return the size of the file that :func:`save_network` would write."""
    return sum(len(part) for part in _parts(network, compress=True))


def _parts(
    network: Network, *, compress: bool, interrupted: Callable[[], bool] = lambda: False
) -> Iterable[bytes | memoryview]:
    """Encode a network's file, part by part."""
    layout = network.layout
    arrays = dict(zip(_names(layout), layout.tables(network.table).values(), strict=True))
    texts = {
        "format": FORMAT,
        "stages": " ".join(str(begin) for begin in layout.stages),
        "facts": msgspec.json.encode(network.facts).decode(),
    }
    parts = list(encode({**arrays, "scales": network.scales}, texts))
    if not compress or sum(len(part) for part in parts) >= EXPANDED_BYTES_MAX:
        return parts
    used = np.count_nonzero(network.table) * network.table.itemsize
    return compressed(parts, 6 if used <= _LARGE_BYTES else 1, interrupted)


def compressed(
    parts: Iterable[bytes | memoryview], preset: int, interrupted: Callable[[], bool] = lambda: False
) -> Iterator[bytes]:
    """Compress part by part with xz: joined first, they would be in memory twice."""
    filters = [{**_FILTER, "preset": preset}]
    compressor = lzma.LZMACompressor(lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters)
    for part in parts:
        data = memoryview(part).cast("B")
        for begin in range(0, len(data), _COMPRESSED_BYTES):
            if interrupted():
                raise KeyboardInterrupt
            yield compressor.compress(data[begin : begin + _COMPRESSED_BYTES])
    yield compressor.flush()
