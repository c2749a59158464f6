"""a2run2: the format of a file of one run with branch values; extension ``.a2run2``.

The encoding is ``postcard``.

::

    RunV2    = Meta, list<StepV2>, final_board: u64
    Meta     = steps: u32, start_unix_s: u64, elapsed_s: f32, max_score: u64, highest_tile: u32,
               engine: Option<string>
    StepV2   = pre_board: u64, chosen: enum{0 Up, 1 Down, 2 Left, 3 Right},
               branches: Option<array<Branch, 4>>                                 (UDLR)
    Branch   = enum{0 Legal(f32), 1 Illegal}

In ``postcard``:

* Unsigned integers wider than 8 bits are LEB128 varints: 7 bits in each byte, the least significant group
  first. The high bit is set if more bytes follow.
* ``f32`` is 4 little-endian bytes.
* ``Option`` is a byte (0 none, 1 some) and the value, if any.
* An enum is the number of its variant, as a varint, and the fields of the variant.
* Strings and lists are their length, as a varint, and their content.
* Arrays and structs are their elements, without a length.

The format has no magic, no version and no checksum. The reader checks each count against the remaining bytes
before it allocates. A varint must have its shortest form, so each value has only one encoding, and a decoded
file encodes to the same bytes.
"""

from __future__ import annotations

import dataclasses
import math
import struct
from enum import IntEnum
from typing import TYPE_CHECKING, Final, NamedTuple, Self

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import FieldError, FormatError, TruncatedError
from tape2048.files.durable import new_file, write_all
from tape2048.files.reading import load_path
from tape2048.runs.run import Run, RunMeta, check_engine, check_meta, check_step_count, read_engine

if TYPE_CHECKING:
    import os

    from numpy.typing import NDArray

SUFFIX = ".a2run2"

#: Bytes of the shortest step: a board of one byte, the move, no branches.
_STEP_BYTES_MIN: Final = 3

#: The largest normalized value, just below 1.
VALUE_MAX = np.float32(1 - 2**-23)


