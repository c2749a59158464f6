"""N-tuple networks: tuples and stages, the network in memory, and its files.

A **tuple** is a set of cells. Its table has an entry for each way to fill them. The exponents in the cells
are the hexadecimal digits of the entry's index, and the cell with the lowest number gives the first digit.
Each **stage** has its own set of tables. It starts at a **sum of different tiles**. To find a board's stage,
add its tiles, but each size of tile only once. The board belongs to the last stage that starts at or below
this sum. Stage 8192 starts when the board has an 8192, and stage 12288 when it also has a 4096. A board with
several 4096 and no larger tile reaches neither, since 4096 is added once.

Tables hold values in points of score. The entries are ``f32``, or ``i16`` that are multiplied by the table's
scale.

A **network file** is safetensors. There is an array for each stage and tuple, ``<stage>/<tuple>``
(``0/01245``), and ``scales`` (``f32[S, T]``). In the header's metadata, ``stages`` lists the sums at which
the second and later stages start (``8192 12288``), and ``facts`` is a JSON object about the training. There
are two formats:

* ``tape2048 n-tuple network 1``: the tables are all ``f32`` or all ``i16``. The file may be compressed by xz.
* ``tape2048 n-tuple network 2`` stores only the entries of ``i16`` tables that are not 0. A table is ``u8``:
  a zlib stream of three planes of ``n`` bytes each. The first plane holds the distance of each stored entry
  from the previous one, at least 1; for the first entry, its index plus 1. The writer adds 128 to each value.
  The second plane holds the low bytes of these sums, and the third plane holds the high bytes. A distance
  above 255 is split by stored entries of value 0.

The second format is smaller, and takes a seventh of the time to read. Readers reject a compressed file that
expands to 4 GiB or more, or to more than 256 MiB and 1,000 bytes for each byte of the file. The writer does
not compress such a network.

**In a player**, tuples that share all cells but one share cache lines. The entries of a board are spread over
megabytes, beyond the first caches of a core, so the number of cache lines determines the time for a value.
For example, the tuples 01234 and 01245 share the cells 0, 1, 2 and 4. The digits of these four cells come
first in the index, and each 4-byte word holds one entry of each tuple. The 32 entries of both tuples with
the same four exponents are then one line of 64 bytes. Four tuples in two such pairs have 32 entries for
a board, in its eight symmetries. These entries take 16 lines.

Only ``i16`` tables are reordered. ``f32`` tables, which learn, keep their order.
"""

from __future__ import annotations

import dataclasses
import hashlib
import importlib.resources
import lzma
import os
import stat
import zlib
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from pathlib import Path
from typing import Any, NamedTuple, TypeVar

import msgspec
import numpy as np
import numpy.typing as npt
from numpy.lib.stride_tricks import as_strided

from tape2048.base.text import counted
from tape2048.errors import ChecksumError, ConfigError, FormatError, ModelError, StorageError, reader_hint
from tape2048.files.bulk_read import allocate
from tape2048.files.durable import publishing_file
from tape2048.files.expansion import expanded_max
from tape2048.files.known_files import HINT, has_digits, known_file
from tape2048.files.reading import map_path
from tape2048.files.safetensors import HEADER_END_MAX, decode, encode, read_tensor_table
from tape2048.files.xz import XzReader, is_xz
from tape2048.ntuple.tdl2048 import is_weight_file, read_tables, split_name

U64 = np.uint64

F = TypeVar("F")

#: The possible values of :attr:`Network.downgrade`. Below the first, no tile can be missing.
TILES = [1 << exponent for exponent in range(2, 16)]

#: The default of :attr:`tape2048.ntuple.network.Network.downgrade`.
DOWNGRADE = 16384

_SUM_MAX = sum(TILES)

CELLS_MIN, CELLS_MAX = 4, 6
_DIGITS = "0123456789abcdef"


def parse_tuple(text: str) -> tuple[int, ...]:
    """Parse a tuple such as ``"01245"``; raise ConfigError unless it has 4 to 6 ascending cells."""
    cells = tuple(_DIGITS.find(char) for char in text.lower())
    if -1 in cells or list(cells) != sorted(set(cells)) or not CELLS_MIN <= len(cells) <= CELLS_MAX:
        raise ConfigError(
            f"found the tuple {text!r}, expected {CELLS_MIN} to {CELLS_MAX} different cells, ascending",
            hint="write one hexadecimal digit for each cell, from 0 (top left) to f (bottom right): 01245",
        )
    return cells


