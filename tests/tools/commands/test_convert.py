"""Convert and annotate, on what the real recorder leaves."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tape2048.packs import PackReader
from tape2048.session.session import Session, sessions

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    Tape = Callable[..., Any]


@pytest.fixture
def recorded(process: Any, tmp_path: Path) -> Path:
    """A session of 5 games, recorded with moves."""
    flags = ["--player", "greedy", "--max-games", "5", "--seed", "4", "--record-action", "--workers", "1"]
    done = process("record", *flags, "--out-dir", str(tmp_path / "selfplay"))
    assert done.returncode == 0, done.stderr
    return sessions(tmp_path / "selfplay")[0]


@pytest.mark.slow
def test_recorded_games_go_round(tape: Tape, recorded: Path, tmp_path: Path) -> None:
    session = Session.open(recorded)
    steps = [
        ("v1", "a2run", recorded.parent), ("v2", "a2run2", tmp_path / "v1"),
        ("x.a2pack", "pack", tmp_path / "v2"),
        ("v1-again", "a2run", tmp_path / "x.a2pack"), ("ds", "dataset", tmp_path / "v1-again"),
        ("v2-again", "a2run2", tmp_path / "ds"),
    ]  # fmt: skip
    for name, kind, source in steps:
        done = tape("convert", source, tmp_path / name, "--to", kind, "--json")
        assert (done.code, done.err) == (0, ""), name
        assert (done.json["runs"], done.json["lost"]) == (5, {})
    contents = [
        [path.read_bytes() for path in sorted((tmp_path / name).iterdir())]
        for name in ("v1", "v1-again", "v2", "v2-again")
    ]
    assert contents[0] == contents[1]
    assert contents[2] == contents[3]
    assert tape("convert", tmp_path / "v1-again", tmp_path / "back", "--to", "session", "--lossy").code == 0
    back = Session.open(tmp_path / "back")
    np.testing.assert_array_equal(back.steps["exps"], session.steps["exps"])
    np.testing.assert_array_equal(back.steps["action"], session.steps["action"])
    for name in ("seed", "steps", "max_score", "highest_tile"):
        np.testing.assert_array_equal(back.runs[name], session.runs[name])
    assert back.meta["player_sha256"] == session.meta["player_sha256"]
    assert tape("validate", tmp_path / "back").code == 0


@pytest.mark.slow
def test_a_data_set_of_recorded_games_knows_how_they_ended_where_that_is_wanted(
    tape: Tape, process: Any, tmp_path: Path
) -> None:
    """The rules leave two candidates for some of these games."""
    flags = ["--player", "greedy", "--max-games", "20", "--seed", "3", "--record-action", "--workers", "1"]
    assert process("record", *flags, "--out-dir", str(tmp_path / "games")).returncode == 0
    assert tape("dataset", "build", tmp_path / "games", "--output", tmp_path / "some").code == 0
    refused = tape("convert", tmp_path / "some", tmp_path / "some.a2pack")
    assert refused.code != 0
    assert "a final board that is uncertain" in refused.err
    assert not (tmp_path / "some.a2pack").exists()
    build = ["dataset", "build", tmp_path / "games", "--output", tmp_path / "all", "--final-boards"]
    assert tape(*build).code == 0
    assert tape("dataset", "append", tmp_path / "all", tmp_path / "games", "--final-boards").code == 0
    assert tape("convert", tmp_path / "all", tmp_path / "all.a2pack").code == 0
    assert tape("convert", tmp_path / "games", tmp_path / "direct.a2pack").code == 0
    found = [run.states.tolist() for run in PackReader.open(tmp_path / "all.a2pack")]
    assert found == 2 * [run.states.tolist() for run in PackReader.open(tmp_path / "direct.a2pack")]


@pytest.mark.slow
def test_annotate(tape: Tape, recorded: Path, tmp_path: Path) -> None:
    assert tape("annotate", recorded, tmp_path / "x.a2pack", "--player", "expectimax:depth=1").code == 0
    done = tape("convert", tmp_path / "x.a2pack", tmp_path / "v1", "--to", "a2run")
    assert done.code == 61
    assert "branch values" in done.err
    assert "--lossy" in done.err
    assert not (tmp_path / "v1").exists()
    done = tape("convert", tmp_path / "x.a2pack", tmp_path / "v1", "--to", "a2run", "--lossy")
    assert (done.code, done.err) == (0, "lost: branch values, of 5 runs\n")
    done = tape("annotate", recorded, tmp_path / "ds", "--to", "dataset", "--lossy")
    assert done.code == 0
    rows = np.load(tmp_path / "ds/steps.npy")
    chosen = rows["ev_values"][np.arange(len(rows)), rows["move"]]
    assert (chosen == 1.0).all()
    assert tape("dataset", "verify", tmp_path / "ds").code == 0
    assert tape("annotate", recorded, tmp_path / "y", "--to", "pack", "--player", "random").code == 78
    done = tape("annotate", recorded, tmp_path / "z.a2pack", "--player", "ntuple:weights=fast")
    assert done.code == 0
    values = PackReader.open(tmp_path / "z.a2pack").decode(0).branch_values
    assert values.max() == pytest.approx(1, abs=1e-6)
    assert len(np.unique(values)) > 100, "a network's values, not ties"


def test_targets_have_to_be_said(tape: Tape, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    assert tape("convert", tmp_path / "runs", tmp_path / "x.a2pack").code == 72
    (tmp_path / "x.jsonl").write_text('{"steps": 0, "states": [1], "moves": []}\n')
    done = tape("convert", tmp_path / "x.jsonl", tmp_path / "x")
    assert done.code == 10
    assert "--to" in done.err
    assert tape("convert", tmp_path / "x.jsonl", tmp_path / "x", "--to", "unknown").code == 2
    missing = tape("convert", tmp_path / "none", tmp_path / "x")
    assert (missing.code, "none: nothing stands at this path" in missing.err) == (38, True)
    assert tape("convert", tmp_path / "x.jsonl", tmp_path / "x.a2pack").code == 0
