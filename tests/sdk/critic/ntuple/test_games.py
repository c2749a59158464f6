"""The games of a training beside the rows of their sessions, and whose games they are."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from tape2048 import Corpus
from tape2048.critic.facts import CriticFacts, SplitInfo, doubts, strangers, training_facts
from tape2048.critic.ntuple import NTupleCriticConfig, corpus_games, ntuple_critic as training
from tape2048.critic.ntuple.ntuple_critic import GameBoards, read_games, split_games
from tape2048.errors import ConfigError, EmptyCorpusError
from tape2048.game.rules import exps_to_boards
from tape2048.loader.row_view import tables_of
from tape2048.loader.splits import parts_of_hashes, parts_of_seeds, run_hash
from tape2048.players import PlayedBy

from ...builders import Game, Spec, write_ours
from ...corpora import IDS, OURS, PLAYERS, THEIRS, Built, build


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Built:
    """Sessions of two players and of one that says nothing, whose runs take turns."""
    return build(tmp_path_factory.mktemp("games") / "sessions")


def config(built: Built, **changes: Any) -> NTupleCriticConfig:
    settings: dict[str, Any] = {"data": str(built.root), "mixed_players": True, "stride": 3, "val_share": 0.3}
    return NTupleCriticConfig(**{**settings, **changes})


def players(corpus: Corpus) -> list[PlayedBy]:
    return tables_of(corpus).runs.players()


def same(found: GameBoards, expected: GameBoards) -> bool:
    pairs = zip(found, expected, strict=True)
    return all(one.dtype == other.dtype and np.array_equal(one, other) for one, other in pairs)


def slow(built: Built, stride: int, chosen: NDArray[np.bool_] | None = None) -> GameBoards:
    """The games by the plain definition."""
    runs = np.flatnonzero(np.ones(len(built.games), bool) if chosen is None else chosen)
    rows = [built.rows["exps"][built.run == run][::stride] for run in runs]
    return GameBoards(
        exps_to_boards(np.concatenate(rows)),
        np.cumsum([0, *map(len, rows)]),
        np.array([built.games[run].highest_tile.bit_length() - 1 for run in runs], np.uint8),
    )


@pytest.mark.parametrize("stride", [1, 3, 16, 1000])
@pytest.mark.parametrize("fetched", [7, 1 << 20])
def test_every_few_rows_of_each_game_are_read(
    built: Built, stride: int, fetched: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(training, "_FETCHED", fetched)
    told: list[tuple[int, int]] = []
    found = read_games(Corpus.open(built.root), stride, lambda *now: told.append(now))
    assert same(found, slow(built, stride))
    assert told[-1] == (len(found.boards), len(found.boards))
    assert len(told) == -(-len(found.boards) // fetched)


def test_a_filter_leaves_the_others_out(built: Built) -> None:
    corpus = Corpus.open(built.root).where("highest_tile >= 8192")
    chosen = built.highest >= 8192
    assert 0 < chosen.sum() < len(chosen)
    assert same(read_games(corpus, 5), slow(built, 5, chosen))


def test_of_a_phase_its_rows_are_read(built: Built) -> None:
    view = Corpus.open(built.root).phase(steps=(30, 60))
    found = read_games(view, 4)
    expected = []
    for run in range(len(built.games)):
        rows = built.rows[built.run == run]
        inside = rows[(rows["step_idx"] >= 30) & (rows["step_idx"] < 60)]
        expected.append(exps_to_boards(inside["exps"])[::4])
    assert sum(map(len, expected)) > 0
    assert min(map(len, expected)) == 0
    assert found.starts.tolist() == np.cumsum([0, *map(len, expected)]).tolist()
    assert found.boards.tolist() == np.concatenate(expected).tolist()


@pytest.mark.parametrize("free", [0, 1 << 40], ids=["read in each pass", "held"])
def test_pieces_are_the_same_whatever_memory_is_free(
    built: Built, free: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    whole = corpus_games(config(built))
    (train,) = whole.chunks(0)
    assert len(train) == whole.train_games == len(whole.highest)
    monkeypatch.setattr(training, "ram_available", lambda: free)
    monkeypatch.setattr(training, "_PIECE_BOARDS", 60)
    source = corpus_games(config(built))
    pieces = list(source.chunks(0))
    assert len(pieces) > 3
    assert max(len(piece.boards) for piece in pieces) < 60 + 90 / 3
    joined = GameBoards(
        np.concatenate([piece.boards for piece in pieces]),
        np.cumsum([0, *(count for piece in pieces for count in np.diff(piece.starts))]),
        np.concatenate([piece.highest for piece in pieces]),
    )
    assert same(joined, train)
    for first in range(len(pieces) + 1):
        rest = list(source.chunks(first))
        assert len(rest) == len(pieces) - first
        assert all(same(one, other) for one, other in zip(rest, pieces[first:], strict=True))
    assert same(source.val, whole.val)


def test_parts_are_those_of_the_corpus(built: Built) -> None:
    source = corpus_games(config(built, split_salt="other", where="highest_tile >= 2048"))
    corpus = Corpus.open(built.root, where="highest_tile >= 2048")
    parts = corpus.split(salt="other", **config(built).fractions)
    assert same(next(source.chunks(0)), read_games(parts["train"], 3))
    assert same(source.val, read_games(parts["val"], 3))
    assert source.identity == corpus.identity


@pytest.mark.parametrize("salt", ["", "other"])
def test_played_games_split_as_recorded_ones(built: Built, salt: str) -> None:
    corpus = Corpus.open(built.root)
    shares = [0.5, 0.2, 0.3]
    expected = parts_of_hashes(run_hash(corpus.runs, corpus.sessions, salt), shares)
    assert len(np.unique(expected)) == 3
    for number, session in enumerate(corpus.sessions):
        mine = corpus.runs["session"] == number
        sha256 = PLAYERS.get(session.name, "")
        found = parts_of_seeds(corpus.runs["seed"][mine], sha256, shares, salt)
        assert found.tolist() == expected[mine].tolist()


def test_played_games_split_without_a_test_part(built: Built) -> None:
    played = read_games(Corpus.open(built.root), 3)
    seeds = np.arange(len(played), dtype=np.uint64)
    player = PlayedBy("toy", "a" * 64, len(played))
    for test_share in (0.0, 0.2):
        chosen = config(built, test_share=test_share)
        source = split_games(played, seeds, player, chosen, "identity")
        parts = parts_of_seeds(seeds, "a" * 64, list(chosen.fractions.values()))
        assert same(next(source.chunks(0)), played.take(parts == 0))
        assert same(source.val, played.take(parts == 1))
        assert list(source.chunks(1)) == []
        assert (source.train_games, source.players) == ((parts == 0).sum(), [player])
    few = played.take(np.arange(len(played)) < 1)
    with pytest.raises(EmptyCorpusError, match=r"found [01] games to learn from and [01] for validation"):
        split_games(few, seeds[:1], player, config(built), "identity")


def test_games_of_several_players_are_refused_by_name(built: Built) -> None:
    with pytest.raises(ConfigError, match="found games of 3 players: ") as caught:
        corpus_games(config(built, mixed_players=False))
    said, hint = caught.value.message, caught.value.hint or ""
    assert said.removeprefix("found games of 3 players: ").partition(". A critic")[0].split("; ") == [
        f"unknown player @{'b' * 6} (21 games)",
        f"unknown player @{'a' * 6} (13 games)",
        "unknown player (9 games)",
    ]
    assert "--mixed-players" in hint
    shares = {"val_share": 0.5, "test_share": 0.0}
    nameless = corpus_games(config(built, mixed_players=False, player_name="unknown player", **shares))
    assert [player.games for player in nameless.players] == [9]
    for name in (hint.split('"')[1], f"@{'b' * 12}"):
        one = corpus_games(config(built, mixed_players=False, player_name=name, where="run_id >= 0"))
        assert [player.games for player in one.players] == [21]
    facts = training_facts(config(built, player_name=name, where="run_id >= 0"), "", one.players, 0, {})
    assert facts["where"] == f"(run_id >= 0) AND (player = '{name}')"
    with pytest.raises(ConfigError, match="player_name is 'no'; found games of 3 players"):
        corpus_games(config(built, player_name="no"))
    assert [player.games for player in corpus_games(config(built)).players] == [21, 13, 9]
    one = corpus_games(config(built, mixed_players=False, where="model = 'weak' or model = 'weak-2'"))
    assert [(player.sha256, player.games) for player in one.players] == [("b" * 64, 21)]


def test_players_without_a_hash_are_told_apart_by_name(tmp_path: Path) -> None:
    for number, name in enumerate(["mine", "mine", "other", None]):
        facts = {"engine": "toy", "player": name, "config": {"player_args": {"depth": 2}}}
        spec = Spec(games=[Game(1, 5), Game(2, 5)], facts=facts)
        write_ours(tmp_path / f"2025010{number + 1}T030405Z_model=toy", spec)
    found = players(Corpus.open(tmp_path, duplicates="keep"))
    assert sorted((one.name, one.sha256, one.games) for one in found) == [
        ("", "", 2),
        ("mine:depth=2", "", 4),
        ("other:depth=2", "", 2),
    ]
    assert doubts(found)[0].startswith("games of mine, depth=2 @550ff8 (4 games): their sessions lack the")
    assert doubts([PlayedBy("a", "a" * 64, 1)]) == []


@pytest.mark.parametrize("told", ["text", None, {"player_args": 3}])
def test_a_session_with_odd_facts(tmp_path: Path, told: object) -> None:
    facts = {"engine": "toy", "player": "mine", "config": told}
    write_ours(tmp_path / "20250101T030405Z_model=toy", Spec(games=[Game(1, 5)], facts=facts))
    assert [one.name for one in players(Corpus.open(tmp_path))] == ["mine"]


def test_strangers(built: Built) -> None:
    found = players(Corpus.open(built.root))
    split = SplitInfo(fractions={"train": 1.0})
    facts = CriticFacts(thresholds=[64], split=split, players=[PlayedBy("x", "b" * 64, 3)])
    assert {player.sha256 for player in strangers(facts, found)} == {"a" * 64, ""}
    assert strangers(CriticFacts(thresholds=[64], split=split), found) == []


def test_parts_without_games_are_refused(built: Built) -> None:
    with pytest.raises(EmptyCorpusError, match="is in the part"):
        corpus_games(config(built, where=f"session = '{OURS[0]}' and run_id < 3"))
    assert THEIRS in IDS


def test_contradictory_settings_are_rejected() -> None:
    cases: list[tuple[dict[str, Any], str]] = [
        ({"thresholds": "8192 131072"}, "found 131072, expected tiles up to 65536"),
        ({"thresholds": "8192 4096"}, "ascending"),
        ({"thresholds": "100"}, "powers of two"),
        ({"tuples": "01234 01234"}, "each once"),
        ({"tuples": "4321"}, "ascending"),
        ({"stages": "8192 4096"}, "ascending order"),
        ({"stages": "102"}, "ascending order"),
        ({"val_share": 0.0}, "a part for validation"),
    ]
    for changes, said in cases:
        with pytest.raises(ConfigError, match=said):
            NTupleCriticConfig(**changes).check()
