"""a2run2: one run with branch values, in the ``postcard`` encoding; extension ``.a2run2``.

::

    RunV2    = Meta, list<StepV2>, final_board: u64
    Meta     = steps: u32, start_unix_s: u64, elapsed_s: f32, max_score: u64, highest_tile: u32,
               engine: Option<string>
    StepV2   = pre_board: u64, chosen: enum{0 Up, 1 Down, 2 Left, 3 Right},
               branches: Option<array<Branch, 4>>                                 (UDLR)
    Branch   = enum{0 Legal(f32), 1 Illegal}

postcard: unsigned integers wider than 8 bits are LEB128 varints (7 bits a byte, least significant group
first, high bit = more), ``f32`` is 4 little-endian bytes, an ``Option`` is a byte (0 none, 1 some) and the
value, an enum is its variant's number as a varint and the variant's fields, strings and lists are their
length as a varint and the content; arrays and structs are their elements alone.

There is no magic, no version and no checksum. Each count is checked against the bytes that are left before
anything is allocated. A varint must be as short as its value allows, so that a value has one encoding:
what was decoded encodes to the same bytes.
"""

from __future__ import annotations

import dataclasses
import functools
import math
import struct
from collections.abc import Sequence
from enum import IntEnum
from typing import TYPE_CHECKING, Any, Final, NamedTuple, overload

import numpy as np

from tape2048.base.text import counted
from tape2048.errors import EncodingError, FieldError, TrailingBytesError, TruncatedError
from tape2048.io.durable import new_file, write_all
from tape2048.io.reading import load_path
from tape2048.runs.branches import normalize
from tape2048.runs.run import Run, RunMeta, check_meta

if TYPE_CHECKING:
    import os
    from typing import Self

    from numpy.typing import NDArray

__all__ = ["SUFFIX", "Branch", "Move", "RunV2", "StepV2", "StepsView"]

SUFFIX = ".a2run2"

#: The shortest step: a board of one byte, the move, no branches.
_STEP_BYTES_MIN: Final = 3


class Move(IntEnum):
    """A move, as every format numbers them."""

    UP = 0
    DOWN = 1
    LEFT = 2
    RIGHT = 3


class Branch(NamedTuple):
    """What a step says of one move: ``Legal(value)``, or ``Illegal`` with no value."""

    legal: bool
    value: float | None


class StepV2(NamedTuple):
    """One step of a run; ``branches`` holds up, down, left and right, or is None."""

    pre_board: int
    chosen: Move
    branches: tuple[Branch, Branch, Branch, Branch] | None


class StepsView(Sequence[StepV2]):
    """The steps of a run as objects, each made when it is asked for."""

    def __init__(self, run: RunV2, numbers: range) -> None:
        self._run = run
        self._numbers = numbers

    def __len__(self) -> int:
        return len(self._numbers)

    @overload
    def __getitem__(self, index: int) -> StepV2: ...
    @overload
    def __getitem__(self, index: slice) -> StepsView: ...
    def __getitem__(self, index: int | slice) -> StepV2 | StepsView:
        if isinstance(index, slice):
            return StepsView(self._run, self._numbers[index])
        step = self._numbers[index]
        run = self._run
        branches: Any = None
        if run.has_branches[step]:
            legal = int(run.branch_legal[step])
            values = run.branch_values[step].tolist()
            branches = tuple(
                Branch(True, values[move]) if legal >> move & 1 else Branch(False, None)  # noqa: FBT003
                for move in range(4)
            )
        return StepV2(int(run.states[step]), Move(int(run.moves[step])), branches)

    def __repr__(self) -> str:
        return f"<StepsView: {len(self):,} steps of {self._run!r}>"


