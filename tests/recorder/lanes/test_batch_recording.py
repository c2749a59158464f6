"""Recorders with a batched player, as processes: the same games on any lanes, errors, live weights."""

import errno
import os
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from tests.sdk.builders import raising

from tape2048.errors import PlayerError, ReplayError
from tape2048.session.session import sessions
from tape2048_recorder.game.rng import game_seeds
from tape2048_recorder.ipc.protocol import HURRY, Confirmed, Range
from tape2048_recorder.replay.replay import replay_session
from tape2048_recorder.workers.batch_loop import BatchWorker

from ..checks import assert_all_published, assert_sessions_valid, meta_of, published_runs
from ..processes import Recorders
from . import batched
from .tables import Games, make_table, play, play_out

PLAYER = f"python:{batched.__file__}"
GAMES = 120


@pytest.fixture
def recorders(fast_dir: Path) -> Iterator[Recorders]:
    with Recorders(fast_dir) as started:
        yield started


@pytest.fixture(scope="module", autouse=True)
def compiled() -> None:
    """Compile the kernels once, before the workers do."""
    play(batched.hashed(), 1)
    play(batched.lowest(), 1, record_action=False)


def record(root: Path, **settings: Any) -> dict[tuple[int, ...], bytes]:
    """Record so many games; returns them by id, seed and outcome."""
    with Recorders(root) as started:
        recorder = started.run(
            seed=7, max_games=GAMES, record_action=True, player=f"{PLAYER}:hashed", **settings
        )
        assert recorder.summary["games"] == GAMES
        assert 0 < recorder.summary["model_share"] < 1
        assert not recorder.events("warning", "error")
    assert_sessions_valid(root)
    return {run.outcome: run.data for run in published_runs(root)}


def signed(seed: int) -> int:
    """A seed as SQLite has it."""
    return seed - 2**64 * (seed >= 2**63)


def test_workers_and_lanes_change_no_game(tmp_path: Path) -> None:
    sampling = {"method": "softmax", "temperature": 0.5, "stop_gate": 40, "epsilon": 0.05}
    expected = {
        (key, signed(kept.seed), kept.steps, kept.max_score, kept.highest_tile): kept.rows
        for key, kept in play(batched.hashed(), GAMES, **sampling).items()
    }
    for workers, lanes in ((1, 4096), (2, 64), (2, 1)):
        found = record(tmp_path / f"{workers}-{lanes}", workers=workers, lanes=lanes, sampling=sampling)
        assert found == expected, f"{workers} workers, {lanes} lanes"
    on_tape = record(tmp_path / "tape", workers=2, lanes=64, sampling=sampling, storage="tape")
    assert on_tape.keys() == expected.keys()
    games = play(batched.hashed(), GAMES, storage="tape", **sampling)
    assert sorted(on_tape.values()) == sorted(kept.rows for kept in games.values())
    meta = meta_of(sessions(tmp_path / "2-64")[0])
    assert meta["config"]["sampling"] == sampling
    assert meta["config"]["lanes"] == 64
    assert meta["player"] == "python:batched.py:hashed"
    others = {meta_of(path)["player_sha256"] for path in sessions(tmp_path / "1-4096")}
    assert others == {meta["player_sha256"]}, "lanes choose no moves"
    with pytest.raises(ReplayError, match="replay runs no other code"):
        replay_session(sessions(tmp_path / "2-64")[0])


