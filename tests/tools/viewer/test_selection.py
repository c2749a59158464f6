"""Selections of games against the filter of corpora, and pages of sorted games against a whole sort."""

from __future__ import annotations

import itertools
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.errors import ConfigError
from tape2048.formats.session import RUN_DTYPE
from tape2048.selection.filters import NamedFilters, choose_runs, session_columns
from tape2048_tools.viewer import selection
from tape2048_tools.viewer.collection import Entry, Games
from tape2048_tools.viewer.selection import (
    PAGE_ROWS,
    SORTS,
    Selection,
    choose,
    evaluate,
    page_of_games,
    ranked,
)

COLUMNS = ("id", "seed", "steps", "max_score", "highest_tile", "rows")
_NUMBER = st.one_of(st.integers(-3, 3), st.integers(0, 12), st.sampled_from([2**32, -(2**63), 2**63 - 1]))


def games_of(counts: list[int], seed: int = 0) -> Games:
    """Games with small numbers, so that many are equal; seeds of both signs."""
    random = np.random.default_rng(seed)
    entries = []
    for number, count in enumerate(counts):
        runs = np.zeros(count, RUN_DTYPE)
        for name in COLUMNS:
            runs[name] = random.integers(0, 12, count)
        runs["id"] = np.arange(count)
        runs["seed"][random.random(count) < 0.3] += np.uint64(2**64 - 20)
        meta = {"player": "greedy" if number % 2 else "random", "model_tag": f"tag{number}"}
        entries.append(
            Entry(f"{number:010x}", Path(f"20260101T00000{number}Z_model=tag{number}"), meta, runs, 0)
        )
    return Games(entries)


GAMES = games_of([40, 0, 70, 30])


@st.composite
def comparisons(draw: st.DrawFn) -> str:
    column = draw(st.sampled_from(COLUMNS))
    kind = draw(st.sampled_from(["compare", "swapped", "columns", "between", "in", "not in"]))
    sign = draw(st.sampled_from(["<", "<=", ">", ">=", "=", "==", "!=", "<>"]))
    one, two = draw(_NUMBER), draw(_NUMBER)
    return {
        "compare": f"{column} {sign} {one}",
        "swapped": f"{one}{sign}{column}",
        "columns": f"{column} {sign} {draw(st.sampled_from(COLUMNS))}",
        "between": f"{column} BETWEEN {one} AND {two}",
        "in": f"{column} in ({one}, {two})",
        "not in": f"{column} NOT IN ({one})",
    }[kind]


conditions = st.recursive(
    comparisons(),
    lambda inner: st.one_of(
        st.tuples(inner, st.sampled_from([" AND ", " or ", "\tOR\n"]), inner).map("".join),
        inner.map(lambda text: f"({text})"),
        inner.map(lambda text: f"NOT {text}"),
    ),
    max_leaves=6,
)


@given(conditions)
@settings(max_examples=300, deadline=None)
def test_numpy_finds_what_sqlite_finds(condition: str) -> None:
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_PIECE_GAMES", 64)
        quick = evaluate(condition, GAMES)
    assert quick is not None
    expected = choose_runs(
        condition,
        NamedFilters(),
        session_columns(GAMES, GAMES.sessions),
        len(GAMES),  # type: ignore[arg-type]
    )
    assert np.array_equal(quick, expected), condition


@pytest.mark.parametrize(
    "condition",
    [
        "model = 'tag0'", "max_score + 1 > 3", "(max_score > 1) = 1", "max_score > 1 > 0", "1 = 1",
        "max_score > 9223372036854775808", "max_score > 1.5", "max_score > 0x3", "max_score >", "1) or (1",
        "max_score not between 1 and 3", "id in ()", "rowid = 1", "max_score > -  1", "`id` = 3", "",
        "id = 1 -- all", "max_score",
    ],
)  # fmt: skip
def test_anything_else_is_left_to_sqlite(condition: str) -> None:
    assert evaluate(condition, GAMES) is None


