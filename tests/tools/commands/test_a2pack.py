"""``a2pack``."""

import dataclasses
import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from tests.sdk import run_builders as build
from tests.sdk.runs.set_builders import GAMES as DAT_GAMES, packdat_bytes

from tape2048 import errors
from tape2048_tools import cli
from tape2048_tools.commands.runs import a2pack_command

from ..conftest import Outcome

#: Runs a line in the test's directory, and checks the exit code: a number, or an error's class.
A2pack = Callable[..., Outcome]

GAMES = [build.game(seed, steps_max=10 + seed, engine="e" if seed else None) for seed in range(4)]
PAYLOADS = [build.a2run2_bytes(g) if i % 2 else build.a2t1_bytes(g) for i, g in enumerate(GAMES)]
PACK = build.a2pack_bytes(build.PackSpec(PAYLOADS, align=64, stats=build.stats_block(GAMES)))


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Run files in ``runs``, ``x.a2pack`` with the same runs, and ``pack.dat``."""
    (tmp_path / "runs").mkdir()
    for i, payload in enumerate(PAYLOADS):
        (tmp_path / f"runs/{i}.a2run2").write_bytes(payload)
    (tmp_path / "x.a2pack").write_bytes(PACK)
    (tmp_path / "pack.dat").write_bytes(packdat_bytes())
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture
def a2pack(capsys: pytest.CaptureFixture[str]) -> A2pack:
    """Run ``a2pack`` in this process, through the function that its entry point calls."""

    def run_here(line: str, *args: object, expect: int | type[errors.TapeError] = 0) -> Outcome:
        capsys.readouterr()
        code = cli.run([*line.split(), *map(str, args)], a2pack_command.command, "a2pack")
        return Outcome(code, *capsys.readouterr()).checked(expect)

    return run_here


def test_pack(a2pack: A2pack, here: Path) -> None:
    done = a2pack("pack --input runs --output y --align 64 --workers 2")
    assert (done.out.startswith("y: 4 runs, 46 steps, "), done.err) == (True, "")
    assert (here / "y").read_bytes() == PACK
    a2pack("pack --input runs --output y", expect=errors.NameTakenError)
    done = a2pack("pack --input none --output z", expect=errors.MissingPathError)
    assert done.err.startswith("a2pack: error: ")
    for wrong in ("--align 3", "--compress gzip", "--workers 0"):
        a2pack(f"pack --input runs --output z {wrong}", expect=2)
    (here / "empty").mkdir()
    a2pack("pack --input empty --output z", expect=errors.NotASessionError)
    assert not (here / "z").exists()


@pytest.mark.parametrize("source", ["runs", "x.a2pack"])
def test_flags_of_pack(a2pack: A2pack, here: Path, source: str) -> None:
    flags = "--compress lz4 --no-entry-crc --align 1"
    done = a2pack(f"pack --input {source} --output y --json {flags}").json
    assert (done["path"], done["stats"]["count"], done["left_out"]) == ("y", 4, [])
    assert done["bytes"] == (here / "y").stat().st_size
    a2pack("validate --packfile y")
    info = a2pack("inspect --packfile y --index 1 --json").json
    assert (info["compression"], info["crc32c"]) == ("lz4", 0)


def test_bad_files_are_named(a2pack: A2pack, here: Path) -> None:
    (here / "runs/2.a2run2").write_bytes(PAYLOADS[2][:-1])
    done = a2pack("pack --input runs --output y --json", expect=1)
    assert "left out: runs/2.a2run2: TruncatedError" in done.err
    (left_out,) = done.json["left_out"]
    assert (done.json["stats"]["count"], left_out["error"]) == (3, "TruncatedError")
    assert left_out["path"] == "runs/2.a2run2"


def test_validate(a2pack: A2pack, here: Path) -> None:
    done = a2pack("validate --packfile x.a2pack")
    assert (done.out, done.err) == ("OK: x.a2pack (4 runs)\n", "")
    sound = {"ok": True, "path": "x.a2pack", "runs": 4, "findings": []}
    assert a2pack("validate --packfile x.a2pack --json").json == sound
    data = bytearray(PACK)
    data[data.index(PAYLOADS[2]) + 50] ^= 1
    (here / "bad").write_bytes(data)
    done = a2pack("validate --packfile bad", expect=2)
    assert done.out == ""
    assert done.err.startswith("INVALID: bad (ChecksumError: the CRC-32C of entry 2 is ")
    done = a2pack("validate --packfile bad --json", expect=2)
    assert (done.err, done.json["ok"], done.json["runs"]) == ("", False, None)
    assert [found["error"] for found in done.json["findings"]] == ["ChecksumError"]
    a2pack("validate --packfile none", expect=errors.MissingPathError)


def test_stats(a2pack: A2pack, here: Path) -> None:
    """Also of a pack of the reference writer, whose stats are fewer."""
    assert a2pack("stats --packfile x.a2pack --json").json == json.loads(build.stats_json(GAMES))
    lines = [line.split() for line in a2pack("stats --packfile x.a2pack").out.splitlines()]
    assert ["count", "4"] in lines
    assert ["engine_counts", "(none):", "1,", "e:", "3"] in lines
    stats = build.reference_stats(GAMES)
    spec = build.PackSpec(PAYLOADS, stats=build.stats_postcard(stats), data_crc=False)
    (here / "x").write_bytes(build.a2pack_bytes(spec))
    assert a2pack("validate --packfile x").out == "OK: x (4 runs)\n"
    found = a2pack("stats --packfile x --json").json
    assert found == stats | {"highest_tile_hist": None, "engine_counts": None}
    lines = [line.split()[:1] for line in a2pack("stats --packfile x").out.splitlines()]
    assert sorted(lines) == sorted([name] for name in build.STATS)


def test_to_jsonl(a2pack: A2pack, here: Path) -> None:
    for flags, count in (("", 4), ("--runs-only --no-parallel", 4), ("--steps --parallel --workers 2", 46)):
        done = a2pack(f"to-jsonl --packfile x.a2pack --output y --json {flags}")
        assert done.json == {"path": "y", "runs": 4, "bytes": (here / "y").stat().st_size}
        found = [json.loads(line) for line in (here / "y").read_text().splitlines()]
        assert (len(found), "step_idx" in found[0]) == (count, count == 46)
        a2pack(f"to-jsonl --packfile x.a2pack --output y {flags}", expect=errors.NameTakenError)
        (here / "y").unlink()
    a2pack("to-jsonl --packfile x.a2pack --output texts --u64 text")
    first = json.loads((here / "texts").read_text().splitlines()[0])
    assert first["final_board"] == str(GAMES[0].states[-1])


def test_extract(a2pack: A2pack, here: Path) -> None:
    """Byte for byte; nothing is replaced."""
    done = a2pack("extract --packfile x.a2pack --output out --indices", "3, 0")
    assert done.out.splitlines() == ["out/run_000003.a2run2", "out/run_000000.a2run"]
    assert (here / "out/run_000003.a2run2").read_bytes() == PAYLOADS[3]
    runs = [{"index": 3, "path": "2/run_000003.a2run2"}, {"index": 0, "path": "2/run_000000.a2run"}]
    assert a2pack("extract --packfile x.a2pack --output 2 --indices 3,0 --json").json == {"runs": runs}
    a2pack("extract --packfile x.a2pack --output out --indices 0,1", expect=errors.NameTakenError)
    assert len([*(here / "out").iterdir()]) == 2
    for wrong in ("", "a", "-1", "4", "0,0", "0-3", "٣", "9" * 5000):
        a2pack("extract --packfile x.a2pack --output none", f"--indices={wrong}", expect=2)
    assert not (here / "none").exists()


def test_inspect(a2pack: A2pack, here: Path) -> None:
    found, game = a2pack("inspect --packfile x.a2pack --index 1 --json").json, GAMES[1]
    assert (found["kind"], found["steps"], found["engine"]) == ("v2", len(game.moves), "e")
    assert (found["final_board"], found["length"]) == (game.states[-1], len(PAYLOADS[1]))
    assert found["moves"]["LEFT"] == game.moves.count(2)
    assert found["steps_with_branches"] == sum(branch is not None for branch in game.branches)
    assert "final board" in a2pack("inspect --packfile x.a2pack --index 1").out
    a2pack("inspect --packfile x.a2pack --index 4", expect=2)


class TestPackDat:
    """validate, inspect, append and merge on pack.dat."""

    def test_validate(self, a2pack: A2pack, here: Path) -> None:
        """Finds what loading does not; padding is a note."""
        assert a2pack("validate --packfile pack.dat").out == "OK: pack.dat (3 runs)\n"
        sound = {"ok": True, "path": "pack.dat", "runs": 3, "findings": [], "padded_steps": 0}
        assert a2pack("validate --packfile pack.dat --json").json == sound
        (here / "y").write_bytes(packdat_bytes(change=lambda body: body.__setitem__(28 + 26, 0xCD)))
        note = "1 step with nonzero padding, which has no meaning"
        assert a2pack("validate --packfile y").out == f"OK: y (3 runs; {note})\n"

        def change(body: bytearray) -> None:
            body[28 + 32 * 5 : 28 + 32 * 5 + 8] = b"\x11" * 8  # a board that no move leads to
            body[28 + 31] = 7  # padding

        (here / "y").write_bytes(packdat_bytes(change=change))
        done = a2pack("validate --packfile y", expect=2)
        assert (done.out, "row 4 does not lead to the next row's board" in done.err) == ("", True)
        found = a2pack("validate --packfile y --json", expect=2).json
        assert (found["ok"], found["runs"], found["padded_steps"]) == (False, None, 1)
        assert {finding["error"] for finding in found["findings"]} <= {"FieldError", "BookkeepingError"}

    def test_inspect(self, a2pack: A2pack, here: Path) -> None:
        found = a2pack("inspect --packfile pack.dat --index 2 --json").json
        assert (found["kind"], found["run_id"], found["first_step_idx"]) == ("packdat", 2, 42)
        facts = (found["steps"], found["engine"], found["score"], found["final_board_certain"])
        assert facts == (45, "other é", DAT_GAMES[2].max_score, False)
        assert "final board" in a2pack("inspect --packfile pack.dat --index 2").out
        assert "has 3 runs" in a2pack("inspect --packfile pack.dat --index 3", expect=2).err

    def test_append(self, a2pack: A2pack, here: Path) -> None:
        (here / "runs/bad.a2run").write_bytes(b"A2T1")
        done = a2pack("append --packfile pack.dat --input runs --output new.dat", expect=1)
        assert done.out == "new.dat: 7 runs, 133 rows; 4 runs added\n"
        assert "left out: " in done.err
        assert (here / "pack.dat").read_bytes() == packdat_bytes()
        a2pack("validate --packfile new.dat")
        (here / "runs/bad.a2run").unlink()
        done = a2pack("append --packfile pack.dat --input runs --output again.dat --json")
        counts = {"runs": 7, "rows": 133, "added": 4, "normalised": 0}
        assert done.json == {"path": "again.dat", **counts, "left_out": [], "copies": 0}
        assert (here / "again.dat").read_bytes() == (here / "new.dat").read_bytes()
        for source, error in (("pack.dat", errors.NameTakenError), ("runs/0.a2run2", errors.MagicError)):
            a2pack(f"append --packfile {source} --input runs --output new.dat", expect=error)
        raw = dataclasses.replace(GAMES[0], branches=[(1e4, 2e4, 3e4, 4e4)] * len(GAMES[0].moves))
        (here / "raw.a2run2").write_bytes(build.a2run2_bytes(raw))
        done = a2pack("append --packfile pack.dat --input raw.a2run2 --output y")
        assert done.out.endswith("; 1 run added; branch values outside 0 to 1 were normalised in 1 run\n")

    def test_merge(self, a2pack: A2pack, here: Path) -> None:
        (here / "b.dat").write_bytes(packdat_bytes(DAT_GAMES[1:]))
        done = a2pack("merge --packfile pack.dat --packfile b.dat --output both.dat")
        assert done.out == "both.dat: 3 runs, 87 rows; 2 runs left out as copies\n"
        assert (here / "both.dat").read_bytes() == packdat_bytes(DAT_GAMES)


def test_quiet_draws_no_bar(a2pack: A2pack, here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    monkeypatch.setattr("tape2048_tools.progress.panel._DRAW_AFTER_S", -1.0)
    packfile = "--packfile x.a2pack"
    for line in ("pack --input runs --output y", f"validate {packfile}", f"to-jsonl {packfile} --output y"):
        for flags in ("", "--quiet"):
            done = a2pack(f"{line} {flags}")
            assert (bool(done.err), bool(done.out)) == (not flags, True)
            (here / "y").unlink(missing_ok=True)


def test_every_line_of_help_parses(a2pack: A2pack) -> None:
    for name in ("", *a2pack_command.command.commands):
        assert f"  a2pack {name}" in a2pack(f"{name} --help").out.split("\nExamples:\n")[1]


def test_the_entry_point(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["a2pack", "validate", "--packfile", "none"])
    with pytest.raises(SystemExit) as ended:
        cli.a2pack()
    assert ended.value.code == errors.MissingPathError.exit_code
