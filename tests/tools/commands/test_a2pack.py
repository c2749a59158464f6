"""``a2pack``."""

import dataclasses
import json
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from tests.sdk import run_builders as build
from tests.sdk.datasets.set_builders import GAMES as DAT_GAMES, packdat_bytes

from tape2048 import errors
from tape2048_tools import cli
from tape2048_tools.commands.runs import a2pack as a2pack_command

from ..conftest import Outcome

A2pack = Callable[..., Outcome]

GAMES = [build.game(seed, steps_max=10 + seed, engine="e" if seed else None) for seed in range(4)]
PAYLOADS = [build.a2run2_bytes(g) if i % 2 else build.a2t1_bytes(g) for i, g in enumerate(GAMES)]


@pytest.fixture
def runs(tmp_path: Path) -> Path:
    (tmp_path / "runs").mkdir()
    for i, payload in enumerate(PAYLOADS):
        (tmp_path / f"runs/{i}.a2run2").write_bytes(payload)
    return tmp_path / "runs"


@pytest.fixture
def packfile(tmp_path: Path) -> Path:
    spec = build.PackSpec(PAYLOADS, align=64, stats=build.stats_block(GAMES))
    (tmp_path / "x.a2pack").write_bytes(build.a2pack_bytes(spec))
    return tmp_path / "x.a2pack"


@pytest.fixture
def a2pack(capsys: pytest.CaptureFixture[str]) -> A2pack:
    """Run ``a2pack`` in this process, through the function that its entry point calls."""
    from ..conftest import Outcome

    def run_here(*args: str | Path) -> Outcome:
        capsys.readouterr()
        code = cli.run([str(arg) for arg in args], a2pack_command.command, "a2pack")
        captured = capsys.readouterr()
        return Outcome(code, captured.out, captured.err)

    return run_here


class TestPack:
    def test_the_seeds_command(self, a2pack: A2pack, runs: Path, tmp_path: Path) -> None:
        done = a2pack("pack", "--input", runs, "--output", tmp_path / "y", "--align", "64", "--workers", "2")
        assert (done.code, done.err) == (0, "")
        assert done.out.startswith(f"{tmp_path}/y: 4 runs, 46 steps, ")
        spec = build.PackSpec(PAYLOADS, align=64, stats=build.stats_block(GAMES))
        assert (tmp_path / "y").read_bytes() == build.a2pack_bytes(spec)

    @pytest.mark.parametrize(
        "flags", [["--compress", "zstd"], ["--compress", "lz4"], ["--no-entry-crc"], ["--entry-crc"]]
    )
    def test_flags(self, a2pack: A2pack, runs: Path, tmp_path: Path, flags: list[str]) -> None:
        assert a2pack("pack", "--input", runs, "--output", tmp_path / "y", *flags).code == 0
        assert a2pack("validate", "--packfile", tmp_path / "y").code == 0
        info = a2pack("inspect", "--packfile", tmp_path / "y", "--index", "1", "--json").json
        assert info["compression"] == (flags[1] if "--compress" in flags else "none")
        assert (info["crc32c"] == 0) == ("--no-entry-crc" in flags)

    def test_bad_files_are_named(self, a2pack: A2pack, runs: Path, tmp_path: Path) -> None:
        (runs / "2.a2run2").write_bytes(PAYLOADS[2][:-1])
        done = a2pack("pack", "--input", runs, "--output", tmp_path / "y", "--json")
        assert done.code == 1
        assert "left out" in done.err
        assert "2.a2run2" in done.err
        assert done.json["stats"]["count"] == 3
        (left_out,) = done.json["left_out"]
        assert left_out["error"] == "TruncatedError"
        assert left_out["path"] == str(runs / "2.a2run2")

    def test_one_run_is_one(self, a2pack: A2pack, tape: Any, runs: Path, tmp_path: Path) -> None:
        for path in sorted(runs.iterdir())[1:]:
            path.unlink()
        packed = a2pack("pack", "--input", runs, "--output", tmp_path / "y").out
        assert packed.startswith(f"{tmp_path}/y: 1 run, 10 steps, ")
        assert a2pack("validate", "--packfile", tmp_path / "y").out == f"OK: {tmp_path}/y (1 run)\n"
        lines = a2pack("to-jsonl", "--packfile", tmp_path / "y", "--output", tmp_path / "l").out
        assert lines.startswith(f"{tmp_path}/l: 1 run, ")
        assert "has 1 run\n" in a2pack("inspect", "--packfile", tmp_path / "y", "--index", "1").err
        ds = tmp_path / "ds"
        built = tape("dataset", "build", tmp_path / "y", "--out", ds).out
        assert built == f"{ds}: 1 run, 10 rows added\n"
        assert "1 of 1 run, 10 of 10 rows\n" in tape("dataset", "filter", ds).out
        assert ": 10 rows, 1 run, " in tape("dataset", "verify", ds).out
        assert (
            tape("convert", ds, "--out", tmp_path / "one.a2pack").out
            == f"{tmp_path}/one.a2pack: 1 run (pack)\n"
        )

    def test_what_cannot_be(self, a2pack: A2pack, runs: Path, tmp_path: Path) -> None:
        def pack(*flags: object) -> int:
            return a2pack("pack", "--input", runs, "--output", tmp_path / "y", *map(str, flags)).code

        assert pack("--align", 3) == 2
        assert pack("--compress", "gzip") == 2
        assert pack("--workers", 0) == 2
        assert pack() == 0
        assert pack() == errors.NameTakenError.exit_code
        done = a2pack("pack", "--input", tmp_path / "none", "--output", tmp_path / "z")
        assert done.code == errors.MissingPathError.exit_code
        assert done.err.startswith("a2pack: error: ")


