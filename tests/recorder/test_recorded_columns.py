"""Columns that recorders write beside the rows, read back from sessions: each row has those of its board."""

import random
import signal
import time
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048 import Corpus, Session, validate_session
from tape2048.errors import ColumnError
from tape2048.game.rules import exps_to_boards
from tape2048.ntuple.network import save_network
from tape2048.session.session import sessions
from tape2048_recorder.players.ntuple import move_values
from tape2048_recorder.players.options import make_player

from .checks import assert_recovers_all_that_was_confirmed, assert_sessions_valid
from .ntuple_training import slow
from .processes import Recorders, kill

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def weights(tmp_path_factory: pytest.TempPathFactory) -> str:
    path = tmp_path_factory.mktemp("columns") / "network.ntuple"
    save_network(slow.random_network(*slow.FAST, dtype=np.int16, spread=500), path, compress=False)
    return str(path)


def playing(weights: str, **how: Any) -> dict[str, Any]:
    """A recorder's settings: random moves, too, so that there are losses."""
    args = {"weights": weights, "look": 4, "epsilon": 0.2}
    return {"player": "ntuple", "player_args": args, "columns": "values loss", "seed": 5, **how}


def assert_columns_hold(root: Path, weights: str) -> list[Session]:
    """Every session has the values of its rows' boards, and the losses of its moves, where it has moves."""
    assert_sessions_valid(root)
    player = make_player("ntuple", {"weights": weights, "look": 4})
    found = [Session.open(path) for path in sessions(root)]
    for session in found:
        values, loss = session.column("values").values, session.column("loss").values
        np.testing.assert_array_equal(
            values, move_values(player, exps_to_boards(session.tokens(slice(None))))
        )
        assert (loss >= 0).all()
        if "action" in (session.dtype.names or ()):
            played = values[np.arange(len(session)), session.read_rows(0, len(session))["action"]]
            np.testing.assert_array_equal(loss, np.nanmax(values, axis=1) - played)
    return found


@pytest.mark.parametrize(
    "how", [{"record_action": True}, {"storage": "tape"}, {"sample_rate": 3}], ids=["rows", "tape", "sampled"]
)
def test_each_session_has_those_of_its_rows(
    recorders: Recorders, root: Path, weights: str, how: dict[str, Any]
) -> None:
    recorders.run(**playing(weights, **how), workers=2, max_games=150, rotate_steps=3_000)
    found = assert_columns_hold(root, weights)
    assert len(found) > 1
    assert any((session.column("loss").values > 0).any() for session in found)
    for session in found:
        facts = session.column("values").info.facts
        assert facts.pop("moves")
        assert session.column("loss").info.facts == facts
        assert (facts["maker"], facts["judge_sha256"]) == ("tape2048 record", session.meta["player_sha256"])
        assert facts["judge"].startswith("ntuple:weights=")
        assert "look=4" in facts["judge"]
    corpus = Corpus.open(root)
    batch = next(iter(corpus.batches(64, fields=("values", "loss"))))
    assert batch.values.shape == (64, 4)
    alone = session.column("values").path
    alone.write_bytes(alone.read_bytes()[:-1])
    assert [finding.error for finding in validate_session(session.path).findings] == ["ColumnError"]
    facts_path = session.path / "loss.json"
    facts_path.write_text(facts_path.read_text().replace('"steps_crc32c": ', '"steps_crc32c": 1'))
    with pytest.raises(ColumnError, match="made of") as caught:
        Session.open(session.path).column("loss")
    assert caught.value.hint == "Make it again from these rows: tape2048 annotate --force"


def test_killed_again_and_again(recorders: Recorders, root: Path, weights: str) -> None:
    """A daemon that is killed, and before it a worker in half of the cases: its range stays a hole."""
    draw, rows = random.Random(4), 0
    for life in range(4):
        out_dir = root / str(life)
        settings = playing(weights, record_action=True, workers=2, rotate_steps=4_000, out_dir=str(out_dir))
        recorder = recorders.start_recording(**settings)
        if life % 2:
            kill(recorder.workers[0])
        time.sleep(draw.uniform(0, 0.3))
        recorder.signal(signal.SIGKILL)
        assert recorder.end() == -signal.SIGKILL
        assert_recovers_all_that_was_confirmed(out_dir)
        rows += sum(map(len, assert_columns_hold(out_dir, weights)))
    assert rows > 5_000
