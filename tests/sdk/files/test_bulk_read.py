"""Reading files into memory at once, and how much memory there is."""

import os
import signal
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.base.resources import ram_available
from tape2048.errors import StorageError, TruncatedError
from tape2048.files import bulk_read
from tape2048.files.bulk_read import HUGE_PAGE_BYTES, FileRange, allocate, read_into, read_rows
from tape2048.loader import boards as packed_boards
from tape2048.loader.boards import read_boards

from ..builders import open_files, raising

GIB = 2**30


@pytest.fixture
def small_steps(monkeypatch: pytest.MonkeyPatch) -> None:
    """As many threads as are asked for, and many reads of small files."""
    monkeypatch.setattr(bulk_read, "_LANE_BYTES_MIN", 1)
    monkeypatch.setattr(bulk_read, "STEP_BYTES", 1000)
    monkeypatch.setattr(bulk_read, "READ_BYTES", 300)


def make(path: Path, count: int, seed: int = 0) -> Path:
    path.write_bytes(np.random.default_rng(seed).bytes(count))
    return path


@pytest.mark.usefixtures("small_steps")
def test_stretches_stand_one_after_the_other(tmp_path: Path) -> None:
    a, b, c = (make(tmp_path / name, 10_000, i) for i, name in enumerate("abc"))
    parts: list[Any] = [(a, 192, 5000), (b, 0, 10_000), (c, 10_000, 0), (str(a), 9999, 1), (c, 1, 28)]
    expected = b"".join(Path(path).read_bytes()[offset : offset + count] for path, offset, count in parts)
    before = open_files()
    for threads in (1, 2, 7, 100):
        rows = read_rows(parts, threads=threads)
        assert rows.tobytes() == expected
        assert rows.flags.c_contiguous
        assert not rows.flags.writeable
    assert open_files() == before


@given(
    ranges=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 5000), st.integers(0, 5000)), max_size=8),
    threads=st.integers(1, 9),
)
def test_any_stretches(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int, int]], threads: int
) -> None:
    directory = tmp_path_factory.getbasetemp() / "ranges"
    directory.mkdir(exist_ok=True)
    files = [directory / f"{i}" for i in range(3)]
    if not files[0].exists():
        for i, path in enumerate(files):
            make(path, 10_000, i)
    expected = b"".join(files[i].read_bytes()[first : first + count] for i, first, count in ranges)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_read, "_LANE_BYTES_MIN", 1)
        rows = read_rows([(files[i], first, count) for i, first, count in ranges], threads=threads)
    assert rows.tobytes() == expected


@settings(max_examples=50)
@given(
    ranges=st.lists(st.tuples(st.integers(0, 2), st.integers(0, 40), st.integers(0, 60)), max_size=8),
    threads=st.integers(1, 7),
    row_bytes=st.sampled_from([28, 29]),
)
def test_packed_boards_are_those_of_any_stretches(
    tmp_path_factory: pytest.TempPathFactory, ranges: list[tuple[int, int, int]], threads: int,
    row_bytes: int,
) -> None:  # fmt: skip
    """No row is parted between two threads, or between two reads."""
    directory = tmp_path_factory.getbasetemp() / "rows"
    directory.mkdir(exist_ok=True)
    rng = np.random.default_rng(5)
    files = [directory / f"{row_bytes}-{i}" for i in range(3)]
    rows = [rng.integers(0, 16, (100, row_bytes), dtype=np.uint8) for _ in files]
    for path, content in zip(files, rows, strict=True):
        path.write_bytes(b"head" + content.tobytes())
    parts = [FileRange(files[i], 4 + first * row_bytes, count * row_bytes) for i, first, count in ranges]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_read, "_LANE_BYTES_MIN", 1)
        patch.setattr(bulk_read, "STEP_BYTES", 1000)
        patch.setattr(packed_boards, "READ_BYTES", 100)
        boards = read_boards(parts, row_bytes, threads=threads)
    wanted = [rows[i][first : first + count, 12:28] for i, first, count in ranges]
    expected = [int("".join(f"{cell:x}" for cell in cells), 16) for part in wanted for cells in part.tolist()]
    assert boards.tolist() == expected


@pytest.mark.usefixtures("small_steps")
def test_each_thread_reads_one_piece_front_to_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = [make(tmp_path / f"{i}", 9000, i) for i in range(2)]
    descriptors: list[list[tuple[str, int]]] = []
    current: dict[int, list[tuple[str, int]]] = {}
    real = bulk_read.read_exactly

    def opened(*_: int) -> None:
        current[threading.get_ident()] = []
        descriptors.append(current[threading.get_ident()])

    def noted(fd: int, into: Any, offset: int, path: Any) -> None:
        current[threading.get_ident()].append((Path(path).name, offset))
        real(fd, into, offset, path)

    monkeypatch.setattr(bulk_read, "read_exactly", noted)
    monkeypatch.setattr(os, "posix_fadvise", opened)
    read_rows([(path, 0, 9000) for path in paths], threads=4)
    assert sorted(descriptors) == [
        [(path.name, first + at) for at in steps_of(4500)] for path in paths for first in (0, 4500)
    ]


