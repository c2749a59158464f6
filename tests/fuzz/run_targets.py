"""The run formats as fuzzing sees them: A2T1, a2run2, a2pack.

Seeds, fields and seals are made from the formats' description (:mod:`tests.sdk.run_builders`); only
decoding and encoding are the package's.
"""

import random
import struct
from typing import Any

import numpy as np
from crc32c import crc32c
from tests.fuzz.harness import EXTREMES, Field, Target
from tests.sdk import run_builders as build

from tape2048.runs import PackReader
from tape2048.runs.a2run import parse_run, run_bytes
from tape2048.runs.a2run2 import RunV2

GAMES = [
    build.game(1, steps_max=3, engine="e"),
    build.game(2, steps_max=5, engine=None),
    build.game(3, steps_max=2, engine="ü", with_branches=False),
    build.game(4, steps_max=0, engine=None, max_score=2**64 - 1),
]


def seal_a2t1(data: bytearray) -> None:
    if len(data) >= 4:
        data[-4:] = crc32c(bytes(data[:-4])).to_bytes(4, "little")


def a2t1_fields(data: bytes) -> list[Field]:
    header = [Field(4, 1), Field(5, 1), Field(6, 4), Field(10, 8), Field(18, 4), Field(22, 8)]
    header += [Field(30, 4), Field(34, 2)]
    engine_len = min(int.from_bytes(data[34:36], "little"), max(0, len(data) - 36))
    moves_at = 36 + engine_len + 8 * (int.from_bytes(data[6:10], "little") + 1)
    moves = [Field(at, 1) for at in range(moves_at, len(data) - 4)]
    return [*header, *(Field(36 + i, 1) for i in range(engine_len)), *moves]


A2T1 = Target(
    "a2t1",
    [build.a2t1_bytes(game) for game in GAMES],
    lambda data: parse_run(np.frombuffer(data, np.uint8)),
    lambda run: b"".join(run_bytes(run)),
    seal_a2t1,
    a2t1_fields,
)


def absurd_a2run2(rng: random.Random) -> bytes:
    """A run whose two step counts agree on a number that its bytes cannot hold, or just not."""
    game = rng.choice(GAMES)
    steps = rng.choice((rng.choice(EXTREMES), len(game.moves) + rng.randint(-2, 2)))
    steps = min(max(steps, 0), 2**32 - 1)
    body = build.a2run2_bytes(game)[len(build.a2run2_meta(game)) + 1 :]
    return build.a2run2_meta(game, steps) + build.varint(steps) + body


A2RUN2 = Target(
    "a2run2",
    [build.a2run2_bytes(game) for game in GAMES],
    RunV2.from_bytes,
    RunV2.to_bytes,
    None,
    lambda data: [Field(at, 1) for at in range(len(data))],
    absurd_a2run2,
)


_HEADER, _ENTRY, _FOOTER = 28, 32, 32
#: Offset and size of the fields of an index entry.
_ENTRY_FIELDS = ((0, 8), (8, 4), (12, 2), (14, 2), (16, 4), (20, 4), (24, 8))


def _count(data: bytes | bytearray) -> int:
    """Entries whose index lies within the bytes, at most as many as the header says."""
    room = max(0, len(data) - _HEADER - _FOOTER) // _ENTRY
    return min(int.from_bytes(data[16:24], "little"), room)


def seal_a2pack(data: bytearray) -> None:
    """Payload checksums first, then those that stand above them."""
    if len(data) < _HEADER + _FOOTER:
        return
    count = _count(data)
    for i in range(count):
        at = _HEADER + _ENTRY * i
        offset, length = struct.unpack_from("<QI", data, at)
        if any(data[at + 16 : at + 20]) and offset + length <= len(data):
            # A payload inside may be an A2T1 file, which has a checksum of its own.
            if data[offset : offset + 4] == b"A2T1" and length > 4:
                end = offset + length
                data[end - 4 : end] = crc32c(bytes(data[offset : end - 4])).to_bytes(4, "little")
            data[at + 16 : at + 20] = crc32c(bytes(data[offset : offset + length])).to_bytes(4, "little")
    data[24:28] = crc32c(bytes(data[:24])).to_bytes(4, "little")
    footer = len(data) - _FOOTER
    index_end = _HEADER + _ENTRY * count
    data[footer + 8 : footer + 12] = crc32c(bytes(data[_HEADER:index_end])).to_bytes(4, "little")
    begin = int.from_bytes(data[_HEADER : _HEADER + 8], "little") if count else len(data)
    end = int.from_bytes(data[footer : footer + 8], "little")
    if any(data[footer + 12 : footer + 16]) and begin <= end <= footer:
        data[footer + 12 : footer + 16] = crc32c(bytes(data[begin:end])).to_bytes(4, "little")
    data[footer + 24 : footer + 28] = crc32c(bytes(data[footer : footer + 24])).to_bytes(4, "little")


