"""Jobs over many sessions: whoever is killed, the outputs are those of one process, made once."""

import json
import os
import shutil
import subprocess
import sys
import threading
from collections import Counter
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests.crashes import crashes

from tape2048 import errors
from tape2048.files.durable import rename_noreplace
from tape2048.session.column_draft import write_column
from tape2048.session.session import Session, sessions
from tape2048_tools.sessions.session_jobs import Job, run_job, shard_of

from ..conftest import Cli

CHECKOUT = Path(__file__).resolve().parents[3]
COMMAND = [sys.executable, "-m", "tape2048_tools.cli"]

#: For each operation: what comes before the sessions, and after them; the directory of outputs is last.
OPERATIONS = {
    "repack": (["repack"], ["--storage", "tape", "--out"]),
    "validate": (["validate"], ["--out"]),
    "report": (["report"], ["--games", "1", "--judge", "ntuple:weights=fast", "--out"]),
    "pack": (["convert"], ["--to", "a2pack", "--out"]),
    "packdat": (["convert"], ["--to", "packdat", "--out"]),
    "a2run2": (["convert"], ["--to", "a2run2", "--out"]),
    "session": (["convert"], ["--to", "session", "--lossy", "--player", "mine", "--out"]),
}


REPACK = ["repack", "{root}", "--storage", "tape"]


def words(operation: str, root: Path, out: Path, *more: str) -> list[str]:
    """The command line of a job."""
    before, after = OPERATIONS[operation]
    return [*before, str(root), *after, str(out), *more]


def tree(root: Path) -> dict[str, bytes]:
    """Every file, the hidden ones too."""
    files = (path for path in root.rglob("*") if path.is_file())
    return {path.relative_to(root).as_posix(): path.read_bytes() for path in files}


def stamps(root: Path) -> dict[Path, tuple[int, int]]:
    """What changes with anything that is written."""
    return {path: (path.stat().st_mtime_ns, path.stat().st_ino) for path in [root, *root.rglob("*")]}


