"""Embeddings beside the rows: served with them, and refused where they are not theirs."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import numpy as np
import pytest
from crc32c import crc32c

from tape2048 import Corpus, errors

from ..corpora import OURS, build

if TYPE_CHECKING:
    from pathlib import Path

WIDTH = 5


def embed(session: Path, *, width: int = WIDTH, values: Any = None, **facts: Any) -> None:
    """Values that say which row of which session they are."""
    manifest = json.loads((session / "manifest.json").read_text())
    rows = manifest["rows"]
    if values is None:
        values = np.arange(rows)[:, None] + 1000 * np.arange(width) + crc32c(session.name.encode()) % 500
    np.save(session / "embeddings.bf16.npy", np.asarray(values, "<u2") if values is not False else [])
    content = {
        "model_sha": "f" * 64, "pooling": "mean", "D": width, "dtype": "bf16", "dtype_bits": "bf16",
        "rows": rows, "steps_crc32c": manifest["files"]["steps.npy"]["crc32c"],
    }  # fmt: skip
    (session / "embeddings.json").write_text(json.dumps(content | facts))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    build(tmp_path, theirs=False)
    for name in OURS:
        embed(tmp_path / name)
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
    view = corpus.where("id % 3 = 1")
    chosen = values[corpus.runs["id"][run] % 3 == 1]
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
    assert caught.value.path is not None
    assert OURS[1] in caught.value.path


@pytest.mark.parametrize(
    ("facts", "message"),
    [
        ({"rows": 3}, "made of 3 rows"),
        ({"steps_crc32c": 7}, "CRC-32C 7"),
        ({"steps_crc32c": None}, "CRC-32C None"),
        ({"dtype": "f16"}, "dtype 'f16'"),
        ({"dtype_bits": "f16"}, "dtype"),
        ({"D": WIDTH + 1}, "expected <u2 of shape"),
        ({"D": 0}, "malformed"),
        ({"D": "5"}, "malformed"),
        ({"rows": None}, "malformed"),
    ],
)
def test_facts_that_do_not_fit(root: Path, facts: dict[str, Any], message: str) -> None:
    embed(root / OURS[1], **facts)
    check_refused(root, message)


def test_another_model(root: Path) -> None:
    embed(root / OURS[1], model_sha="e" * 64)
    check_refused(root, "different models", errors.CorpusError)


def test_another_width(root: Path) -> None:
    embed(root / OURS[1], width=3)
    check_refused(root, "different models", errors.CorpusError)


def test_missing(root: Path) -> None:
    (root / OURS[1] / "embeddings.bf16.npy").unlink()
    check_refused(root, r"embeddings\.bf16\.npy is not")
    (root / OURS[1] / "embeddings.json").unlink()
    check_refused(root, "no embeddings.json")


@pytest.mark.parametrize("content", [b"", b"{", b"\xff", b"[]", b"{}", b'{"x":' + b"[" * 50_000])
def test_malformed_facts(root: Path, content: bytes) -> None:
    (root / OURS[1] / "embeddings.json").write_bytes(content)
    check_refused(root, "malformed")


def test_malformed_values(root: Path) -> None:
    """Cut or changed anywhere in the header, cut or longer anywhere behind it."""
    path = root / OURS[1] / "embeddings.bf16.npy"
    whole = path.read_bytes()
    for length in [*range(0, 130, 9), len(whole) - 1, len(whole) // 2]:
        path.write_bytes(whole[:length])
        check_refused(root, r"not a \.npy file|expected|has \d+ bytes")
    path.write_bytes(whole + b"\0")
    check_refused(root, rf"has {len(whole) + 1} bytes; expected {len(whole)}")
    path.write_bytes(whole[:8] + b"\xff" * 10 + whole[18:])
    check_refused(root, r"not a \.npy file")
    for values in (np.zeros((3, WIDTH), "<u2"), np.zeros(7, "<u2")):
        np.save(path, values)
        check_refused(root, "expected <u2 of shape")
    rows = json.loads((root / OURS[1] / "manifest.json").read_text())["rows"]
    for values in (np.zeros((rows, WIDTH), "<f2"), np.zeros((rows, WIDTH), "<u2", order="F"),
                   np.zeros((rows, WIDTH), ">u2")):  # fmt: skip
        np.save(path, values)
        check_refused(root, "expected <u2 of shape")
    np.save(path, np.array([{}] * rows), allow_pickle=True)
    check_refused(root, "expected <u2")
