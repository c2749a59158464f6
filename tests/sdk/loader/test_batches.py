"""Batches: each row once an epoch, the same after resuming, shared among ranks without overlap."""

import copy
import itertools
import json
import pickle
import threading
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from tests import reference

from tape2048 import Corpus, __version__, errors
from tape2048.files.bulk_read import allocate
from tape2048.game.rules import SYMMETRY_MOVES
from tape2048.loader import gatherer
from tape2048.loader.batches import Batches

from ..builders import Game, Spec, write_ours
from ..corpora import OURS, Built, build, served

#: How an epoch may be served; each holds at least two pools, or one of each of its parts.
ORDERS: dict[str, dict[str, Any]] = {
    "shuffled": {},
    "straight": {"shuffle": False},
    "pooled": {"pool_rows": 256},
}


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("batches"))


@pytest.fixture(scope="module")
def corpus(built: Built) -> Corpus:
    return Corpus.open(built.root, load="ram")


@pytest.fixture(params=ORDERS)
def order(request: pytest.FixtureRequest) -> dict[str, Any]:
    return ORDERS[request.param]


class Slow:
    """Sessions, and the fields of their rows by the plain definition."""

    def __init__(self, root: Any, *, action: bool) -> None:
        self.built = built = build(root, action=action)
        self.corpora = {load: Corpus.open(built.root, load=load) for load in ("mmap", "packed", "ram")}
        boards = built.rows["exps"].reshape(-1, 16)
        legal = [sum(1 << move for move in reference.legal_moves(cells)) for cells in boards.tolist()]
        self.empty = (boards == 0).sum(axis=1)
        self.id = np.array([game.id for game in built.games])[built.run]
        self.apart = np.array(built.session)[built.run] == 3  # runs take turns in this session's file
        self.fields = {
            "tokens": boards, "step": built.rows["step_idx"], "legal": np.array(legal, np.uint8),
            "move": built.moves, "labels": built.highest[built.run][:, None] >= [8192, 16384, 32768],
        }  # fmt: skip
        if action:
            self.fields["action"] = built.rows["action"]

    def view(
        self, load: str, *, runs: bool, steps: Any, empties: Any, every: int
    ) -> tuple[Corpus, NDArray[np.int64]]:
        """A view, and the numbers of its rows."""
        view, chosen = self.corpora[load], np.ones(len(self.id), np.bool_)
        if runs:
            view, chosen = view.where("run_id % 4 <> 1"), chosen & (self.id % 4 != 1)
        if steps or empties:
            view = view.phase(steps=steps, empties=empties)
        for values, bounds in ((self.fields["step"], steps), (self.empty, empties)):
            if bounds:
                chosen &= (values >= bounds[0]) & (values < bounds[1])
        if every > 1:
            view = view.select(np.arange(0, len(view), every))
        return view, np.flatnonzero(chosen)[::every]

    def expected(self, rows: NDArray[np.int64], turns: NDArray[np.uint8]) -> dict[str, NDArray[Any]]:
        """Fields of some rows under symmetries."""
        found = {name: values[rows] for name, values in self.fields.items()}
        cells = np.array([turned(list(range(16)), k) for k in range(8)])
        found["tokens"] = np.take_along_axis(found["tokens"], cells[turns], axis=1)
        for name in {"move", "action"} & found.keys():
            is_move = found[name] < 4
            turned_moves = SYMMETRY_MOVES[turns, np.where(is_move, found[name], 0)]
            found[name] = np.where(is_move, turned_moves, found[name])
        bits = found["legal"][:, None] >> np.arange(4) & 1
        found["legal"] = (bits << SYMMETRY_MOVES[turns]).sum(axis=1)
        return found


@pytest.fixture(scope="module")
def slow(tmp_path_factory: pytest.TempPathFactory) -> dict[bool, Slow]:
    return {action: Slow(tmp_path_factory.mktemp("slow"), action=action) for action in (False, True)}


CAPS = st.tuples(
    st.integers(1, 60), st.sampled_from(["stratified", "even"]), st.sampled_from([None, "highest"])
)


