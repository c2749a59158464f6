"""Replay of recorded games: unchanged sessions pass, changed ones are found."""

import json
import shutil
import sqlite3
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c

from tape2048 import Session, sessions, validate_session
from tape2048.errors import FieldError, ReplayError
from tape2048.game.rules import exps_to_boards, legal_masks
from tape2048.session.layout import STEPS_HEADER_BYTES
from tape2048_recorder.game.game_loop import Buffer, play_all
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.players.options import make_player, player_sha256
from tape2048_recorder.replay.replay import replay_session, replayer

pytestmark = pytest.mark.slow


def record(directory: Path, flags: str) -> Path:
    command = [sys.executable, "-m", "tape2048_tools.cli", "record", "--workers", "1", "--player"]
    command += [*flags.split(), "--max-games", "60", "--seed", "11"]
    subprocess.run(command, cwd=directory, check=True, capture_output=True, timeout=120)
    (session,) = sessions(directory / "selfplay")
    return session


@pytest.fixture(scope="module", params=["random", "greedy --record-action", "expectimax --sample-rate 7"])
def recorded(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("recorded"), request.param)


@pytest.fixture
def copied(recorded: Path, tmp_path: Path) -> Path:
    return Path(shutil.copytree(recorded, tmp_path / recorded.name))


def change_db(session: Path, statement: str, *values: object) -> None:
    with closing(sqlite3.connect(session / "metadata.db")) as database, database:
        database.execute(statement, values)
    (session / "manifest.json").unlink()  # a forger would write it anew


def test_a_recorded_session_plays_again_bit_for_bit(recorded: Path) -> None:
    seen: list[tuple[int, int]] = []
    played = replay_session(recorded, progress=lambda done, total: seen.append((done, total)))
    assert played.runs == 60
    assert played.findings == ()
    rows = len(Session.open(recorded))
    assert seen[-1] == (rows, rows)


def test_one_changed_cell_is_found_and_placed(copied: Path) -> None:
    session = Session.open(copied)
    run = session.runs[17]
    row = int(run["first_row"]) + int(run["rows"]) // 2
    with (copied / "steps.npy").open("r+b") as file:
        at = STEPS_HEADER_BYTES + row * session.steps.dtype.itemsize + 12
        file.seek(at)
        before = file.read(1)[0]
        file.seek(at)
        file.write(bytes([before ^ 1]))
    del session
    (finding,) = replay_session(copied).findings
    assert finding.error == "ReplayError"
    assert f"run {run['run_id']} (seed {run['seed']})" in finding.message
    assert f"row {row} is the first to differ" in finding.message


@pytest.mark.parametrize(
    ("column", "change"), [("max_score", "* 2"), ("highest_tile", "* 2"), ("steps", "* 2"), ("seed", "+ 1")]
)
def test_a_changed_summary_is_found(copied: Path, column: str, change: str) -> None:
    change_db(copied, f"UPDATE runs SET {column} = {column} {change} WHERE id = 5")
    if column == "max_score":  # the last row tells, if it was kept; and the manifest is missing
        kept = Session.open(copied).meta["sample_rate"] == 1
        found = [finding.error for finding in validate_session(copied).findings]
        assert found == ["BookkeepingError"] * kept + ["ManifestError"]
    (finding,) = replay_session(copied).findings
    assert column == "seed" or f"{column.removeprefix('max_')} " in finding.message
    assert "run 5 " in finding.message


def test_another_player_is_refused(copied: Path) -> None:
    change_db(copied, "UPDATE session SET meta_value = '\"00\"' WHERE meta_key = 'player_sha256'")
    with pytest.raises(ReplayError, match="found games by"):
        replay_session(copied)


def test_rows_of_another_type_than_the_facts_claim(copied: Path) -> None:
    record_action = "action" not in Session.open(copied).steps.dtype.names
    change_db(
        copied,
        "UPDATE session SET meta_value = ? WHERE meta_key = 'record_action'",
        json.dumps(record_action),
    )
    with pytest.raises(FieldError, match=rf"\(record_action = {record_action}\)"):
        replay_session(copied)