def tuple_text(cells: Iterable[int]) -> str:
    return "".join(_DIGITS[cell] for cell in cells)


def check_sums(sums: Sequence[int], name: str) -> tuple[int, ...]:
    """Return sums of different tiles as a tuple; raise ConfigError unless they are possible and ascend."""
    good = all(0 < total <= _SUM_MAX and total % TILES[0] == 0 for total in sums)
    if not good or list(sums) != sorted(set(sums)):
        raise ConfigError(
            f"found {name} {list(sums)}, expected tiles from 4 to 32768, or sums of different tiles, in "
            "ascending order",
            hint="write 8192 12288 for a stage with an 8192, and a stage with an 8192 and a 4096",
        )
    return tuple(sums)


@dataclasses.dataclass(frozen=True)
class NetworkLayout:
    """The tuples and stages of a network.

    Args:
        tuples: cells of each tuple, ascending.
        stages: sums of different tiles at which the second and later stages start, ascending. If empty, all
            boards are in one stage.

    Example:
        >>> from tape2048.ntuple import NetworkLayout
        >>> NetworkLayout.of(["0123", "01245"], stages=[2048]).entries
        2228224
    """

    tuples: tuple[tuple[int, ...], ...]
    stages: tuple[int, ...] = ()

    @classmethod
    def of(cls, tuples: Sequence[str], stages: Sequence[int] = ()) -> NetworkLayout:
        """Make a layout from tuples and stages as configurations spell them.

        Args:
            tuples: cells of each tuple, such as ``["0123", "01245"]``.
            stages: tiles from 4 to 32768, or sums of different tiles, ascending.

        Raises:
            ConfigError: a tuple or a stage is invalid or repeated.
        """
        parsed = tuple(map(parse_tuple, tuples))
        if not parsed or len(set(parsed)) < len(parsed):
            raise ConfigError(f"found the tuples {list(tuples)}, expected at least one, and each once")
        return cls(parsed, check_sums(stages, "stages"))

    @property
    def masks(self) -> tuple[np.uint64, ...]:
        """Mask of each tuple's cells in a packed board."""
        return tuple(U64(sum(0xF << (60 - 4 * cell) for cell in cells)) for cells in self.tuples)

    @property
    def sizes(self) -> list[int]:
        """Number of entries of each tuple's table."""
        return [16 ** len(cells) for cells in self.tuples]

    @property
    def offsets(self) -> tuple[np.uint64, ...]:
        """Index of the first entry of each tuple's table in its stage."""
        return tuple(U64(end - size) for end, size in zip(accumulate(self.sizes), self.sizes, strict=True))

    @property
    def stage_size(self) -> int:
        """Number of entries of a stage."""
        return sum(self.sizes)

    @property
    def stage_count(self) -> int:
        """Number of stages, including the first."""
        return len(self.stages) + 1

    @property
    def entries(self) -> int:
        """Number of entries of the whole network."""
        return self.stage_count * self.stage_size

    @property
    def names(self) -> list[str]:
        """Name of each table in a file: ``<stage>/<tuple>``."""
        return [f"{stage}/{tuple_text(cells)}" for stage in range(self.stage_count) for cells in self.tuples]

    def tables(self, table: npt.NDArray[Any]) -> dict[tuple[int, int], npt.NDArray[Any]]:
        """Return views of each tuple's entries in ``table``, by ``(stage, tuple)``."""
        keys = [(stage, index) for stage in range(self.stage_count) for index in range(len(self.tuples))]
        ends = accumulate(self.sizes * self.stage_count)
        return dict(zip(keys, np.split(table, list(ends)[:-1]), strict=True))


def downgrade_of(facts: Mapping[str, Any]) -> int:
    training = facts.get("training")
    found = training.get("downgrade") if isinstance(training, dict) else None
    return found if type(found) is int and found in {0, *TILES} else DOWNGRADE


_ENTRIES_AT_ONCE = 1 << 18  # entries quantised at a time, to bound the temporary arrays


