"""Views of the first of equal boards."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.loader import unique
from tape2048.loader.row_view import tables_of

from ..builders import Game, Spec, write_ours
from ..corpora import build
from ..tapes import games_on_tape, write_tape


def first_rows(tokens: NDArray[np.uint8], *, symmetry: bool) -> list[int]:
    """The rows whose board, or an image of it, no earlier row has."""
    seen, found = set(), []
    for row, board in enumerate(tokens.reshape(-1, 4, 4)):
        images = [np.rot90(each, k) for each in (board, board.T) for k in range(4)] if symmetry else [board]
        key = min(image.tobytes() for image in images)
        found += [row] if key not in seen else []
        seen.add(key)
    return found


@pytest.fixture(scope="module")
def corpora(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Corpus]:
    root = tmp_path_factory.mktemp("unique")
    build(root)
    write_tape(root / "20250106T030405Z_model=tape", games_on_tape(5, 6, 7), player_sha256="c" * 64)
    write_tape(root / "20250107T030405Z_model=tape", games_on_tape(6, 7, 8), player_sha256="d" * 64)
    return {load: Corpus.open(root, load=load) for load in ("mmap", "packed", "ram")}  # type: ignore[arg-type]


@given(
    load=st.sampled_from(["mmap", "packed", "ram"]),
    view=st.sampled_from(["all", "half", "late", "some"]),
    symmetry=st.booleans(),
    memory=st.sampled_from([None, 20_000, 3000, 1]),
)
@settings(deadline=None, max_examples=40)
def test_first_rows_are_kept(
    corpora: dict[str, Corpus], load: str, view: str, symmetry: bool, memory: int | None
) -> None:
    """However many passes fit the memory."""
    corpus = corpora[load]
    views: dict[str, Any] = {
        "all": lambda: corpus,
        "half": lambda: corpus.where(np.arange(len(corpus.runs)) % 2 == 0),
        "late": lambda: corpus.phase(steps=(3, 40)),
        "some": lambda: corpus.select(np.arange(1, len(corpus), 3)),
    }
    source = views[view]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(unique, "_CHUNK_ROWS", 97)
        patch.setattr(unique, "_PASS_BITS_MAX", 3)
        words = unique.mark_first(tables_of(source), symmetry=symmetry, memory=memory)
    bits = np.unpackbits(words.view(np.uint8), bitorder="little")[: len(source)]
    expected = first_rows(source.tokens(slice(None)), symmetry=symmetry)
    assert np.flatnonzero(bits).tolist() == expected
    kept = source.unique(symmetry=symmetry)
    np.testing.assert_array_equal(kept.tokens(slice(None)), source.tokens(expected))


def test_views_work_as_others(corpora: dict[str, Corpus]) -> None:
    """With labels, weights, columns of the caller, views of them, and resumption."""
    corpus = corpora["mmap"]
    kept = corpus.unique(symmetry=True)
    rows = np.array(first_rows(corpus.tokens(slice(None)), symmetry=True))
    value = np.arange(len(kept), dtype=np.float32)
    how: dict[str, Any] = {"fields": ("tokens", "labels", "run", "step", "value", "weight"), "seed": 3}
    batches = kept.batches(32, extra={"value": value}, thresholds=(2048,), **how)
    seen = [next(iter(batches)).copy() for _ in range(5)]
    state = batches.state_dict()
    rest = [batch["value"].tolist() for batch in batches]
    for batch in seen:
        whole = rows[batch["value"].astype(np.int64)]
        expected = corpus.fetch(whole, ("tokens", "labels", "step"), thresholds=(2048,))
        for name, values in expected.items():
            np.testing.assert_array_equal(batch[name], values)
        np.testing.assert_array_equal(batch["run"], corpus.run_index(whole))
    again = corpus.unique(symmetry=True).batches(32, extra={"value": value}, thresholds=(2048,), **how)
    again.load_state_dict(state)
    assert [batch["value"].tolist() for batch in again] == rest
    late = kept.phase(steps=(5, None)).capped(3)
    assert sum(batch["weight"].sum() for batch in late.batches(16, fields=("weight",))) == len(late.corpus)
    assert len(kept.unique(symmetry=True)) == len(kept)


def test_a_crowded_table_grows(corpora: dict[str, Corpus], monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = corpora["ram"]
    expected = len(corpus.unique())
    monkeypatch.setattr(unique, "_ENTRIES", 0.01)
    assert len(corpus.unique()) == expected


def test_boards_of_all_numbers_are_different(tmp_path: Path) -> None:
    def put(rows: NDArray[np.void]) -> None:
        rows["exps"] = 0
        rows["exps"][:, 0] = 1
        rows["exps"][[2, 4], 15] = 1
        rows["exps"][3] = 15

    write_ours(tmp_path / "20250102T030405Z_model=a", Spec(games=[Game(1, 6)], change_rows=put))
    corpus = Corpus.open(tmp_path)
    assert corpus.unique().run_index(slice(None)).tolist() == [0, 0, 0]
    assert corpus.unique().tokens(slice(None)).sum(axis=1).tolist() == [1, 2, 240]
