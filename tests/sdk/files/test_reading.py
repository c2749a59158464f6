import gc
import os
import re
import resource
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from hypothesis import given, strategies as st

from tape2048.errors import ModelError, StorageError, TruncatedError
from tape2048.files.reading import (
    crc32c_combine,
    load_path,
    map_file,
    map_path,
    open_regular,
    populate,
    read_document,
    read_exactly,
    read_path,
)

from ..builders import open_files


@pytest.fixture
def file(tmp_path: Path) -> Path:
    path = tmp_path / "data.bin"
    path.write_bytes(bytes(range(256)) * 64)
    return path


def is_mapped(path: Path) -> bool:
    return str(path) in Path("/proc/self/maps").read_text()


def test_a_mapping_needs_no_descriptor(file: Path) -> None:
    before = open_files()
    with open_regular(file) as fd:
        rows = map_file(fd, 16384)
    assert open_files() == before
    assert rows.tobytes() == file.read_bytes()


def test_a_document_has_a_limit_and_no_byte_order_mark(tmp_path: Path) -> None:
    path = tmp_path / "a.json"
    path.write_bytes(b"\xef\xbb\xbf{}")
    assert read_document(path) == b"{}"
    os.truncate(path, 1 << 40)
    with pytest.raises(ModelError, match="has 1099511627776 bytes; expected at most 16777216"):
        read_document(path, error=ModelError)


def test_mapping_goes_with_the_last_array(file: Path) -> None:
    with open_regular(file) as fd:
        rows = map_file(fd, 16384)
    tail = rows[100:].view(np.uint32)
    del rows
    gc.collect()
    assert is_mapped(file)
    assert tail[0] == int.from_bytes(bytes(range(100, 104)), "little")
    del tail
    gc.collect()
    assert not is_mapped(file)


def resident_bytes(path: Path) -> int:
    """Bytes of the mapping of a file that stand in this process's page table."""
    _, _, after = Path("/proc/self/smaps").read_text().partition(f"{path}\n")
    found = re.search(r"^Rss: +(\d+) kB", after, re.MULTILINE)
    assert found is not None, f"{path} is not mapped"
    return 1024 * int(found[1])


@pytest.mark.skipif(
    tuple(map(int, re.findall(r"\d+", os.uname().release)[:2])) < (5, 14), reason="an older kernel"
)
def test_populated_pages_stand_in_the_page_table(file: Path) -> None:
    rows = map_path(file)
    assert resident_bytes(file) == 0
    populate(rows[200:].view("<u2"))  # a page begins before this array does
    assert resident_bytes(file) == 16384
    populate(np.empty(0, np.uint8))
    assert rows.tobytes() == file.read_bytes()


def test_mapping_cannot_be_made_writeable(file: Path) -> None:
    with open_regular(file) as fd:
        rows = map_file(fd, 16384)
    with pytest.raises(ValueError, match="WRITEABLE"):
        rows.flags.writeable = True


def test_what_cannot_be_mapped(tmp_path: Path) -> None:
    fd = os.open(tmp_path, os.O_RDONLY)
    try:
        with pytest.raises(OSError, match="No such device"):
            map_file(fd, 100)
    finally:
        os.close(fd)


def test_file_that_shrinks_while_it_is_read(file: Path) -> None:
    into = np.zeros(16384, np.uint8)
    with open_regular(file) as fd:
        os.truncate(file, 1000)
        with pytest.raises(TruncatedError, match="15,384 bytes early") as caught:
            read_exactly(fd, into, 0, file)
    assert caught.value.offset == 1000


def test_long_reads_come_in_pieces(file: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tape2048.files.reading.READ_BYTES_MAX", 1000)
    into = np.zeros((2, 3000), np.uint8)
    with open_regular(file) as fd:
        read_exactly(fd, into, 10, file)
    assert into.tobytes() == file.read_bytes()[10:6010]
    assert read_path(file).tobytes() == file.read_bytes()


def test_only_regular_files(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "fifo")
    for path in (tmp_path / "fifo", tmp_path):
        with pytest.raises(StorageError, match="not a regular file"), open_regular(path):
            pass
        for whole in (load_path, map_path, read_path):
            with pytest.raises(StorageError, match="not a regular file"):
                whole(path)


def test_whole_files(file: Path, tmp_path: Path) -> None:
    (tmp_path / "empty").touch()
    for whole in (load_path, map_path, read_path):
        before = open_files()
        found = whole(file)
        assert open_files() == before
        assert found.tobytes() == file.read_bytes()
        assert not found.flags.writeable
        assert whole(tmp_path / "empty").shape == (0,)
        with pytest.raises(StorageError, match="No such file"):
            whole(tmp_path / "missing")


def test_a_small_file_is_read_and_a_large_one_mapped(file: Path, tmp_path: Path) -> None:
    (tmp_path / "large").write_bytes(b"x" * (1 << 20))
    small, large = load_path(file), load_path(tmp_path / "large")
    assert not is_mapped(file)
    assert is_mapped(tmp_path / "large")
    assert (small[255], large[-1]) == (255, ord("x"))


def test_too_many_open_files_are_told_with_what_to_do(file: Path) -> None:
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        for whole in (load_path, map_path, read_path, lambda path: open_regular(path).__enter__()):
            with pytest.raises(StorageError, match="Too many open files") as caught:
                whole(file)
            assert "ulimit -n" in str(caught.value.hint)
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_many_sums_make_the_sum_of_all(pieces: list[bytes]) -> None:
    total = 0
    for piece in pieces:
        total = crc32c_combine(total, crc32c(piece), len(piece))
    assert total == crc32c(b"".join(pieces))


def test_long_pieces() -> None:
    data = bytes(range(251)) * 34_000
    for length in (2**power + more for power in range(24) for more in (-1, 0, 1)):
        second = data[:length]
        assert crc32c_combine(crc32c(b"first"), crc32c(second), length) == crc32c(b"first" + second)
