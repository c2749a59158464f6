"""``tape2048 merge``, ``tape2048 recover`` and ``tape2048 validate --quarantine``."""

import json
import os
import shutil
from pathlib import Path

import numpy as np
import pytest
from tests.sdk.builders import raising
from tests.sdk.session.packs import games, write_pack

from tape2048 import Session, errors, sessions
from tape2048.session.column_draft import write_column
from tape2048_recorder.daemon.instance import Instance

from ..conftest import GAMES, META, Cli, write_foreign_session, write_session


@pytest.fixture
def halves(tmp_path: Path) -> list[Path]:
    """Two sessions of different games."""
    root = tmp_path / "halves"
    return [
        write_session(root / "20260101T000000Z_model=expectimax", GAMES[:2]),
        write_session(
            root / "20260101T000100Z_model=expectimax",
            GAMES[2:],
            {**META, "started_at": "2026-01-01T00:01:00Z"},
        ),
    ]


def test_merging_and_removing(cli: Cli, halves: list[Path]) -> None:
    root = halves[0].parent
    document = cli("merge", *halves, "--out", root, "--remove", "--json").json
    assert sorted(document["removed"]) == [str(path) for path in halves]
    (merged,) = sessions(root)
    assert document["path"] == str(merged)
    assert (document["games"], document["rows"], document["renumbered"]) == (4, 200, True)
    cli("validate", merged)
    assert Session.open(merged).runs["seed"].tolist() == [game.seed for game in GAMES]