class Move(IntEnum):
    """A move, numbered as in every format."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3


class Branch(NamedTuple):
    """The value of a move at a step, or None if the move is illegal."""

    legal: bool
    value: float | None


class StepV2(NamedTuple):
    """A step of a run. ``branches`` are in the order up, down, left, right; None without branch values."""

    pre_board: int
    chosen: Move
    branches: tuple[Branch, Branch, Branch, Branch] | None


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunV2(Run):
    """A run of an a2run2 file: a :class:`Run` that always has the branch arrays.

    Example:
        >>> from tape2048.runs import RunV2
        >>> run = RunV2.load("runs/golden.a2run2")
        >>> run.branch_values.shape == (len(run), 4)
        True
    """

    branch_values: NDArray[np.float32]
    branch_legal: NDArray[np.uint8]
    has_branches: NDArray[np.bool_]

    @property
    def steps(self) -> list[StepV2]:
        """The steps as objects, made at each access. Use the arrays for speed."""
        found = []
        columns = (self.boards, self.moves, self.has_branches, self.branch_legal, self.branch_values)
        for board, move, has, legal, values in zip(*(column.tolist() for column in columns), strict=True):
            up, down, left, right = (
                Branch(True, value) if legal >> m & 1 else Branch(False, None)  # noqa: FBT003
                for m, value in enumerate(values)
            )
            found.append(StepV2(board, Move(move), (up, down, left, right) if has else None))
        return found

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file; errors as :meth:`from_bytes`, and StorageError if it cannot be read."""
        return cls.from_bytes(load_path(path), path)

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview | NDArray[np.uint8],
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Decode a whole file. The run does not keep its bytes; errors name ``path``.

        Raises:
            TruncatedError: the bytes end too early, or a count is more than they can hold.
            FormatError: bytes follow the final board.
            FieldError: a varint that is too long, or the number of an unknown variant.
            FieldError: ``steps`` is not the length of the list, or more than a game can have;
                ``elapsed_s`` is not finite; or the engine is too long or not UTF-8.
        """
        from tape2048.runs import a2run2_codec as kernels

        given = data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        array = np.ascontiguousarray(given).view()
        array.flags.writeable = False  # numba compiles a kernel for each type of array: one is enough
        cursor = Cursor(array.data, path)
        meta = _read_meta(cursor)
        at, steps = cursor.at, cursor.varint(64)
        if steps != meta.steps:
            found = f"found {counted(steps, 'step')}. The metadata says {meta.steps}"
            raise FieldError(found, path=path, offset=at)
        if steps * _STEP_BYTES_MIN > cursor.left:
            found = (
                f"found {cursor.left} bytes, expected at least {steps * _STEP_BYTES_MIN} for {steps} steps"
            )
            raise TruncatedError(found, path=path, offset=len(array))
        check_step_count(steps, path, at)
        states, moves, legal = (
            np.empty(steps + 1, np.uint64),
            np.empty(steps, np.uint8),
            np.empty(steps, np.uint8),
        )
        values, has = np.empty((steps, 4), np.float32), np.empty(steps, np.bool_)
        bits = values.view(np.uint32)
        status, cursor.at = kernels.decode_steps(array, cursor.at, states, moves, bits, legal, has)
        if status == kernels.SHORT:
            raise TruncatedError("the bytes end within a step", path=path, offset=len(array))
        if status != kernels.OK:
            what, due = {
                kernels.BAD_VARINT: ("end of a board's varint", "the shortest form of 64 bits"),
                kernels.BAD_MOVE: ("move", "0 (up) to 3 (right)"),
                kernels.BAD_OPTION: ("option of branches", "0 (none) or 1 (some)"),
                kernels.BAD_VARIANT: ("branch variant", "0 (legal) or 1 (illegal)"),
            }[status]
            found = f"{what} {array[cursor.at]}; expected {due}"
            raise FieldError(found, path=path, offset=cursor.at)
        states[steps] = cursor.varint(64)
        if cursor.left:
            found = f"found {counted(cursor.left, 'byte')} after the final board, expected none"
            raise FormatError(found, path=path, offset=cursor.at)
        return cls(states, moves, meta, values, legal, has)

    @classmethod
    def from_v1(cls, run: Run) -> Self:
        """Return a run with the same boards, moves and metadata, and no branch values."""
        steps = len(run)
        # Broadcast: absent values take no memory.
        values = np.broadcast_to(np.float32(0), (steps, 4))
        legal, has = np.broadcast_to(np.uint8(0), (steps,)), np.broadcast_to(np.False_, (steps,))
        return cls(run.states, run.moves, run.meta, values, legal, has)

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Convert any run to this class, with its branch values, if any."""
        if run.branch_values is None or run.branch_legal is None or run.has_branches is None:
            return cls.from_v1(run)
        return cls(run.states, run.moves, run.meta, run.branch_values, run.branch_legal, run.has_branches)

    def to_bytes(self) -> bytes:
        """Encode the run. A run from :meth:`from_bytes` gives the same bytes again.

        Raises:
            FieldError: a value does not fit its field, or a move is above 3.
        """
        from tape2048.runs import a2run2_codec as kernels

        check_meta(self.meta)
        if len(self) and int(self.moves.max()) > 3:
            raise FieldError(f"a move is {self.moves.max()}; expected 0 to 3")
        body = np.empty(len(self) * kernels.STEP_BYTES_MAX, np.uint8)
        # Copies: boards of a mapped A2T1 file are unaligned and read-only, absent values broadcast.
        columns = (self.states, self.moves, self.branch_values, self.branch_legal, self.has_branches)
        states, moves, values, legal, has = (np.array(column, order="C") for column in columns)
        used = kernels.encode_steps(states, moves, values.view(np.uint32), legal, has, body)
        meta, engine = self.meta, b"\x00"
        if meta.engine is not None:
            text = meta.engine.encode()
            engine = b"\x01" + varint(len(text)) + text
        head = varint(meta.steps) + varint(meta.start_unix_s) + struct.pack("<f", meta.elapsed_s)
        head += varint(meta.max_score) + varint(meta.highest_tile) + engine + varint(len(self))
        return b"".join((head, body[:used].tobytes(), varint(self.final_board)))

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file atomically; errors as :meth:`to_bytes`, NameTakenError and StorageError."""
        data = self.to_bytes()
        with new_file(path) as fd:
            write_all(fd, data)

    def normalize_branches(self) -> Self:
        """Return the run with its branch values normalized by :func:`normalize`.

        A move counts as legal if it is legal in the file and by the rules: some files have ``Legal(0.0)`` for
        illegal moves, which become ``Illegal``. Steps without branch values stay without them.

        Raises:
            FieldError: values that are not finite.
        """
        from tape2048.game.rules import legal_masks

        legal = np.where(self.has_branches, self.branch_legal & legal_masks(self.boards), 0).astype(np.uint8)
        values = normalize(self.branch_values, legal)
        return dataclasses.replace(self, branch_values=values, branch_legal=legal)


def normalize(values: NDArray[np.float32], legal: NDArray[np.uint8]) -> NDArray[np.float32]:
    """Normalize the values of each step's legal moves to 0..1, in float32.

    A value becomes ``(value - min) / (max - min)``, and at most ``1 - 2**-23``. If all legal moves have the
    same value, it becomes 0.5; if there is only one legal move, ``1 - 2**-23``.

    Args:
        values: ``f32[n, 4]`` (up, down, left, right), in any scale.
        legal: ``u8[n]``; bit ``m`` is set if move ``m`` is legal.

    Returns:
        ``f32[n, 4]``, 0 for illegal moves.

    Raises:
        FieldError: values of legal moves are not finite, or their difference is too large for a float32.

    Example:
        >>> import numpy as np
        >>> from tape2048.runs import normalize
        >>> normalize(np.array([[10, 5, 0, 99]], np.float32), np.array([0b0111], np.uint8)).round(3).tolist()
        [[1.0, 0.5, 0.0, 0.0]]
    """
    mask = legal_bits(legal)
    low = np.where(mask, values, np.float32(np.inf)).min(axis=1, initial=np.inf)
    high = np.where(mask, values, np.float32(-np.inf)).max(axis=1, initial=-np.inf)
    count = mask.sum(axis=1)
    with np.errstate(invalid="ignore", over="ignore", divide="ignore"):
        spread = high - low
        bad = (count > 0) & ~np.isfinite(spread)
        if bad.any():
            step = int(bad.argmax())
            found = values[step].tolist()
            raise FieldError(f"found the branch values {found} at step {step}, expected finite numbers")
        scaled = (values - low[:, None]) / spread[:, None]
    scaled = np.where(spread[:, None] == 0, np.float32(0.5), scaled)
    scaled = np.where(count[:, None] == 1, VALUE_MAX, scaled)
    return np.where(mask, np.minimum(scaled, VALUE_MAX), np.float32(0)).astype(np.float32, copy=False)


def legal_bits(masks: NDArray[np.uint8]) -> NDArray[np.bool_]:
    """Return the four bits of each mask: ``bool[n, 4]`` (UDLR)."""
    return (masks[:, None] >> np.arange(4, dtype=np.uint8) & 1).astype(np.bool_)


@dataclasses.dataclass
class Cursor:
    """A reader of postcard values; ``at`` is its offset in the bytes."""

    data: memoryview | bytes
    path: str | os.PathLike[str] | None
    at: int = 0

    @property
    def left(self) -> int:
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> bytes:
        if count > self.left:
            raise TruncatedError(
                f"found {self.left} bytes, expected {count} for {what}", path=self.path, offset=len(self.data)
            )
        self.at += count
        return bytes(self.data[self.at - count : self.at])

    def varint(self, bits: int) -> int:
        begin = self.at
        raw = self.data[begin : begin + -(-bits // 7)]
        value = 0
        for place, byte in enumerate(raw):
            value |= (byte & 0x7F) << 7 * place
            if byte < 0x80:
                if value >> bits or (byte == 0 and place):
                    break
                self.at = begin + place + 1
                return value
        else:
            if len(raw) < -(-bits // 7):
                raise TruncatedError("the bytes end within a varint", path=self.path, offset=len(self.data))
        raise FieldError(
            f"found a varint of {place + 1} bytes or more, expected the shortest form of at most {bits} bits",
            path=self.path,
            offset=begin,
        )


def _read_meta(cursor: Cursor) -> RunMeta:
    steps, start, elapsed_at = cursor.varint(32), cursor.varint(64), cursor.at
    (elapsed,) = struct.unpack("<f", cursor.take(4, "elapsed_s"))
    score, tile, option_at, engine = cursor.varint(64), cursor.varint(32), cursor.at, None
    option = cursor.take(1, "the engine's option")[0]
    if option > 1:
        found = f"the engine's option is {option}; expected 0 (none) or 1 (some)"
        raise FieldError(found, path=cursor.path, offset=option_at)
    if option:
        length, begin = cursor.varint(64), cursor.at
        if length <= cursor.left:
            check_engine(length, cursor.path, option_at)
        engine = read_engine(cursor.take(length, "the engine"), cursor.path, begin)
    if not math.isfinite(elapsed):
        found = f"elapsed_s is {elapsed}; expected a finite number"
        raise FieldError(found, path=cursor.path, offset=elapsed_at)
    return RunMeta(steps, start, elapsed, score, tile, engine)


def varint(value: int) -> bytes:
    """Encode an unsigned integer as a LEB128 varint in its shortest form."""
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)
