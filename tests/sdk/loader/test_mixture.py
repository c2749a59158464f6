"""Mixtures: exact shares in every batch, each row of a source once in its epoch, on any ranks."""

import itertools
import json
import pickle
import shutil
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048 import Corpus, Mixture, Session, errors
from tape2048.errors import ConfigError, StateError
from tape2048.session.column_draft import write_column

from ..builders import Spec, write_ours
from ..corpora import OURS, build, games

HOW: dict[str, Any] = {"seed": 3, "fields": ("row", "tokens")}


@pytest.fixture(scope="module")
def parts(tmp_path_factory: pytest.TempPathFactory) -> list[Any]:
    """Sources of different sizes. The last one is capped."""
    corpus = Corpus.open(build(tmp_path_factory.mktemp("mixture")).root)
    first, second, third = (corpus.where(f"run_id % 3 = {rest}") for rest in range(3))
    return [first, second, third.capped(5)]


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
            write_column(session, "loss", 1 + steps)
            write_column(session, "values", np.add.outer(steps, [0, 10, 20, 30]).astype(np.float32))
            write_column(session, "soft", steps[:, None] / 1000)
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
        with pytest.raises(ValueError, match=r"extra has .*; expected 2 for each"):
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
        for change, message in (
            ({"places": [1]}, "places has 1 number; expected 2"),
            ({"places": [1, -1]}, r"places is \[1, -1\]; expected places that fit the position"),
            ({"places": [2**64, 1]}, "places is "),
            ({"position": 1}, "places is "),
        ):
            with pytest.raises(errors.StateError, match=message):
                batches.load_state_dict({**state, **change})


class TestBadInput:
    @pytest.mark.parametrize(
        ("shares", "message"),
        [
            ((0.7, 0.2), "with the sum 1"),
            ((1.2, -0.2), "positive"),
            ((), "shares"),
            ((0.001, 0.999), "expected at least 1 of each"),
        ],
    )
    def test_shares(self, parts: list[Any], shares: tuple[float, ...], message: str) -> None:
        with pytest.raises(ValueError, match=message):
            Mixture(zip(parts, shares, strict=False)).batches(100)

    def test_others(self, parts: list[Any]) -> None:
        for source, share in ((parts[0].sessions[0], 1.0), (parts[0], "1")):
            with pytest.raises(TypeError):
                Mixture([(source, share)])
        with pytest.raises(errors.EmptyCorpusError, match="expected a whole batch of 100,000"):
            Mixture([(parts[0], 1)]).batches(100_000)


def by_epoch(epoch: int, step: int) -> tuple[float, float]:
    """A share that rises in each epoch and from epoch to epoch, and is 0 at first."""
    new = min(1.0, 0.3 * epoch + 0.01 * step)
    return new, 1 - new


