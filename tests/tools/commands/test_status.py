"""`tape2048 status`, `rotate` and `stop` where no recorder has to be at work."""

import contextlib
import os
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import msgspec
import pytest
from tests.recorder.statuses import snapshot_now, status_now

from tape2048 import errors
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import Service
from tape2048_recorder.status import control_socket as control
from tape2048_recorder.status.status_report import Counts, StatusFile, status_path

from ..conftest import Cli


def write(
    root: Path, instance: str = "default", *, age_s: float = 0.0, pid_off: int = 0, **fields: Any
) -> None:
    """What this process would have written as a recorder."""
    well = {"elapsed_s": 3700.0, "reach": {2048: 0.92}, "disk_full_s": 7200.0}
    snapshot = snapshot_now(age_s=age_s, instance=instance, status=status_now(**{**well, **fields}))
    process = msgspec.structs.replace(snapshot.process, start_ticks=snapshot.process.start_ticks + pid_off)
    path = status_path(root, instance)
    path.parent.mkdir(parents=True, exist_ok=True)
    StatusFile(path).write(msgspec.structs.replace(snapshot, process=process))


@pytest.mark.parametrize(
    ("fields", "said", "code"),
    [
        ({}, "default: recording\n", 0),
        ({"state": "draining", "ending": True, "why": "SIGTERM"}, "default: draining (SIGTERM)\n", 1),
        ({"age_s": 42.0, "pid_off": 1}, "(last written 42 s ago; pid PID has ended)\n", 1),
        ({"state": "stopped", "age_s": 5.0, "why": "SIGTERM"}, "default: stopped 5 s ago (SIGTERM)\n", 1),
    ],
)
def test_it_says_what_the_file_means_now(
    cli: Cli, tmp_path: Path, fields: dict[str, Any], said: str, code: int
) -> None:
    write(tmp_path, **fields)
    done = cli("status", str(tmp_path), expect=code)
    assert said.replace("PID", str(os.getpid())) in done.out
    assert done.err == ""
    document = cli("status", tmp_path, "--json", expect=code).json
    (recorder,) = document["recorders"]
    assert recorder["verdict"]["running"] is (code == 0)
    assert recorder["status"]["steps"] == 15_000_000


def test_the_facts_are_there_in_words(cli: Cli, tmp_path: Path) -> None:
    counts = Counts(
        sessions=1, session_bytes=280_000_000, pauses={"disk_full": 2}, paused_s=61, worker_restarts=3
    )
    write(tmp_path, counts=counts, rows_waiting=262_144, by_highest_tile={1024: 400, 2048: 5500})
    out = cli("status", str(tmp_path)).out
    for text in (
        "1,500,000 steps/s", "6,000 finished, 5,900 of them on disk, 15,000,000 steps, mean score 52,000",
        "2048 92%", "80 GB free, full in 2:00:00",
        "disk_full 2 (1:01 in all)", "3 workers (0 silent)", "262,144 rows, 0 sessions",
        "1 published (280 MB)", "ntuple:look=16 with 2 of 2 workers",
    ):  # fmt: skip
        assert text in out
    assert "in the model" not in out
    assert "dropped" not in out
    write(tmp_path, player="ntuple strong, 2-ply always @012345")
    assert "ntuple strong, 2-ply always @012345 with 2 of 2 workers" in cli("status", str(tmp_path)).out
    write(tmp_path, model_share=0.934)
    assert "1,500,000 steps/s, 93% of the time in the model" in cli("status", str(tmp_path)).out


