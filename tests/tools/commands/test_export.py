"""``tape2048 export``."""

import json
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tape2048 import Session, errors

from ..conftest import Tape


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own to write to."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("format_", ["parquet", "arrow", "jsonl", "csv"])
def test_a_file_named_after_its_source(tape: Tape, root: Path, elsewhere: Path, format_: str) -> None:
    if format_ in {"parquet", "arrow"}:
        pytest.importorskip("pyarrow")
    outcome = tape("export", root, "--format", format_, "--labels", "8192,16384")
    path = elsewhere / f"{root.name}.rows.{format_}"
    assert outcome.code == 0
    assert outcome.out.startswith(f"{path.name}: 300 rows, ")
    # Progress appears only where the machine is slow.
    assert all(" info writing " in line for line in outcome.err.splitlines())
    assert path.stat().st_size > 1000
    document = tape("export", root, "--format", format_, "--runs", "--json").json
    assert document == {
        "path": f"{root.name}.runs.{format_}",
        "format": format_,
        "table": "runs",
        "records": 6,
        "bytes": (elsewhere / f"{root.name}.runs.{format_}").stat().st_size,
    }


def test_runs_as_lines(tape: Tape, session: Path) -> None:
    out = tape("export", session, "--runs", "--format", "jsonl", "--out", "-", "--labels", "8192").out
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["run_id"] for record in records] == [1, 2, 3, 4]
    assert records[1] == {
        "session": session.name, "player": "expectimax@abababababab", "run_id": 2, "seed": 2**63 + 5,
        "steps": 60, "max_score": 180_000, "highest_tile": 8192, "rows": 60, "reached_8192": True,
    }  # fmt: skip


def test_columns(tape: Tape, session: Path, tmp_path: Path) -> None:
    """All, or those of ``--with``, also of an overlay."""
    opened = Session.open(session, columns=tmp_path / "columns")
    opened.write_column("loss", np.arange(len(opened)) / 2)
    opened.use_overlay(None)
    opened.write_column("best", np.arange(len(opened), dtype=np.uint8))
    line = ("export", session, "--format", "jsonl", "-o", "-", "--columns", tmp_path / "columns")
    for options, names in (((), ["best", "loss"]), (("--with", "loss"), ["loss"]), (("--with", ""), [])):
        records = [json.loads(line) for line in tape(*line, *options).out.splitlines()]
        assert list(records[3]) == ["session", "run_id", "step_idx", "exps", *names]
        assert records[3].get("loss", 1.5) == 1.5
    done = tape(*line, "--with", "luck")
    assert (done.code, "no column 'luck'" in done.err) == (errors.ColumnError.exit_code, True)


def test_seeds_as_text(tape: Tape, session: Path) -> None:
    out = tape("export", session, "--runs", "--format", "jsonl", "-o", "-", "--u64", "text").out
    records = [json.loads(line) for line in out.splitlines()]
    assert (records[1]["run_id"], records[1]["seed"], records[1]["steps"]) == ("2", str(2**63 + 5), 60)


class TestRunFiles:
    """``--runs`` over run files: a record for each."""

    @pytest.fixture
    def traces(self, tmp_path: Path) -> Path:
        (tmp_path / "traces/ab").mkdir(parents=True)
        for suffix in ("a2run", "a2run2"):
            golden = Path(__file__).parents[2] / f"data/golden.{suffix}"
            shutil.copy(golden, tmp_path / f"traces/ab/golden.{suffix}")
        return tmp_path / "traces"

    @pytest.mark.parametrize("format_", ["parquet", "csv"])
    def test_a_file_named_after_them(self, tape: Tape, traces: Path, elsewhere: Path, format_: str) -> None:
        pytest.importorskip("pyarrow")
        done = tape("export", traces, "--runs", "--format", format_, "--labels", "2048")
        path = elsewhere / f"traces.runs.{format_}"
        assert done.code == 0
        assert done.out.startswith(f"{path.name}: 2 runs, ")
        if format_ == "csv":
            lines = path.read_text().splitlines()
            assert lines[0] == (
                "source,steps,start_unix_s,elapsed_s,max_score,highest_tile,engine,reached_2048"
            )
            assert lines[1].startswith(f"{traces}/ab/golden.a2run,")

    def test_to_a_pipe_and_past_a_damaged_file(self, tape: Tape, traces: Path) -> None:
        (traces / "bad.a2run").write_bytes(b"A2T1")
        done = tape("export", traces, traces / "ab/golden.a2run", "--runs", "--format", "csv", "-o", "-")
        assert done.code == 1
        assert len(done.out.splitlines()) == 4
        assert f"left out: {traces}/bad.a2run: TruncatedError" in done.err

    @pytest.mark.parametrize(
        ("arguments", "message"),
        [
            (["--runs", "--where", "steps > 3"], "--where: a condition on runs of sessions"),
            (["--runs", "SESSION"], "some of SOURCES are sessions, and some are run files"),
        ],
    )
    def test_wrong_usage(
        self, tape: Tape, traces: Path, session: Path, arguments: list[str], message: str
    ) -> None:
        given = [session if word == "SESSION" else word for word in arguments]
        done = tape("export", traces, *given, "--format", "csv", "-o", "-")
        assert done.code == 2
        assert message in done.err

    def test_nothing_there(self, tape: Tape, tmp_path: Path) -> None:
        (tmp_path / "empty").mkdir()
        done = tape("export", tmp_path / "empty", "--runs", "--format", "csv")
        assert done.code == errors.EmptyCorpusError.exit_code


