"""What happens around a running recorder: its clock is set back, signals come early, memory is short."""

import errno
import os
import signal
import time
from pathlib import Path
from typing import Any

import pytest
from tests.sdk.builders import raising

from tape2048.errors import RecorderError, StartError, StorageError
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run

from .checks import Listener, assert_all_published, meta_of, published_runs
from .processes import Recorders

pytestmark = pytest.mark.slow


def test_another_system_is_refused(monkeypatch: pytest.MonkeyPatch, root: Path) -> None:
    monkeypatch.setattr("sys.platform", "darwin")
    nobody: Any = None
    with pytest.raises(StartError, match="found the system darwin, expected Linux"):
        run(RecorderConfig(out_dir=str(root)), nobody)


def test_a_clock_that_runs_backwards(recorders: Recorders, root: Path) -> None:
    hooks = {"import:backward_clock": True}
    settings: dict[str, Any] = {"player": "expectimax", "sample_rate": 20, "flush_s": 0.1, "rotate_s": 0.3}
    begin = time.monotonic()
    recorder = recorders.start(**settings, rotate_steps=10**9, seed=3, hooks=hooks)
    recorder.wait_for_status(lambda status: status["sessions"] >= 4)
    recorder.stop()
    took = time.monotonic() - begin
    statuses = [said["status"]["elapsed_s"] for said in recorder.said if "status" in said]
    assert statuses == sorted(statuses)
    assert 0.9 < recorder.summary["elapsed_s"] <= took, "durations are those of the monotonic clock"
    assert_all_published(root)
    ids = [run.outcome[0] for run in published_runs(root)]
    assert len(ids) == len(set(ids)) == recorder.summary["games"]
    in_order = [meta_of(Path(path))["started_at"] for path in recorder.summary["sessions"]]
    assert in_order == sorted(in_order, reverse=True)
    assert in_order[0] != in_order[-1], "the clock did run backwards"


def test_no_memory_to_share_is_named(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "memfd_create", raising(OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))))
    with pytest.raises(RecorderError, match="shared with workers could not be allocated: No space") as caught:
        run(RecorderConfig(out_dir=str(root), player="random", workers=1, min_free_mb=0), Listener())
    assert type(caught.value) is RecorderError, "it may be there for the next start, which a service makes"


@pytest.mark.parametrize("below", ["", "below"])
def test_a_link_to_nowhere_is_not_called_a_file(tmp_path: Path, below: str) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    with pytest.raises(StorageError, match=r"found a broken symbolic link.* \(nowhere\), expected") as caught:
        run(RecorderConfig(out_dir=str(link / below), player="random"), Listener())
    assert (f"at {link}" in str(caught.value)) == bool(below)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """Its path would be in each message to a worker; what a link to it is called does not help."""
    no_text = tmp_path / os.fsdecode(b"no\xff")
    no_text.mkdir()
    (tmp_path / "link").symlink_to(no_text)
    with pytest.raises(StorageError, match="not valid UTF-8"):
        run(RecorderConfig(out_dir=str(tmp_path / "link"), player="random", workers=1), Listener())


@pytest.mark.parametrize("umask", [0o002, 0o027])
def test_the_umask_decides_who_may_write(recorders: Recorders, root: Path, umask: int) -> None:
    """A group that shares a directory has the first, and the shipped service the second."""
    before = os.umask(umask)
    try:
        recorder = recorders.start(out_dir=str(root / "above" / "out"), max_games=10)
    finally:
        os.umask(before)
    assert recorder.end() == 0
    made = [root / "above", *root.glob("above/**/*")]
    assert {path.name for path in made} >= {"out", ".recorder", "metadata.db", "steps.npy", "default.lock"}
    for path in made:
        assert path.stat().st_mode & 0o777 == (0o777 if path.is_dir() else 0o666) & ~umask, path


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_before_its_handlers_is_kept(recorders: Recorders, number: signal.Signals) -> None:
    recorder = recorders.run(
        hooks={"import:early_signal": True, "early_signal:NUMBER": int(number)}, max_games=10
    )
    expected = "max_games = 10 was reached" if number == signal.SIGUSR1 else f"{number.name} was received"
    assert recorder.summary["reason"] == expected
