"""At a prompt: tables for notebooks hold every fact, escaped; those of real objects hold their numbers."""

from __future__ import annotations

import sys
from xml.etree import ElementTree as ET

import numpy as np
import pytest

from tape2048 import Corpus, errors
from tape2048.base.prompt import facts_table

from ..corpora import Built, build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("prompt"))


def cells(html: str) -> dict[str, str]:
    """The cells of a table by the name at the left; it has to be well-formed."""
    rows = ET.fromstring(html).iter("tr")  # noqa: S314 - our own
    return {"".join(row[0].itertext()): "".join(row[1].itertext()).strip() for row in rows}


def test_facts_are_escaped_and_shares_are_bars() -> None:
    found = facts_table("a <b>", {"n & m": 1234567, "name": "<i>"}, {"half": 0.5, "all": 1.0})
    assert cells(found) == {"n & m": "1,234,567", "name": "<i>", "half": "50.00%", "all": "100.00%"}
    assert "a &lt;b&gt;" in found
    assert found.index("width:6.0em") < found.index("width:12.0em")


def test_tables_of_corpora_sessions_and_batches(built: Built) -> None:
    corpus = Corpus.open(built.root)
    found = cells(corpus._repr_html_())
    assert (found["rows"], found["games"]) == (f"{len(built.rows):,}", f"{len(built.games):,}")
    for tile in set(built.highest.tolist()):
        assert found[f"highest tile {tile}"] == f"{(built.highest == tile).mean():.2%}"
    session = corpus.sessions[0]
    assert cells(session._repr_html_())["games"] == f"{len(session.runs):,}"
    batches = corpus.batches(16)
    batch = next(iter(batches))
    found = cells(batches._repr_html_())
    assert (found["position"], found["batches an epoch"]) == ("1", f"{len(batches):,}")
    assert {"tokens", "labels"} <= set(dir(batch))
    assert "row" not in dir(batch)


def test_runs_as_a_frame(built: Built) -> None:
    pytest.importorskip("pandas")
    corpus = Corpus.open(built.root)
    frame = corpus.runs_frame()
    assert frame["highest_tile"].tolist() == built.highest.tolist()
    assert frame["session"].tolist() == [corpus.sessions[index].name for index in corpus.runs["session"]]
    assert frame["seed"].dtype == np.uint64


def test_a_frame_without_pandas(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "pandas", None)
    with pytest.raises(errors.MissingPackageError, match="pandas"):
        Corpus.open(built.root).runs_frame()