class TestValidate:
    def test_sound(self, a2pack: A2pack, packfile: Path) -> None:
        done = a2pack("validate", "--packfile", packfile)
        assert (done.code, done.out, done.err) == (0, f"OK: {packfile} (4 runs)\n", "")
        done = a2pack("validate", "--packfile", packfile, "--json")
        assert (done.code, done.err) == (0, "")
        assert done.json == {"ok": True, "path": str(packfile), "runs": 4, "findings": []}

    def test_not_sound(self, a2pack: A2pack, packfile: Path) -> None:
        data = bytearray(packfile.read_bytes())
        data[data.index(PAYLOADS[2]) + 50] ^= 1
        packfile.write_bytes(data)
        done = a2pack("validate", "--packfile", packfile)
        assert (done.code, done.out) == (2, "")
        assert done.err.startswith(f"INVALID: {packfile} (ChecksumError: CRC-32C of entry 2 is ")
        done = a2pack("validate", "--packfile", packfile, "--json")
        assert (done.code, done.err) == (2, "")
        assert (done.json["ok"], done.json["runs"]) == (False, None)
        (found,) = done.json["findings"]
        assert found["error"] == "ChecksumError"
        assert found["message"].startswith("CRC-32C of entry 2 is ")
        packfile.write_bytes(data[:100])
        assert a2pack("validate", "--packfile", packfile).err.startswith("INVALID: ")

    def test_what_is_not_there(self, a2pack: A2pack, tmp_path: Path) -> None:
        done = a2pack("validate", "--packfile", tmp_path / "none")
        assert done.code == errors.MissingPathError.exit_code


def test_stats(a2pack: A2pack, packfile: Path) -> None:
    assert a2pack("stats", "--packfile", packfile, "--json").json == json.loads(build.stats_json(GAMES))
    lines = [line.split() for line in a2pack("stats", "--packfile", packfile).out.splitlines()]
    assert ["count", "4"] in lines
    assert ["engine_counts", "(none):", "1,", "e:", "3"] in lines


def test_a_pack_of_the_reference_writer(a2pack: A2pack, tmp_path: Path) -> None:
    spec = build.PackSpec(PAYLOADS, stats=build.stats_postcard(build.reference_stats(GAMES)), data_crc=False)
    (tmp_path / "x").write_bytes(build.a2pack_bytes(spec))
    done = a2pack("validate", "--packfile", tmp_path / "x")
    assert (done.code, done.out, done.err) == (0, f"OK: {tmp_path}/x (4 runs)\n", "")
    found = a2pack("stats", "--packfile", tmp_path / "x", "--json").json
    assert found == build.reference_stats(GAMES) | {"highest_tile_hist": None, "engine_counts": None}
    lines = [line.split()[0] for line in a2pack("stats", "--packfile", tmp_path / "x").out.splitlines()]
    assert sorted(lines) == sorted(build.STATS)