@settings(max_examples=150, deadline=None)
@given(
    action=st.booleans(), load=st.sampled_from(["mmap", "packed", "ram"]), runs=st.booleans(),
    steps=st.sampled_from([None, (3, 33)]), empties=st.sampled_from([None, (3, 15), (7, 13)]),
    every=st.integers(1, 3), cap=st.none() | CAPS, order=st.sampled_from(sorted(ORDERS)),
    turns=st.booleans(), batch_size=st.integers(1, 400), world=st.sampled_from([1, 1, 2, 3, 7]),
    drop_last=st.booleans(), seed=st.integers(0, 2**64 - 1), fields=st.sets(st.integers(0, 5), min_size=1),
    label_dtype=st.sampled_from(["bool", "float32"]),
)  # fmt: skip
def test_any_epoch_is_that_of_a_slow_reference(
    slow: dict[bool, Slow], *, action: bool, load: str, runs: bool, steps: Any, empties: Any, every: int,
    cap: Any, order: str, turns: bool, batch_size: int, world: int, drop_last: bool, seed: int,
    fields: set[int], label_dtype: str,
) -> None:  # fmt: skip
    """Each row comes once and whole, of any storage, view and order, in equal batches on all ranks."""
    plain = slow[action]
    view, rows = plain.view(load, runs=runs, steps=steps, empties=empties, every=every)
    assert len(view) == len(rows)
    source: Any = view if cap is None else view.capped(cap[0], cap[1], by=cap[2])
    names = sorted(plain.fields)
    how: dict[str, Any] = {
        "fields": ("row", "run", "symmetry", "weight", *(names[i] for i in fields if i < len(names))),
        "seed": seed, "drop_last": drop_last, "augment": "d4" if turns else None, **ORDERS[order],
        "label_dtype": label_dtype,
    }  # fmt: skip
    if len(source) < 4 * world * (batch_size if drop_last else 16):
        return  # a rank would have no batch
    ranks = [source.batches(batch_size, rank=rank, world_size=world, **how) for rank in range(world)]
    served = [[batch.copy() for batch in batches] for batches in ranks]
    shapes = [[len(batch["row"]) for batch in batches] for batches in served]
    assert shapes == [shapes[0]] * world
    assert set(shapes[0][:-1]) <= {batch_size}
    assert len(shapes[0]) == len(ranks[0])
    found = {
        name: np.concatenate([batch[name] for batches in served for batch in batches])
        for name in how["fields"]
    }
    number, symmetry = found["row"], found["symmetry"]
    assert len(set(number.tolist())) == len(number)
    left_out = world * (batch_size if drop_last else 1) - 1
    if order == "pooled" and world > 1:
        left_out += 2 * 16 * world  # the ranks have whole chunks, of 16 rows here or fewer
    assert len(source) - left_out <= len(number) <= len(source)
    assert turns or not symmetry.any()
    expected = plain.expected(rows[number], symmetry)
    if steps and "move" in found:  # the next row is not in the view, and may not be adjacent in the file
        last = plain.apart[rows[number]] & (plain.fields["step"][rows[number]] == steps[1] - 1)
        expected["move"][last] = found["move"][last]
    for name in expected.keys() & found.keys():
        np.testing.assert_array_equal(found[name], expected[name], err_msg=name)
    np.testing.assert_array_equal(view.runs["run_id"][found["run"]], plain.id[rows[number]])
    if order == "straight" and world == 1:
        assert (np.diff(number) > 0).all() or cap is not None
    there = np.bincount(plain.built.run[rows])
    taken = there if cap is None else np.minimum(there, cap[0])
    if len(number) == len(source):
        np.testing.assert_array_equal(np.bincount(plain.built.run[rows[number]]), taken)
        assert found["weight"].sum(dtype=np.float64) == pytest.approx(len(view), rel=1e-6)
    if cap is None or cap[2] is None:
        mine = plain.built.run[rows[number]]
        np.testing.assert_array_equal(found["weight"], (there[mine] / taken[mine]).astype(np.float32))


