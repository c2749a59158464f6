"""Network files: round trips, and that nothing damaged or foreign is taken for a network."""

import dataclasses
import hashlib
import json
import lzma
import struct
import tracemalloc
import zlib
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.errors import (
    ChecksumError,
    ConfigError,
    FormatError,
    ModelError,
    StorageError,
    TapeError,
    TruncatedError,
)
from tape2048.files import safetensors as _safetensors
from tape2048.ntuple import network as files
from tape2048.ntuple.network import (
    SHIPPED,
    Network,
    NetworkLayout,
    file_facts,
    load_network,
    read_network,
    save_network,
)

from ...recorder.ntuple_training import slow

Header = dict[str, Any]


def same(one: Network, other: Network) -> bool:
    return (
        one.layout == other.layout
        and one.table.dtype == other.table.dtype
        and np.array_equal(one.table, other.table)
        and np.array_equal(one.scales, other.scales)
        and one.facts == other.facts
    )


NETWORKS = {
    "f32": slow.random_network("0123", "0145", stages=(8192, 16384), spread=9),
    "i16": slow.random_network("0123", "0145", stages=(2048,), dtype=np.int16),
}
for network_ in NETWORKS.values():
    network_.facts.update({"moves": 12, "training": {"tuples": "0123 0145"}, "host": "größer"})


@pytest.mark.parametrize("compress", [False, True])
@pytest.mark.parametrize("kind", NETWORKS)
def test_a_network_comes_back(tmp_path: Path, kind: str, compress: bool) -> None:
    path = tmp_path / "network"
    written = save_network(NETWORKS[kind], path, compress=compress)
    assert written == path.stat().st_size
    assert (path.read_bytes()[:6] == b"\xfd7zXZ\0") == (compress and kind == "f32")
    read = load_network(str(path))
    assert same(read, NETWORKS[kind])
    assert read.table.flags.c_contiguous
    assert read.table.flags.aligned
    assert read.table.flags.writeable
    facts = file_facts(str(path))
    assert facts == {"bytes": written, "sha256": hashlib.sha256(path.read_bytes()).hexdigest()}


def test_compression_in_pieces_changes_nothing(tmp_path: Path) -> None:
    save_network(NETWORKS["f32"], tmp_path / "plain", compress=False)
    save_network(NETWORKS["f32"], tmp_path / "compressed")
    whole = lzma.compress(
        (tmp_path / "plain").read_bytes(), check=lzma.CHECK_CRC64, filters=[{**files._FILTER, "preset": 1}]
    )
    assert (tmp_path / "compressed").read_bytes() == whole


def test_huge_networks_are_not_compressed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    network = NETWORKS["i16"]
    size = save_network(network, tmp_path / "plain", compress=False)
    for limit, is_compressed in ((size, False), (size + 1, True)):
        monkeypatch.setattr(files, "EXPANDED_BYTES_MAX", limit)
        save_network(network, tmp_path / "network")
        assert ((tmp_path / "network").stat().st_size < size) == is_compressed
        assert same(load_network(str(tmp_path / "network")), network)


@pytest.mark.parametrize("kind", NETWORKS)
def test_the_safetensors_library_reads_and_writes_such_files(tmp_path: Path, kind: str) -> None:
    safetensors = pytest.importorskip("safetensors.numpy")
    network = NETWORKS[kind]
    save_network(network, tmp_path / "ours", compress=False)
    found = safetensors.load_file(tmp_path / "ours")
    assert found.keys() == {*network.layout.names, "scales"}
    assert np.array_equal(np.concatenate([found[name] for name in network.layout.names]), network.table)
    assert np.array_equal(found["scales"], network.scales)
    arrays, texts = _safetensors.decode((tmp_path / "ours").read_bytes(), "ours")
    safetensors.save_file(arrays, tmp_path / "theirs", texts)
    assert same(load_network(str(tmp_path / "theirs")), network)


