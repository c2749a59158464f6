"""``tape2048 show`` and ``tape2048 list``."""

import itertools
import re
import shutil
import sqlite3
from pathlib import Path

import numpy as np
import pytest
from scipy import stats
from tests.sdk.tapes import games_on_tape, write_rows, write_tape

from tape2048 import Session, errors
from tape2048.session.column_draft import write_column
from tape2048.session.layout import RUN_DTYPE
from tape2048_tools.cli import run
from tape2048_tools.sessions.summary import directory_bytes, label_prevalence, quantiles

from ..conftest import GAMES, META, Cli, Game, write_session
from ..small_sessions import session_name


def test_json_has_everything(cli: Cli, session: Path) -> None:
    document = cli("show", session, "--json").json
    assert document["name"] == session.name
    assert document["path"] == str(session)
    assert (document["rows"], document["games"]) == (200, 4)
    assert document["meta"]["player_args"] == {"depth": 2}
    assert document["score"] == {
        "mean": 157_500, "p10": 20_000, "p50": 60_000, "p90": 370_000, "max": 370_000,
    }  # fmt: skip
    assert document["steps"] == {"mean": 50, "p10": 40, "p50": 50, "p90": 60, "max": 60}
    assert document["tiles"] == [
        {"tile": 2048, "games": 1, "share": 0.25, "reach": 1.0},
        {"tile": 4096, "games": 1, "share": 0.25, "reach": 0.75},
        {"tile": 8192, "games": 1, "share": 0.25, "reach": 0.5},
        {"tile": 16384, "games": 1, "share": 0.25, "reach": 0.25},
    ]
    # Of 200 rows, the game that reached 8192 has 60 and the one that reached 16384 has 50.
    assert document["labels"] == [
        {"threshold": 4096, "games": 3, "game_share": 0.75, "row_share": 0.8},
        {"threshold": 8192, "games": 2, "game_share": 0.5, "row_share": 0.55},
        {"threshold": 16384, "games": 1, "game_share": 0.25, "row_share": 0.25},
    ]
    best = document["best"]
    assert (best["run_id"], best["seed"], best["score"], best["steps"]) == (3, 7, 370_000, 50)
    assert best["step"] == 49
    assert best["exps"] == [14, 0, 0, 0, 0, 4, *[0] * 10]


def test_the_share_of_rows_counts_rows_that_were_kept() -> None:
    runs = np.zeros(2, RUN_DTYPE)
    runs["steps"], runs["rows"], runs["highest_tile"] = (10, 3), (1, 3), (8192, 2048)
    assert label_prevalence(runs)[-1]["row_share"] == 0.25


def test_text_has_facts_settings_and_the_best_board(cli: Cli, session: Path) -> None:
    out = cli("show", session).out
    lines = [line.split() for line in out.splitlines()]
    assert ["player", "expectimax,", "3-ply", "@ababab,", "expectimax@abababababab"] in lines
    assert ["player_sha256", "ab" * 32] in lines
    assert ["rotate_steps", "10000000"] in lines
    assert ["score", "157,500", "±250,038", "20,000", "60,000", "370,000", "370,000"] in lines
    assert ["16384", "1", "25%", "25%", "(4.6-69.9)", "#" * 40] in lines
    assert ["8192", "2", "50%", "55%"] in lines
    assert lines[-4:] == [
        ["16384", ".", ".", "."], [".", "16", ".", "."], [".", ".", ".", "."], [".", ".", ".", "."],
    ]  # fmt: skip


def test_seed_is_shown_unsigned(cli: Cli, session: Path) -> None:
    database = sqlite3.connect(session / "metadata.db")
    with database:
        database.execute("UPDATE runs SET max_score = 900000 WHERE id = 2")
    database.close()
    assert cli("show", session, "--json").json["best"]["seed"] == 2**63 + 5


def test_what_others_wrote_shows_what_is_there(cli: Cli, foreign: Path) -> None:
    done = cli("show", foreign)
    assert "settings" not in done.out
    best = cli("show", foreign, "--json").json["best"]
    assert (best["run_id"], best["step"], best["exps"][0]) == (2, 59, 13)


