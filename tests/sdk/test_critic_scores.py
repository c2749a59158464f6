"""Probabilities of rows as files: aligned with the rows of every source, whole or not there, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tape2048 import Corpus, Session
from tape2048.critic_scores import open_scores, write_scores
from tape2048.errors import NameTakenError, ScoresError
from tape2048.formats.a2pack import pack_directory
from tape2048.formats.dataset import Dataset
from tape2048.formats.dataset_build import build_dataset
from tape2048.formats.packdat import DataPack
from tape2048.formats.sources import open_source
from tape2048.rules import exps_to_boards

from . import corpora
from .run_builders import a2run2_bytes, a2t1_bytes, game

if TYPE_CHECKING:
    from numpy.typing import NDArray


class Hashing:
    """A critic whose probabilities are any function of the board that tells boards apart."""

    thresholds = (2048, 8192)
    needs_embeddings = False

    def __call__(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
        assert boards.dtype == np.uint64
        first = (boards * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(40)).astype(np.float32) / 2**24
        return np.stack([first, 1 - first], axis=1)

    def from_embeddings(self, x: NDArray[np.uint16]) -> NDArray[np.float32]:
        return np.stack([x[:, 0], x[:, 1]], axis=1).astype(np.float32)


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("runs")
    for seed in range(5):
        made = game(seed)
        name, data = ("a2run", a2t1_bytes(made)) if seed % 2 else ("a2run2", a2run2_bytes(made))
        (directory / f"{seed}.{name}").write_bytes(data)
    return directory


def expected(boards: Any) -> NDArray[np.float32]:
    return Hashing()(np.asarray(boards, np.uint64))


def test_a_session_of_ours_and_of_others(tmp_path: Path) -> None:
    built = corpora.build(tmp_path / "root")
    for name in (corpora.OURS[0], corpora.THEIRS):
        out = tmp_path / f"{name}.npy"
        done: list[tuple[int, int]] = []
        info = write_scores(out, Hashing(), built.root / name, progress=lambda *a, done=done: done.append(a))
        session = Session.open(built.root / name)
        np.testing.assert_array_equal(np.load(out), expected(exps_to_boards(session.steps["exps"])))
        assert info.rows == len(session)
        assert done[-1] == (len(session), len(session))
        assert open_scores(out).info == info
        assert (info.source_kind, info.thresholds, info.runs) == ("session", [2048, 8192], None)


def test_a_directory_of_sessions_is_aligned_with_its_corpus(tmp_path: Path) -> None:
    built = corpora.build(tmp_path / "root")
    info = write_scores(tmp_path / "all.npy", Hashing(), built.root, critic_sha256="ab" * 32)
    corpus = Corpus.open(built.root)
    assert info.source_identity == corpus.identity
    assert info.critic_sha256 == "ab" * 32
    found = open_scores(tmp_path / "all.npy").values
    np.testing.assert_array_equal(found, expected(exps_to_boards(corpus.tokens(slice(None)))))


@pytest.mark.parametrize("kind", ["runs", "run", "pack", "packdat", "dataset"])
def test_every_other_source(kind: str, runs: Path, tmp_path: Path) -> None:
    source: Path = runs
    rows: Any = None
    if kind == "run":
        source = runs / "1.a2run"
    elif kind == "pack":
        source = tmp_path / "x.a2pack"
        pack_directory(runs, source)
    elif kind == "packdat":
        source = tmp_path / "pack.dat"
        DataPack.build(found.run for found in open_source(runs).runs() if found.run).save(source)
        rows = DataPack.load(source)
    elif kind == "dataset":
        source = tmp_path / "ds"
        build_dataset(source, [runs])
        rows = Dataset.open(source, load="mmap")
    info = write_scores(tmp_path / "out.npy", Hashing(), source)
    found = open_scores(tmp_path / "out.npy").values
    assert info.source_kind == kind
    if rows is not None:
        np.testing.assert_array_equal(found, expected(rows[:]["board"]))
        return
    decoded = [one.run for one in open_source(source).runs() if one.run is not None]
    np.testing.assert_array_equal(found, expected(np.concatenate([run.boards for run in decoded])))
    assert info.runs is not None
    assert [one.rows for one in info.runs] == [len(run) for run in decoded]
    ends = np.cumsum([one.rows for one in info.runs])
    assert [one.first_row for one in info.runs] == [0, *ends[:-1].tolist()]


def test_a_run_that_cannot_be_read_costs_itself(runs: Path, tmp_path: Path) -> None:
    for path in runs.iterdir():
        (tmp_path / path.name).write_bytes(path.read_bytes())
    (tmp_path / "1.a2run").write_bytes((runs / "1.a2run").read_bytes()[:-9])
    out = tmp_path / "out.npy"
    info = write_scores(out, Hashing(), tmp_path)
    assert info.runs is not None
    bad = [one for one in info.runs if one.error]
    assert [(Path(one.name).name, one.rows) for one in bad] == [("1.a2run", 0)]
    assert info.rows == sum(one.rows for one in info.runs) == len(np.load(out))


def test_nothing_is_replaced_unasked_and_no_half_stays(runs: Path, tmp_path: Path) -> None:
    out = tmp_path / "out.npy"
    write_scores(out, Hashing(), runs)
    before = out.read_bytes(), (tmp_path / "out.json").read_bytes()
    with pytest.raises(NameTakenError) as caught:
        write_scores(out, Hashing(), runs)
    assert "--force" in str(caught.value.hint)
    out.unlink()
    with pytest.raises(NameTakenError):
        write_scores(out, Hashing(), runs)
    write_scores(out, Hashing(), runs, replace=True)
    assert (out.read_bytes(), (tmp_path / "out.json").read_bytes()) == before

    class Failing(Hashing):
        def __call__(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
            raise RuntimeError("no")

    with pytest.raises(RuntimeError):
        write_scores(tmp_path / "other.npy", Failing(), runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.json", "out.npy"]


def test_damage_is_noticed(runs: Path, tmp_path: Path) -> None:
    out, sidecar = tmp_path / "out.npy", tmp_path / "out.json"
    write_scores(out, Hashing(), runs)
    whole, facts = out.read_bytes(), sidecar.read_bytes()
    for data, message in (
        (whole[:-1], "which its sidecar says"),
        (whole + b"x", "which its sidecar says"),
        (whole[:40], "which its sidecar says"),
        (b"", "which its sidecar says"),
        (whole[:20] + b"<f8" + whole[23:], "which its sidecar says"),
        (whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], "checksum"),
    ):
        out.write_bytes(data)
        with pytest.raises(ScoresError, match=message):
            open_scores(out)
    out.write_bytes(whole)
    open_scores(out)
    changed = json.loads(facts) | {"version": 2}
    deep = b'{"x":' + b"[" * 50_000
    for data, message in (
        (b"{", "malformed"),
        (deep, "malformed"),
        (json.dumps(changed).encode(), "version 2"),
    ):
        sidecar.write_bytes(data)
        with pytest.raises(ScoresError, match=message):
            open_scores(out)
    sidecar.unlink()
    with pytest.raises(ScoresError, match=r"no out\.json"):
        open_scores(out)


def test_a_critic_of_embeddings_needs_a_source_that_has_them(runs: Path, tmp_path: Path) -> None:
    critic = Hashing()
    critic.needs_embeddings = True
    with pytest.raises(ScoresError, match="kind runs has none"):
        write_scores(tmp_path / "out.npy", critic, runs)
