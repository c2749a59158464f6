"""``tape2048 show``."""

from __future__ import annotations

import sqlite3
from typing import TYPE_CHECKING

import numpy as np
import pytest
from scipy import stats

from tape2048 import errors
from tape2048_tools.sessions.summary import quantiles

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from conftest import Outcome

    Tape = Callable[..., Outcome]


def test_json_has_everything(tape: Tape, session: Path) -> None:
    document = tape("show", session, "--json").json
    assert document["name"] == session.name
    assert document["path"] == str(session)
    assert (document["rows"], document["games"]) == (200, 4)
    assert document["meta"]["player_args"] == {"depth": 2}
    assert document["score"] == {
        "mean": 157_500,
        "p10": 20_000,
        "p50": 60_000,
        "p90": 370_000,
        "max": 370_000,
    }
    assert document["steps"] == {"mean": 50, "p10": 40, "p50": 50, "p90": 60, "max": 60}
    assert document["tiles"] == [
        {"tile": 2048, "games": 1, "share": 0.25, "reach": 1.0},
        {"tile": 4096, "games": 1, "share": 0.25, "reach": 0.75},
        {"tile": 8192, "games": 1, "share": 0.25, "reach": 0.5},
        {"tile": 16384, "games": 1, "share": 0.25, "reach": 0.25},
    ]
    # Of 200 rows, the game that reached 8192 has 60 and the one that reached 16384 has 50.
    assert document["labels"] == [
        {"threshold": 8192, "games": 2, "game_share": 0.5, "row_share": 0.55},
        {"threshold": 16384, "games": 1, "game_share": 0.25, "row_share": 0.25},
        {"threshold": 32768, "games": 0, "game_share": 0.0, "row_share": 0.0},
    ]
    best = document["best"]
    assert (best["run_id"], best["seed"], best["score"], best["steps"]) == (3, 7, 370_000, 50)
    assert best["step_idx"] == 49
    assert best["exps"] == [14, 0, 0, 0, 0, 4, *[0] * 10]


def test_text_has_facts_settings_and_the_best_board(tape: Tape, session: Path) -> None:
    out = tape("show", session).out
    lines = [line.split() for line in out.splitlines()]
    assert ["player", "expectimax"] in lines
    assert ["player_sha256", "ab" * 32] in lines
    assert ["rotate_steps", "10000000"] in lines
    assert ["score", "157,500", "20,000", "60,000", "370,000", "370,000"] in lines
    assert ["16384", "1", "25%", "25%", "#" * 40] in lines
    assert ["8192", "2", "50%", "55%"] in lines
    assert lines[-4:] == [
        ["16384", ".", ".", "."],
        [".", "16", ".", "."],
        [".", ".", ".", "."],
        [".", ".", ".", "."],
    ]


def test_seed_is_shown_unsigned(tape: Tape, session: Path) -> None:
    database = sqlite3.connect(session / "metadata.db")
    with database:
        database.execute("UPDATE runs SET max_score = 900000 WHERE id = 2")
    database.close()
    assert tape("show", session, "--json").json["best"]["seed"] == 2**63 + 5


def test_what_others_wrote_shows_what_is_there(tape: Tape, foreign: Path) -> None:
    done = tape("show", foreign)
    assert done.code == 0
    assert "settings" not in done.out
    best = tape("show", foreign, "--json").json["best"]
    assert (best["run_id"], best["step_idx"], best["exps"][0]) == (2, 59, 13)


def test_facts_of_any_shape_are_shown_and_never_obeyed(tape: Tape, foreign: Path) -> None:
    database = sqlite3.connect(foreign / "metadata.db")
    with database:
        values = [("config", '"none"'), ("note", '["[red]", {"a\\u001b[2J": null}]'), ("host", '"[link=x]h"')]
        database.executemany("INSERT INTO session VALUES (?, ?)", values)
    database.close()
    done = tape("show", foreign)
    assert done.code == 0
    assert "\x1b" not in done.out
    assert "[link=x]h" in done.out
    assert '["[red]",{"a' in done.out


