"""Run tables that are read on demand."""

import gc
import pickle
import tracemalloc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from tests.bench.run_tables import write_sessions

from tape2048 import Corpus
from tape2048.base import guide
from tape2048.errors import EmptyCorpusError
from tape2048.loader import run_columns

from ..corpora import build
from ..tapes import games_on_tape, write_rows, write_tape


@pytest.fixture
def few(monkeypatch: pytest.MonkeyPatch) -> None:
    """Two games are too many to keep their run tables."""
    monkeypatch.setattr(run_columns, "KEPT_RUNS", 2)
    monkeypatch.setattr(guide, "_MANY_RANGES", 2)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """Sessions of rows, of another program, and on tape, of which two hold the same games."""
    build(tmp_path, action=True)
    games = games_on_tape(1, 2, 3)
    write_tape(tmp_path / "20250106T030405Z_model=tape", games, player_sha256="c" * 64)
    write_rows(tmp_path / "20250107T030405Z_model=rows", games, player_sha256="c" * 64)
    return tmp_path


def facts_of(root: Path) -> Iterator[Any]:
    """What a corpus says, with its views."""
    corpus = Corpus.open(root, load="mmap")
    views = {
        "all": corpus,
        "named": corpus.where(min_score=5000, max_steps=80, model="weak"),
        "condition": corpus.where("score >= 5000 AND steps < 80 OR player LIKE 'toy%'"),
        "subquery": corpus.where("score > (SELECT avg(score) FROM runs)"),
        "mask": corpus.where(np.arange(len(corpus.runs)) % 3 == 1).where(np.arange(15) % 2 == 0),
        "player": corpus.where(player="unknown player @aaaaaa"),
        "opened": Corpus.open(root, "steps > 2", load="mmap", min_score=2000, newest_rows=500),
        "both": Corpus.open(root, load="packed", duplicates="keep"),
        **corpus.split(a=0.5, b=0.5),
    }
    for name, view in views.items():
        yield name, view.identity, view.session_identities(), view.runs.tolist(), view.row_counts.tolist()
        yield repr(view), view.run_labels((256, 2048)).tolist(), view.prevalence((256,)).tolist()
        again = pickle.loads(pickle.dumps(view))  # noqa: S301 - our own
        yield again.identity, view.rows_of(1).tolist(), view._repr_html_()
        late = view.rows_where("steps > 3 AND step % 2 = 1").phase(rows_left=(1, None))
        yield late.identity, len(late), late.batches(7).stats()
    for bad in (lambda: corpus.where(player="nobody"), lambda: corpus.split(salt="7", a=0.999, b=0.001)):
        with pytest.raises(EmptyCorpusError) as caught:
            bad()
        yield str(caught.value), caught.value.advice


def test_corpora_are_the_same(root: Path, few: None) -> None:
    found = list(facts_of(root))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(run_columns, "KEPT_RUNS", 1 << 20)
        expected = list(facts_of(root))
    assert repr(found) == repr(expected)


def test_tables_are_read_again(root: Path, few: None) -> None:
    """A table stays as long as it is in use."""
    corpus = Corpus.open(root, load="mmap")
    runs = corpus.runs
    assert corpus.runs.base is runs.base
    copy = runs.copy()
    del runs
    assert np.array_equal(corpus.runs, copy)
    assert not corpus.runs.flags.writeable


@pytest.mark.parametrize("view", ["all", "half"])
def test_memory_of_a_game(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, view: str) -> None:
    """Of whole sessions, 24 bytes with batches; of single games, 92 and 16 for the games of the corpus."""
    sessions, games = 4, 10_000
    write_sessions(tmp_path / "many", sessions, games)
    monkeypatch.setattr(run_columns, "KEPT_RUNS", games)
    monkeypatch.setattr(guide, "_MANY_RANGES", 0)
    next(iter(Corpus.open(tmp_path / "many", load="mmap").batches(8)))  # loads the compiler
    gc.collect()
    tracemalloc.start()
    try:
        corpus = Corpus.open(tmp_path / "many", load="mmap")
        gc.collect()
        opened = tracemalloc.get_traced_memory()[0]
        assert opened < 10 * sessions * games
        if view == "half":
            corpus = corpus.where(np.arange(sessions * games) % 2 == 0)
        batches = corpus.batches(8)
        batches.fill(batches.buffer(), epoch=0, index=0)
        gc.collect()
        most = (24 if view == "all" else 92 / 2 + 16) * sessions * games
        assert tracemalloc.get_traced_memory()[0] < most + 60_000
    finally:
        tracemalloc.stop()
