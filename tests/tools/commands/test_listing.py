"""``tape2048 list``."""

from __future__ import annotations

import itertools
import re
import shutil
import sqlite3
from typing import TYPE_CHECKING

import pytest

from tape2048 import errors
from tape2048_tools.cli import run
from tape2048_tools.sessions.summary import directory_bytes

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Outcome

    Tape = Callable[..., Outcome]


def test_table_with_totals(tape: Tape, root: Path) -> None:
    done = tape("list", root)
    assert done.code == 0
    heading, first, second, total = (line.split() for line in done.out.splitlines())
    assert heading[:6] == ["session", "rows", "games", "mean", "score", "best"]
    assert heading[6:] == ["2048", "4096", "8192", "16384", "32768", "size", "note"]
    name = "20260101T000000Z_model=expectimax"
    assert first[:9] == [name, "200", "4", "157,500", "370,000", "100%", "75%", "50%", "25%"]
    assert second[:9] == [
        name.replace("0000Z", "0100Z"),
        "100",
        "2",
        "100,000",
        "180,000",
        "100%",
        "50%",
        "50%",
        "0",
    ]
    assert second[-1] == "recovered"
    # Over the six games, not over the two sessions.
    assert total[:10] == ["2", "sessions", "300", "6", "138,333", "370,000", "100%", "67%", "50%", "17%"]


def test_json_has_the_numbers_unrounded(tape: Tape, root: Path) -> None:
    document = tape("list", root, "--json").json
    assert document["root"] == str(root)
    assert document["broken"] == []
    first, second = document["sessions"]
    assert first["bytes"] == directory_bytes(root / first["name"])
    assert (first["recovered"], second["recovered"]) == (False, True)
    assert first["reach"] == {"2048": 1.0, "4096": 0.75, "8192": 0.5, "16384": 0.25, "32768": 0.0}
    assert document["total"]["games"] == 6
    assert document["total"]["mean_score"] == pytest.approx(830_000 / 6)
    assert document["total"]["reach"]["16384"] == pytest.approx(1 / 6)


def test_broken_session_is_listed_with_its_error(tape: Tape, root: Path, session: Path) -> None:
    (session / "metadata.db").write_bytes(b"x" * (session / "metadata.db").stat().st_size)
    done = tape("list", root)
    assert done.code == 1
    assert done.err == ""
    assert f"SchemaError: {session}/metadata.db: " in done.out
    assert "20260101T000100Z_model=expectimax" in done.out
    document = tape("list", root, "--json")
    assert document.code == 1
    (broken,) = document.json["broken"]
    assert broken["name"] == session.name
    assert broken["error"] == "SchemaError"
    assert len(document.json["sessions"]) == 1


def test_only_broken_sessions_is_no_table(tape: Tape, root: Path) -> None:
    for path in root.glob("2*"):
        (path / "steps.npy").unlink()
    done = tape("list", root)
    assert done.code == 1
    assert done.out.count("NotASessionError: ") == 2
    assert "games" not in done.out


def test_what_others_wrote_is_listed(tape: Tape, foreign: Path) -> None:
    (found,) = tape("list", foreign.parent, "--json").json["sessions"]
    assert (found["rows"], found["games"], found["mean_score"], found["recovered"]) == (
        100,
        2,
        100_000.0,
        None,
    )


def test_a_session_without_games_has_no_mean(tape: Tape, empty_session: Path) -> None:
    (line, *_) = tape("list", empty_session.parent).out.splitlines()[1:]
    assert line.split()[1:9] == ["0", "0", "-", "-", "-", "-", "-", "-"]
    (found,) = tape("list", empty_session.parent, "--json").json["sessions"]
    assert found["mean_score"] is None
    assert found["best_score"] is found["highest_tile"] is None


def test_an_empty_directory_says_how_to_fill_it(tape: Tape, tmp_path: Path) -> None:
    done = tape("list", tmp_path)
    assert done.code == 0
    assert f"no sessions in {tmp_path}" in done.out
    assert f"tape2048 record --out-dir {tmp_path}" in done.out
    assert tape("list", tmp_path, "--json").json["sessions"] == []


def test_default_root_is_the_out_dir(tape: Tape, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert tape("list", "--json").json["root"] == "selfplay"
    assert len(tape("list", "--json").json["sessions"]) == 2
    root.rename(root.with_name("elsewhere"))
    missing = tape("list")
    assert missing.code == errors.MissingPathError.exit_code
    assert "record" in missing.err
    monkeypatch.setenv("TAPE2048_OUT_DIR", "elsewhere")
    assert len(tape("list", "--json").json["sessions"]) == 2


def test_the_cost_does_not_grow_with_the_rows(tape: Tape, root: Path, session: Path) -> None:
    """Rows that nobody reads may be anything: only their number is looked at, and the ends of runs."""
    data = bytearray((session / "steps.npy").read_bytes())
    for row in itertools.chain(range(1, 39), range(41, 99)):  # inside the first two runs
        data[192 + 28 * row : 192 + 28 * row + 28] = b"\xff" * 28
    (session / "steps.npy").write_bytes(data)
    assert tape("list", root).code == 0


def test_many_sessions_are_listed_in_order(tape: Tape, root: Path, session: Path) -> None:
    for number in range(20):
        shutil.copytree(session, root / f"202602{number + 1:02d}T000000Z_model=a")
    names = [found["name"] for found in tape("list", root, "--json").json["sessions"]]
    assert names == sorted(names)
    assert len(names) == 22


def test_a_fact_of_another_type_is_not_believed(tape: Tape, foreign: Path) -> None:
    database = sqlite3.connect(foreign / "metadata.db")
    with database:
        database.execute("INSERT INTO session VALUES ('recovered', '\"perhaps\"')")
    database.close()
    (found,) = tape("list", foreign.parent, "--json").json["sessions"]
    assert found["recovered"] is None


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(120, []), (91, ["2048"]), (79, ["2048", "4096", "best"]), (50, ["2048", "4096", "best", "size"])],
)
def test_narrow_terminal_omits_columns(
    session: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    width: int,
    left_out: list[str],
) -> None:
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", str(width))
    shutil.rmtree(session.with_name("20260101T000100Z_model=expectimax"))
    assert run(["list", str(session.parent)]) == 0
    heading, line = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    shown = ["best", "2048", "4096", "8192", "16384", "32768", "size"]
    assert heading.split()[5:] == [name for name in shown if name not in left_out]
    assert max(len(heading), len(line)) <= max(width, 80)
    assert line.startswith(session.name)


def test_plain_lines_omit_columns(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape2048_tools.commands.sessions.show.SCORES_SESSIONS_MAX", 1)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "102")
    assert run(["list", str(root), "--scores"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[3:] == ["mean", "score", "8192", "16384", "32768", "size", "note"]
    assert len(lines) == 3