def test_a_session_without_games(tape: Tape, empty_session: Path) -> None:
    done = tape("show", empty_session)
    assert done.code == 0
    assert "best game" not in done.out
    document = tape("show", empty_session, "--json").json
    assert document["best"] is None
    assert document["score"] == {}
    assert document["labels"][0] == {"threshold": 8192, "games": 0, "game_share": None, "row_share": None}


def test_a_best_game_of_which_no_board_was_kept(tape: Tape, foreign: Path) -> None:
    database = sqlite3.connect(foreign / "metadata.db")
    with database:
        database.execute("INSERT INTO runs VALUES (9, 1, 10, 999999, 8192)")
    database.close()
    done = tape("show", foreign)
    assert done.code == 0
    assert "its boards were not recorded" in done.out


@pytest.mark.parametrize("args", [[], ["--json"]])
def test_what_is_no_session_is_an_error(tape: Tape, tmp_path: Path, args: list[str]) -> None:
    done = tape("show", tmp_path, *args)
    assert done.code == errors.NotASessionError.exit_code
    assert done.out == ""


def test_a_directory_is_summed_up(tape: Tape, root: Path, session: Path) -> None:
    document = tape("show", root, "--json").json
    assert (document["root"], document["sessions"], document["broken"]) == (str(root), 2, [])
    assert (document["rows"], document["games"]) == (300, 6)
    assert document["bytes"] == tape("list", root, "--json").json["total"]["bytes"]
    assert document["score"]["mean"] == pytest.approx(830_000 / 6)
    assert (document["started_at"], document["ended_at"]) == (
        "2026-01-01T00:00:00+00:00",
        "2026-01-01T00:01:00+00:00",
    )
    (player,) = document["players"]
    assert (player["player"], player["sessions"], player["games"]) == ("expectimax:depth=2", 2, 6)
    assert player["player_sha256"] == ["ab" * 32]
    interval = stats.binomtest(3, 6).proportion_ci(0.95, method="wilson")
    assert player["reach"]["8192"] == pytest.approx(
        {"share": 0.5, "low": interval.low, "high": interval.high}, abs=1e-6
    )
    assert [tile["games"] for tile in document["tiles"]] == [2, 1, 2, 1]
    assert document["labels"][0]["games"] == 3
    best = document["best"]
    assert (best["session"], best["run_id"], best["score"]) == (session.name, 3, 370_000)
    # The same game and the same word in `list`.
    assert tape("list", root, "--json").json["total"]["best_score"] == best["score"]

    out = tape("show", root).out
    assert "expectimax:depth=2      6     138,333  370,000" in out
    assert "50% (18.8-81.2)" in out
    assert f"best game: run 3 of {session.name}, score 370,000, 50 moves" in out


def test_directory_with_a_broken_session(tape: Tape, root: Path, session: Path, foreign: Path) -> None:
    foreign.rename(root / "foreign")
    (session / "metadata.db").write_bytes(b"x" * (session / "metadata.db").stat().st_size)
    done = tape("show", root, "--json")
    assert done.code == 1
    assert [broken["name"] for broken in done.json["broken"]] == [session.name]
    assert [player["player"] for player in done.json["players"]] == ["expectimax:depth=2", "unknown"]
    assert done.json["best"]["session"] == "20260101T000100Z_model=expectimax"
    assert f"SchemaError: {session}/metadata.db" in tape("show", root).out


def test_a_directory_of_sessions_without_games(tape: Tape, empty_session: Path) -> None:
    assert tape("show", empty_session.parent).code == 0
    document = tape("show", empty_session.parent, "--json").json
    assert (document["games"], document["best"], document["players"][0]["reach"]) == (0, None, {})


def test_quantiles_are_values_that_occur() -> None:
    assert quantiles(np.arange(1, 11)) == {"mean": 5.5, "p10": 1, "p50": 5, "p90": 9, "max": 10}
    assert quantiles(np.array([7])) == {"mean": 7, "p10": 7, "p50": 7, "p90": 7, "max": 7}
