"""A game that sources of runs hold more than once is written once."""

import shutil
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.run_builders import a2run2_bytes, a2t1_bytes, game

from tape2048 import Corpus
from tape2048.runs import (
    DataPack,
    append_dataset,
    build_dataset,
    convert,
    open_source,
    run_file_table,
    write_session,
)

LENGTHS = (40, 200, 12)
FACTS = "tape2048 1.0.0 toy player_sha256=" + "a" * 64


def runs_in(directory: Path, *, known: bool, start: int = 0) -> Path:
    """Three run files: of players and seeds that are known, or of another program."""
    directory.mkdir(parents=True)
    for seed, steps in enumerate(LENGTHS, start=1):
        engine = f"{FACTS} seed={seed}" if known else "another program"
        one = game(seed, steps_max=steps, engine=engine, start_unix_s=start, with_branches=False)
        (directory / f"{seed}.a2run").write_bytes(a2t1_bytes(one))
    return directory


@pytest.fixture(params=[True, False], ids=["known", "unknown"])
def runs(tmp_path: Path, request: pytest.FixtureRequest) -> Path:
    return runs_in(tmp_path / "runs", known=request.param)


def tripled(path: Path) -> Path:
    for name in ("once", "again"):
        (path / name).mkdir()
        for file in path.glob("*.a2run"):
            shutil.copy(file, path / name)
    return path


def counts(*pairs: Any) -> list[tuple[int, int]]:
    return [(done.runs, done.copies) for done in pairs]


def test_copied_run_files_are_one_game(runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """In every target, and with the number of copies."""
    tripled(runs)
    done = [convert(runs, tmp_path / name, lossy=True) for name in ("x.a2pack", "x.dat", "x.jsonl")]
    done += [convert(runs, tmp_path / kind, kind, lossy=True) for kind in ("a2run2", "session", "pack48")]
    done += [build_dataset(tmp_path / "ds", [runs])]
    assert counts(*done) == [(3, 6)] * 7
    assert {*caplog.messages} == {f"left out: 6 games of {runs}, which come more than once"}
    assert run_file_table([open_source(runs)])[0].records == 3


@pytest.mark.parametrize("kind", ["x.a2pack", "x.dat", "x.jsonl", "ds"])
def test_a_game_of_several_sources_comes_once(
    runs: Path, tmp_path: Path, caplog: pytest.LogCaptureFixture, kind: str
) -> None:
    """Of two formats, in both orders, and of one path that is given twice."""
    path = tmp_path / kind
    convert(runs, path, "dataset" if kind == "ds" else None, lossy=True)
    for number, sources in enumerate(([runs, path], [path, runs], [path, path], [path, open_source(runs)])):
        caplog.clear()
        built = build_dataset(tmp_path / f"built-{number}", sources)
        assert counts(built) == [(3, 3)]
        first, second = (getattr(one, "path", one) for one in sources)
        also = "which come more than once" if first == second else f"also in {first}, which comes first"
        assert caplog.messages == [f"left out: 3 games of {second}, {also}"]


def test_what_a_data_set_holds_is_not_appended(runs: Path, tmp_path: Path) -> None:
    """Run files, packs and the data set itself; another game is appended."""
    for shard_rows in (None, 9):
        target = tmp_path / f"ds-{shard_rows}"
        build_dataset(target, [runs], shard_rows=shard_rows)
        names = f"{shard_rows}.a2pack", f"{shard_rows}.dat"
        copies = [convert(target, tmp_path / name, lossy=True).target for name in names]
        other = tmp_path / "other.a2run2"
        other.write_bytes(a2run2_bytes(game(9, steps_max=50)))
        assert counts(append_dataset(target, [runs, *copies, other, target])) == [(1, 12)]
        assert len(Corpus.open(target).runs) == 4


def test_games_of_known_seeds_may_have_equal_boards(tmp_path: Path) -> None:
    """As games of several seeds that start from one board; the same seed twice is one game."""
    for number, seed in enumerate((1, 2, 1)):
        one = game(1, steps_max=50, engine=f"{FACTS} seed={seed}")
        (tmp_path / f"{number}.a2run2").write_bytes(a2run2_bytes(one))
    assert counts(convert(tmp_path, tmp_path / "x.a2pack")) == [(2, 1)]


def test_short_games_of_other_programs_need_equal_facts(tmp_path: Path) -> None:
    """A few moves from one board can be the same in two games."""
    for number in (1, 2):
        runs_in(tmp_path / f"runs/{number}", known=False, start=number)
    assert counts(convert(tmp_path / "runs", tmp_path / "x.a2pack")) == [(4, 2)]


def test_a_session_of_doubled_games_serves_each_once(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As earlier versions wrote them, from run files that were there twice."""
    found = [run.checked() for run in open_source(runs_in(tmp_path / "runs", known=True)).runs()]
    doubled = [*found, *found]
    path = tmp_path / "doubled"
    write_session(path, doubled)
    assert len(Corpus.open(path).runs) == 3
    assert caplog.messages == [f"left out: 3 games of {path}, which come more than once"]
    assert convert(path, tmp_path / "x.dat").copies == 3
    DataPack.build(doubled).save(tmp_path / "doubled.dat")
    assert len(Corpus.open(tmp_path / "doubled.dat").runs) == 3
    assert len(DataPack.load(tmp_path / "doubled.dat").runs) == 6, "as in the file"


def test_no_copy_is_left_out_of_a_second_pass(runs: Path) -> None:
    source = open_source(tripled(runs))
    for _ in range(2):
        assert len([*source.runs()]) == 3
