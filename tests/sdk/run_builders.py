"""Run files and packs written and read here from the formats' description, not by the code under test.

No NumPy, no cleverness: one value after the other, as the page says. The decoder is also the plain Python one
that the benchmarks measure against.
"""

import dataclasses
import json
import struct
from typing import Any

from crc32c import crc32c
from tests import reference as ref

UP, DOWN, LEFT, RIGHT = range(4)

#: A branch is a float (Legal) or None (Illegal); a step's branches are four of them, or None.
Branches = tuple[float | None, float | None, float | None, float | None] | None


@dataclasses.dataclass(frozen=True)
class PlainRun:
    """A run in Python's own values."""

    states: list[int]
    moves: list[int]
    branches: list[Branches]
    start_unix_s: int = 1_755_927_754
    elapsed_s: float = 15.25
    max_score: int = 20_504
    highest_tile: int = 2048
    engine: str | None = "toy"


def game(seed: int, *, with_branches: bool = True, steps_max: int = 10**9, **meta: Any) -> PlainRun:
    """A randomly played game of the reference rules; branch values are made up, but fit the legal moves."""
    cells, _, generator = ref.new_game(seed)
    states, moves, branches = [ref.pack(cells)], [], []
    score = 0
    while len(moves) < steps_max and (move := ref.random_move(cells, generator)) is not None:
        legal = ref.legal_moves(cells)
        values = tuple((generator.below(64) / 64 if m in legal else None) for m in range(4))
        branches.append(values if with_branches and generator.below(4) else None)
        cells, gained = ref.slide(cells, move)
        cells, _ = ref.spawn(cells, generator)
        score += gained
        moves.append(move)
        states.append(ref.pack(cells))
    facts = {"max_score": score, "highest_tile": 1 << max(cells), **meta}
    return PlainRun(states, moves, branches, **facts)


def a2t1_bytes(run: PlainRun, **changes: int) -> bytes:
    """An A2T1 file; ``changes`` replace header fields. The checksum fits what is there."""
    engine = (run.engine or "").encode()
    fields = {"version": 1, "order": 0, "steps": len(run.moves), "start": run.start_unix_s}
    fields |= {"elapsed": run.elapsed_s, "score": run.max_score, "tile": run.highest_tile}
    fields |= {"engine_len": len(engine)} | changes
    body = b"A2T1" + struct.pack("<BBIQfQIH", *fields.values()) + engine
    body += b"".join(state.to_bytes(8, "little") for state in run.states) + bytes(run.moves)
    return seal_a2t1(body)


def seal_a2t1(body: bytes) -> bytes:
    """The body and its checksum."""
    return body + crc32c(body).to_bytes(4, "little")


def varint(value: int) -> bytes:
    out = b""
    while value >= 128:
        out += bytes([value % 128 + 128])
        value //= 128
    return out + bytes([value])


def a2run2_meta(run: PlainRun, steps: int | None = None) -> bytes:
    engine = b"\0" if run.engine is None else b"\1" + varint(len(run.engine.encode())) + run.engine.encode()
    head = varint(len(run.moves) if steps is None else steps) + varint(run.start_unix_s)
    return head + struct.pack("<f", run.elapsed_s) + varint(run.max_score) + varint(run.highest_tile) + engine


def a2run2_step(board: int, move: int, branches: Branches) -> bytes:
    out = varint(board) + varint(move)
    if branches is None:
        return out + b"\0"
    values = (b"\1" if value is None else b"\0" + struct.pack("<f", value) for value in branches)
    return out + b"\1" + b"".join(values)


def a2run2_bytes(run: PlainRun) -> bytes:
    steps = zip(run.states, run.moves, run.branches, strict=False)
    body = b"".join(a2run2_step(*step) for step in steps)
    return a2run2_meta(run) + varint(len(run.moves)) + body + varint(run.states[-1])


def decode_a2run2(data: bytes) -> PlainRun:
    """The plain Python decoder: a cursor over bytes, one value after the other."""
    at = 0

    def read_varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            byte = data[at]
            at += 1
            value |= (byte & 0x7F) << shift
            if byte < 128:
                return value
            shift += 7

    def read_float() -> float:
        nonlocal at
        (value,) = struct.unpack_from("<f", data, at)
        at += 4
        return float(value)

    def read_byte() -> int:
        nonlocal at
        at += 1
        return data[at - 1]

    steps, start = read_varint(), read_varint()
    elapsed = read_float()
    score, tile = read_varint(), read_varint()
    engine = None
    if read_byte():
        length = read_varint()
        engine = data[at : at + length].decode()
        at += length
    states, moves, branches = [], [], []
    for _ in range(read_varint()):
        states.append(read_varint())
        moves.append(read_byte())
        branches.append(
            tuple(None if read_byte() else read_float() for _ in range(4)) if read_byte() else None
        )
    states.append(read_varint())
    assert (at, len(moves)) == (len(data), steps)
    return PlainRun(states, moves, branches, start, elapsed, score, tile, engine)