def test_both_ways_make_one_selection() -> None:
    for where in ("max_score >= 6 AND model = 'tag2'", "max_score >= 6"):
        chosen = choose(GAMES, Selection.of({"where": where, "session": "0000000002", "max_steps": "8"}))
        expected = (GAMES["max_score"] >= 6) & (GAMES["session"] == 2) & (GAMES["steps"] <= 8)
        assert chosen is not None
        assert np.array_equal(chosen, expected)
        assert 0 < expected.sum() < 70
    players = {choose(GAMES, Selection(player=one.player_id)).sum() for one in GAMES.sessions}  # type: ignore[union-attr]
    assert players == {110, 30}
    assert choose(GAMES, Selection()) is None
    with pytest.raises(ConfigError):
        choose(GAMES, Selection(where="scores > 1"))


@given(
    st.sampled_from(SORTS), st.booleans(), st.booleans(), st.lists(st.integers(0, 90), min_size=1, max_size=4)
)
@settings(max_examples=60, deadline=None)
def test_pages_are_the_parts_of_the_sorted_list(sort: str, down: bool, some: bool, counts: list[int]) -> None:
    games = games_of(counts)
    chosen = games["steps"] > 3 if some else None
    numbers = np.arange(len(games)) if chosen is None else np.flatnonzero(chosen)
    values = (games[sort] if sort != "session" else np.arange(len(games)))[numbers].astype(np.int64)
    order = numbers[np.argsort(-values if down else values, kind="stable")]
    pages = [
        page_of_games(games, chosen, sort, page, descending=down).tolist()
        for page in range(len(games) // PAGE_ROWS + 2)
    ]
    assert list(itertools.chain(*pages)) == order.tolist()
    assert all(len(page) <= PAGE_ROWS for page in pages)
    assert pages[-1] == []


@given(
    dtype=st.sampled_from([np.uint32, np.uint64]),
    kind=st.sampled_from(["any", "few", "rising", "falling", "one far off", "misled"]),
    count=st.integers(0, 3000),
    seed=st.integers(0, 2**32),
    down=st.booleans(),
    some=st.booleans(),
    data=st.data(),
)
@settings(max_examples=300, deadline=None)
def test_ranks_between_two_values_of_a_sample_are_those_of_a_whole_sort(
    *, dtype: type, kind: str, count: int, seed: int, down: bool, some: bool, data: st.DataObject
) -> None:
    random, sample = np.random.default_rng(seed), data.draw(st.sampled_from([1, 8, 64, 10**6]))
    most = int(np.iinfo(dtype).max)
    values = {
        "any": lambda: random.integers(0, most, count, dtype, endpoint=True),
        "few": lambda: random.integers(0, 4, count),
        "rising": lambda: np.arange(count),
        "falling": lambda: np.arange(count)[::-1],
        "one far off": lambda: np.where(
            np.arange(count) == count // 2, dtype(most), random.integers(0, 9, count, dtype)
        ),
        "misled": lambda: np.where(np.arange(count) % max(1, count // sample), dtype(7), dtype(most)),
    }[kind]().astype(dtype)
    chosen = random.random(count) < random.random() if some else None
    numbers = np.arange(count) if chosen is None else np.flatnonzero(chosen)
    begin = data.draw(st.integers(0, len(numbers)))
    end = data.draw(st.integers(begin, min(len(numbers), begin + 60)))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(selection, "_SAMPLE", sample)
        patch.setattr(selection, "_PIECE_GAMES", data.draw(st.sampled_from([100, 10**6])))
        found = ranked(values, begin, end, chosen=chosen, descending=down)
    order = numbers[np.argsort(~values[numbers] if down else values[numbers], kind="stable")]
    assert found.tolist() == order[begin:end].tolist()


def test_games_without_sessions() -> None:
    assert len(Games([])) == 0
    assert page_of_games(Games([]), None, "max_score", 0, descending=True).tolist() == []
