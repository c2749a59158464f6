"""The oracle's files: kept while they are made, read afterwards, and refused where they are damaged."""

import signal
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048.critic import Oracle, oracle
from tape2048.errors import ChecksumError, FormatError, StorageError, TruncatedError
from tape2048.files.safetensors import decode, encode

PLAYER = "ab" * 32
BOARDS = np.random.default_rng(1).integers(0, 2**63, 40).astype(np.uint64)


class Played:
    """Counts that follow from the board and its number, and the numbers that were asked for."""

    def __init__(self, stop_after: int | None = None) -> None:
        self.asked: list[int] = []
        self.stop_after = stop_after

    def __call__(
        self, boards: NDArray[np.uint64], *, first: int, progress: Callable[[int, int], object] | None
    ) -> NDArray[np.uint16]:
        numbers = np.arange(first, first + len(boards))
        self.asked += numbers.tolist()
        if self.stop_after is not None and len(self.asked) > self.stop_after:
            raise KeyboardInterrupt
        progress(0, len(boards))
        counts = (boards[:, None] + numbers[:, None].astype(np.uint64)) % np.arange(9, 25, dtype=np.uint64)
        return np.minimum(counts, 8).astype(np.uint16)


def ask(directory: Path, play: Any = None, boards: NDArray[np.uint64] = BOARDS, **how: Any) -> Any:
    how = {"player_sha256": PLAYER, "rollouts": 8, "seed": 3, "directory": directory, **how}
    told: list[tuple[int, int]] = []
    found = Oracle(play or Played(), **how).ask(boards, progress=lambda *now: told.append(now))
    games = how["rollouts"] * len(boards)
    assert told[0] == (how["rollouts"] * found.known, games)
    assert told == sorted(told)
    return found


def test_rollouts_are_played_once(tmp_path: Path) -> None:
    first = ask(tmp_path, play := Played())
    assert play.asked == list(range(40))
    assert (first.known, first.counts.dtype, first.counts.shape) == (0, np.uint16, (40, 16))
    again = ask(tmp_path, play := Played())
    assert play.asked == []
    assert again.known == 40
    assert (again.counts == first.counts).all()
    assert again.shares(2**5).tolist() == (first.counts[:, 5] / 8).tolist()
    assert not again.shares(2**16).any()  # no board has this tile
    assert len(list(tmp_path.iterdir())) == 1


def test_further_positions_are_added(tmp_path: Path) -> None:
    boards = np.random.default_rng(2).integers(0, 2**63, 200).astype(np.uint64)
    ask(tmp_path, boards=boards[:100])
    more = ask(tmp_path, play := Played(), boards=boards)
    assert play.asked == list(range(100, 200))
    fewer = ask(tmp_path, play := Played(), boards=boards[:80])
    assert (play.asked, fewer.known, more.known) == ([], 80, 100)
    assert (fewer.counts == more.counts[:80]).all()
    assert len(list(tmp_path.iterdir())) == 1


def test_samples_with_the_same_first_positions_are_kept_apart(tmp_path: Path) -> None:
    boards = np.random.default_rng(2).integers(0, 2**63, 100).astype(np.uint64)
    others = np.concatenate([boards[:64], boards[:63:-1]])
    first, second = (ask(tmp_path, boards=each) for each in (boards, others))
    for each, before in ((boards, first), (others, second)):
        again = ask(tmp_path, play := Played(), boards=each)
        assert (play.asked, again.known) == ([], 100)
        assert (again.counts == before.counts).all()


@pytest.mark.parametrize(
    "other", [{"seed": 4}, {"rollouts": 9}, {"player_sha256": "cd" * 32}, {"boards": BOARDS[::-1]}]
)
def test_other_rollouts_are_others(tmp_path: Path, other: dict[str, Any]) -> None:
    ask(tmp_path)
    ask(tmp_path, play := Played(), **other)
    assert play.asked == list(range(40))


