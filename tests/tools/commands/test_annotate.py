"""The commands that make columns, by the one that is quickest to run."""

import shutil
from pathlib import Path

import numpy as np
import pytest

from tape2048.session.session import Session, sessions

from ..conftest import Cli

ANNOTATE = ("annotate", "--judge", "ntuple:weights=fast")
NAMES = ["values", "best", "loss", "luck", "grade", "network_values"]


def files(directory: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in sorted(directory.iterdir())}


def test_shares_make_what_one_process_makes(cli: Cli, root: Path, tmp_path: Path) -> None:
    first = sessions(root)[0]
    before = files(first)
    made = cli(*ANNOTATE, root, "--out", tmp_path / "alone", "--json")
    assert (made.json["columns"], len(made.json["sessions"])) == (NAMES, 2)
    for share, status in (("1/2", "waiting"), ("2/2", "made"), ("1/2", "there")):
        how = ("--out", tmp_path / "shared", "--chunk-rows", "30", "--json")
        done = cli(*ANNOTATE, root, "--shard", share, *how)
        assert {line["status"] for line in done.json["sessions"]} == {status}
    for session in sessions(root):
        assert files(tmp_path / "alone" / session.name) == files(tmp_path / "shared" / session.name)
    assert files(first) == before
    values, info, _ = Session.open(first, columns=tmp_path / "alone").column("values")
    assert (values.dtype, values.shape[1], info.facts["moves"]) == (np.float32, 4, True)
    assert info.facts["judge_sha256"] == made.json["judge_sha256"]


def test_an_overlay_refuses_two_sessions_of_one_name(cli: Cli, session: Path, tmp_path: Path) -> None:
    other = tmp_path / "other" / session.name
    shutil.copytree(session, other)
    done = cli(*ANNOTATE, session, other, "--out", tmp_path / "columns", expect=5)
    assert f"has the same name as {session}" in done.err
    cli(*ANNOTATE, session, other)


def test_columns_of_another_judge_stay(cli: Cli, session: Path) -> None:
    cli(*ANNOTATE, session)
    before = files(session)
    other = cli("annotate", session, "--judge", "ntuple:weights=small", expect=4)
    assert ("judge_sha256 is" in other.err, "--force" in other.err) == (True, True)
    assert files(session) == before
    assert "already complete" in cli(*ANNOTATE, session).out
    cli("annotate", session, "--judge", "ntuple:weights=small", "--force")
    assert files(session) != before


def test_a_dry_run_writes_nothing(cli: Cli, root: Path, empty_session: Path) -> None:
    before = [files(path) for path in sessions(root)]
    facts = cli(*ANNOTATE, root, "--dry-run", "--json").json
    rows = sum(len(Session.open(path)) for path in sessions(root))
    assert (facts["rows"], facts["sessions"], facts["bytes"]) == (rows, 2, 42 * rows)
    assert facts["rows_per_s"] > 0
    assert "Nothing was written" in cli(*ANNOTATE, root, "--dry-run").out
    cli(*ANNOTATE, empty_session, "--dry-run")
    assert [files(path) for path in sessions(root)] == before
    cli(*ANNOTATE, empty_session)


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["annotate", "{session}", "--judge", "random"], 78, "found the judge 'random', expected ntuple"),
        (["annotate", "{session}", "--judge", "ntuple:look=9"], 78, "searches all moves"),
        (["annotate", "{runs}"], 3, "tape2048 convert"),
        (["critic", "score", "default", "{runs}"], 3, "tape2048 convert"),
        (["critic", "score", "default", "{session}", "--name", "tokens"], 2, "built-in field"),
    ],
)  # fmt: skip
def test_makers_refuse(cli: Cli, session: Path, args: list[str], code: int, said: str) -> None:
    runs = session.parent.with_name("games.jsonl")
    runs.touch()
    before = files(session)
    done = cli(*(word.format(session=session, runs=runs) for word in args), expect=code)
    assert said in done.err, done.err
    assert files(session) == before
