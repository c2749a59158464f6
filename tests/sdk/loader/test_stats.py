"""Statistics of served rows: those of the rows themselves, whatever was served how."""

import itertools
import time
from collections import Counter
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, Mixture
from tape2048.loader import batches as module
from tape2048.players import player_label

from ..corpora import build

FIELDS = ("row", "labels")


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(build(tmp_path_factory.mktemp("stats")).root)


def expected(corpus: Corpus, rows: list[int], thresholds: Any) -> dict[str, Any]:
    """The statistics of some rows, one by one."""
    fields = corpus.fetch(rows, ("tokens", "labels", "run"), thresholds=thresholds)
    sessions = [corpus.sessions[i] for i in corpus.runs["session"][fields["run"]]]
    labels = dict(zip(thresholds, fields["labels"].sum(axis=0).tolist(), strict=True))
    return {
        "rows": len(rows),
        "counted": len(rows),
        "sessions": Counter(session.name for session in sessions),
        "players": Counter(player_label(session.meta) for session in sessions),
        "stages": Counter((1 << fields["tokens"].max(axis=1).astype(int)).tolist()),
        "labels": {tile: count for tile, count in labels.items() if count},
    }


@pytest.mark.parametrize("how", [{}, {"pool_rows": 256}, {"shuffle": False, "rank": 1, "world_size": 3}])
def test_counts_are_those_of_the_served_rows(corpus: Corpus, how: dict[str, Any]) -> None:
    tiles = (2048, 8192, 65536)
    batches = corpus.batches(50, fields=FIELDS, thresholds=tiles, seed=2, **how)
    assert not any(batches.stats().values())
    rows: list[int] = []
    for count in (3, 10**6, 2):
        for batch in itertools.islice(batches, count):
            rows += batch["row"].tolist()
        assert batches.stats() == expected(corpus, rows, tiles)
    state = corpus.batches(64, seed=2, **{**how, **({"world_size": 2} if "rank" in how else {})}).state_dict()
    batches.load_state_dict(state | {"position": 2})
    rows = next(iter(batches))["row"].tolist()
    assert batches.stats() == expected(corpus, rows, tiles)


def test_of_a_mixture(corpus: Corpus) -> None:
    parts = [corpus.where("run_id % 2 = 0"), corpus.where("run_id % 2 = 1").capped(5)]
    batches = Mixture(zip(parts, (0.5, 0.5), strict=True)).batches(60, fields=FIELDS, thresholds=(8192,))
    rows: list[list[int]] = [[], []]
    for batch in itertools.islice(batches, 5):
        for mine, more in zip(rows, np.split(batch["row"], 2), strict=True):
            mine.extend(more.tolist())
    one, other = (
        expected(view, mine, (8192,)) for view, mine in zip((parts[0], parts[1].corpus), rows, strict=True)
    )
    found = batches.stats()
    assert found.pop("rows") == found.pop("counted") == 300
    for name, counts in found.items():
        assert Counter(counts) == Counter(one[name]) + Counter(other[name])


@pytest.mark.parametrize("how", [{}, {"pool_rows": 256}])
def test_many_rows_are_a_sample(corpus: Corpus, how: dict[str, Any], monkeypatch: pytest.MonkeyPatch) -> None:
    batches = corpus.batches(10, **how)
    for _ in range(3):
        for _ in batches:
            pass
    exact = batches.stats()
    monkeypatch.setattr(module, "_COUNTED_MAX", 1000)
    found = batches.stats()
    assert found["rows"] == 3 * len(corpus)
    assert 900 < found["counted"] <= 1000
    for name, count in exact["sessions"].items():
        assert found["sessions"][name] == pytest.approx(count, rel=0.5)


@pytest.mark.parametrize("workers", [None, 0, 2])
def test_waits_of_a_loader(corpus: Corpus, workers: int | None) -> None:
    torch = pytest.importorskip("torch")
    from tape2048.torch import CriticLoader

    loader = CriticLoader(corpus, 100, fields=FIELDS)
    through = loader if workers is None else torch.utils.data.DataLoader(
        loader, batch_size=None, num_workers=workers
    )  # fmt: skip
    for _ in through if workers is None else loader.counting(through):
        time.sleep(0.02)
    found = loader.stats()
    assert found["rows"] == sum(found["sessions"].values()) == len(corpus)
    assert found["for_producer_s"] > 0
    assert (found["for_consumer_s"] > 0.02) == (not workers)
