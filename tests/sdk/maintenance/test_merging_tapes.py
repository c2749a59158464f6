"""Sessions on tape merged: the same games as those of their rows merged, and the same refusals."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.errors import ChecksumError, MaintenanceError
from tape2048.maintenance import merging, validate_session
from tape2048.maintenance.merging import merge_sessions
from tape2048.session.metadata import read_metadata
from tape2048.session.session import Session

from ..builders import change_database, write_manifest
from ..tapes import TapeGames, games_on_tape, write_rows, write_tape

SEEDS = ((3, 1), (15,), (4, 9, 2))
FACTS: dict[str, Any] = {
    "format_version": 1, "player": "toy", "player_args": {}, "player_sha256": "ab" * 32,
    "model_tag": "toy", "recovered": False,
}  # fmt: skip


@pytest.fixture(autouse=True, params=[1, 1 << 18], ids=["game by game", "one piece"])
def piece_rows(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(merging, "_PIECE_ROWS", request.param)


def with_ids(games: TapeGames, first: int) -> TapeGames:
    runs = games.runs.copy()
    runs["run_id"] = np.arange(first, first + len(runs))
    return games._replace(runs=runs)


def three(root: Path, *, distinct: bool, rows: bool = False, **more: Any) -> list[Path]:
    """Three sessions, with ids that go on or that each count from 0."""
    made, first = [], 0
    for number, seeds in enumerate(SEEDS):
        path = root / f"20250102T03{number:02d}00Z_model=toy"
        facts = {**FACTS, "started_at": f"2025-01-02T03:{number:02d}:00Z", **more}
        games = with_ids(games_on_tape(*seeds), first if distinct else 0)
        made.append((write_rows if rows else write_tape)(path, games, **facts))
        first += len(seeds)
    return made


@pytest.mark.parametrize("distinct", [True, False])
def test_they_hold_the_games_of_their_rows(tmp_path: Path, distinct: bool) -> None:
    seen: list[tuple[int, int]] = []
    tapes = three(tmp_path / "t", distinct=distinct)
    merged = merge_sessions(tapes, tmp_path / "a", progress=lambda *now: seen.append(now))
    due = merge_sessions(three(tmp_path / "r", distinct=distinct, rows=True), tmp_path / "b")
    assert (merged.rows, merged.runs, merged.renumbered) == (due.rows, due.runs, not distinct)
    assert seen[-1] == (merged.rows, merged.rows)
    one, other = Session.open(merged.path), Session.open(due.path)
    assert (one.steps == other.steps).all()
    assert (one.runs == other.runs).all()
    games = games_on_tape(*(seed for seeds in SEEDS for seed in seeds))
    assert (one.tape.data == games.tape).all()
    assert (one.tape.anchors == games.boards[::16]).all()
    assert (one.tape.starts == games.starts).all()
    assert validate_session(merged.path).ok
    assert [part["name"] for part in one.meta["merged_from"]] == [path.name for path in tapes]


def test_tape_and_rows_are_not_merged(tmp_path: Path) -> None:
    tapes = three(tmp_path / "t", distinct=True)
    rows = three(tmp_path / "r", distinct=True, rows=True)
    with pytest.raises(MaintenanceError, match=r"found a session of rows, expected one on tape") as caught:
        merge_sessions([tapes[0], rows[1]], tmp_path / "out")
    assert "tape2048 repack" in str(caught.value.hint)
    with pytest.raises(MaintenanceError, match=r"found a session on tape, expected one of rows"):
        merge_sessions([rows[0], tapes[1]], tmp_path / "out")
    assert not (tmp_path / "out").exists()


def test_a_changed_byte_is_found_by_its_block(tmp_path: Path) -> None:
    tapes = three(tmp_path / "t", distinct=True)
    data = bytearray((tapes[1] / "tape.npy").read_bytes())
    data[-1] ^= 64  # the last spawn, which may end the game as well
    (tapes[1] / "tape.npy").write_bytes(data)
    with pytest.raises(ChecksumError, match="block"):
        merge_sessions(tapes, tmp_path / "out")
    assert not any((tmp_path / "out").iterdir())


def test_a_game_that_stands_twice(tmp_path: Path) -> None:
    tapes = three(tmp_path / "t", distinct=True)
    change_database(tapes[2] / "metadata.db", "UPDATE runs SET seed = 15 WHERE seed = 9")
    write_manifest(tapes[2], rows=len(games_on_tape(*SEEDS[2]).tape), runs=3)
    with pytest.raises(MaintenanceError, match="the game of seed 15"):
        merge_sessions(tapes, tmp_path / "out")


def test_the_originals_stay(tmp_path: Path) -> None:
    tapes = three(tmp_path / "t", distinct=False)
    before = {file: file.read_bytes() for path in tapes for file in path.iterdir()}
    merge_sessions(tapes, tmp_path / "t")
    assert {file: file.read_bytes() for path in tapes for file in path.iterdir()} == before
    assert read_metadata(tapes[0] / "metadata.db").runs["run_id"].tolist() == [0, 1]
