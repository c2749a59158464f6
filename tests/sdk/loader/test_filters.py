"""Conditions on runs: SQL that may only read, masks, named filters; parts and weights from the run table."""

import datetime as dt
import re
import signal
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, strategies as st
from pyarrow import parquet as pq
from tests import reference

from tape2048 import Corpus, errors
from tape2048.jit.mix import mix64
from tape2048.loader.run_columns import positive_weights, prevalence
from tape2048.loader.splits import parts_of_hashes, run_hash
from tape2048.runs import export

from ..builders import NAME, Game, Spec, raising, write_foreign, write_ours
from ..corpora import OURS, Built, build

#: The start of the second session, in seconds since 1970.
UNIX_S = 1735873445


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("filters"))


@pytest.fixture(scope="module")
def corpus(built: Built) -> Corpus:
    return Corpus.open(built.root)


def ids(view: Corpus) -> list[tuple[int, int]]:
    return view.runs[["session", "run_id"]].tolist()


def expected(built: Built, holds: Callable[[Game], bool]) -> list[tuple[int, int]]:
    return [(owner, game.id) for owner, game in zip(built.session, built.games, strict=True) if holds(game)]


class TestSql:
    @pytest.mark.parametrize(
        ("condition", "holds"),
        [
            ("score >= 5000 AND highest_tile >= 8192",
             lambda game: game.max_score >= 5000 and game.highest_tile >= 8192),
            ("run_id IN (3, 4) OR steps = 1", lambda game: game.id in {3, 4} or game.steps == 1),
            ("NOT run_id % 2", lambda game: game.id % 2 == 0),
            ("seed < 0", lambda game: game.seed >= 2**63),
            ("rows = steps -- a comment", lambda game: True),
            ("run_id BETWEEN 4 AND 9", lambda game: 4 <= game.id <= 9),
            ("score = (SELECT max(score) FROM runs)", lambda game: game.max_score == 21002),
            ("abs(run_id - 5) < 2", lambda game: abs(game.id - 5) < 2),
            ("run_id = 4) OR (run_id = 5", lambda game: game.id in {4, 5}),
            ('"run_id" = 4 OR runs."run_id" = 5 OR [run_id] = 6 OR `run_id` = 7',
             lambda game: 4 <= game.id <= 7),
            ("'say \"no_such\"' <> '''' AND run_id < 5 -- \"nothing\"", lambda game: game.id < 5),
            ("run_id < 5 /* \"nothing' */ AND 'a\"b' = 'a' || char(34) || 'b'", lambda game: game.id < 5),
            ('run_id = (SELECT max("a`""".run_id) FROM runs AS "a`""")', lambda game: game.id == 21),
        ],
    )  # fmt: skip
    def test_conditions(
        self, built: Built, corpus: Corpus, condition: str, holds: Callable[[Game], bool]
    ) -> None:
        assert ids(corpus.where(condition)) == expected(built, holds)

    def test_facts_of_the_session(self, corpus: Corpus) -> None:
        weak = corpus.where("model = 'weak'")
        assert {owner for owner, _ in ids(weak)} == {1}
        assert {owner for owner, _ in ids(corpus.where("model LIKE 'weak%'"))} == {1, 2}
        assert {owner for owner, _ in ids(corpus.where("started >= '2025-01-03'"))} == {1, 2}
        assert {owner for owner, _ in ids(corpus.where("session = 'theirs'"))} == {3}
        assert {owner for owner, _ in ids(corpus.where("started IS NULL"))} == {3}

    def test_one_after_another(self, built: Built, corpus: Corpus) -> None:
        view = corpus.where("run_id > 3").where("steps > 1").where("run_id % 2 = 0")
        assert ids(view) == expected(built, lambda game: game.id > 3 and game.steps > 1 and game.id % 2 == 0)

    @pytest.mark.parametrize(
        ("condition", "message", "hint"),
        [
            ("scor > 3", "no such column", "did you mean score?"),
            ('"scor" >= 50000', "no such column", "did you mean score?"),
            ('run_id > 1 AND "" = 3', "no such column", None),
            ("model = 'weak' AND no_such = 3", "no such column", "columns: run, run_id"),
            ('model = "weak"', "no such column", "single quotes"),
            ('"run_id', "is rejected", None),
            ("", "syntax error", "columns: run, run_id"),
            ("run_id >", "syntax error", None),
            ("1) LIMIT (5", "syntax error", None),
            ("1) LIMIT 5 /*", "syntax error", None),
            ("1) ORDER BY (run_id", "syntax error", None),
            ("1) GROUP BY (run_id", "syntax error", None),
            ("1) THEN 1 END LIMIT CASE WHEN (5", "syntax error", None),
            ("1) UNION SELECT run_id FROM runs WHERE (1", "syntax error", None),
            ("run_id = 1; DROP TABLE runs", "syntax error", None),
            ("run_id = 1); DELETE FROM runs; --", "one statement", None),
            ("run_id IN (SELECT name FROM sqlite_master)", "prohibited", "only compare"),
            ("run_id IN (SELECT 1 FROM pragma_database_list)", "is rejected", None),
            ("load_extension('x')", "is rejected", None),
            ("format('%.*c', 1000000000, 'x') = ''", "not authorized", None),
            ("run_id = ?", "binding", None),
            ("run_id = 1 UNION SELECT 3", "is rejected", None),
            ("(WITH RECURSIVE c(x) AS (SELECT 1 UNION ALL SELECT x + 1 FROM c) SELECT max(x) FROM c)",
             "is rejected", None),
            ("run_id = (WITH RECURSIVE c(x) AS (SELECT 1 UNION SELECT x+1 FROM c WHERE x<3) SELECT x FROM c)",
             "not authorized", None),
            ("length(zeroblob(1000000000))", "too big", None),
            ("hex(zeroblob(400000)) LIKE ('%' || hex(zeroblob(20000)) || '1')", "too big", None),
            ("'a' LIKE ('%' || hex(zeroblob(50)))", "pattern too complex", None),
            (" OR ".join(f"run_id = {number}" for number in range(600)), "tree is too large", None),
            (f"max(run_id, {', '.join(map(str, range(1, 17)))}) > 0", "too many arguments", None),
            ("run_id = 1\0", "null", None),
            ("ordinal = '\ud800'", "is rejected", None),
        ],
    )  # fmt: skip
    def test_refused(self, corpus: Corpus, condition: str, message: str, hint: str | None) -> None:
        with pytest.raises(errors.ConfigError, match=message) as caught:
            corpus.where(condition)
        assert hint is None or (caught.value.hint is not None and hint in caught.value.hint)

    def test_more_work_than_a_condition_needs(self, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tape2048.loader.filters.OPERATIONS_BASE", 1000)
        monkeypatch.setattr("tape2048.loader.filters.OPERATIONS_PER_RUN", 100)
        monkeypatch.setattr("tape2048.files.sqlite._OPERATIONS_PER_CALLBACK", 100)
        # A base for next to nothing, and enough for each run: more runs, more work that is let through.
        monkeypatch.setattr("tape2048.loader.filters.OPERATIONS_BASE", 1)
        assert len(corpus.where("run_id >= 0 AND steps > 0 AND score >= 0").runs) == len(corpus.runs)
        monkeypatch.setattr("tape2048.loader.filters.OPERATIONS_BASE", 1000)
        monkeypatch.setattr("tape2048.loader.filters.OPERATIONS_PER_RUN", 1)
        with pytest.raises(errors.ConfigError, match="too much work"):
            corpus.where("run_id = (SELECT count(*) FROM runs AS a, runs AS b WHERE a.run_id + b.run_id > 3)")

    def test_ctrl_c_is_no_refusal(self, corpus: Corpus, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("tape2048.loader.filters.OPERATIONS_BASE", 10**12)
        before = signal.signal(signal.SIGALRM, raising(KeyboardInterrupt()))
        try:
            with pytest.raises(KeyboardInterrupt):  # noqa: PT012 - nothing waits between the two
                signal.setitimer(signal.ITIMER_REAL, 0.05)
                corpus.where(
                    "(SELECT count(*) FROM runs a, runs b, runs c, runs d, runs e, runs f"
                    " WHERE a.run_id + b.run_id + c.run_id + d.run_id + e.run_id + f.run_id > 3) > 0"
                )
        finally:
            signal.setitimer(signal.ITIMER_REAL, 0)
            signal.signal(signal.SIGALRM, before)

    def test_nothing_is_written(self, built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.chdir(tmp_path)
        corpus = Corpus.open(built.root)
        for condition in ("ATTACH 'x' AS y", "1) ; ATTACH 'x' AS y; --", "VACUUM INTO 'x'"):
            with pytest.raises(errors.ConfigError):
                corpus.where(condition)
        assert not list(tmp_path.iterdir())

    def test_nothing_left(self, built: Built, corpus: Corpus) -> None:
        with pytest.raises(errors.EmptyCorpusError, match="leaves 0 of 43 runs and 0 of 1,293 rows"):
            corpus.where("score > 1000000")
        with pytest.raises(errors.EmptyCorpusError, match=r"leaves 0 of \d runs"):
            corpus.where("run_id < 3").where(np.zeros(len(corpus.where("run_id < 3").runs), np.bool_))
        with pytest.raises(errors.EmptyCorpusError, match="0 of 43 runs"):
            Corpus.open(built.root, "run_id > 500")


class TestNamed:
    @pytest.mark.parametrize(
        ("filters", "holds"),
        [
            ({"min_score": 5001}, lambda game: game.max_score >= 5001),
            ({"max_score": 5001}, lambda game: game.max_score <= 5001),
            ({"min_steps": 17, "max_steps": 40}, lambda game: 17 <= game.steps <= 40),
            ({"min_highest_tile": 8192}, lambda game: game.highest_tile >= 8192),
            (
                {"max_highest_tile": 2048, "min_steps": 2},
                lambda game: game.highest_tile <= 2048 and game.steps > 1,
            ),
            ({"min_steps": np.uint32(40)}, lambda game: game.steps >= 40),
            ({"min_score": None, "min_steps": 90}, lambda game: game.steps >= 90),
        ],
    )
    def test_bounds(
        self, built: Built, corpus: Corpus, filters: dict[str, Any], holds: Callable[[Game], bool]
    ) -> None:
        assert ids(corpus.where(**filters)) == expected(built, holds)

    @pytest.mark.parametrize(
        ("filters", "sessions"),
        [
            ({"model": "weak"}, {1}),
            ({"model": ["weak", "strong"]}, {0, 1}),
            ({"since": "2025-01-03"}, {1, 2}),
            ({"until": "2025-01-03T04:04:05"}, {0, 1}),
            ({"since": "2025-01-03T03:04:05Z", "until": "2025-01-03T03:04:06+00:00"}, {1}),
            ({"since": "2025-01-03T05:04:05+02:00"}, {1, 2}),
            ({"since": dt.datetime(2025, 1, 3, 4, tzinfo=dt.UTC)}, {2}),
            ({"until": dt.date(2025, 1, 3)}, {0}),
        ],
    )
    def test_sessions(self, corpus: Corpus, filters: dict[str, Any], sessions: set[int]) -> None:
        assert {owner for owner, _ in ids(corpus.where(**filters))} == sessions

    @pytest.mark.parametrize(
        ("started_at", "started"),
        [
            ("2024-05-06T07:08:09Z", "2024-05-06T07:08:09Z"),
            ("2024-05-06T01:08:09+02:00", "2024-05-05T23:08:09Z"),
            ("2024-05-06T07:08:09", "2024-05-06T07:08:09Z"),
            ("a Monday", "2025-01-02T03:04:05Z"),  # what its name says
        ],
    )
    def test_facts_count_before_the_name(self, tmp_path: Path, started_at: str, started: str) -> None:
        facts = {"sample_rate": 1, "model_tag": "x", "started_at": started_at}
        write_ours(tmp_path / f"{NAME}-2", Spec(facts=facts))
        corpus = Corpus.open(tmp_path)
        later = dt.datetime.fromisoformat(started) + dt.timedelta(seconds=1)
        assert len(corpus.where(model="x", since=started, until=later).runs) == 5
        assert len(corpus.where(f"started = '{started}'").runs) == 5

    @pytest.mark.parametrize(
        ("condition", "sessions"),
        [
            ("started < '2025-01-03 03:04:06'", {0, 1}),
            ("started <= '2025-01-03T04:04:05+01:00'", {0, 1}),
            ("'20250103T030405Z' < started", {2}),
            (f"started = {UNIX_S}", {1}),
            (f"started IN ({UNIX_S}, '2025-01-02T03:04:05.000Z')", {0, 1}),
            (f"started BETWEEN {UNIX_S - 0.5} AND {UNIX_S + 0.5}", {1}),
            ("started >= '2025-W01-5'", {1, 2}),
            ("started > 20250103 AND NOT started > '2025-02'", {1, 2}),
            ("started > '2025' AND started <> '2025-01-03 03:04:05Z'", {0, 2}),
        ],
    )
    def test_times_are_compared_as_instants(self, corpus: Corpus, condition: str, sessions: set[int]) -> None:
        assert {owner for owner, _ in ids(corpus.where(condition))} == sessions
        rows = corpus.rows_where(condition)
        assert {*rows.runs["session"][rows.row_counts > 0].tolist()} == sessions

    @pytest.mark.parametrize("condition", ["started > 'a Monday'", "started = '2025-13-01'"])
    def test_no_times(self, corpus: Corpus, condition: str) -> None:
        for select in (corpus.where, corpus.rows_where):
            with pytest.raises(
                errors.ConfigError, match=r"a time is compared with '.*'; expected 2026-11-21T"
            ):
                select(condition)

    @pytest.mark.parametrize(
        ("condition", "sessions"),
        [
            ("julianday(started) > julianday('2025-01-02 12:00')", {1, 2}),
            ("date(started) = '2025-01-03'", {1, 2}),
            ("strftime('%Y-%m-%d', runs.started) < '2025-01-03'", {0}),
            ("date(started, '+1 day') = '2025-01-03'", {0}),
            ("started < datetime('2025-01-03 00:00', '-1 hour')", {0}),
            ("(started) IS NOT NULL AND NOT (\"started\") > '2025-01-02'", set()),
            ("steps + 1 > 0 AND '2025-01-03' < started -- + 0", {1, 2}),
            ("CASE WHEN started > '2025-01-03' THEN 1 END", {1, 2}),
            ("model = 'started + 0' OR started BETWEEN '2025-01-01' AND '2025-01-03'", {0}),
        ],
    )
    def test_functions_of_times_read_times(self, corpus: Corpus, condition: str, sessions: set[int]) -> None:
        if not sessions:
            with pytest.raises(errors.EmptyCorpusError):
                corpus.where(condition)
            return
        assert {owner for owner, _ in ids(corpus.where(condition))} == sessions

    @pytest.mark.parametrize(
        "condition",
        [
            "started + 0 > 5", "5 < started - 1", "-started < 5", "'a' < started || 'b'", "(started) * 2 > 3",
            "abs(started) > 5", "max(seed, started) > 5", "julianday(started + 1) > 5",
            "length(`started`) > 3",
            "CAST(started AS INTEGER) > 3", "coalesce(started, 0) > 3", "(SELECT min(started) FROM runs) > 3",
            "CASE WHEN steps > 1 THEN started END > 3", "started LIKE '2025%'", "started NOT LIKE '2025%'",
            "5 < started COLLATE nocase", "started", "NOT started",
        ],
    )  # fmt: skip
    def test_a_time_is_no_number_and_no_text(self, corpus: Corpus, condition: str) -> None:
        with pytest.raises(errors.ConfigError, match=r"found .*, but started is a time, not") as caught:
            corpus.where(condition)
        assert "julianday" in (caught.value.hint or "")

    def test_conditions_on_rows_count_seconds(self, corpus: Corpus) -> None:
        for condition in (f"started - {UNIX_S} = 0", "started + 86400 = '2025-01-04T03:04:05Z'"):
            rows = corpus.rows_where(condition)
            assert {*rows.runs["session"][rows.row_counts > 0].tolist()} == {1}

    def test_condition_and_names_together(self, built: Built, corpus: Corpus) -> None:
        view = corpus.where("run_id > 3", min_steps=17)
        assert ids(view) == expected(built, lambda game: game.id > 3 and game.steps >= 17)

    def test_wrong(self, corpus: Corpus) -> None:
        wrong: Any
        for wrong in (
            {"since": "soon"},
            {"min_store": 3},
            {"min_steps": "3"},
            {"model": 3},
            {"min_steps": 3.5},
        ):
            with pytest.raises(ValueError, match=next(iter(wrong))):
                corpus.where(**wrong)
        for wrong in (np.ones(42, np.bool_), np.ones(43, np.int64), np.ones((43, 1), np.bool_)):
            with pytest.raises(ValueError, match="an entry for each run"):
                corpus.where(wrong)


#: Facts that name a player, and the column ``player``: a short name, and 12 digits of the SHA-256.
PLAYERS: list[tuple[dict[str, Any], str]] = [
    ({"player": "ntuple", "player_args": {"weights": "a"}, "player_sha256": "a" * 64}, "ntuple@aaaaaaaaaaaa"),
    ({"player": "ntuple", "player_args": {"weights": "b"}, "player_sha256": "b" * 64}, "ntuple@bbbbbbbbbbbb"),
    ({"player": "python:lib/my.py:make", "player_sha256": "c" * 64}, "my.py:make@cccccccccccc"),
    ({"player": "mine", "config": {"player_args": {"depth": 2}}}, "mine:depth=2"),
    ({"player": "it's\x1b[2J"}, "it's\x1b[2J"),
    ({"player": 3, "player_sha256": ["d"]}, ""),
]


@pytest.fixture(scope="module")
def mixed(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    root = tmp_path_factory.mktemp("players")
    for number, (facts, _) in enumerate(PLAYERS):
        spec = Spec(games=[Game(i, 3, seed=i) for i in range(number + 1)], facts={"sample_rate": 1, **facts})
        write_ours(root / f"2025010{number + 1}T030405Z_model=x", spec)
    return Corpus.open(root)


class TestPlayer:
    @pytest.mark.parametrize(
        ("wanted", "sessions"),
        [("ntuple", {0, 1}), ("ntuple@bbbbbbbbbbbb", {1}), ("my.py:make", {2}), ("mine", {3}), ("", {5}),
         (["mine", "ntuple@aaaaaaaaaaaa"], {0, 3})],
    )  # fmt: skip
    def test_filter(self, mixed: Corpus, wanted: str | list[str], sessions: set[int]) -> None:
        assert {owner for owner, _ in ids(mixed.where(player=wanted))} == sessions

    def test_condition(self, mixed: Corpus) -> None:
        for number, (_, label) in enumerate(PLAYERS):
            quoted = label.replace("'", "''")
            assert {owner for owner, _ in ids(mixed.where(f"player = '{quoted}'"))} == {number}
        assert {owner for owner, _ in ids(mixed.where("player LIKE 'ntuple@%'"))} == {0, 1}
        with pytest.raises(errors.EmptyCorpusError):
            mixed.where(player="ntupl")

    def test_tables(self, mixed: Corpus, tmp_path: Path) -> None:
        due = [PLAYERS[owner][1] for owner, _ in ids(mixed)]
        assert mixed.runs_frame()["player"].tolist() == due
        export(mixed, tmp_path / "runs.parquet", format="parquet", table="runs")
        assert pq.read_table(tmp_path / "runs.parquet")["player"].to_pylist() == due
        page = mixed._repr_html_()
        assert "ntuple b @bbbbbb (2 games)" in page
        assert "ntuple a @aaaaaa" in mixed.sessions[0]._repr_html_()

    def test_mixed_players_are_logged_once(self, mixed: Corpus, caplog: pytest.LogCaptureFixture) -> None:
        root = mixed.sessions[0].path.parent
        Corpus.open(root)
        (said,) = [record.getMessage() for record in caplog.records]
        assert "6 players" in said
        assert "ntuple b @bbbbbb (2 games)" in said
        assert said.isprintable()
        caplog.clear()
        Corpus.open(root, player="mine")
        assert not caplog.records


class TestSplit:
    def test_parts_make_the_whole(self, corpus: Corpus) -> None:
        parts = corpus.split(train=0.5, val=0.3, test=0.2)
        assert list(parts) == ["train", "val", "test"]
        assert sum(len(part) for part in parts.values()) == len(corpus)
        runs = [run for part in parts.values() for run in ids(part)]
        assert sorted(runs) == sorted(ids(corpus))

    def test_no_game_on_both_sides(self, tmp_path: Path) -> None:
        """The same games recorded twice, under other ids and in other company, stay on their sides."""
        games = [Game(i, 3, seed=i * 31) for i in range(1, 101)]
        again = [Game(1000 - i, 3, seed=i * 31) for i in range(50, 101)]
        facts = {"sample_rate": 1, "player_sha256": "c" * 64}
        write_ours(tmp_path / "a" / OURS[0], Spec(games=games, facts=facts))
        write_ours(tmp_path / "b" / OURS[1], Spec(games=again, facts=facts))
        before = Corpus.open(tmp_path / "a").split(train=0.6, val=0.4)
        after = Corpus.open([tmp_path / "a", tmp_path / "b"]).split(train=0.6, val=0.4)
        for name in before:
            assert set(before[name].runs["seed"].tolist()) <= set(after[name].runs["seed"].tolist())
        assert not set(after["train"].runs["seed"].tolist()) & set(after["val"].runs["seed"].tolist())

    def test_of_a_view_is_the_view_of_the_split(self, corpus: Corpus) -> None:
        one = corpus.where(min_steps=17).phase(steps=(1, 12)).split(train=0.5, val=0.5)["val"]
        other = corpus.split(train=0.5, val=0.5)["val"].where(min_steps=17).phase(steps=(1, 12))
        assert one.identity == other.identity

    def test_a_boundary_moves_games_one_way_only(self, corpus: Corpus) -> None:
        small = set(ids(corpus.split(train=0.3, val=0.7)["train"]))
        large = set(ids(corpus.split(train=0.6, val=0.4)["train"]))
        assert small < large

    def test_shares_and_salts(self) -> None:
        runs = np.zeros(20_000, [("session", "<u4"), ("seed", "<u8")])
        runs["seed"] = np.arange(20_000)  # the closest that seeds can be
        sessions: Any = [type("S", (), {"meta": {"player_sha256": "d" * 64}})]
        counts = [
            np.bincount(parts_of_hashes(run_hash(runs, sessions, salt), (0.7, 0.2, 0.1)))
            for salt in ("", "x")
        ]
        for found in counts:
            # 5 standard deviations of 0.9, 0.8 and 0.6 percent of the larger share.
            np.testing.assert_allclose(found / 20_000, (0.7, 0.2, 0.1), atol=0.02)
        # Shares that are a little less than 1 together: the last part takes the rest.
        assert parts_of_hashes(run_hash(runs, sessions), (0.5, 0.499)).max() == 1
        one, other = (parts_of_hashes(run_hash(runs, sessions, salt), (0.5, 0.5)) for salt in ("", "x"))
        assert abs((one == other).mean() - 0.5) < 0.02

    def test_the_hash_is_what_the_docs_say(self) -> None:
        """Worked out apart, with Python's integers: a split of today must be the same in years."""
        runs = np.zeros(2, [("session", "<u4"), ("seed", "<u8")])
        runs["seed"] = [5, 2**64 - 1]
        sessions: Any = [type("S", (), {"meta": {"player_sha256": "ab" * 32}})]
        assert run_hash(runs, sessions, "s").tolist() == [7636083798376214910, 18240852848132515359]

    def test_invalid_shares_and_salts(self, corpus: Corpus) -> None:
        wrong: Any
        for wrong in ({}, {"a": 0.5}, {"a": 0.5, "b": 0.6}, {"a": 1.5, "b": -0.5}, {"a": 1.0, "b": 0.0}):
            with pytest.raises(ValueError, match="with the sum 1"):
                corpus.split(**wrong)
        for wrong in ("0.9", None):
            with pytest.raises(TypeError, match="expected numbers"):
                corpus.split(train=wrong, val=0.1)
        for wrong in (5, None, b"x"):
            with pytest.raises(TypeError, match=f"salt={wrong!r}; expected text"):
                corpus.split(salt=wrong, train=0.9, val=0.1)
        assert corpus.split(train=np.float32(0.5), val=np.float64(0.5)).keys() == {"train", "val"}

    @pytest.mark.parametrize(
        ("seeds", "parts", "said", "advice"),
        [
            ([0], {"train": 0.5, "val": 0.5}, "=0.5 of the split", "Record at least 14 games."),
            ([0] * 10, {"a": 0.5, "b": 0.5}, "and only 1 of them", "Use other seeds and start boards."),
        ],
    )
    def test_a_part_without_games_says_why(
        self, tmp_path: Path, seeds: list[int], parts: dict[str, float], said: str, advice: str
    ) -> None:
        """The error has the number of games that such a split needs."""
        games = [Game(number, 3, seed=seed) for number, seed in enumerate(seeds, 1)]
        write_foreign(tmp_path / NAME, Spec(games=games))
        with pytest.raises(errors.EmptyCorpusError, match=f"none of {len(seeds)} game") as caught:
            Corpus.open(tmp_path).split(**parts)
        assert said in str(caught.value)
        assert advice in caught.value.advice

    @pytest.mark.parametrize("order", [("train", "val"), ("val", "train")])
    def test_it_says_which_share_is_possible(self, tmp_path: Path, order: tuple[str, str]) -> None:
        """The part has games with the share of the error, and none with a hundredth less."""
        write_ours(tmp_path / OURS[0], Spec(games=[Game(i, 4, seed=i) for i in range(1, 21)]))
        corpus = Corpus.open(tmp_path)

        def split(val: float) -> dict[str, Corpus]:
            shares = {"train": 1 - val, "val": val}
            return corpus.split(salt="69", **{name: shares[name] for name in order})

        with pytest.raises(errors.EmptyCorpusError, match=r"is in the part val=0\.1 of") as caught:
            split(0.1)
        least = float(re.findall(r"these games allow val >= (0.\d+)", str(caught.value))[0])
        assert [len(part.runs) > 0 for part in split(least).values()] == [True, True]
        with pytest.raises(errors.EmptyCorpusError):
            split(least - 0.01)

    def test_sessions_of_others_split_by_seed(self, tmp_path: Path) -> None:
        write_foreign(tmp_path / "theirs", Spec(games=[Game(i, 2, seed=i) for i in range(100)]))
        parts = Corpus.open(tmp_path).split(train=0.5, val=0.5)
        assert 20 < len(parts["train"].runs) < 80


@given(st.integers(0, 2**64 - 1))
def test_mixing_function(value: int) -> None:
    assert int(mix64(np.array([value], np.uint64))[0]) == reference.mix64(value)


class TestWeights:
    def test_from_the_rows(self, built: Built, corpus: Corpus) -> None:
        for view in (corpus, corpus.where(min_steps=4), corpus.phase(empties=(5, 12))):
            labels = view.fetch(slice(None), ("labels",), thresholds=(512, 4096, 32768))["labels"]
            np.testing.assert_allclose(view.prevalence((512, 4096, 32768)), labels.mean(axis=0))
            np.testing.assert_allclose(
                view.pos_weight((512, 4096, 32768)), (~labels).sum(axis=0) / labels.sum(axis=0)
            )

    def test_where_all_labels_are_the_same(self, corpus: Corpus) -> None:
        assert corpus.pos_weight((2, 65536)).tolist() == [1.0, 1.0]
        assert corpus.prevalence((2, 65536)).tolist() == [1.0, 0.0]

    def test_run_labels(self, built: Built, corpus: Corpus) -> None:
        np.testing.assert_array_equal(corpus.run_labels((4096,))[:, 0], built.highest >= 4096)

    def test_more_rows_than_32_bits_hold(self) -> None:
        labels = np.array([[True, False], [False, True], [True, True]])
        rows = np.array([2**40, 2**41, 2**40])
        np.testing.assert_array_equal(prevalence(labels, rows), [0.5, 0.75])
        np.testing.assert_array_equal(positive_weights(labels, rows), [1, 1 / 3])
