"""Which games a critic has not learned from."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from msgspec.structs import replace
from tests.sdk.builders import Game, Spec, write_ours
from tests.sdk.critics import make_games

from tape2048 import Corpus
from tape2048.critic import unseen_games
from tape2048.critic.facts import CriticFacts, SplitInfo
from tape2048.players import PlayedBy
from tape2048_recorder.game.rng import game_seeds

SHARES = {"train": 0.5, "val": 0.25, "test": 0.25}


@pytest.fixture(scope="module")
def corpus(tmp_path_factory: pytest.TempPathFactory) -> Corpus:
    return Corpus.open(make_games(tmp_path_factory.mktemp("unseen") / "selfplay"))


def facts(**given: Any) -> CriticFacts:
    return CriticFacts(thresholds=[64], split=SplitInfo(fractions=SHARES), **given)


@pytest.mark.parametrize("part", ["test", "val"])
def test_recorded_games_of_a_judged_player(corpus: Corpus, part: str) -> None:
    """Only the test part is unseen, or the validation part if there is no test part."""
    shares = SHARES if part == "test" else {"train": 0.75, "val": 0.25}
    of = replace(facts(), split=SplitInfo(fractions=shares))
    expected = corpus.split(**shares)[part].runs["id"]
    assert np.array_equal(corpus.runs["id"][unseen_games(of, corpus)], expected)


@pytest.mark.parametrize(
    ("players", "all_unseen"),
    [(["ab"], True), (["ab", "aa"], False), (["ab", ""], False), ([], False)],
)
def test_games_of_another_player(corpus: Corpus, players: list[str], all_unseen: bool) -> None:
    """All are unseen, if the critic knows all of its players."""
    learned_from = [PlayedBy("", digits * 32, 9) for digits in players]
    found = unseen_games(facts(players=learned_from), corpus)
    assert (found.any(), found.all()) == (True, all_unseen)


def test_a_critic_that_played_its_own_games(tmp_path: Path) -> None:
    """Only the games with the seeds that it played are seen, with any part of its split."""
    seeds = game_seeds(2048, np.array([0, 49_999, 50_000], np.uint64)).tolist()
    games = [Game(i + 1, 9, 64, seed=seed) for i, seed in enumerate([*seeds, 7])]
    write_ours(tmp_path / "20250102T030405Z_model=toy", Spec(games=games))
    of = facts(training={"player": "ntuple", "games": 50_000}, seed=2048)
    assert unseen_games(of, Corpus.open(tmp_path)).tolist() == [False, False, True, True]
