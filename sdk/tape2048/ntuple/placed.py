"""Networks with their entries in the order of a player, in memory that all processes of a machine share.

Reading a network of 0.5 GB takes seconds and 0.5 GB of memory. Therefore the first process writes the
reordered table to ``tape2048/networks/<SHA-256 of the network's file>/table`` in the cache directory
(:func:`tape2048.jit.compiler.private_dir`), and every process maps this file read-only. The kernel maps it in
huge pages if the file system supports it (ext4 since Linux 6.16, xfs); with small pages, a player is 3 to 10%
slower.

The file holds the table, a JSON object about it, the length of this object (``u32``), and the CRC-32C of all
bytes before (``u32``). Each process verifies the length and the checksum, which takes 0.05 s for 0.5 GB, and
replaces a damaged file. If the directory is missing, read-only or full, or belongs to another user, the
process reads the network into its own memory.

A process that overwrites this file changes the moves of every player that maps it. The file is therefore
read-only, and :func:`tape2048.ntuple.mapped.check_tables` detects changes: a worker calls it before it hands
over games.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import stat
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.errors import TapeError
from tape2048.files.bulk_read import allocate
from tape2048.files.durable import new_file, write_all
from tape2048.files.known_files import remember_file
from tape2048.files.reading import crc32c, map_file, open_regular, prefer_huge_pages
from tape2048.files.safetensors import HEADER_END_MAX
from tape2048.jit.compiler import locked, private_dir
from tape2048.ntuple.mapped import MappedTable
from tape2048.ntuple.network import (
    Network,
    NetworkLayout,
    StoredNetwork,
    downgrade_of,
    map_network,
    network_path,
    place,
    place_stage,
    positions_of,
    stage_tables,
    tuple_text,
)
from tape2048.ntuple.tdl2048 import split_name

#: Smallest table that is shared. Reading a smaller table is about as fast as mapping it.
SHARED_BYTES_MIN = 8 << 20

#: Number of networks that are kept: the most recently used.
NETWORKS_KEPT_MAX = 4

_FREE_BYTES_MIN = 1 << 30  # left on the disk by a kept table

_END = struct.Struct("<II")


class _About(msgspec.Struct, frozen=True):
    source: str  # SHA-256 of the network's file, and of the form and stages that its name states
    tuples: list[str]
    stages: list[int]
    positions: list[tuple[int, list[int]]]  # in the version of this module that wrote the table
    scales: list[list[float]]
    facts: dict[str, Any]
    is_float: bool = False  # f32 instead of i16


class PlacedNetwork(NamedTuple):
    """A network in a player's order, ``scales`` in the file's; ``kept`` is a shared table's directory."""

    layout: NetworkLayout
    table: npt.NDArray[Any]
    scales: npt.NDArray[np.float32]
    facts: dict[str, Any]
    kept: Path | None = None

    @classmethod
    def of(cls, network: Network) -> PlacedNetwork:
        """Reorder a network. ``f32`` tables, which learn, keep their order."""
        _, table, _ = place(network.layout, network.table, network.scales)
        return cls(network.layout, table, network.scales, network.facts)

    @property
    def downgrade(self) -> int:
        return downgrade_of(self.facts)

    def tables(self) -> list[npt.NDArray[Any]]:
        """Return views of the entries in the order of the network's file."""
        if self.table.dtype == np.float32:
            return [self.table]
        stages = self.table.reshape(self.layout.stage_count, -1)
        return [table for stage in stages for table in stage_tables(self.layout, stage)]

    def remember(self, key: str, make: Callable[[], str]) -> str:
        """Return the text of ``make``, kept by ``key``: a hash of 0.5 GB takes longer than all of loading."""
        if self.kept is None:
            return make()
        for path in self.kept.glob(f"{key}-*"):
            return path.name.removeprefix(f"{key}-")
        text = make()
        with contextlib.suppress(OSError):
            (self.kept / f"{key}-{text}").touch()
        return text