@dataclasses.dataclass(frozen=True)
class Network:
    """An n-tuple network.

    Args:
        layout: tuples and stages.
        table: ``f32[entries]`` or ``i16[entries]``: stage by stage, tuple by tuple.
        scales: ``f32[S, T]``: points of score of one unit in the entries of each table (1 for ``f32``).
        facts: facts about the training, as JSON values.

    Example:
        >>> import numpy as np
        >>> from tape2048.ntuple import NetworkLayout, Network
        >>> network = Network.empty(NetworkLayout.of(["0123"]), initial_value=100)
        >>> network.values(np.array([0x1200, 0x3], np.uint64))
        array([100., 100.], dtype=float32)
    """

    layout: NetworkLayout
    table: npt.NDArray[np.float32] | npt.NDArray[np.int16]
    scales: npt.NDArray[np.float32]
    facts: dict[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def downgrade(self) -> int:
        """Lowest highest tile of the boards that are downgraded, from the facts of the training; 0: never."""
        return downgrade_of(self.facts)

    @classmethod
    def empty(cls, layout: NetworkLayout, *, initial_value: float = 0.0) -> Network:
        """Make a network that gives each board the same value. A high value is optimistic initialisation.

        Args:
            layout: tuples and stages.
            initial_value: value of a board in points of score.
        """
        table = np.full(layout.entries, initial_value / (8 * len(layout.tuples)), dtype=np.float32)
        return cls(layout, table, np.ones((layout.stage_count, len(layout.tuples)), dtype=np.float32))

    def values(self, boards: npt.NDArray[np.uint64]) -> npt.NDArray[np.float32]:
        """Return the values of afterstates ``u64[n]`` as ``f32[n]``, in points of score."""
        # Imported here, so that a network's path can be checked without loading the compiler.
        from tape2048.ntuple.lookup import fill_values

        out, placed = np.empty(len(boards), dtype=np.float32), place(self.layout, self.table, self.scales)
        fill_values(*placed, np.ascontiguousarray(boards, dtype=U64), out)
        return out

    def quantised(self, step: float) -> Network:
        """Return the network as ``i16``, in steps of ``step`` points or, in tables of large values, more.

        Raises:
            ConfigError: the network is quantised already, or the step is not a positive ``f32``.
        """
        limits = np.finfo(np.float32)
        if self.table.dtype != np.float32 or not 0 < step <= float(limits.max):
            raise ConfigError(
                f"found tables of {self.table.dtype} and a step of {step:g}, expected tables of float32 and "
                "a step above 0 that float32 can hold"
            )
        table = np.empty(self.layout.entries, dtype=np.int16)
        scales = np.empty_like(self.scales)
        target = Network(self.layout, table, scales, {**self.facts, "quantised_step": step})
        quantised = self.layout.tables(table)
        for (stage, index), values in self.layout.tables(self.table).items():
            # From -32,767 to 32,767: -32,768 is never used.
            largest = float(max(values.max(), -values.min()))
            scale = max(step, largest / np.iinfo(np.int16).max, float(limits.tiny))
            scales[stage, index] = scale
            for first in range(0, len(values), _ENTRIES_AT_ONCE):
                part = slice(first, first + _ENTRIES_AT_ONCE)
                quantised[stage, index][part] = np.rint(values[part] / np.float32(scale))
        return target


#: The names and files of the networks that ship with the package.
SHIPPED = {"strong": "strong.ntuple", "small": "small.ntuple", "fast": "fast.ntuple"}

#: The earlier name of `small`, which older sessions have.
_FORMER_SMALL = "default"

FORMAT = "tape2048 n-tuple network 1"
SPARSE_FORMAT = "tape2048 n-tuple network 2"

#: The largest value of a board. Games score up to 4e6; sums of values stay within float32.
VALUE_MAX = 1e30

#: The largest size that a compressed file may expand to. The largest preset has 1.1 GB.
EXPANDED_BYTES_MAX = 4 << 30

_ENTRY_BYTES_MAX = 32  # of an entry of a critic for 15 tiles, with room for its scales

#: Parameters of LZMA for pairs of bytes, where neighbouring entries have similar values.
_FILTER = {"id": lzma.FILTER_LZMA2, "lp": 1, "lc": 2, "pb": 1}

_COMPRESSED_BYTES = 1 << 20  # bytes compressed at a time: a second of xz -6

_DISTANCE_MAX = 255
_VALUE_OFFSET = np.uint16(128)  # makes the high byte of small values 0


def network_path(name: str) -> Path:
    """Return the file of a network, named as for :func:`load_network`; raise ConfigError if there is none."""
    tdl2048 = split_name(name)
    path, name = known_file(tdl2048.path if tdl2048 else name), "small" if name == _FORMER_SMALL else name
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
        hint=HINT
        if has_digits(name)
        else f"pass a file, a shipped network ({', '.join(SHIPPED)}) or tdl2048:FILE as weights, or train a"
        " network: tape2048 train-player",
    )


