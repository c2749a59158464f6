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
@pytest.mark.parametrize("flags", [[], ["--record-action"], ["--sample-rate", "7"]])
def test_missing_facts_are_replayed(tape: Tape, process: Any, tmp_path: Path, flags: list[str]) -> None:
    """The rules leave two candidates for some of these games' ends."""
    games = ["--player", "greedy", "--max-games", "20", "--seed", "3", "--workers", "1"]
    games += ["--out-dir", str(tmp_path / "games")]
    assert process("record", *games, *flags).returncode == 0
    games[-1] = str(tmp_path / "known")
    assert process("record", *games, "--record-action").returncode == 0
    for name, command in (
        ("all", ["dataset", "build", tmp_path / "games", "--output", tmp_path / "all"]),
        ("all", ["dataset", "append", tmp_path / "all", tmp_path / "games"]),
        ("all.a2pack", ["convert", tmp_path / "all", tmp_path / "all.a2pack"]),
        ("direct.a2pack", ["convert", tmp_path / "games", tmp_path / "direct.a2pack"]),
        ("packed", ["pack", "pack", "--input", tmp_path / "games", "--output", tmp_path / "packed"]),
        ("known.a2pack", ["convert", tmp_path / "known", tmp_path / "known.a2pack"]),
    ):
        done = tape(*command)
        assert (done.code, done.err) == (0, ""), name
    found, direct, packed, known = (
        [run.states.tolist() for run in PackReader.open(tmp_path / name)]
        for name in ("all.a2pack", "direct.a2pack", "packed", "known.a2pack")
    )
    assert direct == packed == known
    assert found == 2 * known


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "selfplay", "x.a2pack"], ["annotate", "selfplay", "x.a2pack"],
        ["dataset", "build", "selfplay", "--output", "x"],
        ["pack", "pack", "--input", "selfplay", "--output", "x"],
    ],
)  # fmt: skip
def test_games_that_cannot_be_played_again_are_refused(
    tape: Tape, root: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(root.parent)
    before = sorted(path.name for path in root.parent.iterdir())
    done = tape(*command)
    assert (done.code, done.out) == (5, "")
    assert "its moves were not recorded, and its games cannot be replayed: it was played by" in done.err
    assert "hint: --lossy ends each game at its last recorded board" in done.err
    assert "--record-action" in done.err
    assert sorted(path.name for path in root.parent.iterdir()) == before


@pytest.mark.slow
def test_lossy_keeps_games_of_other_players(tape: Tape, process: Any, tmp_path: Path) -> None:
    (tmp_path / "player.py").write_text(
        "import numpy as np\n\n\ndef make():\n"
        "    return lambda boards, legal, exps: np.tile(np.float32([4, 1, 3, 2]), (len(boards), 1))\n"
    )
    flags = [
        "--player",
        f"python:{tmp_path}/player.py:make",
        "--lanes",
        "64",
        "--workers",
        "1",
        "--seed",
        "5",
    ]
    flags += ["--max-games", "20"]
    for name, more in (("bare", []), ("moves", ["--record-action"])):
        done = process("record", *flags, *more, "--out-dir", str(tmp_path / name))
        assert done.returncode == 0, done.stderr
    rows = {name: Session.open(sessions(tmp_path / name)[0]) for name in ("bare", "moves")}
    assert tape("convert", tmp_path / "bare", tmp_path / "x.a2pack").code == 5
    assert tape("convert", tmp_path / "moves", tmp_path / "x.a2pack").code == 5
    for name, lost in (
        ("bare", "lost: the last move and the final board, of 20 runs"),
        ("moves", "uncertain"),
    ):
        done = tape("convert", tmp_path / name, tmp_path / f"{name}.a2pack", "--lossy")
        assert (done.code, lost in done.err) == (0, True)
        short = [
            len(run) - int(row["steps"])
            for run, row in zip(PackReader.open(tmp_path / f"{name}.a2pack"), rows[name].runs, strict=True)
        ]
        assert set(short) == ({-1} if name == "bare" else {-1, 0})
        assert tape("pack", "validate", "--packfile", tmp_path / f"{name}.a2pack").code == 0
    done = tape("convert", tmp_path / "moves", tmp_path / "pack.dat")
    assert (done.code, done.err) == (0, "")


def test_one_run_is_a_file_by_its_name(tape: Tape, tmp_path: Path) -> None:
    line = '{"steps": 0, "states": [1], "moves": []}\n'
    (tmp_path / "x.jsonl").write_text(line)
    assert tape("convert", tmp_path / "x.jsonl", tmp_path / "x.a2pack").code == 0
    assert tape("convert", tmp_path / "x.a2pack", tmp_path / "x.a2run2").code == 0
    assert (tmp_path / "x.a2run2").is_file()
    (tmp_path / "y.jsonl").write_text(2 * line)
    refused = tape("convert", tmp_path / "y.jsonl", tmp_path / "y.a2run2")
    assert (refused.code, (tmp_path / "y.a2run2").exists()) == (4, False)
    assert "hint: name a directory" in refused.err
    for name in ("x", "y"):
        assert tape("convert", tmp_path / f"{name}.jsonl", tmp_path / name, "--to", "a2run2").code == 0
        assert (tmp_path / name / "000000.a2run2").is_file()


@pytest.mark.slow
def test_annotate(tape: Tape, recorded: Path, tmp_path: Path) -> None:
    assert tape("annotate", recorded, tmp_path / "x.a2pack", "--player", "expectimax:depth=1").code == 0
    done = tape("convert", tmp_path / "x.a2pack", tmp_path / "v1", "--to", "a2run")
    assert done.code == 5
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
    assert tape("convert", tmp_path / "runs", tmp_path / "x.a2pack").code == 3
    (tmp_path / "x.jsonl").write_text('{"steps": 0, "states": [1], "moves": []}\n')
    done = tape("convert", tmp_path / "x.jsonl", tmp_path / "x")
    assert done.code == 4
    assert "--to" in done.err
    assert tape("convert", tmp_path / "x.jsonl", tmp_path / "x", "--to", "unknown").code == 2
    missing = tape("convert", tmp_path / "none", tmp_path / "x")
    assert (missing.code, "none: nothing stands at this path" in missing.err) == (3, True)
    assert tape("convert", tmp_path / "x.jsonl", tmp_path / "x.a2pack").code == 0


def test_boards_as_text_come_back(tape: Tape, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"steps": 0, "states": [{2**64 - 1}], "moves": []}}\n')
    done = tape("convert", tmp_path / "x.jsonl", tmp_path / "text.jsonl", "--u64", "text")
    assert done.code == 0
    assert f'"states":["{2**64 - 1}"]' in (tmp_path / "text.jsonl").read_text()
    assert tape("convert", tmp_path / "text.jsonl", tmp_path / "x.a2pack").code == 0
    assert PackReader.open(tmp_path / "x.a2pack").decode(0).states.tolist() == [2**64 - 1]