def test_facts_of_any_shape_are_shown_and_never_obeyed(cli: Cli, foreign: Path) -> None:
    database = sqlite3.connect(foreign / "metadata.db")
    with database:
        values = [("config", '"none"'), ("note", '["[red]", {"a\\u001b[2J": null}]'), ("host", '"[link=x]h"')]
        database.executemany("INSERT INTO session VALUES (?, ?)", values)
    database.close()
    done = cli("show", foreign)
    assert "\x1b" not in done.out
    assert "[link=x]h" in done.out
    assert '["[red]",{"a' in done.out


def test_a_session_without_games(cli: Cli, empty_session: Path) -> None:
    done = cli("show", empty_session)
    assert "best game" not in done.out
    document = cli("show", empty_session, "--json").json
    assert document["best"] is None
    assert document["score"] == {}
    assert document["labels"] == []


def test_a_best_game_of_which_no_board_was_kept(cli: Cli, foreign: Path) -> None:
    database = sqlite3.connect(foreign / "metadata.db")
    with database:
        database.execute("INSERT INTO runs VALUES (9, 1, 10, 999999, 8192)")
    database.close()
    done = cli("show", foreign)
    assert "its boards were not recorded" in done.out


@pytest.mark.parametrize("args", [[], ["--json"]])
def test_what_is_no_session_is_an_error(cli: Cli, tmp_path: Path, args: list[str]) -> None:
    done = cli("show", tmp_path, *args, expect=errors.NotASessionError)
    assert done.out == ""


def test_a_directory_is_summed_up(cli: Cli, root: Path, session: Path) -> None:
    document = cli("show", root, "--json").json
    assert (document["root"], document["sessions"], document["broken"]) == (str(root), 2, [])
    assert (document["rows"], document["games"]) == (300, 6)
    assert document["bytes"] == cli("list", root, "--json").json["total"]["bytes"]
    assert document["score"]["mean"] == pytest.approx(830_000 / 6)
    assert (document["started_at"], document["ended_at"]) == (
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:01:00+00:00",
    )
    (player,) = document["players"]
    assert (player["player"], player["recorded_as"]) == ("expectimax@abababababab", "expectimax:depth=2")
    assert (player["sessions"], player["games"], player["player_sha256"]) == (2, 6, "ab" * 32)
    interval = stats.binomtest(3, 6).proportion_ci(0.95, method="wilson")
    assert player["reach"]["8192"] == pytest.approx(
        {"share": 0.5, "low": interval.low, "high": interval.high}, abs=1e-6
    )
    assert [tile["games"] for tile in document["tiles"]] == [2, 1, 2, 1]
    assert [(one["threshold"], one["games"]) for one in document["labels"]] == [
        (4096, 4), (8192, 3), (16384, 1),
    ]  # fmt: skip
    best = document["best"]
    assert (best["session"], best["run_id"], best["score"]) == (session.name, 3, 370_000)
    # The same game and the same word in `list`.
    assert cli("list", root, "--json").json["total"]["best_score"] == best["score"]

    out = cli("show", root).out
    lines = [line.split() for line in out.splitlines()]
    at = lines.index(["expectimax", "6", "138,333", "67%", "50%", "17%"])
    assert lines[at + 1] == ["±141,797", "30.0-90.3", "18.8-81.2", "3.0-56.4"]
    assert "expectimax@abababababab  expectimax:depth=2" in out
    assert f"best game: run 3 of {session.name}, score 370,000, 50 moves" in out