@pytest.fixture(scope="module")
def plain(tmp_path_factory: pytest.TempPathFactory) -> bytes:
    """The bytes of a small network."""
    path = tmp_path_factory.mktemp("network") / "plain"
    save_network(slow.random_network("0123", dtype=np.int16), path, compress=False)
    return path.read_bytes()


@pytest.fixture(scope="module")
def compressed(plain: bytes) -> bytes:
    return lzma.compress(plain, preset=0)


def sparse(share: float, seed: int = 0) -> Network:
    """A network with this share of entries that are not 0."""
    rng = np.random.default_rng(seed)
    network = slow.random_network("0123", "01245", dtype=np.int16)
    table = rng.integers(-(2**15), 2**15, network.layout.entries).astype(np.int16)
    table[rng.random(len(table)) >= share] = 0
    return dataclasses.replace(network, table=table, scales=network.scales.astype(np.float32))


@pytest.mark.parametrize("share", [0, 1e-5, 0.003, 0.08, 1])
def test_a_sparse_network_comes_back(tmp_path: Path, share: float) -> None:
    network = sparse(share)
    size = save_network(network, tmp_path / "network")
    assert same(load_network(str(tmp_path / "network")), network)
    assert size < 3.3 * share * network.layout.entries + 8_000


def with_table(stream: bytes) -> bytes:
    arrays = {"0/0123": np.frombuffer(stream, np.uint8), "scales": ones(1, 1)}
    return build(arrays, format=files.SPARSE_FORMAT)


def test_the_sparse_format_is_what_it_says() -> None:
    planes = np.array([[3, 255, 255, 10], [127, 128, 0, 129], [0, 0, 1, 0]], np.uint8)
    found = read_network(with_table(zlib.compress(planes)), "a").table
    assert {int(at): int(found[at]) for at in np.flatnonzero(found)} == {2: -1, 512: 128, 522: 1}


@pytest.mark.parametrize(
    ("stream", "kind"),
    [
        (b"x", FormatError),
        (zlib.compress(b"\x01\0"), FormatError),
        (zlib.compress(b"\0\0\0"), FormatError),
        (zlib.compress(b"\xff" * 3 * 258), FormatError),
        (zlib.compress(b"\x01" * 3 * 65537), FormatError),
        (zlib.compress(b"\x01\0\0")[:-1], FormatError),
        (zlib.compress(b"\x01\0\0") + b"\0", FormatError),
        (zlib.compress(b"\x01\0\0")[:-1] + b"\0", ChecksumError),
        (zlib.compress(bytes(1 << 26)), FormatError),
    ],
)
def test_a_damaged_sparse_table_is_refused(stream: bytes, kind: type[TapeError]) -> None:
    refused(with_table(stream), kind)


def test_the_tables_of_a_sparse_network_are_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXPANDED_BYTES_MAX", 2 * 65536 - 1)
    refused(with_table(zlib.compress(b"")), ModelError, "expands to 131,072 bytes, expected at most 131,071")


SPARSE = "012345 123456 234567 345678 456789 56789a 6789ab 789abc 89abcd"


def test_a_small_file_cannot_declare_gigabytes(tmp_path: Path) -> None:
    """The writer does not compress a network that expands to 300 MB with hardly a value."""
    layout = NetworkLayout.of(SPARSE.split())
    empty = files._pack(np.zeros(16, np.int16))
    texts = files.file_texts(files.SPARSE_FORMAT, layout, {})
    arrays = {**dict.fromkeys(layout.names, empty), "scales": ones(1, 9)}
    data = b"".join(map(bytes, files.encode(arrays, texts)))
    tracemalloc.start()
    refused(data, ModelError, r"expands to 301,989,888 bytes, expected at most 26\d,\d{3},\d{3} for a file")
    table = np.zeros(layout.entries, np.int16)
    size = save_network(Network(layout, table, ones(1, 9)), tmp_path / "plain")
    assert tracemalloc.get_traced_memory()[1] < table.nbytes + (128 << 20)
    tracemalloc.stop()
    assert size > table.nbytes
    table[::1000] = 7
    assert save_network(Network(layout, table, ones(1, 9)), tmp_path / "packed") < size / 100
    assert files.StoredNetwork.of((tmp_path / "packed").read_bytes(), "a").layout == layout


