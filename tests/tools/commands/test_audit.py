"""``tape2048 audit``."""

from pathlib import Path

from tape2048 import errors

from ...sdk.simulator import play, write
from ..conftest import Cli


def test_the_last_line_is_the_verdict(cli: Cli, tmp_path: Path) -> None:
    path = write(tmp_path / "real", play("none", 1, 12_000))
    done = cli("audit", path)
    assert done.err == ""
    assert done.out.splitlines()[-1].endswith("games, 12,000 moves: this is 2048")
    fours = cli("audit", write(tmp_path / "fours", play("share of 4s of 0.12", 1, 12_000)), expect=1)
    assert ": this is not 2048: the share of 4s is 0.12" in fours.out.splitlines()[-1]
    assert "BAD" in fours.out
    few = cli("audit", path, "--max-moves", "10")
    assert ": too few to tell: " in few.out


def test_json_has_all_checks(cli: Cli, tmp_path: Path) -> None:
    done = cli("audit", write(tmp_path / "s", play("double merges", 1, 12_000)), "--json", expect=1)
    assert (done.json["is_2048"], done.json["path"]) == (False, str(tmp_path / "s"))
    first, *others = done.json["checks"]
    assert (first["name"], first["ok"], first["p"]) == ("moves, merges, spawns", False, None)
    assert {"name", "sample", "ok", "text", "p", "p_holm"} == set(others[-1])


def test_damage_is_an_error_or_a_finding(cli: Cli, tmp_path: Path) -> None:
    root = tmp_path / "root"
    for day in "12":
        write(root / f"2026010{day}T000000Z_model=x", play("none", int(day), 12_000))
    (root / "20260102T000000Z_model=x/metadata.db").write_bytes(b"")
    done = cli("audit", root, expect=1)
    assert done.out.splitlines()[-1].endswith(": this is 2048")
    assert "left out: " in done.err
    cli("audit", root / "20260102T000000Z_model=x", expect=errors.TruncatedError)
    cli("audit", tmp_path / "missing", expect=3)
