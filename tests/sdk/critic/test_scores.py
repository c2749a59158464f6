"""Probabilities of rows as files: aligned with the rows of every source, whole or not there, checked."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest

from tape2048 import Corpus, Session
from tape2048.conversion.dataset_build import build_dataset
from tape2048.conversion.sources import open_source
from tape2048.critic import scores
from tape2048.critic.scores import open_scores, write_scores
from tape2048.datasets.dataset import Dataset
from tape2048.datasets.packdat import DataPack
from tape2048.errors import ColumnError, NameTakenError
from tape2048.game.rules import exps_to_boards
from tape2048.packs import pack_directory

from .. import corpora
from ..run_builders import a2run2_bytes, a2t1_bytes, game

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


def test_scores_of_sessions_follow_their_corpus(tmp_path: Path) -> None:
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


@pytest.mark.parametrize("piece_rows", [1, 100, 10**6])
def test_pieces_of_any_size_make_the_same_file(
    piece_rows: int, runs: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A table is scored in pieces of BATCH_ROWS, runs one by one."""
    corpora.build(tmp_path / "root")
    build_dataset(tmp_path / "ds", [runs])
    steps = [len(one.run) for one in open_source(runs).runs() if one.run is not None]
    monkeypatch.setattr(scores, "BATCH_ROWS", piece_rows)
    for source in (tmp_path / "root", tmp_path / "root" / corpora.THEIRS, tmp_path / "ds", runs):
        asked: list[int] = []

        class Counting(Hashing):
            def __call__(self, boards: NDArray[np.uint64], asked: list[int] = asked) -> NDArray[np.float32]:
                asked.append(len(boards))
                return super().__call__(boards)

        done: list[tuple[int, int]] = []
        out = tmp_path / "out.npy"
        info = write_scores(
            out, Counting(), source, replace=True, progress=lambda *a, done=done: done.append(a)
        )
        np.testing.assert_array_equal(open_scores(out).values, _all_at_once(source))
        assert sum(asked) == info.rows
        if source == runs:
            assert asked == steps
            assert done == [(k, len(steps)) for k in range(1, len(steps) + 1)]
        else:
            assert max(asked) <= scores.BATCH_ROWS
            assert done[-1] == (info.rows, info.rows)


def _all_at_once(source: Path) -> NDArray[np.float32]:
    if source.name == "root":
        return expected(exps_to_boards(Corpus.open(source).tokens(slice(None))))
    if source.name == corpora.THEIRS:
        return expected(exps_to_boards(Session.open(source).steps["exps"]))
    if source.name == "ds":
        return expected(Dataset.open(source)[:]["board"])
    decoded = [one.run for one in open_source(source).runs() if one.run is not None]
    return expected(np.concatenate([run.boards for run in decoded]))


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
        (whole[:-1], "which its sidecar expects"),
        (whole + b"x", "which its sidecar expects"),
        (whole[:40], "which its sidecar expects"),
        (b"", "which its sidecar expects"),
        (whole[:20] + b"<f8" + whole[23:], "which its sidecar expects"),
        (whole[:200] + bytes([whole[200] ^ 1]) + whole[201:], "checksum"),
    ):
        out.write_bytes(data)
        with pytest.raises(ColumnError, match=message):
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
        with pytest.raises(ColumnError, match=message):
            open_scores(out)
    sidecar.unlink()
    with pytest.raises(ColumnError, match=r"no out\.json"):
        open_scores(out)


def test_an_embeddings_critic_needs_embeddings(runs: Path, tmp_path: Path) -> None:
    critic = Hashing()
    critic.needs_embeddings = True
    with pytest.raises(ColumnError, match="kind runs has none"):
        write_scores(tmp_path / "out.npy", critic, runs)


@pytest.mark.parametrize("piece_rows", [64, 10**6])
def test_embeddings_are_those_of_the_rows(
    piece_rows: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A session's are in its file's order, also where runs take turns; a directory's in its corpus's."""
    root = tmp_path / "root"
    corpora.build(root)
    names = (*corpora.OURS, corpora.THEIRS)
    for number, name in enumerate(names):
        session = Session.open(root / name)
        values = np.arange(len(session))[:, None] + np.array([1000 * number, 7])
        np.save(session.path / "embeddings.bf16.npy", values.astype("<u2"))
        steps = session.manifest.files["steps.npy"].crc32c if session.manifest else 0
        facts = {
            "model_sha": "f" * 64, "pooling": "mean", "D": 2, "dtype": "bf16", "dtype_bits": "bf16",
            "rows": len(session), "steps_crc32c": steps,
        }  # fmt: skip
        (session.path / "embeddings.json").write_text(json.dumps(facts))
    monkeypatch.setattr(scores, "BATCH_ROWS", piece_rows)
    critic, out = Hashing(), tmp_path / "out.npy"
    critic.needs_embeddings = True
    with pytest.raises(ColumnError, match="the critic learned from those of eeeeeeeeeeeeeeee"):
        write_scores(out, critic, root, tower_sha256="e" * 64)
    assert not out.exists()
    for name in names:
        write_scores(out, critic, root / name, tower_sha256="f" * 64, replace=True)
        values = np.load(root / name / "embeddings.bf16.npy")
        np.testing.assert_array_equal(open_scores(out).values, values)
    write_scores(out, critic, root, tower_sha256="f" * 64, replace=True)
    values = Corpus.open(root).fetch(slice(None), ("embeddings",))["embeddings"]
    np.testing.assert_array_equal(open_scores(out).values, values)


def test_a_critic_that_gives_other_shapes_is_refused(runs: Path, tmp_path: Path) -> None:
    class Short(Hashing):
        def __call__(self, boards: NDArray[np.uint64]) -> NDArray[np.float32]:
            return super().__call__(boards)[1:]

    with pytest.raises(ValueError, match=r"the critic gave \(\d+, 2\) for \d+ boards and 2 thresholds"):
        write_scores(tmp_path / "out.npy", Short(), runs)
    assert not any(tmp_path.iterdir())


def test_the_sidecar_of_any_name(runs: Path, tmp_path: Path) -> None:
    write_scores(tmp_path / "out.f32", Hashing(), runs)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["out.f32", "out.f32.json"]
    (tmp_path / "out.f32").write_bytes((tmp_path / "out.f32").read_bytes()[:-1] + b"x")
    with pytest.raises(ColumnError, match="checksum"):
        open_scores(tmp_path / "out.f32")
    open_scores(tmp_path / "out.f32", verify=False)
