"""Columns, arrays and facts of games as fields of batches, against NumPy."""

import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st
from numpy.typing import NDArray

from tape2048 import Capped, Corpus, Session, errors
from tape2048.game.rules import SYMMETRY_MOVES

from ..corpora import OURS, build
from ..session.test_columns import make_values, put
from ..tapes import games_on_tape, write_tape
from .test_batches import ORDERS

LOADS = ("mmap", "packed", "ram")
TILES = (256, 2048, 8192)
#: Type, width and facts of each column.
COLUMNS: dict[str, tuple[str, int | None, dict[str, Any]]] = {
    "values": ("f32", 4, {"moves": True}),
    "wide_values": ("i64", 4, {"moves": True}),
    "best": ("u8", None, {"moves": True}),
    "loss": ("f32", None, {"player_sha256": "a" * 64}),
    "flag": ("bool", None, {}),
    "half": ("bf16", 3, {}),
    "odd": ("i8", 7, {}),
    "shorts": ("u16", 31, {}),
    "big": ("f64", 20, {}),
    "chance": ("f32", 3, {"thresholds": list(TILES)}),
    "prior": ("bf16", None, {}),
    "count": ("u8", None, {}),
}
#: Arrays, with the names of the kernel's own outputs.
EXTRAS = {"flags": ("bool", None), "targets": ("u16", 2), "boards": ("u64", None), "records": ("u8", 5)}
TURNING = {"values", "wide_values", "best"}
GAME_FIELDS = ("score", "highest_tile", "seed")


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Sessions of rows, in shards, and on tape, with all columns."""
    root = tmp_path_factory.mktemp("columns")
    build(root)
    write_tape(root / "20250104T030405Z_model=taped", games_on_tape(1, 2, 3))
    for path in sorted(root.iterdir()):
        session = Session.open(path)
        for name, (dtype, width, facts) in COLUMNS.items():
            values = make_values(len(session), dtype, width)
            if name in {"prior", "count"}:
                values = np.arange(len(session)) % 4 << (13 if dtype == "bf16" else 0)
                values = values.astype("<u2" if dtype == "bf16" else "u1")
            if name == "chance":
                values = np.random.default_rng(1).random((len(session), 3), np.float32)
            put(path, session, name, values, dtype, **facts)
    return root


@pytest.fixture(scope="module")
def corpora(root: Path) -> dict[str, Corpus]:
    return {load: Corpus.open(root, load=load) for load in LOADS}  # type: ignore[arg-type]


def column_of(corpus: Corpus, name: str) -> NDArray[Any]:
    """The values of each row of a view, run by run."""
    values = [session.column(name).values for session in corpus.sessions]
    fields = corpus.fetch(slice(None), ("run", "step"))
    parts = []
    for ordinal, run in enumerate(corpus.runs):
        session = corpus.sessions[run["session"]]
        (own,) = np.flatnonzero(session.runs["run_id"] == run["run_id"])
        steps = fields["step"][fields["run"] == ordinal]
        parts.append(values[run["session"]][session.numbers_of(int(own))][steps])
    return np.concatenate(parts)


def turned(values: NDArray[Any], symmetries: NDArray[np.uint8]) -> NDArray[Any]:
    found = values.copy()
    for i, k in enumerate(symmetries.tolist()):
        if values.ndim == 2:
            found[i, SYMMETRY_MOVES[k]] = values[i]
        elif values[i] < 4:
            found[i] = SYMMETRY_MOVES[k][values[i]]
    return found


VIEWS: dict[str, Any] = {
    "all": lambda corpus: corpus,
    "some runs": lambda corpus: corpus.where("run_id % 4 <> 1"),
    "some steps": lambda corpus: corpus.phase(steps=(3, 33)),
    "some boards": lambda corpus: corpus.phase(empties=(7, 13)),
    "selected": lambda corpus: corpus.select(np.arange(len(corpus)) % 5 < 3),
    "capped": lambda corpus: corpus.capped(20),
    "capped by stage": lambda corpus: corpus.select(np.arange(len(corpus)) % 5 < 3).capped(8, by="highest"),
    "capped evenly": lambda corpus: corpus.phase(empties=(3, 15)).capped(9, "even"),
    "chosen": lambda corpus: corpus.select(np.arange(len(corpus)) % 3 > 0),
    "half of the games": lambda corpus: corpus.split(a=0.5, b=0.5)["a"].phase(steps=(2, None)),
}


@given(
    load=st.sampled_from(LOADS),
    view=st.sampled_from(sorted(VIEWS)),
    order=st.sampled_from(sorted(ORDERS)),
    names=st.lists(st.sampled_from([*COLUMNS, *EXTRAS]), max_size=4, unique=True),
    plain=st.lists(st.sampled_from(["tokens", "step", "steps_left", *GAME_FIELDS]), max_size=3, unique=True),
    weight=st.sampled_from([None, "prior", "count"]),
    targets=st.sampled_from([None, "chance"]),
    augment=st.sampled_from([None, "d4"]),
    batch_size=st.sampled_from([5, 130, 257]),
)
@settings(max_examples=100, deadline=None)
def test_batches_have_what_numpy_takes(  # noqa: PLR0917 - by name
    corpora: dict[str, Corpus], load: str, view: str, order: str, names: list[str], plain: list[str],
    weight: str | None, targets: str | None, augment: Any, batch_size: int,
) -> None:  # fmt: skip
    source = VIEWS[view](corpora[load])
    rows = source.corpus if isinstance(source, Capped) else source
    extra = {name: make_values(len(rows), *EXTRAS[name]) for name in names if name in EXTRAS}
    of_files = [name for name in names if name not in extra]
    known = rows.fetch(slice(None), ("run", "step", "labels", "tokens"), thresholds=TILES)
    run = rows.runs[known["run"]]
    expected: dict[str, Any] = extra | {name: column_of(rows, name) for name in of_files}
    assert all(
        rows.fetch([1, 0], (name,))[name].tobytes() == expected[name][[1, 0]].tobytes() for name in of_files
    )
    expected |= {"labels": known["labels"], "tokens": known["tokens"], "step": known["step"]}
    expected |= {"steps_left": run["steps"] - known["step"] - 1, "seed": run["seed"]}
    expected |= {"score": run["score"], "highest_tile": run["highest_tile"]}
    expected["weight"] = np.zeros(len(rows), np.float32)
    for batch in source.batches(batch_size, fields=("row", "weight"), **ORDERS[order]):
        expected["weight"][batch.row] = batch.weight
    if targets:
        expected["labels"] = column_of(rows, targets)
    if weight:
        own = column_of(rows, weight)
        expected["weight"] *= (own.astype("<u4") << 16).view("<f4") if weight == "prior" else own
    fields = ("row", "symmetry", "labels", *of_files, *plain)
    batches = source.batches(
        batch_size, fields=fields, thresholds=TILES, extra=extra, weight=weight, targets=targets,
        augment=augment, **ORDERS[order],
    )  # fmt: skip
    for batch in (batches := pickle.loads(pickle.dumps(batches))):  # noqa: S301 - our own
        assert set(batch) == {*fields, *extra, *(["weight"] if weight else [])}
        for name in set(batch) - {"row", "symmetry", *(["tokens"] if augment else [])}:
            values = expected[name][batch.row]
            if name in TURNING:
                values = turned(values, batch.symmetry)
            assert batch[name].tobytes() == values.tobytes(), name
    assert batches.epoch == 1


def ours(root: Path, name: str, values: Any = None, **facts: Any) -> Corpus:
    """Two sessions with a column ``x``; of the second one, ``values`` and ``facts``."""
    build(root, theirs=False, ours=2)
    for each in OURS[:2]:
        session = Session.open(root / each)
        own = (
            np.ones(len(session), np.float32)
            if values is None or each == OURS[0]
            else values(len(session)).astype("<f4")
        )
        put(root / each, session, name, own, "f32", **(facts if each == OURS[1] else {}))
    return Corpus.open(root)


@pytest.mark.parametrize(
    ("values", "facts", "message"),
    [
        (lambda n: np.ones((n, 2), np.float32), {}, r"found f32 \[N, 2\]; expected f32 \[N\], as in"),
        (None, {"player_sha256": "b" * 64}, "found f32.*player_sha256 'bbb"),
        (None, {"dtype": "f64"}, "dtype"),
        (None, {"rows": 3}, "made of 3 rows"),
    ],
)
def test_columns_that_differ(tmp_path: Path, values: Any, facts: Any, message: str) -> None:
    corpus = ours(tmp_path, "x", values, **facts)
    for make in (lambda: corpus.batches(fields=("x",)), lambda: corpus.fetch([0], ("x",))):
        with pytest.raises(errors.TapeError, match=message) as caught:
            make()
        assert OURS[1] in caught.value.path
    assert len(corpus.where("model = 'strong'").fetch([0], ("x",))["x"]) == 1


def test_missing_columns(tmp_path: Path) -> None:
    corpus = ours(tmp_path, "x")
    (tmp_path / OURS[1] / "x.json").unlink()
    with pytest.raises(errors.ColumnError, match="half-written") as caught:
        corpus.batches(fields=("x",))
    assert OURS[1] in caught.value.path
    with pytest.raises(errors.ColumnError, match="no column 'y'"):
        corpus.batches(fields=("y",))
    with pytest.raises(ValueError, match=r"no field 'token'\. The nearest is 'tokens'"):
        corpus.batches(fields=("token",))


@pytest.mark.parametrize("wrong", [np.nan, -1.0, np.inf])
@pytest.mark.parametrize("order", ORDERS)
def test_invalid_weights(tmp_path: Path, wrong: float, order: str) -> None:
    corpus = ours(tmp_path, "x", lambda n: np.where(np.arange(n) == 5, wrong, 1))
    first = int((corpus.runs["session"] == 0) @ corpus.row_counts)
    with pytest.raises(errors.CorpusError, match=rf"x is {wrong} in row {first + 5} of the corpus") as caught:
        list(corpus.batches(100, weight="x", **ORDERS[order]))
    assert OURS[1] in caught.value.path


@pytest.mark.parametrize("wrong", [np.nan, -0.5, 1.5])
@pytest.mark.parametrize("order", ORDERS)
def test_invalid_targets(tmp_path: Path, wrong: float, order: str) -> None:
    corpus = ours(tmp_path, "x", lambda n: np.where(np.arange(n) == 5, wrong, 1))
    first = int((corpus.runs["session"] == 0) @ corpus.row_counts)
    how: Any = {"thresholds": (8192,), "targets": "x"}
    said = rf"x is \[{wrong}\] in row {first + 5} of the corpus; expected probabilities"
    with pytest.raises(errors.CorpusError, match=said) as caught:
        list(corpus.batches(100, **how, **ORDERS[order]))
    assert OURS[1] in caught.value.path
    with pytest.raises(errors.CorpusError, match=said):
        corpus.fetch([first + 5], ("labels",), **how)


def test_weights_of_zero(tmp_path: Path) -> None:
    corpus = ours(tmp_path, "x", np.zeros)
    assert next(iter(corpus.batches(len(corpus), weight="x"))).weight.sum() > 0
    with pytest.raises(errors.CorpusError, match="x has no positive weight") as caught:
        corpus.where("model = 'weak'").batches(weight="x")
    assert OURS[1] in caught.value.path
    with pytest.raises(errors.CorpusError, match="w has no positive weight"):
        corpus.batches(extra={"w": np.zeros(len(corpus))}, weight="w")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"extra": {"a": np.zeros(7)}}, r"extra: a is float64 of shape \(7,\); expected .* shape \(\d+,\)"),
        ({"extra": {"a": np.zeros(())}}, "extra: a is float64 of shape"),
        ({"extra": {"tokens": np.zeros(7)}}, "'tokens' is a built-in field"),
        ({"extra": {"A": np.zeros(7)}}, "column name 'A'"),
        ({"weight": "score"}, "'score' is a built-in field"),
        ({"targets": "x"}, r"targets='x' is f32 \[N\]; expected \[N, 3\]"),
    ],
)
def test_wrong_options(tmp_path: Path, options: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        ours(tmp_path, "x").batches(**options)


@pytest.mark.parametrize("array", [np.array(["a"] * 1000), np.zeros((1000, 2, 2)), np.zeros(1000, "c16")])
def test_arrays_of_no_numbers(corpora: dict[str, Corpus], array: Any) -> None:
    corpus = corpora["ram"].select(np.arange(1000))
    with pytest.raises(ValueError, match="extra: a is "):
        corpus.batches(extra={"a": array})
    with pytest.raises(ValueError, match=r"weight='a' has shape \[N, 2\]"):
        corpus.batches(extra={"a": np.ones((1000, 2))}, weight="a")


def test_targets_of_other_thresholds(corpora: dict[str, Corpus]) -> None:
    with pytest.raises(errors.CorpusError, match=r"made for the thresholds \[256, 2048, 8192\]"):
        corpora["ram"].batches(thresholds=(2, 4, 8), targets="chance")


def test_columns_that_do_not_turn(tmp_path: Path) -> None:
    build(tmp_path, theirs=False, ours=1)
    session = Session.open(tmp_path / OURS[0])
    put(session.path, session, "embeddings", make_values(len(session), "bf16", 3), "bf16", model_sha="a")
    put(session.path, session, "x", make_values(len(session), "f32", 3), "f32", moves=True)
    corpus = Corpus.open(tmp_path)
    for name, message in (
        ("embeddings", "unturned boards, but augment turns"),
        ("x", r"the column x has moves in f32 \[N, 3\]"),
    ):
        with pytest.raises(errors.CorpusError, match=message):
            corpus.batches(fields=(name,), augment="d4")
        assert len(corpus.batches(fields=(name,)))