def load_network(name: str) -> Network:
    """Load a network.

    Args:
        name: name of a shipped network, path of a network file, or ``tdl2048:FILE`` for the weight file of
            another program (:mod:`tape2048.ntuple.tdl2048`).

    Raises:
        ConfigError: there is no such network.
        FormatError: the file is not a complete network.

    Example:
        >>> from tape2048.ntuple import load_network
        >>> load_network("fast").layout.tuples[0]
        (0, 1, 2, 3)
    """
    return read_network(map_network(name), name)


def file_facts(name: str) -> dict[str, Any]:
    """Return the size (``bytes``) and ``sha256`` of a network's file, named as for :func:`load_network`.

    Raises:
        ConfigError: there is no such file.

    Example:
        >>> from tape2048.ntuple import file_facts
        >>> file_facts("fast")["bytes"] < 500_000
        True
    """
    data = map_network(name)
    return {"bytes": len(data), "sha256": hashlib.sha256(data).hexdigest()}


def map_network(name: str) -> memoryview:
    path = network_path(name)
    try:
        return map_path(path).data
    except StorageError as error:
        raise ConfigError(f"the network file {error.message}", path=path) from error


def _expanded(data: memoryview | bytes, path: str, most: int) -> memoryview | bytes:
    return XzReader(data, path).read(most) if is_xz(data) else data


class StoredNetwork(NamedTuple):
    """A network's file, whose tables are expanded one after the other."""

    layout: NetworkLayout
    arrays: dict[str, npt.NDArray[Any]]  # ``f32``, ``i16``, or ``u8`` for compressed ``i16``
    scales: npt.NDArray[np.float32]
    facts: dict[str, Any]
    path: str

    @classmethod
    def of(cls, data: memoryview | bytes, path: str) -> StoredNetwork:
        """Decode a network file except for its tables; ``path`` is for messages, and states the format."""
        if tdl2048 := split_name(path):
            return cls._of_tdl2048(data, *tdl2048)
        forms = FORMAT, SPARSE_FORMAT
        arrays, _, layout, facts = decode_tables(data, path, forms, dict[str, Any], "train-player")
        scales = arrays.pop("scales", None)
        dtypes = {array.dtype for array in arrays.values()}
        if dtypes not in ({np.dtype("<f4")}, {np.dtype("<i2")}, {np.dtype("u1")}):
            raise ModelError(f"found tables of {dtypes}, expected all float32 or all int16", path=path)
        shape = (layout.stage_count, len(layout.tuples))
        if scales is None or scales.dtype != np.float32 or scales.shape != shape:
            raise ModelError(f"scales are missing or invalid; expected float32 of shape {shape}", path=path)
        if not (np.isfinite(scales).all() and (scales > 0).all()):
            raise ModelError("scales are not all above 0 and finite", path=path)
        if dtypes == {np.dtype("u1")}:
            _check_expanded(2 * layout.entries, _expanded_max(data), path)
        return cls(layout, arrays, np.array(scales), facts, path)

    @classmethod
    def _of_tdl2048(cls, data: memoryview | bytes, path: str, sums: tuple[int, ...]) -> StoredNetwork:
        tables = {(each.stage, each.cells): each for each in read_tables(data, path, _expanded_max(data))}
        stages = 1 + max(stage for stage, _ in tables)
        layout = NetworkLayout(
            tuple(cells for stage, cells in tables if stage == 0), check_sums(sums, "stages")
        )
        if stages != layout.stage_count:
            raise ConfigError(
                f"found {counted(stages, 'stage')} in the file and {len(sums)} sums of tiles in its name; "
                f"expected {stages - 1}, since each stage but the first starts at a sum",
                path=path,
                hint="Write the sums of TDL2048's option -@, which the file lacks, except for the first, 0: "
                "tdl2048@16384+24576:FILE",
            )
        keys = [(stage, cells) for stage in range(stages) for cells in layout.tuples]
        if tables.keys() != set(keys):
            found = ", ".join(f"{each.stage}/{each.pattern}" for each in tables.values())
            raise ModelError(f"found the tables {found}; expected the same patterns in each stage", path=path)
        arrays = {name: tables[key].values for name, key in zip(layout.names, keys, strict=True)}
        patterns = [each.pattern for each in tables.values() if each.stage == 0]
        facts = {"origin": "TDL2048", "patterns": patterns, "training": {"downgrade": 0}}
        return cls(layout, arrays, np.ones((stages, len(layout.tuples)), np.float32), facts, path)

    @property
    def dtype(self) -> np.dtype[Any]:
        dtype = next(iter(self.arrays.values())).dtype
        return np.dtype(np.int16) if dtype == np.uint8 else dtype

    def stages(self) -> Iterator[list[npt.NDArray[Any]]]:
        """Yield the entries of each tuple, stage by stage. The arrays are valid until the next stage."""
        layout, arrays = self.layout, iter(self.arrays.items())
        memory = np.empty(layout.stage_size if self.dtype == np.int16 else 0, np.int16)
        for scales in self.scales:
            tables = []
            for size, part in zip(layout.sizes, np.split(memory, np.cumsum(layout.sizes)[:-1]), strict=True):
                name, array = next(arrays)
                if array.dtype == np.uint8:
                    array = _unpack(array, part, self.path)
                if array.shape != (size,):
                    found = f"{name} has the shape {array.shape}, expected {(size,)}"
                    raise ModelError(found, path=self.path)
                if array.dtype.kind == "f" and not np.isfinite(array).all():
                    raise ModelError(f"{name} has values that are not finite", path=self.path)
                tables.append(array)
            # A board has eight entries in each table.
            bounds = [8.0 * max(float(table.max()), -float(table.min())) for table in tables]
            if (bound := float((bounds * scales).sum())) > VALUE_MAX:
                raise ModelError(
                    f"boards may have values up to {bound:.1e}, expected at most {VALUE_MAX:.0e} points",
                    path=self.path,
                    hint="train the network again, with a smaller learning rate",
                )
            yield tables

    def expanded(self) -> Network:
        # Copied into one array: contiguous, aligned, and in huge pages where the system has them.
        table = np.empty(self.layout.entries, self.dtype)
        for part, tables in zip(table.reshape(len(self.scales), -1), self.stages(), strict=True):
            np.concatenate(tables, out=part)
        return Network(self.layout, table, self.scales, self.facts)


