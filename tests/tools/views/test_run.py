"""One run of a session: as recorded, and with what a replay adds."""

from pathlib import Path

import numpy as np
from tests import reference

from tape2048.session.session import Session, sessions
from tape2048_tools.views.run import choose_run


def test_replay_adds_the_final_board(recorded: Path) -> None:
    root = recorded / "selfplay"
    (path,) = sessions(root)
    row = max(Session.open(path).runs, key=lambda run: run["steps"])
    part = choose_run(root, None, longest=True)
    whole = choose_run(root, None, longest=True, replay=True)
    assert (part.ended, whole.ended) == (False, True)
    assert part.facts["run_id"] == whole.facts["run_id"] == row["run_id"]
    assert len(whole.run) == len(part.run) + 1 == row["steps"]
    assert np.array_equal(whole.run.boards, part.run.states)
    assert reference.legal_moves(reference.unpack(whole.run.final_board)) == []
    score = sum(
        reference.slide(reference.unpack(board), move)[1]
        for board, move in zip(whole.run.boards.tolist(), whole.run.moves.tolist(), strict=True)
    )
    assert score == row["score"]
    assert whole.position(-1) == len(whole.run)


def test_game_of_an_unknown_player(session: Path) -> None:
    found = choose_run(session, 2, replay=True)
    assert not found.ended
    assert (found.facts["run_id"], found.facts["steps"]) == (2, 60)
    assert len(found.run.states) == 60
