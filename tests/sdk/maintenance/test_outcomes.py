"""Scores and highest tiles from last boards, against whole games of the slow reference."""

from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, strategies as st
from tests import reference

from tape2048 import validate_session
from tape2048.maintenance.validation import outcomes
from tape2048.session.metadata import read_metadata

from ..builders import Game, Spec, change_database, write_manifest, write_ours
from ..corpora import put_boards


@given(cells=st.lists(st.integers(0, 15), min_size=16, max_size=16), move=st.integers(0, 4))
def test_outcomes_of_any_board(cells: list[int], move: int) -> None:
    found = outcomes(np.array([[*cells, move]], np.uint8), np.array([5]))
    for way, moves in enumerate(((0, 1), (2, 3))):
        legal = [each for each in reference.legal_moves(cells) if each in moves]
        known = move if move < 4 else None
        assert bool(found.legal[0, way]) == (bool(legal) and known in {None, *moves})
        for each in legal:
            after, score = reference.slide(cells, each)
            assert found.scores[0, way] - found.before[0] == score
            assert found.tiles[0, way] == 2 ** max(after)


@pytest.mark.parametrize("seed", range(20))
def test_every_board_of_a_game_has_its_score(seed: int) -> None:
    game = reference.play_random(seed)
    boards = np.array([[*step.cells, 255] for step in game.moves], np.uint8)
    found = outcomes(boards, np.arange(len(boards)))
    scores = np.cumsum([0, *(reference.slide(step.cells, step.move)[1] for step in game.moves)])
    assert scores[-1] == game.score
    assert found.before.tolist() == scores[:-1].tolist()


def write_games(path: Path, *, rate: int = 1, action: bool = False, engine: str = "tape2048/1") -> Path:
    """A session of three whole games."""
    played = [reference.play_random(seed) for seed in range(3)]
    table = [
        Game(at, len(game.moves), 2 ** max(game.final), seed=at, max_score=game.score)
        for at, game in enumerate(played)
    ]
    facts = {"engine": engine, "sample_rate": rate}
    return write_ours(path, Spec(table, action=action, sample_rate=rate, facts=facts, change_rows=put_boards))


def forge(path: Path, run: int, **values: int) -> None:
    """Change a run's outcome and everything that would tell."""
    changes = ", ".join(f"{name} = {name} + {by}" for name, by in values.items())
    change_database(path / "metadata.db", f"UPDATE runs SET {changes} WHERE id = {run}")
    write_manifest(path, rows=len(np.load(path / "steps.npy")), runs=3)


@pytest.mark.parametrize("action", [False, True])
@pytest.mark.parametrize("chunk", [7, 1 << 18])
def test_a_forged_outcome_is_found(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, action: bool, chunk: int
) -> None:
    monkeypatch.setattr("tape2048.maintenance.validation.CHUNK_ROWS", chunk)
    monkeypatch.setattr("tape2048.maintenance.validation._RUNS_AT_ONCE", 2)
    path = write_games(tmp_path / "20260101T000000Z_model=x", action=action)
    assert validate_session(path).findings == ()
    for run in range(3):
        for values in ({"max_score": 4}, {"max_score": -4}, {"max_score": 1000}):
            forge(path, run, **values)
            (finding,) = validate_session(path).findings
            score, tile = (
                read_metadata(path / "metadata.db").runs[name][run] for name in ("score", "highest_tile")
            )
            has = f"run {run} has score {score} and highest_tile {tile}, but its last row leads to "
            assert finding.message.startswith(has)
            forge(path, run, **{name: -by for name, by in values.items()})
    tile = int(read_metadata(path / "metadata.db").runs["highest_tile"][1])
    forge(path, 1, highest_tile=tile)
    assert "highest_tile" in validate_session(path).findings[0].message
    forge(path, 1, highest_tile=-tile)
    assert validate_session(path).findings == ()


def test_scores_of_sampled_runs(tmp_path: Path) -> None:
    path = write_games(tmp_path / "20260101T000000Z_model=x", rate=7)
    assert validate_session(path).findings == ()
    forge(path, 2, max_score=500)
    forge(path, 1, max_score=-400)
    (finding,) = validate_session(path).findings
    assert "but its last row shows a score of" in finding.message


def test_games_of_others_may_count_otherwise(tmp_path: Path) -> None:
    path = write_games(tmp_path / "20260101T000000Z_model=x", engine="theirs 1")
    forge(path, 1, max_score=4)
    assert validate_session(path).findings == ()
