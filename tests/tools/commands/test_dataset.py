import dataclasses
import json
import struct
from pathlib import Path

import numpy as np
import pytest
from crc32c import crc32c
from tests.sdk import run_builders
from tests.sdk.runs.set_builders import dataset_rows, packdat_bytes, write_dataset

from ..conftest import Cli, write_foreign_session, write_session

# One move to the right and a spawn, again and again, worked out by hand: 2 . . . -> . . . 2 -> 2 . . 2. It
# does not begin with a start, so that earlier merges may have scored, too.
STATES = [0x1000 << 48, 0x1001 << 48, 0x1002 << 48]
MOVES = bytes([3, 3])


def a2t1(score: int, engine: bytes = b"toy", start: int = 1_767_225_600) -> bytes:
    head = b"A2T1" + struct.pack("<BBIQfQIH", 1, 0, 2, start, 1.5, score, 4, len(engine)) + engine
    body = head + struct.pack("<3Q", *STATES) + MOVES
    return body + crc32c(body).to_bytes(4, "little")


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    for number, score in enumerate((4, 6, 8)):
        (tmp_path / f"runs/{number}.a2run").write_bytes(a2t1(score, b"toy" if number else b""))
    return tmp_path / "runs"


@pytest.fixture
def built(cli: Cli, runs: Path, tmp_path: Path) -> Path:
    done = cli("dataset build", runs, "--out", tmp_path / "ds")
    assert done.err == ""
    assert "3 runs, 6 rows" in done.out
    return tmp_path / "ds"


@pytest.mark.parametrize("command", ["stats", "filter", "append"])
def test_a_session_in_the_place_of_a_data_set_is_told(
    cli: Cli, runs: Path, tmp_path: Path, command: str
) -> None:
    root = tmp_path / "selfplay"
    session = write_session(root / "20260101T000000Z_model=a")
    foreign = write_foreign_session(tmp_path / "foreign")
    sharded = write_foreign_session(tmp_path / "sharded")
    (sharded / "steps.npy").rename(sharded / "steps-000001.npy")
    sources = (runs,) if command == "append" else ()
    stand = {session: "a session", root: "a directory of sessions"}
    for path, found in {**stand, foreign: "a session", sharded: "a session"}.items():
        done = cli("dataset", command, path, *sources, expect=3)
        assert done.out == ""
        assert f"{path}: found {found}, expected a data set\n" in done.err
        assert "such as tape2048 show" in done.err
        assert "tape2048 dataset build" in done.err


class TestBuildAndAppend:
    def test_what_is_left_out_is_named_and_the_code_is_1(self, cli: Cli, runs: Path, tmp_path: Path) -> None:
        (runs / "bad.a2run").write_bytes(b"A2T1")
        done = cli("dataset build", runs, "--out", tmp_path / "ds", "--json", expect=1)
        assert "bad.a2run: TruncatedError" in done.err
        assert (done.json["runs"], done.json["skipped"][0]["error"]) == (3, "TruncatedError")

    def test_values_that_were_normalised_are_told(self, cli: Cli, tmp_path: Path) -> None:
        kept = run_builders.game(1, steps_max=9)
        branches = [(1e4, 2e4, 3e4, 4e4)] * len(kept.moves)
        raw, again = (dataclasses.replace(kept, branches=branches, start_unix_s=start) for start in (7, 8))
        for name, played in (("kept", kept), ("raw", raw), ("again", again)):
            (tmp_path / f"{name}.a2run2").write_bytes(run_builders.a2run2_bytes(played))
        ds = tmp_path / "ds"
        done = cli("dataset build", tmp_path / "kept.a2run2", "--out", ds)
        assert done.out == f"{ds}: 1 run, 9 rows added\n"
        done = cli("dataset append", ds, tmp_path / "raw.a2run2")
        note = "branch values outside 0 to 1 were normalised in 1 run"
        assert done.out == f"{ds}: 1 run, 9 rows added; {note}\n"
        assert cli("dataset append", ds, tmp_path / "again.a2run2", "--json").json["normalised"] == 1
        sources = cli("dataset stats", ds, "--json").json["sources"]
        assert [source.get("normalised", 0) for source in sources] == [0, 1, 1]

    def test_names_that_are_taken_or_missing(self, cli: Cli, built: Path, runs: Path, tmp_path: Path) -> None:
        cli("dataset build", runs, "--out", built, expect=6)
        cli("dataset append", tmp_path / "none", runs, expect=3)
        cli("dataset build", tmp_path / "none", "--out", tmp_path / "x", expect=3)


