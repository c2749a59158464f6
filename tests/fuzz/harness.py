"""What fuzzing asks of a format, whatever the format: cases, and the oracle that judges them.

A :class:`Target` says how a format is decoded, encoded again, sealed (its checksums made to fit) and where
its fields lie. The oracle: bytes either decode, and then ``encode(decode(x)) == x``, or a FormatError says
why not. Anything else that escapes is a finding: another exception, a MemoryError (memory is capped while
cases run), or other bytes.

Three layers: :func:`exhaustive` (every truncation, every bit, every field at its extremes), then
:func:`structured` (random damage to valid files, checksums sealed again), then the coverage-guided runs of
``python -m tests.fuzz`` (see there).
"""

import contextlib
import functools
import random
import resource
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, TypeVar

from tape2048.errors import FormatError

T = TypeVar("T")

#: Address space that decoding may add: the files here have a thousand bytes, so this is generous.
MEMORY_MARGIN_BYTES = 512 * 1024 * 1024

#: Numbers at which readers break.
EXTREMES = sorted(
    {(1 << bits) + delta for bits in (0, 1, 7, 8, 14, 15, 16, 31, 32, 63, 64) for delta in (-1, 0, 1)}
    | {3, 4, 5, 1 << 20, 1 << 27, 1 << 59}
)


class Field(NamedTuple):
    """An integer in a file: where it begins, and its bytes (little-endian)."""

    offset: int
    size: int


class Target(NamedTuple):
    """A format under test.

    Attributes:
        name: the format's name, and that of its folder in the corpus.
        seeds: small valid files.
        decode: a file's bytes to a value; a FormatError where they are not one.
        encode: the value to the bytes it came from.
        seal: makes the checksums fit, in place, as far as the bytes allow; None where there are none.
        fields: where the integers of a valid file lie.
        absurd: builds a file whose fields agree with each other on something that cannot be; optional.
    """

    name: str
    seeds: list[bytes]
    decode: Callable[[bytes], Any]
    encode: Callable[[Any], bytes]
    seal: Callable[[bytearray], None] | None
    fields: Callable[[bytes], list[Field]]
    absurd: Callable[[random.Random], bytes] | None = None


class FindingError(AssertionError):
    """The oracle's verdict: these bytes show a defect of the reader."""

    def __init__(self, target: Target, data: bytes, what: str) -> None:
        super().__init__(f"{target.name}: {what}; {len(data)} bytes: {data.hex()}")
        self.data = data


def judge(target: Target, data: bytes) -> str:
    """Decode the bytes, and raise where the oracle objects.

    Returns:
        ``"ok"``, or the name of the error that refused them.

    Raises:
        FindingError: a defect of the reader.
    """
    try:
        value = target.decode(data)
    except FormatError as error:
        if not (str(error) and (error.offset is None or 0 <= error.offset <= len(data))):
            raise FindingError(target, data, f"{error!r} says no place within the file") from error
        return type(error).__name__
    except Exception as error:
        raise FindingError(target, data, f"{error!r} escaped") from error
    try:
        again = target.encode(value)
    except Exception as error:
        raise FindingError(target, data, f"what was decoded does not encode: {error!r}") from error
    if again != data:
        raise FindingError(target, data, f"encodes to other bytes: {again.hex()}")
    return "ok"


