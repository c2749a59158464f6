"""Networks in the order of a player, in memory that all processes of a machine share.

Reading a network of 0.5 GB takes seconds and 0.5 GB of memory. Therefore the first process writes the
reordered table to ``tape2048/networks/<SHA-256 of the network's file>/table`` in the cache directory
(:func:`tape2048.jit.compiler.cache_base`), and every process maps this file read-only. The kernel maps it in
huge pages if the file system supports it (ext4 since Linux 6.16, xfs); with small pages, a player is 3 to 10%
slower.

The file is the table, a JSON object about it, the length of this object (``u32``), and the CRC-32C of all
before (``u32``). Each process verifies the checksum, which takes 0.05 s for 0.5 GB, and replaces a damaged
file. If the directory is missing, read-only or full, or belongs to another user, the process reads the
network into its own memory.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import os
import shutil
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
import numpy as np
import numpy.typing as npt

from tape2048.errors import TapeError
from tape2048.io.bulk_read import allocate
from tape2048.io.durable import new_file, write_all
from tape2048.io.reading import crc32c, map_path, prefer_huge_pages
from tape2048.jit.compiler import cache_base, drop_oldest, locked
from tape2048.ntuple.network import (
    Network,
    NetworkLayout,
    StoredNetwork,
    downgrade_of,
    map_network,
    place,
    place_stage,
    positions_of,
    stage_tables,
    tuple_text,
)

#: Reading a smaller table is about as fast as finding it.
SHARED_BYTES_MIN = 8 << 20

#: Networks that are kept. The last used ones.
NETWORKS_KEPT_MAX = 4

_FREE_BYTES_MIN = 1 << 30  # left on the disk by a kept table

_END = struct.Struct("<II")
_OTHERS_MAY_WRITE = 0o022


class _About(msgspec.Struct, frozen=True):
    source: str  # SHA-256 of the network's file
    tuples: list[str]
    stages: list[int]
    positions: list[tuple[int, list[int]]]  # by the version that wrote the table
    scales: list[list[float]]
    facts: dict[str, Any]


class PlacedNetwork(NamedTuple):
    """A network in the order of a player; its ``scales`` are in the order of the network's file.

    ``kept`` is the directory of a shared table, which is read-only; None for memory of this process.
    """

    layout: NetworkLayout
    table: npt.NDArray[Any]
    scales: npt.NDArray[np.float32]
    facts: dict[str, Any]
    kept: Path | None = None

    @classmethod
    def of(cls, network: Network) -> PlacedNetwork:
        """Reorder a network; ``f32`` tables, which learn, keep their order."""
        _, table, _ = place(network.layout, network.table, network.scales)
        return cls(network.layout, table, network.scales, network.facts)

    @property
    def downgrade(self) -> int:
        """As :attr:`Network.downgrade`."""
        return downgrade_of(self.facts)

    def tables(self) -> list[npt.NDArray[Any]]:
        """Return views of the entries in the order of the network's file."""
        if self.table.dtype == np.float32:
            return [self.table]
        stages = self.table.reshape(self.layout.stage_count, -1)
        return [table for stage in stages for table in stage_tables(self.layout, stage)]

    def remember(self, key: str, make: Callable[[], str]) -> str:
        """Return the text that ``make`` returned when a process first asked for ``key``: a file's name.

        A hash over 0.5 GB takes longer than all the rest of loading.
        """
        if self.kept is None:
            return make()
        for path in self.kept.glob(f"{key}-*"):
            return path.name.removeprefix(f"{key}-")
        text = make()
        with contextlib.suppress(OSError):
            (self.kept / f"{key}-{text}").touch()
        return text


def load_placed(name: str) -> PlacedNetwork:
    """Load a network as :func:`load_network` does, in the order of a player."""
    data = map_network(name)
    source = hashlib.sha256(data).hexdigest()
    directory = _directory(source)
    if directory is None:
        return PlacedNetwork.of(StoredNetwork.of(data, name).expanded())
    if (kept := _kept(directory, source)) is not None:
        return kept
    with locked(directory / "lock"):
        if (kept := _kept(directory, source)) is not None:
            return kept
        stored = StoredNetwork.of(data, name)
        if stored.dtype == np.int16 and 2 * stored.layout.entries >= SHARED_BYTES_MIN:
            with contextlib.suppress(OSError, TapeError):  # a damaged network is reported below
                _keep(stored, directory, source)
        return _kept(directory, source) or PlacedNetwork.of(stored.expanded())


def _directory(source: str) -> Path | None:
    base = cache_base()
    if base is None:
        return None
    directory = base / "tape2048/networks" / source
    with contextlib.suppress(OSError):
        directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        found = [path.stat() for path in (directory, *directory.parents[:3])]
        if all(one.st_uid == os.geteuid() and not one.st_mode & _OTHERS_MAY_WRITE for one in found):
            return directory
    return None


def _kept(directory: Path, source: str) -> PlacedNetwork | None:
    try:
        data = map_path(directory / "table")
        prefer_huge_pages(data)
        length, checksum = _END.unpack(data[-_END.size :].tobytes())
        if crc32c(data[:-4].data) != checksum:
            return None
        end = len(data) - _END.size
        about = msgspec.json.decode(data[end - length : end].tobytes(), type=_About)
        layout = NetworkLayout.of(about.tuples, about.stages)
    except (TapeError, struct.error, msgspec.MsgspecError):
        return None
    if about.source != source or about.positions != positions_of(layout):
        return None
    with contextlib.suppress(OSError):  # a read-only directory
        os.utime(directory)
    table, scales = data[: end - length].view(np.int16), np.array(about.scales, np.float32)
    return PlacedNetwork(layout, table, scales, about.facts, directory)


def _keep(stored: StoredNetwork, directory: Path, source: str) -> None:
    layout = stored.layout
    drop_oldest(directory.parent.iterdir(), NETWORKS_KEPT_MAX)
    if shutil.disk_usage(directory).free < 2 * layout.entries + _FREE_BYTES_MIN:
        return
    tuples, positions = [*map(tuple_text, layout.tuples)], positions_of(layout)
    about = _About(source, tuples, [*layout.stages], positions, stored.scales.tolist(), stored.facts)
    placed, checksum = allocate(2 * layout.stage_size).view(np.int16), 0
    with new_file(directory / "table", replace=True, durable=False) as fd:
        # Past the page cache: where memory is fragmented, writing would fill it with small pages.
        with contextlib.suppress(OSError):
            fcntl.fcntl(fd, fcntl.F_SETFL, os.O_DIRECT)
        for tables in stored.stages():
            place_stage(layout, tables, placed)
            write_all(fd, placed.data)
            checksum = crc32c(placed, checksum)
        fcntl.fcntl(fd, fcntl.F_SETFL, 0)
        text = msgspec.json.encode(about)
        text += struct.pack("<I", len(text))
        write_all(fd, text + struct.pack("<I", crc32c(text, checksum)))