@dataclasses.dataclass(frozen=True, eq=False, repr=False)
class RunV2(Run):
    """A run as a2run2 files hold it; the branch arrays are always there, see :class:`Run`."""

    branch_values: NDArray[np.float32]
    branch_legal: NDArray[np.uint8]
    has_branches: NDArray[np.bool_]

    @property
    def steps(self) -> StepsView:
        """The steps as objects, made one at a time; the arrays are the fast way."""
        return StepsView(self, range(len(self)))

    @classmethod
    def load(cls, path: str | os.PathLike[str]) -> Self:
        """Read a file.

        Raises:
            FormatError: as :meth:`from_bytes`.
            StorageError: the operating system could not open or read it.
        """
        return cls.from_bytes(load_path(path), path)

    @classmethod
    def from_bytes(
        cls,
        data: bytes | bytearray | memoryview | NDArray[np.uint8],
        path: str | os.PathLike[str] | None = None,
    ) -> Self:
        """Decode a whole file.

        Args:
            data: its bytes; nothing of them is kept.
            path: named in errors.

        Raises:
            TruncatedError: the bytes end too early, or a count is more than they can hold.
            TrailingBytesError: bytes follow the final board.
            EncodingError: a varint that is too long, or a number of a variant that does not exist.
            FieldError: ``steps`` is not the length of the list, ``elapsed_s`` is not finite, or the
                engine is not UTF-8.
        """
        kernels = _kernels()
        array = np.ascontiguousarray(
            data if isinstance(data, np.ndarray) else np.frombuffer(data, np.uint8)
        ).view()
        array.flags.writeable = False  # kernels are compiled for each kind of array: one kind is enough
        cursor = _Cursor(array, path)
        meta, steps, at = _fast_head(cursor) or _slow_head(cursor)
        if steps != meta.steps:
            raise FieldError(
                f"the list has {counted(steps, 'step')}; the metadata says {meta.steps}", path=path, offset=at
            )
        if steps * _STEP_BYTES_MIN > cursor.left:
            raise TruncatedError(
                f"{steps} steps need at least {steps * _STEP_BYTES_MIN} bytes; {cursor.left} are left",
                path=path,
                offset=len(array),
            )
        run = cls._allocate(meta)
        status, at = kernels.decode_steps(
            array,
            cursor.at,
            run.states,
            run.moves,
            run.branch_values.view(np.uint32),
            run.branch_legal,
            run.has_branches,
        )
        if status != kernels.OK:
            raise _step_error(status, array, at, path)
        cursor.at = at
        run.states[steps] = cursor.varint(64)
        if cursor.left:
            raise TrailingBytesError(
                f"found {counted(cursor.left, 'byte')} behind the final board", path=path, offset=cursor.at
            )
        return run

    @classmethod
    def _allocate(cls, meta: RunMeta) -> Self:
        steps = meta.steps
        return cls(
            states=np.empty(steps + 1, np.uint64),
            moves=np.empty(steps, np.uint8),
            meta=meta,
            branch_values=np.empty((steps, 4), np.float32),
            branch_legal=np.empty(steps, np.uint8),
            has_branches=np.empty(steps, np.bool_),
        )

    @classmethod
    def from_v1(cls, run: Run) -> Self:
        """The same boards, moves and metadata; no branch values."""
        steps = len(run)
        # Broadcast: a run without values costs no memory for them.
        return cls(
            run.states,
            run.moves,
            run.meta,
            np.broadcast_to(np.zeros((), np.float32), (steps, 4)),
            np.broadcast_to(np.zeros((), np.uint8), (steps,)),
            np.broadcast_to(np.zeros((), np.bool_), (steps,)),
        )

    @classmethod
    def from_run(cls, run: Run) -> Self:
        """Any run as this class, with its branch values where it has them."""
        if run.branch_values is None or run.branch_legal is None or run.has_branches is None:
            return cls.from_v1(run)
        return cls(run.states, run.moves, run.meta, run.branch_values, run.branch_legal, run.has_branches)

    def to_bytes(self) -> bytes:
        """Encode; what :meth:`from_bytes` decoded gives the same bytes again.

        Raises:
            FieldError: a fact does not fit its field, or a move is above 3.
        """
        kernels = _kernels()
        check_meta(self.meta)
        if len(self) and int(self.moves.max()) > 3:
            raise FieldError(f"a move is {self.moves.max()}; expected 0 to 3")
        body = np.empty(len(self) * kernels.STEP_BYTES_MAX, np.uint8)
        used = kernels.encode_steps(
            # Copies: a mapped A2T1 file's boards are unaligned and read-only, absent values broadcast.
            self.states.copy(),
            self.moves.copy(),
            self.branch_values.copy("C").view(np.uint32),
            self.branch_legal.copy(),
            self.has_branches.copy(),
            body,
        )
        return b"".join(
            [_meta_bytes(self.meta), _varint(len(self)), body[:used].tobytes(), _varint(self.final_board)]
        )

    def save(self, path: str | os.PathLike[str]) -> None:
        """Write a new file, which appears whole or not at all.

        Raises:
            NameTakenError: something stands at ``path``.
            FieldError: as :meth:`to_bytes`.
            StorageError: the operating system refused.
        """
        data = self.to_bytes()
        with new_file(path) as fd:
            write_all(fd, data)

    def normalize_branches(self) -> Self:
        """The run with its branch values normalized per step over the legal moves.

        A move counts as legal where the file says so and the rules agree: files in the wild say
        ``Legal(0.0)`` of moves that are not, which become ``Illegal``. Steps without branches stay
        without. See :mod:`tape2048.runs.branches`.

        Raises:
            FieldError: values that are not finite.
        """
        from tape2048.game.rules import legal_masks

        legal = np.where(self.has_branches, self.branch_legal & legal_masks(self.boards), 0).astype(np.uint8)
        values = normalize(self.branch_values, legal)
        return dataclasses.replace(self, branch_values=values, branch_legal=legal)