def test_a_late_failure_costs_no_finished_game(recorders: Recorders, fast_dir: Path) -> None:
    settings = {"after": 1_000_000}
    recorder = recorders.fail(
        PlayerError, player=f"{PLAYER}:failing", player_args=settings, seed=7, workers=1, lanes=256
    )
    assert recorder.error["error"] == PlayerError.__name__
    assert "batched.py:failing" in recorder.error["message"]
    assert "0x" in recorder.error["message"]
    assert not recorder.events("warning", "error"), "the error says it all"
    assert_all_published(fast_dir)
    # The same here, without a recorder: what had ended when it raised, and what was in play.
    games, player = Games(100_000), batched.failing(**settings)
    make_table(player, Games(256), lanes=256).warm_up()
    table = make_table(player, games, lanes=256, record_action=False)
    with pytest.raises(PlayerError):
        play_out(table)
    games.flush(table)
    assert 999_000 < table.steps < 1_000_000, "it had answered so often, in the warm-up too"
    assert sum(kept.steps for kept in games.kept.values()) > 900_000
    published = {run.outcome[0]: run.data for run in published_runs(fast_dir)}
    assert published == {key: kept.rows for key, kept in games.kept.items()}


@pytest.mark.parametrize("how", ["thread", "library"])
def test_a_finished_worker_that_hangs_is_ended(recorders: Recorders, how: str) -> None:
    """After its last word its process may hang, with its socket open or closed."""
    recorder = recorders.run(
        player=f"{PLAYER}:unending", player_args={"how": how}, workers=1, lanes=8, max_games=10,
        worker_silence_s=1.0,
    )  # fmt: skip
    assert recorder.summary["games"] == 10
    assert recorder.count("has made no progress") == (how == "thread")
    assert recorder.count("another starts") == 0


def write_checkpoint(model_dir: Path, name: str, text: str) -> None:
    """As a trainer does it: under another name first."""
    (model_dir / f".{name}").write_text(text)
    (model_dir / f".{name}").replace(model_dir / name)


@pytest.fixture
def model_dir(tmp_path: Path) -> Path:
    """A directory of checkpoints with the first one, ``a.json``."""
    directory = tmp_path / "models"
    directory.mkdir()
    write_checkpoint(directory, "a.json", '{"key": 1}')
    return directory


def test_newer_weights_play_later_games(recorders: Recorders, fast_dir: Path, model_dir: Path) -> None:
    recorder = recorders.start(
        player=f"{PLAYER}:from_checkpoint", player_args={"slow_s": 0.001}, model_dir=str(model_dir),
        model_files="*.json", lanes=32, seed=7, flush_s=0.2,
        hooks={"tape2048_recorder.daemon.weights:POLL_S": 0.05},
    )  # fmt: skip
    recorder.wait_for_status(lambda status: status["recorded_rows"] > 1_000)
    write_checkpoint(model_dir, "b.json", '{"key": 2}')
    recorder.wait_for_event("b.json is loaded")
    write_checkpoint(model_dir, "half.json", '{"ke')
    event = recorder.wait_for_event("half.json cannot be used")
    assert "continues with b.json" in event
    for path in model_dir.iterdir():
        path.unlink()
    model_dir.rmdir()
    assert "continues with b.json" in recorder.wait_for_event("models")
    rows = recorder.wait_for_status(lambda status: True)["recorded_rows"]
    for pid in recorder.workers:
        os.kill(pid, 9)  # those that follow load the copy: the checkpoint is gone
    recorder.wait_for_status(
        lambda status: status["recorded_rows"] > rows + 3_000 and status["workers_ready"] == 1
    )
    model_dir.mkdir()
    write_checkpoint(model_dir, "c.json", '{"key": 3}')
    recorder.wait_for_event("c.json is loaded")
    # With those of a.json and b.json published, all lanes play by c.json; before, a drain could be faster.
    recorder.wait_for_status(lambda status: status["sessions"] >= 2)
    recorder.process.terminate()
    assert recorder.end() == 0
    assert not list(fast_dir.glob(".*.weights"))
    assert_sessions_valid(fast_dir)

    keys = {"a.json": 1, "b.json": 2, "c.json": 3}
    played: dict[str, str] = {}
    for path in sessions(fast_dir):
        meta = meta_of(path)
        model, tag = meta["player_args"]["model"], meta["model_tag"]
        assert tag.endswith(f".{Path(model).stem}.{meta['player_args']['model_sha256'][:8]}")
        assert path.name.partition("_model=")[2].startswith(tag)
        assert played.setdefault(model, meta["player_sha256"]) == meta["player_sha256"]
        for run in [run for run in published_runs(fast_dir) if run.session == path][:5]:
            expected = one_game(run.outcome[0], keys[model])
            assert run.data == expected, f"{path.name} holds a game that {model} did not play"
    assert set(played) == set(keys)
    assert len(set(played.values())) == 3


