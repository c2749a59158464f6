"""Names of players."""

from pathlib import Path
from typing import Any

import pytest

from tape2048 import Corpus
from tape2048.errors import EmptyCorpusError
from tape2048.players import (
    PlayedBy,
    is_called,
    player_label,
    player_name,
    player_text,
    plies_of,
)
from tape2048.short_names import short_names
from tape2048_recorder.players.options import REGISTRY, with_defaults

from ..builders import Game, Spec, write_ours

DIGITS = " @abcdef"


SMALL, ALWAYS = "ntuple small, 2-ply below 3 empty cells", "ntuple small, 2-ply always"


@pytest.mark.parametrize(
    ("names", "short"),
    [
        ([f"greedy{DIGITS}", f"{SMALL}{DIGITS}"], ["greedy", "small"]),
        ([f"{SMALL}{DIGITS}", f"{ALWAYS}{DIGITS}"], ["small, 2-ply below 3", "small, 2-ply always"]),
        ([f"{SMALL} @abcdef", f"{SMALL} @012345"], ["small @abcdef", "small @012345"]),
        ([f"{SMALL}, epsilon=0.1{DIGITS}", f"{SMALL} @012345"], ["small, epsilon=0.1", "small"]),
        (["expectimax, 3-ply", "critic default, 2-ply"], ["expectimax", "critic default"]),
        (["x" * 90 + DIGITS, "x" * 91 + " @012345"], ["x" * 31 + "…" + DIGITS, "x" * 31 + "… @012345"]),
        (["\u05d0\u05d1", "\U0001f3ae\U0001f3ae @012345"], ["\u05d0\u05d1", "\U0001f3ae\U0001f3ae"]),
        ([], []),
    ],
)
def test_players_shown_together_have_short_names(names: list[str], short: list[str]) -> None:
    """The network or the kind, and whatever tells two players apart."""
    assert short_names([*names, *names]) == dict(zip(names, short, strict=True))


@pytest.mark.parametrize("given", ["small", "small, 2-ply below 3", f"small{DIGITS}"])
def test_a_short_name_selects_the_player(given: str) -> None:
    assert is_called(given, "ntuple@abcdef012345", SMALL + DIGITS)
    assert not is_called(given, "ntuple@012345abcdef", "ntuple strong, 2-ply always @012345")


@pytest.mark.parametrize(
    ("player", "args", "name"),
    [
        ("greedy", {}, "greedy"),
        ("ntuple", {"weights": "fast", "look_below": 3}, "ntuple fast, 2-ply below 3 empty cells"),
        ("ntuple", {"weights": "fast", "look_below": 1}, "ntuple fast, 2-ply below 1 empty cell"),
        ("ntuple", {"weights": "/a/b/mine.v2.npz", "look_below": 0}, "ntuple mine, 1-ply"),
        (
            "ntuple",
            {"look_below": 16, "look_twice_below": 4},
            "ntuple, 2-ply always, 3-ply below 4 empty cells",
        ),
        ("ntuple", {"look_below": 3, "look_twice_below": 6}, "ntuple, 3-ply below 3 empty cells"),
        (
            "ntuple",
            {"look_below": 16, "look_twice_below": 16, "look_spawns": 3, "look_deeper_from": 2},
            "ntuple, 4-ply always, from 2 large tiles 5-ply always",
        ),
        ("ntuple", {"look": 3}, "ntuple, 2-ply below 3 empty cells"),
        (
            "ntuple",
            {"look": "0+5:16/2/2"},
            "ntuple, 1-ply, from 5 large tiles 2-ply always, 4-ply below 2 empty cells",
        ),
        (
            "ntuple",
            {"look_below": 16, "look_spawns": 4, "look_unsure": 500.0},
            "ntuple, 2-ply always, to 5-ply where unsure, look_unsure=500",
        ),
        ("ntuple", {"look": 3, "mix": "0:2+3:1"}, "ntuple, look=3, mix=0:2+3:1"),
        ("expectimax", {"depth": 2}, "expectimax, 3-ply"),
        (
            "critic",
            {"critic": "default", "weights": "fast", "look": 0},
            "critic default, 2-ply, weights=fast",
        ),
        (
            "critic",
            {"critic": "a.critic", "tile": 8192, "look_below": 16},
            "critic a, 3-ply always, tile=8192",
        ),
        ("python:package.module:make", {"lanes": 3}, "package.module:make, lanes=3"),
        ("", {}, "unknown player"),
        (None, {"depth": 1}, "unknown player"),
        (7, None, "unknown player"),
        ("ntuple", {"weights": 3, "look_below": "all"}, "ntuple, weights=3, look_below=all"),
    ],
)
def test_names(player: Any, args: Any, name: str) -> None:
    """The text of a player has the same name as its parameters."""
    facts = {"player": player, "player_args": args, "player_sha256": "abcdef" + "0" * 58}
    assert player_name(facts) == name + DIGITS
    assert PlayedBy(player_text(facts), facts["player_sha256"], 1).player_name == name + DIGITS


@pytest.mark.parametrize("kind", REGISTRY)
def test_names_leave_defaults_out(kind: str) -> None:
    assert "=" not in player_name({"player": kind, "player_args": with_defaults(kind, {})})


def test_names_differ_where_players_do() -> None:
    several = [{"player": "ntuple", "player_sha256": digit * 64} for digit in "ab"]
    several += [{"player": "ntuple", "player_args": {"weights": f"{where}/net.npz"}} for where in "ab"]
    several += [{"player": "x" * 200, "player_sha256": digit * 64} for digit in "cd"]
    several += [{"player": "greedy"}, {}]
    names = [player_name(one) for one in several]
    assert names[-2:] == ["greedy", "unknown player"]
    assert len(set(names)) == len(several)
    assert max(map(len, names)) == 100
    for name in names:
        called = [is_called(name, player_label(one), player_name(one)) for one in several]
        assert [other for other, holds in zip(names, called, strict=True) if holds] == [name]