def test_one_that_runs_is_enough_and_one_can_be_named(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a", state="stopped")
    write(tmp_path, "b")
    cli("status", str(tmp_path))
    cli("status", str(tmp_path), "--instance", "a", expect=1)
    cli("status", str(tmp_path), "--instance", "b")


def test_where_nobody_ever_recorded(cli: Cli, tmp_path: Path) -> None:
    file = tmp_path / "steps.npy"
    file.write_text("mine")
    for command in ("status", "rotate", "stop"):
        cli(command, tmp_path / "nothing", expect=errors.MissingPathError)
        done = cli(command, tmp_path, expect=errors.NotRunningError)
        assert ("no recorder" in done.err, done.out) == (True, "")
        done = cli(command, file, expect=errors.StorageError)
        assert f"{file}: found a file, expected the directory" in done.err


def test_a_missing_instance_lists_the_others(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "gpu0")
    write(tmp_path, "gpu1", state="stopped")
    commands = ("status", "rotate", "stop")
    for command in commands:
        done = cli(command, tmp_path, "--instance", "gpu2", expect=errors.NotRunningError)
        assert "as instance 'gpu2'" in done.err
        assert "Choose a known --instance: gpu0, gpu1" in done.err
    for number in range(30):
        write(tmp_path, f"many{number}")
    for command in commands:
        done = cli(command, tmp_path, "--instance", "gpu2", expect=errors.NotRunningError)
        assert done.err.count("many") == 14


def test_who_is_not_there_cannot_be_told(cli: Cli, tmp_path: Path) -> None:
    for fields in ({"state": "stopped"}, {"pid_off": 1}):
        write(tmp_path, **fields)  # type: ignore[arg-type]
        for command in ("rotate", "stop"):
            done = cli(command, tmp_path, expect=errors.NotRunningError)
            assert "no recorder is running here" in done.err


@pytest.mark.parametrize("flags", [[], ["--json"]])
def test_stop_tells_of_one_that_ended_with_an_error(
    cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, flags: list[str]
) -> None:
    def fail(running: control.Running, *, drain: bool) -> None:
        config = RecorderConfig(out_dir=str(tmp_path))
        instance = SimpleNamespace(status_path=status_path(tmp_path, "default"), lost=lambda: None)
        with (
            contextlib.suppress(errors.StorageError),
            Service(SimpleNamespace(event=lambda *_: None), config, instance, {}),  # type: ignore[arg-type]
        ):
            raise errors.StorageError("publishing a session failed", path=tmp_path)

    write(tmp_path)
    monkeypatch.setattr(control.Running, "stop", fail)
    monkeypatch.setattr(control.Running, "wait", lambda *_: True)
    done = cli("stop", str(tmp_path), *flags, expect=errors.RecorderError)
    assert done.out == ""
    assert f"ended with an error: {tmp_path}: publishing a session failed\n" in done.err
    monkeypatch.setattr(
        control.Running, "stop", lambda *_, **__: write(tmp_path, state="stopped", why="SIGTERM")
    )
    write(tmp_path)
    cli("stop", str(tmp_path), *flags)


def test_dropped_games_are_shown(cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kept = {"by_highest_tile": {1024: 1, 2048: 4000}, "recorded_rows": 9_000_000}

    def stop(running: control.Running, *, drain: bool) -> None:
        write(tmp_path, state="stopped", why="SIGUSR2", games_dropped=2001, **kept)

    monkeypatch.setattr(control.Running, "stop", stop)
    monkeypatch.setattr(control.Running, "wait", lambda *_: True)
    write(tmp_path)
    dropped = "2,001 games of the workers: not started, in progress, or finished and not yet written"
    said = cli("stop", str(tmp_path), "--now").out
    assert said == f"stopped (SIGUSR2): 1 session, 4,001 games, 9,000,000 rows; dropped: {dropped}\n"
    shown = cli("status", str(tmp_path), expect=1).out
    assert "6,000 finished, 4,001 of them on disk, " in shown
    assert dropped in " ".join(shown.split())


def test_one_that_ends_is_not_asked_to_rotate(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, state="draining", ending=True)
    done = cli("rotate", str(tmp_path), expect=errors.RecorderError)
    assert "the recorder is ending" in done.err


def test_watching_is_for_people(cli: Cli, tmp_path: Path) -> None:
    cli("status", str(tmp_path), "--watch", "--json", expect=2)


def test_the_running_recorder_is_the_default(cli: Cli, tmp_path: Path) -> None:
    write(tmp_path, "a", state="stopped", pid_off=1)
    write(tmp_path, "b", state="draining", ending=True)
    assert (
        "the recorder is ending" in cli("rotate", str(tmp_path), expect=errors.RecorderError).err
    )  # it was b that was found
    write(tmp_path, "c", state="draining", ending=True)
    done = cli("rotate", str(tmp_path), expect=errors.RecorderError)
    assert "found 2 running recorders, expected one: b, c" in done.err
    assert (
        "the recorder is ending"
        in cli("rotate", str(tmp_path), "--instance", "c", expect=errors.RecorderError).err
    )
