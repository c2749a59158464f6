"""``tape2048 export``."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tape2048 import Session, errors
from tape2048.session.column_draft import write_column

from ..conftest import Cli


@pytest.fixture(autouse=True)
def elsewhere(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A directory of its own to write to."""
    (tmp_path / "here").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("format_", ["parquet", "arrow", "jsonl", "csv"])
def test_a_file_named_after_its_source(cli: Cli, root: Path, elsewhere: Path, format_: str) -> None:
    if format_ in {"parquet", "arrow"}:
        pytest.importorskip("pyarrow")
    outcome = cli("export", root, "--format", format_, "--labels", "8192,16384")
    path = elsewhere / f"{root.name}.rows.{format_}"
    assert outcome.out.startswith(f"{path.name}: 300 rows, ")
    # Progress appears only where the machine is slow.
    assert all(" info writing " in line for line in outcome.err.splitlines())
    assert path.stat().st_size > 1000
    document = cli("export", root, "--format", format_, "--runs", "--json").json
    assert document == {
        "path": f"{root.name}.runs.{format_}",
        "format": format_,
        "table": "runs",
        "records": 6,
        "bytes": (elsewhere / f"{root.name}.runs.{format_}").stat().st_size,
    }


def test_the_format_is_in_the_name(cli: Cli, session: Path, elsewhere: Path) -> None:
    """And rows can have facts of their games."""
    cli("export --out rows.csv --with score,highest_tile,steps", session)
    head, first, *_ = (elsewhere / "rows.csv").read_text().splitlines()
    assert head.endswith(",exps_15,score,highest_tile,steps")
    runs = Session.open(session).runs[0]
    assert first.endswith(f",{runs['score']},{runs['highest_tile']},{runs['steps']}")
    assert "no table has the extension '.xls'" in cli("export --out rows.xls", session, expect=2).err
    assert "--format (jsonl, parquet, arrow, csv), or --out FILE" in cli("export", session, expect=2).err


def test_runs_as_lines(cli: Cli, session: Path) -> None:
    out = cli("export", session, "--runs", "--format", "jsonl", "--out", "-", "--labels", "8192").out
    records = [json.loads(line) for line in out.splitlines()]
    assert [record["run_id"] for record in records] == [1, 2, 3, 4]
    assert records[1] == {
        "session": session.name, "player": "expectimax@abababababab", "run_id": 2, "seed": 2**63 + 5,
        "steps": 60, "max_score": 180_000, "highest_tile": 8192, "rows": 60, "reached_8192": True,
    }  # fmt: skip


def test_columns(cli: Cli, session: Path, tmp_path: Path) -> None:
    """All, or those of ``--with``, also of an overlay."""
    opened = Session.open(session, columns=tmp_path / "columns")
    write_column(opened, "loss", np.arange(len(opened)) / 2)
    opened.use_overlay(None)
    write_column(opened, "best", np.arange(len(opened), dtype=np.uint8))
    line = ("export --format jsonl -o - --columns", tmp_path / "columns", session)
    for options, names in (((), ["best", "loss"]), (("--with", "loss"), ["loss"]), (("--with", ""), [])):
        records = [json.loads(line) for line in cli(*line, *options).out.splitlines()]
        assert list(records[3]) == ["session", "run_id", "step_idx", "exps", *names]
        assert records[3].get("loss", 1.5) == 1.5
    assert "no column 'luck'" in cli(*line, "--with", "luck", expect=errors.ColumnError).err


def test_seeds_as_text(cli: Cli, session: Path) -> None:
    out = cli("export --runs --format jsonl -o - --u64 text", session).out
    records = [json.loads(line) for line in out.splitlines()]
    assert (records[1]["run_id"], records[1]["seed"], records[1]["steps"]) == ("2", str(2**63 + 5), 60)