def read_network(data: memoryview | bytes, path: str) -> Network:
    return StoredNetwork.of(data, path).expanded()


def decode_tables(
    data: memoryview | bytes, path: str, forms: Sequence[str], facts: type[F], command: str
) -> tuple[dict[str, Any], dict[str, str], NetworkLayout, F]:
    """Decode a file of tables into its arrays, metadata, layout and facts.

    A compressed file is expanded to the size that its header declares, after a check of the header. ``forms``
    are the accepted values of ``format``, and ``command`` makes such files, for the hint.
    """
    first = bytes(_expanded(data, path, 8)[:8])
    if is_weight_file(first):
        hint = "Name a player's network tdl2048:FILE."
        raise ModelError("found a weight file of TDL2048", path=path, hint=hint)
    length = int.from_bytes(first, "little")
    head = _expanded(data, path, min(8 + length, HEADER_END_MAX))
    header = read_tensor_table(head, path)
    texts = header.texts
    if texts.get("format") not in forms:
        raise ModelError(
            f"found the format {texts.get('format')!r:.60}, expected {' or '.join(map(repr, forms))}",
            path=path,
            hint=_other_format(texts, forms[0], command),
        )  # fmt: skip
    try:
        found = msgspec.json.decode(texts.get("facts", "{}"), type=facts)
        stages = [int(tile) for tile in texts.get("stages", "").split()]
        names = [name.partition("/")[2] for name in header.arrays if name.startswith("0/")]
        layout = NetworkLayout.of(names, stages)
    except (msgspec.MsgspecError, ValueError, ConfigError, RecursionError) as error:
        raise ModelError(
            f"the metadata does not describe a {forms[0].split()[2]}: {error}", path=path
        ) from error
    if (tables := [name for name in header.arrays if name != "scales"]) != layout.names:
        raise ModelError(f"found arrays {tables}, expected {layout.names}", path=path)
    if head is not data:
        most = header.begin + _ENTRY_BYTES_MAX * layout.entries
        _check_expanded(header.end, min(_expanded_max(data), most), path)
    # One byte more, so that the reader reaches the end of the compressed part.
    return *decode(_expanded(data, path, header.end + 1), path), layout, found