class TestSharesThatChange:
    @pytest.mark.parametrize(("world", "batch_size"), [(1, 37), (3, 20)])
    def test_rows_follow_the_function(self, parts: list[Any], world: int, batch_size: int) -> None:
        """Each source's rows come once in each of its epochs, whatever the shares; any rank resumes."""
        mixture = Mixture(parts[:2], by_epoch)
        loaders = [mixture.batches(batch_size, rank=rank, world_size=world, **HOW) for rank in range(world)]
        streams: list[list[int]] = [[], []]
        for epoch in range(3):
            for step in range(len(loaders[0])):
                counts = mixture.rows_of_batch(batch_size, epoch=epoch, step=step)
                share = by_epoch(epoch, step)[0]
                assert abs(counts[0] - share * batch_size) < 1
                for loader in loaders:
                    batch = loader.buffer()
                    loader.fill(batch, epoch=epoch, index=step)
                    rows = batch["row"].tolist()
                    streams[0] += rows[: counts[0]]
                    streams[1] += rows[counts[0] :]
                    loader.advance()
            for loader in loaders:
                assert loader.places == [len(stream) for stream in streams]
                loader.next_epoch()
        for source, stream in zip(mixture.sources, streams, strict=True):
            for first in range(0, len(stream), len(source)):
                part = stream[first : first + len(source)]
                assert len(set(part)) == len(part)

    def test_a_state_resumes(self, parts: list[Any]) -> None:
        """In any epoch, with another batch size too; ``start_of`` goes anywhere."""
        mixture = Mixture(parts[:2], by_epoch)
        batches = mixture.batches(50, **HOW)
        served = [[batch["row"].tolist() for batch in batches] for _ in range(3)]
        for epoch, position in ((0, 7), (1, 0), (2, 11)):
            one = mixture.batches(50, **HOW)
            one.go_to(*one.start_of(epoch))
            assert one.here == mixture.batches(50, **HOW).start_of(epoch)
            for batch, expected in zip(one, served[epoch][:position], strict=False):
                assert batch["row"].tolist() == expected
            again = mixture.batches(50, **HOW)
            again.go_to(*again.start_of(epoch))
            again.advance(position)
            state = again.state_dict()
            resumed = pickle.loads(pickle.dumps(mixture.batches(50, **HOW | {"seed": 9})))  # noqa: S301 - our own
            resumed.load_state_dict(state)
            assert [batch["row"].tolist() for batch in resumed] == served[epoch][position:]
            other = mixture.batches(25, **HOW)
            other.load_state_dict(state)
            assert other.places == again.places
            assert other.stats()["rows"] == 0
        assert batches.stats()["rows"] == sum(map(len, served)) * 50

    def test_fixed_shares_by_a_function(self, parts: list[Any]) -> None:
        fixed = Mixture([(parts[0], 0.3), (parts[1], 0.7)]).batches(40, **HOW)
        function = Mixture(parts[:2], lambda _epoch, _step: (0.3, 0.7)).batches(40, **HOW)
        for _ in range(2):
            assert [batch["row"].tolist() for batch in fixed] == [batch["row"].tolist() for batch in function]

    @pytest.mark.parametrize(
        "shares",
        [(0.5, 0.6), (-0.1, 1.1), (float("nan"), 0.5), (1.0,), (float("inf"), 0.0), None, ("a", "b"), 1.0],
    )
    def test_invalid_shares_name_the_step(self, parts: list[Any], shares: Any) -> None:
        def later(epoch: int, step: int) -> Any:
            return (0.5, 0.5) if (epoch, step) < (1, 4) else shares

        batches = Mixture(parts[:2], later).batches(30, **HOW)
        with pytest.raises(ValueError, match=r"epoch 1, step 4: the shares are .*; expected 2") as caught:
            list(itertools.chain(batches, batches))
        assert repr(shares) in str(caught.value)
        assert (batches.epoch, batches.position) == (1, 4)
        with pytest.raises(ValueError, match="epoch 0, step 0"):
            Mixture(parts[:2], lambda _epoch, _step: shares)


class TestSourcesThatGrow:
    @pytest.fixture
    def growing(self, tmp_path: Path) -> Path:
        write_ours(tmp_path / "grown" / OURS[0], Spec(games=games(OURS[0])))
        write_ours(tmp_path / "fixed" / OURS[1], Spec(games=games(OURS[1])))
        return tmp_path

    @pytest.mark.parametrize("capped", [False, True])
    def test_new_sessions_come_with_the_next_epoch(self, growing: Path, capped: bool) -> None:
        """The fixed source continues; a state in the middle resumes although there are more sessions."""

        def newest() -> Any:
            corpus = Corpus.open(growing / "grown")
            return corpus.capped(7) if capped else corpus

        fixed = Corpus.open(growing / "fixed")
        mixture = Mixture([(fixed, 0.5), (newest, 0.5)])
        batches = mixture.batches(20, **HOW)
        served = [next(iter(batches))["row"].tolist()]
        write_ours(growing / "grown" / OURS[2], Spec(games=games(OURS[2])))
        state = batches.state_dict()
        assert state["sessions"] == [[], [OURS[0]]]
        rest = [batch["row"].tolist() for batch in batches]
        place = batches.places
        assert (batches.epoch, len(batches.source.sources[1].runs if not capped else ())) == (
            1,
            25 * (not capped),
        )
        assert place[1] == 0
        assert place[0] == 10 * (1 + len(rest))
        later = [batch["row"].tolist() for batch in batches]
        resumed = Mixture([(fixed, 0.5), (newest, 0.5)]).batches(20, **HOW)
        resumed.load_state_dict(state)
        assert [batch["row"].tolist() for batch in resumed] == rest
        assert [batch["row"].tolist() for batch in resumed] == later
        assert len(served + rest + later) > 3
        shutil.rmtree(growing / "grown" / OURS[0])
        lacking = Mixture([(fixed, 0.5), (newest, 0.5)]).batches(20, **HOW)
        before = lacking.state_dict()
        with pytest.raises(
            StateError, match=f"source 1 of the mixture lacks 1 session of the state: {OURS[0]}"
        ):
            lacking.load_state_dict(state)
        assert lacking.state_dict() == before

    def test_nothing_new(self, growing: Path) -> None:
        mixture = Mixture(
            [(Corpus.open(growing / "fixed"), 0.5), (lambda: Corpus.open(growing / "grown"), 0.5)]
        )
        assert mixture.refresh() is mixture
        batches = mixture.batches(20, **HOW)
        assert len(list(batches)) == batches.places[0] // 10
        assert batches.source is mixture
        with pytest.raises(ConfigError, match="found 2, expected 1"):
            mixture.batches(20, rank=0, world_size=2)