def header_of(data: bytes) -> tuple[Header, bytes]:
    (length,) = struct.unpack_from("<Q", data)
    return json.loads(data[8 : 8 + length]), data[8 + length :]


def with_header(header: object, body: bytes) -> bytes:
    text = header if isinstance(header, bytes) else json.dumps(header).encode()
    return struct.pack("<Q", len(text)) + text + body


def refused(data: bytes, kind: type[TapeError], said: str | None = None) -> None:
    with pytest.raises(kind, match=said) as caught:
        read_network(data, "some/file")
    assert caught.value.path == "some/file"


def test_a_file_that_is_cut_off_anywhere_is_refused(plain: bytes, compressed: bytes) -> None:
    begin = len(plain) - len(header_of(plain)[1])
    for end in [*range(begin + 64), *range(begin + 64, len(plain), 9973), len(plain) - 1]:
        refused(plain[:end], TruncatedError)
    middle = range(64, len(compressed) - 64, 9973)
    for end in [*range(64), *middle, *range(len(compressed) - 64, len(compressed))]:
        refused(compressed[:end], TruncatedError)


def test_a_file_that_goes_on_is_refused(plain: bytes, compressed: bytes) -> None:
    refused(plain + b"\0", FormatError, "followed by 1 byte")
    refused(compressed + b"\0", FormatError, "found 1 byte behind the compressed part")
    refused(compressed + compressed, FormatError)


def test_a_flipped_bit_in_the_header(plain: bytes) -> None:
    begin = len(plain) - len(header_of(plain)[1])
    whole = read_network(plain, "some/file")
    for at in range(begin):
        for bit in (0, 1, 5, 7):
            data = bytearray(plain)
            data[at] ^= 1 << bit
            try:
                read = read_network(bytes(data), "some/file")
            except FormatError as error:
                assert error.path == "some/file"  # noqa: PT017 - either is right
            else:
                assert np.array_equal(read.table, whole.table), (at, bit)
                assert read.layout.sizes == whole.layout.sizes


def test_a_flip_in_a_compressed_file_is_found(compressed: bytes) -> None:
    for at in [*range(40), *range(40, len(compressed), 1009), *range(len(compressed) - 30, len(compressed))]:
        data = bytearray(compressed)
        data[at] ^= 4
        with pytest.raises(FormatError) as caught:
            read_network(bytes(data), "some/file")
        if at >= 12:
            # Behind the stream's header: a flip in the magic makes it another kind of file.
            assert isinstance(caught.value, ChecksumError | TruncatedError | FormatError), at


def test_a_flip_in_an_array_is_found(plain: bytes) -> None:
    begin = len(plain) - len(header_of(plain)[1])
    for at in [begin, *range(begin + 1, len(plain) - 1, 30_011), len(plain) - 1]:
        data = bytearray(plain)
        data[at] ^= 16
        refused(bytes(data), ChecksumError, "the arrays have the CRC-32C")


def test_third_party_files(plain: bytes) -> None:
    header, body = header_of(plain)
    bare = {**header, "__metadata__": {**header["__metadata__"]}}
    del bare["__metadata__"]["crc32c"]
    assert same(read_network(with_header(bare, body), "a"), read_network(plain, "a"))
    (table, scales) = (name for name in header if name != "__metadata__")
    middle, end = header[scales]["data_offsets"]
    turned = {name: dict(tensor) for name, tensor in header.items()}
    turned[scales]["data_offsets"] = [0, end - middle]
    turned[table]["data_offsets"] = [end - middle, end]
    other = with_header(turned, body[middle:] + body[:middle])
    assert same(read_network(other, "a"), read_network(plain, "a"))


