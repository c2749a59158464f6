"""Convert, on what the real recorder leaves."""

import json
from pathlib import Path

import numpy as np
import pytest

from tape2048.errors import FormatError
from tape2048.runs import PackReader
from tape2048.session.session import Session, sessions

from ..conftest import Cli


@pytest.fixture
def recorded(cli: Cli, tmp_path: Path) -> Path:
    """A session of 5 games, recorded with moves."""
    flags = ["--player", "greedy", "--max-games", "5", "--seed", "4", "--record-action", "--workers", "1"]
    cli("record", *flags, "--out", str(tmp_path / "selfplay"), process=True)
    return sessions(tmp_path / "selfplay")[0]


@pytest.mark.slow
@pytest.mark.parametrize("flags", [[], ["--record-action"], ["--sample-rate", "7"]])
def test_missing_facts_are_replayed(cli: Cli, tmp_path: Path, flags: list[str]) -> None:
    """The rules leave two candidates for some of these games' ends."""
    games = ["--player", "greedy", "--max-games", "20", "--seed", "3", "--workers", "1"]
    games += ["--out", str(tmp_path / "games")]
    cli("record", *games, *flags, process=True)
    games[-1] = str(tmp_path / "known")
    cli("record", *games, "--record-action", process=True)
    for name, command in (
        ("all", ["dataset", "build", tmp_path / "games", "--out", tmp_path / "all"]),
        ("all.a2pack", ["convert", tmp_path / "all", "--out", tmp_path / "all.a2pack"]),
        ("direct.a2pack", ["convert", tmp_path / "games", "--out", tmp_path / "direct.a2pack"]),
        ("known.a2pack", ["convert", tmp_path / "known", "--out", tmp_path / "known.a2pack"]),
    ):
        done = cli(*command)
        assert done.err == "", name
    found, direct, known = (
        [run.states.tolist() for run in PackReader.open(tmp_path / name)]
        for name in ("all.a2pack", "direct.a2pack", "known.a2pack")
    )
    assert direct == known
    assert found == known


@pytest.mark.parametrize(
    "command",
    [
        ["convert", "selfplay", "--out", "x.a2pack"],
        ["dataset", "build", "selfplay", "--out", "x"],
    ],
)  # fmt: skip
def test_games_that_cannot_be_played_again_are_refused(
    cli: Cli, root: Path, monkeypatch: pytest.MonkeyPatch, command: list[str]
) -> None:
    monkeypatch.chdir(root.parent)
    before = sorted(path.name for path in root.parent.iterdir())
    done = cli(*command, expect=5)
    assert done.out == ""
    assert "its moves were not recorded, and its games cannot be replayed: found games by" in done.err
    assert "hint: pass --lossy to end each game at its last recorded board" in done.err
    assert "--record-action" in done.err
    assert sorted(path.name for path in root.parent.iterdir()) == before


@pytest.mark.slow
def test_lossy_keeps_games_of_other_players(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "player.py").write_text(
        "import numpy as np\n\n\ndef make():\n"
        "    return lambda boards, legal, exps: np.tile(np.float32([4, 1, 3, 2]), (len(boards), 1))\n"
    )
    flags = [
        "--player", f"python:{tmp_path}/player.py:make", "--lanes", "64", "--workers", "1", "--seed", "5",
    ]  # fmt: skip
    flags += ["--max-games", "20"]
    for name, more in (("bare", []), ("moves", ["--record-action"])):
        done = cli("record", *flags, *more, "--out", str(tmp_path / name), process=True)
    rows = {name: Session.open(sessions(tmp_path / name)[0]) for name in ("bare", "moves")}
    cli("convert", tmp_path / "bare", "--out", tmp_path / "x.a2pack", expect=5)
    cli("convert", tmp_path / "moves", "--out", tmp_path / "x.a2pack", expect=5)
    for name, lost in (
        ("bare", "lost: the last move and the final board, of 20 runs"),
        ("moves", "uncertain"),
    ):
        done = cli("convert", tmp_path / name, "--out", tmp_path / f"{name}.a2pack", "--lossy")
        assert lost in done.err
        short = [
            len(run) - int(row["steps"])
            for run, row in zip(PackReader.open(tmp_path / f"{name}.a2pack"), rows[name].runs, strict=True)
        ]
        assert set(short) == ({-1} if name == "bare" else {-1, 0})
        PackReader.open(tmp_path / f"{name}.a2pack").validate()
    done = cli("convert", tmp_path / "moves", "--out", tmp_path / "pack.dat")
    assert done.err == ""


