"""Conditions on rows against SQLite, and the rows that they select against NumPy."""

import contextlib
import sqlite3
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings, strategies as st
from numpy.typing import NDArray

from tape2048 import Corpus, errors
from tape2048.loader import condition as conditions
from tape2048.loader.condition import Condition
from tape2048.session.column_draft import write_column

from ..corpora import OURS, build

ROWS = 30


def columns() -> dict[str, NDArray[Any]]:
    rng = np.random.default_rng(5)
    x = rng.integers(-8, 9, ROWS) / 4
    x[rng.random(ROWS) < 0.3] = np.nan
    return {
        "i": rng.integers(-5, 6, ROWS), "b": rng.integers(0, 4, ROWS).astype(np.uint8), "x": x,
        "y": x[::-1].astype(np.float32), "h": (x[::-1] / 2).astype(np.float16), "run": np.arange(ROWS) // 6,
        "t": np.array(["a", "b", np.nan, "b'c", "d"] * 6, object),
    }  # fmt: skip


VALUES = columns()
INTS = st.sampled_from(["i", "b", "run", "I", *map(str, range(-3, 4))])
INTS = st.recursive(
    INTS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from("+-*/%"), inner).map(" ".join), inner.map("(- {})".format),
        inner.map("ABS ({})".format), inner.map("({})".format),
    ),
    max_leaves=4,
)  # fmt: skip
FLOATS = st.recursive(
    st.sampled_from(["x", "0.5", ".25", "1e0", "2.", "i", "NULL"]),
    lambda inner: st.tuples(inner, st.sampled_from("+-*/"), inner).map("({0[0]} {0[1]} {0[2]})".format),
    max_leaves=3,
)
TEXTS = st.sampled_from(["t", "'a'", "'b'", "'b''c'"])
NUMBERS = INTS | FLOATS | st.sampled_from(["y", "h"])
COMPARE = st.sampled_from(["=", "==", "<>", "!=", "<", "<=", ">", ">="])


def listed(operands: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.lists(operands, min_size=1, max_size=3).map(", ".join).map("({})".format)


def leaves(operands: st.SearchStrategy[str]) -> st.SearchStrategy[str]:
    return st.one_of(
        st.tuples(operands, COMPARE, operands).map(" ".join),
        st.tuples(operands, st.sampled_from([" IN ", " not in "]), listed(operands)).map("".join),
        st.tuples(operands, st.sampled_from(["BETWEEN", "NOT between"]), operands, operands).map(
            "{0[0]} {0[1]} {0[2]} AND {0[3]}".format
        ),
        st.tuples(operands, st.sampled_from(["IS NULL", "is not null"])).map(" ".join),
    )


BOOLEANS = st.recursive(
    leaves(NUMBERS) | leaves(TEXTS) | INTS,
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " or "]), inner).map("".join),
        inner.map("NOT {}".format), inner.map("({})".format),
    ),
    max_leaves=6,
)  # fmt: skip