def test_where_chooses_runs(tape: Tape, session: Path) -> None:
    out = tape("export", session, "--format", "jsonl", "-o", "-", "--where", "max_score >= 180000").out
    assert {json.loads(line)["run_id"] for line in out.splitlines()} == {2, 3}
    assert len(out.splitlines()) == 110
    nothing = tape("export", session, "--format", "jsonl", "-o", "-", "--where", "max_score > 1e9")
    assert nothing.code == errors.EmptyCorpusError.exit_code
    bad = tape("export", session, "--format", "jsonl", "-o", "-", "--where", "DROP TABLE runs")
    assert bad.code == errors.ConfigError.exit_code


def test_an_existing_file_stays_without_force(tape: Tape, session: Path, elsewhere: Path) -> None:
    path = elsewhere / "rows.jsonl"
    path.write_text("mine")
    outcome = tape("export", session, "--format", "jsonl", "--out", path)
    assert outcome.code == errors.NameTakenError.exit_code
    assert "--force" in outcome.err
    assert path.read_text() == "mine"
    assert tape("export", session, "--format", "jsonl", "--out", path, "--force", "--quiet").out == ""
    assert len(path.read_text().splitlines()) == 200


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--format", "xlsx"], "'xlsx' is not one of"),
        ([], "--format"),
        (["--format", "jsonl", "--labels", "8192,9"], "powers of two"),
        (["--format", "jsonl", "--labels", "many"], "found 'many', expected tiles, as 8192,16384"),
        (["--format", "parquet", "--out", "-"], "only jsonl and csv can go to a pipe"),
        (["--format", "csv", "--u64", "text"], "--u64 text: csv holds every integer"),
        (["--format", "jsonl", "--compression", "zstd"], "jsonl supports none"),
    ],
)
def test_wrong_usage(tape: Tape, session: Path, elsewhere: Path, arguments: list[str], message: str) -> None:
    outcome = tape("export", session, *arguments)
    assert outcome.code == 2
    assert message in outcome.err
    assert not list(elsewhere.iterdir())


def test_sources_that_are_none(tape: Tape, tmp_path: Path) -> None:
    assert tape("export", "--format", "jsonl").code == 2
    (tmp_path / "empty").mkdir()
    outcome = tape("export", tmp_path / "empty", "--format", "jsonl")
    assert outcome.code == errors.EmptyCorpusError.exit_code


def test_a_closed_pipe_is_no_error(session: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tape2048_tools.cli", "export", session, "--format", "jsonl", "-o", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141


def test_full_disk_behind_standard_output(
    process: Callable[..., subprocess.CompletedProcess[str]], session: Path
) -> None:
    options = ["--runs", "--format", "jsonl", "--out", "-"]
    with Path("/dev/full").open("wb") as full:
        done = process(
            "export", str(session), *options, capture_output=False, stdout=full, stderr=subprocess.PIPE
        )
    assert done.returncode == errors.DiskFullError.exit_code
    assert done.stderr.startswith("tape2048: error: writing to standard output failed")
    assert "Traceback" not in done.stderr
