"""Weight files of TDL2048: their tables, against the indices that TDL2048's patterns define."""

import hashlib
import lzma
import random
import struct
import tracemalloc
from pathlib import Path

import numpy as np
import numpy.typing as npt
import pytest
from tests import reference

from tape2048.errors import ChecksumError, ConfigError, ModelError, TapeError, TruncatedError
from tape2048.ntuple import network as files, placed
from tape2048.ntuple.network import load_network, read_network, save_network, tuple_text
from tape2048.ntuple.placed import load_placed
from tape2048.ntuple.tdl2048 import read_tables
from tape2048.players import split_text
from tape2048_recorder.players.ntuple import move_values
from tape2048_recorder.players.options import make_player, player_sha256

Values = npt.NDArray[np.float32]

PATTERNS_6 = "012345 456789 89abcd 012456 45689a 234569 01259a 345678 134567 01489a"
PATTERNS_5 = "01234 45678 01245 45689 60a51"
PATTERNS_4 = "0123 4567 0145 1256 569a 3210"
PATTERNS = f"{PATTERNS_6} {PATTERNS_5} {PATTERNS_4}".split()


def table(sign: str, values: npt.NDArray[np.floating], *fields: npt.NDArray[np.floating]) -> bytes:
    """A table as TDL2048's ``weight::operator<<`` writes it; the value types of its fields follow NumPy."""
    if set(sign) <= set("0123456789abcdef"):
        head = struct.pack("<IHH", int(sign, 16), len(sign), 0)
    else:
        head = sign.encode().ljust(8)
    parts = [struct.pack("<HQ", each.itemsize, each.size) + each.tobytes() for each in (values, *fields)]
    return b"".join([b"\x04", head, *parts, b"\0\0"])


def weight_file(*tables: bytes) -> bytes:
    return b"\0" + struct.pack("<I", len(tables)) + b"".join(tables)


def values_of(number: int, cells: int = 4) -> Values:
    """Whole numbers from -2048 to 2047 that look random."""
    mixed = (np.arange(16**cells, dtype=np.uint64) + np.uint64(7919 * number)) * np.uint64(2654435761)
    return (mixed % np.uint64(1 << 32) >> np.uint64(20)).astype(np.float32) - np.float32(2048)


def index_of(pattern: str, cells: list[int]) -> int:
    """TDL2048's index: the first cell is the lowest digit."""
    return sum(cells[int(cell, 16)] << 4 * i for i, cell in enumerate(pattern))


def value_of(tables: dict[str, Values], cells: list[int]) -> float:
    images = reference.symmetries(cells)
    return sum(float(values[index_of(name, each)]) for name, values in tables.items() for each in images)


def random_boards(count: int) -> list[list[int]]:
    rng = random.Random(1)
    return [[rng.randrange(16) for _ in range(16)] for _ in range(count)]


def packed(boards: list[list[int]]) -> npt.NDArray[np.uint64]:
    return np.array([int("".join(f"{cell:x}" for cell in cells), 16) for cells in boards], np.uint64)


def written(path: Path, data: bytes, stages: str = "") -> str:
    path.write_bytes(data)
    return f"tdl2048{stages}:{path}"


GOLDEN = weight_file(
    *(
        table(sign, values_of(number))
        for number, sign in enumerate(["00000123", "00004567", "10000123", "10004567"])
    )
)


def test_values_are_those_of_tdl2048(tmp_path: Path) -> None:
    """TDL2048 (commit a99f620) reads and writes this file unchanged.

    ``2048 -n 2x4patt@2 -@ 0,2048 -i a.w -o b.w -e 1``; the values are of
    ``tests/bench/engines/moporgic_values.cpp`` with the same options.
    """
    assert (
        hashlib.sha256(GOLDEN).hexdigest()
        == "bc5234e20078ba68885e9426c65271e84c55d632cff91098e57fdf100f3fa312"
    )
    name = written(tmp_path / "a.w", GOLDEN, "@2048")
    boards = [0x1200, 0x123456789A000000, 0x123456789AB00000, 0xFFFFFFFFFFFFFFFF, 0x1023004510B67011, 0]
    expected = [-15407.0, -6045.0, -5751.0, -7528.0, 2066.0, -25856.0]
    assert load_network(name).values(np.array(boards, np.uint64)).tolist() == expected


