"""``tape2048 visualize``."""

import contextlib
import json
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from tests.sdk import run_builders as build

from tape2048 import errors
from tape2048.runs.a2run2 import RunV2
from tape2048.runs.jsonl import run_line

from ..conftest import Cli

GAME = build.game(11, steps_max=12, elapsed_s=0.5, engine="toy \x1b[31m")


@pytest.fixture
def run(tmp_path: Path) -> Path:
    (tmp_path / "a.a2run2").write_bytes(build.a2run2_bytes(GAME))
    return tmp_path / "a.a2run2"


def cells(text: str) -> list[int]:
    """The four lines of a board, dots as empty cells."""
    rows = [line.split() for line in text.splitlines()]
    boards = [row for row in rows if len(row) == 4 and all(word.isdigit() or word == "." for word in row)]
    return [0 if word == "." else int(word).bit_length() - 1 for row in boards for word in row]


def test_facts_and_the_final_board(cli: Cli, run: Path) -> None:
    done = cli("visualize", run)
    lines = [line.split() for line in done.out.splitlines()]
    assert ["steps", "12"] in lines
    assert ["moves_per_s", "24.0"] in lines
    assert ["started", "2025-08-23T05:42:34+00:00"] in lines
    assert cells(done.out) == build.ref.unpack(GAME.states[-1])
    assert "\x1b" not in done.out, "an escape sequence of a file does not reach the terminal"
    found = cli("visualize", run, "--json").json
    assert found["moves_per_s"] == 24
    assert found["final_board"] == GAME.states[-1]
    assert found["path"] == str(run)


def test_any_step_with_its_move_and_spawn(cli: Cli, tmp_path: Path) -> None:
    for kind in ("a2t1", "a2run2"):
        path = tmp_path / kind
        path.write_bytes({"a2t1": build.a2t1_bytes, "a2run2": build.a2run2_bytes}[kind](GAME))
        _check_steps(cli, path, has_branches=kind == "a2run2")


def _check_steps(cli: Cli, path: Path, *, has_branches: bool) -> None:
    for step, move in enumerate(GAME.moves):
        found = cli("visualize", path, "--step", str(step), "--json").json
        assert found["exps"] == build.ref.unpack(GAME.states[step])
        assert found["move"] == ("UP", "DOWN", "LEFT", "RIGHT")[move]
        # The spawn that the file does not store: on the slid board it makes the next one.
        after, _ = build.ref.slide(found["exps"], move)
        assert after[found["spawn"]["cell"]] == 0
        after[found["spawn"]["cell"]] = found["spawn"]["tile"].bit_length() - 1
        assert build.ref.pack(after) == GAME.states[step + 1]
        branches = GAME.branches[step] if has_branches else None
        assert (found["branches"] is None) == (branches is None)
        if branches is not None:
            assert [branch["value"] for branch in found["branches"]] == list(branches)


def test_a_step_as_text(cli: Cli, run: Path) -> None:
    step = next(i for i, branches in enumerate(GAME.branches) if branches is not None)
    out = cli("visualize", run, "--step", str(step)).out
    assert cells(out) == build.ref.unpack(GAME.states[step])
    assert ", then a " in out
    assert "branch values: UP " in out
    last = cli("visualize", run, "--step", "-1").out
    assert cells(last) == build.ref.unpack(GAME.states[-1])
    assert "the final board" in last


def test_a_move_that_does_not_fit_is_said(cli: Cli, tmp_path: Path) -> None:
    game = build.PlainRun([1, 2, 3], [0, 0], [None, None])
    (tmp_path / "run").write_bytes(build.a2run2_bytes(game))
    assert "does not lead to the next board" in cli("visualize", tmp_path / "run", "--step", "0").out
    assert cli("visualize", tmp_path / "run", "--step", "0", "--json").json["spawn"] is None


def test_steps_that_there_are_not(cli: Cli, run: Path) -> None:
    for step in ("13", "-2", "x"):
        cli("visualize", run, "--step", step, expect=2)


def test_a_run_of_a_pack(cli: Cli, tmp_path: Path) -> None:
    other = build.game(12, steps_max=3)
    path = tmp_path / "x.a2pack"
    path.write_bytes(build.a2pack_bytes(build.PackSpec([build.a2t1_bytes(other), build.a2run2_bytes(GAME)])))
    found = cli("visualize", path, "--run-id", "1", "--json").json
    assert (found["steps"], found["run_id"]) == (12, 1)
    assert (
        "found 2, but the source has 2 runs with ids from 0 to 1"
        in cli("visualize", path, "--run-id", "2", expect=2).err
    )
    (tmp_path / "none.a2pack").write_bytes(build.a2pack_bytes(build.PackSpec([])))
    for flags in ([], ["--run-id", "0"]):
        assert "found no run" in cli("visualize", tmp_path / "none.a2pack", *flags, expect=2).err
    (tmp_path / "run").write_bytes(build.a2t1_bytes(other))
    cli("visualize", tmp_path / "run", "--run-id", "1", expect=2)


