"""Corpora against the plain definition: sessions by name, runs in the table's order, rows in step order."""

import copy
import gc
import pickle
import shutil
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus, Session, errors
from tape2048.loader.row_view import tables_of
from tape2048.runs.exports import export
from tape2048.session.layout import STEP_DTYPE

from .builders import Game, Spec, change_database, open_files, write_foreign, write_ours
from .corpora import OURS, THEIRS, Built, build
from .row_source_contract import Sample, boards_of, check_contract

LOADS = ("mmap", "packed", "ram")


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("corpus"))


@pytest.fixture(params=LOADS)
def load(request: pytest.FixtureRequest) -> Any:
    return request.param


@pytest.fixture
def corpus(built: Built, load: Any) -> Corpus:
    return Corpus.open(built.root, load=load)


def _sample(corpus: Corpus, rows: NDArray[np.void]) -> Sample:
    return Sample(corpus, boards_of(rows), rows)


def test_contract(built: Built, load: Any) -> None:
    """Of all sessions, of some runs, and of a session of others, whose runs take turns."""
    corpus = Corpus.open(built.root, load=load)
    check_contract(_sample(corpus, built.rows))
    rows = built.of_runs(np.array([game.id % 3 != 0 and game.steps > 1 for game in built.games]))
    check_contract(_sample(corpus.where("run_id % 3 <> 0 AND steps > 1"), rows))
    # In memory, only the rows of these runs were read.
    check_contract(_sample(Corpus.open(built.root, "run_id % 3 <> 0", load=load, min_steps=2), rows))
    theirs = built.of_runs(np.array(built.session) == 3)
    check_contract(_sample(Corpus.open(built.root / THEIRS, load=load), theirs))


class TestOpen:
    def test_runs(self, built: Built, corpus: Corpus, load: Any) -> None:
        assert [session.name for session in corpus.sessions] == [*OURS, THEIRS]
        assert corpus.runs["run_id"].tolist() == [game.id for game in built.games]
        assert corpus.runs["seed"].tolist() == [game.seed for game in built.games]
        assert corpus.runs["session"].tolist() == built.session
        np.testing.assert_array_equal(corpus.row_counts, np.bincount(built.run))
        assert corpus.load == load
        assert corpus.dtype == STEP_DTYPE
        assert not corpus.runs.flags.writeable
        named = f"{len(built.rows):,} rows of 43 games in 4 sessions, by 3 players, {load}"
        assert repr(corpus) == f"<Corpus: {named}>"
        assert repr(corpus.phase(steps=(1, 9))).endswith(f"players, {load}; 1 <= steps < 9>")

    def test_paths(self, built: Built) -> None:
        one = built.root / OURS[1]
        assert len(Corpus.open(one).sessions) == 1
        assert [s.name for s in Corpus.open([one, str(built.root / OURS[0])]).sessions] == [OURS[1], OURS[0]]

    def test_auto_takes_memory_where_the_rows_fit(self, built: Built) -> None:
        ours = [built.root / name for name in OURS]
        rows = sum(len(Session.open(path)) for path in ours)
        assert Corpus.open(ours, ram_budget=28 * rows).load == "ram"
        assert Corpus.open(ours, ram_budget=28 * rows - 1).load == "packed"
        assert Corpus.open(ours, ram_budget=8 * rows).load == "packed"
        assert Corpus.open(ours, ram_budget=8 * rows - 1).load == "mmap"
        assert Corpus.open(ours, ram_budget=28 * rows - 28, max_steps=80).load == "ram"

    @pytest.mark.parametrize(
        ("ranks", "load"),
        [("1", "ram"), ("2", "packed"), ("8", "mmap"), (None, "ram"), ("", "ram"), ("0", "ram"),
         ("-8", "ram"), ("two", "ram"), ("2.5", "ram")],
    )  # fmt: skip
    def test_ranks_of_one_machine_share_its_memory(
        self, built: Built, monkeypatch: pytest.MonkeyPatch, ranks: str | None, load: str
    ) -> None:
        ours = [built.root / name for name in OURS]
        rows = sum(len(Session.open(path)) for path in ours)
        monkeypatch.delenv("LOCAL_WORLD_SIZE", raising=False)
        if ranks is not None:
            monkeypatch.setenv("LOCAL_WORLD_SIZE", ranks)
        monkeypatch.setattr("tape2048.loader.buffers.ram_available", lambda: 2 * 28 * rows)
        assert Corpus.open(ours).load == load
        assert Corpus.open(ours, ram_budget=28 * rows).load == "ram"  # it is each one's own

    def test_progress_bar(self, built: Built, capsys: pytest.CaptureFixture[str]) -> None:
        Corpus.open(built.root, load="ram", progress=True)
        Corpus.open(built.root, load="ram")
        assert capsys.readouterr().out == ""

    def test_holds_one_descriptor_for_all_locks(self, built: Built, load: Any) -> None:
        before = open_files()
        corpus = Corpus.open(built.root, load=load)
        assert len(open_files()) <= len(before) + 1
        assert len(corpus)

    def test_pickled_by_path(self, corpus: Corpus) -> None:
        view = corpus.where(min_steps=10).phase(fraction=(0.25, None))
        again = pickle.loads(pickle.dumps(view))  # noqa: S301  (our own bytes)
        np.testing.assert_array_equal(again[:], view[:])
        assert (again.load, again.identity) == (view.load, view.identity)
        assert len(pickle.dumps(corpus)) < 5000

    @pytest.mark.parametrize("make", [copy.copy, copy.deepcopy])
    def test_copies_share_the_rows(self, corpus: Corpus, make: Any) -> None:
        view = corpus.where(min_steps=2).phase(steps=(1, None))
        assert tables_of(make(view)).store is tables_of(corpus).store
        np.testing.assert_array_equal(make(view)[:], view[:])
        batches = view.batches(10, seed=3)
        next(iter(batches))
        again = make(batches)
        assert tables_of(again.corpus).store is tables_of(corpus).store
        assert again.state_dict() == batches.state_dict()
        again.next_epoch()
        assert batches.epoch == 0
        assert tables_of(make(view.capped(2)).corpus).store is tables_of(corpus).store

    def test_pickled_and_then_changed(self, tmp_path: Path) -> None:
        build(tmp_path, theirs=False)
        sent = pickle.dumps(Corpus.open(tmp_path))
        change_database(tmp_path / OURS[0] / "metadata.db", "UPDATE runs SET highest_tile = 4")
        (tmp_path / OURS[0] / "manifest.json").unlink()
        with pytest.raises(errors.CorpusError, match="have changed since the corpus was pickled"):
            pickle.loads(sent)  # noqa: S301


