"""Embeddings beside the rows: served with them, and refused where they are not theirs."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from crc32c import crc32c

from tape2048 import Corpus, errors

from ..builders import embed
from ..corpora import OURS, build

WIDTH = 5


def embedded(session: Path, *, width: int = WIDTH, **facts: Any) -> None:
    """Values that say which row of which session they are."""
    rows = json.loads((session / "manifest.json").read_text())["rows"]
    values = np.arange(rows)[:, None] + 1000 * np.arange(width) + crc32c(session.name.encode()) % 500
    embed(session, values, **facts)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build(tmp_path, theirs=False)
    for name in OURS:
        embedded(tmp_path / name)
    return tmp_path


@pytest.fixture
def values(root: Path) -> Any:
    return np.concatenate([np.load(root / name / "embeddings.bf16.npy") for name in OURS])


@pytest.mark.parametrize("load", ["mmap", "ram"])
@pytest.mark.parametrize("order", [{}, {"shuffle": False}, {"pool_rows": 256}], ids=str)
def test_each_row_has_its_own(root: Path, values: Any, load: Any, order: dict[str, Any]) -> None:
    corpus = Corpus.open(root, load=load)
    seen = 0
    for batch in corpus.batches(100, fields=("embeddings", "row", "labels"), **order):
        assert batch.embeddings.dtype == np.dtype("<u2")
        np.testing.assert_array_equal(batch.embeddings, values[batch.row])
        seen += batch.rows
    assert seen == len(values)


def test_of_views(root: Path, values: Any) -> None:
    corpus = Corpus.open(root)
    empties = (corpus[:]["exps"] == 0).sum(axis=1)
    step = corpus[:]["step_idx"]
    view = corpus.phase(empties=(5, 12), steps=(2, None))
    chosen = values[(empties >= 5) & (empties < 12) & (step >= 2)]
    np.testing.assert_array_equal(view.fetch(slice(None), ("embeddings",))["embeddings"], chosen)
    run = np.repeat(np.arange(len(corpus.runs)), corpus.row_counts)
    view = corpus.where("run_id % 3 = 1")
    chosen = values[corpus.runs["run_id"][run] % 3 == 1]
    np.testing.assert_array_equal(view.fetch(slice(None), ("embeddings",))["embeddings"], chosen)


def test_sessions_without_rows_in_the_view_need_none(root: Path, values: Any) -> None:
    (root / OURS[1] / "embeddings.json").unlink()
    view = Corpus.open(root).where("model = 'strong'")
    found = view.fetch(slice(None), ("embeddings",))["embeddings"]
    np.testing.assert_array_equal(found, values[: len(view)])


def check_refused(root: Path, message: str, kind: type[errors.TapeError] = errors.ColumnError) -> None:
    corpus = Corpus.open(root)
    with pytest.raises(kind, match=message) as caught:
        corpus.batches(fields=("tokens", "embeddings"))
    assert OURS[1] in caught.value.path


def test_another_model(root: Path) -> None:
    embedded(root / OURS[1], model_sha="e" * 64)
    check_refused(root, "found bf16 .*; expected bf16 .*", errors.CorpusError)


def test_another_width(root: Path) -> None:
    embedded(root / OURS[1], width=3)
    check_refused(root, "found bf16 .*; expected bf16 .*", errors.CorpusError)


def test_of_other_rows_or_missing(root: Path) -> None:
    embedded(root / OURS[1], rows=3)
    check_refused(root, "made of 3 rows")
    (root / OURS[1] / "embeddings.bf16.npy").unlink()
    check_refused(root, r"without embeddings\.bf16\.npy")
    (root / OURS[1] / "embeddings.json").unlink()
    check_refused(root, "no embeddings.json")