def _other_format(texts: dict[str, str], form: str, command: str) -> str:
    """Return the hint for a file whose format differs from ``form``, perhaps only in its number."""
    if form.rstrip("0123456789") == texts.get("format", "").rstrip("0123456789"):
        return reader_hint(texts.get("release"))
    return f"`tape2048 {command}` makes such files"


def _expanded_max(data: memoryview | bytes) -> int:
    return min(EXPANDED_BYTES_MAX, expanded_max(len(data)))


def _check_expanded(found: int, most: int, path: str) -> None:
    if found > most:
        message = f"it expands to {found:,} bytes, expected at most {most:,} for a file of its size"
        raise ModelError(message, path=path)


def file_texts(form: str, layout: NetworkLayout, facts: object, **more: str) -> dict[str, str]:
    stages = " ".join(map(str, layout.stages))
    return {"format": form, "stages": stages, **more, "facts": msgspec.json.encode(facts).decode()}


def _pack(entries: npt.NDArray[np.int16]) -> npt.NDArray[np.uint8]:
    """Compress the entries of a table that are not 0."""
    used = np.flatnonzero(entries)
    distances = np.diff(used, prepend=-1)
    bridges = (distances - 1) // _DISTANCE_MAX
    places = np.cumsum(bridges + 1) - 1
    count = len(used) + int(bridges.sum())
    steps, values = np.full(count, _DISTANCE_MAX, np.uint8), np.zeros(count, np.uint16)
    steps[places] = distances - bridges * _DISTANCE_MAX
    values[places] = entries[used].view(np.uint16)
    values += _VALUE_OFFSET
    compressor = zlib.compressobj(6, zlib.DEFLATED, zlib.MAX_WBITS, zlib.DEF_MEM_LEVEL + 1, zlib.Z_RLE)
    planes = steps, values.astype(np.uint8), (values >> 8).astype(np.uint8)
    stream = b"".join([*(compressor.compress(plane.data) for plane in planes), compressor.flush()])
    return np.frombuffer(stream, np.uint8)