@contextlib.contextmanager
def capped_memory(margin: int = MEMORY_MARGIN_BYTES) -> Iterator[None]:
    """No more than ``margin`` further bytes of address space: an absurd count shows as a MemoryError."""
    with open("/proc/self/statm") as statm:  # noqa: PTH123 - one line of the kernel's
        pages = int(statm.read().split()[0])
    before = resource.getrlimit(resource.RLIMIT_AS)
    resource.setrlimit(resource.RLIMIT_AS, (pages * resource.getpagesize() + margin, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


def sealed(target: Target, data: bytes | bytearray) -> bytes:
    """The bytes with checksums that fit them."""
    out = bytearray(data)
    if target.seal is not None:
        target.seal(out)
    return bytes(out)


def exhaustive_cases(target: Target, seed: bytes) -> Iterator[bytes]:
    """Every truncation, trailing bytes, every bit flipped, every field at its extremes; sealed and not."""
    for size in range(len(seed)):
        yield seed[:size]
        yield sealed(target, seed[:size])
    for tail in (b"\0", b"\xff", b"\0" * 8, seed):
        yield seed + tail
        yield sealed(target, seed + tail)
    for at in range(len(seed)):
        for bit in range(8):
            flipped = bytearray(seed)
            flipped[at] ^= 1 << bit
            yield bytes(flipped)
            yield sealed(target, flipped)
    for field in target.fields(seed):
        own = _number(seed, field)
        for value in {*EXTREMES, len(seed), own - 1, own + 1}:
            if 0 <= value < 1 << 8 * field.size:
                yield sealed(target, with_field(seed, field, value))


def with_field(data: bytes, field: Field, value: int) -> bytes:
    """The bytes with another value in a field."""
    end = field.offset + field.size
    return data[: field.offset] + value.to_bytes(field.size, "little") + data[end:]


def exhaustive(target: Target) -> dict[str, int]:
    """Judge every case of :func:`exhaustive_cases` for every seed; how often which verdict came."""
    with capped_memory():
        return _tally(target, (case for seed in target.seeds for case in exhaustive_cases(target, seed)))


def structured(target: Target, cases: int, seed: int, corpus: Sequence[bytes] = ()) -> dict[str, int]:
    """Judge ``cases`` damaged files, the same for the same ``seed``; how often which verdict came."""
    rng = random.Random(seed)
    # Two of three from the seeds: what is in the corpus is mostly refused, whatever else is changed.
    pool = [*target.seeds * max(1, 2 * len(corpus) // len(target.seeds)), *corpus]
    with capped_memory():
        return _tally(target, (damaged(target, rng, pool) for _ in range(cases)))


def damaged(target: Target, rng: random.Random, pool: Sequence[bytes]) -> bytes:
    """A valid file with one to three things changed, mostly sealed again; now and then an absurd one."""
    if target.absurd is not None and rng.random() < 1 / 16:
        return target.absurd(rng)
    origin = pick(rng, pool)
    data = bytearray(origin)
    for _ in range(pick(rng, (1, 1, 1, 2, 3))):
        _damage(target, rng, pool, origin, data)
    # One of eight keeps checksums that do not fit: the checks before them have to stand alone.
    return sealed(target, data) if rng.random() < 0.875 else bytes(data)


def pick(rng: random.Random, items: Sequence[T]) -> T:
    """``rng.choice`` in a third of its time: drawing costs as much as judging does."""
    return items[int(rng.random() * len(items))]


def _damage(
    target: Target, rng: random.Random, pool: Sequence[bytes], origin: bytes, data: bytearray
) -> None:
    at = int(rng.random() * (len(data) + 1))
    length = min(pick(rng, (1, 1, 2, 4, 8, 32)), len(data) - at)
    kind = int(rng.random() * 8)
    if kind <= 2 and len(data) == len(origin) and (fields := _fields(target.fields, origin)):
        # Three of eight: the fields decide what the rest means.
        field = pick(rng, fields)
        how = int(rng.random() * 4)
        if how == 0:
            value = pick(rng, EXTREMES)
        elif how == 1:
            value = rng.getrandbits(8 * field.size)
        elif how == 2:
            value = _number(data, field) + int(rng.random() * 19) - 9
        else:
            value = _number(data, pick(rng, fields))
        data[field.offset : field.offset + field.size] = (value % (1 << 8 * field.size)).to_bytes(
            field.size, "little"
        )
    elif kind == 3:
        data[at : at + length] = rng.randbytes(length)
    elif kind == 4:
        del data[at : at + length]
    elif kind == 5:
        again = bytes(data[at : at + length])
        data[at:at] = pick(rng, (bytes(length), b"\xff" * length, b"\x80" * length, again))
    elif kind == 6:
        other = pick(rng, pool)
        begin = int(rng.random() * (len(other) + 1))
        data[at : at + length] = other[begin : begin + length]
    elif at < len(data):
        data[at] ^= 1 << int(rng.random() * 8)


def _number(data: bytes | bytearray, field: Field) -> int:
    return int.from_bytes(data[field.offset : field.offset + field.size], "little")


@functools.lru_cache(maxsize=512)
def _fields(find: Callable[[bytes], list[Field]], origin: bytes) -> list[Field]:
    # Under coverage guidance an origin may be anything, and its fields lie where it says.
    return [field for field in find(origin) if field.offset + field.size <= len(origin)]


def _tally(target: Target, cases: Iterator[bytes]) -> dict[str, int]:
    verdicts: dict[str, int] = {}
    for case in cases:
        verdict = judge(target, case)
        verdicts[verdict] = verdicts.get(verdict, 0) + 1
    return verdicts