def test_search_is_that_of_tdl2048(tmp_path: Path) -> None:
    """TDL2048 adds a point for the second move.

    The values are of ``moporgic_values -n 2x4patt -i a.w -e 1 -d 2p``.
    """
    data = weight_file(table("0123", values_of(0) + 2048), table("4567", values_of(1) + 2048))
    name = written(tmp_path / "a.w", data)
    player = make_player("ntuple", {"weights": name, "look": 16, "look_margin": 0})
    boards = [0x1200 << 48, 0x123456789A000000, 0xB9A7113200411000, 0x1023004510B67011]
    expected = [
        [np.nan, 21747.90625, np.nan, 23225.60546875],
        [np.nan, 31398.466796875, np.nan, 34726.66796875],
        [33487.71875, 33500.86328125, 37208.83203125, 32001.080078125],
        [39193.13671875, 37941.015625, 33513.06640625, 31676.6171875],
    ]
    ours = move_values(player, np.array(boards, np.uint64))
    assert ours + 1 == pytest.approx(np.array(expected), abs=0.01, nan_ok=True)


@pytest.mark.parametrize("pattern", PATTERNS)
def test_every_pattern_is_looked_up_in_eight_symmetries(pattern: str) -> None:
    whole = np.arange(16 ** len(pattern), dtype=np.float32)  # exact up to 2**24
    (found,) = read_tables(weight_file(table(pattern, whole)), "a.w", 1 << 30)
    text = tuple_text(found.cells)
    for cells in random_boards(20):
        images = reference.symmetries(cells)
        ours = [found.values[int("".join(f"{image[int(c, 16)]:x}" for c in text), 16)] for image in images]
        assert sorted(map(int, ours)) == sorted(index_of(pattern, image) for image in images)


@pytest.mark.parametrize(
    ("dtype", "head", "is_xz"),
    [("<f2", b"", False), ("<f4", b"w", False), ("<f8", b"", False), ("<f2", b"w", True), ("<f4", b"", True)],
)
def test_all_forms_have_the_same_values(tmp_path: Path, dtype: str, head: bytes, is_xz: bool) -> None:
    tables = {"0145": values_of(0), "9510": values_of(1), "4567": values_of(2)}
    rates = np.full(2 * 16**4, 0.5, dtype)  # of temporal coherence
    parts = (table(name, values.astype(dtype), rates) for name, values in tables.items())
    data = head + weight_file(*parts)
    network = load_network(written(tmp_path / "a", lzma.compress(data, preset=0) if is_xz else data))
    boards = random_boards(50)
    assert network.values(packed(boards)).tolist() == [value_of(tables, cells) for cells in boards]
    assert (network.downgrade, network.facts["patterns"]) == (0, [*tables])


def test_stages_start_at_sums_that_the_name_has(tmp_path: Path) -> None:
    stages = [{"0123": values_of(stage)} for stage in range(3)]
    signs = ["00000123", "10000123", "20000123"]
    data = weight_file(*(table(sign, stage["0123"]) for sign, stage in zip(signs, stages, strict=True)))
    network = load_network(written(tmp_path / "a.w", data, "@2048+3072"))
    boards = [[1, 2, *[0] * 14], [11, 2, *[0] * 14], [11, 10, *[0] * 14], [12, *[0] * 15]]
    expected = [value_of(stages[stage], cells) for stage, cells in zip([0, 1, 2, 2], boards, strict=True)]
    assert network.values(packed(boards)).tolist() == expected