def test_games_that_two_sessions_hold_count_once(
    cli: Cli, root: Path, session: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """In the sums of all commands, and one line names the pairs and the reason."""
    out = cli("show", root, "--json").json
    twin = write_session(root / f"{session.name}-2", (*GAMES[:2], Game(99, 1, 100, 64)))
    pair = {"session": str(twin), "also_in": str(session), "games": 2, "why": "comes first"}
    text = f"2 games of {twin}, also in {session}, which comes first"
    for words in (("list",), ("list", "--no-scores"), ("show",), ("validate",)):
        said = "note: other commands leave out" if words == ("validate",) else "left out:"
        assert cli(*words, root, "--json").json["twice"] == [pair]
        assert f"{said} {text}" in re.sub(r"\s+", " ", cli(*words, root).out)
    found = cli("show", root, "--json").json
    totals = [cli("list", root, flag, "--json").json["total"] for flag in ("--scores", "--no-scores")]
    for shown in (found, found["players"][0], *totals):
        assert (shown["games"], shown["rows"]) == (out["games"] + 1, out["rows"] + 1)
    cli("card", root)
    assert caplog.messages[-1] == f"left out: {text}"
    said = f"{out['games'] + 1} games of 2048 with {out['rows'] + 1} positions"
    assert said in (root / "README.md").read_text()


@pytest.mark.parametrize("name", ["x" * 400, "python:a.b.c:" + "y" * 300, "", "many words " * 30])
def test_any_player_fits_100_columns(cli: Cli, tmp_path: Path, name: str) -> None:
    root = tmp_path / "r"
    for at in range(30):  # more players than are shown
        args = {"weights": f"/a/long/path/{'w' * 300}.npz", "look": at}
        meta = {**META, "player": name, "player_args": args, "player_sha256": f"{at:02x}" * 32, "config": {}}
        write_session(root / session_name(at), GAMES[:1], meta)
    shown = [cli("show", place) for place in (root, root / session_name(0))]
    allowed = {str(root), str(root / session_name(0))}  # paths of the test
    for done in shown:
        wide = [line for line in done.out.splitlines() if len(line) > 100]
        assert all(any(path in line for path in allowed) for line in wide), wide
    assert "and 10 more players" in shown[0].out


def test_directory_with_a_broken_session(cli: Cli, root: Path, session: Path, foreign: Path) -> None:
    foreign.rename(root / "foreign")
    (session / "metadata.db").write_bytes(b"x" * (session / "metadata.db").stat().st_size)
    done = cli("show", root, "--json", expect=1)
    assert [broken["name"] for broken in done.json["broken"]] == [session.name]
    assert [player["player"] for player in done.json["players"]] == ["expectimax@abababababab", "unknown"]
    assert done.json["best"]["session"] == "20260101T000100Z_model=expectimax"
    assert f"SchemaError: {session}/metadata.db" in cli("show", root, expect=1).out


def test_a_directory_of_sessions_without_games(cli: Cli, empty_session: Path) -> None:
    cli("show", empty_session.parent)
    document = cli("show", empty_session.parent, "--json").json
    assert (document["games"], document["best"], document["players"][0]["reach"]) == (0, None, {})


def test_quantiles_are_values_that_occur() -> None:
    assert quantiles(np.arange(1, 11)) == {"mean": 5.5, "p10": 1, "p50": 5, "p90": 9, "max": 10}
    assert quantiles(np.array([7])) == {"mean": 7, "p10": 7, "p50": 7, "p90": 7, "max": 7}


def test_table_with_totals(cli: Cli, root: Path) -> None:
    done = cli("list", root)
    heading, first, second, total = (line.split() for line in done.out.splitlines())
    assert heading[:7] == ["session", "player", "rows", "games", "mean", "score", "best"]
    assert heading[7:] == ["4096", "8192", "16384", "size", "note"]
    name = "20260101T000000Z_model=expectimax"
    assert first[:10] == [
        name, "expectimax", "200", "4", "157,500", "±250,038", "370,000", "75%", "50%", "25%",
    ]  # fmt: skip
    name = name.replace("0000Z", "0100Z")
    assert second[:7] == [name, "expectimax", "100", "2", "100,000", "±1,016,496", "180,000"]
    assert second[7:10] == ["50%", "50%", "0"]
    assert second[-1] == "recovered"
    # Over the six games, not over the two sessions.
    assert total[:7] == ["2", "sessions", "300", "6", "138,333", "±141,797", "370,000"]
    assert total[7:10] == ["67%", "50%", "17%"]


def test_no_mean_is_over_several_players(cli: Cli, root: Path) -> None:
    """The totals are by player, and a sum over all of them has no mean, no tiles and no distribution."""
    write_session(root / session_name(9), GAMES[:2], {**META, "player": "greedy", "player_sha256": "cd" * 32})
    lines = [line.split() for line in cli("list", root).out.splitlines()]
    assert [line[:5] for line in lines[-3:-1]] == [
        ["2", "sessions", "expectimax", "300", "6"], ["1", "session", "greedy", "100", "2"],
    ]  # fmt: skip
    assert lines[-1][2:6] == ["400", "8", "-", "-"]
    document = cli("list", root, "--json").json
    assert document["total"]["mean_score"] is document["total"]["highest_tile"] is None
    assert [one["mean_score"] for one in document["players"]] == pytest.approx([830_000 / 6, 100_000])
    out = cli("show", root).out
    assert "±" in out
    assert not re.search("^(score|moves|highest tile)", out, re.MULTILINE)


def test_json_has_the_numbers_unrounded(cli: Cli, root: Path) -> None:
    document = cli("list", root, "--json").json
    assert document["root"] == str(root)
    assert document["broken"] == []
    first, second = document["sessions"]
    assert first["bytes"] == directory_bytes(root / first["name"])
    assert (first["recovered"], second["recovered"]) == (False, True)
    shares = [1.0] * 7 + [0.75, 0.5, 0.25, 0.0, 0.0]
    assert first["reach"] == {str(32 << i): share for i, share in enumerate(shares)}
    assert document["total"]["games"] == 6
    assert document["total"]["mean_score"] == pytest.approx(830_000 / 6)
    assert document["total"]["reach"]["16384"] == pytest.approx(1 / 6)


def test_broken_session_is_listed_with_its_error(cli: Cli, root: Path, session: Path) -> None:
    (session / "metadata.db").write_bytes(b"x" * (session / "metadata.db").stat().st_size)
    done = cli("list", root, expect=1)
    assert done.err == ""
    assert f"SchemaError: {session}/metadata.db: " in done.out
    assert "20260101T000100Z_model=expectimax" in done.out
    document = cli("list", root, "--json", expect=1)
    (broken,) = document.json["broken"]
    assert broken["name"] == session.name
    assert broken["error"] == "SchemaError"
    assert len(document.json["sessions"]) == 1


def test_only_broken_sessions_is_no_table(cli: Cli, root: Path) -> None:
    for path in root.glob("2*"):
        (path / "steps.npy").unlink()
    done = cli("list", root, expect=1)
    assert done.out.count("NotASessionError: ") == 2
    assert "games" not in done.out


def test_what_others_wrote_is_listed(cli: Cli, foreign: Path) -> None:
    (found,) = cli("list", foreign.parent, "--json").json["sessions"]
    assert (found["rows"], found["games"], found["mean_score"], found["recovered"]) == (
        100, 2, 100_000.0, None,
    )  # fmt: skip


def test_a_session_without_games_has_no_mean(cli: Cli, empty_session: Path) -> None:
    (line, *_) = cli("list", empty_session.parent).out.splitlines()[1:]
    assert line.split()[2:6] == ["0", "0", "-", "-"]
    (found,) = cli("list", empty_session.parent, "--json").json["sessions"]
    assert found["mean_score"] is None
    assert found["best_score"] is found["highest_tile"] is None


def test_an_empty_directory_says_how_to_fill_it(cli: Cli, tmp_path: Path) -> None:
    done = cli("list", tmp_path)
    assert f"no sessions in {tmp_path}" in done.out
    assert f"tape2048 record --out {tmp_path}" in done.out
    assert cli("list", tmp_path, "--json").json["sessions"] == []


def test_default_root_is_the_out_dir(cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert cli("list --json").json["root"] == "selfplay"
    assert len(cli("list --json").json["sessions"]) == 2
    root.rename(root.with_name("elsewhere"))
    missing = cli("list", expect=errors.MissingPathError)
    assert "record" in missing.err
    monkeypatch.setenv("TAPE2048_OUT_DIR", "elsewhere")
    assert len(cli("list --json").json["sessions"]) == 2


def test_the_cost_does_not_grow_with_the_rows(cli: Cli, root: Path, session: Path) -> None:
    """Rows that nobody reads may be anything: only their number is looked at, and the ends of runs."""
    data = bytearray((session / "steps.npy").read_bytes())
    for row in itertools.chain(range(1, 39), range(41, 99)):  # inside the first two runs
        data[192 + 28 * row : 192 + 28 * row + 28] = b"\xff" * 28
    (session / "steps.npy").write_bytes(data)
    cli("list", root)


def test_a_fact_of_another_type_is_not_believed(cli: Cli, foreign: Path) -> None:
    database = sqlite3.connect(foreign / "metadata.db")
    with database:
        database.execute("INSERT INTO session VALUES ('recovered', '\"perhaps\"')")
    database.close()
    (found,) = cli("list", foreign.parent, "--json").json["sessions"]
    assert found["recovered"] is None


@pytest.mark.parametrize(
    ("width", "left_out"),
    [(111, []), (94, ["best"]), (83, ["best", "player"]), (50, ["best", "player", "size"])],
)  # fmt: skip
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
    heading, line, *_ = re.sub(r"\x1b\[[0-9;]*m", "", capsys.readouterr().out).splitlines()
    shown = ["session", "player", "rows", "games", "mean", "score", "best"]
    shown += ["4096", "8192", "16384", "size"]
    assert heading.split() == [name for name in shown if name not in left_out]
    assert max(len(heading), len(line)) <= max(width, 80)
    assert line.startswith(session.name)


def test_plain_lines_omit_columns(
    root: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tape2048_tools.commands.sessions.show.SCORES_SESSIONS_MAX", 1)
    monkeypatch.setattr("sys.stdout.isatty", lambda: True)
    monkeypatch.setenv("COLUMNS", "116")
    assert run(["list", str(root), "--scores"]) == 0
    heading, *lines = capsys.readouterr().out.splitlines()
    assert heading.split()[4:] == ["mean", "score", "4096", "8192", "16384", "size", "note"]
    assert len(lines) == 3


@pytest.mark.parametrize("storage", ["rows", "tape"])
def test_columns_are_listed(cli: Cli, tmp_path: Path, storage: str) -> None:
    """Name, type, shape, maker, and the error of a damaged one; of an overlay in ``show``."""
    write = write_rows if storage == "rows" else write_tape
    path = write(tmp_path / "root" / "20260101T000000Z_model=toy", games_on_tape(1))
    session = Session.open(path, columns=tmp_path / "columns")
    rows = len(session)
    write_column(session, "loss", np.zeros(rows, np.float32))
    session.use_overlay(None)
    write_column(session, "values", np.zeros((rows, 4)), dtype="bf16", facts={"maker": "me"})
    (path / "half.u8.npy").touch()
    half, values = cli("show", path, "--json").json["columns"]
    assert values == {"name": "values", "dtype": "bf16", "shape": [rows, 4], "maker": "me", "error": None}
    assert list(half.values())[:4] == ["half", None, None, None]
    assert "half-written" in half["error"]
    for scores in ("--scores", "--no-scores"):
        assert cli("list", path.parent, scores, "--json").json["sessions"][0]["columns"] == [half, values]
        assert "columns: half values" in cli("list", path.parent, scores).out
    shown = [line.split() for line in cli("show", path, "--columns", tmp_path / "columns").out.splitlines()]
    assert ["loss", "f32", f"({rows},)", "write_column"] in shown
    assert ["values", "bf16", f"({rows},", "4)", "me"] in shown
