"""Recorders that share a seed: each plays the games of its lease, and the spool bounds what waits."""

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tape2048.errors import StartError
from tape2048.files.durable import write_file
from tape2048.maintenance.merging import merge_sessions
from tape2048.session.layout import NUMBER_BITS
from tape2048.session.session import Session, sessions
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.record_options import LEASE_MAX
from tape2048_recorder.replay.replay import replay_session

from .checks import assert_sessions_valid, published_runs
from .processes import Recorders

pytestmark = pytest.mark.slow

SEED = 2**63 + 12345


def ids_of(*roots: Path) -> list[int]:
    return sorted(run.outcome[0] for root in roots for run in published_runs(root))


def test_leases_of_a_seed_merge_without_id_clashes(fast_dir: Path) -> None:
    leases = (0, 5, LEASE_MAX)
    roots = [fast_dir / str(lease) for lease in leases]
    for lease, root in zip(leases, roots, strict=True):
        with Recorders(root) as recorders:
            done = recorders.run(
                workers=1, player="expectimax", seed=SEED, lease=lease, max_games=8, storage="tape"
            )
            assert done.summary["games"] == 8
        assert ids_of(root) == [(lease << NUMBER_BITS) + number for number in range(8)]
        assert_sessions_valid(root)
    merged = merge_sessions([path for root in roots for path in sessions(root)], fast_dir / "merged")
    assert not merged.renumbered
    together = Session.open(merged.path)
    ids = together.runs["run_id"]
    assert sorted(ids.tolist()) == ids_of(*roots)
    assert np.array_equal(game_seeds(SEED, ids), together.runs["seed"])
    assert len(np.unique(together.runs["seed"])) == 24
    assert not replay_session(merged.path).findings


def test_a_second_instance_with_the_same_seed_is_warned(recorders: Recorders) -> None:
    recorders.run(seed=SEED, max_games=8)
    other = recorders.run(seed=SEED, max_games=8, instance="other")
    (warning,) = other.events("warning")
    assert "instance 'default' also plays lease 0" in warning
    assert "--lease 1" in warning
    assert not recorders.run(seed=SEED, max_games=8, instance="third", lease=1).events("warning")


def test_a_recorder_continues_within_its_lease(recorders: Recorders, root: Path) -> None:
    first = 7 << NUMBER_BITS
    settings: dict[str, Any] = {"seed": SEED, "lease": 7, "player": "expectimax", "sample_rate": 20}
    recorder = recorders.start_recording(**settings)
    recorder.stop()
    ended = ids_of(root)
    assert ended[0] == first
    recorder = recorders.start_recording(**settings)
    recorder.process.kill()
    recorder.process.wait()
    recorders.run(**settings, max_games=20)
    ids = ids_of(root)
    assert len(set(ids)) == len(ids) >= len(ended) + 20
    assert all(first <= game < first + (1 << NUMBER_BITS) for game in ids)
    assert_sessions_valid(root)


def test_a_used_up_lease_ends_the_recorder(recorders: Recorders, root: Path) -> None:
    end = 4 << NUMBER_BITS
    state = root / ".recorder" / "default.json"
    state.parent.mkdir()
    left = {"seed": SEED, "lease": 3, "next_id": end - 37, "free": [[end - 50, end - 47]]}
    write_file(state, json.dumps(left).encode())
    recorder = recorders.run(seed=SEED, lease=3)
    assert recorder.summary["reason"] == "lease 3 has no game left"
    assert recorder.summary["games"] == 40
    assert ids_of(root) == [*range(end - 50, end - 47), *range(end - 37, end)]
    again = recorders.fail(StartError, seed=SEED, lease=3)
    assert "lease 3 has no game left" in again.error["message"]
    assert again.error["hint"] == "Choose another --lease."
    assert recorders.run(seed=SEED, lease=4, max_games=5).summary["games"] == 5, "the next one is whole"
    assert ids_of(root)[-5:] == list(range(end, end + 5))