class TestEpoch:
    def test_epochs_differ_and_seeds_do(self, corpus: Corpus, order: dict[str, Any]) -> None:
        batches = corpus.batches(100, seed=1, fields=("row",), **order)
        epochs = [np.concatenate(served(batches)) for _ in range(3)]
        other = np.concatenate(served(corpus.batches(100, seed=2, fields=("row",), **order)))
        again = np.concatenate(served(corpus.batches(37, seed=1, fields=("row",), **order)))
        np.testing.assert_array_equal(epochs[0], again)  # the order does not hang on the batch size
        if order == ORDERS["straight"]:
            np.testing.assert_array_equal(epochs[0], np.arange(len(corpus)))
            return
        for one in (*epochs[1:], other, np.arange(len(corpus))):
            assert (epochs[0] != one).mean() > 0.95

    def test_no_whole_batch(self, corpus: Corpus) -> None:
        with pytest.raises(errors.EmptyCorpusError, match="expected a whole batch of 100,000"):
            corpus.batches(100_000, drop_last=True)

    def test_free_buffers_are_filled_again(self, corpus: Corpus) -> None:
        epoch = iter(corpus.batches(100))
        batch = next(epoch)
        kept = batch.copy()
        assert kept["tokens"].base is None
        assert kept["tokens"].shape == (batch.rows, 16)
        assert len({batch.tokens.ctypes.data for batch in epoch}) <= 2, "no new memory for each batch"

    def test_buffers_of_the_caller(self, corpus: Corpus) -> None:
        batches = corpus.batches(64, fields=("tokens", "labels"), label_dtype="float32")
        memory = np.zeros((3, 64, 16), np.uint8)
        batch = batches.buffer({"tokens": memory[1], "labels": np.zeros((64, 3), np.float32)})
        batches.fill(batch, epoch=0, index=2)
        assert memory[1].any()
        assert not memory[[0, 2]].any()
        bad: list[dict[str, Any]] = [
            {"tokens": memory[0]},
            {"tokens": memory[0], "labels": np.zeros((64, 3), np.bool_)},
            {"tokens": memory[0, :, ::-1], "labels": np.zeros((64, 3), np.float32)},
            {"tokens": memory[0, :63], "labels": np.zeros((63, 3), np.float32)},
            {"tokens": memory[0], "labels": np.zeros((64, 2), np.float32)},
        ]
        for arrays in bad:
            with pytest.raises(ValueError, match="buffer"):
                batches.buffer(arrays)
        no_array: Any
        for no_array in ([[0] * 16] * 64, None, 5, np.array(0, np.uint8)):
            with pytest.raises(ValueError, match=r"for tokens is .*; expected a NumPy array"):
                batches.buffer({"tokens": no_array, "labels": np.zeros((64, 3), np.float32)})

    def test_constant_labels_are_logged_once(
        self, corpus: Corpus, caplog: pytest.LogCaptureFixture, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        monkeypatch.setattr("tape2048.session.run_table._TOLD", set())
        corpus.batches(thresholds=(2048,))
        corpus.batches(thresholds=(128,), fields=("tokens",))
        assert not caplog.messages
        for source in (corpus.capped(3), corpus, corpus.where("run > 9")):
            source.batches(thresholds=(128, 2048, 65536))
        (message,) = caplog.messages
        assert message == (
            "constant labels: 128 was reached by all of 43 games; 65,536 was reached by none of 43 games; "
            "pass other thresholds"
        )

    @pytest.mark.parametrize("count", [3, 8, 9])
    @pytest.mark.parametrize("size", [9, 300])
    def test_many_thresholds_write_no_byte_after_them(
        self, corpus: Corpus, order: dict[str, Any], count: int, size: int
    ) -> None:
        thresholds = tuple(2 ** (4 + power) for power in range(count))
        batches = corpus.batches(size, fields=("labels", "run"), thresholds=thresholds, **order)
        guarded = np.full(size * count + 64, 7, np.uint8)
        labels = guarded[: size * count].reshape(size, count).view(np.bool_)
        batch = batches.buffer({"labels": labels, "run": np.zeros(size, np.uint32)})
        expected = corpus.run_labels(thresholds)
        for index in {0, 1 % len(batches), len(batches) - 1}:
            guarded[:] = 7
            rows = batches.fill(batch, epoch=0, index=index)
            np.testing.assert_array_equal(labels[:rows], expected[batch["run"]])
            assert (guarded[rows * count :] == 7).all()

    def test_buffers_of_others(self, corpus: Corpus, order: dict[str, Any]) -> None:
        batches = corpus.batches(64, thresholds=(256, 2048, 8192), **order)
        same = corpus.batches(70, thresholds=(2, 4, 8)).buffer()
        assert batches.fill(same, epoch=0, index=0) == 64
        others: list[dict[str, Any]] = [
            {"batch_size": 63, "thresholds": (256, 2048, 8192)},
            {"batch_size": 64, "thresholds": (256, 2048)},
            {"batch_size": 64, "label_dtype": "float32"},
            {"batch_size": 64, "fields": ("labels",)},
        ]
        for options in others:
            buffer = corpus.batches(**options).buffer()
            with pytest.raises(ValueError, match=r"a buffer for 6\d rows of .*; expected 64 of"):
                batches.fill(buffer, epoch=0, index=0)

    @pytest.mark.parametrize("make", [copy.deepcopy, lambda batch: pickle.loads(pickle.dumps(batch))])  # noqa: S301
    def test_a_copy_has_memory_of_its_own(self, corpus: Corpus, make: Callable[[Any], Any]) -> None:
        batches = corpus.batches(100, fields=("row", "labels"))
        batch = next(iter(batches))
        other, first = make(batch), batch.copy()
        assert other.row.tolist() == first["row"].tolist()
        batches.fill(other, epoch=0, index=2)
        assert batch.row.tolist() == first["row"].tolist() != other.row.tolist()
        assert copy.copy(batch).row.base is batch.row.base

    def test_a_batch_is_a_mapping(self, corpus: Corpus) -> None:
        batch = next(iter(corpus.batches(10, fields=("tokens", "run"))))
        assert dict(batch).keys() == {"tokens", "run"}
        np.testing.assert_array_equal(batch.run, batch["run"])
        assert repr(batch) == "<Batch of 10 rows: tokens, run>"
        with pytest.raises(AttributeError, match="no field 'labels'"):
            _ = batch.labels
        with pytest.raises(KeyError):
            batch["labels"]
        assert len(list(batch.values())) == 2

    def test_a_column_called_values_hides_the_method_of_mappings(self, corpus: Corpus) -> None:
        extra = {"values": np.arange(len(corpus), dtype=np.float32)}
        batch = next(iter(corpus.batches(10, fields=("row",), extra=extra)))
        np.testing.assert_array_equal(batch.values, batch["row"])
        assert dict(batch).keys() == {"row", "values"}

    @pytest.mark.parametrize(
        "options",
        [{"batch_size": 0}, {"seed": -1}, {"seed": 2**64}, {"fields": ("token",)}, {"augment": "d8"},
         {"thresholds": (3,)}, {"label_dtype": "int"}, {"pool_rows": 3},
         {"pool_rows": 256, "shuffle": False}],
        ids=str,
    )  # fmt: skip
    def test_wrong_option(self, corpus: Corpus, options: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=next(iter(options))):
            corpus.batches(**options)

    @pytest.mark.parametrize(
        "option", ["batch_size", "seed", "pool_rows", "rank", "world_size", "shuffle", "drop_last"]
    )
    def test_numbers_of_numpy(self, corpus: Corpus, option: str) -> None:
        usual: dict[str, Any] = {
            "batch_size": 100, "seed": 2, "pool_rows": 256, "rank": 0, "world_size": 1, "shuffle": True,
            "drop_last": False,
        }  # fmt: skip
        expected = corpus.batches(**usual)
        batches = corpus.batches(**{**usual, option: np.array(usual[option])[()]})
        assert served(batches, "labels") == served(expected, "labels")
        state = json.loads(json.dumps(batches.state_dict()))
        assert state == expected.state_dict()
        batches.load_state_dict(state)

    @pytest.mark.parametrize("option", ["batch_size", "seed", "pool_rows", "rank", "world_size"])
    def test_no_whole_number(self, corpus: Corpus, option: str) -> None:
        with pytest.raises(ValueError, match=rf"{option}=2\.0; expected a whole number"):
            corpus.batches(**{option: 2.0})

    def test_what_is_no_corpus(self, corpus: Corpus) -> None:
        """A session has rows and runs too, and is what stands in the README's first example."""
        source: Any
        for source in (corpus.sessions[0], "selfplay", None):
            with pytest.raises(TypeError, match=r"found .*, expected a Corpus \(Corpus\.open also"):
                Batches(source)

    def test_no_such_batch(self, corpus: Corpus, order: dict[str, Any]) -> None:
        batches = corpus.batches(100, **order)
        for index in (-1, len(batches)):
            with pytest.raises(IndexError, match=f"batch {index}"):
                batches.fill(batches.buffer(), epoch=0, index=index)
        half: Any = 0.5
        with pytest.raises(ValueError, match=r"index=0\.5; expected a whole number"):
            batches.fill(batches.buffer(), epoch=0, index=half)


class TestAugment:
    def test_symmetries_are_equally_likely(self, corpus: Corpus) -> None:
        used = np.concatenate(
            served(corpus.batches(200, seed=5, fields=("symmetry",), augment="d4"), "symmetry")
        )
        counts = np.bincount(used, minlength=8)
        # Chi-square with 7 degrees of freedom: 40 is exceeded once in a million; the seed is fixed.
        assert ((counts - len(used) / 8) ** 2 / (len(used) / 8)).sum() < 40

    def test_a_row_has_another_one_each_epoch(self, corpus: Corpus) -> None:
        batches = corpus.batches(500, fields=("row", "symmetry"), augment="d4", seed=1)
        drawn = np.zeros((4, len(corpus)), int)
        for epoch in range(4):
            for batch in batches:
                drawn[epoch, batch.row] = batch.symmetry
        same = (drawn[1:] == drawn[:-1]).mean()
        assert 0.08 < same < 0.17  # an eighth


def turned(cells: list[int], k: int) -> list[int]:
    """Bit 0 swaps left and right, bit 1 top and bottom, bit 2 then transposes."""
    if k & 1:
        cells = reference.mirror(cells)
    if k & 2:
        cells = [cells[4 * (3 - i // 4) + i % 4] for i in range(16)]
    if k & 4:
        cells = [cells[4 * (i % 4) + i // 4] for i in range(16)]
    return cells


class TestCapped:
    @pytest.mark.parametrize("spread", ["stratified", "even"])
    def test_every_row_is_as_likely(self, tmp_path: Any, spread: Any) -> None:
        """Also where K does not divide m: strata of 1 and of 2 rows would be unfair to the latter."""
        write_ours(tmp_path / OURS[0], Spec(games=[Game(1, 11), Game(2, 7), Game(3, 30)]))
        corpus = Corpus.open(tmp_path)
        batches = corpus.capped(7, spread).batches(21, fields=("row",))
        epochs = 3000
        counts = np.bincount(np.concatenate([served(batches)[0] for _ in range(epochs)]), minlength=48)
        for part, rows in ((slice(0, 11), 11), (slice(11, 18), 7), (slice(18, 48), 30)):
            share = 7 / rows
            spread_of_counts = max(1.0, np.sqrt(epochs * share * (1 - share)))
            assert (np.abs(counts[part] - epochs * share) < 5 * spread_of_counts).all()

    def test_rows_are_spread_over_the_game(self, tmp_path: Any) -> None:
        write_ours(tmp_path / OURS[0], Spec(games=[Game(1, 1000)]))
        corpus = Corpus.open(tmp_path)
        for spread, closest, farthest in (("even", 100, 100), ("stratified", 1, 199)):
            rows = np.sort(served(corpus.capped(10, spread).batches(10, fields=("row",)))[0])
            gaps = np.diff(np.append(rows, rows[0] + 1000))
            assert closest <= gaps.min() <= gaps.max() <= farthest

    def test_wrong_cap(self, corpus: Corpus) -> None:
        with pytest.raises(ValueError, match="per_run=0"):
            corpus.capped(0)
        with pytest.raises(ValueError, match=r"per_run=2\.5; expected a whole number"):
            corpus.capped(2.5)  # type: ignore[arg-type]
        assert corpus.capped(np.int64(3)).identity == corpus.capped(3).identity  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="spread='odd'"):
            corpus.capped(3, "odd")  # type: ignore[arg-type]
        everything = corpus.capped(10**20)
        assert len(served(everything.batches(2000, fields=("row",)))[0]) == len(everything) == 1293
        with pytest.raises(ValueError, match="by='lowest'"):
            corpus.capped(3, by="lowest")  # type: ignore[arg-type]
        assert corpus.capped(3, by="highest").identity != corpus.capped(3).identity
        assert repr(corpus.capped(1)) == "<Capped: 43 of 1,293 rows, at most 1 a run>"

    @settings(max_examples=25, deadline=None)
    @given(
        every=st.integers(1, 4),
        empties=st.sampled_from([None, (4, 13)]),
        per_run=st.integers(1, 40),
        spread=st.sampled_from(["stratified", "even"]),
        order=st.sampled_from(list(ORDERS.values())),
    )
    def test_stages_are_counted_as_slowly(
        self, corpus: Corpus, *, every: int, empties: Any, per_run: int, spread: Any, order: Any
    ) -> None:
        """Equal shares of the stages of a run, as far as they have rows; weights sum up to their rows."""
        view = corpus.where("run_id % 5 <> 2").phase(empties=empties)
        view = view.select(np.arange(0, len(view), every))
        tokens, run = view.fetch(slice(None), ("tokens", "run")).values()
        stage = tokens.max(axis=1)
        batches = view.capped(per_run, spread, by="highest").batches(
            300, fields=("row", "weight"), seed=every, **order
        )
        for _ in range(2):
            served = [batch.copy() for batch in batches]
            rows, weights = (np.concatenate([batch[name] for batch in served]) for name in ("row", "weight"))
            assert len(set(rows.tolist())) == len(rows)
            for each in set(run.tolist()):
                there, drawn = stage[run == each], rows[run[rows] == each]
                assert len(drawn) == min(per_run, len(there))
                kinds = np.unique(there)
                of_stage = np.maximum(stage, kinds[-per_run:][0])  # the earliest of too many count as one
                kinds, have = np.unique(of_stage[run == each], return_counts=True)
                took = np.array([(of_stage[drawn] == kind).sum() for kind in kinds])
                short = took < have
                if short.any():
                    assert took.max() - took[short].min() <= 1
                for kind, all_of, some in zip(kinds, have, took, strict=True):
                    mine = (run[rows] == each) & (of_stage[rows] == kind)
                    np.testing.assert_allclose(weights[mine], all_of / some, rtol=1e-6)


class TestWeight:
    """A row of a capped sample stands for several rows of its run."""

    @settings(max_examples=15)
    @given(
        first=st.integers(0, 20),
        rows=st.integers(4, 60),
        empties=st.sampled_from([None, (6, 13)]),
        per_run=st.integers(1, 12),
        spread=st.sampled_from(["stratified", "even"]),
        seed=st.integers(0, 2**32),
    )
    def test_weighted_means_are_those_of_all_rows(
        self, corpus: Corpus, *, first: int, rows: int, empties: Any, per_run: int, spread: Any, seed: int
    ) -> None:
        """Of labels, which are the game's, in every epoch; of what differs from row to row, on average."""
        view = corpus.where("run_id % 5 <> 2").phase(steps=(first, first + rows), empties=empties)
        fields = ("labels", "step", "weight")
        every = view.fetch(slice(None), fields, thresholds=(2048, 8192))
        epochs = 200
        capped = view.capped(per_run, spread)
        batches = capped.batches(4096, seed=seed, fields=fields, thresholds=(2048, 8192))
        means = []
        for _ in range(epochs):
            (batch,) = (batch.copy() for batch in batches)
            labels, steps = (
                np.average(batch[name], axis=0, weights=batch["weight"]) for name in ("labels", "step")
            )
            np.testing.assert_allclose(labels, every["labels"].mean(axis=0), atol=1e-6)
            means.append(steps)
        spread_of_mean = np.std(means) / np.sqrt(epochs)
        assert abs(np.mean(means) - every["step"].mean()) < 6 * spread_of_mean + 1e-4


class TestState:
    @settings(max_examples=20)
    @given(st.integers(0, 40), st.integers(0, 40), st.sampled_from(sorted(ORDERS)))
    def test_resumed_twice_in_an_epoch(self, corpus: Corpus, first: int, second: int, order: str) -> None:
        how: dict[str, Any] = {"seed": 11, "fields": ("row", "symmetry"), "augment": "d4", **ORDERS[order]}
        whole = [
            batch.copy() for batches in [corpus.batches(50, **how)] for _ in range(3) for batch in batches
        ]
        found = []
        state = None
        for stop in (first, second, None):
            batches = corpus.batches(50, **{**how, "seed": 99})
            batches.load_state_dict(state or corpus.batches(50, **how).state_dict())
            while len(found) < len(whole) and stop != 0:
                for batch in batches:
                    found.append(batch.copy())
                    # As a training loop does it: the state after the batch that was worked on.
                    state = json.loads(json.dumps(batches.state_dict()))
                    if stop is not None and (stop := stop - 1) == 0:
                        break
        assert len(found) == len(whole)
        for one, other in zip(found, whole, strict=True):
            assert all(np.array_equal(one[field], other[field]) for field in one)

    def test_state_says_where(self, corpus: Corpus) -> None:
        batches = corpus.batches(100, seed=4)
        assert (batches.epoch, batches.position) == (0, 0)
        for i, _ in enumerate(batches, start=1):
            assert (batches.epoch, batches.position) == (0, i)
        assert (batches.epoch, batches.position) == (1, 0)
        assert batches.state_dict() == {
            "version": 2, "seed": 4, "epoch": 1, "position": 0, "corpus": corpus.identity, "rows": 1293,
            "batch_size": 100, "shuffle": True, "drop_last": False, "pool_rows": None, "rank": 0,
            "world_size": 1, "pool_sessions": None, "start": 0, "places": [], "sessions": [],
            "release": __version__,
        }  # fmt: skip

    def test_state_after_the_last_batch(self, corpus: Corpus) -> None:
        batches = corpus.batches(100)
        for _ in batches:
            state = batches.state_dict()
        again = corpus.batches(100)
        again.load_state_dict(state)
        assert list(again) == []
        assert (again.epoch, again.position) == (1, 0)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"shuffle": False}, "shuffle True, not False"),
            ({"drop_last": True}, "drop_last False, not True"),
            ({"pool_rows": 256}, "pool_rows None, not 256"),
            ({"shuffle": False, "drop_last": True}, "shuffle True, not False; drop_last False, not True"),
        ],
    )
    def test_state_of_other_settings(self, corpus: Corpus, change: dict[str, Any], message: str) -> None:
        state = corpus.batches(100).state_dict()
        with pytest.raises(errors.StateError, match=message):
            corpus.batches(**{"batch_size": 100, **change}).load_state_dict(state)

    def test_state_of_another_version(self, corpus: Corpus) -> None:
        batches = corpus.batches(100)
        with pytest.raises(errors.StateError, match="version 1, not 2") as caught:
            batches.load_state_dict({**batches.state_dict(), "version": 1})
        assert str(caught.value.hint).startswith("start the epoch again")
        state = {**batches.state_dict(), "version": 1, "rows": 5}
        with pytest.raises(errors.StateError, match=r"version 1, not 2; rows 5, not 1293") as caught:
            batches.load_state_dict(state)
        assert "the same filters" in str(caught.value.hint)
        straight = corpus.batches(100, shuffle=False)
        straight.load_state_dict({**straight.state_dict(), "version": 1, "position": 3})
        assert straight.position == 3
        older = {**batches.state_dict(), "position": 3}
        del older["start"], older["places"]  # as before other ranks could continue
        batches.load_state_dict(older)
        assert batches.here == (0, 3, 0)

    def test_pickled_after_the_last_batch(self, corpus: Corpus) -> None:
        batches = corpus.batches(100, fields=("row",))
        for _ in zip(range(len(batches)), batches, strict=False):
            pass
        again = pickle.loads(pickle.dumps(batches))  # noqa: S301 - our own
        assert (again.epoch, again.position) == (0, len(batches))
        assert served(again) == served(batches) != []

    def test_settings_that_are_changed_count_at_once(self, corpus: Corpus) -> None:
        batches = corpus.batches(100, fields=("row", "symmetry"), augment="d4")
        batch = batches.buffer()
        batches.fill(batch, epoch=0, index=0)
        assert batch["symmetry"].any()
        batches.augment = None
        batches.fill(batch, epoch=0, index=0)
        assert not batch["symmetry"].any()
        batches.shuffle = False
        batches.fill(batch, epoch=0, index=0)
        assert batch["row"].tolist() == list(range(100))

    def test_state_of_other_rows(self, corpus: Corpus) -> None:
        state = corpus.batches(100).state_dict()
        for other in (corpus.where("run_id <> 1"), corpus.capped(3), corpus.phase(steps=(1, None))):
            with pytest.raises(errors.StateError, match=r"corpus .*, not .*; rows 1293, not"):
                other.batches(100).load_state_dict(state)

    @pytest.mark.parametrize(
        ("change", "message"),
        [
            ({"epoch": "x"}, "Expected `int`"),
            ({"epoch": -1}, f"epoch is -1; expected 0 to {2**64 - 1}"),
            ({"position": 14}, "position is 14; expected 0 to 13"),
            ({"position": -1}, "position is -1; expected 0 to 13"),
            ({"seed": 2**64}, f"seed is {2**64}; expected 0 to {2**64 - 1}"),
            ({"more": 1}, "unknown field `more`"),
            ({"start": -1}, "start is -1; expected 0 to 1293"),
            ({"start": 1294}, "start is 1294; expected 0 to 1293"),
            ({"batch_size": 0}, "batch_size is 0; expected 1 to"),
            ({"world_size": 0}, "world_size is 0; expected 1 to"),
            ({"world_size": -3}, "world_size is -3; expected 1 to"),
            ({"places": [3]}, "places has 1 number; expected 0"),
        ],
    )
    def test_malformed_state(self, corpus: Corpus, change: dict[str, Any], message: str) -> None:
        batches = corpus.batches(100)
        with pytest.raises(errors.StateError, match=message):
            batches.load_state_dict(batches.state_dict() | change)
        with pytest.raises(errors.StateError):
            batches.load_state_dict({})

    def test_state_of_another_rank(self, corpus: Corpus) -> None:
        """All ranks are equally far, so one of them may save for all."""
        one, other = (corpus.batches(100, rank=rank, world_size=2, fields=("row",)) for rank in (0, 1))
        next(iter(one))
        expected = served(other)[1:]
        again = corpus.batches(100, rank=1, world_size=2, fields=("row",))
        again.load_state_dict(one.state_dict())
        assert served(again) == expected

    @settings(max_examples=60)
    @given(
        per_run=st.integers(1, 90),
        stages=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 150), st.integers(0, 9)), max_size=4),
        shuffle=st.booleans(),
    )
    def test_other_ranks_serve_the_rest_once(
        self, corpus: Corpus, per_run: int, stages: list[tuple[int, int, int]], *, shuffle: bool
    ) -> None:
        """After each stage, the served rows are a prefix of one order, on any ranks, in any batches."""
        source = corpus.capped(per_run)
        how: dict[str, Any] = {"seed": 5, "fields": ("row",), "shuffle": shuffle}
        (order,) = served(source.batches(len(source), **how))
        state, found = None, []
        for world_size, batch_size, stop in [*stages, (1, 64, len(source))]:
            shapes = []
            for rank in range(world_size):
                batches = source.batches(batch_size, **how, rank=rank, world_size=world_size)
                if state is not None:
                    batches.load_state_dict(state)
                part = served(itertools.islice(batches, min(stop, len(batches) - batches.position)))
                shapes.append([len(rows) for rows in part])
                found += [row for rows in part for row in rows]
            assert shapes == shapes[:1] * world_size
            state = json.loads(json.dumps(batches.state_dict()))
            assert sorted(found) == sorted(order[: len(found)])
        assert len(found) == len(source)

    @pytest.mark.parametrize("world", [2, 3, 8])
    @pytest.mark.parametrize("first", [0, 3, 11])
    def test_pools_of_ranks_leave_out_few_rows(self, corpus: Corpus, world: int, first: int) -> None:
        view = corpus.phase(steps=(first, None))
        how: dict[str, Any] = {"pool_rows": 256, "world_size": world, "fields": ("row",)}
        ranks = [view.batches(50, rank=rank, **how) for rank in range(world)]
        rows = [sum(map(len, served(batches))) for batches in ranks]
        assert rows == rows[:1] * world
        assert 0 <= len(view) - sum(rows) <= len(view) / 32

    def test_ranks_that_take_turns_at_chunks_stay_as_many(self, corpus: Corpus) -> None:
        batches = corpus.batches(50, pool_rows=256, rank=0, world_size=2, fields=("row",))
        expected = np.concatenate(served(batches))
        batches.go_to(0, 3)
        again = corpus.batches(7, pool_rows=256, rank=0, world_size=2, fields=("row",))
        again.load_state_dict(batches.state_dict())
        assert np.concatenate(served(again)).tolist() == expected[150:].tolist()
        with pytest.raises(errors.StateError, match=r"world_size 2, not 3\n.*as many ranks as before"):
            corpus.batches(50, pool_rows=256, world_size=3).load_state_dict(batches.state_dict())
        batches.next_epoch()
        third = corpus.batches(50, pool_rows=256, rank=0, world_size=3)
        third.load_state_dict(batches.state_dict())
        assert third.here == (1, 0, 0)

    def test_pickled(self, corpus: Corpus, order: dict[str, Any]) -> None:
        batches = corpus.batches(100, seed=8, fields=("row",), thresholds=(4,), **order)
        next(iter(batches))
        again: Batches = pickle.loads(pickle.dumps(batches))  # noqa: S301  (our own bytes)
        assert again.state_dict() == batches.state_dict()
        assert served(again) == served(batches)