def steps_of(count: int) -> list[int]:
    return [step + at for step in range(0, count, 1000) for at in range(0, min(1000, count - step), 300)]


def test_an_open_file_is_read_after_its_replacement(tmp_path: Path) -> None:
    path = make(tmp_path / "rows", 20_000_000)
    expected = path.read_bytes()
    into = np.zeros(20_000_000, np.uint8)
    with path.open("rb") as held:
        make(tmp_path / "other", 5, 1).replace(path)
        read_into(into, [FileRange(path, 0, 10_000_000, held.fileno()), FileRange(path, 1, 4)])
        assert into[:10_000_000].tobytes() == expected[:10_000_000]
        with pytest.raises(TruncatedError) as caught:
            read_into(into, [FileRange(path, 10_000_001, 10_000_000, held.fileno())])
    assert caught.value.path == str(path)


@pytest.mark.usefixtures("small_steps")
def test_progress_counts_every_byte(tmp_path: Path) -> None:
    parts = [(make(tmp_path / f"{i}", 3500, i), 100, 3400) for i in range(4)]
    seen: list[tuple[int, bool]] = []
    read_rows(parts, progress=lambda count: seen.append((count, threading.current_thread() is caller)))
    assert sorted(count for count, _ in seen) == [400] * 4 + [1000] * 12
    assert all(ours for _, ours in seen)


caller = threading.main_thread()


def test_nothing_to_read() -> None:
    assert read_rows([]).shape == (0,)


def test_huge_pages_are_advised() -> None:
    memory = allocate(5 * HUGE_PAGE_BYTES + 3)
    assert memory.shape == (5 * HUGE_PAGE_BYTES + 3,)
    assert memory.ctypes.data % HUGE_PAGE_BYTES == 0
    memory[:] = 1
    address = memory.ctypes.data
    fields: dict[str, str] = {}
    inside = False
    for line in Path("/proc/self/smaps").read_text().splitlines():
        first = line.split()[0]
        if not first.endswith(":"):
            begin, end = (int(x, 16) for x in first.split("-"))
            inside = begin <= address < end
        elif inside:
            fields[first] = line.partition(":")[2]
    if not Path("/sys/kernel/mm/transparent_hugepage").exists():
        pytest.skip("a kernel without transparent huge pages")
    assert "hg" in fields["VmFlags:"].split()


def test_memory_goes_with_the_last_array() -> None:
    def mapped() -> int:
        return int(Path("/proc/self/statm").read_text().split()[0]) * os.sysconf("SC_PAGE_SIZE")

    memory = allocate(GIB)  # not a page of it is touched
    tail = memory[100:].view(np.uint32)[:5]
    before = mapped()
    del memory
    assert mapped() >= before
    del tail
    assert mapped() <= before - GIB


def test_no_memory_for_it() -> None:
    for count in (2**62, 2**70):
        with pytest.raises(StorageError, match="no memory") as caught:
            allocate(count)
        assert "mmap" in str(caught.value.hint)


@pytest.mark.usefixtures("small_steps")
def test_files_that_are_not_what_they_were(tmp_path: Path) -> None:
    good, cut = make(tmp_path / "good", 5000), make(tmp_path / "cut", 5000)
    os.truncate(cut, 4999)
    with pytest.raises(TruncatedError, match="found 4999 bytes, expected at least 5000") as caught:
        read_rows([(good, 0, 5000), (cut, 192, 4808)])
    assert caught.value.path == str(cut)
    assert caught.value.offset == 4999
    with pytest.raises(StorageError, match="cannot be read: No such file"):
        read_rows([(good, 0, 5000), (tmp_path / "gone", 0, 1)])
    with pytest.raises(StorageError, match="not a regular file"):
        read_rows([(tmp_path, 0, 1)])
    with pytest.raises(ValueError, match="threads=0"):
        read_rows([(good, 0, 5000)], threads=0)


@pytest.mark.usefixtures("small_steps")
@pytest.mark.parametrize("how", ["truncate", "unlink"])
def test_a_file_that_is_lost_while_it_is_read(tmp_path: Path, how: str) -> None:
    parts = [(make(tmp_path / f"{i}", 5000, i), 0, 5000) for i in range(20)]
    lost = parts[-1][0]

    def lose(_: int) -> None:
        if how == "truncate":
            os.truncate(lost, 10)
        else:
            lost.unlink(missing_ok=True)

    before = open_files()
    turn = threading.Event()
    real = bulk_read.Reader._read_piece

    def held(reader: bulk_read.Reader, part: bulk_read.FileRange, begin: int) -> None:
        if Path(part.path) == lost:
            turn.wait(30)
        real(reader, part, begin)

    def first_progress(count: int) -> None:
        lose(count)
        turn.set()

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(bulk_read.Reader, "_read_piece", held)
        with pytest.raises(StorageError if how == "unlink" else TruncatedError) as caught:
            read_rows(parts, progress=first_progress)
    assert caught.value.path == str(lost)
    assert open_files() == before