@pytest.mark.parametrize(
    ("args", "plies"),
    [
        ({"look_below": 16, "look_twice_below": 4}, 3),
        ({"look_below": 16, "look_twice_below": 4, "look_spawns": 3, "look_deeper_from": 2}, 5),
        ({"look_below": 16, "look_spawns": 4, "look_unsure": 500.0}, 5),
        ({"look_below": 0, "mix": "0:2+3:1"}, 2),
        ({"look": 3, "mix": "0:2+0:1"}, 1),
    ],
)
def test_plies(args: Any, plies: int) -> None:
    """Also by parameters of earlier versions. A mixture replaces the first number of each phase."""
    assert plies_of("ntuple", args) == plies


def test_a_text_of_an_earlier_version_has_the_present_name() -> None:
    """As in a network's calibrations."""
    text = "ntuple:weights=fast,look_below=16,look_twice_below=4,look_spawns=2,look_deeper_from=0,mix="
    assert player_name({"player": text}).startswith("ntuple fast, 2-ply always, 3-ply below 4 empty cells")
    assert player_text({"player": "ntuple", "player_args": {"look_below": 3}}) == "ntuple:look=3"


def test_players_are_selected_by_name(tmp_path: Path) -> None:
    """By the whole name, its first words, its digits behind other words, and in conditions."""
    players = [("a", 0), ("b", 16), ("c", 16)]
    for number, (digit, below) in enumerate(players):
        facts = {
            "player": "ntuple", "player_args": {"weights": "fast", "look_below": below},
            "player_sha256": digit * 64,
        }  # fmt: skip
        name = f"2025010{number + 1}T030405Z_model=toy"
        write_ours(tmp_path / name, Spec(games=[Game(number, 3)], facts=facts))
    corpus = Corpus.open(tmp_path)
    for given, ids in [
        ("ntuple fast, 2-ply always @bbbbbb", [1]), ("ntuple fast, 2-ply", [1, 2]), ("ntuple", [0, 1, 2]),
        ("ntuple @cccccc", [2]), ("ntuple@cccccccccccc", [2]),
    ]:  # fmt: skip
        assert corpus.where(player=given).runs["run_id"].tolist() == ids
        assert Corpus.open(tmp_path, player=given).runs["run_id"].tolist() == ids
    assert corpus.where("player_name LIKE '%1-ply%'").runs["run_id"].tolist() == [0]
    for find in (lambda: corpus.where(player="ntuple fast, 3-ply"), lambda: corpus.where("player = 'x'")):
        with pytest.raises(EmptyCorpusError) as caught:
            find()
        assert "ntuple fast, 1-ply @aaaaaa (1 game); ntuple fast, 2-ply always" in str(caught.value.advice)


def test_players_of_a_view(tmp_path: Path) -> None:
    """A table with a line for each player, of the games and rows of the view."""
    players = [("a", "\x1b<b>", [(3, 100), (5, 301)]), ("b", "greedy", [(7, 2000)]), ("a", "other", [(2, 0)])]
    for number, (digit, name, games) in enumerate(players):
        facts = {"player": name, "player_args": {"depth": number}, "player_sha256": digit * 64}
        spec = [Game(number * 10 + i, steps, max_score=score) for i, (steps, score) in enumerate(games)]
        directory = tmp_path / f"2025010{number + 1}T030405Z_model=toy"
        write_ours(directory, Spec(games=spec, facts=facts))
    corpus = Corpus.open(tmp_path)
    names = [player_name({"player": "\x1b<b>", "player_args": {"depth": 0}, "player_sha256": "a" * 64})]
    names += [corpus.players[1].player]
    found = [tuple(one) for one in corpus.players]
    assert found == [
        (names[0], "\x1b<b>:depth=0", 3, 10, pytest.approx(401 / 3)),
        (names[1], "greedy:depth=1", 1, 7, 2000.0),
    ]
    for one in corpus.players:
        assert len(corpus.where(player=one.player)) == one.rows
    late = corpus.where("steps > 2").phase(steps=(2, None))
    assert [one[2:] for one in late.players] == [(2, 4, 200.5), (1, 5, 2000.0)]
    lines = repr(corpus.players).split("\n")
    assert lines[0] == "games  rows  mean score  player"
    assert lines[2] == f"    1     7       2,000  {names[1]}"
    assert "\\x1b" in lines[1]
    assert "&lt;b&gt;" in corpus.players._repr_html_()


@pytest.mark.parametrize(
    ("player", "args", "text"),
    [
        ("ntuple", {"weights": "/home/ada/my.ntuple", "mix": "0:1/2"}, "ntuple:weights=my.ntuple,mix=0:1/2"),
        ("ntuple", {"weights": "tdl2048@16:~ada/4x6.w"}, "ntuple:weights=tdl2048@16:4x6.w"),
        ("ntuple", {"weights": "s3://ada:secret@host/b/my.ntuple"}, "ntuple:weights=my.ntuple"),
        ("python:/home/ada/p.py:make", {}, "python:p.py:make"),
        ("exec", {"command": "/home/ada/e --net=/home/ada/n 'a b'"}, "exec:command=e --net=n 'a b'"),
        ("exec:/home/ada/e --net /home/ada/n", {}, "exec:e --net n"),
        ("someone/engine 1", {}, "someone/engine 1"),
    ],
)
def test_the_text_of_a_player_has_no_directories(player: str, args: dict[str, Any], text: str) -> None:
    assert player_text({"player": player, "player_args": args}) == text