def test_weights_that_end_their_loaders_are_refused(recorders: Recorders, model_dir: Path) -> None:
    recorder = recorders.start(
        player=f"{PLAYER}:deadly", workers=2, lanes=8, seed=7, flush_s=0.2,
        model_dir=str(model_dir), model_files="*.json",
        hooks={"tape2048_recorder.daemon.weights:POLL_S": 0.05},
    )  # fmt: skip
    recorder.wait_for_status(lambda status: status["workers_ready"] == 2 and status["games"] > 20)
    write_checkpoint(model_dir, "b.json", "{}")
    assert "continues with a.json" in recorder.wait_for_event("b.json cannot be used")
    games = recorder.wait_for_status(lambda status: True)["games"]
    recorder.wait_for_status(lambda status: status["games"] > games + 100)
    write_checkpoint(model_dir, "c.json", '{"key": 3}')
    recorder.wait_for_event("c.json is loaded")
    recorder.process.terminate()
    assert recorder.end() == 0


def test_a_worker_leaves_after_its_last_block() -> None:
    """With a full journal the answer may take long; a worker that is gone by then would lose the block."""
    said: list[str] = []
    worker = BatchWorker.__new__(BatchWorker)
    worker._slot = {"command": [HURRY]}
    worker._tables, worker._finished_dropped = [], 0
    worker._written, worker._asked = True, False

    def receive() -> Confirmed:
        said.append("confirmed")
        return Confirmed()

    worker._channel = SimpleNamespace(
        receive=receive, send=lambda message: said.append(type(message).__name__)
    )
    worker.run()
    assert said == ["confirmed", "Bye"]


def test_files_that_fail_to_close_are_closed_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    places = [Range(serial, str(tmp_path / str(serial) / "steps.npy"), 0) for serial in range(2)]
    for place in places:
        Path(place.path).parent.mkdir()
        Path(place.path).touch()
    worker = BatchWorker.__new__(BatchWorker)
    worker._files = 0, []
    with pytest.raises(FileNotFoundError):
        worker._open(places[0], ["loss.f32.npy"])
    for place in places:
        Path(place.path).with_name("loss.f32.npy").touch()
    first = [*worker._open(places[0], ["loss.f32.npy"])]
    with monkeypatch.context() as patch:
        patch.setattr(os, "close", raising(OSError(errno.EDQUOT, os.strerror(errno.EDQUOT))))
        second = [*worker._open(places[1], ["loss.f32.npy"])]
        assert worker._open(places[1], ["loss.f32.npy"]) == second
    for fd in first:
        os.close(fd)  # which the test kept from being closed
    found = [Path(f"/proc/self/fd/{fd}").readlink() for fd in second]
    assert found == [tmp_path / "1/steps.npy", tmp_path / "1/loss.f32.npy"]
    worker._close_files()
    for fd in second:
        with pytest.raises(OSError, match="Bad file descriptor"):
            os.fstat(fd)


def one_game(number: int, key: int) -> bytes:
    """The rows of one game, whatever was played before it."""

    class One(Games):
        def more(self, want: int) -> Any:
            if self.given:
                return None
            self.given = 1
            ids = np.array([number], dtype=np.uint64)
            return ids, game_seeds(7, ids)

    games = One(1)
    table = make_table(batched.hashed(key), games, lanes=1, record_action=False)
    play_out(table)
    games.flush(table)
    return games.kept[number].rows