@pytest.mark.parametrize(
    ("data", "kind"),
    [
        (b"", TruncatedError),
        (b"\0" * 7, TruncatedError),
        (b"\0" * 64, FormatError),
        (b"\x93NUMPY\x01\0v\0{'descr': '<f4', 'fortran_order': False, 'shape': (1,), }", TruncatedError),
        (b"PK\x03\x04" + b"\0" * 100, FormatError),
        (b"\x7fELF" + b"\0" * 100, FormatError),
        (with_header({}, b""), ModelError),
        (with_header({"__metadata__": {"format": "pt"}}, b""), ModelError),
        (with_header([], b""), FormatError),
        (with_header(b"\xff\xfe", b""), FormatError),
        (with_header(b"[" * 100_000, b""), FormatError),
        (with_header(b'{"a":' * 100_000, b""), FormatError),
        (with_header({"__metadata__": {"format": 1}}, b""), FormatError),
        (with_header({"__metadata__": []}, b""), FormatError),
        (struct.pack("<Q", 2**64 - 1) + b"{}", TruncatedError),
    ],
)
def test_what_is_not_ours_is_refused(data: bytes, kind: type[TapeError]) -> None:
    refused(data, kind)


TABLE = {"dtype": "I16", "shape": [65536], "data_offsets": [0, 131072]}


@pytest.mark.parametrize(
    ("changes", "kind", "said"),
    [
        ({"dtype": "BF16"}, FormatError, "is of type BF16"),
        ({"dtype": "F32"}, FormatError, "claims bytes 0 to 131072"),
        ({"dtype": "U64"}, FormatError, "claims bytes"),
        ({"dtype": 1}, FormatError, "not safetensors JSON"),
        ({"shape": [65537]}, FormatError, "claims bytes 0 to 131072"),
        ({"shape": [2**47], "data_offsets": [0, 2**48]}, FormatError, "scales claims bytes"),
        ({"shape": [2**63, 2**63]}, FormatError, "has the shape"),
        ({"shape": [-65536]}, FormatError, "has the shape"),
        ({"shape": [1e400]}, FormatError, "not safetensors JSON"),
        ({"shape": [1] * 100 + [65536]}, FormatError, "has the shape"),
        ({"shape": [0, 2**47, 2**47, 2**47], "data_offsets": [0, 0]}, FormatError, "has the shape"),
        ({"shape": [0], "data_offsets": [0, 0]}, FormatError, "has the shape"),
        ({"shape": [256, 256]}, ModelError, "has the shape"),
        ({"data_offsets": [2, 131074]}, FormatError, "claims bytes 2"),
        ({"data_offsets": [131072, 0]}, FormatError, "claims bytes"),
        ({"data_offsets": [-131072, 0]}, FormatError, "claims bytes"),
        ({"data_offsets": [0]}, FormatError, "not safetensors JSON"),
        ({"more": 1}, FormatError, "not safetensors JSON"),
    ],
)
def test_a_header_that_cannot_be_is_refused(
    plain: bytes, changes: Header, kind: type[TapeError], said: str
) -> None:
    header, body = header_of(plain)
    assert header["0/0123"] == TABLE
    header["0/0123"] = {**TABLE, **changes}
    refused(with_header(header, body), kind, said)


def build(arrays: dict[str, np.ndarray[Any, Any]], **texts: str) -> bytes:
    texts = {"format": files.FORMAT, "stages": "", "facts": "{}", **texts}
    return b"".join(_safetensors.encode(arrays, texts))


def zeros(cells: int, dtype: type = np.float32) -> np.ndarray[Any, Any]:
    return np.zeros(16**cells, dtype=dtype)


def ones(*shape: int) -> np.ndarray[Any, Any]:
    return np.ones(shape, dtype=np.float32)