def test_the_best_and_the_longest_of_several(cli: Cli, tmp_path: Path) -> None:
    """By score, in each kind of file; runs without an id have their position as one."""
    games = [build.game(seed, steps_max=steps) for seed, steps in ((11, 12), (12, 40), (13, 7), (14, 30))]
    payloads = [build.a2t1_bytes(game) for game in games]
    (tmp_path / "x.a2pack").write_bytes(build.a2pack_bytes(build.PackSpec(payloads)))
    (tmp_path / "runs").mkdir()
    for number, payload in enumerate(payloads):
        (tmp_path / f"runs/{number}.a2run").write_bytes(payload)
    cli("convert", tmp_path / "runs", "--out", tmp_path / "x.jsonl")
    cli("convert", tmp_path / "runs", "--out", tmp_path / "ds", "--to", "dataset")
    cli("convert", tmp_path / "runs", "--out", tmp_path / "s", "--to", "session", "--lossy")
    for name in ("x.a2pack", "runs", "x.jsonl", "ds", "s"):
        shift = cli("visualize", tmp_path / name, "--longest", "--json").json["run_id"] - 1
        for flags, wanted in (([], 1), (["--run-id", str(shift + 3)], 3)):
            found = cli("visualize", tmp_path / name, *flags, "--json").json
            assert (found["run_id"] - shift, found["score"]) == (wanted, games[wanted].max_score), name
    cli("visualize", tmp_path / "s", "--longest", "--run-id", "1", expect=2)


@pytest.mark.parametrize("action", [True, False])
def test_a_game_of_a_session(cli: Cli, tmp_path: Path, action: bool) -> None:
    dtype = [("run_id", "<u8"), ("step_idx", "<u4"), ("exps", "u1", (16,))]
    rows = np.zeros(12, [*dtype, ("action", "u1")] if action else dtype)
    rows["run_id"] = 68
    rows["step_idx"] = np.arange(12)
    rows["exps"] = [build.ref.unpack(board) for board in GAME.states[:12]]
    if action:
        rows["action"] = GAME.moves
    session = tmp_path / "20260101T000000Z_model=a"
    session.mkdir()
    np.save(session / "steps.npy", rows)
    with contextlib.closing(sqlite3.connect(session / "metadata.db")) as database:
        database.executescript("""
            CREATE TABLE runs(id INTEGER PRIMARY KEY, seed BIGINT, steps INT, max_score INT,
                              highest_tile INT);
            CREATE TABLE session(meta_key TEXT PRIMARY KEY, meta_value TEXT);
            INSERT INTO runs VALUES (68, 5, 12, 40, 16);
        """)
    found = cli("visualize", session, "--run-id", "68", "--json").json
    assert (found["run_id"], found["steps"], found["score"]) == (68, 12, 40)
    assert found == cli("visualize", session, "--json").json, "the best one"
    # What a session does not know: the final board, the time.
    assert found["last_board"] == GAME.states[11]
    assert "final_board" not in found
    assert found["started"] is found["elapsed_s"] is found["moves_per_s"] is None
    text = cli("visualize", session).out
    assert "last recorded board" in text
    assert not any(word in text for word in ("start", "elapsed", "moves_per_s", "branches"))
    assert sum(found["moves"].values()) + found["moves_unknown"] == 12
    assert found["moves_unknown"] == 0 or not action
    for step in range(11):
        shown = cli("visualize", session, "--run-id", "68", "--step", str(step), "--json").json
        assert shown["exps"] == build.ref.unpack(GAME.states[step])
        if shown["move"] is None:
            assert not action
            out = cli("visualize", session, "--run-id", "68", "--step", str(step)).out
            assert "do not tell" in out
        else:
            assert shown["move"] == ("UP", "DOWN", "LEFT", "RIGHT")[GAME.moves[step]]
    assert "the last recorded board" in cli("visualize", session, "--step", "-1").out
    assert "1 run with ids from 68 to 68" in cli("visualize", session, "--run-id", "0", expect=2).err


