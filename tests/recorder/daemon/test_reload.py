"""Reading the settings again: what changes, what is refused by name, and what changes nothing."""

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
from tests.sdk.builders import raising

from tape2048.base.settings import settings_of
from tape2048.errors import ConfigError
from tape2048.session.session import Session, sessions
from tape2048_recorder.daemon.daemon import LIVE, RELOAD_S, Reload, merged
from tape2048_recorder.record_options import RecorderConfig

from ..checks import Listener, assert_sessions_valid, run_table
from ..processes import PATIENCE_S, environment, wait_until

#: Another value for each setting.
OTHER: dict[str, Any] = {
    "player": "random", "player_args": {"a": 1}, "model_tag": "other", "out_dir": "elsewhere",
    "instance": "other", "start_from": "boards.npy", "start_where": "run_id < 3",
    "start_rows_where": "board_highest_tile > 9",
    "workers": 3, "seed": 1, "lease": 1, "rotate_steps": 5, "rotate_s": 1.0,
    "max_games": 5, "max_steps": 5, "max_wall_s": 5.0, "max_ram_mb": 5000, "max_disk_mb": 5,
    "to": "elsewhere",
    "spool_max_mb": 5, "min_free_mb": 5, "storage": "tape", "sample_rate": 2, "record_action": True,
    "block_rows": 2048, "flush_s": 5.0, "drain_timeout_s": 5.0, "log_interval_s": 5.0, "lanes": 7,
    "sampling": {"method": "softmax"}, "model_dir": "models", "model_files": "*.pt", "log_level": "error",
    "log_format": "json", "worker_silence_s": 5.0, "metrics_listen": "localhost:1",
    "metrics_textfile": "x.prom", "columns": "values",
}  # fmt: skip


@pytest.mark.parametrize("name", settings_of(RecorderConfig))
def test_each_setting_changes_now_or_at_the_next_start(name: str) -> None:
    running = RecorderConfig()
    wanted = msgspec.structs.replace(running, **{name: OTHER[name]})
    after, changed, refused = merged(running, wanted)
    if name in LIVE:
        assert (after, changed, refused) == (wanted, [name], [])
    else:
        assert (after, changed, refused) == (running, [], [name])


def test_the_live_settings_exist() -> None:
    assert set(settings_of(RecorderConfig)) >= LIVE


def test_changes_and_refusals_are_said_by_name() -> None:
    listener, told = Listener(), []
    running = RecorderConfig()
    wanted = msgspec.structs.replace(running, max_games=7, rotate_s=60.0, workers=3)
    after = Reload(lambda: wanted, listener, changed=told.append).read(running, 0.0)
    assert (after.max_games, after.rotate_s, after.workers) == (7, 60.0, 0)
    assert told == [after]
    assert listener.events == [
        ("warning", "reload: workers stays 0; 3 needs a restart"),
        ("info", "reload: rotate_s = 60 (was off), max_games = 7 (was off)"),
    ]


def test_a_file_that_cannot_be_read_changes_nothing() -> None:
    listener, told = Listener(), []
    running = RecorderConfig()
    fail = raising(ConfigError("found malformed TOML", path="r.toml:3", hint="quote it"))
    assert Reload(fail, listener, changed=told.append).read(running, 0.0) is running
    assert told == []
    assert listener.events == [
        ("error", "reload: nothing is changed: r.toml:3: found malformed TOML (quote it)")
    ]


def test_a_failed_reload_still_notifies_the_manager() -> None:
    said = []

    @contextlib.contextmanager
    def around() -> Iterator[None]:
        said.append("begin")
        try:
            yield
        finally:
            said.append("end")

    def fail() -> RecorderConfig:
        said.append("load")
        raise ConfigError("no")

    Reload(fail, Listener(), around=around).read(RecorderConfig(), 0.0)
    assert said == ["begin", "load", "end"]