@given(BOOLEANS)
@example("i BETWEEN - (b + 1) AND 3 AND NOT x > 0 OR t IN ('a', 'd')")
@example("x / 0 IS NULL AND i % 0 IS NULL AND - i / 2 = - (i / 2)")
@example("i\n< b AND\n\n NOT t = 'a\nb'")
@example("i < 1" + "0" * 40 + " AND b > -1e400")
@example("NOT (x > 0 AND i > 0) AND NOT (x <> 1 OR b)")
@settings(max_examples=300, deadline=None)
def test_conditions_mean_what_they_do_in_sqlite(text: str) -> None:
    with contextlib.closing(sqlite3.connect(":memory:")) as database:
        database.execute(f"CREATE TABLE rows({', '.join(VALUES)})")
        rows = zip(*(np.where(each == each, each, None) for each in VALUES.values()), strict=True)  # noqa: PLR0124
        database.executemany(f"INSERT INTO rows VALUES({', '.join('?' * len(VALUES))})", rows)
        query = database.execute(f"SELECT CASE WHEN {text} THEN 1 ELSE 0 END FROM rows")
        expected = [bool(row[0]) for row in query]
    found = Condition(text).rows(VALUES, ROWS)
    assert found.tolist() == expected


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    """Sessions with columns of which each row has its own values."""
    root = tmp_path_factory.mktemp("conditions")
    build(root, theirs=False)
    rng = np.random.default_rng(2)
    for session in Corpus.open(root).sessions:
        loss = rng.random(len(session)).astype(np.float32) * 100
        loss[::7] = np.nan
        write_column(session, "loss", loss)
        write_column(session, "values", rng.random((len(session), 4)).astype(np.float32))
        halves = (rng.random(len(session)).astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        write_column(session, "halves", halves, dtype="bf16")
        write_column(session, "good", rng.random(len(session)) < 0.5)
    return Corpus.open(root)


SELECTED: list[tuple[str, Any]] = [
    ("loss > 50", lambda row: row["loss"] > 50),
    ("NOT loss > 50 AND good", lambda row: (row["loss"] <= 50) & row["good"]),
    ("values[2] BETWEEN 0.25 AND 0.5 OR loss IS NULL",
     lambda row: ((row["values"][:, 2] >= 0.25) & (row["values"][:, 2] <= 0.5)) | np.isnan(row["loss"])),
    ("halves < 0.5", lambda row: (row["halves"].astype(np.uint32) << 16).view(np.float32) < 0.5),
    ("step > 20 AND score > 8000", lambda row: (row["step"] > 20) & (row["score"] > 8000)),
    ("tokens[5] = 1 AND legal <> 15", lambda row: (row["tokens"][:, 5] == 1) & (row["legal"] != 15)),
    ("steps_left = 0 OR run % 9 = 1", lambda row: (row["steps_left"] == 0) | (row["run"] % 9 == 1)),
    ("model = 'weak' AND started > '2025-01-03' AND score % 2 = 1",
     lambda row: (row["session"] == 1) & (row["score"] % 2 == 1)),
    ("seed = 9223372036854775909", lambda row: row["seed"] == 9223372036854775909),
    ("highest_tile = 2048", lambda row: row["highest_tile"] == 2048),
]  # fmt: skip


@pytest.mark.parametrize(("text", "holds"), SELECTED, ids=[text for text, _ in SELECTED])
@pytest.mark.parametrize("load", ["mmap", "packed", "ram"])
def test_rows_of_any_view(corpus: Corpus, text: str, holds: Any, load: Any, monkeypatch: Any) -> None:
    """Of all rows, and of those that filters left, which have runs without a row; in many small chunks."""
    monkeypatch.setattr(conditions, "_CHUNK_ROWS", 128)
    whole = Corpus.open([session.path for session in corpus.sessions], load=load)
    some = whole.where("run_id % 4 <> 1").select(np.arange(len(whole.where("run_id % 4 <> 1"))) % 3 > 0)
    for view in (whole, some.phase(empties=(6, 14))):
        names = ["loss", "values", "halves", "good", "step", "tokens", "legal", "steps_left", "run", "seed"]
        row = view.fetch(slice(None), (*names, "highest_tile"))
        row |= {name: view.runs[name][row["run"]] for name in ("score", "session")}
        expected = np.flatnonzero(holds(row))
        if not len(expected):
            with pytest.raises(errors.EmptyCorpusError, match="leaves 0 of"):
                view.rows_where(text)
            continue
        found = view.rows_where(text)
        np.testing.assert_array_equal(found[:], view[:][expected])
        assert found.identity == view.select(expected).identity


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("lost > 1", r"no column lost.*Did you mean loss\? Columns: action,"),
        ("loss > values", r"found values; expected values\[0\] to values\[3\]"),
        ("values[4] > 0", r"found values\[4\]; expected values\[0\]"),
        ("step[0] > 0", r"found step\[0\]; expected step"),
        ("labels > 0", "no column labels"),
        ("loss > 1; DROP TABLE runs", "invalid syntax"),
        ("loss > 1) OR (loss < 1", "unmatched '[)]'"),
        ("loss.real > 1", r"found loss\.real"),
        ("loss > 'a", "unterminated string"),
        ("", "invalid syntax"),
        ("loss > 1 # AND step", "invalid syntax"),
        ("loss >", "invalid syntax"),
        ("loss LIKE 3", "invalid syntax"),
        ("loss | 1 > 0", "found loss @ 1"),
        ("lambda = 1", "no column lambda"),
        ("abs > 1", "found abs"),
        ("abs(loss, 1) > 1", r"found abs\(loss, 1\)"),
        ("step(loss) > 1", r"found step\(loss\)"),
        ("1 < loss < 2", "found 1 < loss < 2"),
        ("(loss > 1) + 1 > 2", "found loss > 1"),
        ("loss IN (1, (2, 3))", r"found \(2, 3\)"),
        ("values[-1] > 0", r"found values\[-1\]"),
        ("loss > 'a'", "text instead of a number"),
        ("player + 1 > 2", "text instead of a number"),
        ("player > 2", "text instead of a number"),
        ("step + 9223372036854775808 > 2", "too large"),
        ("step > 1" + "0" * 5000, "Exceeds the limit"),
        ("(" * 9000 + "loss" + ")" * 9000, "nested"),
        ("loss" + " + loss" * 5000 + " > 1", "recursion"),
    ],
)  # fmt: skip
def test_what_is_no_condition(corpus: Corpus, text: str, message: str) -> None:
    with pytest.raises(errors.ConfigError, match=rf"(?s)the condition .* is rejected: .*{message}"):
        corpus.rows_where(text)


def test_a_column_of_some_sessions(corpus: Corpus, tmp_path: Path) -> None:
    build(tmp_path, theirs=False, ours=1)
    (tmp_path / OURS[0]).rename(tmp_path / "20250109T030405Z_model=late")
    both = Corpus.open([corpus.sessions[1].path, tmp_path / "20250109T030405Z_model=late"])
    with pytest.raises(errors.ColumnError, match=r"late.*no column 'loss'"):
        both.rows_where("loss > 3")
    assert len(both.where("model = 'weak'").rows_where("loss > 3"))
