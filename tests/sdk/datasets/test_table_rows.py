"""Phases and fields of data sets and packs. The filters are tested with each of the two."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048 import Corpus
from tape2048.conversion import append_dataset, convert, write_view
from tape2048.datasets import DataPack, Dataset
from tape2048.errors import FieldError, NotASessionError
from tape2048.formats.dataset_layout import DATASET_ROW_DTYPE

from ..run_builders import game, ref
from .set_builders import ALMOST_ONE, GAMES, dataset_rows, level, packdat_bytes, write_dataset, write_runs

SOURCES = ("dataset", "mapped", "sharded", "pack", "mapped pack", "set of a pack", "both")


def opened(path: Path, kind: str) -> Any:
    """A source of the rows of GAMES; of ``both``, twice."""
    if "pack" in kind or kind == "both":
        (path / "pack.dat").write_bytes(packdat_bytes())
    match kind:
        case "dataset" | "mapped":
            return Dataset(write_dataset(path / "ds"), "ram" if kind == "dataset" else "mmap")
        case "sharded":
            return Dataset(write_dataset(path / "ds", shard_rows=13), "mmap")
        case "pack" | "mapped pack":
            return DataPack.load(path / "pack.dat", "ram" if kind == "pack" else "mmap")
        case "set of a pack":
            return Dataset(path / "pack.dat")
        case _:
            return Dataset([write_dataset(path / "ds"), path / "pack.dat"])


def empty_cells(boards: np.ndarray) -> np.ndarray:
    return np.array([ref.unpack(board).count(0) for board in boards.tolist()])


def expected(rows: np.ndarray, lengths: np.ndarray, phase: dict[str, Any]) -> np.ndarray:
    """Which of all rows are in the phase, row by row."""
    inside = np.ones(len(rows), np.bool_)
    steps = rows["step_index"].astype(np.int64)
    if phase.get("steps"):
        low, high = phase["steps"]
        inside &= (steps >= (low or 0)) & (steps < (2**32 if high is None else high))
    if phase.get("fraction"):
        low, high = phase["fraction"]
        share = steps / lengths
        inside &= (share >= (low or 0)) & (share < (1 if high is None else high))
    if phase.get("empties"):
        low, high = phase["empties"]
        cells = empty_cells(rows["board"])
        inside &= (cells >= (low or 0)) & (cells < (17 if high is None else high))
    return inside


@pytest.fixture(params=SOURCES)
def source(request: pytest.FixtureRequest, tmp_path: Path) -> Any:
    return opened(tmp_path, request.param)


PHASES: list[dict[str, Any]] = [
    {"steps": (5, 20)},
    {"steps": (None, 13)},
    {"steps": (40, None)},
    {"fraction": (0.5, None)},
    {"fraction": (0.1, 0.3)},
    {"empties": (0, 9)},
    {"empties": (9, None), "fraction": (0.2, 0.9), "steps": (3, 30)},
    {"empties": (0, 1)},
]


class TestPhase:
    @pytest.mark.parametrize("phase", PHASES, ids=str)
    def test_rows_are_those_of_a_list(self, source: Any, phase: dict[str, Any]) -> None:
        rows = source[:]
        lengths = np.repeat(source.runs["steps"], source.runs["steps"])
        inside = expected(rows, lengths, phase)
        view = source.phase(**phase)
        assert (view.is_view, len(view)) == (True, inside.sum())
        np.testing.assert_array_equal(view[:], rows[inside])
        np.testing.assert_array_equal(view.source_rows(np.arange(len(view))), np.flatnonzero(inside))
        owner = np.repeat(np.arange(len(source.runs)), source.runs["steps"])[inside]
        np.testing.assert_array_equal(view.run_index(np.arange(len(view))), owner)
        np.testing.assert_array_equal(view.row_counts, np.bincount(owner, minlength=len(source.runs)))
        for run in range(len(source.runs)):
            np.testing.assert_array_equal(view.rows_of(run), rows[inside][owner == run])
        with pytest.raises(IndexError):
            view.get_batch([len(view)])

    def test_filters_and_phases_in_any_order(self, source: Any) -> None:
        phase = {"fraction": (0.25, 0.75), "empties": (4, 12)}
        one = source.phase(**phase).filter_by_score(min_score=100).filter_by_length(40)
        two = (
            source.filter_by_length(40)
            .phase(empties=(4, 12))
            .filter_by_score(100)
            .phase(fraction=(0.25, 0.75))
        )
        np.testing.assert_array_equal(one[:], two[:])
        np.testing.assert_array_equal(one.runs, two.runs)
        assert 0 < len(one) < len(source.filter_by_score(100))
        assert one.run_index([0, len(one) - 1]).tolist() == [0, len(one.runs) - 1]

    def test_a_range_replaces_an_earlier_one(self, source: Any) -> None:
        view = source.phase(steps=(0, 3)).phase(steps=(5, 7))
        np.testing.assert_array_equal(view[:], source.phase(steps=(5, 7))[:])
        assert "5 <= steps < 7" in repr(view)

    def test_a_run_of_a_phase_is_whole(self, source: Any) -> None:
        run = source.phase(steps=(5, 7)).run(1)
        assert run.states[:-1].tolist() == GAMES[1].states[:-1]

    @pytest.mark.parametrize("bad", [{"steps": (3, 3)}, {"fraction": (0, 2)}, {"empties": (1.5, 3)}], ids=str)
    def test_ranges_that_are_refused(self, source: Any, bad: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match="expected"):
            source.phase(**bad)

    def test_pickles(self, source: Any) -> None:
        view = source.filter_by_length(13).phase(steps=(2, 20), empties=(3, 10))
        again = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own
        np.testing.assert_array_equal(again[:], view[:])

    def test_no_file_holds_parts_of_games(self, tmp_path: Path) -> None:
        view = Dataset(write_dataset(tmp_path / "ds")).phase(steps=(2, None))
        with pytest.raises(ValueError, match="write it without phase"):
            write_view(tmp_path / "out", view)
        assert not (tmp_path / "out").exists()

    @settings(max_examples=40)
    @given(
        st.lists(st.integers(0, 9), min_size=1, max_size=8),
        st.tuples(st.integers(0, 8), st.integers(0, 8)),
        st.tuples(st.integers(0, 16), st.integers(0, 17)),
        st.data(),
    )
    def test_of_any_runs(self, lengths: Any, steps: Any, empties: Any, data: st.DataObject) -> None:
        games = [game(i, steps_max=length, with_branches=False) for i, length in enumerate(lengths)]
        pack = DataPack.from_bytes(packdat_bytes(games))
        phase = {"steps": sorted(steps), "empties": sorted(empties)}
        if steps[0] == steps[1] or empties[0] == empties[1]:
            return
        rows = pack[:]
        mask = np.array(data.draw(st.lists(st.booleans(), min_size=len(games), max_size=len(games))))
        inside = expected(rows, np.repeat(pack.runs["steps"], pack.runs["steps"]), phase)
        inside &= np.repeat(mask, pack.runs["steps"])
        np.testing.assert_array_equal(pack.phase(**phase)._of_runs(mask)[:], rows[inside])

    def test_as_a_corpus_has_it(self, tmp_path: Path) -> None:
        """The same words and the same rows as of the session that the set was made of."""
        session = tmp_path / "20260101T000000Z_model=x"
        convert(write_runs(tmp_path / "runs"), session, "session", lossy=True)
        corpus, dataset = Corpus.open(session), Dataset(write_dataset(tmp_path / "ds"))
        for phase in PHASES[:-1]:
            fields = ("tokens", "run", "step", "legal", "labels")
            found = dataset.phase(**phase).fetch(slice(None), fields, thresholds=(64,))
            for name, values in corpus.phase(**phase).fetch(slice(None), fields, thresholds=(64,)).items():
                np.testing.assert_array_equal(found[name], values)
                assert found[name].dtype == values.dtype


class TestFilter:
    @pytest.mark.parametrize("kind", ["dataset", "mapped"])
    def test_views_share_the_arrays_of_their_parent(self, tmp_path: Path, kind: str) -> None:
        source = opened(tmp_path, kind)
        view = source.filter_by_score(100).phase(steps=(3, None)).where(min_steps=40)
        assert len(view) == 42
        assert np.shares_memory(view._parts[0], source._parts[0])

    @pytest.mark.parametrize("kind", ["dataset", "mapped"])
    def test_views_are_of_the_opened_set(self, tmp_path: Path, kind: str) -> None:
        """Its rows were appended to, then its directory was replaced by another set of as many runs."""
        source = opened(tmp_path, kind)
        append_dataset(tmp_path / "ds", write_runs(tmp_path / "runs"))
        np.testing.assert_array_equal(source.filter_by_score(0)[:], dataset_rows())
        (tmp_path / "ds").rename(tmp_path / "old")
        write_dataset(tmp_path / "ds", [game(seed, steps_max=20) for seed in (7, 8, 9)])
        np.testing.assert_array_equal(source.filter_by_score(0)[:], dataset_rows())


class TestFetch:
    def test_fields(self, source: Any) -> None:
        numbers = np.array([3, 0, 40, 86])
        rows = source.get_batch(numbers)
        names = ("tokens", "labels", "row", "run", "step", "move", "legal", "values")
        found = source.fetch(numbers, names, thresholds=(16, 32), label_dtype="float32")
        assert list(found) == list(names)
        boards = [ref.unpack(board) for board in rows["board"].tolist()]
        np.testing.assert_array_equal(found["tokens"], boards)
        tiles = source.runs["highest_tile"][source.run_index(numbers)]
        np.testing.assert_array_equal(found["labels"], (tiles[:, None] >= [16, 32]).astype(np.float32))
        np.testing.assert_array_equal(found["row"], numbers)
        np.testing.assert_array_equal(found["run"], source.run_index(numbers))
        np.testing.assert_array_equal(found["step"], rows["step_index"])
        np.testing.assert_array_equal(found["move"], rows["move"])
        legal = [sum(1 << move for move in ref.legal_moves(cells)) for cells in boards]
        np.testing.assert_array_equal(found["legal"], legal)
        np.testing.assert_array_equal(found["values"], rows["ev_values"])
        types = [found[name].dtype.str for name in names]
        assert types == ["|u1", "<f4", "<i8", "<u4", "<u4", "|u1", "|u1", "<f4"]

    def test_rows_of_a_slice_and_of_a_mask(self, source: Any) -> None:
        view = source.phase(empties=(0, 9))
        mask = np.arange(len(view)) % 2 == 1
        np.testing.assert_array_equal(view.fetch(mask)["tokens"], view.fetch(slice(1, None, 2))["tokens"])

    @pytest.mark.parametrize(
        "bad", [{"fields": ()}, {"fields": ("embeddings",)}, {"fields": ("row", "row")},
                {"label_dtype": "f4"}, {"thresholds": (3,)}],
        ids=str,
    )  # fmt: skip
    def test_what_is_refused(self, source: Any, bad: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=r"expected|thresholds"):
            source.fetch([0], **bad)
        with pytest.raises(IndexError):
            source.fetch([10**6])


class TestSetOfAPack:
    """``Dataset("pack.dat")``."""

    @pytest.mark.parametrize("how", ["ram", "mmap"])
    def test_rows_are_those_of_a_data_set(self, tmp_path: Path, how: Any) -> None:
        (tmp_path / "pack.dat").write_bytes(packdat_bytes())
        steps: list[tuple[int, int]] = []
        found = Dataset(tmp_path / "pack.dat", how, progress=lambda *done: steps.append(done))
        rows = dataset_rows()
        assert found.steps.dtype == DATASET_ROW_DTYPE
        values = rows["ev_values"]
        for i in np.ndindex(values.shape):
            has = values[i] and values[i] < 1
            values[i] = (
                min(np.float32(level(values[i])) / np.float32(65535), ALMOST_ONE) if has else values[i]
            )
        np.testing.assert_array_equal(found.steps, rows)
        assert found.runs["max_score"].tolist() == [run.max_score for run in GAMES]
        assert found.manifests == [None]
        assert how == "mmap" or steps == [(len(rows) * 32,) * 2]

    def test_beside_directories(self, tmp_path: Path) -> None:
        (tmp_path / "a.dat").write_bytes(packdat_bytes())
        write_dataset(tmp_path / "ds")
        paths = [tmp_path / "a.dat", tmp_path / "ds", tmp_path / "a.dat"]
        for how in ("ram", "mmap"):
            found = Dataset(paths, how)
            assert found.runs["id"].tolist() == list(range(9))
            np.testing.assert_array_equal(found[:]["run_id"], np.repeat(np.arange(9), found.runs["steps"]))
            np.testing.assert_array_equal(found[:]["board"], np.tile(dataset_rows()["board"], 3))

    def test_is_written_as_a_data_set(self, tmp_path: Path) -> None:
        (tmp_path / "a.dat").write_bytes(packdat_bytes())
        found = Dataset(tmp_path / "a.dat")
        write_view(tmp_path / "ds", found)
        np.testing.assert_array_equal(Dataset(tmp_path / "ds").steps, found.steps)

    def test_a_run_that_no_row_numbers(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tape2048.datasets.packdat.RUN_STEPS_MAX", 44)
        (tmp_path / "a.dat").write_bytes(packdat_bytes())
        with pytest.raises(FieldError, match="45 steps"):
            Dataset(tmp_path / "a.dat")

    def test_another_file(self, tmp_path: Path) -> None:
        (tmp_path / "x").write_bytes(b"hunter2:secret")
        with pytest.raises(NotASessionError, match=r"neither a directory nor a pack\.dat") as caught:
            Dataset(tmp_path / "x")
        assert "hunter" not in str(caught.value)
