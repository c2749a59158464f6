"""What a corpus shows people: samples, frames, descriptions, and its games one by one."""

import inspect
from pathlib import Path

import numpy as np
import pytest

from tape2048 import DEFAULT_THRESHOLDS, Corpus, errors, sample, validate_session, write_column
from tape2048.loader import looking, run_columns
from tape2048.runs import DataPack
from tape2048.stores import remote as caches
from tape2048.stores.objects import open_store
from tape2048.stores.remote import put_session

from ..corpora import OURS, THEIRS, Built, build
from ..store_servers import size_of
from ..tapes import WON_SEED, games_on_tape, write_tape


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    return build(tmp_path_factory.mktemp("corpus"))


def test_a_path_opens(built: Built, tmp_path: Path) -> None:
    """With the arguments of `open`, which a notebook shows."""
    corpus = Corpus(built.root, "steps > 1", load="mmap", min_steps=2)
    assert corpus.identity == Corpus.open(built.root, min_steps=2).identity
    assert corpus.refresh() is corpus
    assert inspect.signature(Corpus) == inspect.signature(Corpus.open)
    DataPack.build([]).save(tmp_path / "rows.dat")
    assert len(DataPack(tmp_path / "rows.dat")) == 0


def test_samples(built: Built) -> None:
    view = Corpus(built.root).phase(rows_left=(0, 5))
    found = view.sample(40, seed=1, fields=("row", "steps_left", "tokens"))
    assert len(set(found.row.tolist())) == 40
    assert (found.tokens == view.tokens(found.row)).all()
    assert (found.steps_left < 5).all()
    again, other = (view.sample(40, seed=seed, fields=("row",)).row.tolist() for seed in (1, 2))
    assert again == found.row.tolist() != other
    every = view.sample(len(view), fields=("row",)).row
    assert sorted(every.tolist()) == [*range(len(view))]
    labels = view.sample(3, fields=("labels",), thresholds=(4096,), label_dtype="float32").labels
    assert labels.dtype == np.float32
    with pytest.raises(ValueError, match=f"n={len(view) + 1}; expected 0 to {len(view)}, the rows"):
        view.sample(len(view) + 1)
    assert view.head(3).step.tolist() == view.fetch([0, 1, 2], ("step",))["step"].tolist()


