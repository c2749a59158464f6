"""The example of docs/explanation/whole-idea.md: a small tape2048 that keeps what the large one promises."""

import importlib.util
import re
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

EXAMPLE = Path(__file__).parents[2] / "examples/whole_idea.py"


@pytest.fixture(scope="module")
def idea() -> Any:
    spec = importlib.util.spec_from_file_location("whole_idea", EXAMPLE)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_critic_learns_from_300_lines(
    idea: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    assert EXAMPLE.read_text().count("\n") <= 300
    monkeypatch.setattr(sys, "argv", [str(EXAMPLE)])
    idea.main()
    critic, base = map(float, re.findall(r"log loss .* ([\d.]+)$", capsys.readouterr().out, re.MULTILINE))
    assert critic < 0.9 * base


def test_a_session_holds_the_games(idea: Any, tmp_path: Path) -> None:
    games = [idea.play(seed) for seed in (5, 6)]
    assert games[0] == idea.play(5)
    idea.write_session(tmp_path / "session", games)
    assert [path.name for path in tmp_path.iterdir()] == ["session"]
    with pytest.raises(OSError, match="session"):  # a name is taken once
        idea.write_session(tmp_path / "session", games)
    corpus = idea.Corpus([tmp_path / "session"])
    assert corpus.runs["rows"].sum() == len(corpus.boards) == sum(len(game.tape) for game in games)
    assert corpus.boards[corpus.firsts].tolist() == [game.start for game in games]
    broken = bytes([games[0].tape[0] ^ 0x3C]) + games[0].tape[1:]  # the first tile appears elsewhere
    with pytest.raises(ValueError, match="no move on the board"):
        list(idea.replay(games[0].start, broken))


@pytest.mark.parametrize("count", [1, 2, 3, 100, 4097])
def test_an_order_has_each_row_once(idea: Any, count: int) -> None:
    orders = [idea.shuffled(np.arange(count), count, key).tolist() for key in (1, 2)]
    assert all(sorted(order) == list(range(count)) for order in orders)
    assert count < 100 or orders[0] != orders[1]


def test_weights_stand_for_all_rows_and_parts_for_all_games(idea: Any, tmp_path: Path) -> None:
    for name, seeds in (("a", range(6)), ("b", range(6, 9))):
        idea.write_session(tmp_path / name, [idea.play(seed) for seed in seeds])
    few, all_games = (idea.Corpus([tmp_path / name for name in names]) for names in ("a", "ab"))
    sides = [
        {
            int(corpus.runs["seed"][run]): side
            for side, part in enumerate(idea.split(corpus, 0.5))
            for run in part
        }
        for corpus in (few, all_games)
    ]
    assert len(sides[1]) == 9
    assert sides[0].items() <= sides[1].items()
    sample = idea.Sample(all_games, np.arange(9), exponent=8, per_run=10)
    batches = [sample.batch(40, 3, position) for position in range(3)]
    assert [len(batch["label"]) for batch in batches] == [40, 40, 10]
    assert sum(batch["weight"].sum() for batch in batches) == pytest.approx(len(all_games.boards))
    assert {name: array.dtype for name, array in batches[0].items()} == {
        "tokens": np.uint8,
        "label": bool,
        "weight": float,
    }