@pytest.mark.slow
def test_values_of_a_session_become_branch_values(cli: Cli, recorded: Path, tmp_path: Path) -> None:
    again, judge = tmp_path / "20260101T000000Z_model=x", ("--judge", "ntuple:weights=fast")
    cli("annotate", recorded, *judge)
    cli("convert", recorded, "--out", tmp_path / "x.a2pack")
    done = cli("convert", tmp_path / "x.a2pack", "--out", tmp_path / "v1", "--to", "a2run", expect=5)
    assert ("branch values" in done.err, (tmp_path / "v1").exists()) == (True, False)
    done = cli("convert", recorded, "--out", tmp_path / "v1", "--to", "a2run")
    assert done.err == "", "the session keeps its column"
    cli("convert", recorded, "--out", tmp_path / "ds", "--to", "dataset", "--lossy")
    rows = np.load(tmp_path / "ds/steps.npy")
    assert (rows["ev_values"][np.arange(len(rows)), rows["move"]] == 1.0).all()
    cli("dataset verify", tmp_path / "ds")
    cli("convert", tmp_path / "x.a2pack", "--out", again, "--to", "tape", "--lossy")
    cli("annotate", again, *judge)
    cli("convert", again, "--out", tmp_path / "y.a2pack")
    one, other = (list(PackReader.open(tmp_path / name)) for name in ("x.a2pack", "y.a2pack"))
    for a, b in zip(one, other, strict=True):
        assert a.states.tolist() == b.states.tolist()
        assert np.array_equal(a.branch_values, b.branch_values)
    assert len(np.unique(one[0].branch_values)) > 100, "a network's values, not ties"


def test_targets_have_to_be_said(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "runs").mkdir()
    cli("convert", tmp_path / "runs", "--out", tmp_path / "x.a2pack", expect=3)
    (tmp_path / "x.jsonl").write_text('{"steps": 0, "states": [1], "moves": []}\n')
    done = cli("convert", tmp_path / "x.jsonl", "--out", tmp_path / "x", expect=4)
    assert "--to" in done.err
    cli("convert", tmp_path / "x.jsonl", "--out", tmp_path / "x", "--to", "unknown", expect=2)
    missing = cli("convert", tmp_path / "none", "--out", tmp_path / "x", expect=3)
    assert "none: no such file or directory" in missing.err
    cli("convert", tmp_path / "x.jsonl", "--out", tmp_path / "x.a2pack")


def test_boards_as_text_come_back(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "x.jsonl").write_text(f'{{"steps": 0, "states": [{2**64 - 1}], "moves": []}}\n')
    cli("convert", tmp_path / "x.jsonl", "--out", tmp_path / "text.jsonl", "--u64", "text")
    assert f'"states":["{2**64 - 1}"]' in (tmp_path / "text.jsonl").read_text()
    cli("convert", tmp_path / "text.jsonl", "--out", tmp_path / "x.a2pack")
    assert PackReader.open(tmp_path / "x.a2pack").decode(0).states.tolist() == [2**64 - 1]


def test_a_session_has_the_player_that_is_named(cli: Cli, tmp_path: Path) -> None:
    states = 0x1100_0000_0000_0000, 0x2000_0000_0000_0001
    run = {"states": states, "moves": ["LEFT"], "steps": 1, "max_score": 4, "highest_tile": 4, "engine": "a"}
    (tmp_path / "x.jsonl").write_text(f"{json.dumps(run)}\n")
    out = tmp_path / "20260101T000000Z_model=x"
    cli("convert", tmp_path / "x.jsonl", "--out", out, "--to", "session", "--lossy", "--player", "mine")
    assert Session.open(out).meta["player"] == "mine"


def test_columns_of_another_program(cli: Cli, tmp_path: Path) -> None:
    """Named, if nobody can guess them; the error shows what there is, and what to type."""
    rows = [{"b": [1, 1] + 14 * [0], "key": "LEFT"}, {"b": [2] + 14 * [0] + [1], "key": "UP"}]
    (tmp_path / "mine.jsonl").write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    line = ("convert", tmp_path / "mine.jsonl", "--to", "session", "--out", tmp_path / "out")
    failed = cli(*line, expect=FormatError).err
    assert "found the columns b, key; expected a board (" in failed
    assert "--columns board=NAME,move=NAME,game=NAME" in failed
    assert ": 1 run (session)" in cli(*line, "--columns", "board=b,move=key").out
    assert "expected pairs such as" in cli(*line, "--columns", "b", expect=2).err
