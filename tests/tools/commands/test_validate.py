"""``tape2048 validate``."""

import contextlib
import shutil
import sqlite3
import sys
import types
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from tape2048 import errors
from tape2048.base.findings import Finding, Report

from ..conftest import Cli, Outcome


def flip(path: Path, at: int) -> None:
    data = bytearray(path.read_bytes())
    data[at] ^= 1
    path.write_bytes(data)


def test_whole_sessions_are_ok(cli: Cli, root: Path) -> None:
    done = cli("validate", root)
    assert done.out.splitlines() == [
        "ok  20260101T000000Z_model=expectimax: 200 rows, 4 runs, 3 checksums",
        "ok  20260101T000100Z_model=expectimax: 100 rows, 2 runs, 3 checksums",
        "2 sessions, none with findings",
    ]
    assert cli("validate", root, "--quiet").out == ""


def test_a_flipped_bit_is_found_and_placed(cli: Cli, root: Path, session: Path) -> None:
    flip(session / "steps.npy", 192 + 28 * 10 + 20)
    done = cli("validate", root, expect=1)
    assert "BAD 20260101T000000Z_model=expectimax" in done.out
    assert f"ChecksumError: {session}/steps.npy" in done.out
    assert "2 sessions, 1 with findings" in done.out
    quiet = cli("validate", root, "--quiet", expect=1)
    assert "ChecksumError" in quiet.out
    assert "ok " not in quiet.out
    document = cli("validate", root, "--json", expect=1)
    assert document.json["ok"] is False
    first, second = document.json["sessions"]
    assert (first["ok"], second["ok"]) == (False, True)
    assert {found["error"] for found in first["findings"]} == {"ChecksumError"}


def test_rows_of_games_that_never_ended_are_a_note(cli: Cli, foreign: Path) -> None:
    with contextlib.closing(sqlite3.connect(foreign / "metadata.db")) as database, database:
        database.execute("DELETE FROM runs WHERE id = 2")
    done = cli("validate", foreign)
    note = "60 rows of games that are not in the table runs: left out"
    assert done.out.splitlines()[1] == f"    note: {note}"
    (found,) = cli("validate", foreign, "--json").json["sessions"]
    assert (found["ok"], found["notes"]) == (True, [note])
    assert "rows 40 (without 60 that belong to no run)" in " ".join(cli("show", foreign).out.split())
    assert cli("show", foreign, "--json").json["rows_without_run"] == 60


def test_wrong_columns_are_not_quarantined(cli: Cli, session: Path, tmp_path: Path) -> None:
    """Neither those of the session nor those of the overlay, which a job checks, too."""
    place = tmp_path / "columns" / session.name
    place.mkdir(parents=True)
    for options, directory in ((), session), (("--columns", tmp_path / "columns"), place):
        (directory / "embeddings.json").write_text('{"dtype": "bf16", "rows": 1}')
        done = cli("validate", session, "--quarantine", *options, expect=1)
        assert f"ColumnError: {directory}/embeddings.bf16.npy: half-written" in done.out
        assert session.is_dir()
        (directory / "embeddings.json").rename(place / "embeddings.json")
    job = cli("validate", session, "--out", tmp_path / "job", "--columns", tmp_path / "columns", expect=1)
    assert f"{place}/embeddings.bf16.npy: half-written" in job.out
    flip(session / "steps.npy", 192 + 28 * 10 + 20)
    cli("validate", session, "--quarantine", expect=1)
    assert not session.exists()


def test_unknown_files_alone_do_not_quarantine(cli: Cli, session: Path) -> None:
    for name in (".DS_Store", "._steps.npy", "Thumbs.db", ".nfs0001", "notes.txt"):
        (session / name).touch()
    for name in (".ipynb_checkpoints", "@eaDir"):
        (session / name).mkdir()
    done = cli("validate", session, "--quarantine")
    assert "note: not of this session: .DS_Store, ._steps.npy, .ipynb_checkpoints" in done.out
    flip(session / "steps.npy", 192 + 28 * 10 + 20)
    assert "moved to" in cli("validate", session, "--quarantine", expect=1).out


def test_offset_and_hint_of_a_finding_are_shown(cli: Cli, session: Path) -> None:
    (session / "metadata.db").write_bytes(b"nope")
    out = cli("validate", session, expect=1).out
    assert "(at byte 0)" in out
    assert "\n  hint: " in out


def test_sessions_and_roots_may_be_mixed(cli: Cli, root: Path, session: Path, foreign: Path) -> None:
    found = cli("validate", session, root, foreign, "--json").json["sessions"]
    assert [result["name"] for result in found] == [
        session.name,
        *sorted(p.name for p in root.glob("2*")),
        "foreign",
    ]
    assert found[-1]["checksums"] == 0
    assert "no checksums to compare" in cli("validate", foreign).out