@pytest.mark.parametrize(
    ("flags", "lines"),
    [([], 4), (["--runs-only", "--no-parallel"], 4), (["--steps", "--parallel", "--workers", "2"], 46)],
)
def test_to_jsonl(a2pack: A2pack, packfile: Path, tmp_path: Path, flags: list[str], lines: int) -> None:
    done = a2pack("to-jsonl", "--packfile", packfile, "--output", tmp_path / "y.jsonl", *flags)
    assert done.code == 0
    found = [json.loads(line) for line in (tmp_path / "y.jsonl").read_text().splitlines()]
    assert len(found) == lines
    assert ("step_idx" in found[0]) == (lines == 46)
    other = tmp_path / "z.jsonl"
    done = a2pack("to-jsonl", "--packfile", packfile, "--output", other, "--json", *flags)
    assert done.json == {"path": str(other), "runs": 4, "bytes": other.stat().st_size}
    again = a2pack("to-jsonl", "--packfile", packfile, "--output", tmp_path / "y.jsonl", *flags)
    assert again.code == errors.NameTakenError.exit_code


def test_boards_as_text(a2pack: A2pack, packfile: Path, tmp_path: Path) -> None:
    for path, how in (("number", []), ("text", ["--u64", "text"])):
        assert a2pack("to-jsonl", "--packfile", packfile, "--output", tmp_path / path, *how).code == 0
    numbers, texts = (
        [json.loads(line) for line in (tmp_path / path).read_text().splitlines()]
        for path in ("number", "text")
    )
    for number, text in zip(numbers, texts, strict=True):
        boards = {"states": list(map(str, number["states"])), "final_board": str(number["final_board"])}
        assert text == number | boards


class TestExtract:
    def test_byte_for_byte(self, a2pack: A2pack, packfile: Path, tmp_path: Path) -> None:
        done = a2pack("extract", "--packfile", packfile, "--indices", "3, 0", "--output", tmp_path / "out")
        assert done.code == 0
        assert done.out.splitlines() == [
            f"{tmp_path}/out/run_000003.a2run2",
            f"{tmp_path}/out/run_000000.a2run",
        ]
        assert (tmp_path / "out/run_000003.a2run2").read_bytes() == PAYLOADS[3]
        done = a2pack(
            "extract", "--packfile", packfile, "--indices", "3,0", "--output", tmp_path / "out2", "--json"
        )
        assert done.json == {
            "runs": [
                {"index": 3, "path": f"{tmp_path}/out2/run_000003.a2run2"},
                {"index": 0, "path": f"{tmp_path}/out2/run_000000.a2run"},
            ]
        }
        done = a2pack("extract", "--packfile", packfile, "--indices", "0,1", "--output", tmp_path / "out")
        assert done.code == errors.NameTakenError.exit_code
        assert len(os.listdir(tmp_path / "out")) == 2  # noqa: PTH208 - only counted

    @pytest.mark.parametrize("indices", ["", "a", "-1", "4", "0,0", "1,,2", "0-3", "٣", "9" * 5000])
    def test_numbers_that_name_no_run(
        self, a2pack: A2pack, packfile: Path, tmp_path: Path, indices: str
    ) -> None:
        done = a2pack("extract", "--packfile", packfile, f"--indices={indices}", "--output", tmp_path / "out")
        assert done.code == 2
        assert not (tmp_path / "out").exists()