class TestStatsAndFilter:
    def test_stats(self, cli: Cli, built: Path, runs: Path) -> None:
        found = cli("dataset stats", built, "--json").json
        assert (found["rows"], found["runs"], found["engines"]) == (6, 3, {"": 1, "toy": 2})
        assert found["score"]["p50"] == 6
        assert found["sources"] == [{"path": "runs", "kind": "runs", "runs": 3, "steps": 6, "skipped": 0}]
        text = cli("dataset stats", built).out
        assert "toy" in text
        assert "\nruns " in text

    @pytest.mark.parametrize(
        ("flags", "runs_left"),
        [
            ("--min-score 6 --engine toy", 2), ("--max-score 4 --max-highest-tile 8", 1),
            ("--min-highest-tile 8", 0),
            ("--min-steps 2 --max-steps 2 --since 2026-01-01", 3), ("--until 2026-01-01", 0),
        ],
    )  # fmt: skip
    def test_filter_counts(self, cli: Cli, built: Path, flags: str, runs_left: int) -> None:
        found = cli(f"dataset filter {flags} --json", built).json
        assert (found["runs"], found["rows"], found["of_runs"]) == (runs_left, 2 * runs_left, 3)

    def test_filter_writes(self, cli: Cli, built: Path, tmp_path: Path) -> None:
        cli("dataset filter", built, "--min-score", "6", "--shard-rows", "3", "--out", tmp_path / "part")
        shards = [np.load(path)["run_id"].tolist() for path in sorted((tmp_path / "part/shards").iterdir())]
        assert shards == [[0, 0, 1], [1]]
        cli("dataset verify", tmp_path / "part")

    def test_a_filter_that_leaves_nothing_writes_nothing(self, cli: Cli, built: Path, tmp_path: Path) -> None:
        done = cli("dataset filter", built, "--min-score", "9", "--out", tmp_path / "part", expect=3)
        assert done.out == ""
        assert "leaves 0 of 3 runs and 0 of 6 rows. Nothing was written" in done.err
        assert not (tmp_path / "part").exists()
        cli("dataset filter", built, "--since", "yesterday", expect=2)


class TestVerify:
    def test_sound_and_not(self, cli: Cli, built: Path) -> None:
        assert cli("dataset verify", built).out.startswith("ok ")
        data = bytearray((built / "steps.npy").read_bytes())
        data[-1] ^= 1
        (built / "steps.npy").write_bytes(data)
        done = cli("dataset verify", built, expect=1)
        assert "BookkeepingError" in done.out
        assert cli("dataset verify", built, "--json", expect=1).json["ok"] is False

    def test_a_path_where_nothing_stands_is_no_finding(self, cli: Cli, built: Path, tmp_path: Path) -> None:
        done = cli("dataset verify", built, tmp_path / "none", expect=3)
        assert done.out == ""
        assert "none: no such file or directory" in done.err
        cli("dataset verify", built / "steps.npy", expect=3)


def test_a_pack_dat_in_the_place_of_a_data_set(cli: Cli, tmp_path: Path) -> None:
    dat = tmp_path / "pack.dat"
    dat.write_bytes(packdat_bytes())
    found = cli("dataset stats", dat, "--json").json
    assert (found["rows"], found["runs"], found["bytes"]) == (87, 3, dat.stat().st_size)
    done = cli("dataset filter", dat, "--min-score", "164", "--out", tmp_path / "ds")
    assert done.out == f"2 of 3 runs, 75 of 87 rows, written to {tmp_path}/ds\n"
    done = cli("dataset verify", tmp_path / "ds", dat)
    assert done.out.count("ok ") == 2
    assert f"{dat}: 87 rows, 3 runs, 1 checksum" in done.out
    data = bytearray(dat.read_bytes())
    data[100] ^= 1
    dat.write_bytes(data)
    done = cli("dataset verify", dat, expect=1)
    assert "ChecksumError" in done.out


@pytest.mark.parametrize("kind", ["ds", "pack.dat"])
def test_commands_of_sessions_take_it(cli: Cli, tmp_path: Path, kind: str) -> None:
    path = tmp_path / kind
    if kind == "ds":
        write_dataset(path)
    else:
        path.write_bytes(packdat_bytes())
    shown = json.loads(cli("show --json", path).out)
    assert (shown["rows"], shown["games"], shown["score"]["max"]) == (87, 3, 280)
    assert "ev_values" in {column["name"] for column in shown["columns"]}
    checked = json.loads(cli("validate --json", path).out)["sessions"][0]
    assert (checked["ok"], checked["rows"], checked["runs"]) == (True, 87, 3)
    cli("export --rows --format csv --out", tmp_path / "rows.csv", path)
    lines = (tmp_path / "rows.csv").read_text().splitlines()
    assert len(lines) == 88
    assert "ev_values_3" in lines[0]

    if kind == "ds":
        rows = dataset_rows()
        rows["move"][10] = 4
        np.save(path / "steps.npy", rows)
    else:
        path.write_bytes(path.read_bytes()[:-1] + b"x")
    assert cli("validate --quarantine", path, expect=1).out.startswith("BAD")
    assert path.exists()
