"""Windows of consecutive boards, and fields of later boards: all as a slow reference plays the games."""

import itertools
import pickle
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray
from tests import reference

from tape2048 import Corpus, Mixture, errors
from tape2048.game.rules import SYMMETRY_MOVES
from tape2048.loader import discounting

from ..corpora import build
from ..tapes import WON_SEED, as_rows, games_on_tape, write_rows, write_tape
from .test_batches import turned

NAME = "20260101T000000Z_model=random"
PLAIN = ("tokens", "step", "run", "action")
AHEAD = (
    "score_to_go",
    "score_so_far",
    "return_1",
    "return_20",
    "highest_tile_after_20",
    "highest_tile_after_999999",
)


class Played(NamedTuple):
    """Games in each storage, and the fields of their rows by playing them."""

    corpora: dict[str, Corpus]
    fields: dict[str, NDArray[Any]]
    last: NDArray[np.int64]  #: the last row of each row's game


@pytest.fixture(scope="module")
def played(tmp_path_factory: pytest.TempPathFactory) -> Played:
    root, games = tmp_path_factory.mktemp("windows"), games_on_tape(*range(12))
    write_tape(root / "tape" / NAME, games)
    write_rows(root / "rows" / NAME, games)
    corpora = {
        "tape": Corpus.open(root / "tape", load="mmap"), "rows": Corpus.open(root / "rows", load="mmap"),
        "ram": Corpus.open(root / "rows", load="ram"), "packed": Corpus.open(root / "tape", load="packed"),
    }  # fmt: skip
    rows, run = as_rows(games), np.repeat(np.arange(len(games.runs)), games.runs["rows"].astype(int))
    points = np.array([reference.slide(row["exps"].tolist(), int(row["action"]))[1] for row in rows])
    ends = np.cumsum(games.runs["rows"]).astype(int)
    at, last = np.arange(len(rows)), (ends - 1)[run]
    sums, highest = np.append(0, np.cumsum(points)), 1 << rows["exps"].max(axis=1).astype(int)
    best = games.runs["highest_tile"][run]
    fields = {"tokens": rows["exps"], "step": rows["step_idx"], "run": run, "action": rows["action"]}
    fields["score_to_go"] = sums[last + 1] - sums[at]
    fields["score_so_far"] = games.runs["score"][run] - fields["score_to_go"]
    for moves in (1, 20, 999999):
        fields[f"return_{moves}"] = sums[np.minimum(at + moves, last + 1)] - sums[at]
        later = highest[np.minimum(at + moves, last)]
        fields[f"highest_tile_after_{moves}"] = np.where(at + moves <= last, later, best)
    return Played(corpora, fields, last)


def view_of(corpus: Corpus, kind: str) -> tuple[Corpus, NDArray[np.int64]]:
    """A part of a corpus, and the numbers of its rows in it."""
    steps = corpus.fetch(slice(None), ("step",))["step"]
    every = np.arange(len(corpus))
    if kind == "whole":
        return corpus, every
    if kind == "phase":
        return corpus.phase(steps=(7, 60)), every[(steps >= 7) & (steps < 60)]
    if kind == "selected":
        return corpus.select(every % 3 == 1), every[every % 3 == 1]
    view = corpus.phase(steps=(5, None)).select(np.arange(0, int((steps >= 5).sum()), 4))
    return view, every[steps >= 5][::4]