@functools.cache
def _kernels() -> Any:
    """The compiled part, which loads numba: with the first run, and not with this module."""
    from tape2048.runs import a2run2_codec

    return a2run2_codec


class _Cursor:
    """A place in the bytes, and the postcard values that are read there."""

    def __init__(self, data: NDArray[np.uint8], path: str | os.PathLike[str] | None) -> None:
        self.data = data
        self.path = path
        self.at = 0

    @property
    def left(self) -> int:
        """Bytes from here to the end."""
        return len(self.data) - self.at

    def take(self, count: int, what: str) -> bytes:
        """The next ``count`` bytes."""
        if count > self.left:
            raise TruncatedError(
                f"{what} needs {count} bytes; {self.left} are left", path=self.path, offset=len(self.data)
            )
        self.at += count
        return self.data[self.at - count : self.at].tobytes()

    def varint(self, bits: int) -> int:
        """An unsigned integer of at most ``bits`` bits."""
        begin = self.at
        raw = self.data[begin : begin + -(-bits // 7)].tobytes()
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
        raise EncodingError(
            f"varint {raw[: place + 1].hex(' ')}; expected the shortest form of at most {bits} bits",
            path=self.path,
            offset=begin,
        )


def _fast_head(cursor: _Cursor) -> tuple[RunMeta, int, int] | None:
    """As :func:`_slow_head`, compiled; None where anything is wrong, with the cursor as it was."""
    at, steps, start, elapsed_at, score, tile, engine_at, engine_end, count = _kernels().decode_head(
        cursor.data
    )
    if not at:
        return None
    (elapsed,) = struct.unpack_from("<f", cursor.data.data, elapsed_at)
    engine = None
    if engine_end:
        try:
            engine = cursor.data[engine_at:engine_end].tobytes().decode()
        except UnicodeDecodeError:
            return None
    if not math.isfinite(elapsed):
        return None
    cursor.at = at
    return RunMeta(steps, start, elapsed, score, tile, engine), count, max(engine_at, engine_end)


def _slow_head(cursor: _Cursor) -> tuple[RunMeta, int, int]:
    """The metadata, the length of the list of steps, and where that stands; raises where it is wrong."""
    meta = _read_meta(cursor)
    at = cursor.at
    return meta, cursor.varint(64), at


def _read_meta(cursor: _Cursor) -> RunMeta:
    steps = cursor.varint(32)
    start = cursor.varint(64)
    elapsed_at = cursor.at
    (elapsed,) = struct.unpack("<f", cursor.take(4, "elapsed_s"))
    score = cursor.varint(64)
    tile = cursor.varint(32)
    option_at = cursor.at
    option = cursor.take(1, "the engine's option")[0]
    if option > 1:
        raise EncodingError(
            f"the engine's option is {option}; expected 0 (none) or 1 (some)",
            path=cursor.path,
            offset=option_at,
        )
    engine = None
    if option:
        length = cursor.varint(64)
        begin = cursor.at
        raw = cursor.take(length, "the engine")
        try:
            engine = raw.decode()
        except UnicodeDecodeError as error:
            raise FieldError(
                f"the engine is not UTF-8: {error.reason}", path=cursor.path, offset=begin + error.start
            ) from error
    if not math.isfinite(elapsed):
        raise FieldError(
            f"elapsed_s is {elapsed}; expected a finite number", path=cursor.path, offset=elapsed_at
        )
    return RunMeta(steps, start, elapsed, score, tile, engine)


def _meta_bytes(meta: RunMeta) -> bytes:
    engine = b"\x00"
    if meta.engine is not None:
        text = meta.engine.encode()
        engine = b"\x01" + _varint(len(text)) + text
    return b"".join(
        [
            _varint(meta.steps),
            _varint(meta.start_unix_s),
            struct.pack("<f", meta.elapsed_s),
            _varint(meta.max_score),
            _varint(meta.highest_tile),
            engine,
        ]
    )


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _step_error(
    status: int, data: NDArray[np.uint8], at: int, path: str | os.PathLike[str] | None
) -> EncodingError | TruncatedError:
    kernels = _kernels()
    if status == kernels.SHORT:
        return TruncatedError("the bytes end within a step", path=path, offset=len(data))
    found = int(data[at])
    message = {
        kernels.BAD_VARINT: f"a board's varint ends in {found:#04x}; expected the shortest form of 64 bits",
        kernels.BAD_MOVE: f"move {found}; expected 0 (up) to 3 (right)",
        kernels.BAD_OPTION: f"the option of a step's branches is {found}; expected 0 (none) or 1 (some)",
        kernels.BAD_VARIANT: f"branch variant {found}; expected 0 (legal) or 1 (illegal)",
    }[status]
    return EncodingError(message, path=path, offset=at)