@pytest.fixture(scope="module")
def many(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with some sessions of a recorder, each with a column."""
    root = tmp_path_factory.mktemp("many") / "selfplay"
    limits = ["--max-games", "60", "--rotate-steps", "1000", "--record-action", "--seed", "3"]
    record = [*COMMAND, "record", "--player", "greedy", "--workers", "1", *limits, "--out", str(root)]
    subprocess.run(record, check=True, capture_output=True, timeout=120)
    assert len(sessions(root)) > 4
    for session in map(Session.open, sessions(root)):
        write_column(session, "loss", np.arange(len(session), dtype=np.float32))
    return root


@pytest.fixture(scope="module")
def on_tape(many: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What one process leaves of a job: all sessions on tape."""
    from tape2048_tools.cli import run

    out = tmp_path_factory.mktemp("serial") / "tape"
    assert run([*words("repack", many, out, "--shard", "1/1"), "--quiet"]) == 0
    return out


@pytest.mark.parametrize("operation", OPERATIONS)
def test_shards_equal_one_process(operation: str, cli: Cli, many: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "selfplay", tmp_path / "out"
    count = 3
    for session in sessions(many)[:count]:
        shutil.copytree(session, root / session.name)
    serial = cli(*words(operation, root, out, "--shard", "1/1", "--json"))
    one_process = tree(out)
    shutil.rmtree(out)
    made = 0
    for index in (3, 1, 2):
        done = cli(*words(operation, root, out, "--shard", f"{index}/3", "--json"))
        made += done.json["made"]
        assert (done.json["sessions"], done.json["complete"]) == (count, made)
    assert made == count
    assert tree(out) == one_process
    if operation == "session":
        assert {Session.open(each).meta["player"] for each in sessions(out)} == {"mine"}
    before = stamps(out)
    again = cli(*words(operation, root, out, "--shard", "1/1", "--json"))
    assert (again.json["made"], again.json["there"]) == (0, count)
    results = [[each["result"] for each in run.json["outcomes"]] for run in (serial, again)]
    assert results[0] == results[1]
    assert stamps(out) == before


def test_a_data_set_of_parts_is_that_of_the_sessions(cli: Cli, many: Path, tmp_path: Path) -> None:
    for index in (1, 2):
        cli(*words("pack", many, tmp_path / "parts", "--shard", f"{index}/2"))
    parts = [tmp_path / "parts" / f"{session.name}.a2pack" for session in sessions(many)]
    cli("dataset build", *parts, "--out", tmp_path / "of-parts")
    cli("dataset build", many, "--out", tmp_path / "direct")
    for name in ("steps.npy", "metadata.db"):
        assert (tmp_path / "of-parts" / name).read_bytes() == (tmp_path / "direct" / name).read_bytes()


def test_a_new_session_is_all_that_a_later_run_makes(
    cli: Cli, many: Path, on_tape: Path, tmp_path: Path
) -> None:
    root, out = tmp_path / "growing", tmp_path / "out"
    shutil.copytree(many, root)
    last = sessions(root)[-1]
    last.rename(tmp_path / "later")
    cli(*words("repack", root, out, "--shard", "1/1"))
    (tmp_path / "later").rename(last)
    done = cli(*words("repack", root, out, "--shard", "1/1", "--json"))
    assert (done.json["made"], done.json["there"]) == (1, len(sessions(many)) - 1)
    assert tree(out) == tree(on_tape)


@given(st.text(min_size=1), st.integers(1, 50))
def test_the_name_decides_the_shard(name: str, shards: int) -> None:
    assert shard_of(name, shards) in range(shards)
    assert shard_of(name, 1) == 0


def test_shards_are_of_one_size_by_and_large() -> None:
    names = [f"20260101T{number:06d}Z_model=ntuple" for number in range(4000)]
    counts = Counter(shard_of(name, 8) for name in names)
    assert all(400 < counts[shard] < 600 for shard in range(8))


@pytest.mark.slow
@pytest.mark.parametrize(("operation", "every"), [("repack", 8), ("pack", 24)])
def test_a_killed_job_is_finished_by_the_next_run(
    operation: str, every: int, many: Path, tmp_path: Path, cli: Cli
) -> None:
    root, out = tmp_path / "two", tmp_path / "out"
    for session in sessions(many)[:2]:
        shutil.copytree(session, root / session.name)
    job = words(operation, root, out, "--shard", "1/1", "--quiet")
    cli(*job)
    whole, killed = tree(out), []
    assert any("done/" in name for name in whole)
    for crash in crashes(
        lambda: cli(*job),
        before=lambda: shutil.rmtree(out),
        calls=("fsync", "mkdir", "renameat2"),
        every=every,
    ):
        killed.append(crash.call)
        cli(*job)
        assert tree(out) == whole, crash
    assert len(killed) > 2


def test_two_processes_on_one_session_leave_one_output(many: Path, tmp_path: Path) -> None:
    """Both make it; the slower one finds an equal output, and says nothing."""
    both = threading.Barrier(2)

    def work(session: Path, draft: Path) -> dict[str, Any]:
        (draft / session.name).mkdir()
        (draft / session.name / "file").write_text("the same")
        both.wait(10)
        return {"rows": 7}

    job = Job("test", {}, work, tmp_path / "out")
    job.begin()
    found: list[Any] = []
    session = sessions(many)[0]
    threads = [threading.Thread(target=lambda: found.append(job.perform(session))) for _ in range(2)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert [outcome.status for outcome in found] == ["made", "made"]
    assert len(tree(tmp_path / "out")) == 3


def test_an_unreadable_session_fails_alone(cli: Cli, many: Path, tmp_path: Path) -> None:
    root, out = tmp_path / "selfplay", tmp_path / "out"
    shutil.copytree(many, root)
    bad = sessions(root)[1]
    os.truncate(bad / "steps.npy", 1000)
    for operation in ("repack", "validate"):
        done = cli(*words(operation, root, out / operation, "--shard", "1/1"), expect=1)
        assert str(bad) in done.out
        assert "TruncatedError" in done.out
        facts = cli(*words(operation, root, out / operation, "--shard", "1/1", "--json"), expect=1)
        assert (facts.json["failed"], facts.json["made"]) == (1, 0)
        assert not [path for path in (out / operation).rglob("*") if path.name.split(".")[0] == bad.name]
    shutil.copy(many / bad.name / "steps.npy", bad)
    done = cli(*words("repack", root, out / "repack", "--shard", "1/1", "--json"))
    assert done.json["made"] == 1


@pytest.mark.parametrize("shard", ["5/4", "0/4", "1/0", "-1/4", "1", "half", "1/4/4"])
def test_a_shard_that_is_none_is_refused(cli: Cli, many: Path, tmp_path: Path, shard: str) -> None:
    done = cli(*words("repack", many, tmp_path / "out", f"--shard={shard}"), expect=2)
    assert "expected I/N" in done.err
    assert not (tmp_path / "out").exists()


def test_other_parameters_are_not_mistaken_for_these(cli: Cli, many: Path, on_tape: Path) -> None:
    before = stamps(on_tape)
    for more, said in [
        (("--lossy",), "lossy = False, expected True"),
        (("--storage", "rows"), "storage = 'tape', expected 'rows'"),
    ]:
        done = cli(*words("repack", many, on_tape, "--shard", "1/1", *more), expect=errors.MaintenanceError)
        assert said in done.err, done.err
    done = cli("validate", many, "--out", on_tape, expect=errors.MaintenanceError)
    assert "operation = 'repack', expected 'validate'" in done.err
    assert stamps(on_tape) == before


def test_namesakes_are_told_apart(cli: Cli, many: Path, on_tape: Path, tmp_path: Path) -> None:
    one, other = sessions(many)[:2]
    shutil.copytree(other, tmp_path / "others" / one.name)
    done = cli(*words("repack", tmp_path / "others", on_tape, "--shard", "1/1"), expect=1)
    assert "found an output of another session with this name" in done.out
    both = cli(
        "repack",
        many,
        tmp_path / "others",
        "--storage",
        "tape",
        "--out",
        "new",
        "--shard",
        "1/1",
        expect=errors.MaintenanceError,
    )
    assert f"has the same name as {one}" in both.err
    assert not Path("new").exists()


def test_what_stands_in_the_way_is_not_replaced(cli: Cli, many: Path, tmp_path: Path) -> None:
    out, first = tmp_path / "out", sessions(many)[0].name
    out.mkdir()
    (out / f"{first}.a2pack").write_text("mine")
    done = cli(*words("pack", many, out, "--shard", "1/1"), expect=1)
    assert "NameTakenError" in done.out
    assert (out / f"{first}.a2pack").read_text() == "mine"
    assert len(list(out.glob("*.a2pack"))) == len(sessions(many))
    (out / ".job/job.json").write_text("{")
    done = cli(*words("pack", many, out, "--shard", "1/1"), expect=errors.MaintenanceError)
    assert "malformed" in done.err


@pytest.mark.parametrize(
    ("args", "code", "said"),
    [
        (["convert", "{root}", "--out", "new", "--to", "dataset", "--shard", "1/2"], 5, "--to a2pack"),
        (["convert", "{root}", "--out", "new.a2pack", "--shard", "1/2"], 2, "--to"),
        ([*REPACK, "--shard", "1/2"], 2, "--out"),
        ([*REPACK, "--out", "new", "--engine", "ray"], 2, "It is now --shard"),
        ([*REPACK, "--out", "{root}", "--shard", "1/2"], 5, "found the directory of the sessions"),
        ([*REPACK, "--out", "{session}", "--shard", "1/2"], 8, "found a session"),
        ([*REPACK, "--out", "new", "--remove", "--shard", "1/2"], 2, "--remove"),
        (["validate", "{root}", "--shard", "1/2"], 2, "--out"),
        (["validate", "{root}", "--out", "new", "--quarantine"], 2, "--quarantine"),
    ],
)  # fmt: skip
def test_what_is_no_job_is_refused_with_what_to_do(
    cli: Cli, many: Path, args: list[str], code: int, said: str
) -> None:
    before = stamps(many)
    done = cli(*(word.format(root=many, session=sessions(many)[0]) for word in args), expect=code)
    assert said in done.err
    assert not Path("new").exists()
    assert stamps(many) == before


def test_a_record_comes_after_its_outputs(
    many: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[list[str]] = []

    def work(session: Path, draft: Path) -> dict[str, Any]:
        for name in ("a.json", "b.npy"):
            (draft / f"{session.name}.{name}").touch()
        return {}

    def renamed(source: Path, target: Path) -> None:
        rename_noreplace(source, target)
        seen.append(sorted(path.name.rpartition(".")[2] for path in (tmp_path / "out").iterdir()))

    monkeypatch.setattr("tape2048_tools.sessions.session_jobs.rename_noreplace", renamed)
    job = Job("test", {}, work, tmp_path / "out")
    job.begin()
    (outcome,) = run_job(job, sessions(many)[:1])
    assert outcome.status == "made"
    assert seen == [["job", "npy"], ["job", "json", "npy"]], "a sidecar comes after what it describes"
    record = json.loads((tmp_path / "out/.job/done" / f"{Path(outcome.path).name}.json").read_text())
    assert record["result"] == {}