def a2pack_fields(data: bytes) -> list[Field]:
    footer = len(data) - _FOOTER
    fields = [Field(8, 4), Field(12, 4), Field(16, 8)]
    for i in range(_count(data)):
        at = _HEADER + _ENTRY * i
        fields += [Field(at + offset, size) for offset, size in _ENTRY_FIELDS]
    fields += [Field(footer + offset, size) for offset, size in ((0, 8), (12, 4), (16, 8), (28, 4))]
    stats = int.from_bytes(data[footer + 16 : footer + 24], "little")
    return [*fields, Field(stats, 4)] if stats else fields


def decode_pack(data: bytes) -> PackReader:
    """All of a pack: open it, and validate every byte; what opens has to hold without that."""
    pack = open_pack(data)
    assert encode_index(pack) == data, "the index encodes to other bytes"
    pack.validate()
    return pack


def open_pack(data: bytes) -> PackReader:
    """The parts of a pack that are read when it is opened."""
    return PackReader("/case.a2pack", np.frombuffer(data, np.uint8))


def encode_index(pack: PackReader) -> bytes:
    """Header, index and footer put together from what the reader says; what lies between is taken over."""
    layout = pack._layout
    end = _HEADER + _ENTRY * len(pack)
    index = b""
    for i in range(len(pack)):
        info = pack.info(i)
        assert end <= info.offset, "entries follow one another, and the index"
        end = info.offset + info.length
        kind = {"v1": 1, "v2": 2}[info.kind]
        compression = ("none", "zstd", "lz4").index(info.compression)
        index += struct.pack(
            "<QIHHIIQ", info.offset, info.length, kind, compression, info.crc32c, info.raw_length, 0
        )
    assert end <= layout.data_end, "entries lie within the data"
    header = b"A2PACK\0\0" + struct.pack("<IIQ", 1, 0, len(pack))
    stats, stats_at = b"", 0
    footer_at = len(pack._data) - _FOOTER
    if layout.stats is not None:
        stats = len(layout.stats).to_bytes(4, "little") + layout.stats
        stats_at = footer_at - len(stats)
    assert layout.data_end == footer_at or layout.data_end <= stats_at
    between = pack._data[_HEADER + len(index) : footer_at - len(stats)].tobytes() + stats
    footer = struct.pack("<QIIQ", layout.data_end, crc32c(index), layout.data_crc, stats_at)
    out = header + crc32c(header).to_bytes(4, "little") + index + between + footer
    return out + crc32c(footer).to_bytes(4, "little") + bytes(4)


def encode_pack(pack: PackReader) -> bytes:
    """As :func:`encode_index`, with the payloads at their places, zeros between, and checksums of both."""
    layout = pack._layout
    data_begin = pack.info(0).offset if len(pack) else layout.data_end
    out = pack._data.tobytes()  # as decode_pack has made sure
    data = b""
    for i in range(len(pack)):
        info = pack.info(i)
        stored = pack._data[info.offset : info.offset + info.length].tobytes()
        assert info.crc32c in {0, crc32c(stored)}
        assert info.compression != "none" or stored == bytes(pack.get_slice(i).bytes)
        data = data.ljust(info.offset - data_begin, b"\0") + stored
    data = data.ljust(layout.data_end - data_begin, b"\0")
    assert layout.data_crc in {0, crc32c(data)}
    head = out[: _HEADER + _ENTRY * len(pack)].ljust(data_begin, b"\0")
    return head + data + out[layout.data_end :]


def _packs() -> list[bytes]:
    v1, v2, plain, empty = (
        build.a2t1_bytes(GAMES[0]), build.a2run2_bytes(GAMES[1]), build.a2run2_bytes(GAMES[2]),
        build.a2t1_bytes(GAMES[3]),
    )  # fmt: skip
    stats = build.stats_block([GAMES[2], GAMES[3], GAMES[0]])
    specs = [
        build.PackSpec([v1, v2], align=8, stats=build.stats_json(GAMES[:2])),
        build.PackSpec([plain, empty, v1], align=32, entry_crc=False, stats=stats),
        build.PackSpec([v2], align=1, data_crc=False, stats=b"{}"),
        build.PackSpec([], align=1),
    ]
    return [build.a2pack_bytes(spec) for spec in specs]


A2PACK = Target("a2pack", _packs(), decode_pack, encode_pack, seal_a2pack, a2pack_fields)

#: A pack as far as opening it goes: that the index holds is part of the target above, which the suite takes.
#: Faster, for planted defects of the index and for runs under coverage guidance.
A2PACK_INDEX = Target("a2pack-index", _packs(), open_pack, encode_index, seal_a2pack, a2pack_fields)

TARGETS: dict[str, Any] = {target.name: target for target in (A2T1, A2RUN2, A2PACK, A2PACK_INDEX)}