@pytest.mark.usefixtures("small_steps")
def test_an_error_in_progress_ends_the_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = make(tmp_path / "a", 1_000_000)
    threads = threading.active_count()
    steps: list[int] = []
    given_up: list[bool] = []
    init = bulk_read.Reader.__init__

    def watched(reader: bulk_read.Reader, parts: Any, read_step: Any, **how: Any) -> None:
        def step(fd: int, part: FileRange, begin: int) -> None:
            steps.append(begin)
            if len(steps) > 8 and all(given_up):
                given_up.append(reader._stop.wait(30))
            read_step(fd, part, begin)

        init(reader, parts, step, **how)

    monkeypatch.setattr(bulk_read.Reader, "__init__", watched)
    with pytest.raises(KeyboardInterrupt):
        read_rows([(path, 0, 1_000_000)], progress=raising(KeyboardInterrupt()))
    assert threading.active_count() == threads
    assert all(given_up)
    assert len(steps) <= 8 + bulk_read.THREADS  # of 1,000


def test_a_cut_file_does_not_end_the_process(tmp_path: Path) -> None:
    # In a process of its own: SIGBUS would end this one.
    path = make(tmp_path / "rows", 64 * 4096)
    code = (
        "import os, sys\n"
        "from tape2048.files.bulk_read import read_rows\n"
        "rows = read_rows([(sys.argv[1], 0, 64 * 4096)])\n"
        "os.truncate(sys.argv[1], 0)\n"
        "print(int(rows.sum()))\n"
    )
    expected = int(np.frombuffer(path.read_bytes(), np.uint8).sum())
    done = subprocess.run([sys.executable, "-c", code, path], capture_output=True, text=True, check=False)
    assert done.returncode != -signal.SIGBUS
    assert done.stdout.split() == [str(expected)]


def fake_root(root: Path, available_kib: int, own: str, groups: dict[str, dict[str, str]]) -> Path:
    files = {"proc/meminfo": f"MemTotal: 1 kB\nMemAvailable: {available_kib} kB\n", "proc/self/cgroup": own}
    for group, content in groups.items():
        files |= {f"sys/fs/cgroup/{group}/{name}": text for name, text in content.items()}
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def group_2(limit: str, used: int, cache: int, high: str = "max") -> dict[str, str]:
    stat = f"anon 5\ninactive_file {cache}\nactive_file 7\n"
    return {"memory.max": limit, "memory.high": high, "memory.current": f"{used}\n", "memory.stat": stat}


def group_1(limit: int, used: int, cache: int) -> dict[str, str]:
    stat = f"cache 1\ninactive_file 0\ntotal_inactive_file {cache}\n"
    return {"memory.limit_in_bytes": f"{limit}\n", "memory.usage_in_bytes": f"{used}\n", "memory.stat": stat}


UNLIMITED_1 = 2**63 - 4096


@pytest.mark.parametrize(
    ("own", "groups", "expected"),
    [
        ("", {}, 8 * GIB),
        ("0::/\n", {"": group_2("max", GIB, 0)}, 8 * GIB),
        ("0::/a/b\n", {"a/b": group_2(f"{4 * GIB}\n", 3 * GIB, GIB)}, 2 * GIB),
        ("0::/a/b\n", {"a/b": group_2("max", GIB, 0), "a": group_2(f"{3 * GIB}", GIB, 0)}, 2 * GIB),
        ("0::/a\n", {"a": group_2(f"{4 * GIB}", GIB, 0, high=f"{2 * GIB}")}, GIB),
        ("0::/a\n", {"a": group_2(f"{64 * GIB}", 0, 0)}, 8 * GIB),
        ("0::/a\n", {"a": group_2(f"{GIB}", 2 * GIB, 0)}, 0),
        ("4:memory:/x\n1:cpu:/y\n", {"memory/x": group_1(4 * GIB, 2 * GIB, GIB)}, 3 * GIB),
        ("4:memory:/x\n", {"memory": group_1(UNLIMITED_1, GIB, 0)}, 8 * GIB),
        ("4:cpu:/x\n", {"memory/x": group_1(GIB, 0, 0)}, 8 * GIB),
        ("4:memory:/x\n0::/\n", {"memory": group_1(5 * GIB, GIB, 0), "x": {}}, 4 * GIB),
    ],
)
def test_what_the_machine_and_its_groups_leave(
    tmp_path: Path, own: str, groups: dict[str, dict[str, str]], expected: int
) -> None:
    assert ram_available(fake_root(tmp_path, 8 * GIB // 1024, own, groups)) == expected


def test_this_machine() -> None:
    found = ram_available()
    assert 0 < found < os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