def test_run_files(cli: Cli, session: Path, elsewhere: Path) -> None:
    """``--runs`` over run files: a record for each, past a damaged file."""
    golden = Path(__file__).parents[2] / "data"
    (elsewhere / "traces/ab").mkdir(parents=True)
    for suffix in ("a2run", "a2run2"):
        shutil.copy(golden / f"golden.{suffix}", elsewhere / f"traces/ab/golden.{suffix}")
    for format_ in ("csv", "parquet"):
        done = cli(f"export traces --runs --format {format_} --labels 2048")
        assert done.out.startswith(f"traces.runs.{format_}: 2 runs, ")
    lines = (elsewhere / "traces.runs.csv").read_text().splitlines()
    assert lines[0] == "source,steps,start_unix_s,elapsed_s,max_score,highest_tile,engine,reached_2048"
    assert lines[1].startswith("traces/ab/golden.a2run,")
    (elsewhere / "traces/bad.a2run").write_bytes(b"A2T1")
    done = cli("export traces traces/ab/golden.a2run --runs --format csv -o -", expect=1)
    assert len(done.out.splitlines()) == 3, "the file is one of the directory's"
    assert "left out: traces/bad.a2run: TruncatedError" in done.err
    for wrong, message in (
        (("--where", "steps > 3"), "--where: found run files, expected sessions"),
        ((session,), "some of SOURCES are sessions, and some are run files"),
    ):
        assert message in cli("export traces --runs --format csv -o -", *wrong, expect=2).err


def test_where_chooses_runs(cli: Cli, session: Path) -> None:
    line = ("export --format jsonl -o - --where", "score >= 180000", session)
    records = [json.loads(line) for line in cli(*line).out.splitlines()]
    assert ({record["run_id"] for record in records}, len(records)) == ({2, 3}, 110)
    for where, error in (("score > 1e9", errors.EmptyCorpusError), ("DROP TABLE x", errors.ConfigError)):
        cli(line[0], where, session, expect=error)


def test_an_existing_file_stays_without_force(cli: Cli, session: Path, elsewhere: Path) -> None:
    path = elsewhere / "rows.jsonl"
    path.write_text("mine")
    line = ("export --format jsonl --out rows.jsonl", session)
    assert "--force" in cli(*line, expect=errors.NameTakenError).err
    assert path.read_text() == "mine"
    assert cli(*line, "--force", "--quiet").out == ""
    assert len(path.read_text().splitlines()) == 200


def test_wrong_usage(cli: Cli, session: Path, elsewhere: Path) -> None:
    for line, message in {
        "--format xlsx": "'xlsx' is not one of",
        "": "--format",
        "--format jsonl --labels 8192,9": "powers of two",
        "--format jsonl --labels many": "found 'many', expected tiles such as 8192,16384",
        "--format parquet --out -": "only jsonl and csv can go to a pipe",
        "--format csv --u64 text": "u64='text' of csv",
        "--format jsonl --compression zstd": "compression 'zstd' of jsonl",
    }.items():
        assert message in cli(f"export {line}", session, expect=2).err
    cli("export --format jsonl", expect=2)
    assert not list(elsewhere.iterdir())
    (elsewhere / "empty").mkdir()
    for table in ("--rows", "--runs"):
        cli(f"export empty --format jsonl {table}", expect=errors.EmptyCorpusError)


def test_a_closed_pipe_is_no_error(session: Path, environment: dict[str, str]) -> None:
    command = [sys.executable, "-m", "tape2048_tools.cli", "export", session, "--format", "jsonl", "-o", "-"]
    pipe = subprocess.PIPE
    with subprocess.Popen(command, env=environment, stdout=pipe, stderr=pipe) as child:
        child.stdout.close()
        assert child.stderr.read() == b""
        assert child.wait(60) == 141


def test_full_disk_behind_standard_output(cli: Cli, session: Path) -> None:
    options = ["--runs", "--format", "jsonl", "--out", "-"]
    with Path("/dev/full").open("wb") as full:
        how = {"capture_output": False, "stdout": full, "stderr": subprocess.PIPE, "process": True}
        done = cli("export", session, *options, expect=errors.DiskFullError, **how)
    assert done.err.startswith("tape2048: error: writing to standard output failed")
    assert "Traceback" not in done.err
