"""Reader of the weight files of TDL2048, a program of Hung Guei (https://github.com/moporgic/TDL2048).

A file is a sequence of tables, little-endian:

::

    'w', u8        only if the name does not end in .w
    u8             0
    u32            number of tables
    for each table:
        u8         4, the version
        u32        pattern, in hexadecimal digits: 0x12345 is 012345
        u16        number of digits; 0: the number of cells of the table
        u16        0 (otherwise, these 8 bytes are the name of a feature that is not a pattern)
        u16        bytes of a value: 2, 4 or 8
        u64        number of values
        values     f16, f32 or f64, in points of score
        further fields, such as the learning rates of temporal coherence: u16 bytes of a value, not 0,
                   u64 number of values, values
        u16        0

A **pattern** lists cells, from 0 (top left) to f (bottom right). The first cell is the lowest hexadecimal
digit of an index. Each pattern is looked up in all eight symmetries of the board, as TDL2048 does by default.
Digits in front of a pattern are the number of its stage, lowest digit first: 10012345 is pattern 012345 in
stage 1. **The file does not contain the sums of tiles at which stages start.** TDL2048 takes them from its
option ``-@``, and :func:`split_name` from the network's name.

In :mod:`tape2048.ntuple.network`, the last cell of a tuple is the lowest digit of an index. Turned by 180
degrees, cell ``c`` becomes ``15 - c``, and the first cell of an ascending pattern becomes the last. Tables of
ascending patterns are therefore used without a change, and pattern 012345 is the tuple abcdef.
"""

from __future__ import annotations

import re
import struct
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tape2048.errors import ConfigError, ModelError, TruncatedError
from tape2048.files.xz import XzReader, is_xz

_NAME = re.compile(r"tdl2048(?:@(?P<stages>[^:]*))?:(?P<path>.*)", re.DOTALL)

_VERSION = 4
_CELLS_MIN, _CELLS_MAX = 4, 6
_DTYPES = {2: "<f2", 4: "<f4", 8: "<f8"}
_SKIP_BYTES = 1 << 20  # expanded at a time to skip a field that is not used
_HINT = (
    "Pass a .w or .w.xz file that TDL2048 wrote (option -o), of patterns of 4 to 6 cells such as 4x6patt or "
    "8x6patt. Pass other networks without tdl2048:"
)


class Name(NamedTuple):
    """The name of a TDL2048 network: its file, and the sums of tiles at which stages start."""

    path: str
    stages: tuple[int, ...]


def split_name(name: str) -> Name | None:
    """Split ``tdl2048:FILE`` or ``tdl2048@SUM+SUM:FILE`` into file and sums; return None for another name.

    Write the sums of TDL2048's option ``-@`` except for the first, 0.

    Raises:
        ConfigError: a sum is not a number.

    Example:
        >>> split_name("tdl2048@16384+24576:4x6patt.w")
        Name(path='4x6patt.w', stages=(16384, 24576))
    """
    match = _NAME.fullmatch(name)
    if match is None:
        return None
    text = match["stages"]
    if text is not None and not re.fullmatch(r"[0-9]{1,9}(\+[0-9]{1,9})*", text):
        raise ConfigError(
            f"found the stages {text!r:.60}, expected sums of tiles joined by +",
            hint="write tdl2048@16384+24576:FILE for a network of three stages",
        )
    return Name(match["path"], tuple(map(int, text.split("+"))) if text else ())


def is_weight_file(first: bytes) -> bool:
    return re.match(rb"w?\x00.{4}\x04", first, re.DOTALL) is not None


class Table(NamedTuple):
    """The values of a pattern in a stage, in the order of :mod:`tape2048.ntuple.network`."""

    stage: int
    pattern: str
    cells: tuple[int, ...]  # ascending, turned by 180 degrees
    values: npt.NDArray[np.float32]


