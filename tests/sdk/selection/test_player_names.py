"""Short names of players."""

from typing import Any

import pytest

from tape2048.players import player_label, player_name, player_names


@pytest.mark.parametrize(
    ("player", "args", "name"),
    [
        ("greedy", {}, "greedy"),
        ("ntuple", {"weights": "fast", "look_below": 3}, "ntuple fast, 2-ply"),
        ("ntuple", {"weights": "/a/b/mine.v2.npz", "look_below": 0}, "ntuple mine, 1-ply"),
        (
            "ntuple",
            {"look_below": 16, "look_twice_below": 6, "look_spawns": 3, "look_deeper_from": 2},
            "ntuple, 5-ply",
        ),
        ("expectimax", {"depth": 2}, "expectimax, 3-ply"),
        ("critic", {"critic": "default", "weights": "fast", "look_below": 0}, "critic default, 2-ply"),
        ("python:package.module:make", {"lanes": 3}, "package.module:make"),
        ("x" * 100, {"depth": 1}, f"{'x' * 32}…, 2-ply"),
        ("", {}, "unknown player"),
        (None, {"depth": 1}, "unknown player"),
        (7, None, "unknown player"),
        ("ntuple", {"weights": 3, "look_below": "all"}, "ntuple"),
    ],
)
def test_names(player: Any, args: Any, name: str) -> None:
    assert player_name({"player": player, "player_args": args}) == name


def test_shared_names_are_told_apart() -> None:
    facts = [{"player": "ntuple", "player_sha256": digit * 64} for digit in "ab"]
    facts += [{"player": "greedy"}, {}]
    names = player_names(facts)
    assert list(names) == [player_label(one) for one in facts]
    assert list(names.values()) == ["ntuple @aaaaaa", "ntuple @bbbbbb", "greedy", "unknown player"]
