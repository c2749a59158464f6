"""The parts of `make peers` that need nothing installed: the NumPy games, the turns, the tables."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest
from tests.bench import peers
from tests.bench.peers import __main__ as main, engines
from tests.sdk.builders import raising

from tape2048.game import boards_to_exps, exps_to_boards, legal_masks, slide


def test_numpy_games_keep_the_rules() -> None:
    games = engines.NumpyGames(64, seed=3)
    moved = ends = 0
    for _ in range(300):
        ended = set(games.step().tolist())
        ends += len(ended)
        before = exps_to_boards(games.before.reshape(-1, 16))
        after = games.cells.reshape(-1, 16)
        for game, board in enumerate(before.tolist()):
            if game in ended:
                assert np.count_nonzero(after[game]) == 2
                continue
            masks = int(legal_masks(before[game : game + 1])[0])
            slid = [
                boards_to_exps(np.array([slide(np.uint64(board), np.uint64(move))], np.uint64))[0]
                for move in range(4)
                if masks >> move & 1
            ]
            spawns = [after[game][cells := exps != after[game]].tolist() for exps in slid]
            assert any(spawn in ([1], [2]) for spawn in spawns)
            assert cells.any()
            moved += 1
    assert moved > 10_000
    assert ends > 10


def test_turns_and_tables(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    rates = iter([4e6, 1e6, 2e6, 1e6, 2.5e6, 3e6])
    ours = peers.Peer("ours", ("tape2048",), lambda _: lambda _: next(rates))
    other = peers.Peer("other", ("other 1.2",), ours.prepare)
    bad = peers.Peer("bad", ("numpy",), raising(OSError("no such thing here")))

    class Child:
        def __init__(self, group: str, index: int, directory: Path) -> None:
            peer = main.GROUPS[group][0][index]
            self.failure = ""
            try:
                self.measure = peer.prepare(directory)
            except OSError as error:
                self.failure = str(error)

        def close(self) -> None:
            pass

    monkeypatch.setattr(main, "Child", Child)
    monkeypatch.setitem(main.GROUPS, "engines", ((ours, other, bad), "play", "moves/s", 1))
    found = main.compare("engines", tmp_path, rounds=2, seconds=0)
    assert found.rates == [[4e6, 1e6], [1e6, 2e6], []]
    assert found.alone == [2.5e6, 3e6, 0.0]
    assert found.failures == ["", "", "no such thing here"]
    text = main.tables_of({"engines": found}, "About.")
    assert "| other | 1.5M | 1.1 | 3M (differs) | other 1.2 |" in text
    assert "Not measured here: bad (no such thing here)." in text
    assert main.rate_text(312_345) == "312k"


@pytest.mark.parametrize("group", main.GROUPS)
def test_a_peer_that_is_here_or_not_answers(group: str, tmp_path: Path) -> None:
    if group == "engines":
        child = main.Child(group, 1, tmp_path)
        assert child.failure == ""
        assert child.measure(0.01) > 0
        state = os.waitid(os.P_PID, child._process.pid, os.WSTOPPED | os.WNOWAIT)
        assert state.si_status == signal.SIGSTOP
        child.close()
    else:
        child = main.Child("loaders", 2, tmp_path / "none")
        assert "FileNotFoundError" in child.failure
        child.close()