def read_tables(data: memoryview | bytes, path: str, bytes_max: int) -> list[Table]:
    """Decode a weight file; ModelError, TruncatedError or ChecksumError.

    Tables of more than ``bytes_max`` bytes as ``f32`` in a compressed file are an error.
    """
    file = _Reader(data, path)
    kind = file.byte("the head")
    if kind == ord("w"):
        kind = file.byte("the head")
    if kind != 0:
        raise file.error(f"found the first byte {kind}, expected 0 or {ord('w')}, as in files of TDL2048", 0)
    (count,) = file.numbers("<I", "the number of tables")
    if count == 0:
        raise file.error("found no table, expected at least one")
    tables: dict[tuple[int, tuple[int, ...]], Table] = {}
    left = bytes_max if is_xz(data) else None
    for number in range(1, count + 1):
        table = _read_table(file, what := f"table {number} of {count}")
        if tables.setdefault((table.stage, table.cells), table) is not table:
            raise file.error(f"found {table.pattern} again in {what}, expected each pattern once")
        if left is not None and (left := left - table.values.nbytes) < 0:
            raise ModelError(
                f"it expands to tables of more than {bytes_max:,} bytes", path=path, hint="Expand it: xz -d"
            )
    if file.has_more():
        raise file.error(f"found more bytes behind table {count} of {count}, expected the end of the file")
    return [*tables.values()]


class _Reader:
    def __init__(self, data: memoryview | bytes, path: str) -> None:
        self._data, self._path, self._at = memoryview(data), path, 0
        self._xz = XzReader(data, path) if is_xz(data) else None

    def error(self, message: str, offset: int | None = None) -> ModelError:
        return ModelError(message, path=self._path, offset=self._at if offset is None else offset, hint=_HINT)

    def take(self, count: int, what: str) -> memoryview | bytes:
        """Return the next bytes, without a copy unless the file is compressed."""
        part = self._xz.read(count) if self._xz else self._data[self._at : self._at + count]
        if len(part) < count:
            raise TruncatedError(
                f"the file ends in {what}: found {len(part):,} bytes, expected {count:,}",
                path=self._path,
                offset=self._at,
            )
        self._at += count
        return part

    def skip(self, count: int, what: str) -> None:
        while count:
            count -= len(self.take(min(count, _SKIP_BYTES), what))

    def numbers(self, form: str, what: str) -> tuple[int, ...]:
        return struct.unpack(form, self.take(struct.calcsize(form), what))

    def byte(self, what: str) -> int:
        return self.numbers("<B", what)[0]

    def has_more(self) -> bool:
        return bool(self._xz.read(1) if self._xz else self._data[self._at :])


def _read_table(file: _Reader, what: str) -> Table:
    if (version := file.byte(what)) != _VERSION:
        raise file.error(f"found version {version} of {what}, expected {_VERSION}")
    sign = bytes(file.take(8, what))
    width, size = file.numbers("<HQ", what)
    cells = (size.bit_length() - 1) // 4
    if not _CELLS_MIN <= cells <= _CELLS_MAX or size != 16**cells or width not in _DTYPES:
        raise file.error(
            f"found {size:,} values of {width} bytes in {what} ({_sign_text(sign, cells)}), expected 16^n "
            f"values of 2, 4 or 8 bytes, n from {_CELLS_MIN} to {_CELLS_MAX}"
        )
    stage, pattern = _pattern(sign, cells, file, what)
    values = np.frombuffer(file.take(width * size, what), _DTYPES[width])
    while width := file.numbers("<H", what)[0]:
        file.skip(width * file.numbers("<Q", what)[0], what)
    turned = [15 - int(digit, 16) for digit in reversed(pattern)]
    with np.errstate(over="ignore"):  # values that are not finite are rejected later
        values = values.astype("<f4", copy=False)
    if (order := np.argsort(turned).tolist()) != [*range(cells)]:
        values = values.reshape([16] * cells).transpose(order).ravel()
    return Table(stage, pattern, tuple(sorted(turned)), values)


def _sign_text(sign: bytes, cells: int) -> str:
    number, digits, zero = struct.unpack("<IHH", sign)
    if zero:
        return repr(sign.rstrip(b" ").decode("latin-1"))
    text = f"{number:x}"
    # TDL2048 takes 8 digits if the number has more digits than the file says.
    return text.zfill(digits or cells) if len(text) <= (digits or cells) else text.zfill(8)


def _pattern(sign: bytes, cells: int, file: _Reader, what: str) -> tuple[int, str]:
    text = _sign_text(sign, cells)
    stage, pattern = text[:-cells], text[-cells:]
    if not re.fullmatch(r"[0-9a-f]{4,8}", text) or len(set(pattern)) < cells or len(pattern) < cells:
        raise file.error(f"found the feature {text} in {what}, expected a pattern of {cells} different cells")
    return int(stage[::-1] or "0", 16), pattern