def test_a_storm_is_one_reading_a_second() -> None:
    loads = []
    reload = Reload(lambda: loads.append(1) or RecorderConfig(), Listener())  # type: ignore[func-returns-value]
    assert not reload.due(1e9)  # nobody has asked
    for _ in range(1000):
        reload.ask()
    assert reload.due(1e9)
    before = 1e6
    reload.read(RecorderConfig(), before)
    assert not reload.due(1e9)
    reload.ask()
    assert not reload.due(before + RELOAD_S - 0.01)  # too soon
    assert reload.due(1e9 + RELOAD_S)
    assert len(loads) == 1


#: What a worker runs before anything else: it says that it is through, and stays until it may go.
LINGERING = """
import os, pathlib, time
from tape2048_recorder.ipc import protocol

send = protocol.Channel.send

def lingering_send(channel, *messages):
    send(channel, *messages)
    if isinstance(messages[0], protocol.Bye):
        pathlib.Path({there!r}, f"bye-{{os.getpid()}}").touch()
        for _ in range(6_000):
            if pathlib.Path({there!r}, "go").exists():
                break
            time.sleep(0.02)

protocol.Channel.send = lingering_send
"""


@contextlib.contextmanager
def recording(config: Path, root: Path, **more: str) -> Iterator[tuple[subprocess.Popen[bytes], Path]]:
    """`tape2048 record` without a terminal, and its log."""
    log = config.with_name("log")
    with log.open("wb") as stderr:
        process = subprocess.Popen(
            [sys.executable, "-m", "tape2048_tools.cli", "record", "--config", config, "--out", root],
            env=environment(**more), stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=stderr,
            start_new_session=True,
        )  # fmt: skip
    try:
        yield process, log
    finally:
        process.kill()
        process.wait()


@pytest.mark.slow
def test_a_higher_limit_restarts_finished_workers(root: Path, tmp_path: Path) -> None:
    """Also where it comes between the last game and the end of the last worker."""
    (tmp_path / "sitecustomize.py").write_text(LINGERING.format(there=str(tmp_path)))
    more = {"PYTHONPATH": f"{tmp_path}{os.pathsep}{environment()['PYTHONPATH']}"}
    config = tmp_path / "recorder.toml"
    text = 'player = "greedy"\nworkers = 2\nmin_free_mb = 0\nmax_games = {}\n'
    config.write_text(text.format(10))
    with recording(config, root, **more) as (process, log):
        wait_until(lambda: len(list(tmp_path.glob("bye-*"))) == 2)
        config.write_text(text.format(500))
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: "max_games = 500 (was 10)" in log.read_text())
        (tmp_path / "go").touch()
        assert process.wait(PATIENCE_S / 2) == 0
    # A second worker that is still starting when the first has played all games is not awaited.
    assert len(list(tmp_path.glob("bye-*"))) >= 3
    assert sorted(run_table(root)["run_id"]) == list(range(500))


@pytest.mark.slow
def test_workers_follow_a_new_rotation(root: Path, tmp_path: Path) -> None:
    """By age and by size: also where finished games would wait for minutes, or for a block to fill."""
    config = tmp_path / "recorder.toml"
    text = 'player = "greedy"\nworkers = 1\nmin_free_mb = 0\nblock_rows = 4_000_000\nflush_s = 1_000\n'
    config.write_text(text)

    def rows() -> list[int]:
        return [len(Session.open(path).steps) for path in sessions(root)]

    with recording(config, root) as (process, log):
        wait_until(lambda: "recording" in log.read_text())
        config.write_text(f"{text}rotate_s = 0.2\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: len(rows()) >= 2)
        config.write_text(f"{text}rotate_steps = 3_000\n")
        process.send_signal(signal.SIGHUP)
        wait_until(lambda: any(3_000 <= count < 10_000 for count in rows()[2:]))
        process.terminate()
        assert process.wait(PATIENCE_S / 2) == 0
    assert_sessions_valid(root)
