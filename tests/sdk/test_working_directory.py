"""A path means what it meant when it was given, and a session that two paths name counts once."""

import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest

from tape2048 import Corpus, Session
from tape2048.critic import Oracle
from tape2048.runs import DataPack, PackWriter, convert, open_source, read_run_file
from tape2048.session.column_draft import write_column

from .builders import NAME
from .run_builders import a2run2_bytes, game
from .tapes import games_on_tape, write_rows, write_tape

FACTS = {"player": "toy", "player_sha256": "a" * 64}


@pytest.fixture
def here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The working directory, with a session; ``there`` beside it has another one of the same name."""
    for name, seeds in (("here", (1, 2)), ("there", (3,))):
        write_rows(tmp_path / name / "sp" / NAME, games_on_tape(*seeds), **FACTS)
    monkeypatch.chdir(tmp_path / "here")
    return tmp_path / "here"


@pytest.mark.parametrize("root", ["sp", Path("sp"), ["sp"], "./sp/../sp"])
def test_refresh_reads_the_directory_that_was_opened(
    here: Path, monkeypatch: pytest.MonkeyPatch, root: str | Path | list[str]
) -> None:
    corpus = Corpus.open(root, columns="columns")
    monkeypatch.chdir(here.parent / "there")
    assert corpus.refresh() is corpus
    session = Session.open(here / "sp" / NAME, columns=here / "columns")
    write_column(session, "loss", np.zeros(len(session), np.uint8))
    write_tape(here / "sp" / f"{NAME}-2", games_on_tape(5), **FACTS)
    more = corpus.refresh()
    assert sorted(more.runs["seed"].tolist()) == [1, 2, 5]
    assert more.where("seed < 5").fetch([0], ("loss",))["loss"].tolist() == [0]


def test_a_store_that_is_a_directory(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus.open("sp", cache="cache")
    monkeypatch.chdir(here.parent / "there")
    assert corpus.refresh() is corpus
    assert pickle.loads(pickle.dumps(corpus)).identity == corpus.identity  # noqa: S301 - own
    assert not Path("cache").exists()


@pytest.mark.parametrize("kind", ["runs", "x.a2run2", "x.a2pack", "x.dat", "x.jsonl", "x.parquet", "ds"])
def test_a_source_of_runs(here: Path, monkeypatch: pytest.MonkeyPatch, kind: str) -> None:
    """Opened with a relative path, and read later."""
    if kind == "x.parquet":
        pytest.importorskip("pyarrow")
    Path("runs").mkdir()
    Path("runs/0.a2run2").write_bytes(a2run2_bytes(game(1)))
    if kind != "runs":
        convert("runs", kind, "dataset" if kind == "ds" else None, lossy=True)
    source = open_source(kind)
    monkeypatch.chdir(here.parent / "there")
    (found,) = source.runs()
    assert len(found.checked()) == len(game(1).moves)


def test_objects_that_write_later(here: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack that is being written, rollouts that are kept, and a mapped pack.dat."""
    oracle = Oracle(
        lambda boards, **_: np.full((len(boards), 16), 24, np.uint16),
        player_sha256="0" * 64, rollouts=48, directory=Path("rollouts"),
    )  # fmt: skip
    Path("x.a2run2").write_bytes(a2run2_bytes(game(1)))
    run = read_run_file("x.a2run2")
    DataPack.build([run]).save("x.dat")
    pack = DataPack.load("x.dat", "mmap")
    with PackWriter("x.a2pack") as writer:
        monkeypatch.chdir(here.parent / "there")
        writer.add_run(run)
    oracle.ask(np.array([0x1100], np.uint64))
    pack.check_files()
    assert {"rollouts", "x.a2pack"} <= {path.name for path in here.iterdir()}
    assert [path.name for path in Path.cwd().iterdir()] == ["sp"]


@pytest.mark.parametrize("link", ["latest", "00-first"])
def test_a_link_to_a_session_is_the_session(here: Path, link: str) -> None:
    """In either order of the names, the session has the name of its directory."""
    write_tape(here / "sp" / f"{NAME}-2", games_on_tape(5), **FACTS)
    (here / "sp" / link).symlink_to(NAME)
    for root in ("sp", ["sp", f"sp/{link}"], [f"sp/{link}", "sp"]):
        corpus = Corpus.open(root, duplicates="keep")
        assert sorted(one.name for one in corpus.sessions) == [NAME, f"{NAME}-2"]
    shutil.rmtree(here / "sp" / f"{NAME}-2")
    assert len(Corpus.open([f"sp/{NAME}", f"sp/{NAME}"]).runs) == 2