def test_session_by_a_relative_path(cli: Cli, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(session)
    cli("validate .")
    monkeypatch.chdir(session.parent)
    cli("validate", session.name)


def test_damaged_session_is_no_root(cli: Cli, session: Path) -> None:
    for name in ("steps.npy", "metadata.db", "manifest.json"):
        (session / name).unlink()
    done = cli("validate", session, expect=1)
    assert "NotASessionError" in done.out


def test_a_directory_without_sessions_is_not_ok(cli: Cli, tmp_path: Path) -> None:
    done = cli("validate", tmp_path, expect=errors.NotASessionError)
    assert "hint: " in done.err


def test_a_path_without_a_directory_is_no_finding(cli: Cli, session: Path) -> None:
    missing = cli("validate", session, session.parent / "missing", "--json", expect=errors.MissingPathError)
    assert missing.out == ""
    assert "missing: no such file or directory" in missing.err
    file = cli("validate", session / "steps.npy", expect=errors.NotASessionError)
    assert file.out == ""
    assert "steps.npy: found a file, expected a directory" in file.err
    cli("validate", "x" * 300, expect=errors.StorageError)


@pytest.fixture
def replay(monkeypatch: pytest.MonkeyPatch) -> dict[str, Any]:
    """A recorder's replay that gives what a test puts there."""
    answers: dict[str, Any] = {"calls": []}

    def replay_session(path: Path, *, progress: object = None) -> Report:
        answers["calls"].append(Path(path))
        if "raises" in answers:
            raise answers["raises"]
        return Report(str(path), 0, 4, 0, answers.get("findings", ()))

    module = types.ModuleType("tape2048_recorder.replay.replay")
    module.replay_session = replay_session  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tape2048_recorder.replay.replay", module)
    return answers


def test_replay_says_how_much_was_played_again(cli: Cli, session: Path, replay: dict[str, Any]) -> None:
    done = cli("validate", session, "--replay")
    assert "4 runs replayed" in done.out
    assert cli("validate", session, "--json").json["sessions"][0]["replayed"] is None
    assert cli("validate", session, "--replay", "--json").json["sessions"][0]["replayed"] == 4


def test_a_game_that_goes_otherwise_is_a_finding(cli: Cli, session: Path, replay: dict[str, Any]) -> None:
    replay["findings"] = (
        Finding("BookkeepingError", "run 3 goes otherwise at step 7", str(session), 28, "which player?"),
    )
    done = cli("validate", session, "--replay", expect=1)
    assert "run 3 goes otherwise at step 7 (at byte 28)" in done.out
    assert "hint: which player?" in done.out


def test_a_player_that_is_not_known_here_is_a_note(cli: Cli, session: Path, replay: dict[str, Any]) -> None:
    replay["raises"] = errors.ReplayError("it was played by an alien", hint="install it")
    done = cli("validate", session, "--replay", "--quarantine")
    assert done.err == ""
    assert done.out.startswith("ok  ")
    assert "3 checksums, not replayed: it was played by an alien" in done.out
    assert cli("validate", session, "--replay", "--quiet").out == ""
    document = cli("validate", session, "--replay", "--json")
    (found,) = document.json["sessions"]
    assert (found["ok"], found["findings"]) == (True, [])
    assert (found["replayed"], found["not_replayed"]) == (None, "it was played by an alien. install it")


def test_sessions_of_others_are_not_replayed(cli: Cli, session: Path, foreign: Path) -> None:
    done = cli("validate", session, foreign, "--replay")
    assert "not replayed: found games by expectimax with SHA-256 abababababab, expected " in done.out
    assert "not replayed: the session's facts do not identify its player" in done.out


def test_a_replay_that_fails_is_a_finding(cli: Cli, session: Path, replay: dict[str, Any]) -> None:
    replay["raises"] = errors.FieldError("record_action is True, the rows are of 28 bytes")
    done = cli("validate", session, "--replay", expect=1)
    assert "FieldError: record_action is True" in done.out


def test_what_is_damaged_is_not_played_again(cli: Cli, session: Path, replay: dict[str, Any]) -> None:
    flip(session / "steps.npy", 500)
    cli("validate", session, "--replay", expect=1)
    assert replay["calls"] == []


DAY_S = 86_400
#: The start of the first session: 2026-01-01T00:00:00Z.
BEGAN_S = 1_767_225_600


@pytest.fixture
def many(tmp_path: Path, session: Path) -> Path:
    """A directory of one session for each of 40 days."""
    home = tmp_path / "many"
    for day in range(40):
        name = f"{'202601' if day < 31 else '202602'}{day % 31 + 1:02}T000000Z_model=expectimax"
        shutil.copytree(session, home / name)
    return home


def checked(done: Outcome) -> set[str]:
    return {found["name"] for found in done.json["sessions"]}


def test_only_old_sessions_are_checked(cli: Cli, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("time.time", lambda: BEGAN_S + 30 * DAY_S + 1.0)
    names = sorted(path.name for path in many.iterdir())
    assert checked(cli("validate", many, "--older", 10, "--json")) == set(names[:21])
    assert checked(cli("validate", many, "--json")) == set(names)
    assert "21 of 40 sessions, none with findings" in cli("validate", many, "--older", 10).out


def test_every_share_has_its_day(cli: Cli, many: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    names = {path.name for path in many.iterdir()}
    for first_day in (100, 101):
        found = []
        for day in range(first_day, first_day + 7):
            monkeypatch.setattr("time.time", lambda day=day: BEGAN_S + day * DAY_S + 3600.0)
            found.append(checked(cli("validate", many, "--older", 7, "--share", 7, "--json")))
        assert set().union(*found) == names
        assert sum(map(len, found)) == len(names), "none twice"
        assert max(map(len, found)) < 20


def test_a_damaged_old_session_is_a_finding_on_its_day(
    cli: Cli, many: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    damaged = sorted(many.iterdir())[3]
    flip(damaged / "steps.npy", 192 + 28 * 10 + 20)
    for day in (100, 101):
        monkeypatch.setattr("time.time", lambda day=day: BEGAN_S + float(day) * DAY_S)
        is_its_day = not (zlib.crc32(damaged.name.encode()) + BEGAN_S // DAY_S + day) % 2
        cli("validate", many, "--share", 2, "--quiet", expect=int(is_its_day))


def test_age_without_a_valid_time(cli: Cli, tmp_path: Path, session: Path) -> None:
    path = tmp_path / "20261341T000000Z_model=x"
    session.rename(path)
    assert checked(cli("validate", path, "--older", 1, "--json")) == set()
    assert checked(cli("validate", path, "--older", 0, "--json")) == {path.name}


def test_the_sessions_of_a_configuration(
    cli: Cli, tmp_path: Path, root: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    config = tmp_path / "main.toml"
    config.write_text(f'out_dir = "{root}"\n')
    assert len(checked(cli("validate --config", config, "--json"))) == 2
    config.write_text(f'out_dir = "{tmp_path}/begun"\n')
    cli("validate --config", config, "--older", 7, expect=errors.MissingPathError)
    (tmp_path / "begun" / ".recorder").mkdir(parents=True)
    assert "0 of 0 sessions" in cli("validate --config", config, "--older", 7).out
    cli("validate --config", config, expect=errors.NotASessionError)


def removing(monkeypatch: pytest.MonkeyPatch, remove: Callable[[Path], object]) -> None:
    """Have each session removed in the middle of its check."""
    from tape2048.maintenance.validation import validate_session

    def look(path: Path, **options: Any) -> Report:
        remove(path)
        return validate_session(path, **options)

    monkeypatch.setattr("tape2048_tools.sessions.checks.validate_session", look)


@pytest.mark.parametrize("flag", ["--quarantine", "--replay"])
def test_removed_session_is_no_finding(
    cli: Cli, root: Path, session: Path, monkeypatch: pytest.MonkeyPatch, flag: str
) -> None:
    with monkeypatch.context() as patch:
        removing(patch, lambda path: shutil.rmtree(path) if path.name == session.name else None)
        done = cli("validate", root, flag)
    assert done.out.splitlines()[0] == f"--  {session.name}: removed by another process"
    assert done.out.splitlines()[-1] == "2 sessions, none with findings"
    assert not (root / ".quarantine").exists()


def test_a_removal_is_said_as_json(cli: Cli, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        removing(patch, shutil.rmtree)
        (found,) = cli("validate", session, "--json").json["sessions"]
    assert (found["ok"], found["removed"], found["findings"]) == (True, True, [])


def test_missing_file_is_a_finding(cli: Cli, session: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch:
        removing(patch, lambda path: (path / "steps.npy").unlink())
        cli("validate", session, expect=1)


def test_a_disk_that_is_gone_is_no_removal(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def unmount(path: Path) -> None:
        if not root.with_name("away").exists():
            root.rename(root.with_name("away"))
            root.mkdir()

    with monkeypatch.context() as patch:
        removing(patch, unmount)
        done = cli("validate", root, expect=1)
    assert "2 sessions, 2 with findings" in done.out