class TestRolling:
    def test_the_newest_sessions(self, built: Built) -> None:
        every = Corpus.open(built.root)
        rows = {session.name: len(session) for session in every.sessions}
        names = [*OURS][::-1]  # the newest first; a session without a start comes last
        for count in (1, 2, 3):
            enough = sum(rows[name] for name in names[:count])
            for newest, kept in ((enough, names[:count]), (enough + 1, [*names, THEIRS][: count + 1])):
                corpus = Corpus.open(built.root, newest_rows=float(newest))
                assert {session.name for session in corpus.sessions} == set(kept)
        chosen = every.runs["run_id"] % 2 == 0
        for where in ("run_id % 2 = 0", chosen):
            corpus = Corpus.open(built.root, where, newest_rows=1)
            assert [session.name for session in corpus.sessions] == [OURS[2]]
            assert (corpus.runs["run_id"] % 2 == 0).all()
        assert len(Corpus.open(built.root, newest_rows=1e12)) == len(every)
        with pytest.raises(ValueError, match="newest_rows=0; expected at least 1"):
            Corpus.open(built.root, newest_rows=0)

    def test_refreshed_while_sessions_come_and_go(self, tmp_path: Path) -> None:
        build(tmp_path / "all")
        root = tmp_path / "root"
        shutil.copytree(tmp_path / "all" / OURS[0], root / OURS[0])
        newest_rows = len(Corpus.open(tmp_path / "all" / OURS[1])) + 1
        first = Corpus.open(root, "run_id < 1000", newest_rows=newest_rows, damaged="skip")
        assert first.refresh() is first
        batches = iter(first.batches(50))
        next(batches)
        for name in OURS[1:]:  # what a recorder publishes meanwhile
            shutil.copytree(tmp_path / "all" / name, root / name)
        (root / OURS[2] / "metadata.db").write_bytes(b"nothing")
        second = first.refresh()
        assert {session.name for session in second.sessions} == {OURS[0], OURS[1]}
        assert [skipped.path.name for skipped in second.skipped] == [OURS[2]]
        assert second.refresh() is second
        assert sum(batch.rows for batch in batches) == len(first) - 50
        shutil.rmtree(root / OURS[0])
        third = second.refresh()
        assert [session.name for session in third.sessions] == [OURS[1]]
        assert third.identity == Corpus.open(root / OURS[1]).identity

    def test_only_what_was_opened(self, built: Built) -> None:
        corpus = Corpus.open(built.root)
        mask = np.ones(len(corpus.runs), np.bool_)
        for other in (
            corpus.where("run_id = 1"),
            pickle.loads(pickle.dumps(corpus)),  # noqa: S301 - our own
            Corpus.open(built.root, mask),
        ):
            with pytest.raises(errors.CorpusError, match=r"only a corpus that Corpus\.open returned"):
                other.refresh()


