"""`tape2048 examples`: all files appear, as they are in the checkout, and none is replaced unasked."""

from pathlib import Path

from tape2048 import errors

from ..conftest import Cli

CHECKOUT = Path(__file__).resolve().parents[3]


def test_files_are_those_of_the_checkout(cli: Cli, tmp_path: Path) -> None:
    cli("examples --out", str(tmp_path / "new"))
    expected = [
        *(path for path in (CHECKOUT / "examples").iterdir() if path.is_file()),
        *(CHECKOUT / "config").glob("*.toml"),
        CHECKOUT / "systemd/recorder.toml",
    ]
    written = {path.name: path.read_text() for path in (tmp_path / "new").iterdir()}
    assert written == {path.name: path.read_text() for path in expected}
    assert {"imitate.py", "train_critic.py", "recorder.toml"} <= set(written)


def test_nothing_is_replaced_unasked(cli: Cli, tmp_path: Path) -> None:
    mine = tmp_path / "imitate.py"
    mine.write_text("mine")
    refused = cli("examples --out", str(tmp_path), expect=errors.NameTakenError)
    assert "imitate.py: the file exists" in refused.err
    assert mine.read_text() == "mine"
    cli("examples --out", str(tmp_path), "--force")
    assert mine.read_text() != "mine"