class TestRanks:
    def test_together_they_serve_what_one_does(self, corpus: Corpus) -> None:
        alone = served(corpus.batches(50, fields=("row",)))
        two = [served(corpus.batches(50, fields=("row",), rank=r, world_size=2)) for r in (0, 1)]
        whole = len(corpus) // 100
        assert [batch for pair in zip(*two, strict=True) for batch in pair][: 2 * whole] == alone[: 2 * whole]

    def test_environment(self, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("RANK", "2")
        monkeypatch.setenv("WORLD_SIZE", "5")
        batches = corpus.batches()
        assert (batches.rank, batches.world_size) == (2, 5)
        assert (corpus.batches(rank=0, world_size=1).rank, corpus.batches(world_size=3).rank) == (0, 2)
        monkeypatch.setenv("RANK", "two")
        with pytest.raises(errors.ConfigError, match=r"\$RANK is 'two'"):
            corpus.batches()

    @pytest.mark.parametrize(("rank", "world_size"), [(1, 1), (-1, 2), (2, 2), (0, 0), (0, -1)])
    def test_rank_out_of_range(self, corpus: Corpus, rank: int, world_size: int) -> None:
        with pytest.raises(errors.ConfigError, match=f"rank {rank} of {world_size}"):
            corpus.batches(rank=rank, world_size=world_size)

    def test_more_ranks_than_rows(self, corpus: Corpus) -> None:
        with pytest.raises(
            errors.ConfigError, match="found 1,293 rows for 2000 ranks; expected a row for each"
        ):
            corpus.batches(1, rank=0, world_size=2000)


class TestThreads:
    def test_any_thread_fills_any_batch(self, corpus: Corpus, order: dict[str, Any]) -> None:
        batches = corpus.batches(32, fields=("row", "tokens"), **order)
        expected = [batch.copy() for batch in batches]
        found: list[dict[str, NDArray[Any]]] = [{}] * len(expected)

        def work(first: int) -> None:
            buffer = batches.buffer()
            for index in range(first, len(expected), 4):
                batches.fill(buffer, epoch=0, index=index)
                found[index] = buffer.copy()

        threads = [threading.Thread(target=work, args=(first,)) for first in range(4)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        for one, other in zip(found, expected, strict=True):
            np.testing.assert_array_equal(one["row"], other["row"])
            np.testing.assert_array_equal(one["tokens"], other["tokens"])

    def test_state_is_left_alone(self, corpus: Corpus) -> None:
        batches = corpus.batches(32)
        before = batches.state_dict()
        batches.fill(batches.buffer(), epoch=7, index=3)
        assert batches.state_dict() == before
        batches.advance(2)
        assert batches.position == 2


class TestPool:
    def test_a_batch_has_few_chunks_and_mixed_games(self, tmp_path: Any) -> None:
        write_ours(tmp_path / OURS[0], Spec(games=[Game(i, 100) for i in range(1, 101)]))
        corpus = Corpus.open(tmp_path)
        batches = corpus.batches(500, pool_rows=4096, fields=("row", "run"))
        epoch = []
        for batch in batches:
            # 64 chunks of 128 rows (and a few more) to the corpus, 16 to a pool.
            assert len(set((batch.row // 128).tolist())) <= 32
            assert len(set(batch.run.tolist())) > 10
            epoch += batch.row.tolist()
        assert sorted(epoch) == list(range(10_000))

    def test_memory_is_bounded(self, tmp_path: Any, monkeypatch: pytest.MonkeyPatch) -> None:
        write_ours(tmp_path / OURS[0], Spec(games=[Game(i, 100) for i in range(1, 101)]))
        asked: list[int] = []
        from tape2048.loader import gatherer

        original = gatherer.allocate
        monkeypatch.setattr(gatherer, "allocate", lambda count: asked.append(count) or original(count))
        batches = Corpus.open(tmp_path).batches(64, pool_rows=2000)
        reader = batches._servers[0]._pool
        for _ in batches:
            assert len(reader._pools) <= 2
        assert max(asked) * 2 <= 2000 * 28
        assert sum(asked) == 10_000 * 28
        # Threads stand on both sides of a pool's end (14 batches): neither takes the other's pool away.
        asked.clear()
        for index in (13, 14, 13, 14):
            batches.fill(batches.buffer(), epoch=5, index=index)
        assert len(asked) == 2

    def test_mapped_file_that_is_cut_while_pools_are_read(self, tmp_path: Any) -> None:
        path = write_ours(tmp_path / OURS[0], Spec(games=[Game(i, 100) for i in range(1, 101)]))
        corpus = Corpus.open(tmp_path, load="mmap")
        batches = iter(corpus.batches(64, pool_rows=256))
        next(batches)
        with (path / "steps.npy").open("r+b") as file:
            file.truncate(280_000)  # within the last page: nothing that is mapped is lost yet
        with pytest.raises(errors.CorpusError):
            for _ in batches:
                pass

    def test_pool_that_could_not_be_read_is_tried_again(
        self, corpus: Corpus, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        options: dict[str, Any] = {"fields": ("row",), "pool_rows": 256}
        calls = 0

        def fail_once(count: int) -> NDArray[np.uint8]:
            nonlocal calls
            calls += 1
            if calls == 3:
                raise errors.StorageError("no memory")
            return allocate(count)

        monkeypatch.setattr(gatherer, "allocate", fail_once)
        batches = corpus.batches(64, **options)
        found: list[list[int]] = []
        with pytest.raises(errors.StorageError, match="no memory"):
            found.extend(batch.row.tolist() for batch in batches)
        found += served(batches)
        assert found == served(corpus.batches(64, **options))


@pytest.mark.parametrize(
    ("spread", "order", "golden"),
    [
        (None, "shuffled", [(623, 6), (817, 1), (531, 5), (494, 0)]),
        (None, "pooled", [(533, 2), (168, 4), (156, 5), (530, 4)]),
        ("stratified", "straight", [(902, 6), (904, 4), (909, 6), (917, 1)]),
        ("even", "straight", [(961, 0), (966, 5), (971, 3), (976, 1)]),
    ],
)
def test_what_a_seed_and_an_epoch_draw_never_changes(
    tmp_path: Any, spread: Any, order: str, golden: list[tuple[int, int]]
) -> None:
    # A state names seed and epoch, and not what is drawn: with other draws, it would resume to other rows.
    write_ours(tmp_path / OURS[0], Spec(games=[Game(i, 100) for i in range(1, 11)]))
    corpus = Corpus.open(tmp_path)
    batches = (corpus.capped(20, spread) if spread else corpus).batches(
        4, seed=2**64 - 1, fields=("row", "symmetry"), augment="d4", **ORDERS[order]
    )
    batches.fill(buffer := batches.buffer(), epoch=3, index=len(batches) - 2)
    assert list(zip(buffer.row.tolist(), buffer.symmetry.tolist(), strict=True)) == golden