def test_inspect(a2pack: A2pack, packfile: Path) -> None:
    found = a2pack("inspect", "--packfile", packfile, "--index", "1", "--json").json
    game = GAMES[1]
    assert (found["kind"], found["steps"], found["engine"]) == ("v2", len(game.moves), "e")
    assert found["final_board"] == game.states[-1]
    assert found["moves"]["LEFT"] == game.moves.count(2)
    assert found["steps_with_branches"] == sum(branch is not None for branch in game.branches)
    assert found["length"] == len(PAYLOADS[1])
    text = a2pack("inspect", "--packfile", packfile, "--index", "1").out
    assert "final board" in text
    assert a2pack("inspect", "--packfile", packfile, "--index", "4").code == 2


def test_other_sources_are_packed_run_by_run(a2pack: A2pack, packfile: Path, tmp_path: Path) -> None:
    flags = ["--align", "1", "--compress", "zstd", "--no-entry-crc", "--json"]
    done = a2pack("pack", "--input", packfile, "--output", tmp_path / "y", *flags)
    assert (done.code, done.err) == (0, "")
    assert done.json["stats"]["count"] == 4
    assert done.json["bytes"] == (tmp_path / "y").stat().st_size < packfile.stat().st_size
    assert (done.json["path"], done.json["left_out"]) == (str(tmp_path / "y"), [])
    (tmp_path / "empty").mkdir()
    empty = a2pack("pack", "--input", tmp_path / "empty", "--output", tmp_path / "z")
    assert empty.code == errors.NotASessionError.exit_code


class TestPackDat:
    """validate, inspect, append and merge on pack.dat."""

    @pytest.fixture
    def dat(self, tmp_path: Path) -> Path:
        (tmp_path / "pack.dat").write_bytes(packdat_bytes())
        return tmp_path / "pack.dat"

    def test_validate(self, a2pack: A2pack, dat: Path) -> None:
        done = a2pack("validate", "--packfile", dat)
        assert (done.code, done.out, done.err) == (0, f"OK: {dat} (3 runs)\n", "")
        done = a2pack("validate", "--packfile", dat, "--json")
        assert done.json == {"ok": True, "path": str(dat), "runs": 3, "findings": [], "padded_steps": 0}

    def test_validate_finds_what_loading_does_not(self, a2pack: A2pack, dat: Path) -> None:
        def change(body: bytearray) -> None:
            body[28 + 32 * 5 : 28 + 32 * 5 + 8] = b"\x11" * 8  # a board that no move leads to
            body[28 + 31] = 7  # padding

        dat.write_bytes(packdat_bytes(change=change))
        done = a2pack("validate", "--packfile", dat)
        assert (done.code, done.out) == (2, "")
        assert "row 4 does not lead to the next row's board" in done.err
        found = a2pack("validate", "--packfile", dat, "--json").json
        assert (found["ok"], found["runs"], found["padded_steps"]) == (False, None, 1)
        assert {finding["error"] for finding in found["findings"]} <= {"FieldError", "BookkeepingError"}

    def test_padding_is_a_note(self, a2pack: A2pack, dat: Path) -> None:
        dat.write_bytes(packdat_bytes(change=lambda body: body.__setitem__(28 + 26, 0xCD)))
        done = a2pack("validate", "--packfile", dat)
        assert done.code == 0
        assert done.out == (
            f"OK: {dat} (3 runs; 1 step with padding that is not zero, which nothing reads)\n"
        )

    def test_inspect(self, a2pack: A2pack, dat: Path) -> None:
        found = a2pack("inspect", "--packfile", dat, "--index", "2", "--json").json
        assert (found["kind"], found["id"], found["first_step_idx"]) == ("packdat", 2, 42)
        game = DAT_GAMES[2]
        assert (found["steps"], found["engine"], found["max_score"]) == (45, "other é", game.max_score)
        assert found["final_board_certain"] is False
        assert "final board" in a2pack("inspect", "--packfile", dat, "--index", "2").out
        assert "has 3 runs" in a2pack("inspect", "--packfile", dat, "--index", "3").err

    def test_append(self, a2pack: A2pack, dat: Path, runs: Path, tmp_path: Path) -> None:
        (runs / "bad.a2run").write_bytes(b"A2T1")
        new = tmp_path / "new.dat"
        done = a2pack("append", "--packfile", dat, "--input", runs, "--output", new)
        assert done.code == 1
        assert done.out == f"{new}: 7 runs, 133 rows; 4 runs added\n"
        assert "left out: " in done.err
        assert dat.read_bytes() == packdat_bytes()
        assert a2pack("validate", "--packfile", new).code == 0
        (runs / "bad.a2run").unlink()
        again = tmp_path / "again.dat"
        done = a2pack("append", "--packfile", dat, "--input", runs, "--output", again, "--json")
        assert done.json == {
            "path": str(again), "runs": 7, "rows": 133, "added": 4, "normalised": 0, "left_out": []
        }  # fmt: skip
        assert again.read_bytes() == new.read_bytes()
        assert a2pack("append", "--packfile", dat, "--input", runs, "--output", new).code == (
            errors.NameTakenError.exit_code
        )
        no_dat = a2pack("append", "--packfile", runs / "0.a2run2", "--input", runs, "--output", new)
        assert no_dat.code == errors.MagicError.exit_code

    def test_append_says_what_was_normalised(self, a2pack: A2pack, dat: Path, tmp_path: Path) -> None:
        raw = dataclasses.replace(GAMES[0], branches=[(1e4, 2e4, 3e4, 4e4)] * len(GAMES[0].moves))
        (tmp_path / "raw.a2run2").write_bytes(build.a2run2_bytes(raw))
        done = a2pack(
            "append", "--packfile", dat, "--input", tmp_path / "raw.a2run2", "--output", tmp_path / "y"
        )
        assert done.out.endswith("; 1 run added; branch values outside 0 to 1, normalised, in 1 run\n")

    def test_merge(self, a2pack: A2pack, dat: Path, tmp_path: Path) -> None:
        (tmp_path / "b.dat").write_bytes(packdat_bytes(DAT_GAMES[1:]))
        both = tmp_path / "both.dat"
        done = a2pack("merge", "--packfile", dat, "--packfile", tmp_path / "b.dat", "--output", both)
        assert (done.code, done.out) == (0, f"{both}: 5 runs, 144 rows\n")
        assert both.read_bytes() == packdat_bytes([*DAT_GAMES, *DAT_GAMES[1:]])