def _unpack(
    stream: npt.NDArray[np.uint8], entries: npt.NDArray[np.int16], path: str
) -> npt.NDArray[np.int16]:
    """Fill a table with the entries that :func:`_pack` compressed; ``path`` is for errors."""
    decompressor = zlib.decompressobj()
    try:
        data = decompressor.decompress(stream.data, 3 * len(entries) + 1)
    except zlib.error as error:
        raise ChecksumError(f"the compressed table is damaged: {error}", path=path) from error
    steps, low, high = np.frombuffer(data[: len(data) // 3 * 3], np.uint8).reshape(3, -1)
    at = np.cumsum(steps, dtype=np.int64) - 1
    is_whole = decompressor.eof and not decompressor.unused_data and len(data) % 3 == 0
    if not is_whole or (len(at) and at[-1] >= len(entries)) or not steps.all():
        raise FormatError(
            f"a compressed table is damaged; expected at most {len(entries):,} entries of 3 bytes", path=path
        )
    entries.fill(0)
    entries[at] = ((high.astype(np.uint16) << np.uint16(8) | low) - _VALUE_OFFSET).view(np.int16)
    return entries


def save_network(
    network: Network,
    path: str | os.PathLike[str],
    *,
    compress: bool = True,
) -> int:
    """Write a network's file and replace any file at ``path``; return its size in bytes.

    Args:
        network: the network.
        path: path of the file.
        compress: whether to compress, unless readers would reject the file; see this module.

    Raises:
        StorageError: the operating system could not write the file. An existing file stays.

    Example:
        >>> from tape2048.ntuple import NetworkLayout, Network, load_network, save_network
        >>> size = save_network(Network.empty(NetworkLayout.of(["0123"])), "empty.ntuple")
        >>> load_network("empty.ntuple").layout.tuples
        ((0, 1, 2, 3),)
    """
    parts = _parts(network, compress=compress)
    with publishing_file(path, replace=True) as file:
        file.writelines(parts)
        return file.tell()


def file_bytes(network: Network) -> int:
    """Return the size of the file that :func:`save_network` would write."""
    return sum(len(part) for part in _parts(network, compress=True))


def _parts(network: Network, *, compress: bool) -> Iterable[bytes | memoryview]:
    layout = network.layout
    arrays = dict(zip(layout.names, layout.tables(network.table).values(), strict=True))
    parts = list(encode({**arrays, "scales": network.scales}, file_texts(FORMAT, layout, network.facts)))
    if not compress or sum(map(len, parts)) >= EXPANDED_BYTES_MAX:
        return parts
    if network.table.dtype == np.float32:
        return readable(
            parts, compressed(parts, 1)
        )  # floats hardly repeat, and preset 6 takes ten times as long
    packed = {name: _pack(entries) for name, entries in arrays.items()}
    texts = file_texts(SPARSE_FORMAT, layout, network.facts)
    return readable(parts, encode({**packed, "scales": network.scales}, texts))


def readable(
    parts: Sequence[bytes | memoryview], packed: Iterable[bytes | memoryview]
) -> Sequence[bytes | memoryview]:
    """Return the compressed parts of a file, or ``parts`` if readers would reject them."""
    packed = [*packed]
    return packed if sum(map(len, parts)) <= expanded_max(sum(map(len, packed))) else parts


def compressed(parts: Iterable[bytes | memoryview], preset: int) -> Iterator[bytes]:
    """Yield the xz file of some parts, compressed part by part to save the memory of a joined copy."""
    filters = [{**_FILTER, "preset": preset}]
    compressor = lzma.LZMACompressor(lzma.FORMAT_XZ, lzma.CHECK_CRC64, filters=filters)
    for part in parts:
        data = memoryview(part).cast("B")
        for begin in range(0, len(data), _COMPRESSED_BYTES):
            yield compressor.compress(data[begin : begin + _COMPRESSED_BYTES])
    yield compressor.flush()


_WORD_BITS, _NIBBLE = 64, 0xF
_NEVER = 1 << 16  # above the sum of all different tiles
#: Bytes behind a table: an i16 entry is read as the low half of 32 bits.
PADDING = 4


class Places(NamedTuple):
    # For each pair of tuples, its byte offset in a stage, and the fields of its entries' offsets (`sums_at`).
    pairs: tuple[tuple[np.uint64, ...], ...]
    singles: tuple[tuple[np.uint64, ...], ...]  # the same for each tuple outside pairs
    stage_begins: tuple[np.uint64, ...]  # for each stage but the first, the sum of tiles at which it starts
    stage_bytes: np.uint64  # bytes of a stage's entries


def stage_begins(layout: NetworkLayout, *, parted: bool = True) -> tuple[np.uint64, ...]:
    """Return :attr:`Places.stage_begins`; without ``parted``, all boards are in the first stage."""
    return tuple(U64(begin if parted else _NEVER) for begin in layout.stages)


def places_of(layout: NetworkLayout, entry_bytes: int) -> Places:
    """Return the offsets of entries in the order of the file: stage by stage, tuple by tuple."""
    begins = [int(offset) * entry_bytes for offset in layout.offsets]
    fields = _padded([_fields(cells, entry_bytes.bit_length() - 1) for cells in layout.tuples])
    singles = [(begin, *parts) for begin, parts in zip(begins, fields, strict=True)]
    return Places((), _numbers(singles), stage_begins(layout), U64(layout.stage_size * entry_bytes))


def places_for(layout: NetworkLayout, table: npt.NDArray[Any]) -> tuple[Places, list[int]]:
    """Return the offsets of a player's entries, and the order of the columns of its scales."""
    if table.dtype == np.float32:
        return places_of(layout, table.itemsize), list(range(len(layout.tuples)))
    return player_places(layout)


def place(
    layout: NetworkLayout, table: npt.NDArray[Any], scales: npt.NDArray[np.float32]
) -> tuple[Places, npt.NDArray[Any], npt.NDArray[np.float32]]:
    """Return the offsets, the reordered entries and the reordered scales of a network for a player."""
    places, columns = places_for(layout, table)
    placed = table
    if table.dtype == np.int16:
        memory = allocate(table.nbytes + PADDING, hint="use a smaller network, or fewer workers")
        placed = memory[: table.nbytes].view(np.int16)
        stages = (layout.stage_count, -1)
        for entries, part in zip(table.reshape(stages), placed.reshape(stages), strict=True):
            place_stage(layout, np.split(entries, np.cumsum(layout.sizes)[:-1]), part)
    return places, placed, np.ascontiguousarray(scales[:, columns])


def place_stage(
    layout: NetworkLayout, tables: Iterable[npt.NDArray[np.int16]], placed: npt.NDArray[np.int16]
) -> None:
    for entries, target in zip(tables, stage_tables(layout, placed), strict=True):
        target[...] = entries.reshape(target.shape)


def stage_tables(layout: NetworkLayout, placed: npt.NDArray[np.int16]) -> list[npt.NDArray[np.int16]]:
    """Return views of each tuple's entries in a stage, in the order of a player: an axis for each cell."""
    return [
        as_strided(placed[first:], (16,) * len(strides), [2 * each for each in strides])
        for first, strides in positions_of(layout)
    ]


def positions_of(layout: NetworkLayout) -> list[tuple[int, list[int]]]:
    """Return the index of each tuple's first entry in the order of a player, and the stride of each digit."""
    found: dict[int, tuple[int, list[int]]] = {}
    pairs, singles = _pairs(layout)
    at = 0
    for tuples in [*pairs, *((t,) for t in singles)]:
        # The tuples of a pair are the two halves of each word.
        for half, t in enumerate(tuples):
            order = _order(layout, t, tuples)
            stride = {cell: len(tuples) * 16**i for i, cell in enumerate(reversed(order))}
            found[t] = at + half, [stride[cell] for cell in layout.tuples[t]]
        at += sum(layout.sizes[t] for t in tuples)
    return [found[t] for t in range(len(layout.tuples))]


def player_places(layout: NetworkLayout) -> tuple[Places, list[int]]:
    """Return the offsets of a player's entries, and the tuples in the order of its scales' columns."""
    pairs, singles = _pairs(layout)
    begins = [2 * first for first, _ in positions_of(layout)]
    own = [[_fields(_order(layout, t, pair)[-1:], 2) for t in pair] for pair in pairs]
    shared = _padded([_fields(_order(layout, pair[0], pair)[:-1], 6) for pair in pairs])
    alone = _padded([_fields(layout.tuples[t], 1) for t in singles])
    places = Places(
        _numbers(
            [begins[pair[0]], *a, *b, *fields]
            for pair, (a, b), fields in zip(pairs, own, shared, strict=True)
        ),
        _numbers([begins[t], *fields] for t, fields in zip(singles, alone, strict=True)),
        stage_begins(layout),
        U64(2 * layout.stage_size),
    )
    return places, [a for a, _ in pairs] + [b for _, b in pairs] + singles


def _pairs(layout: NetworkLayout) -> tuple[list[tuple[int, int]], list[int]]:
    """Pair tuples of the same size that share all cells but one, greedily; return the pairs and the rest."""
    left = list(range(len(layout.tuples)))
    pairs, singles = [], []
    while left:
        a = left.pop(0)
        cells = set(layout.tuples[a])
        alike = (b for b in left if len(layout.tuples[b]) == len(cells))
        b = next((b for b in alike if len(cells & set(layout.tuples[b])) == len(cells) - 1), None)
        if b is None:
            singles.append(a)
        else:
            left.remove(b)
            pairs.append((a, b))
    return pairs, singles


def _order(layout: NetworkLayout, t: int, tuples: tuple[int, ...]) -> list[int]:
    """Sort a tuple's cells, with the cell that it does not share with the other tuple of its pair last."""
    shared = set(layout.tuples[tuples[0]]) & set(layout.tuples[tuples[-1]])
    return sorted(layout.tuples[t], key=lambda cell: (cell not in shared, cell))


def _fields(cells: Sequence[int], lowest: int) -> list[int]:
    """Return ``[rotation, mask, ...]`` for the cells' digits; cells with equal distances share a field."""
    masks: dict[int, int] = {}
    for i, cell in enumerate(reversed(cells)):
        to = lowest + 4 * i
        rotation = (60 - 4 * cell - to) % _WORD_BITS
        masks[rotation] = masks.get(rotation, 0) | _NIBBLE << to
    return [number for field in masks.items() for number in field]


def _padded(fields: list[list[int]]) -> list[list[int]]:
    """Pad with masks of 0, which add nothing, to equal lengths, since numba needs tuples of one type."""
    most = max(map(len, fields), default=0)
    return [parts + [0] * (most - len(parts)) for parts in fields]


def _numbers(rows: Iterable[Sequence[int]]) -> tuple[tuple[np.uint64, ...], ...]:
    return tuple(tuple(map(U64, row)) for row in rows)
