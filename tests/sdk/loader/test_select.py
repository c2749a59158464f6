"""Selected rows against masks in NumPy: after and before other filters, in batches, pickled, on tape."""

import pickle
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048 import Corpus, errors

from ..corpora import Built, build

STEPS = [(2, 30), (0, 5), (10, None)]
EMPTIES = [(0, 9), (6, 14), (9, None)]
FILTERS = st.one_of(
    st.tuples(st.just("mask"), st.floats(0.05, 1), st.integers(0, 99)),
    st.tuples(st.just("numbers"), st.floats(0.05, 1), st.integers(0, 99)),
    st.tuples(st.just("steps"), st.sampled_from(STEPS), st.just(0)),
    st.tuples(st.just("empties"), st.sampled_from(EMPTIES), st.just(0)),
    st.tuples(st.just("where"), st.sampled_from([2, 3, 4]), st.just(0)),
)


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("select"), sample_rate=2)


@pytest.fixture(scope="module")
def corpus(built: Built) -> Corpus:
    return Corpus.open(built.root)


@given(filters=st.lists(FILTERS, min_size=1, max_size=6), load=st.sampled_from(["mmap", "packed", "ram"]))
@settings(max_examples=60, deadline=None)
def test_any_order_of_filters_selects_what_masks_do(built: Built, filters: Any, load: Any) -> None:
    view = Corpus.open(built.root, load=load)
    step, empty = built.rows["step_idx"], (built.rows["exps"] == 0).sum(axis=1)
    whole = np.ones(len(step), np.bool_)
    parts = {"steps": whole, "empties": whole}
    chosen = runs = whole
    for kind, value, seed in filters:
        rng, before = np.random.default_rng(seed), view
        inside = np.flatnonzero(chosen & runs & parts["steps"] & parts["empties"])
        kept = rng.random(len(inside)) < value if kind in {"mask", "numbers"} else None
        try:
            if kind == "mask":
                view = view.select(kept)
            elif kind == "numbers":
                view = view.select(rng.permutation(np.flatnonzero(kept)))
            elif kind == "where":
                view = view.where(f"run_id % {value} <> 0")
            else:
                view = view.phase(**{kind: value})
        except errors.EmptyCorpusError:
            assert view is before
            continue
        if kept is not None:
            chosen = np.isin(np.arange(len(chosen)), inside[kept])
        elif kind == "where":
            runs = runs & (np.array([game.id % value != 0 for game in built.games])[built.run])
        else:
            column, last = (step, 2**31) if kind == "steps" else (empty, 17)
            parts[kind] = (column >= value[0]) & (column < (value[1] or last))
    expected = chosen & runs & parts["steps"] & parts["empties"]
    np.testing.assert_array_equal(view[:], built.rows[expected])
    counts = np.bincount(built.run[expected], minlength=len(built.games))
    np.testing.assert_array_equal(view.row_counts, counts[np.unique(built.run[runs])])
    sent = pickle.loads(pickle.dumps(view))  # noqa: S301
    np.testing.assert_array_equal(sent[:], view[:])
    assert sent.identity == view.identity


def test_views_of_other_rows_have_other_identities(corpus: Corpus) -> None:
    """Equal counts in every run do not make equal rows; the way to the same rows does not count."""
    first, second = corpus.row_starts[:-1], corpus.row_starts[1:] - 1
    one, other = corpus.select(first), corpus.select(second)
    assert one.identity not in {other.identity, corpus.identity}
    whole = corpus.where("run_id % 2").select(corpus.where("run_id % 2").row_starts[:-1])
    assert one.where("run_id % 2").identity == whole.identity
    state = one.batches(8).state_dict()
    with pytest.raises(errors.StateError, match="corpus"):
        other.batches(8).load_state_dict(state)


def test_splits_of_selected_rows_share_no_game(corpus: Corpus) -> None:
    view = corpus.select(np.arange(len(corpus)) % 3 == 0)
    parts = view.split(train=0.6, val=0.4)
    whole = corpus.split(train=0.6, val=0.4)
    assert sum(map(len, parts.values())) == len(view)
    for name, part in parts.items():
        assert part.runs.tobytes() == whole[name].runs.tobytes()


def test_a_mask_is_sent_in_few_bytes(corpus: Corpus) -> None:
    half = corpus.select(np.arange(len(corpus)) < len(corpus) // 2)
    assert len(pickle.dumps(half)) < len(pickle.dumps(corpus)) + len(corpus) // 16


@pytest.mark.parametrize(
    ("rows", "error", "message"),
    [
        (np.ones(7, np.bool_), ValueError, r"mask of shape \(7,\), expected \(\d+,\)"),
        (np.ones((4, 2), np.bool_), ValueError, r"shape \(4, 2\)"),
        ([3, 1, 3, 3], ValueError, "row 3 comes 3 times"),
        ([0, -1], IndexError, "row -1"),
        ([10**9], IndexError, "row 1000000000"),
        ([0.5], TypeError, "float64"),
        ("abc", TypeError, "row numbers or a mask"),
        ([], errors.EmptyCorpusError, r"the selection leaves 0 of [\d,]+ rows"),
    ],
)
def test_what_is_no_selection(corpus: Corpus, rows: Any, error: type[Exception], message: str) -> None:
    with pytest.raises(error, match=message):
        corpus.select(rows)


def test_a_mask_of_no_row(corpus: Corpus) -> None:
    with pytest.raises(errors.EmptyCorpusError, match="the selection leaves 0"):
        corpus.select(np.zeros(len(corpus), np.bool_))