def test_an_original_is_removed_or_not_and_never_both(
    cli: Cli, halves: list[Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Where the directory cannot be flushed after its files are gone, a power failure may bring them back."""
    results = iter([None, OSError(5, "Input/output error")])

    def refuse_the_second(_: Path) -> None:
        if (error := next(results)) is not None:
            raise error

    monkeypatch.setattr("tape2048.maintenance.removal.fsync_dir", refuse_the_second)
    done = cli("merge", *halves, "--out", tmp_path / "out", "--remove", "--json", expect=1)
    assert done.json["removed"] == []
    assert [entry["path"] for entry in done.json["not_removed"]] == [str(path) for path in halves]
    assert all("Input/output error" in entry["why"] for entry in done.json["not_removed"])


def test_merging_keeps_the_originals_unless_told(cli: Cli, halves: list[Path], tmp_path: Path) -> None:
    done = cli("merge", *halves, "--out", tmp_path / "out")
    assert "2 sessions, 4 games, 200 rows" in done.out
    assert "renumbered" in done.out
    assert len(sessions(halves[0].parent)) == 2


def test_missing_sessions_are_refused(cli: Cli, tmp_path: Path) -> None:
    """A pattern that matches nothing reaches the command as it is; no session is unfit to be removed."""
    for paths in (("20260102T*_model=greedy",), ("nowhere", "20260102T*_model=greedy")):
        plain = cli("merge", *paths, "--out", tmp_path, expect=errors.MissingPathError)
        done = cli("merge", *paths, "--out", tmp_path, "--remove", expect=errors.MissingPathError)
        assert done.err == plain.err
        assert "cannot be removed" not in done.err


def test_an_original_that_is_read_stays_and_is_said(cli: Cli, halves: list[Path], tmp_path: Path) -> None:
    session = Session.open(halves[1])
    done = cli("merge", *halves, "--out", tmp_path / "out", "--remove", expect=1)
    assert "not removed" in done.out
    del session
    assert len(sessions(tmp_path / "out")) == 1


def test_unsafe_removal_is_refused_first(cli: Cli, halves: list[Path], tmp_path: Path) -> None:
    """Other files, unfinished columns, and columns that the new session would lack."""
    session = Session.open(halves[0])
    write_column(session, "loss", np.zeros(len(session), np.float32))
    del session
    for name, why in ((".loss.partial", "unfinished column"), ("notes.txt", "notes.txt"), ("", "loss: ")):
        (halves[0] / name).mkdir(exist_ok=True)
        done = cli("merge", *halves, "--out", tmp_path / "out", "--remove", expect=errors.MaintenanceError)
        assert why in done.err
        if name:
            (halves[0] / name).rmdir()
    assert not (tmp_path / "out").exists()


def test_what_has_findings_is_put_away_with_the_reason(cli: Cli, root: Path, session: Path) -> None:
    data = bytearray((session / "steps.npy").read_bytes())
    data[-1] ^= 1
    (session / "steps.npy").write_bytes(data)
    before = {file.name: file.read_bytes() for file in session.iterdir()}
    done = cli("validate", root, "--quarantine", expect=1)
    away = root / ".quarantine" / session.name
    assert f"moved to {away}" in done.out
    assert {file.name: file.read_bytes() for file in away.iterdir()} == before
    reason = json.loads((root / ".quarantine" / f"{session.name}.reason.json").read_bytes())
    assert (reason["was"], reason["by"]) == (str(session), "tape2048 validate")
    assert reason["findings"][0]["error"] == "ChecksumError"
    assert len(sessions(root)) == 1
    cli("validate", root, "--quarantine")
    listed = cli("list", root)
    assert "1 session in " in listed.out
    assert cli("list", root, "--json").json["quarantined"] == 1
    shutil.copytree(away, session)  # the same name again
    moved = cli("validate", session, "--quarantine", "--json", expect=1).json["sessions"][0]["quarantined"]
    assert moved == f"{away}-2"
    assert cli("list", root, "--json").json["quarantined"] == 2


def test_sessions_stay_without_flag_or_findings(cli: Cli, root: Path, session: Path) -> None:
    cli("validate", root, "--quarantine")
    (session / "manifest.json").unlink()
    cli("validate", root, expect=1)
    assert len(sessions(root)) == 2
    assert not (root / ".quarantine").exists()


def test_a_session_that_is_read_is_not_put_away(cli: Cli, root: Path, session: Path) -> None:
    opened = Session.open(session)
    (session / "manifest.json").unlink()
    done = cli("validate", session, "--quarantine", expect=1)
    assert "BusyError" in done.out
    assert session.is_dir()
    del opened


def test_what_the_device_does_not_give_is_not_put_away(
    cli: Cli, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "preadv", raising(OSError(5, "Input/output error")))
    done = cli("validate", session, "--quarantine", "--json", expect=1)
    assert session.is_dir()
    assert "Input/output error" in done.out


def test_many_sessions_are_listed_by_their_manifests(
    cli: Cli, root: Path, session: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = cli("list", root, "--json").json
    monkeypatch.setattr("tape2048_tools.commands.sessions.show.SCORES_SESSIONS_MAX", 1)
    document = cli("list", root, "--json").json
    assert (full["scores"], document["scores"]) == (True, False)
    assert (full["twice"], document["twice"]) == ([], None)
    assert document["total"]["rows"] == full["total"]["rows"]
    assert document["total"]["bytes"] == full["total"]["bytes"]
    assert {entry["mean_score"] for entry in document["sessions"]} == {None}
    assert cli("list", root, "--json", "--scores").json == full
    lines = cli("list", root).out.splitlines()
    assert lines[0].split() == ["session", "rows", "games", "size", "note"]
    assert lines[1].split()[:3] == [session.name, "200", "4"]
    assert lines[3].split()[:4] == ["2", "sessions", "300", "6"]
    assert "a game that two sessions hold counts twice" in lines[4]
    assert "Pass --scores" in lines[4]
    assert "mean score" in cli("list", root, "--scores").out
    (session / "steps.npy").write_bytes(b"")
    broken = cli("list", root, expect=1)
    assert "TruncatedError" in broken.out
    shutil.rmtree(session)
    write_foreign_session(root / "theirs")
    assert cli("list", root, "--no-scores", "--json").json["total"]["rows"] == 200


def test_recovering_by_hand(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    Instance(root, "default").close()
    partial = root / ".20260101T000000Z_model=a.b.default.partial"
    partial.mkdir()
    theirs = (
        root / ".20260101T000000Z_model=a.0123456789abcdef.partial"
    )  # what `convert` writes at this moment
    theirs.mkdir()
    done = cli("recover", root, "--instance", "other")
    assert done.err == f"{root}: no recorder of instance 'other' ever ran here; found: default\n"
    assert partial.is_dir()
    done = cli("recover", root)
    assert "nothing to recover" in done.out
    assert not partial.exists()
    assert theirs.is_dir()
    assert cli("recover", root, "--instance", "default").err == ""
    assert cli("recover", root, "--json").json == {"root": str(root), "recovered": [], "events": []}
    partial.mkdir()
    (partial / "session").mkdir()
    (partial / "journal").write_bytes(b"no journal of ours, and longer than a header")
    done = cli("recover", root, expect=1)
    assert "moved to .quarantine" in done.out
    assert "nothing could be recovered" in done.out


def test_recovering_beside_a_recorder_is_refused(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    lock = Instance(root, "default")
    (root / ".20260101T000000Z_model=a.default.partial").mkdir()
    done = cli("recover", root, expect=errors.BusyError)
    assert f"pid {os.getpid()}" in done.err
    lock.close()
    cli("recover", root)


def test_recovering_where_nothing_is(cli: Cli, tmp_path: Path) -> None:
    cli("recover", tmp_path / "none", expect=errors.MissingPathError)
    assert not (tmp_path / "none").exists()


def test_packs_of_another_program_become_one(cli: Cli, tmp_path: Path, halves: list[Path]) -> None:
    played = games(4)
    paths = [write_pack(tmp_path / name, played[at : at + 2]) for name, at in (("d5", 0), ("d6", 2))]
    document = cli("merge", *paths, "--out", tmp_path / "merged", "--json").json
    assert (document["path"], document["games"], document["removed"]) == (str(tmp_path / "merged/d5"), 4, [])
    assert document["rows"] == sum(len(game.steps) for game in played)
    cli("validate", tmp_path / "merged/d5")
    said = cli("merge", paths[0], halves[0], "--out", tmp_path / "no", expect=errors.MaintenanceError).err
    assert "a session of another program" in said