@pytest.mark.parametrize("command", ["pack", "validate", "to-jsonl"])
def test_quiet_draws_no_bar(
    a2pack: A2pack, packfile: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, command: str
) -> None:
    (tmp_path / "runs").mkdir()
    (tmp_path / "runs/0.a2run").write_bytes(PAYLOADS[0])
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tape2048_tools.progress.panel._DRAW_AFTER_S", -1.0)
    source = ["--input", tmp_path / "runs"] if command == "pack" else ["--packfile", packfile]
    for number, flags in enumerate(([], ["--quiet"])):
        target = [] if command == "validate" else ["--output", tmp_path / f"made{number}"]
        done = a2pack(command, *source, *target, *flags)
        assert (done.code, bool(done.err)) == (0, not flags)
        assert done.out


def test_every_line_of_help_parses(a2pack: A2pack) -> None:
    for words in ([], *([name] for name in a2pack_command.command.commands)):
        done = a2pack(*words, "--help")
        assert done.code == 0
        assert f"  {' '.join(['a2pack', *words])}" in done.out.split("\nExamples:\n")[1]


def test_names_with_control_characters(a2pack: A2pack, runs: Path, tmp_path: Path) -> None:
    evil = "\x1b[2Jevil\r\x07\x9b31m\u202e\n"
    (runs / f"{evil}.a2run").write_bytes(b"A2T1")
    assert a2pack("pack", "--input", runs, "--output", tmp_path / evil).code == 1
    for name, code in ((tmp_path / evil, 0), (runs / f"{evil}.a2run", 2)):
        done = a2pack("validate", "--packfile", name)
        assert done.code == code
        assert (done.out + done.err).replace("\n", "").isprintable()


def test_the_entry_point(environment: dict[str, str], packfile: Path) -> None:
    code = "from tape2048_tools.cli import a2pack; a2pack()"
    done = subprocess.run(
        [sys.executable, "-c", code, "validate", "--packfile", str(packfile)],
        env=environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert (done.returncode, done.stderr) == (0, "")
