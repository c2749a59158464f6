"""Corpora of sessions with the action and without it, against the rows as they were written."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048 import Corpus, errors
from tape2048.formats.session import ACTION_STEP_DTYPE, STEP_DTYPE

from .corpora import OURS, THEIRS, Built, build

NAMES = (*OURS, THEIRS)
FIELDS = ("tokens", "labels", "row", "run", "step", "legal", "move")


class Both:
    """Each session once without the action, and once with it."""

    def __init__(self, root: Path) -> None:
        self.plain = build(root / "plain")
        self.acting = build(root / "acting", action=True)
        self.owner = np.array(self.plain.session)[self.plain.run]

    def of(self, acting: bool) -> Built:
        return self.acting if acting else self.plain

    def paths(self, kinds: dict[str, bool]) -> list[Path]:
        return [self.of(acting).root / name for name, acting in kinds.items()]

    def rows(self, kinds: dict[str, bool]) -> np.ndarray[Any, Any]:
        """The rows of the sessions, one after the other; with the action where all have it."""
        numbers = self.numbers(kinds)
        return self.of(all(kinds.values())).rows[numbers]

    def numbers(self, kinds: dict[str, bool]) -> np.ndarray[Any, Any]:
        return np.concatenate([np.flatnonzero(self.owner == NAMES.index(name)) for name in kinds])


@pytest.fixture(scope="module")
def both(tmp_path_factory: pytest.TempPathFactory) -> Both:
    return Both(tmp_path_factory.mktemp("mixed"))


#: Each session is left out, without the action, or with it.
KINDS = st.lists(st.tuples(st.sampled_from(NAMES), st.booleans()), min_size=1, max_size=4).map(dict)
LOADS = st.sampled_from(["mmap", "packed", "ram"])
ORDERS = st.sampled_from([{}, {"shuffle": False}, {"pool_rows": 64}])


@given(kinds=KINDS, load=LOADS, order=ORDERS, data=st.data())
@settings(max_examples=60, deadline=None)
def test_any_mixture(both: Both, kinds: dict[str, bool], load: Any, order: Any, data: Any) -> None:
    rows, numbers = both.rows(kinds), both.numbers(kinds)
    corpus = Corpus.open(both.paths(kinds), load=load)
    acting = np.array([kinds[NAMES[owner]] for owner in both.owner[numbers]])
    chosen = np.ones(len(rows), np.bool_)
    if data.draw(st.booleans(), "some runs"):
        runs = data.draw(st.sampled_from(["id % 3 <> 0", "id >= 8", "session <> 'theirs'"]))
        chosen &= {
            "id % 3 <> 0": rows["run_id"] % 3 != 0,
            "id >= 8": rows["run_id"] >= 8,
            "session <> 'theirs'": both.owner[numbers] != 3,
        }[runs]
        if not chosen.any():
            return
        corpus = corpus.where(runs)
        kept = acting[chosen].all()
    else:
        kept = acting.all()
    if data.draw(st.booleans(), "some steps"):
        chosen &= (rows["step_idx"] >= 2) & (rows["step_idx"] < 30)
        if not chosen.any():
            return
        corpus = corpus.phase(steps=(2, 30))
    if data.draw(st.booleans(), "some boards"):
        empty = (rows["exps"] == 0).sum(axis=1)
        chosen &= (empty >= 7) & (empty < 13)
        if not chosen.any():
            return
        corpus = corpus.phase(empties=(7, 13))
    built = both.of(bool(kept))
    expected = built.rows[numbers][chosen]
    assert corpus.dtype == expected.dtype == (ACTION_STEP_DTYPE if kept else STEP_DTYPE)

    np.testing.assert_array_equal(corpus[:], expected)
    pieces = list(corpus.pieces(50))
    assert max(map(len, pieces)) <= 50
    np.testing.assert_array_equal(np.concatenate(pieces), expected)
    seed = data.draw(st.integers(0, 3), "seed")
    shuffled = np.random.default_rng(seed).permutation(len(expected))
    np.testing.assert_array_equal(corpus.get_batch(shuffled), expected[shuffled])
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(corpus))[:], expected)  # noqa: S301

    fields = (*FIELDS, "action") if kept else FIELDS
    seen = []
    for batch in corpus.batches(97, seed=seed, fields=fields, thresholds=(512, 8192), **order):
        mine = batch["row"]
        seen += mine.tolist()
        np.testing.assert_array_equal(batch["tokens"], expected["exps"][mine])
        np.testing.assert_array_equal(batch["step"], expected["step_idx"][mine])
        np.testing.assert_array_equal(corpus.runs["id"][batch["run"]], expected["run_id"][mine])
        # Where runs take turns, the row after a view's last one is not beside it.
        known = (batch["move"] != 255) | (both.owner[numbers][chosen][mine] != 3) | (batch["step"] != 29)
        np.testing.assert_array_equal(batch["move"][known], built.moves[numbers][chosen][mine][known])
        highest = both.plain.highest[both.plain.run][numbers][chosen][mine]
        np.testing.assert_array_equal(batch["labels"], highest[:, None] >= [512, 8192])
        if kept:
            np.testing.assert_array_equal(batch["action"], expected["action"][mine])
    assert sorted(seen) == list(range(len(expected)))
    if not kept:
        with pytest.raises(errors.CorpusError, match="no action in the rows of"):
            corpus.fetch([0], ("action",))


@pytest.mark.parametrize("load", ["mmap", "packed", "ram"])
def test_sessions_without_the_action_are_named(both: Both, load: Any) -> None:
    kinds = {OURS[0]: True, OURS[1]: False, OURS[2]: True, THEIRS: False}
    corpus = Corpus.open(both.paths(kinds), load=load)
    with pytest.raises(errors.CorpusError) as caught:
        corpus.batches(8, fields=("tokens", "action"))
    assert caught.value.message == f"no action in the rows of 2 sessions: {OURS[1]}, {THEIRS}"
    assert caught.value.path == str(both.plain.root / OURS[1])
    assert '"move"' in str(caught.value.hint)
    acting = corpus.where(f"session IN ('{OURS[0]}', '{OURS[2]}')")
    rows = acting.fetch(slice(None), ("action",))["action"]
    np.testing.assert_array_equal(rows, both.rows({OURS[0]: True, OURS[2]: True})["action"])
    assert acting.identity == Corpus.open(both.paths({OURS[0]: True, OURS[2]: True})).identity


def test_only_rows_that_fit_are_read(both: Both) -> None:
    kinds = {OURS[0]: True, OURS[1]: False}
    plain, acting = (len(Corpus.open(both.of(with_it).root / name)) for name, with_it in
                     ((OURS[1], False), (OURS[0], True)))  # fmt: skip
    size = 28 * plain + 29 * acting
    assert Corpus.open(both.paths(kinds), ram_budget=size).load == "ram"
    assert Corpus.open(both.paths(kinds), ram_budget=size - 1).load == "packed"
    seen: list[tuple[int, int]] = []
    Corpus.open(both.paths(kinds), load="ram", progress=lambda *now: seen.append(now))
    assert seen[-1] == (size, size)