def check_windows(
    played: Played, rows: NDArray[np.int64], found: dict[str, NDArray[Any]], window: int, stride: int, *,
    turns: bool,
) -> NDArray[np.int64]:  # fmt: skip
    """Compare windows with the reference; return their first rows in the corpus of all rows."""
    assert (found["row"] == found["row"][:, :1]).all()
    first = rows[found["row"][:, 0]]
    at = first[:, None] + np.arange(window) * stride
    valid = at <= played.last[first][:, None]
    at = np.minimum(at, played.last[first][:, None])
    np.testing.assert_array_equal(found.get("valid", valid), valid)
    symmetry = found["symmetry"]
    assert (symmetry == symmetry[:, :1]).all()
    assert turns or not symmetry.any()
    for name, values in played.fields.items():
        if name in found and name not in {"tokens", "action"}:
            np.testing.assert_array_equal(found[name], values[at], err_msg=name)
    cells = np.array([turned(list(range(16)), k) for k in range(8)])
    boards = np.take_along_axis(played.fields["tokens"][at], cells[symmetry], axis=2)
    np.testing.assert_array_equal(found["tokens"], boards)
    np.testing.assert_array_equal(found["action"], SYMMETRY_MOVES[symmetry, played.fields["action"][at]])
    return first


@settings(max_examples=25, deadline=None)
@given(
    storage=st.sampled_from(["tape", "rows", "ram", "packed"]),
    kind=st.sampled_from(["whole", "phase", "selected", "both"]), cap=st.none() | st.integers(1, 9),
    window=st.integers(1, 9), stride=st.integers(1, 5), pad=st.booleans(), turns=st.booleans(),
    shuffle=st.booleans(), world=st.sampled_from([1, 2, 3]), batch_size=st.integers(1, 40),
    seed=st.integers(0, 2**64 - 1),
)  # fmt: skip
def test_any_epoch_is_that_of_a_slow_reference(
    played: Played, *, storage: str, kind: str, cap: int | None, window: int, stride: int, pad: bool,
    turns: bool, shuffle: bool, world: int, batch_size: int, seed: int,
) -> None:  # fmt: skip
    """Each row starts one window, and each window has the boards that follow in the game."""
    view, rows = view_of(played.corpora[storage], kind)
    source: Any = view if cap is None else view.capped(cap)
    how: dict[str, Any] = {
        "window": window, "stride": stride, "pad": pad, "augment": "d4" if turns else None, "seed": seed,
        "shuffle": shuffle, "fields": ("row", "symmetry", "weight", *PLAIN, *AHEAD),
    }  # fmt: skip
    ranks = [source.batches(batch_size, rank=rank, world_size=world, **how) for rank in range(world)]
    fits = rows[rows + (window - 1) * stride <= played.last[rows]] if not pad else rows
    firsts = []
    for batches in ranks:
        served = [batch.copy() for batch in itertools.islice(batches, min(3, len(batches) - 1))]
        state, copied = batches.state_dict(), pickle.loads(pickle.dumps(batches))  # noqa: S301 - just made
        again = source.batches(batch_size, rank=batches.rank, world_size=world, **how)
        again.load_state_dict(state)
        for batch, other, third in zip(batches, again, copied, strict=True):
            served.append(batch.copy())
            for name in batch:
                np.testing.assert_array_equal(other[name], batch[name])
                np.testing.assert_array_equal(third[name], batch[name])
        found = {name: np.concatenate([each[name] for each in served]) for name in served[0]}
        assert ("valid" in found) == pad
        firsts.append(check_windows(played, rows, found, window, stride, turns=turns))
        of_run = np.bincount(played.fields["run"][fits], minlength=12)[found["run"]]
        drawn = of_run if cap is None else np.minimum(of_run, cap)
        np.testing.assert_allclose(found["weight"], of_run / drawn, rtol=1e-6)
    every = np.concatenate(firsts)
    assert len(np.unique(every)) == len(every)
    assert set(every.tolist()) <= set(fits.tolist())
    due = len(fits) if cap is None else int(np.minimum(np.bincount(played.fields["run"][fits]), cap).sum())
    assert due - world < len(every) <= due
    if not shuffle and cap is None:
        assert all((np.diff(each) > 0).all() for each in firsts)