def load_placed(name: str) -> PlacedNetwork:
    """Load a network as :func:`load_network` does, with its entries in the order of a player."""
    data, tdl2048 = map_network(name), split_name(name)
    digest = hashlib.sha256(data)
    if name.endswith((path := network_path(name)).name):  # not a shipped network
        remember_file(path, digest.hexdigest())
    if tdl2048:  # the name determines the format and the stages
        digest.update(repr(tdl2048.stages).encode())
    source = digest.hexdigest()
    directory = _directory(source)
    if directory is None:
        return PlacedNetwork.of(StoredNetwork.of(data, name).expanded())
    if (kept := _kept(directory, source)) is not None:
        return kept
    with locked(directory / "lock", "expands a network"):
        if (kept := _kept(directory, source)) is not None:
            return kept
        stored = StoredNetwork.of(data, name)
        if stored.dtype.itemsize * stored.layout.entries >= SHARED_BYTES_MIN:
            with contextlib.suppress(OSError, TapeError):  # a damaged network is reported below
                _keep(stored, directory, source)
        return _kept(directory, source) or PlacedNetwork.of(stored.expanded())


def _directory(source: str) -> Path | None:
    with contextlib.suppress(OSError):
        return private_dir("networks", source)
    return None


def _kept(directory: Path, source: str) -> PlacedNetwork | None:
    try:
        mapped = MappedTable(directory / "table")
        with open_regular(directory / "table") as fd:  # all processes share the mapping, on any disk
            data = map_file(fd, os.fstat(fd).st_size)
        prefer_huge_pages(data)
        length, checksum = _END.unpack(data[-_END.size :].tobytes())
        end = len(data) - _END.size
        if length > min(end, HEADER_END_MAX):
            return None
        about = msgspec.json.decode(data[end - length : end].tobytes(), type=_About)
        layout = NetworkLayout.of(about.tuples, about.stages)
        scales = np.array(about.scales, np.float32)
        dtype = np.dtype(np.float32 if about.is_float else np.int16)
    except (TapeError, ValueError, struct.error, msgspec.MsgspecError):
        return None
    if (
        about.source != source
        or about.positions != positions_of(layout)
        or scales.shape != (layout.stage_count, len(layout.tuples))
        # Before the checksum, which takes minutes for a terabyte.
        or end - length != dtype.itemsize * layout.entries
        or not mapped.verify(data, checksum)
    ):
        return None
    with contextlib.suppress(OSError):  # a read-only directory
        os.utime(directory)
    return PlacedNetwork(layout, data[: end - length].view(dtype), scales, about.facts, directory)


def _drop_oldest(directory: Path) -> None:
    found = []
    for path in directory.iterdir():
        with contextlib.suppress(OSError):  # another process removed it
            found.append((path.stat().st_mtime, path))
    for _, path in sorted(found, reverse=True)[NETWORKS_KEPT_MAX:]:
        shutil.rmtree(path, ignore_errors=True)


def _keep(stored: StoredNetwork, directory: Path, source: str) -> None:
    layout, dtype = stored.layout, stored.dtype
    _drop_oldest(directory.parent)
    if shutil.disk_usage(directory).free < dtype.itemsize * layout.entries + _FREE_BYTES_MIN:
        return
    tuples, positions = [*map(tuple_text, layout.tuples)], positions_of(layout)
    about = _About(
        source, tuples, [*layout.stages], positions, stored.scales.tolist(), stored.facts, dtype == np.float32
    )
    placed, checksum = allocate(dtype.itemsize * layout.stage_size).view(dtype), 0
    with new_file(directory / "table", replace=True, durable=False) as fd:
        # Bypass the page cache, which would get small pages if memory is fragmented.
        with contextlib.suppress(OSError, AttributeError):  # macOS has no such flag
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        for tables in stored.stages():
            if dtype == np.int16:
                place_stage(layout, tables, placed)
            else:  # f32 tables keep the order of the file
                np.concatenate(tables, out=placed)
            write_all(fd, placed.data)
            checksum = crc32c(placed, checksum)
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        text = msgspec.json.encode(about)
        text += struct.pack("<I", len(text))
        write_all(fd, text + struct.pack("<I", crc32c(text, checksum)))
        os.fchmod(fd, stat.S_IRUSR)