@dataclasses.dataclass
class PackSpec:
    """A pack to be written, and how it differs from a right one."""

    payloads: list[bytes]
    align: int = 4096
    stats: bytes | None = None
    entry_crc: bool = True
    data_crc: bool = True
    change_index: Any = None
    header: dict[str, int] = dataclasses.field(default_factory=dict)
    footer: dict[str, int] = dataclasses.field(default_factory=dict)


def kind_of(payload: bytes) -> int:
    return 1 if payload.startswith(b"A2T1") else 2


def a2pack_bytes(spec: PackSpec) -> bytes:
    """A pack; whatever is changed, the checksums of header, index and footer fit what is there."""
    count = len(spec.payloads)
    head = dict({"version": 1, "flags": 0, "count": count}, **spec.header)
    at = -(-(28 + 32 * count) // spec.align) * spec.align
    begin = at
    entries, data = [], b""
    for payload in spec.payloads:
        pad = -at % spec.align
        data += bytes(pad) + payload
        crc = crc32c(payload) if spec.entry_crc else 0
        entries.append([at + pad, len(payload), kind_of(payload), 0, crc, 0, 0])
        at += pad + len(payload)
    if spec.change_index is not None:
        spec.change_index(entries)
    index = b"".join(struct.pack("<QIHHIIQ", *entry) for entry in entries)
    header = b"A2PACK\0\0" + struct.pack("<IIQ", *head.values())
    out = (header + crc32c(header).to_bytes(4, "little") + index).ljust(begin, b"\0") + data
    stats = b"" if spec.stats is None else len(spec.stats).to_bytes(4, "little") + spec.stats
    foot = {"data_end": at, "index_crc": crc32c(index), "data_crc": crc32c(data) if spec.data_crc else 0}
    foot |= {"stats_offset": at if stats else 0} | spec.footer
    footer = struct.pack("<QIIQ", *foot.values())
    return out + stats + footer + crc32c(footer).to_bytes(4, "little") + bytes(4)


def stats_facts(runs: list[PlainRun]) -> dict[str, Any]:
    """What the stats block of our own packs says."""
    lengths = sorted(len(run.moves) for run in runs)

    def rank(percent: int) -> int:
        return lengths[-(-len(lengths) * percent // 100) - 1]

    def counted(values: list[Any]) -> dict[Any, int]:
        return {value: values.count(value) for value in sorted(set(values))}

    total = sum(lengths)
    mean = total / len(runs)
    values = (len(runs), total, lengths[0], lengths[-1], mean, rank(50), rank(90), rank(99))
    return dict(zip(STATS, values, strict=True)) | {
        "highest_tile_hist": counted([run.highest_tile for run in runs]),
        "engine_counts": counted([run.engine or "" for run in runs]),
    }


#: The fields of the reference's stats, in its order, and how postcard has them.
STATS = {"count": "u64", "total_steps": "u64", "min_len": "u32", "max_len": "u32", "mean_len": "f64"}
STATS |= {"p50_len": "u32", "p90_len": "u32", "p99_len": "u32"}


def compact_json(document: dict[str, Any]) -> bytes:
    return json.dumps(document, separators=(",", ":"), ensure_ascii=False).encode()


def stats_json(runs: list[PlainRun]) -> bytes:
    """The stats block of older packs of ours."""
    return compact_json(stats_facts(runs))


def stats_postcard(facts: dict[str, Any]) -> bytes:
    """The stats block of the reference's packs."""
    return b"".join(
        struct.pack("<d", facts[name]) if kind == "f64" else varint(facts[name])
        for name, kind in STATS.items()
    )


def stats_block(runs: list[PlainRun]) -> bytes:
    """The stats block of our own packs."""
    facts = stats_facts(runs)
    more = {name: value for name, value in facts.items() if name not in STATS}
    return stats_postcard(facts) + compact_json(more)


def reference_stats(runs: list[PlainRun]) -> dict[str, Any]:
    """The reference's facts, whose percentiles lie at ``round(q * (n - 1))``, halves up."""
    lengths = sorted(len(run.moves) for run in runs)
    own = {name: value for name, value in stats_facts(runs).items() if name in STATS}
    ranks = {f"p{q}_len": lengths[(2 * q * (len(lengths) - 1) + 100) // 200] for q in (50, 90, 99)}
    return own | ranks
