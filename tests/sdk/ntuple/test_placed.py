"""Networks that processes share: a damaged or foreign table is never used, and a missing one costs time."""

import errno
import gc
import os
import shutil
import stat
import struct
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from tests.recorder.processes import PATIENCE_S

from tape2048.errors import ChecksumError
from tape2048.files.reading import crc32c
from tape2048.jit import compiler
from tape2048.ntuple import placed
from tape2048.ntuple.mapped import check_tables
from tape2048.ntuple.network import load_network, save_network
from tape2048.ntuple.placed import PlacedNetwork, load_placed
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.replay.judging import Judge

from ...recorder.ntuple_training import slow


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setattr(placed, "SHARED_BYTES_MIN", 1)
    monkeypatch.setenv("NUMBA_CACHE_DIR", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture
def name(tmp_path: Path) -> str:
    network = slow.random_network("0123", "0124", "4567", stages=(2048,), dtype=np.int16)
    network.facts["training"] = {"downgrade": 2048}
    save_network(network, tmp_path / "network")
    return str(tmp_path / "network")


def same(found: PlacedNetwork, name: str) -> bool:
    expected = PlacedNetwork.of(load_network(name))
    return (
        found.layout == expected.layout
        and np.array_equal(found.table, expected.table)
        and np.array_equal(found.scales, expected.scales)
        and found.facts == expected.facts
        and found.downgrade == 2048
    )


def table_of(cache: Path) -> Path:
    (path,) = cache.glob("tape2048/networks/*/table")
    return path


def rewrite(path: Path, data: bytes) -> None:
    path.chmod(0o600)
    path.write_bytes(data)


def test_a_table_is_expanded_once(cache: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    found = load_placed(name)
    assert found.kept == table_of(cache).parent
    monkeypatch.setattr(placed, "StoredNetwork", None)
    again = load_placed(name)
    assert same(again, name)
    assert not again.table.flags.writeable


@pytest.mark.parametrize("at", [0, 4711, -100, -8, -4, -1])
def test_an_edited_table_is_replaced(cache: Path, name: str, at: int) -> None:
    load_placed(name)
    path = table_of(cache)
    whole = path.read_bytes()
    damaged = bytearray(whole)
    damaged[at] ^= 4
    rewrite(path, damaged)
    assert same(load_placed(name), name)
    assert path.read_bytes() == whole


def _cut(path: Path, whole: bytes) -> None:
    """Leave an end that is right of less than it describes."""
    (length,) = struct.unpack("<I", whole[-8:-4])
    end = whole[:4096] + whole[-8 - length : -4]
    rewrite(path, end + struct.pack("<I", crc32c(end)))


def _grow(path: Path, whole: bytes) -> None:
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(1 << 40)
        file.write(whole[-4096:])


@pytest.mark.parametrize("damage", [_cut, _grow])
def test_a_table_of_another_length_is_replaced_at_once(
    cache: Path, name: str, damage: Callable[[Path, bytes], None]
) -> None:
    load_placed(name)
    path = table_of(cache)
    whole, begin = path.read_bytes(), time.monotonic()
    damage(path, whole)
    assert same(load_placed(name), name)
    assert path.read_bytes() == whole
    assert time.monotonic() - begin < 10


def test_a_table_that_changes_while_it_is_used(cache: Path, name: str) -> None:
    loaded = load_placed(name)
    path = table_of(cache)
    assert stat.S_IMODE(path.stat().st_mode) == 0o400
    path.chmod(0o600)
    check_tables()  # a change of the mode is none of the content
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(b"!")
    with pytest.raises(ChecksumError, match="has changed since it was loaded") as caught:
        check_tables()
    assert caught.value.path == str(path)
    os.truncate(path, 4096)  # from here on, reading its end is SIGBUS
    with pytest.raises(ChecksumError):
        check_tables()
    del loaded, caught
    gc.collect()  # the errors' frames
    check_tables()


@pytest.mark.parametrize("ahead", [1, 2])
def test_a_judge_of_a_changed_table_shows_nothing(cache: Path, name: str, ahead: int) -> None:
    judge = Judge.of_player("ntuple", {"weights": name, "ahead": ahead})
    board = 0x1234_2345_3450_0000
    assert len(judge.board(board)) > 1
    path = table_of(cache)
    path.chmod(0o600)
    with path.open("r+b") as file:
        file.seek(100_000)
        file.write(b"!")
    with pytest.raises(ChecksumError, match="has changed since it was loaded"):
        judge.board(board)
    with pytest.raises(ChecksumError, match="has changed since it was loaded"):
        judge.moves(np.full(3, board, np.uint64), np.zeros(3, np.uint8), np.zeros(3, np.uint64))
    del judge
    gc.collect()


def test_a_write_behind_the_checksum_is_noticed_later(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first check reads what the write has not reached yet; the file's time does not change again."""
    loaded = load_placed(name)
    path = table_of(cache)
    path.chmod(0o600)
    (unchanged,) = struct.unpack("<I", path.read_bytes()[-4:])
    with path.open("r+b") as file:
        file.write(b"!" * 1000)
    with monkeypatch.context() as before:
        before.setattr("tape2048.ntuple.mapped.crc32c", lambda _data: unchanged)
        check_tables()
    with pytest.raises(ChecksumError, match="has changed since it was loaded"):
        check_tables()
    del loaded
    gc.collect()


def test_a_table_that_is_removed_stays_as_it_is(cache: Path, name: str) -> None:
    loaded = load_placed(name)
    shutil.rmtree(cache)
    check_tables()
    assert same(loaded, name)


@pytest.mark.parametrize("size", [0, 3, 8, 4096, -1])
def test_a_truncated_table_is_replaced(cache: Path, name: str, size: int) -> None:
    load_placed(name)
    path = table_of(cache)
    rewrite(path, path.read_bytes()[:size])
    assert same(load_placed(name), name)
    assert same(load_placed(name), name)


def test_the_table_of_another_network_is_replaced(cache: Path, name: str, tmp_path: Path) -> None:
    other = str(tmp_path / "other")
    save_network(slow.random_network("0123", "0124", "4567", stages=(2048,), dtype=np.int16, seed=9), other)
    load_placed(other)
    theirs = table_of(cache)
    ours = load_placed(name).kept
    assert ours is not None
    rewrite(ours / "table", theirs.read_bytes())
    assert same(load_placed(name), name)


def test_the_table_of_another_version_is_replaced(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A version that orders entries differently does not read the tables of this one."""
    with monkeypatch.context() as patch:
        positions = placed.positions_of
        patch.setattr(placed, "positions_of", lambda layout: positions(layout)[::-1])
        load_placed(name)
    assert same(load_placed(name), name)


def _no_directory(cache: Path, patch: pytest.MonkeyPatch) -> None:
    cache.write_text("a file")


def _others_directory(cache: Path, patch: pytest.MonkeyPatch) -> None:
    user = os.geteuid()
    patch.setattr(os, "geteuid", lambda: user + 1)


def _open_directory(cache: Path, patch: pytest.MonkeyPatch) -> None:
    cache.mkdir()
    cache.chmod(0o777)


def _full_disk(cache: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(placed, "_FREE_BYTES_MIN", 1 << 62)


def _full_after_all(cache: Path, patch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    patch.setattr(placed, "write_all", refuse)


def _no_home(cache: Path, patch: pytest.MonkeyPatch) -> None:
    patch.setattr(compiler, "cache_base", lambda: None)


@pytest.mark.parametrize(
    "spoil", [_no_directory, _others_directory, _open_directory, _full_disk, _full_after_all, _no_home]
)
def test_without_a_cache_a_network_is_private(
    cache: Path, name: str, monkeypatch: pytest.MonkeyPatch, spoil: Callable[[Path, pytest.MonkeyPatch], None]
) -> None:
    spoil(cache, monkeypatch)
    found = load_placed(name)
    assert found.kept is None
    assert same(found, name)
    assert not list(cache.glob("tape2048/networks/*/*table*"))
    assert not list(cache.glob("tape2048/networks/*/.*"))


def test_a_read_only_cache_is_used(cache: Path, name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    load_placed(name)

    def refuse(*_: object, **__: object) -> None:
        raise OSError(errno.EROFS, "Read-only file system")

    monkeypatch.setattr(os, "utime", refuse)
    monkeypatch.setattr(placed, "new_file", refuse)
    assert load_placed(name).kept is not None


LOAD = """
import sys
from tape2048.ntuple import placed
placed.SHARED_BYTES_MIN = 1
keep = placed._keep
def noted(*args):
    print("expanded")
    keep(*args)
placed._keep = noted
assert placed.load_placed(sys.argv[1]).kept
"""


def test_one_of_several_processes_expands_a_network(cache: Path, name: str) -> None:
    command = [sys.executable, "-c", LOAD, name]
    children = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    said = "".join(child.communicate(timeout=PATIENCE_S)[0] for child in children)
    assert [child.returncode for child in children] == [0, 0, 0]
    assert said.split() == ["expanded"]
    assert table_of(cache).exists()
    assert same(load_placed(name), name)


def test_the_last_used_networks_are_kept(cache: Path, tmp_path: Path) -> None:
    kept = []
    for seed in range(placed.NETWORKS_KEPT_MAX + 3):
        save_network(slow.random_network("0123", dtype=np.int16, seed=seed), tmp_path / "network")
        kept.append(load_placed(str(tmp_path / "network")).kept)
    assert None not in kept
    last = set(kept[-placed.NETWORKS_KEPT_MAX :])
    assert last <= set(cache.glob("tape2048/networks/*"))
    assert len(list(cache.glob("tape2048/networks/*"))) < len(kept)


def test_a_players_hash_is_the_same_from_a_kept_table(cache: Path, name: str) -> None:
    args = {"weights": name, "look": 2}

    def sha256() -> str:
        return player_sha256("ntuple", make_player("ntuple", args))

    first = sha256()
    assert sha256() == first
    args["look"] = 3
    assert sha256() != first
    shutil.rmtree(cache)
    cache.write_text("no directory")
    args["look"] = 2
    assert sha256() == first
