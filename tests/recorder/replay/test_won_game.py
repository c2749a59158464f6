"""A whole game from two tiles to a 65536 through the recorder's own loop, publishing, and replay.

No player reaches the tile in a test, and no seed is known whose spawns lead there. A player may draw random
numbers before its move, though: this one leaves the generator where the next spawn is that of the script.
"""

from __future__ import annotations  # `chooses` expects it

import json
import sys
from pathlib import Path
from types import ModuleType
from typing import Any, NamedTuple

import numpy as np
import pytest
from numba import njit
from tests.sdk.tapes import WON_SEED, games_on_tape

from tape2048 import Session
from tape2048.game import slide
from tape2048.game.rules import exps_to_boards
from tape2048.maintenance import validate_session
from tape2048_recorder.game.game_loop import GAMES_PLAYED, Buffer, play_into
from tape2048_recorder.game.player_api import NO_MOVE, chooses
from tape2048_recorder.game.rng import spawn, start
from tape2048_recorder.players import options
from tape2048_recorder.recording.partial import PartialSession
from tape2048_recorder.replay.replay import replay_session
from tape2048_tools.cli import run

from ..materials import Prepared, make_facts, publish
from .test_replay import rewrite_entry

pytestmark = pytest.mark.slow

GAME = games_on_tape(WON_SEED)


class Scripted(NamedTuple):
    """The boards of a game, sorted (each is there once), with their moves and generators."""

    boards: Any
    moves: Any
    states: Any


@chooses(Scripted)
def _choose(player: Any, board: Any, state: Any, gamma: Any) -> Any:
    at = np.searchsorted(player.boards, board)
    if at == len(player.boards) or player.boards[at] != board:
        return NO_MOVE, board, state
    move = np.uint64(player.moves[at])
    return move, slide(board, move), player.states[at]


@njit  # type: ignore[untyped-decorator]
def _find_states(seed: Any, boards: Any, moves: Any, states: Any) -> bool:
    """Find a generator for each step, from which the next spawn leads to the next board."""
    _, gamma = start(seed)
    for i in range(len(states) - 1):
        after = slide(boards[i], np.uint64(moves[i]))
        for state in range(100_000):
            if spawn(after, np.uint64(state), gamma)[0] == boards[i + 1]:
                states[i] = state
                break
        else:
            return False
    return True


@pytest.fixture(scope="module")
def scripted() -> Scripted:
    states = np.zeros(len(GAME.tape), np.uint64)
    assert _find_states(np.uint64(WON_SEED), GAME.boards, GAME.moves, states)
    order = np.argsort(GAME.boards)
    assert len(np.unique(GAME.boards)) == len(order) > 16_000
    return Scripted(GAME.boards[order], GAME.moves[order], states[order])


@pytest.fixture
def player(scripted: Scripted, monkeypatch: pytest.MonkeyPatch) -> Scripted:
    """The player in the registry, as ``scripted``."""
    module = ModuleType("scripted")
    module.make = lambda: scripted  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "tape2048_recorder.players.scripted", module)
    kind = options.PlayerKind("scripted", "the game of a script", "scripted:make")
    monkeypatch.setitem(options.REGISTRY, "scripted", kind)
    return scripted


def record(root: Path, player: Scripted, storage: str, *, record_action: bool = False) -> Path:
    """Play the game into a block, and publish it."""
    buffer = Buffer(rows_max=1 << 15, runs_max=1, record_action=record_action, sample_rate=1, storage=storage)
    buffer.give(np.array([3], np.uint64), np.array([WON_SEED], np.uint64))
    assert play_into(buffer, player, steps_max=1 << 30) == GAMES_PLAYED
    facts = make_facts(
        player="scripted", player_sha256=options.player_sha256("scripted", player), storage=storage,
        record_action=record_action,
    )  # fmt: skip
    block = Prepared(buffer.rows.tobytes(), buffer.runs.copy(), storage, record_action)
    session = PartialSession(root, facts, 1)
    block.record(session)
    session.journal.close()
    path = publish(root, session).path
    assert path is not None
    return path


@pytest.mark.parametrize(("storage", "action"), [("tape", False), ("rows", False), ("rows", True)])
def test_it_is_recorded_and_replayed(
    tmp_path: Path, player: Scripted, capsys: pytest.CaptureFixture[str], storage: str, action: bool
) -> None:
    path = record(tmp_path, player, storage, record_action=action)
    session = Session.open(path)
    if storage == "tape":
        assert session.tape is not None
        assert session.tape.data.tolist() == GAME.tape.tolist()
        assert session.tape.data[-1] & 128
    for name in ("seed", "steps", "rows", "score", "highest_tile"):
        assert session.runs[name].tolist() == GAME.runs[name].tolist()
    assert exps_to_boards(session.steps["exps"]).tolist() == GAME.boards.tolist()
    assert validate_session(path).findings == ()
    assert replay_session(path).findings == ()
    assert run(["validate", str(path), "--replay", "--json"]) == 0
    (checked,) = json.loads(capsys.readouterr().out)["sessions"]
    assert (checked["ok"], checked["replayed"]) == (True, 1)


def test_replay_finds_another_end(tmp_path: Path, player: Scripted) -> None:
    """The other direction of the same merge is as good an end, and not what was played."""
    path = record(tmp_path, player, "tape")
    content = bytearray((path / "tape.npy").read_bytes())
    content[-1] ^= 1
    (path / "tape.npy").write_bytes(content)
    rewrite_entry(path, "tape.npy")
    (finding,) = replay_session(path).findings
    assert f"row {len(GAME.tape) - 1} is the first to differ" in finding.message