@pytest.mark.parametrize(
    ("arrays", "texts", "said"),
    [
        ({}, {}, "at least one"),
        ({"scales": ones(1, 1)}, {}, "at least one"),
        ({"0/01234": zeros(4), "scales": ones(1, 1)}, {}, "has the shape"),
        ({"0/0123": zeros(5), "scales": ones(1, 1)}, {}, "has the shape"),
        ({"0/0123": np.zeros(65536, np.uint64), "scales": ones(1, 1)}, {}, "all float32 or all int16"),
        ({"0/0123": zeros(4), "0/4567": zeros(4, np.int16), "scales": ones(1, 2)}, {}, "all float32 or all"),
        ({"0/0123": zeros(4), "0/4567": zeros(4), "scales": ones(1, 1)}, {}, "scales are missing"),
        ({"0/0123": zeros(4)}, {}, "scales are missing"),
        ({"0/0123": zeros(4), "scales": ones(1)}, {}, "scales are missing"),
        ({"0/0123": zeros(4), "scales": 0 * ones(1, 1)}, {}, "not all above 0"),
        ({"0/0123": zeros(4), "scales": np.nan * ones(1, 1)}, {}, "not all above 0"),
        ({"0/0123": zeros(4), "scales": np.inf * ones(1, 1)}, {}, "not all above 0"),
        ({"0/0123": zeros(4), "scales": -ones(1, 1)}, {}, "not all above 0"),
        ({"0/012": zeros(4), "scales": ones(1, 1)}, {}, "expected 4 to 6"),
        ({"0/0132": zeros(4), "scales": ones(1, 1)}, {}, "expected 4 to 6"),
        ({"0/012A": zeros(4), "scales": ones(1, 1)}, {}, r"found arrays \['0/012A'\]"),
        ({"0/0123": zeros(4), "1/0123": zeros(4), "scales": ones(1, 1)}, {}, "found arrays"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"stages": "64"}, "found arrays"),
        ({"0/0123": zeros(4), "1/4567": zeros(4), "scales": ones(2, 1)}, {"stages": "64"}, "found arrays"),
        ({"0/0123": zeros(4), "weights": ones(1), "scales": ones(1, 1)}, {}, "found arrays"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"stages": "65"}, "in ascending order"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"stages": "0"}, "in ascending order"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"stages": "many"}, "does not describe"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"stages": "9" * 5000}, "does not describe"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"facts": "["}, "does not describe"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"facts": "[]"}, "does not describe"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"facts": '{"a":' + "[" * 100_000}, "does not describe"),
        ({"0/0123": zeros(4), "scales": ones(1, 1)}, {"format": "tape2048 n-tuple network 3"}, "network 2"),
    ],
)
def test_what_is_no_network_is_refused(
    arrays: dict[str, np.ndarray[Any, Any]], texts: dict[str, str], said: str
) -> None:
    refused(build(arrays, **texts), ModelError, said)


def test_values_that_are_not_finite_are_refused() -> None:
    for value, at in ((np.nan, 0), (np.inf, 4711), (-np.inf, 65535)):
        table = zeros(4)
        table[at] = value
        said = "0/0123 has values that are not finite"
        refused(build({"0/0123": table, "scales": ones(1, 1)}), ModelError, said)


@pytest.mark.parametrize("sign", [1, -1])
def test_values_that_add_up_to_no_number_are_refused(sign: float) -> None:
    one, other = zeros(4), zeros(4)
    one[4711], other[0] = sign * 1e29, sign * 2e28
    read_network(build({"0/0123": one, "scales": ones(1, 1)}), "a")
    read_network(build({"0/0123": other, "0/4567": other, "scales": ones(1, 2)}), "a")
    said = r"values up to 1\.1e\+30, expected at most 1e\+30"
    refused(build({"0/0123": one, "0/4567": 2 * other, "scales": ones(1, 2)}), ModelError, said)
    steps = np.zeros(16**4, dtype=np.int16)
    read_network(build({"0/0123": steps, "scales": 1e30 * ones(1, 1)}), "a")
    steps[1] = sign
    refused(build({"0/0123": steps, "scales": 1e30 * ones(1, 1)}), ModelError, r"values up to 8\.0e\+30")


def test_the_least_step_is_readable(tmp_path: Path) -> None:
    network = Network.empty(NetworkLayout.of(["0123"])).quantised(1e-46)
    save_network(network, tmp_path / "network")
    assert same(load_network(str(tmp_path / "network")), network)