class TestBadInput:
    def test_empty_root(self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        with pytest.raises(errors.EmptyCorpusError, match="no rows here: found an empty directory") as caught:
            Corpus.open(tmp_path)
        assert caught.value.path == str(tmp_path)
        with pytest.raises(errors.EmptyCorpusError, match="empty list"):
            Corpus.open([])
        monkeypatch.chdir(tmp_path)
        with pytest.raises(errors.EmptyCorpusError) as caught:
            Corpus.open("")
        assert caught.value.path == "."

    def test_roots_without_sessions(self, tmp_path: Path) -> None:
        write_ours(tmp_path / "none" / OURS[0], Spec(games=[]))
        roots: list[tuple[Any, type[errors.TapeError], str]] = [
            (tmp_path / "no", errors.MissingPathError, "no such file"),
            (tmp_path / ("x" * 300), errors.StorageError, "cannot be read: File name too long"),
            (tmp_path / "none", errors.EmptyCorpusError, "0 rows in 1 session with 0 runs"),
        ]
        for root, kind, message in roots:
            with pytest.raises(kind, match=message):
                Corpus.open(root)

    def test_damaged_session(self, tmp_path: Path) -> None:
        built = build(tmp_path)
        (tmp_path / OURS[1] / "metadata.db").write_bytes(b"nothing")
        with pytest.raises(errors.FormatError):
            Corpus.open(tmp_path)
        corpus = Corpus.open(tmp_path, damaged="skip")
        assert [skipped.path.name for skipped in corpus.skipped] == [OURS[1]]
        error = corpus.skipped[0].error
        # Text alone: frames would hold what was opened.
        assert (error.__traceback__, error.__cause__, error.__context__) == (None, None, None)
        assert corpus.where(min_steps=2).skipped == corpus.skipped
        np.testing.assert_array_equal(corpus[:], built.of_runs(np.array(built.session) != 1))
        for name in (OURS[0], OURS[2], THEIRS):
            shutil.rmtree(tmp_path / name)
        with pytest.raises(errors.EmptyCorpusError, match="found 1 session, none of which can be opened"):
            Corpus.open(tmp_path, damaged="skip")

    def test_session_removed_after_the_listing(
        self, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
    ) -> None:
        built = build(tmp_path)
        original = Session.open

        def remove_and_open(*args: Any) -> Session:
            shutil.rmtree(tmp_path / OURS[1], ignore_errors=True)
            return original(*args)

        monkeypatch.setattr(Session, "open", remove_and_open)
        corpus = Corpus.open(tmp_path)
        assert [skipped.path.name for skipped in corpus.skipped] == [OURS[1]]
        np.testing.assert_array_equal(corpus[:], built.of_runs(np.array(built.session) != 1))
        assert f"skipped {tmp_path / OURS[1]}, which was removed just now" in caplog.text

    @pytest.mark.parametrize(
        "arguments", [{"load": "disk"}, {"damaged": "mend"}, {"min_sore": 3}, {"min_score": "many"}]
    )
    def test_wrong_argument(self, built: Built, arguments: dict[str, Any]) -> None:
        with pytest.raises(ValueError, match=str(next(iter(arguments.values())))):
            Corpus.open(built.root, **arguments)

    def test_a_budget_that_is_none(self, built: Built) -> None:
        budget: Any
        for budget in (-1, 1.5, float("nan"), "8GB"):
            with pytest.raises(ValueError, match=f"ram_budget={budget!r}; expected"):
                Corpus.open(built.root, ram_budget=budget)
        assert Corpus.open(built.root, ram_budget=0).load == "mmap"

    @pytest.mark.parametrize("change", ["truncate", "delete", "replace"])
    def test_a_session_removed_while_in_memory(self, tmp_path: Path, change: str) -> None:
        built = build(tmp_path)
        corpus = Corpus.open(tmp_path, load="ram")
        damage(tmp_path / OURS[0], change)
        np.testing.assert_array_equal(corpus[:], built.rows)
        assert sum(len(rows) for rows in ([*corpus.batches(100)][:1], [0])) == 2

    @pytest.mark.parametrize("interleaved", [False, True])
    def test_parts_of_games_of_a_changed_file(self, tmp_path: Path, *, interleaved: bool) -> None:
        """Of others, whose rows alone say their steps."""
        spec = Spec(games=[Game(i, 9 * i) for i in range(1, 6)], interleaved=interleaved)
        path = write_foreign(tmp_path / THEIRS, spec) / "steps.npy"
        corpus = Corpus.open(tmp_path, "run_id > 2", load="ram")
        data = bytearray(path.read_bytes())
        data[-135 * 28 :] = bytes(135 * 28)
        path.write_bytes(data)
        view = corpus.phase(steps=(2, 20), fraction=(0.25, None))
        ranges = [(game.id, step) for game in spec.games[2:] for step in range(2, min(20, game.steps))]
        expected = [(run, step) for run, step in ranges if step >= 0.25 * 9 * run]
        assert view[:][["run_id", "step_idx"]].tolist() == expected

    def test_packed_boards_of_a_session_that_is_truncated(self, tmp_path: Path) -> None:
        """They are in memory; what is read from the rows, and pools of them, end with an error."""
        built = build(tmp_path)
        corpus = Corpus.open(tmp_path, load="packed")
        damage(tmp_path / OURS[0], "truncate")
        for batch in corpus.batches(1000, fields=("tokens", "row", "run", "legal", "labels")):
            np.testing.assert_array_equal(batch.tokens, built.rows["exps"][batch.row])
        for options in ({"fields": ("tokens", "step")}, {"fields": ("move",)}, {"pool_rows": 256}):
            with pytest.raises(errors.CorpusError):
                next(iter(corpus.batches(100, **options)))

    @pytest.mark.parametrize("load", ["mmap", "packed", "ram"])
    @pytest.mark.parametrize("theirs", [False, True])
    @pytest.mark.parametrize("board", [[0] * 15 + [16], [0] * 16])
    def test_board_that_no_game_has(
        self, tmp_path: Path, board: list[int], load: Any, *, theirs: bool
    ) -> None:
        """No way to read a row serves it, even where the checksums are right."""

        def spoil(rows: NDArray[np.void]) -> None:
            rows["exps"][-1] = board

        spec = Spec(games=[Game(1, 30)], change_rows=spoil)
        if theirs:  # in shards, which their session reads at once
            write_foreign(tmp_path / OURS[0], spec, shard_rows=20)
        else:
            write_ours(tmp_path / OURS[0], spec)

        def opened() -> Corpus:
            return Corpus.open(tmp_path, load=load)

        ways: list[Callable[[], object]] = [
            *(
                lambda fields=fields: opened().fetch([3, 29], fields)
                for fields in ("tokens", "legal", "step", "move")
            ),
            lambda: list(opened().batches(8, augment="d4")),
            lambda: list(opened().batches(8, shuffle=False)),
            lambda: list(opened().batches(8, pool_rows=16)),
            lambda: list(opened().batches(8, extra={"x": np.arange(30)})),
            lambda: opened().get_batch([3, 29]),
            lambda: opened()[20:],
            lambda: opened().unique(),
            lambda: Session.open(tmp_path / OURS[0]).tokens([3, 29]),
            lambda: Session.open(tmp_path / OURS[0]).tokens(slice(None)),
            lambda: Session.open(tmp_path / OURS[0])[3:],
            lambda: Session.open(tmp_path / OURS[0]).get_batch([29]),
        ]
        for way in ways:
            with pytest.raises(errors.FieldError, match="expected at least one tile, and none") as caught:
                way()
            assert caught.value.path.startswith(str(tmp_path / OURS[0]))
            if not theirs:
                assert caught.value.offset == (tmp_path / OURS[0] / "steps.npy").stat().st_size - 28

    @pytest.mark.parametrize("load", ["packed", "ram"])
    def test_file_that_is_cut_after_it_was_opened(
        self, tmp_path: Path, load: Any, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        build(tmp_path)
        from tape2048 import corpus as module

        def cut_first(*args: Any, **kwargs: Any) -> Any:
            damage(tmp_path / OURS[0], "truncate")
            return original(*args, **kwargs)

        original = module.load_rows
        monkeypatch.setattr(module, "load_rows", cut_first)
        with pytest.raises(errors.TruncatedError):
            Corpus.open(tmp_path, load=load)

    def test_mapped_session_that_is_truncated(self, tmp_path: Path) -> None:
        build(tmp_path)
        corpus = Corpus.open(tmp_path, load="mmap")
        batches = corpus.batches(100)
        size = (tmp_path / OURS[0] / "steps.npy").stat().st_size
        damage(tmp_path / OURS[0], "truncate")
        with pytest.raises(errors.CorpusError, match=f"expected {size}, as when") as caught:
            next(iter(batches))
        assert caught.value.path == str(tmp_path / OURS[0] / "steps.npy")

    @pytest.mark.parametrize("load", ["mmap", "packed"])
    def test_truncated_rows(self, tmp_path: Path, load: Any) -> None:
        build(tmp_path)
        corpus = Corpus.open(tmp_path, load=load)
        damage(tmp_path / OURS[0], "truncate")
        if load == "mmap":
            with pytest.raises(errors.CorpusError):
                corpus.phase(empties=(0, 8))
        else:
            assert len(corpus.phase(empties=(0, 8))) > 0  # of boards in memory
        with pytest.raises(errors.CorpusError):
            export(corpus, tmp_path / "rows.jsonl", format="jsonl")
        assert not (tmp_path / "rows.jsonl").exists()
        assert export(corpus, tmp_path / "runs.jsonl", format="jsonl", table="runs") == len(corpus.runs)

    @pytest.mark.parametrize("change", ["delete", "replace"])
    def test_mapped_session_whose_name_goes_is_still_whole(self, tmp_path: Path, change: str) -> None:
        built = build(tmp_path)
        corpus = Corpus.open(tmp_path, load="mmap")
        damage(tmp_path / OURS[0], change)
        for batch in corpus.batches(1000, fields=("row", "tokens")):
            np.testing.assert_array_equal(batch.tokens, built.rows["exps"][batch.row])


def damage(session: Path, change: str) -> None:
    rows = session / "steps.npy"
    if change == "truncate":
        with rows.open("r+b") as file:
            file.truncate(rows.stat().st_size // 2)
    else:
        shutil.rmtree(session)
    if change == "replace":
        write_ours(session, Spec(games=[Game(1, 1)]))


class TestPhase:
    def test_steps_of_sampled_games(self, tmp_path: Path, load: Any) -> None:
        built = build(tmp_path, sample_rate=3)
        step = built.rows["step_idx"]
        for steps in ((0, 1), (2, 9), (10, None), (None, 17), (39, 41)):
            view = Corpus.open(tmp_path, load=load).phase(steps=steps)
            chosen = (step >= (steps[0] or 0)) & (step < (steps[1] or 2**31))
            np.testing.assert_array_equal(view[:], built.rows[chosen])
            np.testing.assert_array_equal(view.row_counts, np.bincount(built.run[chosen], minlength=43))

    @pytest.mark.parametrize("rate", [0, 2**32, 2**64])
    def test_a_sample_rate_that_cannot_be_is_not_believed(self, tmp_path: Path, rate: int) -> None:
        write_ours(tmp_path / OURS[0], Spec(facts={"sample_rate": rate}))
        view = Corpus.open(tmp_path, load="mmap").phase(steps=(0, 3))
        assert view[:]["step_idx"].max() == 2

    def test_any_order_of_filters(self, corpus: Corpus) -> None:
        one = corpus.where(min_steps=17).phase(steps=(3, None)).phase(empties=(3, 9))
        other = corpus.phase(empties=(3, 9)).where("steps >= 17").phase(steps=(3, None))
        np.testing.assert_array_equal(one[:], other[:])
        assert one.identity == other.identity

    def test_nothing_left(self, corpus: Corpus) -> None:
        with pytest.raises(
            errors.EmptyCorpusError, match=r"phase 500 <= steps < .* of 1,\d{3} rows in 43 runs"
        ):
            corpus.phase(steps=(500, None))

    def test_no_range(self, corpus: Corpus) -> None:
        wrong: list[dict[str, Any]] = [
            {"steps": (3, 3)}, {"steps": (-1, 4)}, {"fraction": (0, 1.5)}, {"empties": (0, 18)}, {"steps": 4},
            {"steps": (0.5, None)}, {"steps": ("1", None)}, {"empties": (2.5, 4)},
            {"fraction": (float("nan"), 1)},
        ]  # fmt: skip
        for ranges in wrong:
            with pytest.raises(ValueError, match=next(iter(ranges))):
                corpus.phase(**ranges)

    def test_many_rows_of_few(self, tmp_path: Path) -> None:
        """Masks beyond one block of 512 rows and one sample, dense and sparse."""
        rng = np.random.default_rng(1)

        def boards(rows: NDArray[np.void]) -> None:
            rows["exps"] = 1
            rows["exps"][rng.random(len(rows)) < 0.002, 1:] = 0

        write_ours(
            tmp_path / OURS[0], Spec(games=[Game(1, 20_000), Game(2, 7), Game(3, 9_000)], change_rows=boards)
        )
        corpus = Corpus.open(tmp_path)
        full = (corpus[:]["exps"] != 0).all(axis=1)
        for view, chosen in ((corpus.phase(empties=(0, 1)), full), (corpus.phase(empties=(15, 16)), ~full)):
            np.testing.assert_array_equal(
                view.fetch(slice(None), ("step",))["step"], corpus[:]["step_idx"][chosen]
            )
            np.testing.assert_array_equal(view[:], corpus[:][chosen])


class TestFields:
    def test_labels_as_numbers(self, corpus: Corpus) -> None:
        as_bool = corpus.fetch(slice(None))["labels"]
        as_float = corpus.fetch(slice(None), label_dtype="float32")["labels"]
        assert as_float.dtype == np.float32
        np.testing.assert_array_equal(as_bool.astype(float), as_float)

    def test_moves_at_the_edge_of_a_phase(self, built: Built, corpus: Corpus) -> None:
        """The row after the phase's last one is recorded, and says what the move was."""
        ours = Corpus.open([built.root / name for name in OURS])
        view = ours.phase(steps=(2, 12))
        step = built.rows["step_idx"]
        expected = built.moves[(step >= 2) & (step < 12) & (np.array(built.session)[built.run] < 3)]
        np.testing.assert_array_equal(view.fetch(slice(None), ("move",))["move"], expected)

    def test_mask_and_slice(self, built: Built, corpus: Corpus) -> None:
        mask = built.rows["step_idx"] == 2
        np.testing.assert_array_equal(corpus.tokens(mask), built.rows["exps"][mask])
        np.testing.assert_array_equal(corpus.tokens(slice(5, 50, 7)), built.rows["exps"][5:50:7])
        with pytest.raises(IndexError, match="a mask of 3"):
            corpus.tokens(np.ones(3, np.bool_))

    def test_wrong_arguments(self, corpus: Corpus) -> None:
        wrong: Any
        for wrong in ((), ("tokens", "tokens"), (3,), "lables"):
            with pytest.raises(ValueError, match=r"fields[=:]"):
                corpus.fetch([0], wrong)
        for wrong in ((), (3,), (8, 8), (1,), (2.0,)):
            with pytest.raises(ValueError, match="thresholds"):
                corpus.fetch([0], thresholds=wrong)
        with pytest.raises(errors.CorpusError, match="no action"):
            corpus.fetch([0], ("action",))


class TestPieces:
    def test_rows_are_not_copied(self, built: Built, load: Any) -> None:
        corpus = Corpus.open([built.root / name for name in OURS], load=load)
        piece = next(corpus.pieces())
        assert piece.base is not None
        assert not piece.flags.writeable
        assert len(piece) == (len(corpus) if load == "ram" else len(corpus.sessions[0]))
        assert any(np.shares_memory(piece, held) for held in tables_of(corpus).store.memory)
        run = corpus.rows_of(3)
        assert any(np.shares_memory(run, held) for held in tables_of(corpus).store.memory)
        assert any(
            np.shares_memory(corpus.where("run_id <> 1")[3:9], held)
            for held in tables_of(corpus).store.memory
        )

    def test_what_is_kept_cannot_be_written(self, corpus: Corpus) -> None:
        for session in corpus.sessions:
            for column in (session.steps, session.runs, *session.segments()):
                assert not column.flags.writeable
        for array in (corpus.runs, corpus.row_starts, corpus[2:5], *corpus.pieces()):
            assert not array.flags.writeable

    def test_memory_goes_with_the_last_reference(self, built: Built, load: Any) -> None:
        Corpus.open(built.root, load=load)[0]  # what is compiled leaves cycles
        gc.collect()
        gc.disable()
        try:
            corpus = Corpus.open(built.root, load=load)
            assert corpus[0] == corpus.get_batch([0])[0]
            store = weakref.ref(tables_of(corpus).store)
            del corpus
            assert store() is None
        finally:
            gc.enable()

    def test_row_by_any_integer(self, corpus: Corpus) -> None:
        for number in (np.int8(-1), np.uint64(len(corpus) - 1), np.array(len(corpus) - 1)):
            assert corpus[number] == corpus[-1]
        assert len(corpus[[1, 2]]) == len(corpus[np.arange(2)]) == 2
        for number in (1.0, "steps", None):
            with pytest.raises(TypeError, match="expected row numbers or a mask"):
                corpus[number]

    def test_no_such_run(self, corpus: Corpus) -> None:
        for run in (-1, 43):
            with pytest.raises(IndexError, match=f"run ordinal {run}"):
                corpus.rows_of(run)


class TestIdentity:
    def test_of_the_same_rows(self, built: Built, tmp_path: Path) -> None:
        """Wherever they lie, however they are held, and whatever else was opened with them."""
        corpus = Corpus.open(built.root, load="mmap")
        assert corpus.identity == Corpus.open(built.root, load="ram").identity
        shutil.copytree(built.root, tmp_path / "copy")
        assert corpus.identity == Corpus.open(tmp_path / "copy").identity
        alone = Corpus.open(built.root / OURS[1])
        assert alone.identity == corpus.where(f"session = '{OURS[1]}'").identity
        assert corpus.where("run_id > 0").identity == corpus.identity

    def test_of_others(self, built: Built, tmp_path: Path) -> None:
        corpus = Corpus.open(built.root)
        views = [
            corpus, corpus.where("run_id <> 4"), corpus.where("run_id <> 5"), corpus.phase(steps=(1, None)),
            corpus.phase(steps=(2, None)), corpus.phase(empties=(0, 17)),
            Corpus.open([built.root / name for name in (OURS[1], OURS[0])]),
            Corpus.open([built.root / name for name in (OURS[0], OURS[1])]),
        ]  # fmt: skip
        found = [view.identity for view in views]
        found += [corpus.capped(3).identity, corpus.capped(4).identity, corpus.capped(3, "even").identity]
        assert len(set(found)) == len(found)
        assert all(len(identity) == 64 for identity in found)

    def test_other_bytes_under_the_same_run_table(self, tmp_path: Path) -> None:
        for name, tile in (("a", 1), ("b", 2)):

            def boards(rows: NDArray[np.void], tile: int = tile) -> None:
                rows["exps"] = tile

            write_ours(tmp_path / name / OURS[0], Spec(change_rows=boards))
        assert Corpus.open(tmp_path / "a").identity != Corpus.open(tmp_path / "b").identity


def test_sessions_of_many_shapes_in_one_corpus(tmp_path: Path, load: Any) -> None:
    """Without a manifest, without rows, with runs without rows, with signed ids."""
    write_ours(tmp_path / "20250101T000000Z_model=x", Spec(games=[]))
    write_ours(
        tmp_path / "20250102T000000Z_model=x",
        Spec(games=[Game(3, 0), Game(4, 2), Game(5, 0)], manifest=False),
    )
    write_foreign(tmp_path / "a", Spec(games=[Game(2**63 - 1, 3), Game(7, 0)], signed_ids=True))
    corpus = Corpus.open(tmp_path, load=load)
    assert corpus.row_counts.tolist() == [0, 2, 0, 3, 0]
    assert corpus[:]["run_id"].tolist() == [4, 4] + [2**63 - 1] * 3
    assert corpus.fetch(slice(None), ("run",))["run"].tolist() == [1, 1, 3, 3, 3]
    assert len(corpus.rows_of(0)) == 0