def test_a_network_is_quantised_and_saved_as_ours(tmp_path: Path) -> None:
    network = load_network(written(tmp_path / "a.w", GOLDEN, "@2048"))
    save_network(network.quantised(1), tmp_path / "ours")
    boards = packed(random_boards(50))
    assert load_network(str(tmp_path / "ours")).values(boards).tolist() == network.values(boards).tolist()


def test_processes_share_the_table(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(placed, "SHARED_BYTES_MIN", 1)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    hashes = set()
    for stages in ("@2048", "@4096"):
        name = written(tmp_path / "a.w", GOLDEN, stages)
        found, network = load_placed(name), load_network(name)
        assert found.kept is not None
        assert not found.table.flags.writeable
        assert np.array_equal(found.table, network.table)
        assert (found.layout, found.facts) == (network.layout, network.facts)
        hashes.add(player_sha256("ntuple", make_player("ntuple", {"weights": name})))
    assert len(hashes) == 2
    save_network(network.quantised(1), tmp_path / "ours")
    load_placed(str(tmp_path / "ours"))
    with pytest.raises(ModelError, match=r"found (the first byte|version)"):
        load_placed(f"tdl2048:{tmp_path}/ours")  # of the same bytes


@pytest.mark.parametrize(
    ("text", "args"),
    [
        ("tdl2048:nets/4x6=1.w", {"weights": "tdl2048:nets/4x6=1.w"}),
        ("tdl2048@2048+4096:a.w,look=0", {"weights": "tdl2048@2048+4096:a.w", "look": "0"}),
    ],
)
def test_a_file_is_a_player(text: str, args: dict[str, str]) -> None:
    assert split_text(text) == ("ntuple", args)


SMALL = weight_file(table("0123", values_of(0)))


def refused(data: bytes, kind: type[TapeError], said: str, name: str = "tdl2048:some/file") -> TapeError:
    with pytest.raises(kind, match=said) as caught:
        read_network(data, name)
    assert caught.value.path == "some/file"
    return caught.value


def test_a_file_that_is_cut_off_anywhere_is_refused() -> None:
    for end in [*range(40), 9999, len(SMALL) - 2, len(SMALL) - 1]:
        error = refused(SMALL[:end], TruncatedError, "the file ends in .*: found .* bytes, expected")
        assert error.offset is not None
        assert error.offset <= end
    compressed = lzma.compress(SMALL, preset=0)
    for end in [*range(6, 40), *range(40, len(compressed), 4999), len(compressed) - 1]:
        refused(compressed[:end], TruncatedError, "ends in|cut off")


def changed(at: int, form: str, value: int) -> bytes:
    data = bytearray(SMALL)
    struct.pack_into(form, data, at, value)
    return bytes(data)


@pytest.mark.parametrize(
    ("number", "digits", "stage", "pattern"),
    [
        (0x123, 4, 0, "0123"),
        (0x123, 0, 0, "0123"),
        (0xA1004567, 0, 0x1A, "4567"),
        (0x10123, 4, 0x1000, "0123"),
    ],
)
def test_a_pattern_has_digits(number: int, digits: int, stage: int, pattern: str) -> None:
    """As many as its table has cells if the file has 0; eight if the number has more."""
    data = bytearray(SMALL)
    struct.pack_into("<IH", data, 6, number, digits)
    (found,) = read_tables(bytes(data), "a.w", 0)
    assert (found.stage, found.pattern) == (stage, pattern)


@pytest.mark.parametrize(
    ("data", "said"),
    [
        (b"PK\3\4", "found the first byte 80, expected 0 or 119"),
        (b"c" + SMALL, "found the first byte 99"),
        (changed(1, "<I", 0), "found no table"),
        (changed(5, "<B", 3), "found version 3 of table 1 of 1, expected 4"),
        (changed(6, "<I", 0x1223), "found the feature 1223 in table 1 of 1, expected a pattern of 4 diff"),
        (changed(14, "<H", 3), r"found 65,536 values of 3 bytes in .*\(0123\), expected .* 2, 4 or 8 bytes"),
        (changed(16, "<Q", 16**7), r"found 268,435,456 values of 4 bytes in table"),
        (changed(16, "<Q", 2**64 - 1), "found 18,446,744,073,709,551,615 values"),
        (changed(16, "<Q", 0), "found 0 values"),
        (weight_file(table("m@0123", values_of(0))), "feature 'm@0123' in table 1 of 1, expected a pattern"),
        (weight_file(*2 * [table("0123", values_of(0))]), "found 0123 again in table 2 of 2"),
        (SMALL + b"\0", "found more bytes behind table 1 of 1, expected the end of the file"),
        (lzma.compress(SMALL + b"\0"), "found more bytes behind table 1"),
        (
            weight_file(table("0123", np.full(16**4, np.nan, np.float32))),
            "0/cdef has values that are not fin",
        ),
        (weight_file(table("0123", np.full(16**4, 1e300))), "0/cdef has values that are not finite"),
    ],
)
def test_what_is_no_weight_file_is_refused(data: bytes, said: str) -> None:
    refused(data, ModelError, said)


@pytest.mark.parametrize("at", [1, 16, 24 + 4 * 16**4 + 2])
def test_claims_take_no_memory(at: int) -> None:
    """The number of tables, their size, and a further field's size."""
    field = table("0123", values_of(0), np.ones(1))
    data = bytearray(weight_file(field))
    data[at : at + 4] = b"\xff\xff\xff\x7f"
    tracemalloc.start()
    refused(bytes(data), TapeError, "found")
    assert tracemalloc.get_traced_memory()[1] < 4 << 20
    tracemalloc.stop()


def test_a_compressed_file_expands_to_a_limit(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXPANDED_BYTES_MAX", 1 << 18)
    tables = [table(name, values_of(0)) for name in ("0123", "0145")]
    read_network(weight_file(*tables), "tdl2048:a")
    error = refused(lzma.compress(weight_file(*tables)), ModelError, "expands to tables of more than 262,144")
    assert "xz -d" in error.advice
    damaged = bytearray(lzma.compress(SMALL, preset=0))
    damaged[2000] ^= 1
    refused(bytes(damaged), ChecksumError, "damaged")


@pytest.mark.parametrize(
    ("stages", "said"),
    [
        ("", r"found 2 stages in the file and 0 sums of tiles in its name; expected 1"),
        ("@2048+4096", r"and 2 sums of tiles in its name"),
    ],
)
def test_stages_without_sums_are_refused(stages: str, said: str) -> None:
    error = refused(GOLDEN, ConfigError, said, f"tdl2048{stages}:some/file")
    assert "tdl2048@16384+24576:FILE" in error.advice


def test_stages_of_other_patterns_are_refused() -> None:
    data = weight_file(table("00000123", values_of(0)), table("10000145", values_of(0)))
    refused(data, ModelError, "found the tables 0/0123, 1/0145; expected the same", "tdl2048@64:some/file")


@pytest.mark.parametrize("stages", ["", "a", "1024,2048", "+", "9" * 30])
def test_sums_that_are_no_numbers_are_refused(stages: str) -> None:
    with pytest.raises(ConfigError, match="expected sums of tiles joined by"):
        load_network(f"tdl2048@{stages}:a.w")


@pytest.mark.parametrize("data", [SMALL, b"w" + SMALL, lzma.compress(SMALL)])
def test_a_weight_file_without_its_program_is_refused(data: bytes) -> None:
    error = refused(data, ModelError, "found a weight file of TDL2048", "some/file")
    assert "tdl2048:FILE" in error.advice


def test_another_network_is_refused() -> None:
    with pytest.raises(ModelError) as error:
        load_network(f"tdl2048:{files.network_path('fast')}")
    assert "without tdl2048:" in error.value.advice
    with pytest.raises(ConfigError, match="found no network at 'tdl2048:absent'"):
        load_network("tdl2048:absent")
