"""What happens around a running recorder: its disk becomes read-only, its clock is set back."""

import os
import signal
from pathlib import Path

import pytest

from tape2048.errors import StorageError
from tape2048_recorder.record_options import RecorderConfig
from tape2048_recorder.recorder import run

from .checks import Listener
from .processes import Recorders

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("below", ["", "below"])
def test_a_link_to_nowhere_is_not_called_a_file(tmp_path: Path, below: str) -> None:
    link = tmp_path / "link"
    link.symlink_to("nowhere")
    with pytest.raises(
        StorageError, match=r"found a symbolic link to nowhere.* \(nowhere\), expected"
    ) as caught:
        run(RecorderConfig(out_dir=str(link / below), player="random"), Listener())
    assert (f"at {link}" in str(caught.value)) == bool(below)
    assert not (tmp_path / "nowhere").exists()


def test_a_directory_whose_name_is_no_text_is_refused(tmp_path: Path) -> None:
    """Its path would be in each message to a worker; what a link to it is called does not help."""
    no_text = tmp_path / os.fsdecode(b"no\xff")
    no_text.mkdir()
    (tmp_path / "link").symlink_to(no_text)
    with pytest.raises(StorageError, match="bytes that are no text"):
        run(RecorderConfig(out_dir=str(tmp_path / "link"), player="random", workers=1), Listener())


@pytest.mark.parametrize(("umask", "mode"), [(0, 0o755), (0o027, 0o750)])
def test_nobody_else_may_write_to_what_it_makes(
    recorders: Recorders, root: Path, umask: int, mode: int
) -> None:
    """A stricter umask is kept. This one is the shipped service's."""
    before = os.umask(umask)
    try:
        recorder = recorders.start(out_dir=str(root / "above" / "out"), max_games=10)
    finally:
        os.umask(before)
    assert recorder.end() == 0
    made = [path for path in (root / "above").rglob("*") if path.is_dir()]
    assert {path.name for path in made} >= {"out", ".recorder"}
    assert {path.stat().st_mode & 0o777 for path in [root / "above", *made]} == {mode}


@pytest.mark.parametrize("number", [signal.SIGUSR1, signal.SIGTERM])
def test_a_signal_before_its_handlers_is_kept(recorders: Recorders, number: signal.Signals) -> None:
    recorder = recorders.run(
        hooks={"import:early_signal": True, "early_signal:NUMBER": int(number)}, max_games=10
    )
    expected = "max_games = 10 was reached" if number == signal.SIGUSR1 else f"{number.name} was received"
    assert recorder.summary["reason"] == expected