def bomb(head: bytes) -> bytes:
    """A small file of this header and 128 MB of zeros."""
    compressor = lzma.LZMACompressor(preset=0)
    parts = [compressor.compress(head), *(compressor.compress(bytes(1 << 24)) for _ in range(8))]
    return b"".join(parts) + compressor.flush()


@pytest.mark.parametrize(
    ("head", "kind", "said"),
    [
        (b"", FormatError, "not safetensors JSON"),
        (b"\xff" * 8, TruncatedError, "the header claims more bytes"),
        (build({"0/0123": zeros(4)}, format="other")[:-(4 << 16)], ModelError, "found the format 'other'"),
        (build({"0/0123": zeros(4), "0/more": ones(1)}), ModelError, "found arrays|expected 4 to 6"),
        (build({"0/0123": zeros(5), "scales": ones(1, 1)}), ModelError, "expands to 4,194,.* at most 2,097,"),
        (build({"0/0123": zeros(4), "scales": ones(1, 1)}), FormatError, "is followed by 1 byte"),
    ],
)  # fmt: skip
def test_a_bomb_is_not_expanded(head: bytes, kind: type[TapeError], said: str) -> None:
    """The header is checked first, and no more than its size is expanded."""
    data = bomb(head)
    assert len(data) < 40_000
    tracemalloc.start()
    refused(data, kind, said)
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert peak < 32 << 20


def test_the_size_that_a_file_expands_to_is_bounded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "EXPANDED_BYTES_MAX", 1 << 17)
    data = lzma.compress(build({"0/0123": zeros(4), "scales": ones(1, 1)}))
    refused(data, ModelError, "expands to 262,.* bytes, expected at most 131,072")


def test_a_message_quotes_a_few_hundred_characters() -> None:
    arrays = {f"0/{number}": np.ones(1, np.float32) for number in range(30_000)}
    with pytest.raises(ModelError) as caught:
        read_network(build({"0/0123": zeros(4), "x" * 1_000_000: ones(1), **arrays}), "a")
    assert len(caught.value.message) < 600


def test_decompression_memory_is_bounded(plain: bytes) -> None:
    small = lzma.compress(plain, preset=9)
    assert read_network(small, "a").layout.sizes == [65536]
    # The dictionary's size is a claim of the block's header: LZMA2's id, one byte of properties, the size.
    header_bytes = 4 * (small[12] + 1)
    header = bytearray(small[12 : 12 + header_bytes - 4])
    header[header.index(bytes([0x21, 1])) + 2] = 36  # 1 GB
    greedy = small[:12] + header + struct.pack("<I", zlib.crc32(header)) + small[12 + header_bytes :]
    refused(greedy, ChecksumError, "[Mm]emory")


def test_a_place_without_a_network_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("", "nowhere", "no/such/dir", ".", "a\0b", "x" * 5000):
        with pytest.raises(ConfigError, match="found no network at ") as caught:
            load_network(name)
        assert "strong, small, fast" in (caught.value.hint or "")
    (tmp_path / "empty").touch()
    with pytest.raises(TruncatedError, match="empty") as damaged:
        load_network(str(tmp_path / "empty"))
    assert damaged.value.path == str(tmp_path / "empty")


def test_a_shipped_name_works_in_any_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name in SHIPPED:
        (tmp_path / name).write_bytes(b"another file of this name")
        assert files.network_path(name).parent.name == "weights"


def test_a_write_that_fails_leaves_what_stood_there(tmp_path: Path) -> None:
    path = tmp_path / "network"
    save_network(NETWORKS["i16"], path)
    before = path.read_bytes()
    target = tmp_path / "directory"
    target.mkdir()
    with pytest.raises(StorageError, match="directory"):
        save_network(NETWORKS["i16"], target)
    assert path.read_bytes() == before
    assert sorted(item.name for item in tmp_path.iterdir()) == ["directory", "network"], "no draft stays"


def test_a_network_is_written_while_it_is_mapped(tmp_path: Path, plain: bytes) -> None:
    path = tmp_path / "network"
    path.write_bytes(plain)
    network = load_network(str(path))
    save_network(network, path, compress=False)
    assert same(load_network(str(path)), network)