@pytest.mark.parametrize("storage", ["tape", "rows", "ram", "packed"])
@pytest.mark.parametrize("kind", ["whole", "phase", "selected", "both"])
def test_fields_of_later_boards(played: Played, storage: str, kind: str) -> None:
    """They look past the rows of the view; turned boards, caps, pools and single rows have the same."""
    view, rows = view_of(played.corpora[storage], kind)
    sources: list[tuple[Any, dict[str, Any]]] = [
        (view, {"augment": "d4"}), (view.capped(5), {}), (view, {"pool_rows": 128}),
    ]  # fmt: skip
    served = [
        batch.copy() for source, how in sources for batch in source.batches(50, fields=("row", *AHEAD), **how)
    ]
    numbers = np.random.default_rng(1).integers(0, len(view), 40)
    for batch in [*served, view.fetch(numbers, AHEAD) | {"row": numbers}]:
        for name in AHEAD:
            np.testing.assert_array_equal(batch[name], played.fields[name][rows[batch["row"]]], err_msg=name)
    found = view.rows_where("return_20 > 100 AND score_to_go < 900")
    expected = (played.fields["return_20"] > 100) & (played.fields["score_to_go"] < 900)
    assert len(found) == expected[rows].sum()


def test_the_last_move_of_a_won_game_counts(tmp_path: Path) -> None:
    """The 65536 is on no recorded board."""
    write_tape(tmp_path / NAME, games_on_tape(WON_SEED))
    last = [16_395]
    found = Corpus.open(tmp_path).fetch(last, ("score_to_go", "return_1", "highest_tile_after_1"))
    assert [int(found[name][0]) for name in found] == [65536, 65536, 65536]


