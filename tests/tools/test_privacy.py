"""Files that leave the machine name no directory, host or user of it."""

import dataclasses
import lzma
from pathlib import Path

import pytest

from tape2048.ntuple import load_network, save_network

from .conftest import Cli

USER = "ada-lovelace"


@pytest.mark.slow
def test_no_file_for_others_names_the_home_of_the_recorder(cli: Cli, tmp_path: Path) -> None:
    home = tmp_path / USER
    (home / "nets").mkdir(parents=True)
    network = home / "nets/mine.ntuple"
    # With facts of its own, since another file with the same bytes is as good.
    save_network(dataclasses.replace(load_network("fast"), facts={"run": tmp_path.as_posix()[::-1]}), network)
    play, out, store = home / "play", home / "out", home / "store"
    out.mkdir()
    store.mkdir()
    player = f"ntuple:weights={network},look=0"
    record = ["record", "--player", player, "--workers", "1", "--max-games", "12"]
    cli(*record, "--out", play, "--seed", "1", process=True)
    cli(*record, "--out", home / "spool", "--to", store, process=True)
    starts = ["--from", play, "--rows-where", "step = 50"]
    cli(*record, *starts, "--out", home / "late", "--seed", "2", process=True)
    cli("annotate", play, "--quiet")
    cli("critic", "score", "default", play, "--quiet")
    cli("card", play, "--quiet")
    cli("report", play, "--out", out / "report.html", "--games", "2")
    cli("export", play, "--runs", "--format", "jsonl", "--out", out / "runs.jsonl", "--quiet")
    cli("convert", play, "--out", out / "games.a2pack", "--quiet")
    cli("dataset", "build", out / "games.a2pack", "--out", out / "set")
    training = [
        "--val-share",
        "0.4",
        "--thresholds",
        "4096",
        "--epochs",
        "1",
        "--stages",
        "",
        "--tuples",
        "0123",
    ]
    cli("critic", "train", play, "--kind", "ntuple", "--out", home / "training", *training)
    (out / "best.critic").write_bytes(lzma.decompress((home / "training/best.critic").read_bytes()))
    roots = [out, store, *play.glob("2*"), *(home / "late").glob("2*")]
    files = [path for root in roots for path in root.rglob("*") if path.is_file()]
    files += [play / "README.md", play / "croissant.json"]
    assert len(files) > 25
    assert [str(path) for path in files if USER.encode() in path.read_bytes()] == []
    assert b"weights=mine.ntuple@" in (play / "README.md").read_bytes()

    # The player is found where it was last used, or in the working directory, or after it was named once.
    said, missing = "12 runs replayed", "found no network at 'mine.ntuple@"
    validate = ["validate", play, "--replay"]  # each a process, since a process keeps its players
    assert said in cli(*validate, process=True).out
    moved = network.rename(home / "moved.ntuple")
    done = cli(*validate, process=True)
    assert missing in done.out
    assert "tape2048 validate SESSION --replay --weights FILE" in done.out
    assert said in cli(*validate, "--weights", moved, process=True).out
    other = moved.rename(home / "mine.ntuple")
    assert said in cli(*validate, cwd=home, process=True).out
    other.write_bytes(other.read_bytes()[:-1])
    assert missing in cli(*validate, cwd=home, process=True).out