def test_an_interrupted_oracle_goes_on(tmp_path: Path) -> None:
    whole = ask(tmp_path / "whole")
    with pytest.raises(KeyboardInterrupt):
        ask(tmp_path, Played(stop_after=20))
    found = ask(tmp_path, play := Played())
    assert 0 < found.known <= 20
    assert play.asked == list(range(found.known, 40))
    assert (found.counts == whole.counts).all()


_KILLED = """
import os, sys
from pathlib import Path
from tests.sdk.critic.test_oracle import Played, ask

class Killed(Played):
    def __call__(self, boards, *, first, progress):
        if first >= 3:  # positions 0 to 2 are saved
            os.kill(os.getpid(), 9)
        return super().__call__(boards, first=first, progress=progress)

ask(Path(sys.argv[1]), Killed())
"""


def test_a_killed_oracle_goes_on(tmp_path: Path) -> None:
    whole = ask(tmp_path / "whole")
    command = [sys.executable, "-c", _KILLED, str(tmp_path / "killed")]
    done = subprocess.run(command, cwd=Path(__file__).parents[3], timeout=120, check=False)
    assert done.returncode == -signal.SIGKILL
    found = ask(tmp_path / "killed", play := Played())
    assert 3 <= found.known < 40
    assert play.asked == list(range(found.known, 40))
    assert (found.counts == whole.counts).all()


def test_saving_takes_a_small_part_of_the_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Pieces grow until one takes a while: a fast player is not held up by the disk."""
    saved: list[object] = []
    replace = oracle.replace_file
    monkeypatch.setattr(oracle, "replace_file", lambda *args: (saved.append(args[0]), replace(*args)))
    boards = np.arange(1000, dtype=np.uint64)
    ask(tmp_path, boards=boards)
    assert len(saved) < 13


def test_a_damaged_file_is_named(tmp_path: Path) -> None:
    ask(tmp_path)
    (path,) = tmp_path.iterdir()
    good = path.read_bytes()
    arrays, texts = decode(good, str(path))
    short, others = (
        b"".join(encode({**arrays, **changed}, texts))
        for changed in ({"counts": arrays["counts"][:-1]}, {"boards": BOARDS[::-1]})
    )
    for bad, error in (
        (good[:-1], TruncatedError),
        (good[:-1] + bytes([good[-1] ^ 1]), ChecksumError),
        (good.replace(b'"positions":"40"', b'"positions":"41"'), FormatError),
        (good.replace(b'"positions":"40"', b'"positions":"-1"'), FormatError),
        (short, FormatError),
        (others, FormatError),
        (good.replace(b'"seed":"3"', b'"seed":"4"'), FormatError),
        (b"{}", TruncatedError),
    ):
        path.write_bytes(bad)
        with pytest.raises(error) as refused:
            ask(tmp_path)
        assert refused.value.path == str(path)
        assert "remove the file" in str(refused.value.hint)


def test_an_impossible_directory_fails_before_play(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    play = Played()
    with pytest.raises(StorageError, match="making the directory of rollouts failed"):
        ask(tmp_path / "file/oracle", play)
    assert play.asked == []


def test_files_are_beside_the_kernels(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("NUMBA_CACHE_DIR", "CACHE_DIRECTORY"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    Oracle(Played(), player_sha256=PLAYER, rollouts=8).ask(BOARDS, progress=lambda *_: None)
    assert len(list((tmp_path / "tape2048/oracle").iterdir())) == 1
    monkeypatch.setattr("tape2048.critic.oracle.cache_base", lambda: None)
    with pytest.raises(StorageError, match="no directory for rollouts") as refused:
        Oracle(Played(), player_sha256=PLAYER, rollouts=8).ask(BOARDS)
    assert "XDG_CACHE_HOME" in str(refused.value.hint)


@pytest.mark.parametrize("rollouts", [0, 1, 65_536])
def test_numbers_of_rollouts_are_bounded(tmp_path: Path, rollouts: int) -> None:
    with pytest.raises(ValueError, match=f"rollouts={rollouts}; expected 2 to 65,535"):
        ask(tmp_path, rollouts=rollouts)
    with pytest.raises(ValueError, match="no positions"):
        ask(tmp_path, boards=BOARDS[:0])