@pytest.mark.parametrize("discount", [0, 0.9, 1])
def test_discounted_returns(played: Played, discount: float, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(discounting, "_PIECE_ROWS", 300)
    corpus, value, expected = played.corpora["tape"], 0.0, []
    for row in range(len(corpus))[::-1]:
        value = played.fields["return_1"][row] + discount * (value if row != played.last[row] else 0)
        expected.append(value)
    np.testing.assert_allclose(corpus.discounted(discount), expected[::-1], rtol=1e-6)
    with pytest.raises(errors.CorpusError, match="of the 1,521 rows"):
        corpus.phase(steps=(0, 9)).discounted(discount)
    with pytest.raises(ValueError, match="expected 0 to 1"):
        corpus.discounted(discount + 1.5)


def test_columns_and_arrays_follow_the_boards(played: Played) -> None:
    corpus = played.corpora["tape"]
    values = np.random.default_rng(2).random((len(corpus), 3), np.float32)
    loss = np.arange(len(corpus), dtype=np.float32)
    how: dict[str, Any] = {"window": 4, "fields": ("row", "weight", "labels"), "thresholds": (64, 128)}
    batch = next(iter(corpus.batches(32, extra={"mine": values, "loss": loss}, weight="loss", **how)))
    at = np.minimum(batch.row + np.arange(4), played.last[batch.row])
    np.testing.assert_array_equal(batch.mine, values[at])
    np.testing.assert_array_equal(batch.weight, loss[at])
    np.testing.assert_array_equal(batch.labels, corpus.run_labels((64, 128))[played.fields["run"][at]])
    with pytest.raises(ValueError, match="windows reach all 1,521 rows of these games"):
        corpus.select(loss < 9).batches(2, extra={"loss": loss[:9]}, **how)


def test_the_last_rows_of_each_game(played: Played) -> None:
    corpus = played.corpora["rows"]
    end = corpus.phase(rows_left=(2, 5))
    left = played.last - np.arange(len(corpus))
    np.testing.assert_array_equal(end[:]["step_idx"], played.fields["step"][(left >= 2) & (left < 5)])
    assert (
        len(end.phase(steps=(0, 90)).batches(1, window=4, pad=False))
        == ((left >= 3) & (left < 5) & (played.fields["step"] < 90)).sum()
    )
    assert end.identity != corpus.identity
    assert len(pickle.loads(pickle.dumps(end))) == len(end)  # noqa: S301 - just made


def test_mixtures_share_windows(played: Played) -> None:
    parts = list(played.corpora["tape"].split(a=0.5, b=0.5).values())
    mixture = Mixture([(parts[0], 0.25), (parts[1].capped(7), 0.75)])
    batch = next(iter(mixture.batches(40, window=3, stride=2, fields=("row", "tokens", "step"), seed=5)))
    assert batch.tokens.shape == (40, 3, 16)
    for rows, corpus in ((slice(0, 10), parts[0]), (slice(10, 40), parts[1])):
        first = batch.row[rows, 0]
        last = corpus.row_starts[1:][corpus.run_index(first)] - 1
        at = np.minimum(first[:, None] + [0, 2, 4], last[:, None])
        np.testing.assert_array_equal(batch.tokens[rows], corpus.tokens(at.reshape(-1)).reshape(-1, 3, 16))


def test_windows_as_tensors(played: Played) -> None:
    torch = pytest.importorskip("torch")
    from tape2048.torch import CriticDataset, CriticLoader

    how: dict[str, Any] = {"window": 5, "fields": ("tokens", "row", "return_20"), "seed": 9, "rank": 0}
    corpus = played.corpora["tape"]
    for batch, tensors in zip(corpus.batches(64, **how), CriticLoader(corpus, 64, **how), strict=True):
        assert tensors["tokens"].shape == (batch.rows, 5, 16)
        assert tensors["return_20"].dtype == torch.int32
        assert all((tensors[name].numpy() == batch[name]).all() for name in batch)
    assert int(CriticDataset(corpus, fields=("return_1",))[0]["return_1"]) == played.fields["return_1"][0]


def test_statistics_count_windows(played: Played) -> None:
    batches = played.corpora["tape"].batches(100, window=3)
    assert sum(batch.rows for batch in batches) == batches.stats()["rows"] == 1521


@pytest.mark.parametrize(
    ("how", "match"),
    [
        ({"window": 0}, r"window=0, stride=1; expected at least 1"),
        ({"window": 2, "stride": 0}, r"stride=0; expected at least 1"),
        ({"stride": 2}, "stride and pad need window"),
        ({"window": 2, "pool_rows": 4096}, "pool_rows with window; expected None"),
        ({"fields": ("return_0",)}, "no field 'return_0'. The nearest is 'return_K'"),
    ],
)  # fmt: skip
def test_invalid_options(played: Played, how: dict[str, Any], match: str) -> None:
    with pytest.raises(ValueError, match=match):
        played.corpora["rows"].batches(8, **how)


@pytest.mark.parametrize("pad", [False, True])
def test_windows_longer_than_every_game(played: Played, pad: bool) -> None:
    corpus = played.corpora["rows"]
    longest = int(corpus.runs["rows"].max())
    match = f"a window spans {longest + 1:,} rows; expected at most {longest:,}"
    with pytest.raises(errors.CorpusError, match=match):
        corpus.batches(8, window=longest + 1, pad=pad)
    with pytest.raises(errors.EmptyCorpusError, match="no window is whole"):
        corpus.phase(rows_left=(0, 3)).batches(8, window=4, pad=False)


def test_games_whose_scores_are_unknown(tmp_path: Path) -> None:
    """Sampled games have no board after each move, and a wrong final score contradicts the boards."""
    games = games_on_tape(1, 2)
    build(tmp_path / "sampled", theirs=False, sample_rate=4)
    with pytest.raises(errors.CorpusError, match="return_3 needs the board after every move"):
        Corpus.open(tmp_path / "sampled").batches(8, fields=("return_3",))
    games.runs["score"] -= 400
    write_rows(tmp_path / "wrong" / NAME, games)
    with pytest.raises(errors.CorpusError, match=r"the board at step \d+ of run \d contradicts"):
        Corpus.open(tmp_path / "wrong", load="mmap").fetch(slice(None), ("score_to_go",))
