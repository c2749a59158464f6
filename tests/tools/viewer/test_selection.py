"""Selections of games, and pages of sorted games against a whole sort."""

import itertools
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
from hypothesis import given, settings, strategies as st

from tape2048.errors import ConfigError, MissingPathError
from tape2048.loader.filters import choose_runs, session_columns
from tape2048.session.layout import RUN_DTYPE
from tape2048_recorder.replay.judging import SUMS
from tape2048_tools.viewer.collection import (
    COLUMNS,
    PAGE_ROWS,
    SORTS,
    Entry,
    GameTable,
    Selection,
    _compared,
    _ranked,
    choose,
    page_of_games,
)  # fmt: skip


def games_of(counts: list[int], seed: int = 0) -> GameTable:
    """Games with small numbers, so that many are equal; seeds of both signs."""
    random = np.random.default_rng(seed)
    entries = []
    for number, count in enumerate(counts):
        runs = np.zeros(count, RUN_DTYPE)
        for name in COLUMNS:
            runs[name] = random.integers(0, 12, count)
        runs["run_id"] = np.arange(count)
        runs["seed"][random.random(count) < 0.3] += np.uint64(2**64 - 20)
        meta = {"player": "greedy" if number % 2 else "random", "model_tag": f"tag{number}"}
        entry = Entry(f"{number:010x}", Path(f"20260101T00000{number}Z_model=tag{number}"), meta, runs, 0)
        judged = np.where(random.random((4, count)) < 0.2, np.nan, random.integers(-5, 5, (4, count)))
        entry.__dict__["_sums"] = dict(zip(SUMS, judged, strict=True)), {}  # some games are not judged
        entries.append(entry)
    return GameTable(entries)


GAMES = games_of([40, 0, 70, 30])


def test_selection() -> None:
    for where in ("score >= 6 AND model = 'tag2'", "score >= 6"):
        chosen = choose(GAMES, Selection.of({"where": where, "session": "0000000002", "max_steps": "8"}))
        expected = (GAMES["score"] >= 6) & (GAMES["session"] == 2) & (GAMES["steps"] <= 8)
        assert np.array_equal(chosen, expected)
        assert 0 < expected.sum() < 70
    for player, games in (("random", 110), ("greedy", 30)):
        for link in ({"player": player}, {"where": f"player = '{player}'"}):
            chosen = choose(GAMES, Selection.of(link))
            assert chosen.sum() == games
    labels = ["greedy", "greedy:epsilon=0.1", "greedy:epsilon=0.2"]
    args = [{}, {"epsilon": 0.1}, {"epsilon": 0.2}]
    several = [
        replace(entry, meta={"player": "greedy", "player_args": one})
        for entry, one in zip(games_of([1, 2, 4]).sessions, args, strict=True)
    ]
    assert [one.label for one in several] == labels
    for player, games in zip(labels, (1, 2, 4), strict=True):
        assert choose(GameTable(several), Selection.of({"player": player})).sum() == games
    assert choose(GameTable(several[1:]), Selection.of({"player": "greedy"})).sum() == 6
    assert choose(GAMES, Selection()) is None
    with pytest.raises(ConfigError):
        choose(GAMES, Selection(where="scores > 1"))
    with pytest.raises(MissingPathError, match="no game is of the player greedy:epsilon"):
        choose(GameTable(several), Selection.of({"player": "greedy:epsilon"}))


@pytest.mark.parametrize("compared", ["<", "<=", ">", ">=", "=", "==", "!=", "<>"])
def test_comparisons_as_by_sqlite(compared: str) -> None:
    """NumPy compares signed numbers and texts as SQLite does."""
    parts = [f"steps {compared} 6", f"SEED{compared}-15", f"model {compared} 'tag2'"]
    more = [f"run_id {compared} {10**17}", f"session {compared} '20260101T000002Z_model=tag2'"]
    for where in (*parts, *more, f" {parts[0]} and {parts[2]}\nAND {parts[1]} "):
        columns = session_columns(cast("Any", GAMES), cast("Any", GAMES.sessions))
        expected = choose_runs(f"{where} OR 0", {}, columns, len(GAMES))  # not a plain comparison
        found = _compared(GAMES, where)
        assert found.tolist() == expected.tolist()


@pytest.mark.parametrize(
    "where", ["steps > 5 OR 1", "steps > '5'", "model > 5", "steps > 0x5", "scores > 1", "model = 'a AND b'"]
)
def test_other_conditions_are_left_to_sqlite(where: str) -> None:
    assert _compared(GAMES, where) is None


@given(
    st.sampled_from(SORTS), st.booleans(), st.booleans(), st.lists(st.integers(0, 90), min_size=1, max_size=4)
)
@settings(max_examples=60, deadline=None)
def test_pages_are_parts_of_the_sorted_list(sort: str, down: bool, some: bool, counts: list[int]) -> None:
    games = games_of(counts)
    chosen = games["steps"] > 3 if some else None
    numbers = np.arange(len(games)) if chosen is None else np.flatnonzero(chosen)
    values = (games[sort] if sort != "session" else np.arange(len(games)))[numbers]
    values = values.astype(np.float64 if sort in SUMS else np.int64)
    order = numbers[np.argsort(-values if down else values, kind="stable")]  # NaN comes last
    pages = [
        page_of_games(games, chosen, sort, page, descending=down).tolist()
        for page in range(len(games) // PAGE_ROWS + 2)
    ]
    assert list(itertools.chain(*pages)) == order.tolist()
    assert all(len(page) <= PAGE_ROWS for page in pages)
    assert pages[-1] == []


@given(
    kind=st.sampled_from(["any", "few", "rising", "falling", "one far off"]),
    count=st.integers(0, 3000),
    seed=st.integers(0, 2**32),
    down=st.booleans(),
    data=st.data(),
)
@settings(max_examples=100, deadline=None)
def test_ranks_as_of_a_whole_sort(
    *, kind: str, count: int, seed: int, down: bool, data: st.DataObject
) -> None:
    random, dtype = np.random.default_rng(seed), data.draw(st.sampled_from([np.uint32, np.uint64]))
    most = int(np.iinfo(dtype).max)
    values = {
        "any": lambda: random.integers(0, most, count, dtype, endpoint=True),
        "few": lambda: random.integers(0, 4, count),
        "rising": lambda: np.arange(count),
        "falling": lambda: np.arange(count)[::-1],
        "one far off": lambda: np.where(
            np.arange(count) == count // 2, dtype(most), random.integers(0, 9, count, dtype)
        ),
    }[kind]().astype(dtype)
    values = ~values if down else values
    begin = data.draw(st.integers(0, count))
    end = data.draw(st.integers(begin, min(count, begin + 60)))
    assert _ranked(values, begin, end).tolist() == np.argsort(values, kind="stable")[begin:end].tolist()


def test_games_without_sessions() -> None:
    assert len(GameTable([])) == 0
    assert page_of_games(GameTable([]), None, "score", 0, descending=True).tolist() == []