def test_a_run_among_lines(cli: Cli, tmp_path: Path) -> None:
    lines = [bytes(run_line(RunV2.from_bytes(build.a2run2_bytes(GAME)), i)) for i in range(2)]
    (tmp_path / "x.jsonl").write_bytes(b"".join(lines))
    assert cli("visualize", tmp_path / "x.jsonl", "--run-id", "1", "--json").json["steps"] == 12
    cli("visualize", tmp_path / "x.jsonl", "--run-id", "2", expect=2)


def test_a_run_that_started_in_no_calendar(cli: Cli, tmp_path: Path) -> None:
    game = build.game(1, steps_max=1, start_unix_s=2**64 - 1, elapsed_s=0.0)
    (tmp_path / "run").write_bytes(build.a2t1_bytes(game))
    found = cli("visualize", tmp_path / "run", "--json").json
    assert (found["started"], found["moves_per_s"]) == (None, None)
    cli("visualize", tmp_path / "run")


def test_what_is_no_run(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "run").write_bytes(b"nonsense")
    cli("visualize", tmp_path / "run", expect=errors.FormatError)
    cli("visualize", tmp_path / "none", expect=errors.MissingPathError)
    (tmp_path / "empty").mkdir()
    done = cli("visualize", tmp_path / "empty", expect=errors.NotASessionError)
    assert "--run-id" not in done.err


def test_every_fourth_board(cli: Cli, session: Path) -> None:
    """A board has the number of its move, whatever was kept."""
    rows = np.load(session / "steps.npy")
    kept = rows[rows["step_idx"] % 4 == 0]
    with contextlib.closing(sqlite3.connect(session / "metadata.db")) as database:
        database.executescript("DROP TABLE blocks; ALTER TABLE runs DROP COLUMN first_row;")
        database.executescript("ALTER TABLE runs DROP COLUMN rows;")
    (session / "manifest.json").unlink()
    np.save(session / "steps.npy", kept)
    found = cli("visualize", session, "--longest", "--step", "8", "--json").json
    assert (found["run_id"], found["step"]) == (2, 8)
    assert found["exps"] == kept[(kept["run_id"] == 2) & (kept["step_idx"] == 8)]["exps"][0].tolist()
    assert (
        "board from 0 to 56 in steps of 4"
        in cli("visualize", session, "--run-id", "2", "--step", "9", expect=2).err
    )


def test_a_run_has_one_number_everywhere(cli: Cli, tmp_path: Path) -> None:
    games = [build.game(seed, steps_max=steps) for seed, steps in ((1, 5), (2, 19), (3, 7))]
    (tmp_path / "runs").mkdir()
    for number, game in enumerate(games):
        (tmp_path / f"runs/{number}.a2run").write_bytes(build.a2t1_bytes(game))
    session = tmp_path / "20260101T000000Z_model=a"
    cli("convert", tmp_path / "runs", "--out", session, "--to", "session", "--lossy")
    rows = np.load(session / "steps.npy")
    rows["run_id"] += 68
    np.save(session / "steps.npy", rows)
    (session / "manifest.json").unlink()
    with contextlib.closing(sqlite3.connect(session / "metadata.db")) as database:
        database.executescript(
            "UPDATE runs SET id = id + 1000; UPDATE runs SET id = id - 932; DROP TABLE blocks"
        )
    best = cli("show", session, "--json").json["best"]["run_id"]
    assert best >= 68
    assert cli("visualize", session, "--json").json["run_id"] == best
    assert cli("visualize", session, "--run-id", str(best), "--json").json["score"] == games[1].max_score
    exported = cli("export", session, "--runs", "--format", "jsonl", "--out", "-").out.splitlines()
    scores = {run["run_id"]: run["max_score"] for run in map(json.loads, exported)}
    assert scores[best] == games[1].max_score
    cli("convert", session, "--out", tmp_path / "x.jsonl", "--lossy")
    lines = map(json.loads, (tmp_path / "x.jsonl").read_text().splitlines())
    assert {run["run_idx"]: run["max_score"] for run in lines} == scores
    cli("convert", session, "--out", tmp_path / "out", "--to", "a2run", "--lossy")
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == [
        f"{id_:06d}.a2run" for id_ in scores
    ]


def test_an_id_that_two_sessions_have(cli: Cli, root: Path, session: Path) -> None:
    assert "found 2 in 2 sessions" in cli("visualize", root, "--run-id", "2", expect=2).err
    found = cli("visualize", root, "--json").json
    assert (found["path"], found["run_id"], found["score"]) == (str(session), 3, 370_000)
    assert cli("show", root, "--json").json["best"]["run_id"] == 3
    assert cli("visualize", root, "--run-id", "4", "--json").json["path"] == str(session)