def test_frames(built: Built, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    corpus = Corpus(built.root, columns=tmp_path)
    for session in corpus.sessions:
        write_column(session, "half", np.arange(2 * len(session)).reshape(-1, 2), dtype="bf16")
    write_column(corpus.sessions[0], "loss", np.zeros(len(corpus.sessions[0])))
    assert list(corpus.columns) == ["half"]
    assert list(corpus.where(since="2025-01-02", until="2025-01-03").columns) == ["half", "loss"]
    frame = corpus.to_pandas(n=50)
    assert frame["tokens_7"].tolist() == built.rows["exps"][:50, 7].tolist()
    assert len(corpus.to_pandas(fields=("step",))) == len(corpus)
    assert corpus.head(3, ("half",)).to_pandas()["half_1"].tolist() == [1, 3, 5]
    monkeypatch.setattr(looking, "ram_available", lambda: 4096)
    with pytest.raises(errors.CorpusError, match=r"rows take 0\.0 GB as a frame") as caught:
        corpus.to_pandas()
    assert "n=1000" in (caught.value.hint or "")
    assert len(corpus.to_pandas(n=20)) == 20


def test_a_description_has_a_line_for_each_player(built: Built) -> None:
    corpus = Corpus(built.root)
    table = corpus.describe()
    shown = [int(heading[1:]) for heading in table.headings[6:-1]]
    assert shown == sorted(shown)
    assert 1 <= len(shown) <= 5
    names = [*(player.player for player in corpus.players), "all players"]
    for row, name, mine in zip(table.rows, names, ([1, 2], [0], [3], [0, 1, 2, 3]), strict=True):
        view = corpus.where(np.isin(corpus.runs["session"], mine))
        scores, tiles = view.runs["score"], view.runs["highest_tile"]
        facts = (
            len(scores),
            len(view),
            scores.mean(),
            np.median(scores),
            scores.max(),
            view.runs["steps"].mean(),
        )
        shares = [f"{(tiles >= tile).mean():.1%}" for tile in shown]
        assert row == (*(f"{fact:,.0f}" for fact in facts), *shares, name)
    lines = repr(table).splitlines()
    assert lines[0] == repr(corpus)[1:-1]
    assert len(lines) == 6
    assert table._repr_html_().count("<tr>") == 5
    assert len(Corpus(built.root / OURS[0]).describe().rows) == 1


class TestSums:
    def test_of_views(self, built: Built) -> None:
        """The parts of a split are the corpus again, also of a phase; equal games come once."""
        corpus = Corpus(built.root)
        for view in (corpus, corpus.phase(steps=(1, 9))):
            parts = [*view.split(a=0.5, b=0.3, c=0.2).values()]
            assert (parts[2] + parts[0] + parts[1]).identity == view.identity
        low, high = corpus.where("run_id < 9"), corpus.where("run_id > 5")
        assert (low + high).identity == corpus.identity

    @pytest.mark.parametrize("load", ["mmap", "ram"])
    def test_of_directories(self, built: Built, load: str) -> None:
        one, two = (Corpus(built.root / name, load=load) for name in (OURS[1], THEIRS))
        both = two + one.where("run_id > 3")
        assert both.load == load
        rows = np.concatenate([two[:], one.where("run_id > 3")[:]])
        assert (both[:] == rows).all()

    def test_copies_of_games_come_once(self, tmp_path: Path) -> None:
        facts = {"player_sha256": "a" * 64, "player": "toy"}
        paths = [
            write_tape(tmp_path / f"s{seeds}", games_on_tape(*seeds), **facts) for seeds in ((1, 2), (2, 3))
        ]
        both = Corpus(paths[0]) + Corpus(paths[1])
        assert both.runs["seed"].tolist() == Corpus(paths).runs["seed"].tolist()
        assert len(both.runs) == 3

    def test_of_parts_of_games(self, built: Built) -> None:
        corpus = Corpus(built.root)
        for other in (corpus.select([1, 2]), corpus.phase(steps=(0, 3))):
            with pytest.raises(errors.CorpusError, match="parts of games"):
                corpus + other


def test_games_of_many_sessions_keep_no_run_tables(built: Built, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(run_columns, "KEPT_RUNS", 2)
    corpus = Corpus(built.root, load="mmap")
    assert [game.run_id for game in corpus.games()] == [game.id for game in built.games]
    assert corpus.game(40).run_id == built.games[40].id
    assert [session._games is None for session in corpus.sessions[:2]] == [True, True]


def test_games_of_a_store_pass_through_a_small_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A session is held in the cache only while a game is read."""
    monkeypatch.setattr(caches, "MEGABYTE", 1)
    (tmp_path / "store").mkdir()
    sessions = []
    for day in (1, 2, 3):
        path = tmp_path / f"2025010{day}T030405Z_model=toy"
        sessions.append(write_tape(path, games_on_tape(*[WON_SEED] * 6), anchor_rows=64))
        put_session(open_store(str(tmp_path / "store")), path, "00000a")
    tables = sum((path / "metadata.db").stat().st_size for path in sessions)
    room = int(tables + 1.5 * max(map(size_of, sessions)))
    options = {"cache": tmp_path / "cache", "cache_max_mb": room, "duplicates": "keep"}
    corpus = Corpus(str(tmp_path / "store"), **options)
    assert {len(game.boards) for game in [*corpus.games()]} == {16396}
    assert [len(corpus.game(run).boards) for run in (17, 0, 8)] == [16396] * 3


def test_the_installed_sample_is_small_and_sound() -> None:
    """Its games are of two players, and some but not all reach each of the usual thresholds."""
    corpus = sample()
    assert sum(size_of(session.path) for session in corpus.sessions) <= 1_000_000
    assert len(corpus.players) == 2
    shares = corpus.run_labels(DEFAULT_THRESHOLDS).mean(axis=0)
    assert ((shares > 0) & (shares < 1)).all()
    assert all(validate_session(session.path).ok for session in corpus.sessions)
    assert not any("host" in session.meta for session in corpus.sessions)