@pytest.fixture(scope="module")
def on_tape(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return record(tmp_path_factory.mktemp("on-tape"), "random --storage tape")


def test_a_tape_plays_again_byte_for_byte(on_tape: Path) -> None:
    assert validate_session(on_tape).findings == ()
    played = replay_session(on_tape)
    assert (played.runs, played.findings) == (60, ())


def rewrite_entry(session: Path, name: str) -> None:
    """What a forger does: the manifest again fits a changed file."""
    manifest = json.loads((session / "manifest.json").read_text())
    content = (session / name).read_bytes()
    manifest["files"][name] = {"bytes": len(content), "crc32c": crc32c(content)}
    (session / "manifest.json").write_text(json.dumps(manifest))


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("max_score = max_score + 4", "score"),
        ("seed = seed + 1", ""),
        ("start_board = (SELECT start_board FROM runs WHERE id = 9)", "start_board 0x"),
    ],
)
def test_a_changed_run_of_a_tape_is_found(on_tape: Path, tmp_path: Path, change: str, said: str) -> None:
    session = Path(shutil.copytree(on_tape, tmp_path / on_tape.name))
    with closing(sqlite3.connect(session / "metadata.db")) as database, database:
        database.execute(f"UPDATE runs SET {change} WHERE id = 8")
    rewrite_entry(session, "metadata.db")
    (finding,) = replay_session(session).findings
    assert "run 8 " in finding.message
    assert said in finding.message


def test_one_changed_byte_of_a_tape_is_found(on_tape: Path, tmp_path: Path) -> None:
    session = Path(shutil.copytree(on_tape, tmp_path / on_tape.name))
    run = Session.open(session).runs[17]
    row = int(run["first_row"]) + int(run["rows"]) // 2
    content = bytearray((session / "tape.npy").read_bytes())
    content[128 + row] ^= 0x40  # a 4 in place of a 2, or the reverse
    (session / "tape.npy").write_bytes(content)
    rewrite_entry(session, "tape.npy")
    (finding,) = replay_session(session).findings
    assert f"run {run['run_id']} (seed {run['seed']})" in finding.message
    assert f"row {row} is the first to differ" in finding.message


PATH = Path("selfplay/20260101T000000Z_model=a")


def facts_of(player: str, **args: int) -> dict[str, object]:
    return {
        "player": player,
        "player_args": args,
        "player_sha256": player_sha256(player, make_player(player, args)),
        "sample_rate": 1,
        "record_action": False,
    }


def test_games_replay_on_any_thread() -> None:
    ids = np.arange(4, dtype=np.uint64)
    buffer = Buffer(rows_max=1 << 18, runs_max=4, record_action=True, sample_rate=1)
    buffer.give(ids, game_seeds(7, ids))
    play_all(buffer, make_player("expectimax", {}))
    rows = buffer.rows
    play = replayer(PATH, facts_of("expectimax"))
    with ThreadPoolExecutor(3) as pool:
        games = list(pool.map(lambda run: play(int(run["seed"]), int(run["steps"])), buffer.runs))
    for run, (states, moves) in zip(buffer.runs, games, strict=True):
        there = rows[int(run["first_row"]) :][: int(run["rows"])]
        np.testing.assert_array_equal(states[:-1], exps_to_boards(there["exps"]))
        np.testing.assert_array_equal(moves, there["action"])
        assert legal_masks(states[-1:])[0] == 0


def test_a_wrong_number_of_steps_shows() -> None:
    play = replayer(PATH, facts_of("greedy"))
    steps = len(play(3, 1 << 60)[1])
    assert 20 < steps < 2000
    assert [len(play(3, claim)[1]) for claim in (0, steps - 1, steps, steps + 1)] == [1, steps, steps, steps]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ({"player": "python:package.module:make"}, "replay runs no other code"),
        ({"player": "unknown"}, "its player is not available"),
        ({"player_args": {"depth": 9}}, "its player is not available"),
        ({"player_sha256": "0" * 64}, "found games by greedy with SHA-256 000000000000, expected "),
        *(
            ({key: value}, "facts do not identify its player")
            for key, value in [("player", None), *(("sample_rate", rate) for rate in ("often", 0, -1, 2**64))]
        ),
    ],
)
def test_a_player_that_cannot_be_had(change: dict[str, object], said: str) -> None:
    with pytest.raises(ReplayError, match=said) as caught:
        replayer(PATH, {**facts_of("greedy"), **change})
    assert caught.value.path == str(PATH)
