"""Mixtures: exact shares in every batch, each row of a source once in its epoch, on any ranks."""

import itertools
import json
import pickle
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048 import Corpus, Mixture, Session, errors

from ..builders import Spec, write_ours
from ..corpora import OURS, build, games

HOW: dict[str, Any] = {"seed": 3, "fields": ("row", "tokens")}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Sources of different sizes. The last one is capped."""
    corpus = Corpus.open(build(tmp_path_factory.mktemp("mixture")).root)
    return [corpus.where("id % 3 = 0"), corpus.where("id % 3 = 1"), corpus.where("id % 3 = 2").capped(5)]


def take(batches: Any, count: int) -> list[list[list[int]]]:
    """The rows of each source in the next batches, whatever epochs they are of."""
    found: list[Any] = []
    while len(found) < count:
        for batch in itertools.islice(batches, count - len(found)):
            cuts = np.cumsum(batches.source.rows_of_batch(batches.batch_size))[:-1]
            found.append([rows.tolist() for rows in np.split(batch["row"], cuts)])
    return found


def streams(batches: list[Any]) -> list[list[int]]:
    """All rows of each source, one batch after the other."""
    return [list(itertools.chain(*rows)) for rows in zip(*batches, strict=True)]


class TestShares:
    @settings(max_examples=50)
    @given(
        weights=st.lists(st.integers(1, 50), min_size=1, max_size=3),
        batch_size=st.integers(60, 400),
        how=st.sampled_from([{}, {"shuffle": False}, {"pool_rows": 1200}]),
    )
    def test_exact_in_every_batch_and_each_row_once_an_epoch(
        self, parts: list[Any], weights: list[int], batch_size: int, how: dict[str, Any]
    ) -> None:
        shares = [weight / sum(weights) for weight in weights]
        sources = parts[: len(shares)]
        try:
            batches = Mixture(zip(sources, shares, strict=True)).batches(batch_size, **HOW, **how)
        except ValueError as error:
            assert min(shares) * batch_size < 1 or "pool_rows" in how, error  # noqa: PT017
            return
        counts = batches.source.rows_of_batch(batch_size)
        assert sum(counts) == batch_size
        assert all(abs(count - share * batch_size) < 1 for count, share in zip(counts, shares, strict=True))
        served = take(batches, 40)
        assert all([len(rows) for rows in batch] == list(counts) for batch in served)
        for source, stream in zip(sources, streams(served), strict=True):
            size = len(source)
            for first in range(0, len(stream), size):
                epoch = stream[first : first + size]
                assert len(set(epoch)) == len(epoch)

    def test_an_epoch_is_as_long_as_all_sources(self, parts: list[Any]) -> None:
        batches = Mixture([(parts[0], 0.5), (parts[1], 0.5)]).batches(100, **HOW)
        assert len(list(batches)) == len(batches) == (len(parts[0]) + len(parts[1])) // 100
        assert (batches.epoch, batches.position) == (1, 0)

    def test_fields_are_those_of_the_source(self, parts: list[Any]) -> None:
        mixture = Mixture([(parts[1], 0.25), (parts[0], 0.75)])
        batch = next(iter(mixture.batches(40, fields=("row", "tokens", "labels", "run"))))
        for rows, corpus in ((slice(0, 10), parts[1]), (slice(10, 40), parts[0])):
            expected = corpus.fetch(batch["row"][rows], ("tokens", "labels", "run"))
            for field, values in expected.items():
                np.testing.assert_array_equal(batch[field][rows], values)

    @pytest.mark.parametrize("how", [{}, {"pool_rows": 1200}])
    def test_columns_and_arrays_of_each_source(self, tmp_path: Path, how: dict[str, Any]) -> None:
        """Also the hidden columns of weights and labels, and statistics of such a loader."""
        for name in OURS[:2]:
            session = Session.open(write_ours(tmp_path / name, Spec(games=games(name))))
            steps = np.arange(len(session), dtype=np.float32)
            session.write_column("loss", 1 + steps)
            session.write_column("values", np.add.outer(steps, [0, 10, 20, 30]).astype(np.float32))
            session.write_column("soft", steps[:, None] / 1000)
        sources = [Corpus.open(tmp_path / name) for name in OURS[:2]]
        extra = [np.arange(len(source)) * 3 for source in sources]
        batches = Mixture(zip(sources, (0.3, 0.7), strict=True)).batches(
            50, fields=("row", "values", "weight", "labels"), thresholds=(8192,), weight="loss",
            targets="soft", extra={"triple": extra}, **how,
        )  # fmt: skip
        assert batches.mean_weights == tuple((1 + len(source)) / 2 for source in sources)
        means = np.repeat(batches.mean_weights, (15, 35)).astype(np.float32)
        for batch in (batch for _ in range(2) for batch in batches):
            row = batch["row"].astype(np.float32)
            np.testing.assert_allclose(batch["weight"] * means, 1 + row, rtol=1e-6)
            np.testing.assert_array_equal(batch["values"], np.add.outer(row, [0, 10, 20, 30]))
            np.testing.assert_array_equal(batch["labels"], row[:, None] / 1000)
            np.testing.assert_array_equal(batch["triple"], row * 3)
        found = batches.stats()
        count = 2 * len(batches)
        assert found["sessions"] == {OURS[0]: 15 * count, OURS[1]: 35 * count}
        with pytest.raises(ValueError, match="extra: expected 2 arrays"):
            Mixture(zip(sources, (0.3, 0.7), strict=True)).batches(50, extra={"triple": extra[:1]})

    def test_shares_are_shares_of_a_weighted_loss(self, parts: list[Any]) -> None:
        """In each epoch of a source its mean weight is 1; ``mean_weights`` restores the weights."""
        capped = parts[2]
        batches = Mixture([(parts[0], 0.7), (capped, 0.3)]).batches(100, fields=("row", "run", "weight"))
        assert batches.mean_weights == (1.0, len(capped.corpus) / len(capped))
        weights, runs = [], []
        while len(weights) * 30 < len(capped):
            for batch in batches:
                assert (batch["weight"][:70] == 1).all()
                weights.append(batch["weight"][70:].copy())
                runs.append(batch["run"][70:].copy())
        first = np.concatenate(weights)[: len(capped)]
        assert first.sum() == pytest.approx(len(capped), rel=1e-5)
        raw = first * np.float32(batches.mean_weights[1])
        np.testing.assert_allclose(raw, capped.weights[np.concatenate(runs)[: len(capped)]], rtol=1e-6)

    def test_a_source_twice_has_two_orders(self, parts: list[Any], caplog: pytest.LogCaptureFixture) -> None:
        batches = Mixture([(parts[0], 0.5), (parts[0].capped(500), 0.5)]).batches(100, **HOW)
        one, other = take(batches, 1)[0]
        assert one != other
        (message,) = caplog.messages
        assert message == "the corpora of a mixture overlap: 14 games in more than one corpus"


class TestState:
    @settings(max_examples=50)
    @given(
        stages=st.lists(st.tuples(st.integers(1, 4), st.integers(8, 60), st.integers(0, 9)), max_size=4),
        shuffle=st.booleans(),
    )
    def test_any_ranks_serve_the_rest_once(
        self, parts: list[Any], stages: list[tuple[int, int, int]], *, shuffle: bool
    ) -> None:
        mixture = Mixture(zip(parts, (0.6, 0.3, 0.1), strict=True))
        how = {**HOW, "shuffle": shuffle}
        order = streams(take(mixture.batches(50, **how), 180))  # at most 4 * 4 * 9 batches of 60 are compared
        state: Any = None
        found: list[list[int]] = [[], [], []]
        for world_size, batch_size, stop in stages:
            states = []
            for rank in range(world_size):
                batches = mixture.batches(batch_size, **how, rank=rank, world_size=world_size)
                if state is not None:
                    batches.load_state_dict(state)
                for rows, more in zip(found, streams(take(batches, stop)) or [[], [], []], strict=True):
                    rows.extend(more)
                states.append({**json.loads(json.dumps(batches.state_dict())), "rank": 0})
            assert states == states[:1] * world_size
            (state, *_) = states
            for rows, expected in zip(found, order, strict=True):
                assert sorted(rows) == sorted(expected[: len(rows)])

    def test_resumed_through_a_loader(self, parts: list[Any]) -> None:
        torch = pytest.importorskip("torch")
        from tape2048.torch import CriticLoader

        mixture = Mixture(zip(parts, (0.6, 0.3, 0.1), strict=True))
        whole = mixture.batches(30, **HOW)
        expected = [batch["row"].tolist() for _ in range(2) for batch in whole]
        first = CriticLoader(mixture, 30, **HOW, threads=2)
        found = [batch["row"].tolist() for batch in itertools.islice(first, 7)]
        state = first.state_dict()
        loader = CriticLoader(mixture, 30, **HOW)
        # The second worker is still starting when the loader is moved.
        through = torch.utils.data.DataLoader(
            loader, batch_size=None, num_workers=2, persistent_workers=True, worker_init_fn=time.sleep
        )
        next(loader.counting(through))
        loader.load_state_dict(state)
        found += [batch["row"].tolist() for _ in range(2) for batch in loader.counting(through)]
        assert found == expected

    def test_pickled(self, parts: list[Any]) -> None:
        batches = Mixture([(parts[0], 0.5), (parts[2], 0.5)]).batches(50, **HOW, augment="d4")
        other = Mixture([(parts[0], 0.5), (parts[2], 0.5)]).batches(30, **HOW, rank=1, world_size=2)
        take(other, 3)
        batches.load_state_dict(other.state_dict())
        take(batches, 2)
        again = pickle.loads(pickle.dumps(batches))  # noqa: S301 - our own
        assert again.state_dict() == batches.state_dict()
        assert take(again, 20) == take(batches, 20)

    def test_state_of_another_mixture(self, parts: list[Any]) -> None:
        batches = Mixture([(parts[0], 0.5), (parts[1], 0.5)]).batches(50, **HOW)
        state = batches.state_dict()
        with pytest.raises(errors.StateError, match="corpus"):
            Mixture([(parts[0], 0.4), (parts[1], 0.6)]).batches(50).load_state_dict(state)
        with pytest.raises(errors.StateError):
            parts[0].batches(50).load_state_dict(state)
        for change in ({"places": [1]}, {"places": [1, -1]}, {"places": [2**64, 1]}, {"position": 1}):
            with pytest.raises(errors.StateError):
                batches.load_state_dict({**state, **change})


class TestBadInput:
    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ((0.7, 0.2), "with the sum 1"),
            ((1.2, -0.2), "positive"),
            ((), "shares"),
            ((0.001, 0.999), "a row"),
        ],
    )
    def test_shares(self, parts: list[Any], shares: tuple[float, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Mixture(zip(parts, shares, strict=False)).batches(100)

    def test_others(self, parts: list[Any]) -> None:
        for source, share in ((parts[0].sessions[0], 1.0), (parts[0], "1")):
            with pytest.raises(TypeError):
                Mixture([(source, share)])
        with pytest.raises(errors.EmptyCorpusError, match="make no whole batch of 100,000"):
            Mixture([(parts[0], 1)]).batches(100_000)
